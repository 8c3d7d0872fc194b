"""The co-allocation experiment with the actors, in the lean set-up (:mod:`leasekit.emulation.lean`).

Each site of the testbed is a site authority, a network authority has its links, the two users are guests whose mapper
asks for the requests of :func:`.experiment.draw_requests` at their instants, and the broker's mapper is
``coallocation`` with the scenario's options. A request that is granted is planned, held and committed by messages. What
its leases are redeemed for is on the second day, to which a run goes on where that is asked for.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from leasekit.config.build import build
from leasekit.config.load import resolve_document
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.plans import COMMITTED
from leasekit.core.mappers import PlanCycle
from leasekit.core.schema import LOG, Change
from leasekit.core.steps import Action
from leasekit.core.time import DAY, HOUR, SECOND, Instant, Term
from leasekit.emulation.coallocation.experiment import (
    INTERVALS,
    USERS,
    Arrival,
    CoallocationSetup,
    CoallocationTally,
    Testbed,
    draw_requests,
)
from leasekit.emulation.lean import LeanWorld
from leasekit.emulation.outputs import make_folder, read_made, write_json
from leasekit.emulation.spread import Progress, spread_over
from leasekit.emulation.world import Outcome, World

TYPE: Final = "cpu"
NETWORK: Final = "network"
BROKER: Final = "coordinator"

EFFORT: Final = 200_000
"""So much that no request meets it: nobody waits in virtual time while one is planned."""

SETUP: Final = SECOND
"""How long a unit is set up or torn down."""


class _Timed:
    """The broker's mapper, and how long planning took: milliseconds of processor time, by tenths of the day."""

    def __init__(self, mapper: Any) -> None:
        self._mapper = mapper
        self.took: list[list[float]] = [[] for _ in range(INTERVALS)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mapper, name)

    def plan(self, cycle: PlanCycle) -> Sequence[Any]:
        """As the mapper does."""
        begin = time.process_time()
        plans = list(self._mapper.plan(cycle))
        self.took[min(cycle.now * INTERVALS // DAY, INTERVALS - 1)].append(1000 * (time.process_time() - begin))
        return plans


def run_once(
    testbed: Testbed, scenario: str, seed: int, setup: CoallocationSetup, *, redeem: bool = False
) -> CoallocationTally:
    """One scenario with one seed; with ``redeem`` the second day too. Raises ``ConfigErrors`` for a testbed that can't
    be deployed.
    """
    arrivals = draw_requests(testbed, seed, setup.load)
    made, active = set[str](), set[str]()

    def observe(now: Instant, actor: str, changes: Sequence[Change]) -> None:
        for change in changes if actor in USERS else ():
            if change.table == LOG and change.row is not None:
                _, lease, event, _, after, _ = change.row
                if event == "ask":
                    made.add(lease)
                if after == f"{sm.ACTIVE}/-":
                    active.add(lease)

    world = LeanWorld(observe=observe)
    mapper = _populate(world, testbed, scenario, setup, arrivals)
    asked: dict[str, list[int]] = {user: [] for user in USERS}
    granted: dict[str, list[int]] = {user: [] for user in USERS}
    utilisation = defaultdict[str, list[float]](list)
    known: dict[str, dict[str, bool]] = {user: {} for user in USERS}
    for k in range(INTERVALS):
        world.run_until(DAY * (k + 1) // INTERVALS - 1)
        for user in USERS:
            fresh = _outcomes(world, user, known[user])
            asked[user].append(len(fresh))
            granted[user].append(sum(fresh.values()))
            known[user].update(fresh)
        for site, share in _utilisation(world, testbed).items():
            utilisation[site].append(share)
    if redeem:
        world.run_until(2 * DAY + HOUR)
    leases = {"made": len(made), "active": len(active), "messages": world.messages, "events": world.events}
    return CoallocationTally(scenario, seed, asked, granted, dict(utilisation), mapper.took, leases)


def _outcomes(world: World, user: str, known: Mapping[str, bool]) -> dict[str, bool]:
    """Requests of a user that were not known yet, and whether they were granted."""
    topologies = world.nodes[user].actor.topologies.by_id  # type: ignore[attr-defined]
    return {id_: one.state == COMMITTED for id_, one in topologies.items() if id_ not in known}


def _utilisation(world: World, testbed: Testbed) -> dict[str, float]:
    """The share of each site's CPU time on the second day that the broker has given out."""
    book = world.nodes[BROKER].actor.book  # type: ignore[attr-defined]
    day = Term(DAY, 2 * DAY)
    return {
        vertex.id: book.table_of(f"{vertex.id}/{TYPE}@{BROKER}").utilisation(day)
        for vertex in testbed.resources.vertices
        if vertex.kind == "site"
    }


class _OneDay(NamedTuple):
    """One run, and the file that has its outcome once it is finished."""

    testbed: Testbed
    scenario: str
    seed: int
    setup: CoallocationSetup
    redeem: bool
    file: Path | None


def _job(job: _OneDay) -> CoallocationTally:
    """The outcome of a run: the one that was kept, if it was of the same testbed and setup, else of a run now."""
    made_of = sha256(repr((version("leasekit"), CoallocationTally._fields, *job[:-1])).encode()).hexdigest()
    if (content := read_made(job.file, made_of)) is not None:
        return CoallocationTally(**content["tally"])
    tally = run_once(job.testbed, job.scenario, job.seed, job.setup, redeem=job.redeem)
    if job.file is not None:
        write_json(job.file, {"made_of": made_of, "tally": tally._asdict()})
    return tally


def run_all(
    testbed: Testbed,
    scenarios: Sequence[str],
    seeds: Sequence[int],
    setup: CoallocationSetup,
    *,
    redeem: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
    out: Path | None = None,
) -> tuple[list[CoallocationTally], dict[str, dict[str, int]]]:
    """Every scenario with every seed, on so many processes; and the sums over seeds of what became of the leases. With
    a folder ``out`` each finished run is kept in its folder ``runs``, and not run again. Ended by Ctrl-C it has the
    seeds that were done, if there are any.
    """
    runs = None if out is None else out / "runs"
    if runs is not None:
        make_folder(runs)
    work = [
        _OneDay(testbed, scenario, seed, setup, redeem, runs and runs / f"{scenario}-{seed}.json")
        for seed in seeds
        for scenario in scenarios
    ]
    done: list[CoallocationTally] = []
    try:
        for tally in spread_over(_job, work, jobs, "co-allocation", progress):
            done.append(tally)
    except KeyboardInterrupt:
        times = Counter(tally.seed for tally in done)
        done = [tally for tally in done if times[tally.seed] == len(scenarios)]
        if not done:
            raise
    sums: dict[str, Counter[str]] = {scenario: Counter() for scenario in scenarios}
    for tally in done:
        sums[tally.scenario].update(tally.leases)
    done.sort(key=lambda one: (scenarios.index(one.scenario), one.seed))
    return done, {scenario: dict(counts) for scenario, counts in sums.items()}


# -- who is there ----------------------------------------------------------------------------------------------------


def _populate(
    world: LeanWorld, testbed: Testbed, scenario: str, setup: CoallocationSetup, arrivals: list[Arrival]
) -> _Timed:
    """Everybody there is, and the broker's mapper."""
    made: list[_Timed] = []

    def timed(mapper: Any) -> Any:
        made.append(_Timed(mapper))
        return made[-1]

    deployment = resolve_document(Path("testbed.toml"), None, _document(testbed, scenario, setup, arrivals), {})
    for name in deployment.actors:
        guard = timed if name == BROKER else None
        world.put(build(deployment, name, virtual=True, guard=guard).actor, _model)
    return made[0]


def _model(action: Action) -> Outcome:
    return Outcome(SETUP, True, {}, "")


def _asked(arrival: Arrival, testbed: Testbed, setup: CoallocationSetup) -> dict[str, Any]:
    """An arrival as the guest's mapper has it."""
    sites = [{"id": f"r{j}", "type": TYPE, "units": arrival.cpus} for j in range(arrival.kind.sites)]
    links = [
        {"id": f"k{number}", "from": f"r{a}", "to": f"r{b}", "bw": testbed.bandwidth}
        for number, (a, b) in enumerate(arrival.kind.links)
    ]
    frames = {"count": setup.frames, "mode": setup.starts, "unit": SECOND}
    request = {
        "sites": sites,
        "links": links,
        "est": arrival.earliest,
        "lst": arrival.latest,
        "duration": arrival.duration,
        "options": {"pmax": setup.pmax or 0, "sort": setup.sort, "frames": frames},
    }
    return {"at": arrival.at, "request": request}


def _document(testbed: Testbed, scenario: str, setup: CoallocationSetup, arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """The tables that a deploy file of the testbed would have."""
    sites = {
        vertex.id: {TYPE: (vertex.cpus or 1, {
            "site.value": f"{vertex.vc:g}", "site.transit": "yes" if vertex.transit else "no",
        })}
        for vertex in testbed.resources.vertices if vertex.kind == "site"
    }  # fmt: skip
    links = {
        link.name: (int(link.bw), {
            "link.a": link.a, "link.b": link.b, "link.value": f"{link.vb:g}", "link.latency_ms": f"{link.latency:g}",
        })
        for link in testbed.resources.links
    }  # fmt: skip
    mapper: dict[str, Any] = {"name": "coallocation", "solver": setup.solver, "effort": EFFORT}
    mapper |= {"load_balancing": True} if scenario == "load_balancing" else {}
    for key, by_scenario in (("preference", testbed.preferences), ("classes", testbed.fractions)):
        mapper |= {key: by_scenario[scenario]} if scenario in by_scenario else {}
    kept = {"retention": "3d"}
    actors = {name: _authority(types) for name, types in {**sites, NETWORK: links}.items()}
    actors[BROKER] = {"role": "broker", "settings": {**kept, "holds_max": 1000}, "mapper": mapper}
    for user in USERS:
        requests = [_asked(one, testbed, setup) for one in arrivals if one.user == user]
        asking = {"name": "coallocating", "tries": 1, "requests": requests}
        actors[user] = {"role": "guest", "settings": {**kept, "default_broker": BROKER}, "mapper": asking}
    return {"deployment": {"signatures": False}, "emulation": {"horizon": "3d"}, "actor": actors}


def _authority(types: Mapping[str, tuple[int, Mapping[str, str]]]) -> dict[str, Any]:
    return {
        "role": "authority",
        "inventory": [{"type": name, "units": units, "properties": said} for name, (units, said) in types.items()],
        "delegation": [{"broker": BROKER, "type": name, "length": "4d"} for name in types],
    }
