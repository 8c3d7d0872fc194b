"""What both clients have in common: requests as data, and what is read of answers."""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import quote

import attrs
import httpx
import msgspec

from leasekit.client.logins import kept_token
from leasekit.client.shapes import (
    Announcement,
    AnnouncementList,
    AnnouncementRequest,
    Approval,
    ApprovalDecision,
    ApprovalList,
    ApprovalRequest,
    Close,
    DryRunResult,
    KeptLease,
    Lease,
    LeaseExtend,
    LeaseHanding,
    LeaseModify,
    LeasePage,
    LeaseRequest,
    LeaseTemplate,
    LeaseTemplateRequest,
    Me,
    ProblemDetails,
    SayAlive,
    SeriesAnswer,
    SeriesHours,
    SeriesRequest,
    SlotSearch,
    TemplateList,
    Transition,
    TransitionPage,
    UnitLog,
    Wait,
    WaitList,
)
from leasekit.core.time import SECOND, parse_duration

T = TypeVar("T")
R = TypeVar("R")

URL_VARIABLE: Final = "LEASEKIT_URL"
TOKEN_VARIABLE: Final = "LEASEKIT_TOKEN"
API: Final = "/api/v1"
TRIES: Final = 8
"""How often a request is sent at most that comes to no answer, or to that an actor is away."""
FIRST_WAIT: Final = 0.2
"""How long is waited before the second try, in seconds; twice as long before each further one."""
AWAY: Final = 503
ENDED: Final = "the gateway has ended the stream of events"
OVER: Final = frozenset({"closed", "failed"})
TRANSITION: Final = "transition"
"""The kind of an event that tells what happened to a lease."""


class ApiError(Exception):
    """What the gateway says of a request that comes to nothing: ``problem`` has its ``status`` and ``code``."""

    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem

    @property
    def code(self) -> str:
        """The code for programs."""
        return self.problem.code


class LeaseFailed(Exception):
    """A lease that came to an end before what was waited for."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(f"lease {lease.id} is {lease.state}: {lease.reason}")
        self.lease = lease


@attrs.frozen
class ApiCall(Generic[T]):
    """One request, and the class of its answer, or a part of it. It is sent again with the same ``key``."""

    method: str
    path: str
    kind: type[T]
    params: Mapping[str, Any] = attrs.Factory(dict)
    body: Any = None
    key: str = attrs.field(factory=lambda: secrets.token_urlsafe(18))
    _pick: Callable[[Any], T] | None = None

    def then(self, pick: Callable[[T], R]) -> ApiCall[R]:
        """The same request, of whose answer that is picked."""
        return ApiCall(self.method, self.path, cast(type[R], self.kind), self.params, self.body, self.key, pick)

    def headers(self) -> dict[str, str]:
        """Its own headers."""
        if self.method == "GET":
            return {}
        return {"idempotency-key": self.key, "content-type": "application/json"}

    def content(self) -> bytes | None:
        """Its body."""
        return None if self.method == "GET" else msgspec.json.encode({} if self.body is None else self.body)

    def read(self, answer: httpx.Response) -> T:
        """Its answer. Raises :class:`ApiError`."""
        check(answer, answer.content)
        found = msgspec.json.decode(answer.content, type=self.kind)
        return found if self._pick is None else self._pick(found)


def check(answer: httpx.Response, content: bytes) -> None:
    """Raises :class:`ApiError` for an answer that is a problem."""
    if answer.status_code < 400:
        return
    try:
        problem = msgspec.json.decode(content, type=ProblemDetails)
    except msgspec.MsgspecError:
        problem = ProblemDetails(title=answer.reason_phrase, status=answer.status_code, detail=answer.text[:200])
    raise ApiError(problem)


def _waits() -> Iterator[float]:
    return (FIRST_WAIT * 2**count for count in range(TRIES - 1))


@attrs.define
class Retries:
    """What is left of the tries of a request."""

    _waits: Iterator[float] = attrs.field(init=False, factory=_waits)

    def again(self, error: httpx.TransportError | ApiError) -> float:
        """How long is waited before the next try, in seconds. Raises the ``error`` where there is none: it is a
        refusal, or there were enough.
        """
        is_away = not isinstance(error, ApiError) or error.problem.status == AWAY
        wait = next(self._waits, None) if is_away else None
        if wait is None:
            raise error
        return wait


def settings(url: str | None, token: str | None) -> dict[str, Any]:
    """What an httpx client needs. Raises ``ValueError`` without an address, and for a token that can be none."""
    url = url or os.environ.get(URL_VARIABLE, "")
    if not url:
        raise ValueError(f"url: found nothing, expected that of a gateway, or {URL_VARIABLE}")
    token = token or os.environ.get(TOKEN_VARIABLE, "") or kept_token(url)
    if not (token.isascii() and token.isprintable()):
        raise ValueError(f"token: found other than printable ASCII characters (it may be of {TOKEN_VARIABLE})")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return {"base_url": f"{url.rstrip('/')}{API}", "headers": headers, "verify": trusted(url)}


def trusted(url: str) -> ssl.SSLContext:
    """Which certificates are believed at an address: where it is http:// none, as it takes some 30 ms to read them."""
    is_https = url.lower().startswith("https:")
    return httpx.create_ssl_context() if is_https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


