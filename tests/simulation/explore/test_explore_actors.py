"""Actors that are kept, copied and gone on from: nothing of them is lost by that, and nothing that matters is left out
of what tells joint states apart.
"""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest

from leasekit.actors import kernel
from leasekit.actors.kernel import KeptAttributes, kept_by
from leasekit.actors.site.units import Units
from leasekit.core.leases import records
from leasekit.core.protocol import messages
from leasekit.core.schema import TABLES
from leasekit.core.steps import Tick
from leasekit.core.time import SECOND
from leasekit_simulation.explore.canonical import _ranks, canonical
from leasekit_simulation.explore.checks import Holder, Violated
from leasekit_simulation.explore.flows import FLOWS
from leasekit_simulation.explore.joint import Joint
from leasekit_simulation.explore.moves import CHANGE, CLOSE, CRASH, DELIVER, LATE, OUTAGE, REPEAT, TIME, Move, Mover
from leasekit_simulation.explore.pieces import _IGNORED, _SPECIAL, Scope, _fields, _number, _plain
from leasekit_simulation.explore.rig import BEGIN, NAMES, RETRY, SITE, Rig
from leasekit_simulation.parts import parts_of, wiring


def walk(mover: Mover, joint: Joint, steps: int) -> Joint:
    """The joint state some fair steps on."""
    for _ in range(steps):
        move = mover.fair(joint)
        assert move is not None
        after = mover.apply(joint, move)
        assert after is not None
        joint = after
    return joint


def must(joint: Joint | None) -> Joint:
    """The joint state, which there is."""
    assert joint is not None
    return joint


def levels(joint: Joint) -> list[tuple[str, str, str]]:
    """The states of its leases."""
    return list(joint.levels().values())


@pytest.mark.parametrize("name", NAMES)
def test_frozen_actor_thaws_as_it_was(name: str) -> None:
    """An actor that is frozen and thawed holds what it held: frozen again and again it is the same, byte for byte."""
    mover = Mover(FLOWS["extend"])
    joint = walk(mover, mover.begin(), 13)
    rig, frozen = mover.rig, joint.actors[name]
    rig._thaw(name, frozen)
    rig._known.clear()
    again = rig._freeze(name)
    assert attrs.astuple(again.piece) == attrs.astuple(frozen.piece)
    rig._thaw(name, again)  # which texts are one object in memory, as pickles tell, may differ the first time
    assert rig._freeze(name).data == again.data


def test_what_changes_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that does not declare what it keeps is named as soon as that changes."""
    monkeypatch.setitem(kernel._KEPT, Units, KeptAttributes(("_units",), ("_free", "_tearing"), ("_ending",)))
    mover = Mover(FLOWS["plain"])
    with pytest.raises(Violated, match=r"Units\.holding changes, and is not declared"):
        walk(mover, mover.begin(), 13)


def test_parts_have_what_they_declare() -> None:
    """Each name that a part declares is an attribute of it, and each attribute that begins empty is declared."""
    wrong = []
    rig = Rig(1)
    for actor in map(rig._make, NAMES):
        for part in parts_of(actor):
            kept = [name for names in kept_by(part) for name in names]
            wrong += [f"{type(part).__name__}.{name}: there is none" for name in kept if not hasattr(part, name)]
            wrong += [
                f"{type(part).__name__}.{name}: is not declared"
                for name, value in wiring(part)
                if isinstance(value, (dict, set)) and not value and id(value) not in _kept_ids(actor)
            ]
    assert not wrong, wrong


def _kept_ids(actor: Any) -> set[int]:
    return {id(getattr(part, name)) for part in parts_of(actor) for names in kept_by(part) for name in names}


def test_a_rig_without_memory_comes_to_the_same() -> None:
    """What was remembered of an actor's step is what the step would have come to."""
    mover = Mover(FLOWS["modify"])
    joint = other = mover.begin()
    while (move := mover.fair(joint)) is not None:
        joint = must(mover.apply(joint, move))
        mover.rig._effects.clear()
        mover.rig._known.clear()
        other = must(mover.apply(other, must_move(mover, other)))
        assert canonical(joint) == canonical(other)
    assert levels(joint) == [("closed", "closed", "closed")]


