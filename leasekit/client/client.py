"""The clients: :class:`Client` blocks, :class:`AsyncClient` runs on asyncio and trio."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager, suppress
from datetime import timedelta
from functools import wraps
from inspect import signature
from types import MethodType
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, overload

import anyio
import httpx

from leasekit.client.asking import (
    ENDED,
    OVER,
    ApiCall,
    ApiError,
    Asks,
    EventReader,
    LeaseFailed,
    Length,
    Retries,
    check,
    seconds,
    settings,
    span,
)
from leasekit.client.shapes import Lease, Transition

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", httpx.Client, httpx.AsyncClient)
TIMEOUT: Final = 60.0
KEEPALIVE: Final = timedelta(minutes=1)
"""How long who holds a lease in a ``with`` block may be silent before it is closed."""
WORDS: Final = 3
"""How often the client says that it is there within that time."""


class Sent(Generic[P, T]):
    """A method of both clients that sends a request: of :class:`Client` it waits for what is answered, of
    :class:`AsyncClient` it is awaited.
    """

    def __init__(self, asks: Callable[Concatenate[Asks, P], ApiCall[T]]) -> None:
        @wraps(asks)
        def blocking(client: Client, /, *args: P.args, **given: P.kwargs) -> T:
            return client.ask(asks(client._asks, *args, **given))

        @wraps(asks)
        async def awaiting(client: AsyncClient, /, *args: P.args, **given: P.kwargs) -> T:
            return await client.ask(asks(client._asks, *args, **given))

        asked = signature(asks)
        answer = str(asked.return_annotation).removeprefix("ApiCall[").removesuffix("]")
        for method in (blocking, awaiting):
            vars(method)["__signature__"] = asked.replace(return_annotation=answer)  # as ``help`` shows it
        self._blocking, self._awaiting = blocking, awaiting

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Callable[..., Any]:
        method: Callable[..., Any] = self._awaiting if issubclass(owner, AsyncClient) else self._blocking
        return method if client is None else MethodType(method, client)


class ApiMethods(Generic[H]):
    """What both clients ask for, and by what."""

    _opens: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        project: str = "",
        timeout: float = TIMEOUT,
        **more: Any,
    ) -> None:
        self._http: H = self._opens(**settings(url, token), timeout=timeout, **more)
        self._asks = Asks(project)

    me = Sent(Asks.me)
    get = Sent(Asks.get)
    request = Sent(Asks.request)
    dry_run = Sent(Asks.dry_run)
    ask_for = Sent(Asks.ask_for)
    recur = Sent(Asks.recur)
    extend = Sent(Asks.extend)
    modify = Sent(Asks.modify)
    close = Sent(Asks.close)
    hand = Sent(Asks.hand)
    keep_alive = Sent(Asks.keep_alive)
    console = Sent(Asks.console)
    log = Sent(Asks.log)
    history = Sent(Asks.history)
    waits = Sent(Asks.waits)
    wait_for = Sent(Asks.wait_for)
    wait_no_more = Sent(Asks.wait_no_more)
    approvals = Sent(Asks.approvals)
    approval = Sent(Asks.approval)
    ask_approval = Sent(Asks.ask_approval)
    approve = Sent(Asks.approve)
    refuse = Sent(Asks.refuse)
    withdraw = Sent(Asks.withdraw)
    templates = Sent(Asks.templates)
    template = Sent(Asks.template)
    keep_template = Sent(Asks.keep_template)
    remove_template = Sent(Asks.remove_template)
    announcements = Sent(Asks.announcements)
    announce = Sent(Asks.announce)
    announce_no_more = Sent(Asks.announce_no_more)


class Client(ApiMethods[httpx.Client]):
    """A gateway at ``url`` (else ``LEASEKIT_URL``), called with a ``token`` (else ``LEASEKIT_TOKEN``), for a project.

    Requests that come to no answer are sent again, with the same idempotency key: what is asked for is done once.
    Every method raises :class:`~.asking.ApiError` for what the gateway refuses, and httpx's errors.
    """

    _opens = httpx.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._http.close()

    def ask(self, ask: ApiCall[T]) -> T:
        """Send a request until it is answered."""
        tries = Retries()
        while True:
            try:
                return ask.read(self._send(ask))
            except (httpx.TransportError, ApiError) as error:
                wait = tries.again(error)
            time.sleep(wait)

    def _send(self, ask: ApiCall[Any]) -> httpx.Response:
        return self._http.request(
            ask.method, ask.path, params=dict(ask.params), content=ask.content(), headers=ask.headers()
        )

    def leases(self, **wanted: Any) -> Iterator[Lease]:
        """The leases of the project; ``all=True``: those that are over, too; by state, type, slice and site."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.ask(self._asks.page(cursor, wanted))
            yield from page.items
            cursor = page.next

    def events(self, last: str = "") -> Generator[tuple[str, Transition | None], None, None]:
        """What happens in the project, as it happens, each with the id of its event: who gives the id of the last one
        that they heard misses nothing. None is told by the first, which says from where on it goes, and by what is of
        no lease. Where the connection is lost, or the gateway ends it, the next one goes on, with such a first event.
        """
        tries = Retries()
        while True:
            try:
                with self._http.stream("GET", "/events", **self._asks.heard_since(last)) as answer:
                    if answer.status_code >= 400:
                        check(answer, answer.read())
                    reader = EventReader()
                    for line in answer.iter_lines():
                        if (event := reader.read(line)) is not None:
                            last, tries = event[0], Retries()
                            yield event
                raise httpx.ReadError(ENDED)
            except (httpx.TransportError, ApiError) as error:
                wait = tries.again(error)
            time.sleep(wait)

    def wait(self, lease: Lease | str, state: str = "active") -> Lease:
        """The lease, once it is in a state and its units have joined. Raises :class:`~.asking.LeaseFailed` if it is
        over before that.
        """
        with closing(self.events()) as events:
            return next(found for _ in events if is_there(found := self.get(lease), state))

    @contextmanager
    def lease(
        self,
        type: str,
        units: int = 1,
        *,
        length: Length = None,
        hours: float | None = None,
        keepalive: timedelta | str = KEEPALIVE,
        **wish: Any,
    ) -> Iterator[Lease]:
        """A lease that is there as long as the block runs: it is kept alive meanwhile, and closed after it; if this
        process dies it is closed by its guest, when that has not heard of it for ``keepalive`` (text is such as
        ``90s``). Raises :class:`~.asking.LeaseFailed`.
        """
        silence = seconds("keepalive", keepalive)
        asked = self.request(type, units, length=length, hours=hours, keepalive=span(keepalive, None), **wish)
        ended = threading.Event()

        def say() -> None:
            while not ended.wait(silence / WORDS):
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