Length: TypeAlias = timedelta | str | None
"""How long: text is such as ``2h``."""


def span(length: Length, hours: float | None) -> str | None:
    """A length of time as the API has it. Raises ``ValueError`` if it is said twice, or is none."""
    if length is not None and hours is not None:
        raise ValueError("hours: goes without length")
    if hours is not None:
        try:
            length = timedelta(hours=hours)
        except (OverflowError, ValueError):
            raise ValueError(f"hours: found {hours}, expected a number of hours that a lease can last") from None
    if isinstance(length, timedelta):
        return f"{round(length.total_seconds() * 1000)}ms"
    return length


def seconds(name: str, length: timedelta | str) -> float:
    """The same as a number. Raises ``ValueError``, with the ``name`` of what it is."""
    if isinstance(length, timedelta):
        return length.total_seconds()
    try:
        return parse_duration(length) / SECOND
    except (TypeError, ValueError):
        raise ValueError(f"{name}: found {length!r:.80}, expected a timedelta, or text such as 90s") from None


@attrs.define
class EventReader:
    """Server-sent events, of their lines."""

    _id: str = ""
    _kind: str = ""
    _data: str = ""

    def read(self, line: str) -> tuple[str, Transition | None] | None:
        """The event that ends with a line, if one does: its id, and what it tells of a lease (None: nothing; it is
        another kind of event).
        """
        field, _, value = line.partition(": ")
        if field == "id":
            self._id = value
        elif field == "event":
            self._kind = value
        elif field == "data":
            self._data = value
        elif not line:
            found = msgspec.json.decode(self._data, type=Transition) if self._kind == TRANSITION else None
            self._kind = ""
            return self._id, found
        return None


class _Named(Protocol):
    id: str


def _path(noun: str, one: _Named | str, *rest: str) -> str:
    """Where one of these is, which is said by its id, or its name."""
    return "/".join(("", noun, quote(one if isinstance(one, str) else one.id, safe=""), *rest))


