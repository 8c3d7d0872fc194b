"""Waiting until a guest is up: by its console, its ssh server or its agent; or knowing early that it won't be."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from leasekit.core.drivers import DriverError, SiteFaultError
from leasekit.core.time import SECOND, Duration, format_duration
from leasekit.drivers.libvirt.connection import HostConnection, HostLostError
from leasekit.drivers.libvirt.domains import Domains, DomainState
from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.libvirt.record import LibvirtRecord
from leasekit.drivers.libvirt.volumes import Volumes
from leasekit.drivers.names import bare, one_line
from leasekit.drivers.ssh import Login

PAUSES: Final = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Seconds between looks at what has no events; the last one repeats."""
LOOK: Final = 2
"""Seconds between looks at a domain whose events should tell."""
SSH_PORT: Final = 22
CONNECT_TIMEOUT: Final = 1
"""Seconds that a guest's ssh server has to say its first line, which it does before it works anything out."""
SSH_TIMEOUT: Final = 20
"""Seconds that the handshake may take: guests without KVM are slow at that."""
CONSOLE_PIECE: Final = 256 * 1024
"""How much of a console is read at once, in bytes: what a guest writes can't fill this machine's memory."""
LINES_MAX: Final = 200
"""How many of the console's last lines go to the unit's log."""
REPLY_MAX: Final = 300


@attrs.define
class Console:
    """What a guest has written to its console, as far as it was read. A new start of the domain empties the file; when
    it has grown large virtlogd begins a new one.
    """

    volumes: Volumes
    name: str
    offset: int = 0
    tail: bytes = b""

    async def more(self) -> bytes:
        """The end of what is known after reading on: enough of it to find a marker that came in pieces."""
        if self.offset and await self.volumes.capacity(self.name) < self.offset:
            self.offset = 0
        while piece := await self.volumes.read(self.name, self.offset, CONSOLE_PIECE):
            self.offset += len(piece)
            self.tail = (self.tail + piece)[-CONSOLE_PIECE:]
            if len(piece) < CONSOLE_PIECE:
                break
        return self.tail

    def lines(self) -> list[str]:
        """The last lines, fit for a log or a terminal."""
        return console_lines(self.tail)


def console_lines(content: bytes) -> list[str]:
    """The last lines of a console, fit for a log or a terminal."""
    lines = [one_line(line) for line in content.decode("utf-8", "replace").splitlines()]
    return [line for line in lines if line][-LINES_MAX:]


@attrs.define
class _Progress:
    """What is ``missing`` until the guest is up, in words, and the ``fault`` that ends the wait."""

    missing: str = ""
    fault: DriverError | None = None


@attrs.frozen(kw_only=True)
class LibvirtWaiting:
    """One wait for one unit's domain."""

    host: HostConnection
    domains: Domains
    console: Console | None
    domain: str
    plan: UnitPlan
    record: LibvirtRecord
    timeout: Duration
    log: Callable[[str], None]

    async def until_ready(self) -> None:
        """Returns when the guest is up. Raises ``DriverError`` if it stops before that, or takes too long."""
        if self.plan.image.ready == "running":
            return
        progress = _Progress()
        with trio.move_on_after(self.timeout / SECOND) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fail_when_stopped, progress, nursery.cancel_scope)
                await self._wait(progress)
                nursery.cancel_scope.cancel()
        await self._log_console()
        if progress.fault is not None:
            raise progress.fault
        if limit.cancelled_caught:
            text = f"the guest was not up within {format_duration(self.timeout)}: {progress.missing}"
            raise DriverError(text + self._said())

    async def _wait(self, progress: _Progress) -> None:
        check = {"console": self._on_console, "ssh": self._by_ssh, "agent": self._by_agent}[self.plan.image.ready]
        attempt = 0
        with self.host.watch(self.domain) as changes:
            while True:
                try:
                    progress.missing = await check()
                except HostLostError as error:
                    # The guest goes on without libvirt's daemon, which will be back or else time runs out.
                    progress.missing = str(error)
                except DriverError as error:
                    progress.fault = error
                if progress.fault is not None or not progress.missing:
                    return
                with trio.move_on_after(PAUSES[min(attempt, len(PAUSES) - 1)]):
                    while (await changes.receive())[0] != "agent":
                        pass
                attempt += 1

    async def _fail_when_stopped(self, progress: _Progress, scope: trio.CancelScope) -> None:
        """Ends the wait when the domain is no longer running."""
        with self.host.watch(self.domain) as changes:
            while True:
                try:
                    state = await self.domains.find(self.domain)
                except HostLostError:
                    state = None
                except DriverError as error:
                    progress.fault = error
                else:
                    if state is None or not state.alive:
                        await self._log_console()
                        progress.fault = DriverError(
                            f"the guest was not up when its domain {_end(state)}{self._said()}"
                        )
                if progress.fault is not None:
                    scope.cancel()
                    return
                # An event may be lost with its connection, so the state is looked at now and then as well.
                with trio.move_on_after(LOOK):
                    while (await changes.receive())[0] != "lifecycle":
                        pass

    def _said(self) -> str:
        lines = self.console.lines() if self.console is not None else []
        return f"; the last line on its console: {lines[-1]}" if lines else ""

    async def _log_console(self) -> None:
        if self.console is None:
            return
        with trio.CancelScope(shield=True), trio.move_on_after(SSH_TIMEOUT):
            try:
                await self.console.more()
            except DriverError as error:
                self.log(f"its console can't be read: {error}")
        for line in self.console.lines():
            self.log(f"console: {line}")

    # Each of these says what is missing yet, and nothing when the guest is up.

    async def _on_console(self) -> str:
        if self.console is None:
            raise DriverError("this hypervisor has no console that can be read", retry=False)
        found = self.plan.image.marker.encode() in await self.console.more()
        return "" if found else f"{self.plan.image.marker!r} is not on its console"

    async def _by_agent(self) -> str:
        return "" if await self.domains.agent_answers(self.domain) else "its guest agent does not answer"

    async def _by_ssh(self) -> str:
        return await first_ssh_missing(self.record.addresses, self.record.host_key)


