"""Guests' drivers that take units into their application: by ssh, a script of the guest's own, run on the unit; and by
Ansible, a playbook for each action, run with the unit as its only host. And how to log in to a unit, as its properties
say: with the host key that its site told, and no other.

The script is sent to the unit's shell. It sees what commands of the script driver see: the properties in its
environment, as ``LEASEKIT_`` and the key in capitals. Values are quoted on the way; none of them is ever a command.
It writes properties to standard output, as a JSON object of strings (or nothing), and what it has to say to standard
error; exit status 75 is a failure that may pass.

Properties come from sites, which a guest need not trust: what becomes a word of a command, or a line of a file, is
checked for what it may be first.

The playbook sees ``leasekit.op``, ``leasekit.unit``, ``leasekit.lease``, ``leasekit.type``, ``leasekit.number`` and
``leasekit.properties``. Their texts are told to Ansible as unsafe: nothing in them is taken as a template. Ansible is
run as a program, never imported.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
import trio

from leasekit.core.drivers import DriverError, ProbeResult, UnitContext
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.settings import DurationSetting, SettingsError
from leasekit.core.time import SECOND
from leasekit.drivers.commands import Abandoned, Run, mark_of
from leasekit.drivers.files import SEARCH
from leasekit.drivers.members import unit_address
from leasekit.drivers.names import USER, check_member_id, refused_property
from leasekit.drivers.one_sided import GuestOnly
from leasekit.drivers.script import INHERITED, properties_as_environment, read_properties

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_HOST_KEY: Final = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]{40,2000}={0,2}")
ALIAS: Final = "unit"
"""What the unit is called in its file of host keys, whatever its address is."""
CONNECT_TIMEOUT: Final = 20
"""Seconds."""
EXIT_SSH: Final = 255
"""The exit status of ssh where it did not get as far as the command."""


@attrs.frozen(kw_only=True)
class Login:
    """Where a unit's ssh server is, which ``host_key`` it has (type and key; empty: nobody told), and who logs in."""

    host: str
    port: int
    user: str
    host_key: str

    def known_hosts(self) -> str:
        """The content of a file of host keys that holds this unit's alone."""
        return f"{ALIAS} {' '.join(self.host_key.split()[:2])}\n" if self.host_key else ""

    def options(self, known_hosts: Path, identity: Path | None = None) -> list[str]:
        """What ssh, scp and Ansible are to be told; ``known_hosts`` is where :meth:`known_hosts` was written."""
        options = {
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": _quoted(known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": ALIAS,
            "CheckHostIP": "no",
            "UpdateHostKeys": "no",
            "ConnectTimeout": str(CONNECT_TIMEOUT),
            "ServerAliveInterval": "10",
            "Port": str(self.port),
            "User": self.user,
        }
        if identity is not None:
            options |= {"IdentityFile": _quoted(identity), "IdentitiesOnly": "yes"}
        return _words(options)

    def command(
        self, known_hosts: Path, identity: Path | None = None, *, program: str = "ssh", **first: str
    ) -> list[str]:
        """An ssh that asks nobody anything, but for the host and the command. Of options that are given twice ssh takes
        those that come ``first``.
        """
        options = _words({"BatchMode": "yes", "IdentityAgent": "none", **first})
        return [program, "-F", "/dev/null", "-T", *options, *self.options(known_hosts, identity)]


def _words(options: Mapping[str, str]) -> list[str]:
    return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]


def login_of(properties: Mapping[str, str], user: str = "", *, strict: bool = True) -> Login:
    """How to log in to the unit with these properties: ``host``, ``port`` (22), ``host_key``, ``user`` (root).

    ``user`` goes before the property. Unless ``strict`` is off a unit without a host key is refused. Raises
    ``DriverError``, not worth a retry.
    """
    host, port = unit_address({"port": "22", **properties})
    if _HOST.fullmatch(host) is None and not _is_address(host):
        raise refused_property("host", host, "expected an address or a host name")
    name = user or properties.get("user", "root")
    if USER.fullmatch(name) is None:
        raise refused_property("user", name, "expected a login name: small letters, digits, dashes and underscores")
    key = " ".join(properties.get("host_key", "").split(" ")[:2])
    if (strict or key) and _HOST_KEY.fullmatch(key) is None:
        raise refused_property(
            "host_key", key, "expected the type and the key of an ssh server, as in ssh-ed25519 AAAA..."
        )
    return Login(host=host, port=port, user=name, host_key=key)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _quoted(path: Path) -> str:
    """A path as ssh's options take it: they are split at blanks, and have tokens that begin with a percent sign."""
    text = os.fspath(path.absolute())
    if '"' in text or "\n" in text:
        raise DriverError(f"path {text!a}: ssh can't be told of a path with quotes or line ends", retry=False)
    return '"' + text.replace("%", "%%") + '"'


