"""An actor goes on from a copy of its store that was made at any step, while its peers know what came after it."""

from __future__ import annotations

from copy import deepcopy

import pytest
from actor_bench import Bench

from leasekit.actors.served import comes_early
from leasekit.core.protocol.messages import LIFE, UNKNOWN
from leasekit.core.schema import COPIED, Change, Store
from leasekit.core.time import MINUTE, SECOND
from leasekit.emulation.world import Node

OVER = ("closed", "failed")


class CopyingBench(Bench):
    """Keeps a copy of the store of ``victim`` as of each of its commits."""

    def __init__(self, victim: str) -> None:
        super().__init__()
        self._victim = victim
        self.copies: list[Store] = []

    def _crashes(self, node: Node, when: str) -> bool:
        if node.actor.name == self._victim and when == "before send":
            self.copies.append(deepcopy(node.store))
        return False

    def put_back(self, copy: Store) -> None:
        """The victim crashes, and goes on from a copy."""
        copy.commit([Change("meta", COPIED, (COPIED, self.now))])
        self.nodes[self._victim].store = copy
        self.crash(self._victim)


def lived(victim: str) -> CopyingBench:
    """A lease was made, extended, modified, and modified again."""
    bench = CopyingBench(victim)
    bench.start()
    assert not bench.command("guest", "lease.request", type="vm", units=2, term=[2000, 3 * MINUTE], name="web").error
    bench.run_until(20 * SECOND)
    assert not bench.command("guest", "lease.extend", lease="web", end=4 * MINUTE, units=2).error
    bench.run_until(30 * SECOND)
    for size in ("small", "large"):
        assert not bench.command("guest", "lease.modify", lease="web", configuration={"size": size}).error
        bench.run_until(bench.now + 10 * SECOND)
    return bench


@pytest.mark.parametrize("victim", ["guest", "broker", "site"])
def test_a_lease_that_its_guest_knows_is_closed_at_once(victim: str) -> None:
    """Whichever step the copy is of in which the guest has it, also where the next number was asked under before."""
    closed = 0
    for step in range(len(lived(victim).copies)):
        bench = lived(victim)
        bench.put_back(bench.copies[step])
        bench.run_until(bench.now + 10 * SECOND)
        (lease,) = bench.query("guest", "leases", all=True)
        if lease["state"] == "nascent":
            continue  # its site is not known, and ends it in time
        assert not bench.command("guest", "lease.close", lease=lease["id"]).error
        closed += 1
        bench.run_until(bench.now + 10 * SECOND)
        (lease,) = bench.query("guest", "leases", all=True)
        assert lease["state"] in OVER, (step, lease)
        there = [lease["state"] for lease in bench.query("site", "leases", all=True)]
        assert set(there) <= set(OVER), (step, there)
    assert closed > 4


@pytest.mark.parametrize("victim", ["guest", "broker", "site"])
def test_all_ends_well_and_no_number_is_given_twice(victim: str) -> None:
    """Whichever step the copy is of: once terms are over nothing is held, and what is asked then is had."""
    steps = len(lived(victim).copies)
    assert steps > 4
    for step in range(steps):
        bench = lived(victim)
        known = {lease for name in ("guest", "broker", "site") for lease in bench.actor(name).leases}
        counted = dict(bench.actor(victim).kernel.counters)
        bench.put_back(bench.copies[step])
        bench.run_until(bench.now + 10 * SECOND)
        restored = bench.actor(victim).kernel.counters
        assert all(restored[key] >= value for key, value in counted.items()), step
        bench.run_until(6 * MINUTE)
        assert [unit["state"] for unit in bench.query("site", "units")] == ["free"] * 4, step
        assert {lease["state"] for lease in bench.query("guest", "leases", all=True)} <= set(OVER), step
        term = [bench.now, bench.now + MINUTE]
        made = bench.command("guest", "lease.request", type="vm", units=4, term=term, name="next")
        assert made.result["id"] not in known, step
        bench.run_until(bench.now + 20 * SECOND)
        lease = bench.query("guest", "lease", lease="next")
        assert (lease["state"], lease["join"]) == ("active", "joined"), step
        assert not bench.command("guest", "lease.close", lease="next").error
        bench.run_until(bench.now + 10 * SECOND)
        assert bench.query("broker", "sources")[0]["free_now"] == 4, step


def test_which_update_is_the_next() -> None:
    """That which follows the last; the first of a server that goes on from a copy; any, to a client that does."""
    assert [comes_early(update, 3) for update in (3, 4, 5)] == [False, False, True]
    assert [comes_early(7 * LIFE + number, 3) for number in (1, 2)] == [False, True]
    assert not comes_early(5, UNKNOWN)
