"""What one seed draws: who is there, what they ask for and when, and how likely each fault is.

A :class:`Scenario` is plain data. All that happens in a run follows from it: the *operations* (requests, faults with a
place in time) are listed in it, and the many small faults (a lost frame, a failed setup, a crash between two steps) are
drawn from streams of random numbers that the seed names, one for each pair of actors or each actor. A scenario file
fixes part of the draw, or all of it; what it leaves out is drawn from its seed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.core.settings import SettingsError, structure
from leasekit.core.time import HOUR, MINUTE, SECOND, Duration, Instant

Do: TypeAlias = Literal[
    "request", "long", "ahead", "extend", "modify", "close", "hurry", "group", "slice", "close_slice", "chain",
    "crash", "cut_pair", "cut_side", "slow", "full", "step_within", "step_beyond", "sleep",
    "leap", "operate",
    "reclaim", "delegate", "release", "resize", "reload", "grow", "shrink", "share", "hand_over",
    "odd", "wordy", "maintain", "drain", "evict", "move", "unit", "crowd", "early", "dry_run", "topology",
    "rotate", "forget",
    "twice", "elsewhere", "stolen", "altered", "forged", "self_made", "meddle",
    "returned", "nonsense", "overdelegate", "beyond", "garbage", "flip", "replay", "slice_key", "extend_same",
]  # fmt: skip

WORK: Final[Mapping[Do, int]] = {
    "request": 20, "long": 5, "extend": 11, "modify": 11, "close": 5, "hurry": 8, "group": 3, "slice": 2,
    "close_slice": 1, "chain": 2, "dry_run": 2,
}  # fmt: skip
"""What guests are told to do, and how often relative to each other."""
TROUBLE: Final[Mapping[Do, int]] = {
    "crash": 5, "cut_pair": 3, "cut_side": 2, "slow": 2, "full": 2, "step_within": 1, "step_beyond": 1, "operate": 4,
    "maintain": 2,
}  # fmt: skip
"""Faults with a place in time."""
MALICE: Final[Sequence[Do]] = ("twice", "elsewhere", "stolen", "meddle", "returned", "nonsense")
"""What a hostile guest does."""
FORGERY: Final[Sequence[Do]] = ("altered", "forged", "self_made")
"""What only signatures keep it from."""
TAMPERING: Final[Sequence[Do]] = ("garbage", "flip", "replay")
"""What somebody on the line does to bytes; signed channels only."""
FILES: Final[Sequence[Do]] = (
    "reload", "reload", "grow", "grow", "shrink", "share", "share", "hand_over", "hand_over",
)  # fmt: skip
"""What is about files that say something else, and delegations that are given anew."""

HOSTILE: Final = "mallory"
"""A guest that every actor knows, and that obeys no rule."""
ROGUE: Final = "trudy"
"""A broker that sites have delegated to, and that gives away more than it has."""

NETWORK: Final = "net"
"""A network authority: its units are bandwidth."""

RECORDS: Final = ("timing", "rates")
"""Parts of a scenario of which a file may fix some fields and leave the others to the draw."""

OPERATIONS: Final = (115, 290)
"""The least and most operations of guests in a run."""
GAPS: Final[Sequence[Duration]] = (10, 500, 2 * SECOND, 5 * SECOND, 25 * SECOND)
"""What may lie between two operations, in milliseconds."""


@attrs.frozen(kw_only=True)
class Operation:
    """One thing that happens at ``at``: ``who`` is its actor ('': whoever ``pick``, the seed of its details, says),
    ``span`` how long it lasts.
    """

    at: Instant
    do: Do
    pick: int
    who: str = ""
    span: Duration = 0


@attrs.frozen(kw_only=True)
class Share:
    """What a site, or the broker ``issuer``, delegates to a broker of a site's units; ``length`` in milliseconds,
    ``degree`` in thousandths. It is renewed ``renew`` before its end (0: never), for ``renew_for`` (0: ``length``).
    """

    site: str
    broker: str
    type: str
    units: int
    degree: int = 1000
    length: Duration = 3650 * 24 * HOUR
    issuer: str = ""
    renew: Duration = 0
    renew_for: Duration = 0


@attrs.frozen(kw_only=True)
class ClockDraw:
    """How an actor's clock is off: ``offset`` in milliseconds from the first, ``drift`` in millionths."""

    offset: int = 0
    drift: int = 0


