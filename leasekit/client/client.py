"""The clients: :class:`Client` blocks, :class:`AsyncClient` runs on asyncio and trio."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypeVar

import anyio
import httpx
import msgspec

from leasekit.client.asking import (
    AWAY,
    OVER,
    ApiCall,
    ApiError,
    Asks,
    LeaseFailed,
    Length,
    check,
    series,
    settings,
    span,
    transitions,
    waits,
)
from leasekit.client.shapes import (
    Announcement,
    AnnouncementRequest,
    Approval,
    ApprovalRequest,
    DryRunResult,
    Lease,
    LeaseExtend,
    LeaseModify,
    LeaseRequest,
    LeaseTemplate,
    LeaseTemplateRequest,
    Me,
    SeriesAnswer,
    SeriesHours,
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

    def ask_for(self, template: LeaseTemplate, **changes: Any) -> Lease:
        """Ask for a lease as a template says it, but for ``changes``."""
        return self.ask(self._asks.request(msgspec.structs.replace(template.request, **changes)))

    def recur(self, wish: LeaseRequest, hours: SeriesHours | None = None, **days: Any) -> SeriesAnswer:
        """Ask for a lease on each of some days, and wait for the answers. ``days`` is as
        :class:`~.shapes.SeriesRequest` has it, but for what ``hours`` say (the ``days`` of a template).
        """
        return self.ask(self._asks.recur(series(wish, hours, days)))

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

    def approvals(self, state: str = "") -> list[Approval]:
        """What waits to be approved in the project, and what was decided; those of one ``state``, such as pending."""
        return self.ask(self._asks.approvals(state)).items

    def approval(self, approval: Approval | str) -> Approval:
        """One approval, as it is now: what is asked for, and what came of it."""
        return self.ask(self._asks.approval(approval))

    def ask_approval(self, why: str = "", **asked: Any) -> Approval:
        """Ask that something be approved: ``request``, ``series``, or ``lease`` with ``extend`` or ``modify``, as
        :class:`~.shapes.ApprovalRequest` has it.
        """
        return self.ask(self._asks.ask_approval(ApprovalRequest(why=why, **asked)))

    def approve(self, approval: Approval | str, reason: str = "") -> Approval:
        """Have it done, as its asker's. Of a series the answer says of each day what became of it."""
        return self.ask(self._asks.decide(approval, "approve", reason))

    def refuse(self, approval: Approval | str, reason: str = "") -> Approval:
        """Refuse it."""
        return self.ask(self._asks.decide(approval, "refuse", reason))

    def withdraw(self, approval: Approval | str, reason: str = "") -> Approval:
        """Withdraw what one has asked for."""
        return self.ask(self._asks.decide(approval, "withdraw", reason))

    def templates(self) -> list[LeaseTemplate]:
        """The templates that one sees, by name."""
        return self.ask(self._asks.templates()).items

    def template(self, template: LeaseTemplate | str) -> LeaseTemplate:
        """One template, by its id or its name; :meth:`ask_for`, or :meth:`recur`, asks for what it says."""
        return self.ask(self._asks.template(template))

    def keep_template(
        self, name: str, wish: LeaseRequest, *, days: SeriesHours | None = None, shared: bool = False
    ) -> LeaseTemplate:
        """Keep a request under a name, with the ``days`` of one that recurs; ``shared``: all of the project see it."""
        made = LeaseTemplateRequest(name=name, request=wish, days=days, shared=shared)
        return self.ask(self._asks.keep_template(made))

    def remove_template(self, template: LeaseTemplate | str) -> LeaseTemplate:
        """Have there be no such template any more."""
        return self.ask(self._asks.remove_template(template))

    def announcements(self) -> list[Announcement]:
        """The outages that are announced and not over."""
        return self.ask(self._asks.announcements()).items

    def announce(self, text: str, end: datetime, start: datetime | None = None) -> Announcement:
        """Tell everybody of an outage, as an operator; it begins now, unless ``start`` says."""
        return self.ask(self._asks.announce(AnnouncementRequest(text=text, end=end, start=start)))

    def announce_no_more(self, announcement: Announcement | str) -> Announcement:
        """Have it be announced no more."""
        return self.ask(self._asks.announce_no_more(announcement))

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

    async def ask_for(self, template: LeaseTemplate, **changes: Any) -> Lease:
        """Ask for a lease as a template says it, but for ``changes``."""
        return await self.ask(self._asks.request(msgspec.structs.replace(template.request, **changes)))

    async def recur(self, wish: LeaseRequest, hours: SeriesHours | None = None, **days: Any) -> SeriesAnswer:
        """Ask for a lease on each of some days, as :meth:`Client.recur`."""
        return await self.ask(self._asks.recur(series(wish, hours, days)))

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

    async def approvals(self, state: str = "") -> list[Approval]:
        """What waits to be approved in the project, as :meth:`Client.approvals`."""
        return (await self.ask(self._asks.approvals(state))).items

    async def approval(self, approval: Approval | str) -> Approval:
        """One approval, as :meth:`Client.approval`."""
        return await self.ask(self._asks.approval(approval))

    async def ask_approval(self, why: str = "", **asked: Any) -> Approval:
        """Ask that something be approved, as :meth:`Client.ask_approval`."""
        return await self.ask(self._asks.ask_approval(ApprovalRequest(why=why, **asked)))

    async def approve(self, approval: Approval | str, reason: str = "") -> Approval:
        """Have it done, as :meth:`Client.approve`."""
        return await self.ask(self._asks.decide(approval, "approve", reason))

    async def refuse(self, approval: Approval | str, reason: str = "") -> Approval:
        """Refuse it, as :meth:`Client.refuse`."""
        return await self.ask(self._asks.decide(approval, "refuse", reason))

    async def withdraw(self, approval: Approval | str, reason: str = "") -> Approval:
        """Withdraw what one has asked for, as :meth:`Client.withdraw`."""
        return await self.ask(self._asks.decide(approval, "withdraw", reason))

    async def templates(self) -> list[LeaseTemplate]:
        """The templates that one sees, as :meth:`Client.templates`."""
        return (await self.ask(self._asks.templates())).items

    async def template(self, template: LeaseTemplate | str) -> LeaseTemplate:
        """One template, as :meth:`Client.template`."""
        return await self.ask(self._asks.template(template))

    async def keep_template(
        self, name: str, wish: LeaseRequest, *, days: SeriesHours | None = None, shared: bool = False
    ) -> LeaseTemplate:
        """Keep a request under a name, as :meth:`Client.keep_template`."""
        made = LeaseTemplateRequest(name=name, request=wish, days=days, shared=shared)
        return await self.ask(self._asks.keep_template(made))

    async def remove_template(self, template: LeaseTemplate | str) -> LeaseTemplate:
        """Have there be no such template any more, as :meth:`Client.remove_template`."""
        return await self.ask(self._asks.remove_template(template))

    async def announcements(self) -> list[Announcement]:
        """The outages that are announced and not over, as :meth:`Client.announcements`."""
        return (await self.ask(self._asks.announcements())).items

    async def announce(self, text: str, end: datetime, start: datetime | None = None) -> Announcement:
        """Tell everybody of an outage, as :meth:`Client.announce`."""
        return await self.ask(self._asks.announce(AnnouncementRequest(text=text, end=end, start=start)))

    async def announce_no_more(self, announcement: Announcement | str) -> Announcement:
        """Have it be announced no more, as :meth:`Client.announce_no_more`."""
        return await self.ask(self._asks.announce_no_more(announcement))

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
