"""Hosts, users and slices in an LDAP directory, as RFC 2307 has them, for whatever looks there: login, sudo, mounts,
names.

Below ``base`` there are three folders: ``ou=hosts`` (a ``device`` and ``ipHost`` for each unit), ``ou=users`` (a
``posixAccount`` for each holder who has a unit) and ``ou=slices`` (a ``posixGroup`` for each slice that has one, with
its holder as the member). The directory is all that there is: what is there of a unit says whose it was.

Others may have entries there too, people and other sites among them. So each entry is marked, in ``description``: a
host with the site and unit that it is of; a user or group as leasekit's, and with each site that needs it. What has
no mark is never changed, nor removed; what is marked goes with its last site, and a server looks at that itself
(RFC 4528), for another site may want the entry in the same moment.
"""

from __future__ import annotations

import importlib
import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from leasekit.core.drivers import LEASE, UNIT, Blame, DriverError, SiteFaultError
from leasekit.core.settings import SettingsError
from leasekit.drivers.directory.entry import DirectoryEntry, plain_name
from leasekit.drivers.names import one_line
from leasekit.drivers.power.settings import read_secret

HOSTS: Final = "hosts"
USERS: Final = "users"
SLICES: Final = "slices"
TIMEOUT: Final = 10
"""Seconds for a connection, and for each answer."""
OURS: Final = "leasekit"
"""The mark of a user or group that leasekit has made; behind a colon, each site that needs it."""
TRIAL: Final = "leasekit-trial"
"""What is made and removed to see whether entries can be."""
ATTEMPTS: Final = 5
"""How often an entry is asked for that others remove meanwhile."""
UNLESS_NEEDED: Final = ("1.3.6.1.1.12", True, b"\xa2\x1c\xa4\x1a\x04\x0bdescription0\x0b\x80\x09leasekit:")
"""The assertion control, with the filter ``(!(description=leasekit:*))``: only an entry that no site needs is removed.
"""

_turns: Final[dict[tuple[str, str], threading.Lock]] = {}
"""By url and base: numbers of users and slices are shared by all drivers of a daemon that write to one place."""


@attrs.frozen(kw_only=True)
class LdapSettings:
    """``url`` is ``ldap://HOST``, ``ldaps://HOST`` or ``ldapi://PATH``; ``bind`` who writes there, with the password in
    ``password_file`` (mode 0600). ``site`` marks what is this site's: no other that writes below ``base`` has the same.
    Numbers of users and slices are given from ``first_id`` on; homes are below ``homes``.

    The certificate behind ``ldaps://`` must be one of ``ca_file``, or of an authority that this machine knows. With
    ``plaintext`` a password may go over ``ldap://`` to another machine, where it can be read on the way.
    """

    url: str = attrs.field(validator=attrs.validators.matches_re(r"(ldap|ldaps|ldapi)://\S*"))
    base: str = attrs.field(validator=attrs.validators.min_len(1))
    # Small letters, for directories do not tell them from others; no colon, for one ends the name in a mark.
    site: str = attrs.field(validator=attrs.validators.matches_re(r"[a-z0-9][a-z0-9_.-]{0,62}"))
    bind: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None
    plaintext: bool = False
    first_id: int = attrs.field(default=20_000, validator=attrs.validators.ge(1000))
    homes: str = "/home"
    shell: str = "/bin/sh"

    def __attrs_post_init__(self) -> None:
        if self.bind and not self.plaintext and _can_be_read(self.url):
            raise ValueError(
                f"url: found {self.url[:80]!r}, over which the password of bind could be read on the way: expected "
                "ldaps://, ldapi://, an address of this machine, or plaintext = true"
            )