@attrs.frozen(kw_only=True)
class Rates:
    """How likely the small faults are, each at its own occasion: 0 to 1."""

    lose: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    crash: float = 0.0
    fail: float = 0.0
    hang: float = 0.0


@attrs.frozen(kw_only=True)
class Timing:
    """Settings of the actors, in milliseconds."""

    leave_time: Duration = 0
    retention: Duration = 10 * MINUTE
    close_timeout: Duration = HOUR
    extend_lead: Duration = MINUTE
    group_timeout: Duration = 30 * SECOND
    defer_max: Duration = HOUR
    gather: Duration = 0
    driver_timeout: Duration = 2 * MINUTE
    store_patience: Duration = MINUTE
    failures_max: int = 3
    keep_closed: bool = True
    endorse: bool = False
    redeem_lead: Duration = 5 * SECOND


@attrs.frozen(kw_only=True)
class Scenario:
    """All that a run depends on.

    ``brokers`` maps each broker to the one that it gets units from ('': from the sites); ``faults`` lists the small
    faults that happen, by their keys (None: by ``rates``).
    """

    seed: int
    sites: Mapping[str, Mapping[str, int]]
    brokers: Mapping[str, str]
    guests: tuple[str, ...]
    shares: tuple[Share, ...]
    timing: Timing
    mappers: Mapping[str, str]
    clocks: Mapping[str, ClockDraw]
    stores: Mapping[str, str]
    signed: bool
    channels: bool
    tick: Duration
    rates: Rates
    bad_units: tuple[str, ...]
    operations: tuple[Operation, ...]
    rogue: bool = False
    faults: tuple[str, ...] | None = None
    links: Mapping[str, tuple[str, str]] = attrs.Factory(dict)
    """The ends of each link, by its resource type: there is a network authority that has one unit a granule."""
    suspends: bool = False
    """Whether sites save units, and leases say how long that takes."""
    honours: tuple[str, ...] = ()
    """Sites that honour what a guilty broker gave in order of arrival, up to what it had; others refuse the surplus."""
    bans: tuple[str, ...] = ()
    """Sites that refuse all later tickets of the guilty."""
    apart: tuple[str, ...] = ()
    """Actors whose mappers run apart from them: other things happen while they decide."""
    racks: int = 1
    """In how many racks each site has its units, which are of as many classes."""
    early: bool = False
    """Whether leases are changed before they begin."""
    hosts: bool = False
    """Whether units are hosts, which are leased whole or as machines on them."""
    redeem_within: Duration = HOUR
    """How long after their start tickets can be redeemed; 0: until their end."""
    tidy_every: int = 256
    """After how many ends of leases or claims actors forget what is past."""
    looks: int = 32
    """How many requests that brokers' mappers have put off they look at in one turn."""

    liars: tuple[str, ...] = ()
    """Brokers and sites that say what is not so."""

    @cached_property
    def forgets(self) -> bool:
        """Whether actors forget peers, and know them again."""
        return any(operation.do == "forget" for operation in self.operations)

    @property
    def actors(self) -> tuple[str, ...]:
        """Every actor, in the order in which they take their turns."""
        return (*self.guests, *self.brokers, *self.sites)

    def role(self, name: str) -> str:
        """``guest``, ``broker`` or ``authority``."""
        return "authority" if name in self.sites else "broker" if name in self.brokers else "guest"

    @property
    def workload_end(self) -> Instant:
        """When the last operation begins."""
        return self.operations[-1].at if self.operations else 0


