"""Commands in a control domain, by OpenSSH: one connection for all of them, deadlines, and errors in words.

A command is one of the scripts of :mod:`leasekit.drivers.xen.scripts` with arguments, each quoted as a word of the far
end's shell; what is long, secret or of unknown origin goes through standard input.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import IO, Final

import trio

from leasekit.core.drivers import SITE, UNIT, Blame, DriverError, SiteFaultError
from leasekit.core.time import SECOND, Duration, format_duration
from leasekit.drivers.names import FULL, one_line
from leasekit.drivers.ssh import EXIT_SSH, Login
from leasekit.drivers.xen.settings import XenHost, XenSettings

PERSIST: Final = 60
"""Seconds for which a connection is kept that nobody uses."""
KEPT_ALIVE: Final = 5
"""Seconds between signs of life that the far end is asked for."""
SAID_MAX: Final = 600
CHATTER: Final = (": info:", ": progress:")
"""What marks lines of `xl`'s that are no reason."""


class XenHostLostError(DriverError):
    """A control domain can't be reached, or did not answer. What was asked for may or may not have been done."""


class ControlDomain:
    """The control domain of one host."""

    def __init__(self, name: str, host: XenHost, settings: XenSettings) -> None:
        self.name = name
        self.host = host
        self._settings = settings
        self._sessions = trio.CapacityLimiter(settings.sessions)
        self._connecting = trio.Lock()
        self._connected = False
        self._own: Path | None = None

    async def call(self, what: str, script: str, *words: str, given: bytes = b"", long: bool = False) -> str:
        """What a script writes to its standard output. ``what`` begins the error: ``can't start domain x``.

        Short commands are waited for although the caller is cancelled: what comes after must not overtake them.
        Raises ``DriverError``, and :class:`XenHostLostError` where the host can't be asked.
        """
        return await self._call(what, script, words, given, long)

    async def send(self, what: str, script: str, *words: str, file: IO[bytes]) -> str:
        """The same for what takes long, with a file as standard input."""
        return await self._call(what, script, words, file, True)

    async def _call(self, what: str, script: str, words: tuple[str, ...], given: bytes | IO[bytes], long: bool) -> str:
        limit = self._settings.copy_timeout if long else self._settings.reply_timeout
        async with self._sessions:
            if not self._connected:
                # All others would make connections of their own while the first one is made.
                async with self._connecting:
                    return await self._run(what, script, words, given, limit, long)
            return await self._run(what, script, words, given, limit, long)

    async def _run(
        self, what: str, script: str, words: tuple[str, ...], given: bytes | IO[bytes], limit: Duration, long: bool
    ) -> str:
        command = [*self._command(), shlex.join(["sh", "-c", script, "leasekit", *words])]
        with trio.move_on_after(limit / SECOND) as scope:
            scope.shield = not long
            try:
                done = await trio.run_process(
                    command, stdin=given, capture_stdout=True, capture_stderr=True, check=False, start_new_session=True
                )
            except OSError as error:
                text = f"host {self.name}: {self._settings.ssh} can't be run: {error.strerror}"
                raise SiteFaultError(text, retry=False) from error
        if scope.cancelled_caught:
            raise XenHostLostError(f"host {self.name}: {what}: no answer within {format_duration(limit)}")
        await trio.lowlevel.checkpoint_if_cancelled()
        return self._said(what, done)

    def _said(self, what: str, done: subprocess.CompletedProcess[bytes]) -> str:
        lines = done.stderr.decode("utf-8", "replace").splitlines()
        said = one_line("\n".join(line for line in lines if not any(mark in line for mark in CHATTER)), SAID_MAX)
        self._connected = done.returncode != EXIT_SSH
        if done.returncode == EXIT_SSH:
            where = f"{self.host.user}@{self.host.address} port {self.host.port}"
            raise XenHostLostError(f"host {self.name}: can't log in to {where}: {said or 'the connection broke'}")
        if done.returncode:
            blame: Blame = SITE if FULL in said else UNIT
            raise DriverError(
                f"host {self.name}: {what}: {said or f'exit status {done.returncode}'}", retry=True, blame=blame
            )
        return done.stdout.decode("utf-8", "replace")

    def _command(self) -> list[str]:
        host, folder = self.host, self._folder()
        login = Login(host=host.address, port=host.port, user=host.user, host_key=host.host_key)
        known = folder / "known_hosts"
        if not known.exists():
            known.write_text(login.known_hosts(), encoding="ascii")
        options = {
            "ForwardAgent": "no",
            "ControlMaster": "auto",
            "ControlPath": f"{folder}/s",
            "ControlPersist": str(PERSIST),
            "ServerAliveInterval": str(KEPT_ALIVE),
            "ConnectTimeout": str(max(1, self._settings.connect_timeout // SECOND)),
            "LogLevel": "ERROR",
        }
        return [*login.command(known, host.identity, program=self._settings.ssh, **options), host.address]

    def _folder(self) -> Path:
        """Short, for a socket's path must be, and closed to others."""
        if self._own is None:
            self._own = Path(tempfile.mkdtemp(prefix="leasekit-xen-"))
            weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)
        return self._own
