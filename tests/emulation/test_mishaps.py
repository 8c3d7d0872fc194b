"""Worlds that fail as their file says: deterministic, counted, and by the actors of daemons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leasekit.cli import main
from leasekit.emulation.experiment import run_file

LAB = """
deployment.signatures = false
actor.broker.role = "broker"

[actor.lab]
role = "authority"
inventory = [{ type = "node", units = 4 }]
delegation = [{ broker = "broker", type = "node" }]

[actor.web]
role = "guest"
mapper = { name = "static", demands = [{ type = "node", units = 3, term = "2h" }] }

[emulation]
horizon = "2d"
"""
FAILURE = """
[[emulation.failure]]
every = { kind = "exponential", mean = "12h" }
repair = "1h"
"""
LAB_DOWN = """
[[emulation.outage]]
actor = "lab"
at = ["5h30m"]
lasts = "10m"
"""
PARTITION = """
[[emulation.partition]]
sides = [["web"], ["broker"]]
at = ["3h"]
lasts = "6h"
"""
NETWORK = """
[[emulation.network]]
between = ["web", "*"]
delay = { kind = "exponential", mean = "2s" }
loss = 0.1
"""
MAINTENANCE = """
[[emulation.maintenance]]
site = "lab"
units = ["node-0", "node-1"]
at = ["13h"]
lasts = "6h"
close = true
"""
CLOCK = """
[[emulation.clock]]
actor = "web"
BY
"""
ALL = FAILURE + LAB_DOWN + PARTITION + NETWORK + MAINTENANCE + CLOCK.replace("BY", 'ahead = "700ms"')


def emulated(folder: Path, more: str, name: str = "out") -> dict[str, Any]:
    """The only run of the file with this at its end."""
    file = folder / "lab.toml"
    file.write_text(LAB + more)
    (found,) = run_file(file, folder / name)["runs"]
    assert isinstance(found, dict)
    return found


def mishaps(run: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """By what they are, and of what."""
    return {(one["kind"], one["of"]): one for one in run["mishaps"]}


def test_nothing_goes_wrong_where_nothing_is_said(tmp_path: Path) -> None:
    """No table, no mishap."""
    assert emulated(tmp_path, "")["mishaps"] == []


def test_what_waits_is_not_said_again_where_nothing_is_lost(tmp_path: Path) -> None:
    """Where units could fail, and do not yet, as many messages, actions and timers are needed as where they can't: a
    request that waits for days is asked for once.
    """
    waits = """
