"""Each actor is restarted at each step of a life cycle, at each place where a crash makes a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from actor_bench import Bench, Fault

from leasekit.core.protocol.messages import ErrorReply
from leasekit.core.reasons import Reason
from leasekit.core.steps import Action, Received
from leasekit.core.time import MINUTE, SECOND, Instant
from leasekit.emulation.world import Node
from leasekit_simulation.faults.checkers import Listening, MemoryChecker, StateChecker
from leasekit_simulation.faults.claim_book import ClaimChecker
from leasekit_simulation.faults.unit_book import UnitChecker

ROLES = {"guest": "guest", "broker": "broker", "site": "authority"}
PLACES = ("before commit", "before send", "before action")


class Actions(Listening):
    """Counts what drivers were told, by actor and number."""

    def __init__(self) -> None:
        super().__init__()
        self.told: Counter[tuple[str, int, str, str]] = Counter()

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """One more."""
        self.told[actor, action.number, action.op, action.unit] += 1


class CrashingBench(Bench):
    """Crashes ``victim`` at the ``count``-th time that it comes by ``place``."""

    def __init__(self, victim: str = "", place: str = "", count: int = 0) -> None:
        super().__init__()
        self._victim, self._place, self._left = victim, place, count
        self.passed: Counter[tuple[str, str]] = Counter()
        self.memory, self.drivers = MemoryChecker(), Actions()
        units = UnitChecker(("site",), lambda site: self.now)
        self.listeners += [units, ClaimChecker(), StateChecker(ROLES.__getitem__), self.memory, self.drivers]

    def _crashes(self, node: Node, when: str) -> bool:
        name = node.actor.name
        self.passed[name, when] += 1
        if (name, when) != (self._victim, self._place) or self.passed[name, when] != self._left:
            return False
        self.crash(name)
        if name == "site":
            self.memory.check(name, self.actor(name).leases)
        return True


def live(bench: Bench) -> None:
    """A lease is made, extended with growth, modified, shrunk and closed; all must be as it was before, at the end."""
    bench.start()
    made = bench.command("guest", "lease.request", type="vm", units=2, term=[2000, 2 * MINUTE], name="web")
    assert not made.error
    bench.run_until(20 * SECOND)
    lease = bench.query("guest", "lease", lease="web")
    assert (lease["state"], lease["join"], len(lease["units"])) == ("active", "joined", 2)
    assert not bench.command("guest", "lease.extend", lease="web", end=4 * MINUTE, units=4).error
    bench.run_until(2 * MINUTE + 20 * SECOND)
    lease = bench.query("guest", "lease", lease="web")
    assert (lease["state"], lease["join"], len(lease["units"]), lease["end"]) == ("active", "joined", 4, 4 * MINUTE)
    change = {"units": 1, "victims": ["vm-0", "vm-1", "vm-2"], "configuration": {"size": "small"}}
    assert not bench.command("guest", "lease.modify", lease="web", **change).error
    bench.run_until(2 * MINUTE + 50 * SECOND)
    lease = bench.query("guest", "lease", lease="web")
    assert (lease["state"], lease["join"], len(lease["units"])) == ("active", "joined", 1)
    assert not bench.command("guest", "lease.close", lease="web").error
    bench.run_until(3 * MINUTE + 50 * SECOND)
    row = bench.nodes["guest"].store.get("leases", lease["id"])
    assert row is not None and row[5] == "closed"
    assert bench.query("broker", "sources")[0]["free_now"] == 4
    assert [unit["state"] for unit in bench.query("site", "units")] == ["free"] * 4
    assert bench.query("guest", "returns") == []


def close_in_setup(bench: Bench) -> None:
    """A lease is closed long before its units are up; all must be as if it had never been."""
    bench.start()
    bench.latencies["site", "setup"] = 10 * MINUTE
    made = bench.command("guest", "lease.request", type="vm", units=2, term=[2000, 5 * MINUTE], name="web")
    bench.run_until(20 * SECOND)
    assert bench.query("guest", "lease", lease="web")["pending"] == "redeeming"
    assert not bench.command("guest", "lease.close", lease="web").error
    bench.run_until(MINUTE)
    row = bench.nodes["guest"].store.get("leases", made.result["id"])
    assert row is not None and row[5] == "closed"
    assert bench.query("broker", "sources")[0]["free_now"] == 4
    assert [unit["state"] for unit in bench.query("site", "units")] == ["free"] * 4
    assert bench.query("guest", "returns") == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("victim", ROLES)
@pytest.mark.parametrize("life", [live, close_in_setup])
def test_restart_at_each_step(life: Callable[[Bench], None], victim: str, place: str) -> None:
    """A crash at any step changes nothing of what comes of a lease. Drivers are told nothing new: what is done again
    has the number that it had.
    """
    calm = CrashingBench()
    life(calm)
    steps = calm.passed[victim, place]
    assert steps > 3
    for count in range(1, steps + 1):
        bench = CrashingBench(victim, place, count)
        life(bench)
        assert bench.passed[victim, place] >= count
        told, expected = sorted(key[2:] for key in bench.drivers.told), sorted(key[2:] for key in calm.drivers.told)
        assert told == expected, f"crash {count} of {victim} {place}"


def test_two_restarts_of_a_site_keep_its_units() -> None:
    """A unit that a site has given out is not free after two restarts, between which nothing happened to it."""
    bench = Bench().start()
    bench.command("guest", "lease.request", type="vm", units=2, term=[2000, 10 * MINUTE], name="web")
    bench.run_until(20 * SECOND)
    for _ in range(2):
        bench.crash("site")
        bench.run_until(bench.now + 20 * SECOND)
        bench.command("site", "unit.disable", unit="vm-3")
        bench.command("site", "unit.enable", unit="vm-3")
    assert [unit["state"] for unit in bench.query("site", "units")] == ["active", "active", "free", "free"]


def test_the_ticket_of_a_lease_whose_close_its_site_refuses_goes_back() -> None:
    """Whatever a site has against a close: what is left of the ticket is offered back, and the broker has it again."""
    bench = Bench().start()
    bench.latencies["site", "setup"] = 10 * MINUTE
    made = bench.command("guest", "lease.request", type="vm", units=1, term=[2000, 10 * MINUTE], name="web")
    bench.run_until(3 * SECOND)
    bench.faults.append(Fault("lose", "guest", "site", "CloseLease", 1))
    bench.command("guest", "lease.close", lease="web")
    bench.feed(
        "guest", [Received("site", ErrorReply(made.result["id"], 3, Reason("busy", detail="come back tomorrow")))]
    )
    lease = bench.query("guest", "lease", lease="web")
    assert (lease["state"], lease["reason"]) == ("closed", "site: come back tomorrow")
    bench.run_until(10 * SECOND)
    assert [unit["state"] for unit in bench.query("site", "units")] == ["free"] * 4
    assert bench.query("broker", "sources")[0]["free_now"] == 4
