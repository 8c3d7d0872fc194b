"""Explorations as a whole: what they find, how they tell of it, and the page that is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from leasekit_simulation.explore import FLOWS, Report, explore, never_reached, page
from leasekit_simulation.explore.__main__ import main
from leasekit_simulation.explore.legal import GROUPS, LASTING, LEGAL
from leasekit_simulation.explore.report import Found
from leasekit_simulation.explore.search import Failure, search


@pytest.fixture(scope="module")
def calm() -> Report:
    """The plain flow without faults."""
    return explore("plain", 0, audit=5)


@pytest.fixture(scope="module")
def one_fault() -> Report:
    """The plain flow with one fault."""
    return explore("plain", 1)


def test_plain_flow_without_faults(calm: Report) -> None:
    """Without faults the plain lease goes one way, from its request to its end, through few states."""
    assert calm.fine, calm.text()
    assert len(calm.joint_states) == 1
    assert ("nascent, ticketing", "-", "-") in calm.levels
    assert calm.levels["closed", "closed", "closed"].path[-1] == "deliver ReturnTicket from guest to broker"
    assert all(found.faults == 0 for found in calm.levels.values())
    assert "nothing wrong" in calm.text()


def test_same_exploration_twice_is_the_same(one_fault: Report) -> None:
    """An exploration has no chance in it: twice the same, to the last path."""
    assert explore("plain", 1) == one_fault


def test_more_faults_find_more(calm: Report, one_fault: Report) -> None:
    """Each fault more adds joint states, and takes none away; every kind of fault was met."""
    assert one_fault.joint_states[0] == calm.joint_states[0]
    assert one_fault.joint_states[1] > one_fault.joint_states[0]
    assert calm.levels.keys() < one_fault.levels.keys()
    met = {"lose", "repeat", "hold up", "reconnect", "commit", "send", "crash", "close", "refuse", "wait", "disable",
           "fail", "slow", "outage"}  # fmt: skip
    assert met <= one_fault.moves.keys()


def test_messages_one_by_one_lead_to_the_same_states(one_fault: Report) -> None:
    """Whether messages of one step travel together or not, a lease gets to the same states."""
    assert explore("plain", 1, together=False).levels.keys() == one_fault.levels.keys()


def test_paths_are_shortest() -> None:
    """Nothing is reached with fewer faults than said, and each joint state's way has as many faults as it counts."""
    graph = search(FLOWS["plain"], 1)
    for number in range(1, len(graph.parent)):
        assert graph.faults[graph.parent[number]] <= graph.faults[number] <= graph.faults[graph.parent[number]] + 1


def test_state_that_is_not_declared_is_told_with_its_path(calm: Report) -> None:
    """A report names an undeclared state and each step of the way, and failures likewise, and is not fine."""
    odd = attrs.evolve(
        calm,
        levels={**calm.levels, ("closed", "ticketed", "active"): Found(1, ("crash site", "time"))},
        failures=(Failure("a unit is in two leases", ("time",)),),
    )
    assert not odd.fine
    assert "not declared legal: closed | ticketed | active" in odd.text()
    assert "    2. time" in odd.text()
    assert "WRONG: a unit is in two leases" in odd.text()
    assert "2 wrong" in odd.text()
    text = page([odd])
    assert "## Reached, but not declared legal" in text
    assert "- plain: a unit is in two leases: time" in text


def test_page_lists_declared_states_and_what_follows(calm: Report) -> None:
    """Each group has its table; a state that was not reached says so; transitions name their causes."""
    text = page([calm])
    assert all(f"### {group}" in text for group in GROUPS)
    assert "| 1 | nascent, ticketing | - | - | 0 | the request is on its way, or lost and due again | 3 |" in text
    assert "| never |" in text
    assert "- 1 to 3: RequestTicket arrives at broker" in text
    assert f"Declared, but never reached: {len(never_reached([calm]))}." in text


def test_lasting_states_are_declared() -> None:
    """A lease may only stay in a state that is legal; ends are among those, what is under way is not."""
    assert LEGAL.keys() >= LASTING
    assert {guest for guest, _, _ in LASTING if guest in ("closed", "failed")} == {"closed", "failed"}
    assert not any("closing" in level[0] or "priming" in level[2] for level in LASTING)


def test_command_writes_the_page_and_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program writes the page, prints a report for each flow, and its exit status says whether all is well."""
    target = tmp_path / "states.md"
    done = CliRunner().invoke(main, ["plain", "--faults", "0", "--write", str(target)])
    assert done.exit_code == 0, done.output
    assert "plain: one lease of one unit" in done.output
    assert target.read_text(encoding="utf-8").startswith("# Joint states of a lease")

    def nothing_legal(*arguments: Any, **options: Any) -> Report:
        return attrs.evolve(explore(*arguments, **options), failures=(Failure("planted", ()),))

    monkeypatch.setattr("leasekit_simulation.explore.__main__.explore", nothing_legal)
    done = CliRunner().invoke(main, ["plain", "--faults", "0"])
    assert done.exit_code == 1
    assert "WRONG: planted" in done.output


def test_unknown_flow_is_refused() -> None:
    """A flow that there is none of is named, with those there are."""
    done = CliRunner().invoke(main, ["plane"])
    assert done.exit_code == 2
    assert "'plane'" in done.output and "'plain'" in done.output
