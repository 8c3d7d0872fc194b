"""The clients: :class:`Client` blocks, :class:`AsyncClient` runs on asyncio and trio."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

import anyio
import httpx

from leasekit.client.asking import (
    AWAY,
    OVER,
    ApiCall,
    ApiError,
    Asks,
    LeaseFailed,
    Length,
    check,
    settings,
    span,
    transitions,
    waits,
)
from leasekit.client.shapes import (
    DryRunResult,
    Lease,
    LeaseExtend,
    LeaseModify,
    LeaseRequest,
    Me,
    SeriesAnswer,
    SeriesRequest,
    SlotSearch,
    Transition,
    Wait,
)

T = TypeVar("T")
TIMEOUT: Final = 60.0
KEEPALIVE: Final = timedelta(minutes=1)
"""How long who holds a lease in a ``with`` block may be silent before it is closed."""
WORDS: Final = 3
"""How often the client says that it is there within that time."""


class Client:
    """A gateway at ``url`` (else ``LEASEKIT_URL``), called with a ``token`` (else ``LEASEKIT_TOKEN``), for a project.

    Requests that come to no answer are sent again, with the same idempotency key: what is asked for is done once.
    Every method raises :class:`~.asking.ApiError` for what the gateway refuses, and httpx's errors.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        project: str = "",
        timeout: float = TIMEOUT,
        **more: Any,
    ) -> None:
        self._http = httpx.Client(**settings(url, token), timeout=timeout, **more)
        self._asks = Asks(project)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._http.close()

    def ask(self, ask: ApiCall[T]) -> T:
        """Send a request until it is answered."""
        for wait in waits():
            with suppress(httpx.TransportError):
                answer = self._send(ask)
                if answer.status_code != AWAY:
                    return ask.read(answer)
            time.sleep(wait)
        return ask.read(self._send(ask))

    def _send(self, ask: ApiCall[Any]) -> httpx.Response:
        return self._http.request(
            ask.method, ask.path, params=dict(ask.params), content=ask.content(), headers=ask.headers()
        )

    def me(self) -> Me:
        """Who calls, and what they may do."""
        return self.ask(self._asks.me())

    def leases(self, **wanted: Any) -> Iterator[Lease]:
        """The leases of the project; ``all=True``: those that are over, too; by state, type, slice and site."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.ask(self._asks.leases(cursor=cursor, **wanted))
            yield from page.items
            cursor = page.next

    def get(self, lease: Lease | str) -> Lease:
        """One lease, by its id or its name."""
        return self.ask(self._asks.get(lease))

    def request(
        self,
        type: str,
        units: int = 1,
        *,
        length: Length = None,
        hours: float | None = None,
        **wish: Any,
    ) -> Lease:
        """ApiCall for a lease. ``wish`` is as :class:`~.shapes.LeaseRequest` has it."""
        return self.ask(self._asks.request(LeaseRequest(type=type, units=units, length=span(length, hours), **wish)))

    def dry_run(
        self,
        type: str,
        units: int = 1,
        *,
        length: Length = None,
        hours: float | None = None,
        **wish: Any,
    ) -> DryRunResult:
        """What the broker would answer to such a request."""
        return self.ask(self._asks.dry_run(LeaseRequest(type=type, units=units, length=span(length, hours), **wish)))

    def recur(self, wish: LeaseRequest, **days: Any) -> SeriesAnswer:
        """Ask for a lease on each of some days, and wait for the answers. ``days`` is as
        :class:`~.shapes.SeriesRequest` has it.
        """
        return self.ask(self._asks.recur(SeriesRequest(request=wish, **days)))

    def extend(self, lease: Lease | str, *, length: Length = None, hours: float | None = None, **body: Any) -> Lease:
        """Renew a lease."""
        return self.ask(self._asks.extend(lease, LeaseExtend(length=span(length, hours), **body)))

    def modify(self, lease: Lease | str, **body: Any) -> Lease:
        """Change a lease in mid-term."""
        return self.ask(self._asks.modify(lease, LeaseModify(**body)))

    def close(self, lease: Lease | str, reason: str = "") -> Lease:
        """End a lease early."""
        return self.ask(self._asks.close(lease, reason))

    def hand(self, lease: Lease | str, to: str, reason: str = "") -> Lease:
        """Have a lease be a colleague's, who is a user of the project."""
        return self.ask(self._asks.hand(lease, to, reason))

    def waits(self) -> list[Wait]:
        """For what one waits."""
        return self.ask(self._asks.waits()).items

    def wait_for(self, search: SlotSearch) -> Wait:
        """Wait until something fits: :meth:`waits` has the window then. Nothing is held for who waits."""
        return self.ask(self._asks.wait_for(search))

    def wait_no_more(self, wait: Wait | str) -> Wait:
        """Wait for it no more."""
        return self.ask(self._asks.wait_no_more(wait))

    def keep_alive(self, lease: Lease | str) -> None:
        """Say that the holder of a lease is there."""
        self.ask(self._asks.keep_alive(lease))

    def console(self, lease: Lease | str, unit: str) -> list[str]:
        """The last lines of the console of a unit of a lease."""
        return (self.ask(self._asks.said(lease, unit, "console"))).lines

    def log(self, lease: Lease | str, unit: str) -> list[str]:
        """The last lines of what the project's drivers said of a unit of a lease."""
        return (self.ask(self._asks.said(lease, unit, "log"))).lines

    def history(self, lease: Lease | str) -> list[Transition]:
        """What happened to a lease, oldest first."""
        return self.ask(self._asks.history(lease)).items

    def events(self, last: str = "") -> Generator[tuple[str, Transition | None], None, None]:
        """What happens in the project, as it happens, each with the id of its event: who gives the id of the last one
        that they heard misses nothing. The first tells nothing but from where on it goes.
        """
        params = {"project": self._asks.project} if self._asks.project else {}
        headers = {"last-event-id": last} if last else {}
        with self._http.stream("GET", "/events", params=params, headers=headers) as answer:
            if answer.status_code >= 400:
                check(answer, answer.read())
            yield from transitions(answer.iter_lines())

    def wait(self, lease: Lease | str, state: str = "active") -> Lease:
        """The lease, once it is in a state and its units have joined. Raises :class:`~.asking.LeaseFailed` if it is
        over before that.
        """
        while True:
            with suppress(httpx.TransportError), closing(self.events()) as events:
                for _ in events:
                    found = self.get(lease)
                    if is_there(found, state):
                        return found
            self.get(lease)  # the gateway has ended: this waits for the next one, and raises if there is none in time

    @contextmanager
    def lease(
        self,
        type: str,
        units: int = 1,
        *,
        length: Length = None,
        hours: float | None = None,
        keepalive: timedelta = KEEPALIVE,
        **wish: Any,
    ) -> Iterator[Lease]:
        """A lease that is there as long as the block runs: it is kept alive meanwhile, and closed after it; if this
        process dies it is closed by its guest. Raises :class:`~.asking.LeaseFailed`.
        """
        asked = self.request(type, units, length=length, hours=hours, keepalive=span(keepalive, None), **wish)
        ended = threading.Event()

        def say() -> None:
            while not ended.wait(keepalive.total_seconds() / WORDS):
                with suppress(ApiError, httpx.HTTPError):
                    self.keep_alive(asked)

        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        try:
            yield self.wait(asked)
        finally:
            ended.set()
            thread.join()
            with suppress(ApiError):  # it is over already
                self.close(asked, "its block has ended")


