"""The conformance kit: what is wrong with a mapper is found, told in one line, and played again from a file."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from leasekit.core.errors import LeasekitError
from leasekit.emulation.conformance import watched
from leasekit.emulation.conformance.cases import Case, MadeTurn, draw, played_from_json, read_case
from leasekit.emulation.conformance.child import ChildJob, MapperChild, maker
from leasekit.emulation.conformance.kit import KitFinding, Subject, check, replay, role_of, write_case
from leasekit.emulation.conformance.loads import SIZES, cycle_of, play_turn
from leasekit.emulation.conformance.stage import play
from leasekit.policies.registry import BUILT_IN

TESTS = Path(__file__).resolve().parents[2]
SETTINGS = {
    "load_following": {"type": "vm"},
    "replay": {"type": "vm"},
    "users": {"type": "vm", "users": 3},
    "static": {"demands": [{"type": "vm", "units": 2, "term": "1h"}]},
    "energy": {"types": ["vm", "host"], "suspend_below": "20m"},
}
ALL = [(name, role) for role, mappers in BUILT_IN.items() for name in mappers]
FEW = {"replay": 1, "users": 2, "load_following": 2, "energy": 3, "static": 3}
"""How many cases of those that take ten times as long as others, which have six."""
MISFITS = [
    ("Overbooks", "broker", watched.OVERBOOKS, "it would overbook"),
    ("Twice", "broker", watched.VALID, "twice in one turn"),
    ("Nobody", "broker", watched.VALID, "'gift-1' at 1010 ms, which nobody asked for"),
    ("InThePast", "broker", watched.WINDOWS, "began in the past"),
    ("Early", "broker", watched.WINDOWS, "is not what was asked for"),
    ("PartOfGroup", "broker", watched.GROUPS, "is granted whole"),
    ("Lazy", "broker", watched.ANSWERS, "it asked for no Wake"),
    ("Waits", "broker", watched.ANSWERS, "it expired at"),
    ("Refuses", "broker", watched.ANSWERS, "refused"),
    ("Raises", "broker", watched.SURVIVES, "ZeroDivisionError"),
    ("Leaves", "broker", watched.SURVIVES, "raised SystemExit: bye"),
    ("Dies", "broker", watched.SURVIVES, "ended its process with status 3"),
    ("TiresOfMany", "broker", watched.SURVIVES, "too many wait (500 at once; misfit_mappers.py, line "),
    ("GivesWhatIsNot", "broker", watched.SURVIVES, "although there is nothing to give"),
    ("Loops", "broker", watched.TIME, "took longer than 0.2 s"),
    ("Endless", "broker", watched.TIME, "decided more than"),
    ("Nothing", "broker", watched.VALID, "returned None"),
    ("Chance", "broker", watched.SAME, "decided otherwise"),
    ("HashOrder", "broker", watched.SAME, "decided otherwise"),
    ("SameUnit", "authority", watched.OVERBOOKS, "gave unit"),
    ("KeepsUnits", "authority", watched.ANSWERS, "could have got"),
    ("Spins", "guest", watched.TIME, "turns within an hour"),
    ("Greedy", "guest", watched.TIME, "leases within an hour"),
]

OF_ONE_TURN = {
    "TiresOfMany": MadeTurn(size=500, types=("vm", "host")),
    "GivesWhatIsNot": MadeTurn(size=3, types=("vm", "host"), there=False),
}
"""Those whose fault shows in a single turn that is made by hand, and in which: with half as much it is not there."""
IN_PROCESSES = {"Raises", "Dies", "Chance", "HashOrder", "Spins"}
"""Those that are checked and replayed in two processes each, as users do it: what ends a process, what differs between
two, and what a replay tells. The others are played in this process.
"""
IN_SOAK = {"Chance"}
"""Found as what depends on the order of hashes is."""


@pytest.fixture(autouse=True)
def misfits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The misfits are found, in child processes too."""
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))


def _subject(name: str, role: str, cases: int, sizes: tuple[int, ...]) -> Subject:
    return Subject(
        target=name, role=role, settings=SETTINGS.get(name, {}), cases=cases, turn_max=300, sizes=sizes
    )  # fmt: skip