[actor.late]
role = "guest"
[actor.late.mapper]
name = "static"
demands = [{ type = "node", count = 3, units = 4, term = "2h", properties = { deferrable = "true" } }]
"""
    rare = FAILURE.replace('{ kind = "exponential", mean = "12h" }', '"30d"')
    safe, unsafe = (emulated(tmp_path, waits + more) for more in ("", rare))
    assert safe["messages"] > 100
    assert all(safe[one] == unsafe[one] for one in ("messages", "actions", "timers"))


def test_units_fail_and_are_repaired(tmp_path: Path) -> None:
    """Four units, each in service for 12 hours on the mean: about 15 failures in two days, an hour each. Leases get
    others in their place, as at a site whose units fail under it.
    """
    run = emulated(tmp_path, FAILURE)
    (found,) = run["mishaps"]
    assert (found["kind"], found["of"]) == ("units fail", "lab: node")
    lab = run["sites"]["lab"]
    assert 5 < found["times"] < 30 and lab["failed"] == found["times"] >= lab["repaired"] >= found["times"] - 4
    assert found["hours"] == pytest.approx(found["times"], abs=4)
    assert lab["out_of_service"] == pytest.approx(found["hours"] / lab["bought_unit_h"])
    assert lab["used"] + lab["idle"] + lab["out_of_service"] == pytest.approx(1)
    assert run["guests"]["web"]["fidelity"] < 1


def test_another_guest_changes_no_failure(tmp_path: Path) -> None:
    """When a unit fails depends on the seed and the unit alone, as long as it comes back as soon."""
    more = '\n[actor.late]\nrole = "guest"\n'
    alone, both = (emulated(tmp_path, FAILURE + end)["mishaps"] for end in ("", more))
    assert alone == both


def test_a_site_that_was_down_goes_on_from_its_store(tmp_path: Path) -> None:
    """What it serves outlives it, and what it was sent meanwhile is sent again: no lease is lost."""
    run = emulated(tmp_path, LAB_DOWN)
    found = mishaps(run)["down", "lab"]
    assert found["times"] == 1 and found["hours"] == pytest.approx(1 / 6)
    web, usual = run["guests"]["web"], emulated(tmp_path, "")["guests"]["web"]
    assert web["requests"]["failed"] == web["requests"]["cut"] == 0
    assert web["mean_leased"] == pytest.approx(usual["mean_leased"], rel=0.01)


def test_a_broker_that_is_down_as_a_request_comes_loses_it(tmp_path: Path) -> None:
    """It is asked again: the messages that were lost are counted, and all is granted in the end."""
    down = LAB_DOWN.replace('actor = "lab"', 'actor = "broker"').replace('"5h30m"', '"0s"')
    run = emulated(tmp_path, down)
    assert mishaps(run)["down", "broker"]["messages_lost"] > 0
    assert run["guests"]["web"]["mean_leased"] > 0


def test_actions_end_with_their_daemon(tmp_path: Path) -> None:
    """A site that goes down in the middle of a setup loses it, and does it again."""
    slow = '\n[actor.lab.driver.machines]\nkind = "null"\nlatency = { setup = "20m" }\n'
    down = LAB_DOWN.replace('"5h30m"', '"10m"').replace('lasts = "10m"', 'lasts = "2m"')
    run = emulated(tmp_path, slow + down)
    found = mishaps(run)["down", "lab"]
    assert found["actions_lost"] == 3
    assert run["guests"]["web"]["requests"]["failed"] == 0 and run["guests"]["web"]["fidelity"] > 0.5


def test_a_unit_that_fails_as_it_is_set_up_fails_its_setup(tmp_path: Path) -> None:
    """All units fail before their first setup is over: what is set up by then is set up in vain."""
    slow = '\n[actor.lab.driver.machines]\nkind = "null"\nlatency = { setup = "20m" }\n'
    run = emulated(tmp_path, slow + '\n[[emulation.failure]]\nevery = "10m"\n')
    assert run["sites"]["lab"]["failed"] == 4 and run["sites"]["lab"]["repaired"] == 0
    assert run["guests"]["web"]["fidelity"] in (None, 0.0)


def test_a_partition_separates_its_sides_only(tmp_path: Path) -> None:
    """The guest can't reach its broker for six hours, so its leases are not extended; then all goes on."""
    run, usual = emulated(tmp_path, PARTITION), emulated(tmp_path, "")
    found = mishaps(run)["partition", "web | broker"]
    assert found["hours"] == 6 and found["messages_lost"] > 0
    ((kind, _),) = mishaps(run)
    assert kind == "partition"
    assert run["guests"]["web"]["leased_unit_h"] < usual["guests"]["web"]["leased_unit_h"] - 6


def test_messages_are_late_and_lost(tmp_path: Path) -> None:
    """Between the guest and all others, either way; what others say to each other takes no time."""
    run = emulated(tmp_path, NETWORK)
    found = mishaps(run)
    assert {of for kind, of in found if kind == "network"} == {"broker - web", "lab - web"}
    assert sum(one["messages_lost"] for one in found.values()) > 0
    assert found["network", "lab - web"]["mean_delay_s"] == pytest.approx(2, rel=0.5)
    assert run["guests"]["web"]["mean_leased"] > 2


def test_maintenance_takes_its_units_and_ends_leases_for_it(tmp_path: Path) -> None:
    """Two of four units for six hours, of a lease of three: it ends, and why is counted."""
    run = emulated(tmp_path, MAINTENANCE)
    found = mishaps(run)
    assert found["maintenance", "lab"]["hours"] == 6
    out = found["units in maintenance", "lab: node"]
    assert out["times"] == 2 and out["hours"] == pytest.approx(12, abs=0.1)
    lab, web = run["sites"]["lab"], run["guests"]["web"]["requests"]
    assert (lab["failed"], lab["repaired"]) == (0, 0), "it is no failure"
    assert web["cut"] == 1 and web["cuts"] == {"maintenance": 1}
    assert lab["out_of_service"] == pytest.approx(out["hours"] / lab["bought_unit_h"])


@pytest.mark.parametrize(("by", "heard"), [('behind = "1s"', True), ('ahead = "1h"', False)])
def test_clocks_that_are_off(tmp_path: Path, by: str, heard: bool) -> None:
    """Within the skew that its peers allow an actor is heard, beyond it nobody hears another, as with daemons."""
    run = emulated(tmp_path, CLOCK.replace("BY", by))
    assert (run["guests"]["web"]["mean_leased"] > 2) == heard
    assert any(one["kind"] == "clocks too far off" for one in run["mishaps"]) != heard
    assert any(one["kind"].startswith("clock ") and one["of"] == "web" for one in run["mishaps"])