def must_move(mover: Mover, joint: Joint) -> Move:
    """The next fair move, which there is."""
    move = mover.fair(joint)
    assert move is not None
    return move


def test_stored_rows_are_enough_to_go_on() -> None:
    """An actor that crashes at rest comes to the same end as one that doesn't."""
    mover = Mover(FLOWS["plain"])
    joint = walk(mover, mover.begin(), 9)
    for name in NAMES:
        crashed = must(mover.apply(joint, Move(CRASH, name, fault=True)))
        assert levels(crashed) == levels(joint)
        while (move := mover.fair(crashed)) is not None:
            crashed = must(mover.apply(crashed, move))
        assert levels(crashed) == [("closed", "closed", "closed")]


def test_instants_count_from_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same exploration at another time of day is the same; a lease that waits for something nearer is another."""
    early, late = Mover(FLOWS["plain"]), Mover(FLOWS["plain"])
    one = walk(early, early.begin(), 7)
    monkeypatch.setattr("leasekit_simulation.explore.moves.BEGIN", BEGIN + 12_345)
    two = walk(late, late.begin(), 7)
    assert one.now != two.now
    assert canonical(one) == canonical(two)
    assert canonical(attrs.evolve(one, now=one.now + 1)) != canonical(one)


def test_numbers_count_by_their_order() -> None:
    """Which number a request has does not matter, but which of two is later, and whether it comes at once after it."""
    scope = Scope("lease-1", "site")

    def names(*numbers: int) -> list[int]:
        marks: list[Any] = []
        for number in numbers:
            _number(number, scope, marks)
        ranks = _ranks(marks)
        return [ranks[mark] for mark in marks]

    assert names(3, 4) == names(7, 8) != names(4, 3)
    assert names(3, 5) == names(3, 9) != names(3, 4)


def test_repeat_that_is_ignored_leaves_no_trace() -> None:
    """A message that arrives twice, at once, leads to the joint state that it leads to by itself."""
    mover = Mover(FLOWS["plain"])
    joint = walk(mover, mover.begin(), 2)
    parcel = joint.flight[0]
    once = must(mover.apply(joint, Move(DELIVER, parcel)))
    twice = must(mover.apply(joint, Move(REPEAT, parcel, fault=True)))
    twice = must(mover.apply(twice, Move(DELIVER, parcel)))
    assert canonical(twice) != canonical(once), "the copy is still on its way"
    assert canonical(must(mover.apply(twice, Move(LATE, parcel)))) == canonical(once)


def test_outage_lasts_to_the_next_deadline() -> None:
    """In an outage what is sent again is lost, until a deadline changes something; what was in flight is late."""
    mover = Mover(FLOWS["plain"])
    joint = mover.begin()
    after = must(mover.apply(joint, Move(OUTAGE, fault=True)))
    assert levels(after) == [("failed", "-", "-")]
    assert after.flight == joint.flight
    assert after.now > joint.now + RETRY


def test_commands_that_are_refused_are_no_moves() -> None:
    """A close of a lease that is being closed leads nowhere."""
    mover = Mover(FLOWS["plain"])
    joint = mover.begin()
    lease = next(iter(joint.levels()))
    closed = must(mover.apply(joint, Move(CLOSE, lease, fault=True)))
    assert mover.apply(closed, Move(CLOSE, lease, fault=True)) is None


@pytest.mark.parametrize("flow", [flow.name for flow in FLOWS.values() if flow.changes])
def test_guest_may_change_a_running_lease_as_its_flow_says(flow: str) -> None:
    """The flow's first command is there as soon as the lease is active, and none after its last."""
    mover = Mover(FLOWS[flow])
    joint = mover.begin()
    while not (offered := [move for move in mover.moves(joint) if move.what == CHANGE]):
        joint = walk(mover, joint, 1)
    assert levels(joint)[0][0].startswith("active")
    changed = must(mover.apply(joint, offered[0]))
    assert changed.issued == 1
    changed = attrs.evolve(changed, issued=len(FLOWS[flow].changes))
    assert all(move.what != CHANGE for move in mover.moves(changed))
    assert levels(changed)[0][0] != levels(joint)[0][0]


