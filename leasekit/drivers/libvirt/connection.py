"""Connections to hypervisors: calls in threads of their own, events to trio, and errors in words.

Every call of libvirt's blocks. A connection whose other end is silent is closed by the keepalive; a call that hangs
though the other end answers is given up (:mod:`leasekit.drivers.libvirt.calls`). Events come in a thread that all
connections of the process share.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import trio

from leasekit.core.drivers import SITE, UNIT, DriverError
from leasekit.core.settings import SettingsError
from leasekit.core.time import MINUTE, SECOND, Duration, format_duration
from leasekit.drivers.libvirt import documents
from leasekit.drivers.libvirt.calls import GivenUpError, LibvirtCalls
from leasekit.drivers.libvirt.leased import LeasedHost
from leasekit.drivers.libvirt.settings import FOR_XEN, LeasedHosts, LibvirtHost
from leasekit.drivers.names import FULL, one_line

P = ParamSpec("P")
T = TypeVar("T")

CHANGES_MAX: Final = 100
"""How many events may wait for one watcher; more tell it nothing new."""

_starting: Final = threading.Lock()
_started: Final = threading.Event()


class HostLostError(DriverError):
    """The connection to a host broke or can't be made, or it gave no answer in time. What was asked for may or may not
    have been done.
    """


class HostAbsentError(HostLostError):
    """No machine is leased for the host: nothing of anybody's is there, for machines are erased between leases."""


class PoolLostError(HostLostError):
    """The host answers, and its pool can't be made or started."""


def binding() -> Any:
    """The Python binding of libvirt. Raises ``SettingsError`` where it is not installed."""
    try:
        return importlib.import_module("libvirt")
    except ImportError as error:
        text = "kind: found 'libvirt', which needs the package libvirt-python"
        hint = "pip install 'leasekit[libvirt]', which builds with libvirt-dev, pkg-config and gcc"
        raise SettingsError([f"{text} ({hint}): {one_line(str(error))}"]) from error


def start_events(libvirt: Any) -> None:
    """Starts the thread that events come in, once for the process: before the first connection, as libvirt wants it."""
    with _starting:
        if _started.is_set():
            return
        # Without one libvirt writes errors to standard error as well as raising them.
        libvirt.registerErrorHandler(lambda *_: None, None)
        libvirt.virEventRegisterDefaultImpl()
        threading.Thread(target=_run_events, args=(libvirt,), name="libvirt events", daemon=True).start()
        _started.set()


def _run_events(libvirt: Any) -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


