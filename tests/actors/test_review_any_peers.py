"""Well-formed messages of peers that lie: really signed, by any key, about any claim, out of order.

Nothing is raised, nothing is lost in a restart, and what is counted does not depend on whether there was one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasekit.actors.settings import ADMINISTER, DELEGATE, ENDORSE, PERMISSIONS
from leasekit.core.claims.claim import Claim, Ticket, decode_ticket, issue
from leasekit.core.claims.signed import CONTRACT, RECEIPT, RECLAIM, RELINQUISHMENT, TRUNCATION, Keypair, endorse, state
from leasekit.core.protocol.codec import decode_message, encode_message
from leasekit.core.protocol.messages import (
    Accepted,
    Ack,
    Administer,
    Administered,
    ClaimReport,
    CloseLease,
    ErrorReply,
    Introduce,
    LeaseUpdate,
    Message,
    Offer,
    OfferAnswer,
    Reclaim,
    Redeem,
    Relinquish,
    Relinquished,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    Truncated,
    Withdraw,
    Withhold,
)
from leasekit.core.reasons import Reason, said
from leasekit.core.steps import Command
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Term

NAMES = ("site", "upper", "lower", "web", "batch")
CHANGES: dict[str, Any] = {
    "actor.site.permissions": {"upper": {"may": [DELEGATE, ENDORSE, ADMINISTER]}, "lower": {"may": list(PERMISSIONS)}},
    "actor.upper.settings.endorse": True,
}
KINDS = (TRUNCATION, RELINQUISHMENT, RECEIPT, CONTRACT, RECLAIM)
INSTANTS = (0, 10 * SECOND, 61 * SECOND, 2 * MINUTE, 5 * MINUTE, 20 * MINUTE, HOUR, 2 * HOUR, DAY, 2**53 - 1)


def busy_world(folder: Any) -> DeployedWorld:
    """Leases in several states at both brokers, a renewal in hand and one accepted, a window, a return on its way."""
    world = DeployedWorld(CHAIN, folder, changes=CHANGES)
    may_go = {"preemptible": "true"}
    for guest, units, start, end, more in (
        ("web", 1, 2 * SECOND, 2 * MINUTE, {}), ("batch", 1, 2 * SECOND, 20 * MINUTE, may_go),
        ("web", 1, 2 * SECOND, HOUR, may_go), ("web", 1, HOUR, 2 * HOUR, {}), ("batch", 5, 2 * SECOND, HOUR, {}),
    ):  # fmt: skip
        world.request(guest, units, start, end, properties=more)
    world.pass_time(10 * SECOND)
    for guest in ("web", "batch"):
        world.command(guest, "lease.extend", lease=f"{world.guest(guest).keyring.tag}-1", end=2 * HOUR)
    world.run_until(MINUTE)
    world.command("web", "lease.modify", lease=f"{world.guest('web').keyring.tag}-2", end=30 * MINUTE)
    world.command("web", "lease.close", lease=f"{world.guest('web').keyring.tag}-3")
    world.command("site", "maintenance.add", start=5 * MINUTE, end=20 * MINUTE, units=["vm-5"], close=True)
    world.feed("upper", [Command(900, "peer.command", {"peer": "site", "command": "unit.disable", "arguments": {}})])
    world.pass_time(SECOND)
    return world


class Pool:
    """What may stand in a message: all that was really sent, and what any of the keys may sign about it."""

    def __init__(self, world: DeployedWorld) -> None:
        self.sent = [message for _, _, message in world.sent]
        self.signers = [world.nodes[name].actor.signer for name in NAMES]  # type: ignore[attr-defined]
        self.signers.append(Keypair(b"z" * 32))
        tickets = {getattr(m, "ticket", b"") for m in self.sent} - {b""}
        self.tickets = [decode_ticket(data) for data in sorted(tickets)]
        self.ids = sorted({str(getattr(m, "lease", "")) for m in self.sent} - {""})
        self.delegations = ["site/vm@upper", "upper/vm@lower", "lower/vm@upper", "x"]

    def ticket(self, draw: st.DrawFn) -> bytes:
        """A ticket as it is, or with another leaf at its end, or without its own."""
        found = draw(st.sampled_from(self.tickets))
        shape = draw(st.integers(0, 5))
        if shape == 0:
            return found.encode()
        if shape == 1:
            return Ticket(found.chain[: max(1, len(found.chain) - 1)]).encode()
        if shape == 2:
            return b""
        return Ticket((*found.chain, self._child(draw, found.leaf))).encode()

    def _child(self, draw: st.DrawFn, parent: Claim) -> Claim:
        start = draw(st.sampled_from([t for t in INSTANTS if t < parent.term.end]))
        ends = [t for t in (*INSTANTS, parent.term.end) if t > start]
        by = [signer for signer in self.signers if signer.public == parent.holder]
        return issue(
            draw(st.sampled_from(by or self.signers)), holder=draw(st.sampled_from(self.signers)).public,
            type=parent.type, units=((parent.classes[0][0], draw(st.integers(1, parent.units))),),
            term=Term(start, draw(st.sampled_from(ends))),
            serial=draw(st.integers(0, 3)), degree=draw(st.sampled_from((1000, 1000, 1500))),
            parent=parent.digest,
            constraints=draw(st.sampled_from(({}, {"preemptible": "true"}, {"ready_at": "x"}))),
        )  # fmt: skip

    def statement(self, draw: st.DrawFn, ticket: bytes = b"") -> bytes:
        """A statement by any key about any claim, mostly of the ticket beside it, by its issuer or holder."""
        if draw(st.integers(0, 9)) == 0:
            return b""
        about = decode_ticket(ticket) if ticket and draw(st.integers(0, 3)) else draw(st.sampled_from(self.tickets))
        claim = draw(st.sampled_from(about.chain)) if draw(st.booleans()) else about.leaf
        fit = [s for s in self.signers if s.public in (claim.issuer, claim.holder)]
        signer = draw(st.sampled_from(fit if fit and draw(st.integers(0, 3)) else self.signers))
        detail = draw(st.sampled_from(("", "", "x", *self.ids, *map(str, INSTANTS))))
        return state(
            signer, draw(st.sampled_from(KINDS)), claim.digest, draw(st.sampled_from(INSTANTS)), detail
        ).encode()

    def endorsement(self, draw: st.DrawFn) -> bytes:
        """Any key's word that another's is somebody's."""
        signer, other = draw(st.sampled_from(self.signers)), draw(st.sampled_from(self.signers))
        name, role = draw(st.sampled_from((*NAMES, "new"))), draw(st.sampled_from(("guest", "site", "broker")))
        return endorse(signer, other.public, draw(st.sampled_from(INSTANTS)), name=name, role=role).encode()

    def message(self, draw: st.DrawFn) -> Message:
        """Any message with such contents; numbers are those that are really used, or others."""
        ticket = self.ticket(draw)
        lease, number = draw(st.sampled_from(self.ids)), draw(st.integers(0, 12) | st.just(2**63 - 1))
        delegation, term = draw(st.sampled_from(self.delegations)), draw(st.sampled_from(self.tickets)).leaf.term
        note, op = self.statement(draw, ticket), draw(st.sampled_from(("new", "extend", "modify")))
        status = draw(st.sampled_from(("granted", "refused", "closed", "terminating", "active", "failed")))
        at, units = draw(st.sampled_from(INSTANTS)), draw(st.integers(0, 7))
        claim = decode_ticket(ticket).leaf.digest if ticket else b""
        code = draw(st.sampled_from(("replaced", "overdelegated")))
        command = draw(st.sampled_from(("delegation.reclaim", "maintenance.add", "peer.remove", "unit.disable", "x")))
        arguments = draw(
            st.sampled_from(
                (
                    f'{{"delegation": "site/vm@upper", "at": {at}}}',
                    '{"name": "web"}',
                    '{"unit": "vm-0"}',
                    "[" * 1500,
                    "{}",
                )
            )
        )
        made: Message = draw(
            st.sampled_from(
                (
                    Offer(delegation, number, ticket, {}, "elsewhere"), OfferAnswer(delegation, number, None, at),
                    OfferAnswer(delegation, number, said("no")), Reclaim(delegation, number, ticket, note),
                    Withhold(delegation, number, f"window-{units}", units, term, "why"),
                    Truncated(lease, number, ticket, note), Relinquish(lease, number, ticket, note),
                    Relinquished(lease, number, note, said("why")), ReturnTicket(lease, number, note),
                    Introduce("new", number, self.endorsement(draw)), CloseLease(lease, number, note),
                    ClaimReport(claim.hex() or "x", number, Reason(code, detail="why")),
                    Administer(command, number, arguments), Administered("unit.disable", number, arguments, ""),
                    Accepted(lease, number), Accepted(delegation, number), Ack(lease, number),
                    Withdraw(lease, number, 1),
                    ErrorReply(lease, number, Reason("unknown_lease", detail="why")),
                    ErrorReply(delegation, number, Reason("busy", detail="why")),
                    TicketUpdate(
                        lease, number, units, status, ticket, "site", {}, note, said("why"), at, self.endorsement(draw)
                    ),
                    LeaseUpdate(lease, number, units, status, term, (), said("why"), note, note),
                    Redeem(lease, number, op, "s", ticket, {}, {}, (), note),
                    RequestTicket(lease, number, op, "s", "vm", units or 1, term, "", {"preemptible": "true"}, claim),
                )
            )
        )  # fmt: skip
        return decode_message(encode_message(made))  # type: ignore[return-value]


