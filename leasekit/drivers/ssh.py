"""A guest's driver that takes units into its application by ssh: a script of the guest's own, run on the unit.

The script is sent to the unit's shell. It sees what commands of the script driver see: the properties in its
environment, as ``LEASEKIT_`` and the key in capitals. Values are quoted on the way; none of them is ever a command.
It writes properties to standard output, as a JSON object of strings (or nothing), and what it has to say to standard
error; exit status 75 is a failure that may pass.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import ClassVar, Final

import attrs

from leasekit.core.drivers import DriverError, ProbeResult, UnitContext
from leasekit.core.properties import Properties
from leasekit.core.settings import DurationSetting, SettingsError
from leasekit.core.time import SECOND
from leasekit.drivers.commands import Run
from leasekit.drivers.names import check_member_id
from leasekit.drivers.one_sided import GuestOnly
from leasekit.drivers.script import INHERITED, SEARCH, properties_as_environment, read_properties
from leasekit.drivers.ssh_login import EXIT_SSH, login_of

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
        self._environment = {"PATH": SEARCH, **{n: os.environ[n] for n in INHERITED if n in os.environ}}
        errors = [
            f"{name}: found {str(path)!r}, there is no such file"
            for name in ("key", "join", "leave", "probe")
            if (path := getattr(settings, name)) is not None and not path.is_file()
        ]
        if shutil.which("ssh", path=self._environment["PATH"]) is None:
            errors.append("there is no program ssh here (install openssh-client)")
        if errors:
            raise SettingsError(errors)

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
            options = login.options(known, settings.key)
            command = ("ssh", "-F", "/dev/null", "-T", "-o", "BatchMode=yes", "-o", "IdentityAgent=none", *options)
            run = Run(
                command=(*command, "--", login.host, shlex.join(settings.shell)),
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
