"""The state tables: every pair of state and event is in them as the specification says, or is a protocol error."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from leasekit.actors.kernel import Kernel
from leasekit.actors.settings import ActorSettings
from leasekit.core.errors import ProtocolError
from leasekit.core.leases import authority, broker, delegation, membership, power, returns, saved, service_manager
from leasekit.core.leases.machine import NONE, JointIn, Machine, PendingIn, StateIn
from leasekit.core.leases.outage import Outage
from leasekit.core.leases.plans import PlanHold, Topology
from leasekit.core.leases.records import BrokerLease, Delegation, GuestLease, GuestUnit, Return, SiteLease, SiteUnit
from leasekit.core.leases.saved import SavedUnit

MACHINES = {
    "service manager": service_manager.MACHINE,
    "broker": broker.MACHINE,
    "authority": authority.MACHINE,
    "unit": authority.UNIT_MACHINE,
    "return": returns.MACHINE,
    "delegation": delegation.MACHINE,
    "power": power.MACHINE,
    "saved": saved.MACHINE,
    "membership of a lease": membership.MACHINE,
    "membership of a unit": membership.UNIT_MACHINE,
}

SPECIFIED = {
    "membership of a lease": """
        -/- block_redeem blocked_redeem/-
        -/- unblock -/-
        -/- block_join blocked_join/-
        -/- join joining/-
        -/- leave leaving/-
        blocked_redeem/- unblock -/-
        blocked_join/- block_join blocked_join/-
        blocked_join/- join joining/-
        blocked_join/- leave leaving/-
        joining/- join joining/-
        joining/- joined joined/-
        joining/- leave leaving/-
        joined/- join joining/-
        joined/- leave leaving/-
    """,
    "membership of a unit": """
        waiting/- join joining/-
        waiting/- leave left/-
        joining/- joined joined/-
        joining/- failed failed/-
        joining/- leave leaving/-
        joined/- leave leaving/-
        failed/- leave leaving/-
        leaving/- left left/-
        leaving/- spared waiting/-
        left/- given waiting/-
    """,
    "saved": """
        saving/- saved saved/-
        saving/- failed gone/-
        saved/- claim claimed/-
        saved/- expire dropping/-
        claimed/- used gone/-
        claimed/- release saved/-
        claimed/- spoilt dropping/-
        dropping/- dropped gone/-
        dropping/- failed saved/-
    """,
    "power": """
        on/- off stopping/-
        on/- suspend suspending/-
        stopping/- done off/-
        stopping/- failed unknown/-
        stopping/- on starting/-
        suspending/- done suspended/-
        suspending/- failed unknown/-
        suspending/- on starting/-
        off/- on starting/-
        suspended/- on resuming/-
        suspended/- off stopping/-
        starting/- done on/-
        starting/- failed unknown/-
        resuming/- done on/-
        resuming/- failed unknown/-
        unknown/- on starting/-
        unknown/- off stopping/-
    """,
    "service manager": """
        nascent/- ask nascent/ticketing
        nascent/ticketing ticket ticketed/-
        nascent/ticketing ticket_refused failed/-
        nascent/ticketing expire failed/-
        nascent/ticketing close nascent/close_wait
        nascent/close_wait ticket closed/-
        nascent/close_wait ticket_refused closed/-
        ticketed/- redeem ticketed/redeeming
        ticketed/- close closed/-
        ticketed/- expire failed/-
        ticketed/redeeming lease active/-
        ticketed/redeeming lease_refused failed/-
        ticketed/redeeming close ticketed/close_wait
        ticketed/close_wait closed closed/-
        ticketed/redeeming expire failed/-
        active/- extend active/extending_ticket
        active/- modify active/modifying
        active/- close active/closing
        active/- expire active/closing
        active/- lost closed/-
        active/- notice active/noticed
        active/noticed changed active/noticed
        active/noticed modify active/modifying
        active/noticed close active/closing
        active/noticed expire active/closing
        active/noticed lost closed/-
        active/extending_ticket ticket active_ticketed/-
        active/extending_ticket ticket_refused active/-
        active/extending_ticket expire active/closing
        active/extending_ticket close active/closing
        active_ticketed/- redeem active_ticketed/extending_lease
        active_ticketed/- close active/closing
        active_ticketed/- extend active_ticketed/extending_ticket
        active_ticketed/extending_ticket ticket active_ticketed/-
        active_ticketed/extending_ticket ticket_refused active_ticketed/-
        active_ticketed/extending_ticket close active/closing
        active_ticketed/- modify active_ticketed/modifying
        active_ticketed/modifying ticket active_ticketed/modifying
        active_ticketed/modifying ticket_refused active_ticketed/-
        active_ticketed/modifying lease active_ticketed/-
        active_ticketed/modifying lease_refused active_ticketed/-
        active_ticketed/modifying redeem active_ticketed/extending_lease
        active_ticketed/modifying close active/closing
        active/extending_ticket undo active/withdrawing
        active/withdrawing ticket active/-
        active/withdrawing ticket_refused active/-
        active/withdrawing close active/closing
        active_ticketed/extending_ticket undo active_ticketed/withdrawing
        active_ticketed/withdrawing ticket active_ticketed/-
        active_ticketed/withdrawing ticket_refused active_ticketed/-
        active_ticketed/withdrawing close active/closing
        active_ticketed/- undo active/-
        active_ticketed/extending_lease undo active_ticketed/undoing
        active_ticketed/undoing undone active/-
        active_ticketed/undoing lease active/-
        active_ticketed/undoing close active/closing
        active_ticketed/extending_lease modify active_ticketed/modifying
        active_ticketed/extending_lease extend active_ticketed/extending_further
        active_ticketed/extending_ticket redeem active_ticketed/extending_further
        active_ticketed/extending_further ticket active_ticketed/extending_lease
        active_ticketed/extending_further ticket_refused active_ticketed/extending_lease
        active_ticketed/extending_further lease active/extending_ticket
        active_ticketed/extending_further lease_refused active/withdrawing
        active_ticketed/extending_further let_go active_ticketed/extending_lease
        active_ticketed/extending_further close active/closing
        active_ticketed/extending_further expire active/closing
        active_ticketed/extending_lease lease active/-
        active_ticketed/extending_lease lease_refused active/-
        active_ticketed/extending_lease close active/closing
        active_ticketed/extending_lease expire active/closing
        active/modifying ticket active/modifying
        active/modifying ticket_refused active/-
        active/modifying lease active/-
        active/modifying lease_refused active/-
        active/modifying close active/closing
        active/closing left active/close_wait
        active/close_wait closed closed/-
        active/close_wait expire closed/-
    """,
    "broker": """
        nascent/ticketing grant ticketed/-
        nascent/ticketing refuse failed/-
        nascent/ticketing expire failed/-
        nascent/ticketing withdraw closed/-
        ticketed/- extend ticketed/extending_ticket
        ticketed/extending_ticket grant ticketed/-
        ticketed/extending_ticket refuse ticketed/-
        ticketed/- modify ticketed/modifying
        ticketed/- preempt ticketed/noticed
        ticketed/noticed modify ticketed/noticed
        ticketed/noticed grant ticketed/noticed
        ticketed/noticed refuse ticketed/noticed
        ticketed/noticed withdraw ticketed/noticed
        ticketed/noticed expire ticketed/noticed
        ticketed/noticed return ticketed/noticed
        ticketed/noticed returned closed/-
        ticketed/noticed end closed/-
        ticketed/modifying grant ticketed/-
        ticketed/modifying refuse ticketed/-
        ticketed/- return ticketed/-
        ticketed/- returned closed/-
        ticketed/- end closed/-
    """,
    "authority": """
        ticketed/redeeming assign ticketed/priming
        ticketed/redeeming refuse failed/-
        ticketed/redeeming close closed/-
        ticketed/redeeming end closed/-
        ticketed/priming primed active/-
        ticketed/priming fail failed/-
        ticketed/priming close ticketed/closing
        ticketed/priming end ticketed/closing
        ticketed/closing down closed/-
        active/- extend active/extending
        active/- modify active/modifying
        active/- close active/closing
        active/- end active/closing
        active/extending modify active/modifying
        active/extending apply active/priming
        active/modifying apply active/priming
        active/priming primed active/-
        active/priming close active/closing
        active/priming end active/closing
        active/closing down closed/-
    """,
    "unit": """
        free/- setup setup/-
        free/- out out/-
        setup/- up active/-
        setup/- failed teardown/-
        setup/- teardown teardown/-
        active/- modify modify/-
        active/- teardown teardown/-
        modify/- up active/-
        modify/- teardown teardown/-
        teardown/- down free/-
        teardown/- setup setup/-
        teardown/- out out/-
        out/- back free/-
    """,
    "return": """
        relinquishing/- receipt returning/-
        relinquishing/- refused done/-
        relinquishing/- end done/-
        returning/- accepted done/-
        returning/- refused done/-
        returning/- end done/-
    """,
    "delegation": """
        offering/- taken held/-
        offering/- refused refused/-
        offering/- end ended/-
        offering/- reclaim reclaiming/-
        held/- reclaim reclaiming/-
        held/- let_go reclaimed/-
        held/- replace replaced/-
        held/- end ended/-
        replaced/- reclaim reclaiming/-
        replaced/- let_go reclaimed/-
        replaced/- end ended/-
        reclaiming/- let_go reclaimed/-
        reclaiming/- end ended/-
        reclaimed/- replace reclaimed/-
        reclaimed/- end ended/-
    """,
}
"""What specs and design say of each machine: from, event, to."""

UNNAMED: dict[str, set[tuple[str, str]]] = {
    "membership of a unit": set(),
    "service manager": {
        ("nascent/-", "close"), ("nascent/close_wait", "closed"), ("nascent/close_wait", "expire"),
        ("ticketed/-", "replace"), ("ticketed/modifying", "ticket"), ("ticketed/modifying", "ticket_refused"),
        ("ticketed/modifying", "close"), ("ticketed/modifying", "lost"), ("ticketed/modifying", "expire"),
        ("ticketed/-", "lost"), ("ticketed/redeeming", "lost"), ("active/-", "changed"), ("active/-", "in_hand"),
        ("active/extending_ticket", "changed"), ("active/extending_ticket", "lost"),
        ("active_ticketed/-", "changed"), ("active_ticketed/-", "lost"),
        ("active_ticketed/extending_lease", "changed"), ("active_ticketed/extending_lease", "lost"),
        ("active/modifying", "changed"), ("active/modifying", "lost"), ("active/modifying", "expire"),
        ("active/closing", "changed"), ("active/closing", "lost"), ("active/close_wait", "changed"),
        ("active/close_wait", "lost"), ("ticketed/close_wait", "lost"), ("ticketed/close_wait", "expire"),
        ("active_ticketed/extending_lease", "let_go"), ("active_ticketed/modifying", "expire"),
        ("active_ticketed/undoing", "expire"), ("active/withdrawing", "expire"),
        *((f"active_ticketed/{pending}", event)
          for pending in ("extending_ticket", "extending_further", "modifying", "undoing", "withdrawing")
          for event in ("changed", "lost")),
        ("active/extending_ticket", "in_hand"),
        ("active/withdrawing", "changed"), ("active/withdrawing", "lost"),
    },
    "broker": {
        ("ticketed/extending_ticket", event) for event in ("withdraw", "expire", "return", "returned", "end")
    } | {("ticketed/modifying", event) for event in ("withdraw", "expire", "return", "returned", "end")} | {
        ("ticketed/-", "replace")
    },
    "authority": {
        ("active/extending", "withdraw"), ("active/extending", "close"), ("active/extending", "end"),
        ("active/modifying", "close"), ("active/modifying", "end"), ("ticketed/closing", "close"),
        ("active/closing", "close"), ("active/-", "replace"), ("active/extending", "replace"),
        ("active/modifying", "replace"), ("active/priming", "extend"), ("active/priming", "modify"),
        ("active/priming", "apply"),
    },
    "unit": {("active/-", "failed"), ("out/-", "teardown")},
    "return": set(),
    "delegation": set(),
    "power": set(),
    "saved": set(),
}  # fmt: skip
"""Rows on top: what a server does by itself, closes and ends that meet something pending, extends and modifies that
meet a unit that is being replaced, and what is harmless."""

UNNAMED["membership of a lease"] = {(f"{joint[0]}/-", "over") for joint in membership.TABLE}
TERMINAL = {
    "membership of a lease": set(),
    "membership of a unit": set(),
    "service manager": {"closed/-", "failed/-"},
    "broker": {"closed/-", "failed/-"},
    "authority": {"closed/-", "failed/-"},
    "unit": set(),
    "return": {"done/-"},
    "delegation": {"refused/-", "ended/-"},
    "power": set(),
    "saved": {"gone/-"},
}


def name(joint: tuple[str, str]) -> str:
    """``state/pending``."""
    return "/".join(joint)


def rows(machine: Machine) -> dict[tuple[str, str], str]:
    """The table, flat."""
    return {
        (name(joint), event): name(after) for joint, events in machine.table.items() for event, after in events.items()
    }


def specified(machine: str) -> dict[tuple[str, str], str]:
    """What :data:`SPECIFIED` says, flat."""
    lines = [line.split() for line in SPECIFIED[machine].strip().splitlines()]
    return {(before, event): after for before, event, after in lines}


@pytest.mark.parametrize("machine", MACHINES)
def test_rows_of_the_specification(machine: str) -> None:
    """The table holds every row of the specification, and nothing that isn't listed here with it."""
    table, expected = rows(MACHINES[machine]), specified(machine)
    assert {key: table.get(key) for key in expected} == expected
    assert set(table) - set(expected) == UNNAMED[machine]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_pair_is_in_or_out(machine: str) -> None:
    """Each state, pending operation and event of a machine: either the table has it, or it is an error that names all
    three, and ``allows`` says which.
    """
    tested = MACHINES[machine]
    events = [*sorted({event for events in tested.table.values() for event in events}), "no_such_event"]
    states = {joint[0] for joint in tested.table}
    pendings = {joint[1] for joint in tested.table}
    refused = 0
    for joint in [(state, pending) for state in sorted(states) for pending in sorted(pendings)]:
        for event in events:
            if event in tested.table.get(joint, {}):
                assert tested.allows(joint, event)
                assert tested.next(joint, event) == tested.table[joint][event]
            else:
                refused += 1
                assert not tested.allows(joint, event)
                with pytest.raises(ProtocolError, match=f"no '{event}' in {joint[0]}/{joint[1]}") as caught:
                    tested.next(joint, event)
                assert caught.value.code == "out_of_turn"
    assert refused > len(states)