def _inherited() -> dict[str, str]:
    """What commands have of the daemon's own environment."""
    return {"PATH": SEARCH, **{name: os.environ[name] for name in INHERITED if name in os.environ}}


def _found(
    environment: Mapping[str, str],
    program: str,
    package: str,
    settings: SshSettings | AnsibleSettings,
    files: Sequence[str],
) -> str:
    """Where a program is. Raises ``SettingsError`` where it is not there, or ``files`` of the settings are not."""
    errors = [
        f"{name}: found {str(path)!r}, there is no such file"
        for name in files
        if (path := getattr(settings, name)) is not None and not path.is_file()
    ]
    found = shutil.which(program, path=environment["PATH"])
    if found is None:
        errors.append(f"there is no program {program} here (install {package})")
    if found is None or errors:
        raise SettingsError(errors)
    return found


READY: Final = "true\n"
"""The script of a probe where the guest has none of its own."""


@attrs.frozen(kw_only=True)
class SshSettings:
    """``key`` is the file with the private key that units let in (property ``slice.key`` has its public half); ``user``
    who logs in, where the unit's properties are not to say that; ``join``, ``leave`` and ``probe`` are scripts for the
    unit's shell, ``shell``. After ``grace`` what did not heed SIGTERM gets SIGKILL.
    """

    key: Path
    user: str = ""
    join: Path | None = None
    leave: Path | None = None
    probe: Path | None = None
    shell: tuple[str, ...] = attrs.field(default=("sh", "-s"), validator=attrs.validators.min_len(1))
    grace: DurationSetting = 5 * SECOND


class SshDriver(GuestOnly):
    """A :class:`~leasekit.core.drivers.Driver` for guests. Raises ``SettingsError`` for files that are not there."""

    Settings: ClassVar[type] = SshSettings
    kind: ClassVar[str] = "ssh"

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._environment = _inherited()
        _found(self._environment, "ssh", "openssh-client", settings, ("key", "join", "leave", "probe"))

    async def join(self, unit: UnitContext) -> Properties:
        """Runs the script ``join`` on the unit, or only makes sure that it lets its holder in."""
        return await self._run("join", self._settings.join, unit)

    async def leave(self, unit: UnitContext) -> None:
        """Runs the script ``leave`` on the unit, if there is one."""
        if self._settings.leave is not None:
            await self._run("leave", self._settings.leave, unit)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """Whether the script ``probe`` ends well on the unit, or the unit lets its holder in."""
        try:
            await self._run("probe", self._settings.probe, unit)
        except DriverError as error:
            return ProbeResult(state="down", detail=str(error))
        return ProbeResult(state="up")

    async def _run(self, op: str, script: Path | None, unit: UnitContext) -> dict[str, str]:
        check_member_id(unit.unit)
        settings, what = self._settings, f"{op}: {script.name if script is not None else 'ssh'}"
        login = login_of(unit.properties, settings.user)
        given = _exports(unit, op) + (_content(script) if script is not None else READY)
        with tempfile.TemporaryDirectory(prefix="leasekit-ssh-") as folder:
            known = Path(folder) / "known_hosts"
            known.write_text(login.known_hosts(), "utf-8")
            run = Run(
                command=(*login.command(known, settings.key), "--", login.host, shlex.join(settings.shell)),
                directory=Path(folder),
                environment=self._environment,
                given=given.encode(),
                grace=settings.grace,
                log=unit.log,
                what=what,
            )
            try:
                return read_properties(await run.output(), what)
            except DriverError as error:
                # A unit that just came up may need a moment; a script's own 255 is tried again as well.
                if f"exit status {EXIT_SSH}" in str(error):
                    raise DriverError(str(error)) from error
                raise