BROKER_MAPPERS: Final = ("fcfs", "fcfs", "fcfs", "mischief", "slow", "preempting")
STANDARD_MAPPERS: Final = ("backfill", "conservative", "priority", "fair_share", "quotas", "suspending")
"""Other standard mappers of brokers: in some worlds, in place of "fcfs"."""
SITE_MAPPERS: Final = ("first_fit", "first_fit", "first_fit", "slow_site", "wrong_site")
POWER_MAPPERS: Final = ("energy", "switching")
"""Mappers of sites whose units can be switched on and off."""
GUEST_MAPPERS: Final = ("manual", "manual", "hesitant", "restless")


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = Random(f"leasekit scenario {seed}")
    sites = {f"site-{n}": _units(rng) for n in range(rng.choice((1, 1, 2, 2, 3, 4)))}
    brokers = _brokers(rng)
    guests = tuple(f"guest-{n}" for n in range(rng.choice((1, 2, 2, 3, 4, 5))))
    signed = rng.random() < 0.08
    channels = rng.random() < (0.5 if signed else 0.1)
    hostile = rng.random() < 0.3
    rogue = hostile and rng.random() < 0.4
    everybody = (*guests, *brokers, *sites)
    scenario = Scenario(
        seed=seed,
        sites=sites,
        brokers=brokers,
        guests=guests,
        shares=_shares(rng, sites, brokers, rogue=rogue),
        timing=_timing(rng),
        mappers={
            **{name: rng.choice(GUEST_MAPPERS) for name in guests},
            **{name: rng.choice(BROKER_MAPPERS) for name in brokers},
            **_switching(seed, {name: rng.choice(SITE_MAPPERS) for name in sites}),
        },
        clocks=_clocks(rng, everybody),
        stores={rng.choice(everybody): "sqlite"} if rng.random() < 0.08 else {},
        signed=signed,
        channels=channels,
        tick=rng.choice((1, 100, 1000)),
        rates=Rates(
            lose=rng.choice((0.0, 0.05, 0.2)),
            repeat=rng.choice((0.0, 0.1, 0.3)),
            late=rng.choice((0.0, 0.05, 0.15)),
            crash=rng.choice((0.0, 0.002, 0.008)),
            fail=rng.choice((0.0, 0.05, 0.2)),
            hang=rng.choice((0.0, 0.0, 0.03)),
        ),
        bad_units=tuple(f"{site}/vm-0" for site, units in sites.items() if units["vm"] > 3 and rng.random() < 0.08),
        operations=_operations(rng, guests, hostile=hostile, rogue=rogue, signed=signed, channels=channels),
        rogue=rogue,
        # Drawn by itself, so that all else of a seed is as it was without.
        suspends=Random(f"leasekit suspension {seed}").random() < 0.3,
        apart=tuple(name for name in everybody if Random(f"leasekit apart {seed} {name}").random() < 0.15),
        racks=Random(f"leasekit racks {seed}").choice((1, 1, 1, 2, 3)),
        early=Random(f"leasekit early {seed}").random() < 0.1,
        redeem_within=Random(f"leasekit redeem {seed}").choice((0, 10 * SECOND, MINUTE, HOUR)),
        tidy_every=Random(f"leasekit tidying {seed}").choice((1, 2, 5, 256)),
        looks=Random(f"leasekit looks {seed}").choice((1, 2, 3, 32)),
    )
    drawn = _hosted(_changing(_governed(_networked(_renewed(_reloaded(_timed(_worded(_operated(_live(scenario))))))))))
    drawn = _peered(_ahead(drawn))
    return _lying(_marketed(_with(drawn, "early changes", ("early",), share=1.0) if drawn.early else drawn))


def _lying(scenario: Scenario) -> Scenario:
    """In a few worlds some brokers and sites are hostile; in fewer where there are topologies or introductions, of
    which they lie as well. From streams of their own.
    """
    linked = bool(scenario.links or scenario.timing.endorse)
    rng = Random(f"leasekit {'planning liars' if linked else 'liars'} {scenario.seed}")
    if rng.random() >= (0.05 if linked else 0.1):
        return scenario
    liars = [rng.choice((*scenario.brokers, *scenario.sites))]
    liars += [name for name in (*scenario.brokers, *scenario.sites) if name not in liars and rng.random() < 0.15]
    return attrs.evolve(scenario, liars=tuple(liars))


def _marketed(scenario: Scenario) -> Scenario:
    """In a few worlds brokers that would serve first who comes first have a market, where preemptible leases bid."""
    if Random(f"leasekit market {scenario.seed}").random() >= 0.08:
        return scenario
    market = {name: "spot" for name in scenario.brokers if scenario.mappers[name] == "fcfs"}
    return attrs.evolve(scenario, mappers={**scenario.mappers, **market})