def _end(state: DomainState | None) -> str:
    if state is None:
        return "was removed"
    return state.why if state.why.startswith("stopped") else f"was {state.why}"


async def first_ssh_missing(addresses: Sequence[str], host_key: str) -> str:
    """:func:`ssh_missing` at the first address of a unit. Raises ``DriverError`` where there is none."""
    if not addresses:
        raise DriverError("the unit has no address to reach its ssh server at", retry=False)
    return await ssh_missing(bare(addresses[0]), host_key)


async def ssh_missing(address: str, host_key: str) -> str:
    """What is missing until an ssh server answers at ``address`` and, if there is a ``host_key``, proves to have that:
    nothing in the end. Raises ``DriverError`` where there is no ssh.
    """
    # A guest that boots drops what comes too early, so many short attempts beat a long one.
    missing = f"no answer from {address}"
    with trio.move_on_after(CONNECT_TIMEOUT):
        missing = await _banner(address)
    if missing or not host_key:
        return missing
    with trio.move_on_after(SSH_TIMEOUT):
        return await _handshake(address, host_key)
    return f"the ssh server at {address} did not finish its handshake"


async def _handshake(address: str, host_key: str) -> str:
    """The same for a login with nothing to show: only who holds the key gets as far as to refuse that."""
    login = Login(host=address, port=SSH_PORT, user="leasekit", host_key=host_key)
    with tempfile.TemporaryDirectory(prefix="leasekit-ssh-") as folder:
        known = Path(folder) / "known_hosts"
        known.write_text(login.known_hosts())
        command = login.command(known, HostKeyAlgorithms="ssh-ed25519", PreferredAuthentications="none")
        command += [address, "true"]
        try:
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        except FileNotFoundError as error:
            raise SiteFaultError("there is no program ssh here (install openssh-client)", retry=False) from error
    said = done.stderr.decode("utf-8", "replace")
    if done.returncode == 0 or "Permission denied" in said:
        return ""
    if "Host key verification failed" in said:
        return f"the ssh server at {address} has another host key than the one that this unit was given"
    return one_line(said, REPLY_MAX) or f"no answer from {address}"


async def _banner(address: str) -> str:
    """The same for the server's first line alone, whoever it is."""
    try:
        async with await trio.open_tcp_stream(address, SSH_PORT) as stream:
            received = await stream.receive_some(64)
    except OSError as error:
        return f"no ssh server at {address}: {error.strerror or one_line(str(error), REPLY_MAX)}"
    except trio.BrokenResourceError:
        return f"the ssh server at {address} broke off"
    if not received:
        return f"{address} closed the connection"
    return "" if received.startswith(b"SSH-") else f"{address} answers on port {SSH_PORT} with something else than ssh"