class LdapExport:
    """Writes entries to a directory. Its methods block, and raise ``DriverError``.

    Raises ``SettingsError`` without ldap3, and for a ``ca_file`` that can't be used.
    """

    def __init__(self, settings: LdapSettings) -> None:
        self._settings = settings
        try:
            self._ldap = importlib.import_module("ldap3")
            self._dn = importlib.import_module("ldap3.utils.dn")
            self._conv = importlib.import_module("ldap3.utils.conv")
            self._errors = importlib.import_module("ldap3.core.exceptions")
        except ImportError as error:
            raise SettingsError([f"ldap: it needs the extra ldap (pip install 'leasekit[ldap]'): {error}"]) from error
        try:
            self._dn.parse_dn(settings.base)
        except self._errors.LDAPInvalidDnError as error:
            raise SettingsError([f"ldap.base: found {settings.base[:80]!r}, expected a DN ({error})"]) from error
        try:
            ssl.create_default_context(cafile=settings.ca_file)
        except OSError as error:  # SSLError too
            text = f"ldap.ca_file: found {settings.ca_file}, which can't be used: {error.strerror or error}"
            raise SettingsError([text]) from error
        self._turn = _turns.setdefault((settings.url, settings.base), threading.Lock())

    def publish(self, entry: DirectoryEntry) -> None:
        """The directory has the unit's host, its holder and its slice, as they are now."""
        holder, slice_ = _words(entry)
        with self._connected() as link:
            for folder in (HOSTS, USERS, SLICES):
                self._added(link, self._folder(folder), ["organizationalUnit"], {"ou": folder})
            number = self._number(link, USERS, "uid", holder, "uidNumber")
            group = self._number(link, SLICES, "cn", slice_, "gidNumber")
            user = {
                "uid": holder, "cn": entry.holder or holder, "uidNumber": number, "gidNumber": group,
                "homeDirectory": f"{self._settings.homes}/{holder}", "loginShell": self._settings.shell,
            }  # fmt: skip
            self._need(link, self._entry("uid", holder, USERS), ["account", "posixAccount"], user)
            members = {"cn": slice_, "gidNumber": group, "memberUid": holder}
            # The word before it keeps the name of a slice, which a guest chooses, from being a mark.
            named = f"slice {entry.slice or slice_}"
            self._need(link, self._entry("cn", slice_, SLICES), ["posixGroup"], members, named)
            host = {
                "cn": list(entry.names), "ipHostNumber": list(entry.addresses), "description": self._host(entry.unit),
                "ou": slice_, "owner": self._entry("uid", holder, USERS),
            }  # fmt: skip
            self._take_hosts(link, entry.unit)
            self._add(link, self._entry("cn", entry.hostname, HOSTS), ["device", "ipHost"], host)
            self._sweep(link)

    def withdraw(self, unit: str) -> None:
        """The directory has nothing of the unit, nor a slice or a holder that no other needs."""
        with self._connected() as link:
            self._take_hosts(link, unit)
            # Although there was no host: an earlier try may have come no further than that.
            self._sweep(link)

    def units(self) -> set[str]:
        """The units of this site that have an entry."""
        with self._connected() as link:
            return {unit for _, found in self._hosts(link) for unit in self._units_of(found)}

    def check(self) -> None:
        """Raises ``DriverError`` where who binds does not see ``base``, or may not write where entries go: one is made
        there, and removed.
        """
        base = self._settings.base
        with self._connected() as link:
            if self._read(link, base) is None:
                text = f"found no entry {one_line(base, 200)} (base), or none that {self._who} may see"
                raise SiteFaultError(f"LDAP at {self._settings.url}: {text}", retry=False)
            for below in map(self._folder, (HOSTS, USERS, SLICES)):
                name = f"ou={TRIAL},{base if self._read(link, below) is None else below}"
                try:
                    self._added(link, name, ["organizationalUnit"], {"ou": TRIAL})
                    self._do(link, lambda name=name: link.delete(name), ("noSuchObject",))  # type: ignore[misc]
                except DriverError as error:
                    raise DriverError(f"{error} ({self._who} writes {one_line(name, 200)})", retry=False) from error

    @property
    def _who(self) -> str:
        return self._settings.bind or "nobody"

    # What is this site's

    @property
    def _mark(self) -> str:
        """What a user or group has that this site needs."""
        return f"{OURS}:{self._settings.site}"

    def _host(self, unit: str) -> str:
        """What the host of a unit of this site has."""
        return f"{self._mark}:{unit}"

    def _hosts(self, link: Any) -> list[tuple[str, Mapping[str, list[str]]]]:
        return self._search(link, HOSTS, f"(&(objectClass=ipHost)(description={self._escaped(self._mark)}:*))")

    def _units_of(self, found: Mapping[str, list[str]]) -> list[str]:
        """The units in a host's marks: one, unless somebody else has written there."""
        before = self._host("")
        return [text.removeprefix(before) for text in found.get("description", ()) if text.startswith(before)]

    def _take_hosts(self, link: Any, unit: str) -> None:
        for name, found in self._hosts(link):
            # The server does not tell small letters from large ones.
            if unit in self._units_of(found):
                self._delete(link, name)

    def _sweep(self, link: Any) -> None:
        """Has no mark of the site on slices and users that none of its hosts is of, and removes what no site needs."""
        hosts = [found for _, found in self._hosts(link)]
        slices = {name for found in hosts for name in found.get("ou", ())}
        # Servers may write DNs in other ways than they were given; names of users are plain.
        users = {name.partition(",")[0].partition("=")[2] for found in hosts for name in found.get("owner", ())}
        mark = self._escaped(self._mark)
        for folder, class_, key, needed in (
            (SLICES, "posixGroup", "cn", slices),
            (USERS, "posixAccount", "uid", users),
        ):
            for name, found in self._search(link, folder, f"(&(objectClass={class_})(description={mark}))"):
                if needed.isdisjoint(found.get(key, ())):
                    self._unmark(link, name)
            nobodys = f"(&(objectClass={class_})(description={OURS})(!(description={OURS}:*)))"
            for name, _ in self._search(link, folder, nobodys):
                self._delete(link, name, UNLESS_NEEDED)

    def _unmark(self, link: Any, name: str) -> None:
        gone = {"description": [(self._ldap.MODIFY_DELETE, [self._mark])]}
        self._do(link, lambda: link.modify(name, gone), ("noSuchObject", "noSuchAttribute"))

    def _delete(self, link: Any, name: str, *controls: tuple[str, bool, bytes]) -> None:
        # A server without assertions leaves what may be another site's: it has its uses when the holder comes again.
        allowed = ("noSuchObject", "assertionFailed", "unavailableCriticalExtension")
        self._do(link, lambda: link.delete(name, controls=list(controls) or None), allowed)

    def _number(self, link: Any, folder: str, key: str, name: str, number: str) -> int:
        """The number that an entry has, or else the first that none has, whosoever it is."""
        found = self._search(link, folder, f"({number}=*)")
        for _, entry in found:
            if name in entry.get(key, ()):
                return int(entry[number][0])
        taken = {int(text) for _, entry in found for text in entry.get(number, ())}
        return next(n for n in range(self._settings.first_id, 2**31) if n not in taken)

    def _need(self, link: Any, name: str, classes: list[str], values: Mapping[str, Any], named: str = "") -> None:
        """There is a user or group with these values, and with the mark of this site. Raises ``DriverError`` for one
        that leasekit has not made.
        """
        marks = [OURS, self._mark, *filter(None, [named])]
        for _attempt in range(ATTEMPTS):
            if self._added(link, name, classes, {**values, "description": marks}):
                return
            found = self._read(link, name)
            if found is None:
                continue
            has = found.get("description", [])
            if OURS not in has:
                raise self._foreign(name, "is not leasekit's", LEASE)
            if self._changed(link, name, values, [mark for mark in marks if mark not in has]):
                return
        raise SiteFaultError(f"LDAP at {self._settings.url}: {one_line(name, 200)} is made and removed by turns")

    def _add(self, link: Any, name: str, classes: list[str], values: Mapping[str, Any]) -> None:
        """Adds a host. Raises ``DriverError`` where there is one of that name."""
        if not self._added(link, name, classes, values):
            has = (self._read(link, name) or {}).get("description", ())
            marks = [text for text in has if text.startswith(f"{OURS}:")]
            raise self._foreign(name, f"is marked as {marks[0]}" if marks else "is not leasekit's")

    def _added(self, link: Any, name: str, classes: list[str], values: Mapping[str, Any]) -> bool:
        """Whether there was no such entry, and now is."""
        told = self._do(link, lambda: link.add(name, classes, dict(values)), allowed=("entryAlreadyExists",))
        return told == "success"

    def _changed(self, link: Any, name: str, values: Mapping[str, Any], marks: list[str]) -> bool:
        """Whether the entry was there still to get these values, and marks that it lacked."""
        changes = {key: [(self._ldap.MODIFY_REPLACE, _listed(value))] for key, value in values.items()}
        if marks:
            changes["description"] = [(self._ldap.MODIFY_ADD, marks)]
        return self._do(link, lambda: link.modify(name, changes), allowed=("noSuchObject",)) == "success"

    def _foreign(self, name: str, why: str, blame: Blame = UNIT) -> DriverError:
        text = f"LDAP at {self._settings.url}: {one_line(name, 200)} is there, and {one_line(why, 200)}: it is left as "
        return DriverError(f"{text}it is; remove it, or give the site another base", retry=False, blame=blame)

    # What is said to the server

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        settings, ldap = self._settings, self._ldap
        authority = None if settings.ca_file is None else str(settings.ca_file)
        tls = ldap.Tls(validate=ssl.CERT_REQUIRED, ca_certs_file=authority)
        how = {"user": settings.bind, "password": self._password()} if settings.bind else {}
        try:
            server = ldap.Server(settings.url, connect_timeout=TIMEOUT, get_info=ldap.NONE, tls=tls)
            link = ldap.Connection(server, **how, receive_timeout=TIMEOUT, raise_exceptions=False)
            with self._turn:
                if not link.bind():
                    told = one_line(str(link.result.get("description")))
                    raise SiteFaultError(f"LDAP at {settings.url}: {self._who} can't log in: {told}", retry=False)
                try:
                    yield link
                finally:
                    link.unbind()
        except self._errors.LDAPException as error:
            raise SiteFaultError(f"LDAP at {settings.url}: {one_line(str(error))}") from error

    def _password(self) -> str:
        return "" if self._settings.password_file is None else read_secret(self._settings.password_file)

    def _search(self, link: Any, folder: str, filter_: str) -> list[tuple[str, Mapping[str, list[str]]]]:
        return self._found(link, self._folder(folder), filter_, self._ldap.LEVEL)

    def _read(self, link: Any, name: str) -> Mapping[str, list[str]] | None:
        """An entry, if it is there."""
        found = self._found(link, name, "(objectClass=*)", self._ldap.BASE)
        return found[0][1] if found else None

    def _found(self, link: Any, below: str, filter_: str, scope: str) -> list[tuple[str, Mapping[str, list[str]]]]:
        self._do(
            link,
            lambda: link.search(below, filter_, scope, attributes=self._ldap.ALL_ATTRIBUTES),
            allowed=("noSuchObject",),
        )
        found = link.response or []
        return [(one["dn"], _texts(one["raw_attributes"])) for one in found if one["type"] == "searchResEntry"]

    def _do(self, link: Any, act: Callable[[], Any], allowed: Sequence[str] = ()) -> str:
        act()
        told = str(link.result["description"])
        if told not in ("success", *allowed):
            more = one_line(str(link.result.get("message") or ""))
            raise SiteFaultError(f"LDAP at {self._settings.url}: {told}{f': {more}' if more else ''}")
        return told

    def _folder(self, folder: str) -> str:
        return f"ou={folder},{self._settings.base}"

    def _entry(self, key: str, name: str, folder: str) -> str:
        return f"{key}={self._dn.escape_rdn(name)},{self._folder(folder)}"

    def _escaped(self, text: str) -> str:
        return str(self._conv.escape_filter_chars(text))


def _words(entry: DirectoryEntry) -> tuple[str, str]:
    """The names of the holder and of the slice. Two holders may call their slices alike."""
    holder = plain_name(entry.holder or "nobody")
    # Neither half has a dot: no other pair makes the same name.
    return holder, f"{holder}.{plain_name(entry.slice or 'default')}"


def _can_be_read(url: str) -> bool:
    """Whether what goes there passes other machines in the clear."""
    parts = urlsplit(url)
    if parts.scheme != "ldap" or parts.hostname == "localhost":
        return False
    try:
        return not ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return True


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _texts(raw: Mapping[str, list[bytes]]) -> dict[str, list[str]]:
    return {key: [value.decode("utf-8", "replace") for value in values] for key, values in raw.items()}