@pytest.mark.parametrize("latency", [pytest.param("0s", marks=pytest.mark.soak), "300ms"])
def test_all_at_once_is_the_same_each_time(tmp_path: Path, latency: str) -> None:
    """The same bytes, also where every tick is executed."""
    more = f'message_latency = "{latency}"\n{ALL}'
    first = emulated(tmp_path, more, "first")
    emulated(tmp_path, more, "again")
    every = emulated(tmp_path, f'ticks = "every"\n{more}', "every")
    logs = [(tmp_path / name / "transitions.csv").read_bytes() for name in ("first", "again", "every")]
    assert logs[0] == logs[1] == logs[2]
    assert first["mishaps"] == every["mishaps"] and {one["kind"] for one in first["mishaps"]} >= {
        "units fail", "units in maintenance", "down", "partition", "network", "maintenance"
    }  # fmt: skip
    other = emulated(tmp_path, f"seed = 1\n{more}")
    assert other["mishaps"] != first["mishaps"]


def test_the_table_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What went wrong is a table of its own."""
    file = tmp_path / "lab.toml"
    file.write_text(LAB + ALL)
    assert main.run(["emulate", str(file)]) == 0
    said = capsys.readouterr().out
    for text in ("what went wrong", "units fail", "web | broker", "messages lost", "cut because"):
        assert text in said


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        (FAILURE.replace("every", 'site = "lib"\nevery'), "failure[0].site", "'lib', expected one of: lab"),
        (FAILURE.replace("every", 'type = "nod"\nevery'), "failure[0].type", "'nod', expected one of: node"),
        ('[[emulation.failure]]\nevery = "0s"', "failure[0].every", "at least a tick, 1s"),
        ('[[emulation.failure]]\nrepair = "1h"', "failure[0].every", "found nothing"),
        (LAB_DOWN.replace('"5h30m"', '"3d"'), "outage[0].at", "found 3d, expected less than the horizon, 2d"),
        (LAB_DOWN.replace('["5h30m"]', '["5h", "4h"]'), "outage[0].at", "each later than"),
        (LAB_DOWN.replace('at = ["5h30m"]', ""), "outage[0]", "neither at nor every, expected one of at and every"),
        (LAB_DOWN + 'every = "1d"', "outage[0]", "both at and every"),
        (LAB_DOWN.replace('"lab"', '"lap"'), "outage[0].actor", "'lap', expected one of: broker, lab, web"),
        (PARTITION.replace(', ["broker"]', ""), "partition[0].sides", "found 1 sides"),
        (PARTITION.replace('"broker"', '"web"'), "partition[0].sides", "'web' twice"),
        (NETWORK.replace('"web", "*"', '"web"'), "network[0].between", "two actors"),
        (NETWORK.replace("0.1", "1.5"), "network[0].loss", "1.5"),
        (MAINTENANCE.replace("node-1", "n1"), "maintenance[0].units", "'n1', expected units of lab, such as node-0"),
        (CLOCK.replace("BY", ""), "clock[0]", "neither ahead nor behind"),
        (CLOCK.replace("BY", 'ahead = "1s"') * 2, "clock[0].actor", "'web' twice"),
        ('[[emulation.outrage]]\nactor = "lab"', "emulation.outrage", "did you mean outage?"),
    ],
    ids=[
        "site",
        "type",
        "every",
        "mtbf",
        "late",
        "backwards",
        "never",
        "twice",
        "nobody",
        "one-side",
        "both-sides",
        "one",
        "loss",
        "unit",
        "clock",
        "clocks",
        "table",
    ],
)
def test_what_is_wrong_is_said_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, key: str, words: str
) -> None:
    """One message that names the key."""
    file = tmp_path / "lab.toml"
    file.write_text(LAB + more)
    assert main.run(["emulate", str(file)]) == 1
    said = capsys.readouterr().err
    assert key in said and words in said, said


def test_a_repair_may_be_drawn(tmp_path: Path) -> None:
    """``repair`` is a distribution, of units that drivers break as well."""
    text = "\n[actor.lab.settings]\nfailures_max = 1\n"
    text += '[actor.lab.driver.machines]\nkind = "null"\nfailure = { setup = 0.5 }\n'
    fixed = emulated(tmp_path, f'repair = "1h"\n{text}')
    drawn = emulated(tmp_path, f'repair = {{ kind = "exponential", mean = "1h" }}\n{text}')
    for run in (fixed, drawn):
        assert run["sites"]["lab"]["repaired"] > 0
    assert fixed["mishaps"] != drawn["mishaps"]