def _hosted(scenario: Scenario) -> Scenario:
    """In some worlds units are hosts; sites with the first fit of units may place machines by yield there, or have
    victims.
    """
    rng = Random(f"leasekit hosts {scenario.seed}")
    if rng.random() >= 0.2 or set(POWER_MAPPERS) & {scenario.mappers[name] for name in scenario.sites}:
        return scenario
    drawn = {name: rng.random() for name in scenario.sites if scenario.mappers[name] == "first_fit"}
    placed = {name: "yield" if at < 0.25 else "victims" for name, at in drawn.items() if at < 0.75}
    hosted = attrs.evolve(scenario, hosts=True, mappers={**scenario.mappers, **placed})
    crowded = _with(hosted, "crowds", ("crowd",), share=1.0) if "victims" in placed.values() else hosted
    return _with(crowded, "hosts that change", ("unit", "unit", "unit", "move"), share=0.5)


def _ahead(scenario: Scenario) -> Scenario:
    """In some worlds tickets are redeemed long before their terms: sites plan which units these leases get. From a
    stream of its own.
    """
    rng = Random(f"leasekit ahead {scenario.seed}")
    if rng.random() >= 0.075:
        return scenario
    lead = rng.choice((2 * MINUTE, 10 * MINUTE, HOUR))
    early = attrs.evolve(scenario, timing=attrs.evolve(scenario.timing, redeem_lead=lead))
    return _with(early, "requests ahead", ("ahead", "ahead", "ahead", "drain", "move"), most=40, share=1.0)


def _peered(scenario: Scenario) -> Scenario:
    """In a few worlds actors get other keys, or forget peers and know them again. From streams of their own."""
    if scenario.channels or scenario.timing.endorse:
        return scenario
    changed = _with(scenario, "keys", ("rotate",), most=5, share=0.08)
    return changed if changed is not scenario else _with(scenario, "strangers", ("forget",), share=0.08)


def _changing(scenario: Scenario) -> Scenario:
    """In a few worlds units come and go by command. From a stream of its own."""
    return _with(scenario, "units that change", ("unit", "unit", "move"), share=0.06)


def _live(scenario: Scenario) -> Scenario:
    """In some worlds what is delegated changes: by command, and with the inventory. From a stream of its own."""
    return _with(scenario, "live delegations", ("delegate", "delegate", "reclaim", "release", "resize"))


def _operated(scenario: Scenario) -> Scenario:
    """In some worlds units are drained, leases evicted, and moved to other units. From a stream of its own."""
    return _with(scenario, "operators", ("drain", "drain", "drain", "evict", "evict", "move"))


def _timed(scenario: Scenario) -> Scenario:
    """In some worlds machines sleep, and clocks leap ahead and are put right. From a stream of its own."""
    return _with(scenario, "time", ("sleep", "sleep", "leap"), most=4)


def _reloaded(scenario: Scenario) -> Scenario:
    """In some worlds files are changed and read anew: sites grow and shrink, brokers get more, or fewer, of what there
    is, and give back what they have. From a stream of its own.
    """
    return _with(scenario, "reloads", FILES)


def _worded(scenario: Scenario) -> Scenario:
    """In some worlds guests say what is long, odd or dear; and the hostile one, if there is one. From a stream of its
    own.
    """
    hostile = any(operation.do in MALICE for operation in scenario.operations)
    return _with(scenario, "words", ("odd", "odd", "wordy") if hostile else ("odd",))


def _with(scenario: Scenario, stream: str, kinds: Sequence[Do], most: int = 12, share: float = 0.2) -> Scenario:
    """In a ``share`` of all worlds with more operations, of these kinds."""
    rng = Random(f"leasekit {stream} {scenario.seed}")
    if rng.random() >= share:
        return scenario
    last = max(scenario.workload_end, 3 * SECOND)
    operations = [
        Operation(at=rng.randint(2 * SECOND, last), do=rng.choice(kinds), pick=rng.getrandbits(32))
        for _ in range(rng.randint(2, most))
    ]
    operations = [
        attrs.evolve(operation, who=rng.choice(scenario.guests)) if operation.do in ("odd", "ahead") else operation
        for operation in operations
    ]
    return attrs.evolve(
        scenario, operations=tuple(sorted((*scenario.operations, *operations), key=lambda operation: operation.at))
    )


