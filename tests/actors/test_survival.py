"""Whatever peers send, in whatever order: an actor does not raise, stays in a legal state, and does not grow without
bound.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from actor_bench import Bench, Plan
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from wire_strategies import messages

from leasekit.actors.settings import BrokerSettings
from leasekit.actors.site.redeems import STRAYS_MAX
from leasekit.core.claims.signed import RELINQUISHMENT, state
from leasekit.core.leases import authority, broker, service_manager
from leasekit.core.protocol.codec import decode_message, encode_message
from leasekit.core.protocol.messages import (
    Accepted,
    CloseLease,
    Message,
    Redeem,
    Relinquish,
    Relinquished,
    RequestTicket,
)
from leasekit.core.reasons import Code
from leasekit.core.steps import Connected, Received, Tick
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit_simulation.faults.checkers import StateChecker
from leasekit_simulation.faults.twins import collections

M = TypeVar("M")
ROLES = {"guest": "guest", "broker": "broker", "site": "authority"}
TABLES = {"guest": service_manager.TABLE, "broker": broker.TABLE, "site": authority.TABLE}


class Recorded(Bench):
    """Remembers every message that was sent, so that some can be sent again, altered."""

    def __init__(self, plan: Plan | None = None) -> None:
        super().__init__(plan)
        self.all: list[tuple[str, str, Message]] = []
        self.listeners.append(StateChecker(ROLES.__getitem__))

    def transmit(self, sender: str, receiver: str, message: Message) -> None:
        """As the bench's, with a memory."""
        self.all.append((sender, receiver, message))
        super().transmit(sender, receiver, message)

    def latest(self, kind: type[M]) -> M:
        """The last message of a kind that anybody sent."""
        return next(message for _, _, message in reversed(self.all) if isinstance(message, kind))


def busy_bench() -> Recorded:
    """Leases in several states: active, extended, waiting, ticketed, closed, failed."""
    bench = Recorded()
    bench.start()
    for name, units, term in (
        ("a", 1, [2000, 2 * MINUTE]), ("b", 1, [2000, 2 * MINUTE]), ("c", 1, [MINUTE, 3 * MINUTE]),
        ("d", 1, [2000, 2 * MINUTE]), ("e", 9, [2000, 2 * MINUTE]),
    ):  # fmt: skip
        bench.command("guest", "lease.request", type="vm", units=units, term=term, name=name)
    bench.run_until(10 * SECOND)
    bench.command("guest", "lease.extend", lease="a", end=5 * MINUTE)
    bench.command("guest", "lease.modify", lease="b", units=2)
    bench.command("guest", "lease.close", lease="d")
    bench.run_until(20 * SECOND)
    bench.command("guest", "lease.request", type="vm", units=1, term=[20_000, HOUR], properties={"deferrable": "true"})
    bench.command("guest", "lease.modify", lease="b", configuration={"size": "small"})
    return bench


BUSY = busy_bench()
SENT = [message for _, _, message in BUSY.all]
LEASES = sorted({str(getattr(message, "lease", "")) for message in SENT} - {""})


@st.composite
def altered(draw: st.DrawFn) -> Message:
    """A message that was really sent, or any other one, with fields from other messages: real ids, tickets, statements,
    claims, and small numbers.
    """
    message = draw(st.sampled_from(SENT) | messages)
    changes: dict[str, Any] = {}
    for field in message.__struct_fields__:
        if draw(st.booleans()):
            continue
        if field == "lease":
            changes[field] = draw(st.sampled_from(LEASES) | st.just(f"{LEASES[0].rpartition('-')[0]}-99"))
        elif field in ("number", "update", "request"):
            changes[field] = draw(st.integers(0, 12) | st.just(2**63 - 1))
        else:
            kind = type(getattr(message, field))
            values = [
                getattr(other, field) for other in SENT if hasattr(other, field) and type(getattr(other, field)) is kind
            ]
            if values:
                changes[field] = draw(st.sampled_from(values))
    return decode_message(encode_message(replace(message, **changes)))  # type: ignore[return-value]


inputs = st.lists(
    st.tuples(st.sampled_from(sorted(ROLES)), altered(), st.sampled_from((0, 0, 0, 1, 1000, 30_000))), max_size=40
)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(victim=st.sampled_from(sorted(ROLES)), script=inputs)
def test_survives_any_messages(victim: str, script: list[tuple[str, Message, int]]) -> None:
    """Messages of any kind from any peer, time passing in between: nothing is raised, every record is in a state of its
    table, all parts together keep no more than some entries for each message, and the actor goes on after a restart.
    """
    bench = busy_bench()
    actor = bench.actor(victim)
    before = sum(count for _, count in collections(actor))
    for sender, message, pause in script:
        bench.receive(victim, "site" if sender == victim else sender, message)
        bench.run_until(bench.now + pause)
    for record in actor.leases.values():
        assert (record.state, record.pending) in TABLES[victim]
    after = sum(count for _, count in collections(actor))
    assert after <= before + 8 * len(script) + 100
    bench.crash(victim)
    bench.run_until(bench.now + 10 * MINUTE)
    for record in bench.actor(victim).leases.values():
        assert (record.state, record.pending) in TABLES[victim]
    assert bench.query(victim, "status")["role"] == ROLES[victim]