@pytest.mark.parametrize("machine", MACHINES)
def test_tables_are_closed(machine: str) -> None:
    """Every row leads to a state that has a row of its own; terminal states have empty ones, and are the only ones."""
    table = MACHINES[machine].table
    assert {after for events in table.values() for after in events.values()} <= set(table)
    assert {name(joint) for joint, events in table.items() if not events} == TERMINAL[machine]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_can_be_reached_and_left(machine: str) -> None:
    """From the first row every state can be reached, and from every state a terminal one, if there is any."""
    table = MACHINES[machine].table
    first = next(iter(table))
    reached, todo = {first}, [first]
    while todo:
        for after in table[todo.pop()].values():
            if after not in reached:
                reached.add(after)
                todo.append(after)
    assert reached == set(table)
    ends = {joint for joint, events in table.items() if not events}
    for _ in table:
        ends |= {joint for joint, events in table.items() if set(events.values()) & ends}
    assert ends == set(table) or not TERMINAL[machine]


def test_states_that_the_design_names() -> None:
    """Every state and pending operation of the design is in its table, or is missing for a reason."""
    design = {
        "service manager": (
            "nascent ticketed active active_ticketed closed failed",
            "ticketing redeeming extending_ticket extending_lease modifying closing close_wait",
        ),
        "broker": ("nascent ticketed closed failed", "ticketing extending_ticket"),
        "authority": ("ticketed active closed failed", "redeeming priming extending modifying closing"),
    }
    # What the specification has beside them: a modify in mid-term, an extension that is extended or taken back, notice.
    further = {"undoing", "withdrawing", "extending_further", "noticed"}
    extra = {"broker": {"modifying", "noticed"}, "service manager": further}
    for machine, (states, pendings) in design.items():
        table = MACHINES[machine].table
        assert {state for state, _ in table} == set(states.split())
        assert {pending for _, pending in table} == set(pendings.split()) | {NONE} | extra.get(machine, set())
    joins = {"blocked_redeem", "blocked_join", "joining", "joined", "leaving"}
    assert {state for state, _ in membership.TABLE} == joins | {membership.NOT_JOINED}