class HostConnection:
    """One hypervisor, opened when it is first needed and again whenever the connection broke."""

    def __init__(
        self,
        name: str,
        host: LibvirtHost,
        threads: int,
        keepalive: Duration,
        leased: LeasedHosts | None = None,
        patience: Duration = MINUTE,
    ) -> None:
        self.name = name
        self.host = host
        self.uri = host.uri
        self._leased = LeasedHost(name, leased) if leased is not None and not host.uri else None
        self.libvirt = binding()
        self._keepalive = keepalive
        self._calls = LibvirtCalls(threads, patience)
        self._opening = trio.Lock()
        self._connection: Any = None
        self._token: Any = None
        self._machine: documents.DomainMachine | None = None
        self._watchers: dict[str, list[trio.MemorySendChannel[tuple[str, int, int]]]] = {}

    async def call(self, what: str, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``function(connection, ...)``, in a thread. Errors of libvirt become ``DriverError`` that tell ``what``.

        It takes a moment, and who cancels waits for its end. Raises :class:`HostLostError` where the host can't be
        reached, or gives no answer in time.
        """
        return await self._ask(what, lambda made: self._calls.act(lambda: function(made, *args, **kwargs)))

    async def look(self, what: str, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for what changes nothing: when it is cancelled nobody waits for it."""
        return await self._ask(what, lambda made: self._calls.look(lambda: function(made, *args, **kwargs)))

    async def work(self, what: str, function: Callable[[Any], T], abort: Callable[[Any], None] | None = None) -> T:
        """The same for what may take long. When it is cancelled it is told to end, by ``abort(connection)`` in another
        thread, and by :func:`~leasekit.drivers.libvirt.calls.check_stopped`; if it does not, in time, that is a
        :class:`HostLostError`.
        """

        def run(made: Any) -> Awaitable[T]:
            return self._calls.work(lambda: function(made), None if abort is None else lambda: abort(made))

        return await self._ask(what, run)

    async def _ask(self, what: str, run: Callable[[Any], Awaitable[T]]) -> T:
        connection = await self._open()
        try:
            return await run(connection)
        except GivenUpError as error:
            raise self._silent(what) from error
        except self.libvirt.libvirtError as error:
            raise self._explained(what, error, connection) from error

    def _silent(self, what: str) -> HostLostError:
        text = f"found no answer within {format_duration(self._calls.patience)} (call_timeout)"
        return HostLostError(f"host {self.name}: {what}: {text}")

    async def machine(self) -> documents.DomainMachine:
        """What kind of domains the host has; QEMU's without KVM, which is for others to decide."""
        if self._machine is None:
            kind = await self.look("can't ask for the hypervisor's kind", lambda connection: connection.getType())
            if kind not in ("QEMU", "TEST"):
                text = f"host {self.name}: found a hypervisor of kind {kind!r}, expected QEMU; {FOR_XEN}"
                raise DriverError(text, retry=False)
            self._machine = documents.DomainMachine(kind.lower())
        return self._machine

    @contextmanager
    def watch(self, domain: str) -> Iterator[trio.MemoryReceiveChannel[tuple[str, int, int]]]:
        """Changes of a domain, from now on: (``lifecycle``, event, detail) or (``agent``, state, reason)."""
        send, receive = trio.open_memory_channel[tuple[str, int, int]](CHANGES_MAX)
        self._watchers.setdefault(domain, []).append(send)
        try:
            with send, receive:
                yield receive
        finally:
            self._watchers[domain].remove(send)
            if not self._watchers[domain]:
                del self._watchers[domain]

    async def _open(self) -> Any:
        """The connection, if it is alive, or a new one. One that belongs to an earlier run of trio is not used."""
        async with self._opening:
            await self._find()
            token = trio.lowlevel.current_trio_token()
            if self._connection is not None and (self._token is not token or not self._is_alive(self._connection)):
                self._connection = None
            if self._connection is None:
                try:
                    connection = await self._calls.look(lambda: self._connect(token))
                except GivenUpError as error:
                    raise self._silent(f"can't connect to {self.uri}") from error
                except self.libvirt.libvirtError as error:
                    said = one_line(error.get_error_message() or str(error))
                    raise HostLostError(f"host {self.name}: can't connect to {self.uri}: {said}") from error
                self._connection, self._token = connection, token
            return self._connection

    async def _find(self) -> None:
        """Sees where the host is. Raises :class:`HostAbsentError` where no machine is leased for it."""
        if self._leased is None:
            return
        uri = await trio.to_thread.run_sync(self._leased.uri)
        if uri != self.uri:
            self.uri, self._connection, self._machine = uri, None, None
        if not uri:
            raise HostAbsentError(f"host {self.name}: no machine is leased for it now")

    def _connect(self, token: trio.lowlevel.TrioToken) -> Any:
        libvirt = self.libvirt
        start_events(libvirt)
        connection = libvirt.open(self.uri)
        with suppress(libvirt.libvirtError):  # a driver within this process has nobody to keep alive
            interval = max(1, self._keepalive // (3 * SECOND))
            connection.setKeepAlive(interval, 3)

        def changed(kind: str) -> Callable[..., None]:
            def hand_over(_: Any, domain: Any, event: int, detail: int, __: Any) -> None:
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._deliver, domain.name(), (kind, event, detail))

            return hand_over

        connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, changed("lifecycle"), None)
        with suppress(libvirt.libvirtError):  # only QEMU has an agent
            connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, changed("agent"), None)
        try:
            self._prepare_pool(connection)
        except libvirt.libvirtError as error:
            said = one_line(error.get_error_message() or str(error))
            raise PoolLostError(f"host {self.name}: can't start pool {self.host.pool}: {said}") from error
        return connection

    def _prepare_pool(self, connection: Any) -> None:
        """Has the pool there and running; where it can't be, whoever needs it says so."""
        libvirt, name = self.libvirt, self.host.pool
        try:
            pool = connection.storagePoolLookupByName(name)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_POOL or not self.host.pool_path:
                return
            pool = connection.storagePoolDefineXML(documents.pool_xml(name, self.host.pool_path))
            pool.build(0)
            pool.setAutostart(1)
        if not pool.isActive():
            pool.create(0)

    def _deliver(self, domain: str, change: tuple[str, int, int]) -> None:
        for watcher in self._watchers.get(domain, ()):
            with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
                watcher.send_nowait(change)

    def _is_alive(self, connection: Any) -> bool:
        try:
            return bool(connection.isAlive() == 1)
        except self.libvirt.libvirtError:
            return False

    def _explained(self, what: str, error: Any, connection: Any) -> DriverError:
        said = one_line(error.get_error_message() or str(error))
        text = f"host {self.name}: {what}: {said}"
        if not self._is_alive(connection):
            return HostLostError(text)
        libvirt = self.libvirt
        hopeless = (
            libvirt.VIR_ERR_NO_SUPPORT,
            libvirt.VIR_ERR_CONFIG_UNSUPPORTED,
            libvirt.VIR_ERR_XML_ERROR,
            libvirt.VIR_ERR_XML_DETAIL,
            libvirt.VIR_ERR_INVALID_ARG,
            libvirt.VIR_ERR_NO_STORAGE_POOL,
        )
        lacks = FULL in said or error.get_error_code() == libvirt.VIR_ERR_NO_STORAGE_POOL
        return DriverError(text, retry=error.get_error_code() not in hopeless, blame=SITE if lacks else UNIT)
