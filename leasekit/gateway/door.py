"""What all requests of a gateway share: the ways to its actors, its tokens and where they are kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import trio

from leasekit.client.shapes import Announcement, CalendarView, LeasePolicy, LeaseTemplate, Wait
from leasekit.config.gateway import GatewayTable
from leasekit.core.errors import LeasekitError
from leasekit.core.measures import Histogram
from leasekit.core.schema import Change, Store, StoreError
from leasekit.core.time import Instant
from leasekit.gateway.actors import ActorAwayError, ActorConnection, Recent
from leasekit.gateway.calendars import FeedRecord
from leasekit.gateway.callers import TABLE, VIEWER, Caller, Tokens
from leasekit.gateway.events import EventHub
from leasekit.gateway.kept import Kept
from leasekit.gateway.notices import Notifications
from leasekit.gateway.policies import POLICIES, ApprovalRecord, read_policy
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.rates import Rates
from leasekit.gateway.repeats import Repeats
from leasekit.gateway.routing import unprocessable
from leasekit.gateway.users import LocalUsers

if TYPE_CHECKING:
    from leasekit.gateway.oidc import OpenIdKeys
    from leasekit.gateway.runs import RunShelf

GUEST: Final = "guest"
BROKER: Final = "broker"
SITE: Final = "authority"
GATEWAY: Final = "gateway"
SOURCE: Final = 5
"""How many times as often as by one name logins are tried from one address."""
PATIENCE: Final = 2.0
"""After how many seconds without an answer it is looked whether brokers and sites are there. Who is asked whether it is
there has as long to say so."""
T = TypeVar("T")


@attrs.define(eq=False)
class Answered:
    """How many requests had which answer: by method, path and status; and how long they took, in seconds."""

    counts: Counter[tuple[str, str, int]] = attrs.field(init=False, factory=Counter)
    times: Histogram = attrs.field(init=False, factory=Histogram)

    def note(self, method: str, path: str, status: int, seconds: float) -> None:
        """One more."""
        self.counts[method, path, status] += 1
        self.times.note(seconds)


@attrs.define(eq=False)
class GatewayDoor:
    """``actors`` are the ways to the actors of the deployment, by name; ``table`` is what the deploy file says of the
    gateway, ``store`` keeps tokens and users. ``logins`` bounds attempts to log in by name, ``sources`` by address,
    ``calls`` what a caller asks for; ``oidc`` knows who has a token of a provider; ``runs`` are folders of emulated
    runs.
    """

    name: str
    actors: Mapping[str, ActorConnection]
    table: GatewayTable
    _store: Store
    oidc: OpenIdKeys | None = None
    runs: RunShelf | None = None
    logins: Rates = attrs.field(init=False)
    sources: Rates = attrs.field(init=False)
    calls: Rates = attrs.field(init=False)
    gateways: Mapping[str, ActorConnection] = attrs.field(init=False, factory=dict)
    """The ways to the gateways of the deployment, by name: this one is among them."""
    clock: Callable[[], Instant] = lambda: time.time_ns() // 1_000_000
    tokens: Tokens = attrs.field(init=False, factory=Tokens)
    users: LocalUsers = attrs.field(init=False, factory=LocalUsers)
    policies: dict[str, LeasePolicy] = attrs.field(init=False, factory=dict)
    """The policy of each project that has one."""
    approvals: Kept[ApprovalRecord] = attrs.field(init=False, factory=lambda: Kept(ApprovalRecord))
    """What waits to be approved, or was, by its id, oldest first."""
    approving: set[str] = attrs.field(init=False, factory=set)
    """What is being done of it, as it was approved."""
    notices: Notifications = attrs.field(init=False, factory=Notifications)
    feeds: Kept[FeedRecord] = attrs.field(init=False, factory=lambda: Kept(FeedRecord))
    """The calendars, by id."""
    waits: Kept[Wait] = attrs.field(init=False, factory=lambda: Kept(Wait, "waits"))
    """For what somebody waits, or waited, by its id, oldest first."""
    templates: Kept[LeaseTemplate] = attrs.field(init=False, factory=lambda: Kept(LeaseTemplate, "templates"))
    """Requests that are kept under a name, by id."""
    announcements: Kept[Announcement] = attrs.field(init=False, factory=lambda: Kept(Announcement, "announcements"))
    """What operators have announced, by its id."""
    holders: dict[str, str] = attrs.field(init=False, factory=dict)
    """Whose a lease is, as far as that was looked for."""
    streams: Counter[tuple[str, str]] = attrs.field(init=False, factory=Counter)
    """How many streams of an actor a caller of the command line has, by both names."""
    told: trio.Event = attrs.field(init=False, factory=trio.Event)
    """Set when there is something to be sent."""
    answered: Answered = attrs.field(init=False, factory=Answered)
    repeats: Repeats = attrs.field(init=False, factory=Repeats)
    hub: EventHub = attrs.field(init=False, factory=EventHub)
    calendars: Recent[Any, tuple[Any, CalendarView]] = attrs.field(init=False, factory=lambda: Recent(4))
    """The last calendars that were shown, by who may see what; each with what it was made of."""
    _store_lock: trio.Lock = attrs.field(init=False, factory=trio.Lock)
    _astray: bool = attrs.field(init=False, default=False)
    """Whether there may be something here that the store has not, or the other way round."""

    def __attrs_post_init__(self) -> None:
        self.logins = Rates(self.table.logins_per_minute)
        self.sources = Rates(SOURCE * self.table.logins_per_minute)
        self.calls = Rates(self.table.calls_per_minute)
        self._restore()

    def _restore(self) -> None:
        """Have what the store has kept, and nothing else."""
        kept = self._store.load()
        self.policies.clear()
        self.tokens.restore(kept.get(TABLE, ()))
        self.policies.update((id_, read_policy(body)) for id_, body in kept.get(POLICIES, ()))
        self.notices.restore(kept)
        for each in (
            self.users, self.feeds, self.waits, self.templates, self.announcements, self.approvals, self.repeats
        ):  # fmt: skip
            each.restore(kept)

    @property
    def daemons(self) -> Mapping[str, ActorConnection]:
        """The ways to all daemons of the deployment, by name."""
        return {**self.actors, **self.gateways}

    async def commit(self, *changes: Change) -> None:
        """Keep what has changed; it is on the disk when this returns. Who listens by a token that is gone hears nothing
        more. Raises ``StoreError`` where it can't be kept: then all is as it was before.
        """
        if any(one.table == TABLE and one.row is None for one in changes):
            self.hub.review()
        async with self._store_lock:
            try:
                await trio.to_thread.run_sync(partial(self._store.commit, list(changes)))
            except StoreError:
                self._astray = True
                raise
            finally:
                if self._astray:
                    self._restore()
                    self._astray = self._store_lock.statistics().tasks_waiting > 0

    def knows(self, caller: Caller) -> bool:
        """Whether what somebody called with is good by now, too."""
        now = self.clock()
        is_over = caller.until is not None and caller.until <= now
        return not is_over and (not caller.token or self.tokens.is_good(caller.token, now))

    def of_role(self, role: str) -> Sequence[ActorConnection]:
        """The actors of a role, in the order of the deploy file."""
        return [actor for actor in self.actors.values() if actor.role == role]

    def projects(self, caller: Caller) -> list[str]:
        """The projects, which are guests, that somebody may look into."""
        return [actor.name for actor in self.of_role(GUEST) if caller.may(actor.name, VIEWER)]

    def project(self, caller: Caller, name: str, role: str) -> ActorConnection:
        """The guest that is a project, in which somebody must have a ``role``; without a ``name`` the only one they may
        look into. Raises :class:`ProblemError`, the same for a project that there is not and for one that is not
        theirs.
        """
        visible = self.projects(caller)
        if not name:
            if len(visible) != 1:
                raise unprocessable(f"project: found none, expected one of {', '.join(visible) or '(none)'}")
            name = visible[0]
        if name not in visible:
            raise not_found("project", name)
        if not caller.may(name, role):
            raise forbidden(f"{caller.name} is no {role} of {name}")
        return self.actors[name]

    def actor(self, name: str, role: str) -> ActorConnection:
        """The broker or site of that name; without one the only one of the role. Raises :class:`ProblemError`."""
        known = {actor.name: actor for actor in self.of_role(role)}
        what = "site" if role == SITE else role
        if not name and len(known) == 1:
            return next(iter(known.values()))
        if not name:
            raise unprocessable(f"{what}: found none, expected one of {', '.join(known) or '(none)'}")
        if name not in known:
            raise not_found(what, name)
        return known[name]

    async def each(
        self,
        actors: Sequence[ActorConnection],
        ask: Callable[[ActorConnection], Awaitable[T]],
        *,
        needs_one: bool = True,
    ) -> tuple[dict[str, T], dict[str, ActorAwayError]]:
        """What each of some actors answers, all asked at once, in their order; and who is away. Raises
        ``ActorAwayError`` if all are that, and it ``needs_one``; and what ``ask`` raises else.
        """
        found, away, failed = dict[str, T](), dict[str, ActorAwayError](), list[LeasekitError]()

        async def run(actor: ActorConnection) -> None:
            try:
                found[actor.name] = await ask(actor)
            except ActorAwayError as error:
                away[actor.name] = error
            except LeasekitError as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            for actor in actors:
                nursery.start_soon(run, actor)
        failed += [] if found or not needs_one else away.values()
        if failed:
            raise failed[0]
        return {one.name: found[one.name] for one in actors if one.name in found}, dict(sorted(away.items()))

    async def unless_away(self, ask: Callable[[], Awaitable[T]], brokers: Sequence[ActorConnection] | None = None) -> T:
        """What a project says that asks a broker, which may ask sites. As long as there is no answer it is looked again
        and again whether these are there: those ``brokers``, if not all. Raises ``ActorAwayError`` for the first that
        is not, and what ``ask`` raises.
        """
        asked = [*(self.of_role(BROKER) if brokers is None else brokers), *self.of_role(SITE)]
        found: list[T] = []
        failed: list[LeasekitError] = []

        async def run() -> None:
            try:
                found.append(await ask())
            except LeasekitError as error:
                failed.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while True:
                await trio.sleep(PATIENCE)
                if (away := await _first_away(asked)) is not None:
                    failed.append(away)
                    nursery.cancel_scope.cancel()
        if found:
            return found[0]
        raise failed[0]


async def _first_away(actors: Sequence[ActorConnection]) -> ActorAwayError | None:
    """The first that is not there, or too busy to say so."""
    for actor in actors:
        try:
            with actor.within(PATIENCE):
                await actor.query("clock")
        except ActorAwayError as error:
            return error
    return None


def forbidden(text: str) -> ProblemError:
    """Somebody may see a thing, but not do that with it."""
    return ProblemError(HTTPStatus.FORBIDDEN, text, code="forbidden")