class AsyncClient(ApiMethods[httpx.AsyncClient]):
    """As :class:`Client`, for asyncio and trio."""

    _opens = httpx.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._http.aclose()

    async def ask(self, ask: ApiCall[T]) -> T:
        """Send a request until it is answered."""
        tries = Retries()
        while True:
            try:
                return ask.read(await self._send(ask))
            except (httpx.TransportError, ApiError) as error:
                wait = tries.again(error)
            await anyio.sleep(wait)

    async def _send(self, ask: ApiCall[Any]) -> httpx.Response:
        return await self._http.request(
            ask.method, ask.path, params=dict(ask.params), content=ask.content(), headers=ask.headers()
        )

    async def leases(self, **wanted: Any) -> AsyncIterator[Lease]:
        """The leases of the project, as :meth:`Client.leases`."""
        cursor: str | None = ""
        while cursor is not None:
            page = await self.ask(self._asks.page(cursor, wanted))
            for one in page.items:
                yield one
            cursor = page.next

    async def events(self, last: str = "") -> AsyncGenerator[tuple[str, Transition | None], None]:
        """What happens in the project, as :meth:`Client.events`. Who breaks off closes it (``contextlib.aclosing``)."""
        tries = Retries()
        while True:
            try:
                async with self._http.stream("GET", "/events", **self._asks.heard_since(last)) as answer:
                    if answer.status_code >= 400:
                        check(answer, await answer.aread())
                    reader = EventReader()
                    async for line in answer.aiter_lines():
                        if (event := reader.read(line)) is not None:
                            last, tries = event[0], Retries()
                            yield event
                raise httpx.ReadError(ENDED)
            except (httpx.TransportError, ApiError) as error:
                wait = tries.again(error)
            await anyio.sleep(wait)

    async def wait(self, lease: Lease | str, state: str = "active") -> Lease:
        """The lease, once it is in a state and its units have joined. Raises :class:`~.asking.LeaseFailed`."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                if is_there(found := await self.get(lease), state):
                    return found
        raise AssertionError("events end with an error only")

    @asynccontextmanager
    async def lease(
        self,
        type: str,
        units: int = 1,
        *,
        length: Length = None,
        hours: float | None = None,
        keepalive: timedelta | str = KEEPALIVE,
        **wish: Any,
    ) -> AsyncIterator[Lease]:
        """A lease that is there as long as the block runs, as :meth:`Client.lease`."""
        silence = seconds("keepalive", keepalive)
        asked = await self.request(type, units, length=length, hours=hours, keepalive=span(keepalive, None), **wish)

        async def say() -> None:
            while True:
                await anyio.sleep(silence / WORDS)
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