class AsyncClient:
    """As :class:`Client`, for asyncio and trio."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        project: str = "",
        timeout: float = TIMEOUT,
        **more: Any,
    ) -> None:
        self._http = httpx.AsyncClient(**settings(url, token), timeout=timeout, **more)
        self._asks = Asks(project)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._http.aclose()

    async def ask(self, ask: ApiCall[T]) -> T:
        """Send a request until it is answered."""
        for wait in waits():
            with suppress(httpx.TransportError):
                answer = await self._send(ask)
                if answer.status_code != AWAY:
                    return ask.read(answer)
            await anyio.sleep(wait)
        return ask.read(await self._send(ask))

    async def _send(self, ask: ApiCall[Any]) -> httpx.Response:
        return await self._http.request(
            ask.method, ask.path, params=dict(ask.params), content=ask.content(), headers=ask.headers()
        )

    async def me(self) -> Me:
        """Who calls, and what they may do."""
        return await self.ask(self._asks.me())

    async def leases(self, **wanted: Any) -> AsyncIterator[Lease]:
        """The leases of the project, as :meth:`Client.leases`."""
        cursor: str | None = ""
        while cursor is not None:
            page = await self.ask(self._asks.leases(cursor=cursor, **wanted))
            for one in page.items:
                yield one
            cursor = page.next

    async def get(self, lease: Lease | str) -> Lease:
        """One lease, by its id or its name."""
        return await self.ask(self._asks.get(lease))

    async def request(
        self,
        type: str,
        units: int = 1,
        *,
        length: Length = None,
        hours: float | None = None,
        **wish: Any,
    ) -> Lease:
        """ApiCall for a lease."""
        asked = LeaseRequest(type=type, units=units, length=span(length, hours), **wish)
        return await self.ask(self._asks.request(asked))

    async def dry_run(
        self,
        type: str,
        units: int = 1,
        *,
        length: Length = None,
        hours: float | None = None,
        **wish: Any,
    ) -> DryRunResult:
        """What the broker would answer to such a request."""
        asked = LeaseRequest(type=type, units=units, length=span(length, hours), **wish)
        return await self.ask(self._asks.dry_run(asked))

    async def recur(self, wish: LeaseRequest, **days: Any) -> SeriesAnswer:
        """Ask for a lease on each of some days, as :meth:`Client.recur`."""
        return await self.ask(self._asks.recur(SeriesRequest(request=wish, **days)))

    async def extend(
        self, lease: Lease | str, *, length: Length = None, hours: float | None = None, **body: Any
    ) -> Lease:
        """Renew a lease."""
        return await self.ask(self._asks.extend(lease, LeaseExtend(length=span(length, hours), **body)))

    async def modify(self, lease: Lease | str, **body: Any) -> Lease:
        """Change a lease in mid-term."""
        return await self.ask(self._asks.modify(lease, LeaseModify(**body)))

    async def close(self, lease: Lease | str, reason: str = "") -> Lease:
        """End a lease early."""
        return await self.ask(self._asks.close(lease, reason))

    async def hand(self, lease: Lease | str, to: str, reason: str = "") -> Lease:
        """Have a lease be a colleague's, as :meth:`Client.hand`."""
        return await self.ask(self._asks.hand(lease, to, reason))

    async def waits(self) -> list[Wait]:
        """For what one waits."""
        return (await self.ask(self._asks.waits())).items

    async def wait_for(self, search: SlotSearch) -> Wait:
        """Wait until something fits, as :meth:`Client.wait_for`."""
        return await self.ask(self._asks.wait_for(search))

    async def wait_no_more(self, wait: Wait | str) -> Wait:
        """Wait for it no more."""
        return await self.ask(self._asks.wait_no_more(wait))

    async def keep_alive(self, lease: Lease | str) -> None:
        """Say that the holder of a lease is there."""
        await self.ask(self._asks.keep_alive(lease))

    async def console(self, lease: Lease | str, unit: str) -> list[str]:
        """The last lines of the console of a unit of a lease."""
        return (await self.ask(self._asks.said(lease, unit, "console"))).lines

    async def log(self, lease: Lease | str, unit: str) -> list[str]:
        """The last lines of what the project's drivers said of a unit of a lease."""
        return (await self.ask(self._asks.said(lease, unit, "log"))).lines

    async def history(self, lease: Lease | str) -> list[Transition]:
        """What happened to a lease, oldest first."""
        return (await self.ask(self._asks.history(lease))).items

    async def wait(self, lease: Lease | str, state: str = "active") -> Lease:
        """The lease, once it is in a state and its units have joined. Raises :class:`~.asking.LeaseFailed`."""
        params = {"project": self._asks.project} if self._asks.project else {}
        while True:
            with suppress(httpx.TransportError):
                async with self._http.stream("GET", "/events", params=params) as answer:
                    if answer.status_code >= 400:
                        check(answer, await answer.aread())
                    async for line in answer.aiter_lines():
                        if not line and is_there(found := await self.get(lease), state):
                            return found
            await self.get(lease)  # as in Client.wait

    @asynccontextmanager
    async def lease(
        self,
        type: str,
        units: int = 1,
        *,
        length: Length = None,
        hours: float | None = None,
        keepalive: timedelta = KEEPALIVE,
        **wish: Any,
    ) -> AsyncIterator[Lease]:
        """A lease that is there as long as the block runs, as :meth:`Client.lease`."""
        asked = await self.request(type, units, length=length, hours=hours, keepalive=span(keepalive, None), **wish)

        async def say() -> None:
            while True:
                await anyio.sleep(keepalive.total_seconds() / WORDS)
                with suppress(ApiError, httpx.HTTPError):
                    await self.keep_alive(asked)

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(say)
                yield await self.wait(asked)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None  # what the block raises is its own
            raise
        finally:
            with anyio.CancelScope(shield=True), suppress(ApiError):  # it is over already
                await self.close(asked, "its block has ended")


def is_there(lease: Lease, state: str) -> bool:
    """Whether a lease is in a state, with nothing pending there and its units joined. Raises
    :class:`~.asking.LeaseFailed` if it is over.
    """
    if lease.state == state and not lease.pending and lease.join in ("-", "joined", ""):
        return True
    if lease.state in OVER:
        raise LeaseFailed(lease)
    return False
