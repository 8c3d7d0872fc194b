"""Plays a case: two guests, a broker and sites, all production actors, with the mapper under test in one of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import (
    AuthoritySettings,
    BrokerSettings,
    DelegationSpec,
    GuestSettings,
    Peer,
    UnitGroup,
)
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity
from leasekit.core.errors import CommandError
from leasekit.core.reasons import read, words
from leasekit.core.schema import LOG, Change
from leasekit.core.steps import Action
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Duration, Instant
from leasekit.emulation.conformance.cases import GUESTS, Case, Event
from leasekit.emulation.conformance.judges import JUDGES, complaint
from leasekit.emulation.conformance.watched import ANSWERS, Fault, FaultFound, TurnRecord, Watched
from leasekit.emulation.world import Outcome, World
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.policies.guest.manual import Manual
from leasekit.policies.registry import METHODS
from leasekit.stores.memory import MemoryStore

BROKER: Final = "broker"
LATENCIES: Final = {
    "setup": 20 * SECOND,
    "teardown": 10 * SECOND,
    "modify": 5 * SECOND,
    "join": SECOND,
    "leave": SECOND,
    "power_on": 3 * MINUTE,
    "power_off": 30 * SECOND,
    "suspend": 10 * SECOND,
    "resume": 15 * SECOND,
}
AFTERWARDS: Final = DAY
"""How long the world goes on after the last event: what is deferrable is given up by then."""
DEFER_MAX: Final = 8 * HOUR
DELAY: Final[Duration] = 10
RETRY_MAX: Final = 2 * HOUR
"""Nothing is lost here, so that nothing needs to be said again soon."""


@attrs.frozen(kw_only=True)
class Played:
    """How a case went: the first fault, if any; a digest of all decisions; how many turns there were."""

    fault: Fault | None
    digest: str
    turns: int
    journal: Sequence[TurnRecord]


def play(
    case: Case,
    role: str,
    make: Callable[[], Any],
    limit: float,
    *,
    journal: bool = False,
    beat: Callable[[], None] = lambda: None,
) -> Played:
    """Play a case with a mapper that ``make`` makes; a turn may take ``limit`` seconds. ``beat`` is called now and then
    while it goes on.
    """
    judge = JUDGES[role]()
    watched = Watched(make(), METHODS[role], judge.begin, limit, beat)
    watched.keep_journal = journal
    fault: Fault | None = None
    try:
        _Stage(case, role, watched, judge.overdue).run()
    except FaultFound as found:
        fault = found.fault
    return Played(fault=fault, digest=watched.digest, turns=watched.turns, journal=watched.journal)


class _Stage:
    """One case while it is played."""

    def __init__(self, case: Case, role: str, watched: Watched, overdue: dict[str, str]) -> None:
        self._case = case
        self._role = role
        self._watched = watched
        self._overdue = overdue
        self._world = World(delay=lambda sender, receiver: DELAY, observe=self._observed)
        roles = {**dict.fromkeys(GUESTS, "guest"), BROKER: "broker", **dict.fromkeys(case.sites, "authority")}
        self._roles = roles
        self._tested = next((name for name, role_ in roles.items() if role_ == role), "")
        for name in roles:
            self._world.add(self._actor(name), MemoryStore(), self._model(name))

    def run(self) -> None:
        """All events, and the time after them."""
        world = self._world
        world.run_until(SECOND)
        for event in self._case.events:
            world.run_until(max(world.now, event.at + SECOND))
            # What makes no sense (any more) is refused by the guest's actor, and passed over.
            with suppress(CommandError):
                self._command(event)
        last = max((event.at for event in self._case.events), default=0)
        world.run_until(last + AFTERWARDS)

    def _command(self, event: Event) -> None:
        command = self._world.command
        if event.do == "request":
            # The clock is a second ahead of the case, so that delegations are there at its start.
            start = event.start + SECOND
            properties = dict(event.properties)
            if "latest_start" in properties:
                properties["latest_start"] = str(int(properties["latest_start"]) + SECOND)
            command(
                event.guest, "lease.request", type=event.type, units=event.units, term=[start, start + event.length],
                name=event.name, site=event.site, properties=properties,
            )  # fmt: skip
        elif event.do == "close":
            command(event.guest, "lease.close", lease=event.name)
        else:
            end = self._world.query(event.guest, "lease", lease=event.name)["end"] + event.length
            command(event.guest, f"lease.{event.do}", lease=event.name, end=end, units=event.units)

    # -- listening ---------------------------------------------------------------------------------------------

    def _observed(self, at: Instant, actor: str, changes: Sequence[Change]) -> None:
        if actor != self._tested:
            return
        for change in changes:
            if change.table != LOG or change.row is None:
                continue
            _, subject, event, _, _, why = change.row
            if event == "mapper":
                raise FaultFound(complaint(words(read(why))))
            if event == "expire" and subject in self._overdue:
                raise FaultFound(Fault(ANSWERS, f"{self._overdue[subject]}; it expired at {at} ms"))

    # -- building ----------------------------------------------------------------------------------------------

    def _mapper(self, name: str, usual: Callable[[], Any]) -> Any:
        return self._watched if name == self._tested else usual()

    def _actor(self, name: str) -> Actor:
        me = UnsignedIdentity(name)
        peers = [
            Peer(name=other, key=UnsignedIdentity(other).public, role=role)
            for other, role in self._roles.items()
            if other != name
        ]
        role = self._roles[name]
        if role == "guest":
            guest = GuestSettings(defer_max=DEFER_MAX, retry_max=RETRY_MAX)
            return ServiceManager(name, me, UNSIGNED, peers, self._mapper(name, Manual), guest)
        if role == "broker":
            broker = BrokerSettings(defer_max=DEFER_MAX, retry_max=RETRY_MAX, priorities={GUESTS[0]: 1})
            return Broker(name, me, UNSIGNED, peers, self._mapper(name, Fcfs), broker)
        units = self._case.sites[name]
        site = AuthoritySettings(
            retry_max=RETRY_MAX,
            inventory=tuple(
                UnitGroup(type=type_, names=tuple(f"{type_}-{i}" for i in range(count)), power=True)
                for type_, count in units.items()
            ),
            delegations=tuple(DelegationSpec(broker=BROKER, type=type_, units=count) for type_, count in units.items()),
        )
        return Authority(name, me, UNSIGNED, peers, self._mapper(name, FirstFit), site)

    def _model(self, name: str) -> Callable[[Action], Outcome]:
        failing = self._case.failing

        def outcome(action: Action) -> Outcome:
            luck = zlib.crc32(f"{self._case.seed}/{name}/{action.unit}/{action.number}".encode())
            fails = bool(failing) and action.op == "setup" and luck % failing == 0
            return Outcome(LATENCIES.get(action.op, 0), not fails, {}, "no such image" if fails else "")

        return outcome