@cache
def pool(folder: Any) -> Pool:
    """What there is in a busy world: the same in each."""
    return Pool(busy_world(folder))


def counted(world: DeployedWorld, name: str) -> Any:
    """What an actor counts from now on: units free at instants to come, its leases, delegations, peers and windows."""
    instants = [t for t in INSTANTS[:-1] if t > world.now]
    if name == "site":
        tables = {"vm": world.site().calendars.of("vm")}
    elif name in ("upper", "lower"):
        book = world.broker(name).book
        tables = {row["source"]: book.table(row["source"]) for row in world.query(name, "sources")}
    else:
        tables = {}
    leases = list(world.nodes[name].actor.leases.values())  # type: ignore[attr-defined]
    queries = {
        "site": ("peers", "delegations", "maintenance", "claims", "evidence"), "upper": ("peers", "delegations"),
        "lower": ("peers", "delegations"), "web": ("peers", "returns"), "batch": ("peers", "returns"),
    }  # fmt: skip
    return (
        {id_: [table.free_at(t) for t in instants] for id_, table in tables.items()},
        {query: sorted(map(str, world.query(name, query))) for query in queries[name]},
        {lease.id: (lease.state, lease.pending) for lease in leases if lease.ended < 0},
    )


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_lies(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whoever tells them to whomever, in any order, over time and restarts."""
    folder = tmp_path_factory.mktemp("lies", numbered=True)
    world, sources = busy_world(folder), pool(tmp_path_factory.getbasetemp())
    victim = data.draw(st.sampled_from(NAMES))

    @st.composite
    def lie(draw: st.DrawFn) -> tuple[str, Message, int]:
        sender = draw(st.sampled_from([name for name in NAMES if name != victim]))
        return sender, sources.message(draw), draw(st.sampled_from((0, 0, 0, 1, SECOND, 2 * MINUTE)))

    for sender, message, pause in data.draw(st.lists(lie(), max_size=15)):
        world.receive(victim, sender, message)
        world.pass_time(pause)
    world.feed(victim, [])
    before = counted(world, victim)
    node = world.nodes[victim]
    fresh = world._built(victim)
    fresh.restore(node.store.load())
    node.actor = fresh
    assert counted(world, victim) == before
    world.restart(victim)
    world.pass_time(3 * HOUR)
    assert world.query(victim, "status")["name"] == victim
