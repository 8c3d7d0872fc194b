"""Hosts, users and slices in an LDAP directory, as RFC 2307 has them, for whatever looks there: login, sudo, mounts,
names.

Below ``base`` there are three folders: ``ou=hosts`` (a ``device`` and ``ipHost`` for each unit), ``ou=users`` (a
``posixAccount`` for each holder who has a unit) and ``ou=slices`` (a ``posixGroup`` for each slice that has one, with
its holder as the member). The directory is all that there is: what is there of a unit says whose it was.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from leasekit.core.drivers import DriverError
from leasekit.core.settings import SettingsError
from leasekit.drivers.directory.entry import Entry, plain_name
from leasekit.drivers.names import one_line

HOSTS: Final = "hosts"
USERS: Final = "users"
SLICES: Final = "slices"
TIMEOUT: Final = 10
"""Seconds for a connection, and for each answer."""
PASSWORD_MAX: Final = 4096


@attrs.frozen(kw_only=True)
class LdapSettings:
    """``url`` is ``ldap://HOST``, ``ldaps://HOST`` or ``ldapi://PATH``; ``bind`` who writes there, with the password in
    ``password_file``. Numbers of users and slices are given from ``first_id`` on; homes are below ``homes``.
    """

    url: str = attrs.field(validator=attrs.validators.matches_re(r"(ldap|ldaps|ldapi)://\S*"))
    base: str = attrs.field(validator=attrs.validators.min_len(1))
    bind: str = ""
    password_file: Path | None = None
    first_id: int = attrs.field(default=20_000, validator=attrs.validators.ge(1000))
    homes: str = "/home"
    shell: str = "/bin/sh"


class LdapExport:
    """Writes entries to a directory. Its methods block, and raise ``DriverError``.

    Raises ``SettingsError`` without ldap3.
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

    def publish(self, entry: Entry) -> None:
        """The directory has the unit's host, its holder and its slice, as they are now."""
        holder, slice_ = _words(entry)
        with self._connected() as link:
            for folder in (HOSTS, USERS, SLICES):
                self._add(link, self._folder(folder), ["organizationalUnit"], {"ou": folder})
            number = self._number(link, USERS, "uid", holder, "uidNumber")
            group = self._number(link, SLICES, "cn", slice_, "gidNumber")
            user = {
                "uid": holder, "cn": entry.holder or holder, "uidNumber": number, "gidNumber": group,
                "homeDirectory": f"{self._settings.homes}/{holder}", "loginShell": self._settings.shell,
            }  # fmt: skip
            self._add(link, self._entry("uid", holder, USERS), ["account", "posixAccount"], user)
            members = {"cn": slice_, "gidNumber": group, "memberUid": holder, "description": entry.slice or slice_}
            self._add(link, self._entry("cn", slice_, SLICES), ["posixGroup"], members)
            host = {
                "cn": list(entry.names), "ipHostNumber": list(entry.addresses), "description": entry.unit,
                "ou": slice_, "owner": self._entry("uid", holder, USERS),
            }  # fmt: skip
            self._take_host(link, entry.unit)
            self._add(link, self._entry("cn", entry.hostname, HOSTS), ["device", "ipHost"], host)
            self._sweep(link)

    def withdraw(self, unit: str) -> None:
        """The directory has nothing of the unit, nor a slice or a holder that has no other."""
        with self._connected() as link:
            if self._take_host(link, unit):
                self._sweep(link)

    def units(self) -> set[str]:
        """The units that have an entry."""
        with self._connected() as link:
            return {str(found["description"][0]) for _, found in self._search(link, HOSTS, "(objectClass=ipHost)")}

    def _take_host(self, link: Any, unit: str) -> bool:
        found = self._search(link, HOSTS, f"(&(objectClass=ipHost)(description={self._escaped(unit)}))")
        for name, _ in found:
            self._delete(link, name)
        return bool(found)

    def _sweep(self, link: Any) -> None:
        """Removes slices and users that no host is of."""
        hosts = [found for _, found in self._search(link, HOSTS, "(objectClass=ipHost)")]
        slices = {str(found["ou"][0]) for found in hosts}
        owners = {str(found["owner"][0]).lower() for found in hosts}
        for name, found in self._search(link, SLICES, "(objectClass=posixGroup)"):
            if str(found["cn"][0]) not in slices:
                self._delete(link, name)
        for name, _ in self._search(link, USERS, "(objectClass=posixAccount)"):
            if name.lower() not in owners:
                self._delete(link, name)

    def _delete(self, link: Any, name: str) -> None:
        self._do(link, lambda: link.delete(name), allowed=("noSuchObject",))

    def _number(self, link: Any, folder: str, key: str, name: str, number: str) -> int:
        """The number that an entry has, or else the first that none has."""
        found = self._search(link, folder, f"({number}=*)")
        for _, entry in found:
            if str(entry[key][0]) == name:
                return int(entry[number][0])
        taken = {int(entry[number][0]) for _, entry in found}
        return next(n for n in range(self._settings.first_id, 2**31) if n not in taken)

    # What is said to the server

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        settings, ldap = self._settings, self._ldap
        server = ldap.Server(settings.url, connect_timeout=TIMEOUT, get_info=ldap.NONE)
        how = {"user": settings.bind, "password": self._password()} if settings.bind else {}
        try:
            link = ldap.Connection(server, **how, receive_timeout=TIMEOUT, raise_exceptions=False)
            if not link.bind():
                told = one_line(str(link.result.get("description")))
                raise DriverError(
                    f"LDAP at {settings.url}: {settings.bind or 'nobody'} can't log in: {told}", retry=False
                )
            try:
                yield link
            finally:
                link.unbind()
        except self._errors.LDAPException as error:
            raise DriverError(f"LDAP at {settings.url}: {one_line(str(error))}") from error

    def _password(self) -> str:
        path = self._settings.password_file
        if path is None:
            return ""
        try:
            return path.read_text("utf-8")[:PASSWORD_MAX].rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DriverError(f"can't read the password of LDAP in {path}: {error}", retry=False) from error

    def _add(self, link: Any, name: str, classes: list[str], values: Mapping[str, Any]) -> None:
        """Adds an entry, or brings the values of one that is there to these."""
        result = self._do(link, lambda: link.add(name, classes, dict(values)), allowed=("entryAlreadyExists",))
        if result == "entryAlreadyExists" and "organizationalUnit" not in classes:
            changes = {key: [(self._ldap.MODIFY_REPLACE, _listed(value))] for key, value in values.items()}
            self._do(link, lambda: link.modify(name, changes))

    def _search(self, link: Any, folder: str, filter_: str) -> list[tuple[str, Mapping[str, Any]]]:
        ldap = self._ldap
        self._do(
            link,
            lambda: link.search(self._folder(folder), filter_, ldap.LEVEL, attributes=ldap.ALL_ATTRIBUTES),
            allowed=("noSuchObject",),
        )
        found = link.response or []
        return [(one["dn"], _texts(one["raw_attributes"])) for one in found if one["type"] == "searchResEntry"]

    def _do(self, link: Any, act: Callable[[], Any], allowed: tuple[str, ...] = ()) -> str:
        act()
        told = str(link.result["description"])
        if told not in ("success", *allowed):
            more = one_line(str(link.result.get("message") or ""))
            raise DriverError(f"LDAP at {self._settings.url}: {told}{f': {more}' if more else ''}")
        return told

    def _folder(self, folder: str) -> str:
        return f"ou={folder},{self._settings.base}"

    def _entry(self, key: str, name: str, folder: str) -> str:
        return f"{key}={self._dn.escape_rdn(name)},{self._folder(folder)}"

    def _escaped(self, text: str) -> str:
        return str(self._conv.escape_filter_chars(text))


def _words(entry: Entry) -> tuple[str, str]:
    """The names of the holder and of the slice. Two holders may call their slices alike."""
    holder = plain_name(entry.holder or "nobody")
    # Neither half has a dot: no other pair makes the same name.
    return holder, f"{holder}.{plain_name(entry.slice or 'default')}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _texts(raw: Mapping[str, list[bytes]]) -> dict[str, list[str]]:
    return {key: [value.decode("utf-8", "replace") for value in values] for key, values in raw.items()}