@pytest.mark.long
@given(script=st.lists(altered(), max_size=20))
def test_messages_to_an_actor_that_knows_nothing(script: list[Message]) -> None:
    """The same before anything has happened: no lease, no delegation, not even a tick."""
    bench = Bench()
    for name in ROLES:
        made = bench.make(name)
        for message in script:
            for peer in ROLES:
                if peer != name:
                    made.step(Received(peer, message))
                    made.step(Connected(peer))
        made.ready()
        made.step(Tick(HOUR))
        made.ready()
        made.wake_at()


def tag(bench: Bench) -> str:
    """What the ids of the guest's leases begin with."""
    return str(bench.actor("guest").keyring.tag)


def test_closes_of_unknown_leases_are_bounded() -> None:
    """A guest can't fill a site's memory with closes of leases that never were."""
    bench = Bench().start()
    for number in range(STRAYS_MAX + 50):
        bench.receive("site", "guest", CloseLease(f"{tag(bench)}-{number}", 1, b""))
    assert len(bench.actor("site").leases) == STRAYS_MAX


def test_waiting_requests_are_bounded() -> None:
    """A broker lets only so many requests wait, and says so to who asks for more."""
    bench = Bench(Plan(broker=BrokerSettings(pending_max=5))).start()
    properties = {"group_id": "g"}
    for number in range(20):
        message = RequestTicket(
            f"{tag(bench)}-{number}", 1, "new", "s", "vm", 1, Term(HOUR, 2 * HOUR), "", properties, b""
        )
        bench.receive("broker", "guest", message)
    assert bench.query("broker", "status")["waiting"] == 5
    assert len(bench.actor("broker").leases) == 5


def test_nobody_takes_another_holders_id() -> None:
    """A lease's id begins with its holder's tag: neither broker nor site makes one for somebody else."""
    bench = Bench(Plan(guests=("guest", "thief"))).start()
    request = RequestTicket(f"{tag(bench)}-1", 1, "new", "s", "vm", 1, Term(2000, HOUR), "", {}, b"")
    bench.receive("broker", "thief", request)
    bench.receive("site", "thief", CloseLease(f"{tag(bench)}-1", 1, b""))
    assert not bench.actor("broker").leases and not bench.actor("site").leases
    assert not bench.command("guest", "lease.request", type="vm", units=1, term=[2000, HOUR], name="web").error
    bench.run_until(10 * SECOND)
    assert bench.query("guest", "lease", lease="web")["state"] == "active"


def test_only_the_broker_ends_a_return() -> None:
    """A receipt is due to the broker until the broker says that it has it; a site can't say so in its place."""
    bench = Bench().start()
    bench.command("guest", "lease.request", type="vm", units=1, term=[MINUTE, HOUR], name="web")
    bench.run_until(5 * SECOND)
    bench.cut.add(frozenset(("guest", "broker")))
    bench.command("guest", "lease.close", lease="web")
    bench.run_until(8 * SECOND)
    (giving,) = bench.actor("guest").returns
    assert giving.state == "returning"
    bench.receive("guest", "site", Accepted(giving.lease, giving.number))
    assert len(bench.actor("guest").returns) == 1
    bench.cut.clear()
    bench.run_until(60 * SECOND)
    assert not bench.actor("guest").returns
    assert bench.query("broker", "sources")[0]["free_now"] == 4


def test_a_claim_in_use_is_not_given_back() -> None:
    """A claim that a modify waits to use can't be given back meanwhile: its time would be sold twice."""
    bench = Recorded(Plan(clocks={"guest": 2 * SECOND}))
    bench.start()
    bench.command("guest", "lease.request", type="vm", units=1, term=[2000, HOUR], name="web")
    bench.run_until(10 * SECOND)
    bench.command("guest", "lease.modify", lease="web", units=2)
    bench.run_until(bench.now + 500)
    (lease,) = bench.actor("site").leases.values()
    assert lease.next is not None and lease.next.op == "modify"
    note = state(bench.identity("guest"), RELINQUISHMENT, lease.next.claim, 12_000, lease.id).encode()
    ticket = bench.latest(Redeem).ticket
    bench.receive("site", "guest", Relinquish(lease.id, lease.number + 1, ticket, note))
    answer = bench.latest(Relinquished)
    assert answer.receipt == b"" and answer.reason.code == Code.CLAIM_IN_USE
    bench.run_until(bench.now + 10 * SECOND)
    assert len(bench.query("guest", "lease", lease="web")["units"]) == 2