@attrs.frozen
class Asks:
    """The requests of the API, of one ``project`` (empty: the only one of who asks): methods of both clients."""

    project: str = ""

    def of_project(self, **params: Any) -> dict[str, Any]:
        """What stands in the query, with the project."""
        given = {"project": self.project, **params}
        return {name: value for name, value in given.items() if value not in ("", None, False)}

    def heard_since(self, last: str) -> dict[str, Any]:
        """What httpx is asked for the events after the ``last`` that was heard (empty: those from now on)."""
        return {"params": self.of_project(), "headers": {"last-event-id": last} if last else {}}

    def _lease(self, method: str, lease: Lease | str, *rest: str, body: Any = None) -> ApiCall[Lease]:
        return ApiCall(method, _path("leases", lease, *rest), Lease, self.of_project(), body)

    def _requested(self, wish: LeaseRequest) -> ApiCall[Lease]:
        return ApiCall("POST", "/leases", Lease, self.of_project(), wish)

    def page(self, cursor: str, wanted: Mapping[str, Any]) -> ApiCall[LeasePage]:
        """A page of leases."""
        return ApiCall("GET", "/leases", LeasePage, self.of_project(cursor=cursor, **wanted))

    def me(self) -> ApiCall[Me]:
        """Who calls, and what they may do."""
        return ApiCall("GET", "/me", Me)

    def get(self, lease: Lease | str) -> ApiCall[Lease]:
        """One lease, by its id or its name."""
        return self._lease("GET", lease)

    def request(
        self, /, type: str, units: int = 1, *, length: Length = None, hours: float | None = None, **wish: Any
    ) -> ApiCall[Lease]:
        """Ask for a lease. ``wish`` is as :class:`~.shapes.LeaseRequest` has it."""
        return self._requested(LeaseRequest(type=type, units=units, length=span(length, hours), **wish))

    def dry_run(
        self, /, type: str, units: int = 1, *, length: Length = None, hours: float | None = None, **wish: Any
    ) -> ApiCall[DryRunResult]:
        """What the broker would answer to such a request."""
        asked = LeaseRequest(type=type, units=units, length=span(length, hours), **wish)
        return ApiCall("POST", "/leases/dry-run", DryRunResult, self.of_project(), asked)

    def ask_for(self, /, template: LeaseTemplate, **changes: Any) -> ApiCall[Lease]:
        """Ask for a lease as a template says it, but for ``changes``."""
        return self._requested(msgspec.structs.replace(template.request, **changes))

    def recur(self, /, wish: LeaseRequest, hours: SeriesHours | None = None, **days: Any) -> ApiCall[SeriesAnswer]:
        """Ask for a lease on each of some days, and wait for the answers. ``days`` is as
        :class:`~.shapes.SeriesRequest` has it, but for what ``hours`` say (the ``days`` of a template).
        """
        asked = SeriesRequest(request=wish, **({} if hours is None else msgspec.structs.asdict(hours)), **days)
        return ApiCall("POST", "/leases/series", SeriesAnswer, self.of_project(), asked)

    def extend(
        self, /, lease: Lease | str, *, length: Length = None, hours: float | None = None, **body: Any
    ) -> ApiCall[Lease]:
        """Renew a lease."""
        return self._lease("POST", lease, "extend", body=LeaseExtend(length=span(length, hours), **body))

    def modify(self, /, lease: Lease | str, **body: Any) -> ApiCall[Lease]:
        """Change a lease in mid-term."""
        return self._lease("PATCH", lease, body=LeaseModify(**body))

    def close(self, lease: Lease | str, reason: str = "") -> ApiCall[Lease]:
        """End a lease early."""
        return self._lease("POST", lease, "close", body=Close(reason=reason))

    def hand(self, lease: Lease | str, to: str, reason: str = "") -> ApiCall[Lease]:
        """Have a lease be a colleague's, who is a user of the project."""
        return self._lease("POST", lease, "hand", body=LeaseHanding(to=to, reason=reason))

    def keep_alive(self, lease: Lease | str) -> ApiCall[KeptLease]:
        """Say that the holder of a lease is there."""
        return ApiCall("POST", _path("leases", lease, "keepalive"), KeptLease, self.of_project(), SayAlive())

    def console(self, lease: Lease | str, unit: str) -> ApiCall[list[str]]:
        """The last lines of the console of a unit of a lease."""
        return self._said(lease, unit, "console")

    def log(self, lease: Lease | str, unit: str) -> ApiCall[list[str]]:
        """The last lines of what the project's drivers said of a unit of a lease."""
        return self._said(lease, unit, "log")

    def _said(self, lease: Lease | str, unit: str, what: str) -> ApiCall[list[str]]:
        asked = ApiCall("GET", _path("leases", lease, "units", unit, what), UnitLog, self.of_project())
        return asked.then(lambda found: found.lines)

    def history(self, lease: Lease | str) -> ApiCall[list[Transition]]:
        """What happened to a lease, oldest first."""
        asked = ApiCall("GET", _path("leases", lease, "history"), TransitionPage, self.of_project())
        return asked.then(lambda found: found.items)

    def waits(self) -> ApiCall[list[Wait]]:
        """For what one waits."""
        return ApiCall("GET", "/waits", WaitList, self.of_project()).then(lambda found: found.items)

    def wait_for(self, search: SlotSearch) -> ApiCall[Wait]:
        """Wait until something fits: :meth:`waits` has the window then. Nothing is held for who waits."""
        return ApiCall("POST", "/waits", Wait, self.of_project(), search)

    def wait_no_more(self, wait: Wait | str) -> ApiCall[Wait]:
        """Wait for it no more."""
        return ApiCall("POST", _path("waits", wait, "remove"), Wait)

    def approvals(self, state: str = "") -> ApiCall[list[Approval]]:
        """What waits to be approved in the project, and what was decided; those of one ``state``, such as pending."""
        asked = ApiCall("GET", "/approvals", ApprovalList, self.of_project(state=state))
        return asked.then(lambda found: found.items)

    def approval(self, approval: Approval | str) -> ApiCall[Approval]:
        """One approval, as it is now: what is asked for, and what came of it."""
        return ApiCall("GET", _path("approvals", approval), Approval)

    def ask_approval(self, /, why: str = "", **asked: Any) -> ApiCall[Approval]:
        """Ask that something be approved: ``request``, ``series``, or ``lease`` with ``extend`` or ``modify``, as
        :class:`~.shapes.ApprovalRequest` has it.
        """
        return ApiCall("POST", "/approvals", Approval, self.of_project(), ApprovalRequest(why=why, **asked))

    def approve(self, approval: Approval | str, reason: str = "") -> ApiCall[Approval]:
        """Have it done, as its asker's. Of a series the answer says of each day what became of it."""
        return self._decided(approval, "approve", reason)

    def refuse(self, approval: Approval | str, reason: str = "") -> ApiCall[Approval]:
        """Refuse it."""
        return self._decided(approval, "refuse", reason)

    def withdraw(self, approval: Approval | str, reason: str = "") -> ApiCall[Approval]:
        """Withdraw what one has asked for."""
        return self._decided(approval, "withdraw", reason)

    def _decided(self, approval: Approval | str, what: str, reason: str) -> ApiCall[Approval]:
        return ApiCall("POST", _path("approvals", approval, what), Approval, body=ApprovalDecision(reason=reason))

    def templates(self) -> ApiCall[list[LeaseTemplate]]:
        """The templates that one sees, by name."""
        return ApiCall("GET", "/templates", TemplateList, self.of_project()).then(lambda found: found.items)

    def template(self, template: LeaseTemplate | str) -> ApiCall[LeaseTemplate]:
        """One template, by its id or its name; :meth:`ask_for`, or :meth:`recur`, asks for what it says."""
        return ApiCall("GET", _path("templates", template), LeaseTemplate, self.of_project())

    def keep_template(
        self, name: str, wish: LeaseRequest, *, days: SeriesHours | None = None, shared: bool = False
    ) -> ApiCall[LeaseTemplate]:
        """Keep a request under a name, with the ``days`` of one that recurs; ``shared``: all of the project see it."""
        made = LeaseTemplateRequest(name=name, request=wish, days=days, shared=shared)
        return ApiCall("POST", "/templates", LeaseTemplate, self.of_project(), made)

    def remove_template(self, template: LeaseTemplate | str) -> ApiCall[LeaseTemplate]:
        """Have there be no such template any more."""
        return ApiCall("POST", _path("templates", template, "remove"), LeaseTemplate, self.of_project())

    def announcements(self) -> ApiCall[list[Announcement]]:
        """The outages that are announced and not over."""
        return ApiCall("GET", "/announcements", AnnouncementList).then(lambda found: found.items)

    def announce(self, text: str, end: datetime, start: datetime | None = None) -> ApiCall[Announcement]:
        """Tell everybody of an outage, as an operator; it begins now, unless ``start`` says."""
        asked = AnnouncementRequest(text=text, end=end, start=start)
        return ApiCall("POST", "/announcements", Announcement, body=asked)

    def announce_no_more(self, announcement: Announcement | str) -> ApiCall[Announcement]:
        """Have it be announced no more."""
        return ApiCall("POST", _path("announcements", announcement, "remove"), Announcement)
