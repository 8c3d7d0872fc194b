"""Topologies over what several brokers hold: quotes, holds at each of them, and one commitment of the guest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from topology_worlds import HEAD, TopologyWorld, ask, broker, guest, held, network, pair, show, site, where, world

from leasekit.config.errors import ConfigErrors
from leasekit.core.protocol.messages import HoldParts, PartsHeld, Quote, Quoted, Redeem, ReleaseParts, TicketUpdate
from leasekit.core.time import HOUR, MINUTE, SECOND

MAY = '[actor.{0}.permissions.b]\nmay = ["delegate", "endorse", "request"]\n'
TWO = (
    HEAD
    + site("N0", 8, "b")
    + site("N1", 8, "c")
    + network("net", "b", n0x=("N0", "X", 10))
    + network("far", "c", n1x=("N1", "X", 10))
    + broker(settings='planners = ["c"]')
    + broker("c", may=MAY.format("c"))
    + guest()
)
"""Two domains, each with its broker, joined at an exchange point; the guest asks ``b``, which asks ``c``."""


def planned(made: TopologyWorld, request: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A topology five seconds after it was asked for."""
    topology = ask(made, request, **more)
    made.pass_time(5 * SECOND)
    return show(made, topology)


def test_a_plan_over_two_brokers_is_leased_whole(tmp_path: Path) -> None:
    """The plan takes a site and a link from each; each part's ticket comes from its own broker; all are redeemed."""
    made = world(TWO, tmp_path)
    shown = planned(made, pair())
    assert shown["state"] == "committed", shown["reason"]
    assert where(shown) == {"r0": "N0", "r1": "N1", "l.0.0": "n0x", "l.0.1": "n1x"}
    assert [part["broker"] for part in shown["parts"]] == ["b", "c", "b", "c"]
    made.run_until(HOUR + 10 * SECOND)
    assert {part["state"] for part in show(made, shown["topology"])["parts"]} == {"active"}
    assert not held(made) and not held(made, "c")


def test_dry_run_holds_nothing_anywhere(tmp_path: Path) -> None:
    """A dry run asks for quotes, and for nothing to be held."""
    made = world(TWO, tmp_path)
    number = made.begin_command("g", "topology.plan", request=pair())
    made.pass_time(3 * SECOND)
    assert made.replies.pop(number).result["status"] == "planned"
    assert made.letters(Quoted) and not made.letters(HoldParts)


def test_who_does_not_answer_is_left_out(tmp_path: Path) -> None:
    """A broker that says nothing is not waited for beyond the limit; what it has is not planned with."""
    made = world(TWO, tmp_path)
    made.lost.add(("c", "b", "Quoted"))
    shown = planned(made, pair())
    assert shown["state"] == "failed" and "there are 1" in shown["reason"]


def test_a_broker_needs_permission_to_ask(tmp_path: Path) -> None:
    """Who may not ask for tickets gets no quotes either."""
    made = world(TWO.replace(MAY.format("c"), ""), tmp_path)
    assert planned(made, pair())["state"] == "failed"
    assert made.letters(Quote) and not made.letters(Quoted)


def test_what_is_disclosed_is_what_is_planned_with(tmp_path: Path) -> None:
    """A broker that shows half is asked for no more than that, though it has more."""
    made = world(TWO.replace('[actor.c]\nrole = "broker"\nsettings = {  }', '[actor.c]\nrole = "broker"\n'
                             "settings = { disclose = 500 }"), tmp_path)  # fmt: skip
    assert planned(made, pair(units=5, bw=1))["state"] == "failed"
    assert planned(made, pair(units=4, bw=5))["state"] == "committed"
    offers = {offer.type: offer.units for letter in made.letters(Quoted) for offer in letter.offers}
    assert offers == {"vm": 4, "n1x": 5}


def test_quotes_show_when_things_are_free(tmp_path: Path) -> None:
    """The start is found where the other broker's lease ends."""
    made = world(TWO, tmp_path)
    made.request("g", 8, HOUR, HOUR + 11 * MINUTE, broker="c", site="N1")
    made.pass_time(SECOND)
    assert planned(made, pair(est=HOUR, lst=4 * HOUR))["term"][0] == HOUR + 11 * MINUTE