def _renewed(scenario: Scenario) -> Scenario:
    """In some worlds delegations are short, and renewed. From a stream of its own: others are as they were."""
    rng = Random(f"leasekit renewal {scenario.seed}")
    if rng.random() >= 0.12:
        return scenario
    shares = []
    for share in scenario.shares:
        length = rng.choice((3 * MINUTE, 5 * MINUTE, 10 * MINUTE))
        renewed = attrs.evolve(
            share, length=length, renew=rng.choice((length // 2, length // 5)), renew_for=rng.choice((0, 0, HOUR))
        )
        shares.append(renewed if share.broker != ROGUE and rng.random() < 0.8 else share)
    return attrs.evolve(scenario, shares=tuple(shares))


def _networked(scenario: Scenario) -> Scenario:
    """Some worlds have links, and brokers that plan with them. From a stream of its own: others are as they were."""
    rng = Random(f"leasekit network {scenario.seed}")
    if len(scenario.sites) < 2 or rng.random() < 0.6:
        return scenario
    links = {f"l{number}": (site, "x") for number, site in enumerate(scenario.sites)}
    if rng.random() < 0.5:
        links["ld"] = (*rng.sample(list(scenario.sites), 2),)  # type: ignore[assignment]
    units = {type_: rng.randint(2, 6) for type_ in links}
    top = [name for name, above in scenario.brokers.items() if not above]
    shares = [
        Share(site=NETWORK, broker=broker, type=type_, units=part)
        for type_, count in units.items()
        for broker, part in (_split(rng, top, count) if rng.random() < 0.3 else [(rng.choice(top), count)])
    ]
    planning = {name: "coallocation" for name in scenario.brokers if rng.random() < 0.8}
    last = scenario.workload_end
    operations = [
        Operation(at=rng.randint(2 * SECOND, max(last, 3 * SECOND)), do="topology", pick=rng.getrandbits(32),
             who=rng.choice(scenario.guests))
        for _ in range(rng.randint(5, 30))
    ]  # fmt: skip
    return attrs.evolve(
        scenario,
        sites={**scenario.sites, NETWORK: units},
        shares=(*scenario.shares, *shares),
        mappers={**scenario.mappers, **planning, NETWORK: "first_fit"},
        operations=tuple(sorted((*scenario.operations, *operations), key=lambda operation: operation.at)),
        links=links,
    )


def _governed(scenario: Scenario) -> Scenario:
    """Sites and brokers have other policies, keys of slices change, leases are extended as they are, and a rogue broker
    gives what it never had. From a stream of its own: all else of a seed is as it was.
    """
    rng = Random(f"leasekit policies {scenario.seed}")
    honours, bans = (tuple(site for site in scenario.sites if rng.random() < 0.3) for _ in range(2))
    plain = [name for name in scenario.brokers if scenario.mappers[name] == "fcfs"]
    mappers = {name: rng.choice(STANDARD_MAPPERS) for name in plain if rng.random() < 0.25}
    kinds: list[Do] = ["slice_key", "extend_same"] if rng.random() < 0.3 else []
    if scenario.rogue:
        kinds.append("beyond")
    last = max(scenario.workload_end, 3 * SECOND)
    operations = [
        Operation(at=rng.randint(2 * SECOND, last), do=do, pick=rng.getrandbits(32), who=rng.choice(scenario.guests))
        for do in kinds
        for _ in range(rng.randint(2, 8))
    ]
    return attrs.evolve(
        scenario,
        honours=honours,
        bans=bans,
        mappers={**scenario.mappers, **mappers},
        operations=tuple(sorted((*scenario.operations, *operations), key=lambda operation: operation.at)),
    )


def _switching(seed: int, mappers: Mapping[str, str]) -> dict[str, str]:
    """Some sites switch their units on and off. Drawn by itself, so that all else of a seed is as it was without."""
    rng = Random(f"leasekit power {seed}")
    return {name: rng.choice(POWER_MAPPERS) if rng.random() < 0.25 else kind for name, kind in mappers.items()}


def _units(rng: Random) -> dict[str, int]:
    units = {"vm": rng.randint(2, 8)}
    if rng.random() < 0.25:
        units["gpu"] = rng.randint(1, 3)
    return units


def _brokers(rng: Random) -> dict[str, str]:
    """Each broker, and the one above it."""
    brokers: dict[str, str] = {}
    for n in range(rng.choice((1, 1, 1, 2, 2, 3))):
        brokers[f"broker-{n}"] = rng.choice(list(brokers)) if brokers and rng.random() < 0.5 else ""
    return brokers


def _shares(
    rng: Random, sites: Mapping[str, Mapping[str, int]], brokers: Mapping[str, str], *, rogue: bool
) -> tuple[Share, ...]:
    """Each site's units are split between the brokers at the top, and what they have between them and those below;
    now and then more is given out than there is.
    """
    shares: list[Share] = []
    length = rng.choice((20 * MINUTE, 40 * MINUTE)) if rng.random() < 0.04 else 3650 * 24 * HOUR
    top = [name for name, above in brokers.items() if not above]
    for site, types in sites.items():
        for type_, count in types.items():
            degree = rng.choice((1200, 1500, 2000)) if rng.random() < 0.12 else 1000
            left = count
            if rogue and type_ == "vm":
                left -= 1
                shares.append(Share(site=site, broker=ROGUE, type=type_, units=1))
            for broker, units in _split(rng, top, left):
                share = Share(site=site, broker=broker, type=type_, units=units, degree=degree, length=length)
                shares.append(share)
                shares += _shares_below(rng, share, brokers)
    return tuple(shares)


def _shares_below(rng: Random, share: Share, brokers: Mapping[str, str]) -> list[Share]:
    """What a broker gives of its share to those below it, and they in turn."""
    below = []
    left = share.units
    for name, above in brokers.items():
        if above == share.broker and left > 1:
            units = rng.randint(1, left - 1)
            left -= units
            given = attrs.evolve(share, broker=name, units=units, degree=1000, issuer=share.broker)
            below += [given, *_shares_below(rng, given, brokers)]
    return below


def _split(rng: Random, brokers: Sequence[str], count: int) -> list[tuple[str, int]]:
    holders = rng.sample(brokers, rng.randint(max(1, len(brokers) - 1), len(brokers)))[:count]
    parts = []
    for place, broker in enumerate(holders):
        later = len(holders) - place - 1
        units = rng.randint(1, count - later) if later else count
        count -= units
        parts.append((broker, units))
    return parts


def _timing(rng: Random) -> Timing:
    return Timing(
        leave_time=rng.choice((0, 0, 5 * SECOND)),
        retention=rng.choice((10 * MINUTE, MINUTE)),
        close_timeout=rng.choice((HOUR, MINUTE)),
        extend_lead=rng.choice((MINUTE, MINUTE, 10 * MINUTE)),
        gather=rng.choice((0, 0, 0, 2 * SECOND)),
        driver_timeout=rng.choice((30 * SECOND, 2 * MINUTE)),
        failures_max=rng.choice((3, 3, 1, 100)),
        keep_closed=rng.random() < 0.95,
        endorse=rng.random() < 0.2,
    )


def _clocks(rng: Random, everybody: Sequence[str]) -> dict[str, ClockDraw]:
    kind = rng.choice(("none", "none", "offset", "drift"))
    if kind == "none":
        return {}
    # A drift of 400 millionths is 0.7 s in half an hour: with half the skew to begin with, within it to the end.
    if kind == "drift":
        return {n: ClockDraw(offset=rng.randint(-500, 500), drift=rng.randint(-200, 200)) for n in everybody}
    return {name: ClockDraw(offset=rng.randint(-1000, 1000)) for name in everybody}


def _operations(
    rng: Random, guests: Sequence[str], *, hostile: bool, rogue: bool, signed: bool, channels: bool
) -> tuple[Operation, ...]:
    weights: dict[Do, float] = dict(WORK)
    strength = rng.choice((0.0, 0.4, 1.0, 2.0))
    for trouble, weight in TROUBLE.items():
        if rng.random() < 0.6:
            weights[trouble] = weight * strength
    if rng.random() < 0.15:
        weights["reclaim"] = 0.5
    if hostile:
        weights.update(dict.fromkeys((*MALICE, *(FORGERY if signed else ())), 1.5))
    if rogue:
        weights["overdelegate"] = 3.0
    if signed and channels:
        weights.update(dict.fromkeys(TAMPERING, 1.0))
    kinds, chances = list(weights), list(weights.values())
    gaps = GAPS[: rng.choice((4, 5, 5))]
    operations, at = [], 2 * SECOND
    for _ in range(rng.randint(*OPERATIONS)):
        at += rng.choice(gaps)
        (do,) = rng.choices(kinds, chances)
        who = rng.choice(guests) if do in WORK else ""
        span = rng.choice((500, 5 * SECOND, 30 * SECOND, 3 * MINUTE))
        operations.append(Operation(at=at, do=do, pick=rng.getrandbits(32), who=who, span=span))
    return tuple(operations)


# -- files -------------------------------------------------------------------------------------------------------------


class ScenarioError(LeasekitError):
    """A scenario file that can't be used; the text names the file, the key, what was found and what is allowed."""


def read_scenario(path: Path, seed: int | None = None) -> Scenario:
    """The scenario in a TOML or JSON file; what it leaves out is drawn from its seed, or from ``seed``.

    Raises ``ScenarioError``, ``OSError``.
    """
    text = path.read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise ScenarioError(f"{path}: not {kind}: {error}") from error
    if not isinstance(table, dict):
        raise ScenarioError(f"{path}: found {type(table).__name__}, expected a table of the scenario's parts")
    chosen = table.get("seed", 0) if seed is None else seed
    if type(chosen) is not int:
        raise ScenarioError(f"{path}: seed: found {chosen!r:.60}, expected a whole number")
    drawn = attrs.asdict(draw(chosen), value_serializer=_plain)
    if "sites" in table:
        drawn["links"] = {}  # they go with their network authority
    fixed = {key: _over(drawn[key], value) if key in RECORDS else value for key, value in table.items()}
    try:
        scenario = structure(Scenario, {**drawn, **fixed, "seed": chosen}, f"{path}: ")
    except SettingsError as error:
        raise ScenarioError(str(error)) from error
    _check(path, scenario)
    return scenario


def write_scenario(path: Path, scenario: Scenario) -> None:
    """Write all of a scenario to a JSON file. Raises ``OSError``."""
    table = attrs.asdict(scenario, value_serializer=_plain)
    path.write_text(_render(table) + "\n", encoding="utf-8")


def _render(table: Mapping[str, Any]) -> str:
    """JSON with one operation, one fault, one share a line."""
    lines = []
    for key, value in table.items():
        if isinstance(value, list) and value:
            items = ",\n".join("    " + json.dumps(item) for item in value)
            lines.append(f'  "{key}": [\n{items}\n  ]')
        else:
            lines.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}"


def _plain(_: Any, __: Any, value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _over(drawn: Any, fixed: Any) -> Any:
    """What is fixed of a record, over what was drawn of it."""
    return {**drawn, **fixed} if isinstance(fixed, dict) else fixed


def _check(path: Path, scenario: Scenario) -> None:
    """What types can't say: that names name somebody, and that times are in order."""
    known = {*scenario.actors, ROGUE}
    named = [("mappers", name) for name in scenario.mappers]
    named += [("clocks", name) for name in scenario.clocks] + [("stores", name) for name in scenario.stores]
    for number, share in enumerate(scenario.shares):
        named += [(f"shares[{number}]", name) for name in (share.site, share.broker, share.issuer or share.site)]
    named += [
        (f"operations[{n}].who", operation.who) for n, operation in enumerate(scenario.operations) if operation.who
    ]
    for key, name in named:
        if name not in known:
            raise ScenarioError(f"{path}: {key}: found {name!r}, expected one of: {', '.join(scenario.actors)}")
    for earlier, later in zip(scenario.operations, scenario.operations[1:], strict=False):
        if later.at < earlier.at:
            raise ScenarioError(
                f"{path}: operations: found {later.at} after {earlier.at}, expected them in order of time"
            )
    allowed = {
        "guest": GUEST_MAPPERS,
        "broker": (*BROKER_MAPPERS, *STANDARD_MAPPERS, "coallocation", "spot"),
        "authority": (*SITE_MAPPERS, *POWER_MAPPERS, "yield", "victims"),
    }
    for name in scenario.actors:
        kinds = allowed[scenario.role(name)]
        if scenario.mappers.get(name, kinds[0]) not in kinds:
            found = scenario.mappers[name]
            raise ScenarioError(
                f"{path}: mappers.{name}: found {found!r}, expected one of: {', '.join(sorted(set(kinds)))}"
            )
    for name, store in scenario.stores.items():
        if store not in ("memory", "sqlite"):
            raise ScenarioError(f"{path}: stores.{name}: found {store!r}, expected one of: memory, sqlite")
    servers = (*scenario.brokers, *scenario.sites)
    for name in scenario.liars:
        if name not in servers:
            raise ScenarioError(f"{path}: liars: found {name!r}, expected one of: {', '.join(servers)}")


KINDS: Final = get_args(Do)
