"""Scenarios: drawn from seeds, written to files and read from them."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from leasekit_simulation.faults.run import simulate
from leasekit_simulation.faults.scenario import (
    FILES,
    FORGERY,
    MALICE,
    OPERATIONS,
    ROGUE,
    TAMPERING,
    ScenarioError,
    draw,
    read_scenario,
    write_scenario,
)


def test_seeds_draw_all_there_is() -> None:
    """Among some hundred seeds there are 1 to 4 sites, 1 to 3 brokers, also below each other, and 1 to 5 guests."""
    drawn = [draw(seed) for seed in range(400)]
    assert {len(one.sites) - bool(one.links) for one in drawn} == {1, 2, 3, 4}
    assert {len(one.brokers) for one in drawn} == {1, 2, 3}
    assert {len(one.guests) for one in drawn} == {1, 2, 3, 4, 5}
    assert any(above for one in drawn for above in one.brokers.values())
    assert {one.signed for one in drawn} == {one.channels for one in drawn} == {one.rogue for one in drawn}
    assert {store for one in drawn for store in one.stores.values()} == {"sqlite"}
    assert {"broker", "authority"} == {one.role(name) for one in drawn for name in one.liars}
    operations = [operation.do for one in drawn for operation in one.operations]
    assert {*MALICE, *FORGERY, *TAMPERING, "crash", "full", "step_beyond", "reclaim", "overdelegate"} <= set(operations)
    assert {"drain", "evict", "move", "sleep", "leap", "odd", "wordy", "ahead", "rotate", "forget", *FILES} <= set(
        operations
    )


def test_nobody_gets_more_than_there_is() -> None:
    """A site's shares add up to its units, and what a broker passes on is less than it has."""
    for seed in range(200):
        one = draw(seed)
        for site, types in one.sites.items():
            for type_, count in types.items():
                own = [s for s in one.shares if (s.site, s.type) == (site, type_)]
                assert sum(s.units for s in own if not s.issuer) == count
                for share in own:
                    assert sum(s.units for s in own if s.issuer == share.broker) < share.units or not share.issuer
        assert all(one.rogue for share in one.shares if share.broker == ROGUE)
        more = (
            "topology",
            "slice_key",
            "extend_same",
            "beyond",
            "drain",
            "evict",
            "move",
            "sleep",
            "leap",
            "odd",
            "wordy",
            "crowd",
            "early",
            "ahead",
            "rotate",
            "forget",
            *FILES,
        )
        own = [operation for operation in one.operations if operation.do not in more]
        assert OPERATIONS[0] <= len(own) <= OPERATIONS[1]


def test_a_written_scenario_is_the_same_run(tmp_path: Path) -> None:
    """Written and read again, a scenario is equal, and so is its run: the same steps, faults and transitions."""
    scenario = draw(42)
    write_scenario(tmp_path / "one.json", scenario)
    again = read_scenario(tmp_path / "one.json")
    assert again == scenario
    first, second = simulate(scenario), simulate(again)
    assert (first.steps, first.requests, first.virtual_ms) == (second.steps, second.requests, second.virtual_ms)
    assert (first.injected, first.met) == (second.injected, second.met)
    assert first.steps > 1000 and len(first.injected) > 20


def test_listed_faults_are_the_only_ones(tmp_path: Path) -> None:
    """With its small faults listed, a scenario meets those and no others; without rates it fails in the same places."""
    scenario = draw(42)
    drawn = simulate(scenario)
    listed = simulate(attrs.evolve(scenario, faults=tuple(drawn.injected)))
    assert listed.injected == drawn.injected
    assert listed.steps == drawn.steps
    none = simulate(attrs.evolve(scenario, faults=()))
    assert none.injected == ()
    assert none.steps != drawn.steps


def test_a_file_fixes_part_of_the_draw(tmp_path: Path) -> None:
    """What a file leaves out is drawn from its seed; a table of settings may be fixed in part."""
    path = tmp_path / "part.toml"
    path.write_text("seed = 5\nsigned = true\n[sites.site-0]\nvm = 3\n[timing]\nretention = 7\n")
    scenario, drawn = read_scenario(path), draw(5)
    assert scenario.signed
    assert scenario.sites == {"site-0": {"vm": 3}}
    assert scenario.timing == attrs.evolve(drawn.timing, retention=7)
    assert scenario.operations == drawn.operations
    assert read_scenario(path, 6).operations == draw(6).operations


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "found list"),
        ('{"seed": "x"}', "seed: found 'x'"),
        ('{"colour": 1}', "colour"),
        ('{"tick": "soon"}', "tick"),
        ('{"mappers": {"nobody": "fcfs"}}', "mappers: found 'nobody', expected one of: guest-0"),
        ('{"mappers": {"broker-0": "manual"}}', "found 'manual', expected one of: backfill, coallocation, "),
        ('{"liars": ["guest-0"]}', "liars: found 'guest-0', expected one of: broker-0"),
        ('{"stores": {"broker-0": "tape"}}', "stores.broker-0: found 'tape', expected one of: memory, sqlite"),
        ('{"operations": [{"at": 5, "do": "dance", "pick": 1}]}', "do"),
        (
            '{"operations": [{"at": 5, "do": "crash", "pick": 1}, {"at": 4, "do": "crash", "pick": 1}]}',
            "found 4 after 5",
        ),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str, said: str) -> None:
    """What is wrong with a file is said in one text that names the file, the key and what was found."""
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(ScenarioError) as error:
        read_scenario(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_files_have_an_operation_a_line(tmp_path: Path) -> None:
    """A person can drop a line of a written scenario and run the rest."""
    path = tmp_path / "one.json"
    write_scenario(path, draw(3))
    lines = path.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if '"operations"' in line) + 1
    assert json.loads(lines[first].rstrip(","))["do"] == draw(3).operations[0].do
    del lines[first]
    path.write_text("\n".join(lines))
    assert read_scenario(path).operations == draw(3).operations[1:]
