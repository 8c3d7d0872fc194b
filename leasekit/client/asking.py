"""What both clients have in common: requests as data, and what is read of answers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar
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

T = TypeVar("T")

URL_VARIABLE: Final = "LEASEKIT_URL"
TOKEN_VARIABLE: Final = "LEASEKIT_TOKEN"
API: Final = "/api/v1"
TRIES: Final = 8
"""How often a request is sent at most that comes to no answer, or to that an actor is away."""
FIRST_WAIT: Final = 0.2
"""How long is waited before the second try, in seconds; twice as long before each further one."""
AWAY: Final = 503
OVER: Final = frozenset({"closed", "failed"})


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
    """One request, and the class of its answer. It is sent again with the same ``key``."""

    method: str
    path: str
    kind: type[T]
    params: Mapping[str, Any] = attrs.Factory(dict)
    body: Any = None
    key: str = attrs.field(factory=lambda: secrets.token_urlsafe(18))

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
        return msgspec.json.decode(answer.content, type=self.kind)


def check(answer: httpx.Response, content: bytes) -> None:
    """Raises :class:`ApiError` for an answer that is a problem."""
    if answer.status_code < 400:
        return
    try:
        problem = msgspec.json.decode(content, type=ProblemDetails)
    except msgspec.MsgspecError:
        problem = ProblemDetails(title=answer.reason_phrase, status=answer.status_code, detail=answer.text[:200])
    raise ApiError(problem)


def waits() -> Iterator[float]:
    """How long is waited before each further try."""
    return (FIRST_WAIT * 2**count for count in range(TRIES - 1))


def settings(url: str | None, token: str | None) -> dict[str, Any]:
    """What an httpx client needs. Raises ``ValueError`` without an address."""
    url = url or os.environ.get(URL_VARIABLE, "")
    if not url:
        raise ValueError(f"url: found nothing, expected that of a gateway, or {URL_VARIABLE}")
    token = token or os.environ.get(TOKEN_VARIABLE, "") or kept_token(url)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return {"base_url": f"{url.rstrip('/')}{API}", "headers": headers}


Length: TypeAlias = timedelta | str | None
"""How long: text is such as ``2h``."""


def span(length: Length, hours: float | None) -> str | None:
    """A length of time as the API has it. Raises ``ValueError`` if it is said twice."""
    if length is not None and hours is not None:
        raise ValueError("hours: goes without length")
    if hours is not None:
        length = timedelta(hours=hours)
    if isinstance(length, timedelta):
        return f"{round(length.total_seconds() * 1000)}ms"
    return length


def transitions(lines: Iterator[str]) -> Iterator[tuple[str, Transition | None]]:
    """Server-sent events: the id of each, and what it tells (None: nothing but the id)."""
    id_, data = "", ""
    for line in lines:
        if line.startswith("id: "):
            id_ = line.removeprefix("id: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
        elif not line:
            yield id_, msgspec.json.decode(data, type=Transition) if data else None
            data = ""


def series(wish: LeaseRequest, hours: SeriesHours | None, days: Mapping[str, Any]) -> SeriesRequest:
    """A request for each of some days, which ``days`` say, but for what ``hours`` do."""
    return SeriesRequest(request=wish, **({} if hours is None else msgspec.structs.asdict(hours)), **days)


class _Named(Protocol):
    id: str


def _path(noun: str, one: _Named | str, *rest: str) -> str:
    """Where one of these is, which is said by its id, or its name."""
    return "/".join(("", noun, quote(one if isinstance(one, str) else one.id, safe=""), *rest))


@attrs.frozen
class Asks:
    """The requests of the API, of one ``project`` (empty: the only one of who asks)."""

    project: str = ""

    def _of_project(self, **params: Any) -> dict[str, Any]:
        given = {"project": self.project, **params}
        return {name: value for name, value in given.items() if value not in ("", None, False)}

    def _lease(self, lease: Lease | str, *rest: str) -> str:
        return _path("leases", lease, *rest)

    def me(self) -> ApiCall[Me]:
        return ApiCall("GET", "/me", Me)

    def leases(self, **params: Any) -> ApiCall[LeasePage]:
        return ApiCall("GET", "/leases", LeasePage, self._of_project(**params))

    def get(self, lease: Lease | str) -> ApiCall[Lease]:
        return ApiCall("GET", self._lease(lease), Lease, self._of_project())

    def request(self, wish: LeaseRequest) -> ApiCall[Lease]:
        return ApiCall("POST", "/leases", Lease, self._of_project(), wish)

    def dry_run(self, wish: LeaseRequest) -> ApiCall[DryRunResult]:
        return ApiCall("POST", "/leases/dry-run", DryRunResult, self._of_project(), wish)

    def recur(self, series: SeriesRequest) -> ApiCall[SeriesAnswer]:
        return ApiCall("POST", "/leases/series", SeriesAnswer, self._of_project(), series)

    def extend(self, lease: Lease | str, body: LeaseExtend) -> ApiCall[Lease]:
        return ApiCall("POST", self._lease(lease, "extend"), Lease, self._of_project(), body)

    def modify(self, lease: Lease | str, body: LeaseModify) -> ApiCall[Lease]:
        return ApiCall("PATCH", self._lease(lease), Lease, self._of_project(), body)

    def close(self, lease: Lease | str, reason: str) -> ApiCall[Lease]:
        return ApiCall("POST", self._lease(lease, "close"), Lease, self._of_project(), Close(reason=reason))

    def hand(self, lease: Lease | str, to: str, reason: str) -> ApiCall[Lease]:
        return ApiCall(
            "POST", self._lease(lease, "hand"), Lease, self._of_project(), LeaseHanding(to=to, reason=reason)
        )

    def waits(self) -> ApiCall[WaitList]:
        return ApiCall("GET", "/waits", WaitList, self._of_project())

    def wait_for(self, search: SlotSearch) -> ApiCall[Wait]:
        return ApiCall("POST", "/waits", Wait, self._of_project(), search)

    def wait_no_more(self, wait: Wait | str) -> ApiCall[Wait]:
        return ApiCall("POST", _path("waits", wait, "remove"), Wait)

    def approvals(self, state: str) -> ApiCall[ApprovalList]:
        return ApiCall("GET", "/approvals", ApprovalList, self._of_project(state=state))

    def approval(self, approval: Approval | str) -> ApiCall[Approval]:
        return ApiCall("GET", _path("approvals", approval), Approval)

    def ask_approval(self, asked: ApprovalRequest) -> ApiCall[Approval]:
        return ApiCall("POST", "/approvals", Approval, self._of_project(), asked)

    def decide(self, approval: Approval | str, what: str, reason: str) -> ApiCall[Approval]:
        return ApiCall("POST", _path("approvals", approval, what), Approval, body=ApprovalDecision(reason=reason))

    def templates(self) -> ApiCall[TemplateList]:
        return ApiCall("GET", "/templates", TemplateList, self._of_project())

    def template(self, template: LeaseTemplate | str) -> ApiCall[LeaseTemplate]:
        return ApiCall("GET", _path("templates", template), LeaseTemplate, self._of_project())

    def keep_template(self, template: LeaseTemplateRequest) -> ApiCall[LeaseTemplate]:
        return ApiCall("POST", "/templates", LeaseTemplate, self._of_project(), template)

    def remove_template(self, template: LeaseTemplate | str) -> ApiCall[LeaseTemplate]:
        return ApiCall("POST", _path("templates", template, "remove"), LeaseTemplate, self._of_project())

    def announcements(self) -> ApiCall[AnnouncementList]:
        return ApiCall("GET", "/announcements", AnnouncementList)

    def announce(self, announcement: AnnouncementRequest) -> ApiCall[Announcement]:
        return ApiCall("POST", "/announcements", Announcement, body=announcement)

    def announce_no_more(self, announcement: Announcement | str) -> ApiCall[Announcement]:
        return ApiCall("POST", _path("announcements", announcement, "remove"), Announcement)

    def keep_alive(self, lease: Lease | str) -> ApiCall[KeptLease]:
        return ApiCall("POST", self._lease(lease, "keepalive"), KeptLease, self._of_project(), SayAlive())

    def history(self, lease: Lease | str) -> ApiCall[TransitionPage]:
        return ApiCall("GET", self._lease(lease, "history"), TransitionPage, self._of_project())

    def said(self, lease: Lease | str, unit: str, what: str) -> ApiCall[UnitLog]:
        return ApiCall("GET", self._lease(lease, "units", unit, what), UnitLog, self._of_project())