def test_what_records_are_asked_is_of_their_tables() -> None:
    """Each set of states by which a record is asked names states of its own table; a guest's lease has a phase in each
    joint state.
    """
    asked = 0
    for cls in (
        GuestLease,
        GuestUnit,
        Return,
        BrokerLease,
        SiteUnit,
        SiteLease,
        Delegation,
        Outage,
        SavedUnit,
        PlanHold,
        Topology,
    ):
        table = cls.machine.table
        for one in vars(cls).values():
            if isinstance(one, StateIn):
                assert one.states <= {state for state, _ in table}
            elif isinstance(one, PendingIn):
                assert one.pending <= {pending for _, pending in table}
            elif isinstance(one, JointIn):
                assert one.joints <= {*table}
            asked += isinstance(one, (StateIn, PendingIn, JointIn))
    assert asked > 50
    assert {*service_manager.PHASES} == {*service_manager.TABLE}


def test_states_of_the_specification_that_are_not_there() -> None:
    """Two pending operations that the specification names are not in the tables, for a reason."""
    missing = {
        "terminating": ("service manager", "a notice is a deadline on the record, beside what is pending"),
        "preempting": ("broker", "nothing preempts yet"),
    }
    for pending, (machine, _) in missing.items():
        assert pending not in {joint[1] for joint in MACHINES[machine].table}


def test_an_error_leaves_the_record_untouched() -> None:
    """An event that the table has no row for changes neither the record nor the log, and makes nothing dirty."""
    kernel = Kernel(ActorSettings())
    record = SimpleNamespace(machine=service_manager.MACHINE, id="x-1", state="closed", pending=NONE, reason="over")
    before = {**vars(record)}
    with pytest.raises(ProtocolError):
        kernel.fire(record, "extend", "why")
    assert vars(record) == before
    assert kernel.take() is None