def decided(name: str, role: str) -> list[str]:
    """What a mapper decides in a few cases and single turns, played in this process; in none it does anything wrong."""
    subject = _subject(name, role, FEW.get(name, 6), SIZES[:1])
    make, found = maker(subject), list[str]()
    for number in range(subject.cases):
        played = play(draw(subject.seed, number, subject.types), role, make, subject.limit)
        assert played.fault is None, played.fault
        found.append(played.digest)
    empty = MadeTurn(size=0, types=tuple(subject.types))
    for turn in (empty, attrs.evolve(empty, size=3, there=False), attrs.evolve(empty, size=SIZES[0])):
        _, decisions = play_turn(role, make(), turn, cycle_of(role, turn), subject.limit_of(turn))
        found.append(repr(decisions))
    return found


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, list[str]]:
    """What all mappers that come with leasekit decide in a process with another hash seed."""
    program = (
        "import json; from emulation.conformance.test_conformance_kit import ALL, decided;"
        "print(json.dumps({f'{name} {role}': decided(name, role) for name, role in ALL}))"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": seed},
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.xdist_group("built_in_mappers")  # who asks for what is decided elsewhere has it for all
@pytest.mark.parametrize(("name", "role"), ALL, ids=str)
def test_built_in_mappers_do_what_they_must(name: str, role: str, elsewhere: dict[str, list[str]]) -> None:
    """Every mapper that comes with leasekit does what every mapper must, and the same in two processes."""
    assert decided(name, role) == elsewhere[f"{name} {role}"]


@pytest.mark.parametrize(
    ("name", "role", "cases", "sizes"),
    [
        *((*mapper, 6, SIZES[:1]) for mapper in (("fcfs", "broker"), ("first_fit", "authority"), ("manual", "guest"))),
        *(pytest.param(*mapper, 100, SIZES, marks=pytest.mark.soak) for mapper in ALL),
    ],
    ids=str,
)  # fmt: skip
def test_built_in_mappers_pass(name: str, role: str, cases: int, sizes: tuple[int, ...]) -> None:
    """The kit finds nothing wrong with what comes with leasekit: one mapper of each role, or (a soak) all of them in
    many cases.
    """
    checked = check(_subject(name, role, cases, sizes))
    assert not checked.faults, checked.faults
    assert [cost.size for cost in checked.costs] == list(sizes)
    assert checked.cases == cases


def _found(subject: Subject, played: Case | MadeTurn | None = None) -> list[KitFinding]:
    """What a child process says of a subject, or of one case, or turn, of it; said in this process."""
    out = io.StringIO()
    MapperChild(ChildJob(subject=subject, replay=played), out).run()
    said = [line["fault"] for line in map(json.loads, out.getvalue().splitlines()) if "fault" in line]
    return [KitFinding(check=each["check"], text=each["text"], case=played_from_json(each)) for each in said]


@pytest.mark.parametrize(
    ("name", "role", "what", "text"),
    [pytest.param(*row, id=row[0], marks=pytest.mark.soak if row[0] in IN_SOAK else ()) for row in MISFITS],
)
def test_misfits_are_found(name: str, role: str, what: str, text: str, tmp_path: Path) -> None:
    """Each fault is found under its own check and told in one line; its case is small, and shows the fault again."""
    limit = 0.2 if name == "Loops" else 60  # a machine that is busy is no fault of the others'
    cases, sizes = (3, SIZES[:2]) if name in OF_ONE_TURN else (40, SIZES[:1])
    subject = Subject(
        target=f"misfit_mappers:{name}", role=role, cases=cases, limit=limit, turn_max=120, sizes=sizes
    )  # fmt: skip
    faults = check(subject).faults if name in IN_PROCESSES else _found(subject)
    found = next(fault for fault in faults if fault.check == what)
    assert text in found.text
    assert "\n" not in found.text
    assert found.case is not None
    if isinstance(found.case, Case):
        assert len(found.case.events) <= (30 if what == watched.SAME or name == "Dies" else 4)
    else:
        assert found.case == OF_ONE_TURN[name]
    recorded = read_case(write_case(tmp_path, subject, found))
    assert (recorded.check, recorded.role, recorded.played) == (what, role, found.case)
    if name not in IN_PROCESSES:
        assert [(fault.check, fault.case) for fault in _found(subject, recorded.played)] == [(what, found.case)]
        return
    again = replay(subject, recorded.played)
    assert [(fault.check, fault.case) for fault in again.faults] == [(what, found.case)]
    if name == "Raises":
        _, shown, decided = again.journal[-1]
        assert shown and text in decided[-1]


def test_a_loop_that_nothing_interrupts_is_killed() -> None:
    """A mapper that hangs where Python can't reach is told with the case in which it did."""
    (found,) = check(Subject(target="misfit_mappers:HangsInC", role="broker", cases=3, limit=0.1)).faults
    assert found.check == watched.TIME
    assert "could not be interrupted" in found.text
    assert found.case is not None


def test_the_same_seed_finds_the_same() -> None:
    """Two checks of a mapper by one seed shrink to the same case; another seed draws others."""
    subject = Subject(target="misfit_mappers:Early", role="broker", cases=40)
    assert check(subject).faults == check(subject).faults


def test_the_role_follows_from_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapper's role is the one whose method it has; where that leaves more than one, it must be said."""
    assert role_of("fcfs", None) == "broker"
    assert role_of("manual", None) == "guest"
    assert role_of("first_fit", "authority") == "authority"
    monkeypatch.syspath_prepend(TESTS)
    with pytest.raises(LeasekitError, match="--role"):
        role_of("misfit_mappers:Both", None)
    with pytest.raises(LeasekitError, match="nosuch"):
        role_of("nosuch", None)