def test_unknown_attributes_are_refused() -> None:
    """What a part holds that it does not declare is named; so is what can't be compared."""
    mover = Mover(FLOWS["plain"])
    mover.begin()
    mover.rig._live[SITE].actor.units.something_new = {"vm-0": 3}
    with pytest.raises(Violated, match=r"Units\.something_new is new, and is not declared"):
        mover.rig._freeze(SITE)
    with pytest.raises(TypeError, match="object is nothing that can be compared"):
        _plain(object(), Scope("", ""), [])


def test_every_stored_table_is_frozen() -> None:
    """A frozen actor's store has all tables: what is restored from it is what was committed."""
    rig = Rig(1)
    rig.begin()
    actor = rig._live[SITE].actor
    actor.step(Tick(SECOND))
    ready = actor.ready()
    rig._stores[SITE].commit(ready.changes)
    assert set(rig._stores[SITE].load()) == set(TABLES)


def test_time_passes_to_the_next_timer_of_all() -> None:
    """Time goes on when nothing is in flight, to the first timer of any actor, and not to one of a delegation."""
    mover = Mover(FLOWS["plain"])
    joint = walk(mover, mover.begin(), 3)
    assert joint.idle
    after = must(mover.apply(joint, Move(TIME)))
    assert after.now == joint.wake
    while (move := mover.fair(after)) is not None:
        after = must(mover.apply(after, move))
    assert not after.time_passes
    assert after.wake is not None, "the delegation's end"


def test_book_of_units_finds_what_is_wrong() -> None:
    """A unit that is set up for a second lease before its teardown has ended is found, as is a number used twice."""
    mover = Mover(FLOWS["plain"])
    joint = mover.begin()
    while not joint.running:
        joint = walk(mover, joint, 1)
    setup = joint.running[0].action
    holder = Holder().start(setup)
    assert holder.start(setup) == holder, "done again after a crash"
    with pytest.raises(Violated, match="still has it"):
        holder.start(setup._replace(number=setup.number + 1, lease="another"))
    with pytest.raises(Violated, match="its number was that of a setup"):
        holder.start(setup._replace(op="teardown"))
    down = setup._replace(op="teardown", number=setup.number + 1)
    assert holder.start(down).end(down.number).lease == ""


def described() -> dict[str, set[str]]:
    """Every record and message, and what is in them, with all its fields: those of the classes above, too."""
    found = {}
    for module in (records, messages):
        for name, kind in vars(module).items():
            if not isinstance(kind, type):
                continue
            if attrs.has(kind):
                found[name] = {field.name for field in attrs.fields(kind)}
            elif issubclass(kind, msgspec.Struct):
                found[name] = set(kind.__struct_fields__)
            elif hasattr(kind, "_fields"):
                found[name] = set(kind._fields)
    return found


@pytest.mark.parametrize("name", described())
def test_no_field_is_left_out_unless_by_name(name: str) -> None:
    """What a message has of the classes above it (which request it answers) tells joint states apart as well."""
    kind = getattr(records, name, None) or getattr(messages, name)
    read = {field for field, _ in _fields(kind)}
    assert read | _IGNORED.get(name, frozenset()) == described()[name]


def test_what_is_said_of_fields_is_said_of_fields_that_are_there() -> None:
    """A field that has another name by now is not left out, or read specially, by its old one."""
    there = described()
    assert [(name, field) for name, field in _SPECIAL if field not in there.get(name, {field})] == []
    assert {name for name, _ in _SPECIAL} | _IGNORED.keys() <= there.keys() | {"Action"}