def _exports(unit: UnitContext, op: str) -> str:
    variables = properties_as_environment(unit, op)
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def _content(script: Path) -> str:
    try:
        return script.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DriverError(f"can't read {script}: {error}", retry=False) from error


PROGRAM: Final = "ansible-playbook"


@attrs.frozen(kw_only=True)
class AnsibleSettings:
    """``key`` is the file with the private key that units let in; ``user`` who logs in, where the unit's properties
    are not to say that; ``join`` and ``leave`` are playbooks for ``hosts: unit``; ``python`` is the interpreter on
    units. After ``grace`` what did not heed SIGTERM gets SIGKILL.
    """

    key: Path
    join: Path
    leave: Path | None = None
    user: str = ""
    python: str = "auto_silent"
    grace: DurationSetting = 5 * SECOND


class AnsibleDriver(GuestOnly):
    """A :class:`~leasekit.core.drivers.Driver` for guests. Raises ``SettingsError`` for files that are not there."""

    Settings: ClassVar[type] = AnsibleSettings
    kind: ClassVar[str] = "ansible"

    def __init__(self, settings: AnsibleSettings) -> None:
        self._settings = settings
        self._abandoned = Abandoned(settings.grace)
        self._environment = _inherited()
        self._program = _found(self._environment, PROGRAM, "ansible-core", settings, ("key", "join", "leave"))

    async def join(self, unit: UnitContext) -> Properties:
        """Runs the playbook ``join``."""
        await self._run("join", self._settings.join, unit)
        return EMPTY

    async def leave(self, unit: UnitContext) -> None:
        """Runs the playbook ``leave``, if there is one."""
        if self._settings.leave is not None:
            await self._run("leave", self._settings.leave, unit)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """Nobody knows: there is no playbook for it."""
        await trio.lowlevel.checkpoint()
        return ProbeResult(state="unknown", detail="the ansible driver has no probe")

    async def _run(self, op: str, playbook: Path, unit: UnitContext) -> None:
        check_member_id(unit.unit)
        settings, mark = self._settings, mark_of(unit.unit, unit.lease)
        await self._abandoned.end(mark)
        login = login_of(unit.properties, settings.user)
        with tempfile.TemporaryDirectory(prefix="leasekit-ansible-") as name:
            folder = Path(name)
            (folder / "known_hosts").write_text(login.known_hosts(), "utf-8")
            options = login.options(folder / "known_hosts", settings.key.absolute())
            host = {
                "ansible_host": login.host,
                "ansible_port": login.port,
                "ansible_user": login.user,
                "ansible_python_interpreter": settings.python,
                "ansible_ssh_args": shlex.join(["-F", "/dev/null", "-o", "IdentityAgent=none", *options]),
            }
            (folder / "inventory.json").write_text(json.dumps({"all": {"hosts": {"unit": host}}}), "utf-8")
            (folder / "variables.json").write_text(json.dumps({"leasekit": _told(unit, op)}), "utf-8")
            (folder / "ansible.cfg").write_text("[defaults]\nretry_files_enabled = False\nnocows = True\n", "utf-8")
            environment = {
                "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
                "ANSIBLE_LOCAL_TEMP": str(folder / "temporary"),
                "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "control"),
            }
            arguments = ["-i", "inventory.json", "-e", "@variables.json", str(playbook.absolute())]
            run = Run(
                # What it says goes to the log; there is nothing on its standard output that anybody reads.
                command=("/bin/sh", "-c", 'exec "$@" >&2', "sh", self._program, *arguments),
                directory=folder,
                environment={**self._environment, **environment},
                given=b"",
                grace=settings.grace,
                log=unit.log,
                what=f"{op}: {playbook.name}",
                mark=mark,
            )
            await run.output()


def _told(unit: UnitContext, op: str) -> dict[str, Any]:
    def text(value: str) -> dict[str, str]:
        return {"__ansible_unsafe": value}

    return {
        "op": op,
        "unit": text(unit.unit),
        "lease": text(unit.lease),
        "type": text(unit.type),
        "number": unit.number,
        "properties": {key: text(value) for key, value in unit.properties.items()},
    }