def test_a_refused_hold_frees_the_rest_and_the_next_plan_is_tried(tmp_path: Path) -> None:
    """What the other broker can't hold any more is released here, and the next start is planned."""
    made = world(TWO, tmp_path)
    taken: list[str] = []

    def steal(sender: str, receiver: str, message: Any) -> Any:
        if isinstance(message, Quoted) and not taken:
            taken.append(made.request("g", 8, HOUR, HOUR + 30 * MINUTE, broker="c", site="N1"))
        return message

    made.alter = steal
    shown = planned(made, pair(est=HOUR, lst=2 * HOUR, options={"frames": {"count": 2, "mode": "equidistant"}}))
    assert shown["state"] == "committed" and shown["term"][0] == 2 * HOUR, shown["reason"]
    assert [bool(one.reason) for one in made.letters(PartsHeld)] == [True, False]
    assert not held(made) and not held(made, "c")


@pytest.mark.parametrize("crashed", ["b", "c", "g"])
@pytest.mark.parametrize("at", [10, 30, 50, 70, 90, 110, 130, 150, 170, 190, 250, 1100, 2100])
def test_a_crash_leaves_nothing_held(tmp_path: Path, crashed: str, at: int) -> None:
    """Whoever crashes, at whatever moment: all is leased, or nothing is held beyond its expiry and none is redeemed."""
    made = world(TWO, tmp_path)
    topology = ask(made, pair())
    made.pass_time(at)
    made.restart(crashed)
    made.pass_time(3 * MINUTE)
    assert not held(made) and not held(made, "c")
    shown = show(made, topology)
    made.run_until(HOUR + 10 * SECOND)
    if shown["state"] == "committed":
        assert {part["state"] for part in show(made, topology)["parts"]} == {"active"}
    else:
        assert shown["state"] == "failed" and not made.letters(Redeem)
        tables = [made.broker(name).book.table_of(f"{where_}/vm@{name}") for where_, name in (("N0", "b"), ("N1", "c"))]
        assert [table.free_at(HOUR) for table in tables] == [8, 8]


def test_a_broker_that_is_cut_off_brings_all_back(tmp_path: Path) -> None:
    """A ticket that never comes makes the guest give the others back, before any is redeemed."""
    made = world(TWO, tmp_path)
    made.lose = lambda sender, receiver, message: sender == "c" and isinstance(message, TicketUpdate)
    shown = planned(made, pair(), tries=1)
    assert shown["state"] == "committing"
    made.pass_time(3 * MINUTE)
    shown = show(made, shown["topology"])
    assert shown["state"] == "failed" and "in time" in shown["reason"]
    assert made.letters(ReleaseParts) and not made.letters(Redeem)
    made.lose = lambda sender, receiver, message: False
    made.run_until(HOUR)
    free = [made.broker(name).book.table_of(f"{at}/vm@{name}").free_at(HOUR) for at, name in (("N0", "b"), ("N1", "c"))]
    assert free == [8, 8]


def test_nobody_holds_under_another_brokers_name(tmp_path: Path) -> None:
    """Plans are named after whoever made them: no broker can take, or release, what another one holds."""
    made = world(TWO, tmp_path)
    made.lost.add(("g", "c", "RequestTicket"))
    shown = planned(made, pair())
    (hold,) = held(made, "c")
    made.receive("c", "g", ReleaseParts(hold["plan"], 1))
    assert held(made, "c") == [hold]
    letter = made.letters(HoldParts)[0]
    made.receive("c", "b", replace(letter, plan="somebody-plan-1"), replace(letter, plan=f"{shown['plan']}9", parts=()))
    assert held(made, "c") == [hold]
    made.receive("c", "b", letter)
    assert held(made, "c") == [hold]


def test_planners_are_brokers_of_the_file(tmp_path: Path) -> None:
    """A name that no broker has is found when the file is read."""
    with pytest.raises(ConfigErrors, match=r"actor\.b\.settings\.planners: found 'x'"):
        world(TWO.replace('planners = ["c"]', 'planners = ["x"]'), tmp_path)
