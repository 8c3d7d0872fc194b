"""A day of messages of two hostile peers with real keys, in virtual time: what actors keep stays flat."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.actors.settings import DELEGATE, ENDORSE, REDEEM, REQUEST
from leasekit.core.claims import tree
from leasekit.core.claims.signed import RECEIPT, RECLAIM, RELINQUISHMENT, TRUNCATION, Keypair, endorse, state
from leasekit.core.protocol.messages import (
    Accepted,
    Ack,
    Administer,
    ClaimReport,
    CloseLease,
    DryRun,
    ErrorReply,
    Holdings,
    Introduce,
    LeaseUpdate,
    LetGo,
    Message,
    Offer,
    OfferAnswer,
    Plan,
    Quote,
    Reclaim,
    Redeem,
    ReleaseParts,
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
from leasekit.core.time import HOUR, MINUTE, SECOND, Term

VICTIMS = ("site", "upper", "batch")
HOSTILE = ("web", "lower")
MAY: dict[str, Any] = {peer: {"open_requests": 30, "may": [REQUEST, REDEEM, DELEGATE, ENDORSE]} for peer in HOSTILE}
LIMITS: dict[str, Any] = {
    **{f"actor.{victim}.settings.introductions_max": 3 for victim in VICTIMS},
    **{f"actor.{victim}.permissions": MAY for victim in VICTIMS},
}
RECENT = 200
"""Which lease a message concerns is one of so many, the last ones: so all hours are alike, and nothing but what is
never let go of grows."""
GROWTH_MAX = 12 * 1024
"""By how many bytes quiet actors may differ: less than a hundred bytes for each of the 200 messages of any kind that
each gets between."""
QUIET = 8 * HOUR
"""After so long deferrable requests have run, and even what their holder never acknowledged is forgotten."""
_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType, CodeType)


class Hostile:
    """What a peer says next: mostly of its own, now and then of what others have."""

    def __init__(self, world: DeployedWorld, seed: int) -> None:
        self.world = world
        self.random = Random(seed)
        self.count = 0

    def message(self, sender: str) -> Message:
        """Any message."""
        draw, now = self.random, self.world.now
        self.count += 1
        actor: Any = self.world.nodes[sender].actor
        tag, signer = actor.keyring.tag, draw.choice((actor.signer, Keypair(self.count.to_bytes(32, "big"))))
        recent = 1_000 + max(0, self.count - draw.randrange(RECENT))
        lease = f"{draw.choice((tag, tag, self.world.guest('batch').keyring.tag))}-{recent}"
        start = max(0, now + draw.choice((-HOUR, 0, SECOND, MINUTE, 20 * MINUTE)))
        term = Term(start, start + draw.choice((1, SECOND, 5 * MINUTE, HOUR)))
        tickets = [m.ticket for _, _, m in self.world.sent[-50:] if getattr(m, "ticket", b"")]
        ticket = draw.choice(tickets or [b""])
        digest = draw.randbytes(32)
        note = state(signer, draw.choice((TRUNCATION, RELINQUISHMENT, RECEIPT, RECLAIM)), digest, now, "x").encode()
        word = endorse(signer, digest, now, name=f"peer-{self.count}", role=draw.choice(("guest", "site"))).encode()
        wishes: tuple[dict[str, str], ...] = (
            {}, {"deferrable": "true"}, {"group_id": f"g{self.count % 50}"}, {f"x{self.count}": "y" * 200}
        )  # fmt: skip
        wish, number = draw.choice(wishes), draw.choice((1, self.count, 2**62))
        op, delegation = draw.choice(("new", "extend", "modify")), f"{tag}/vm@{self.count}"
        type_, slice_ = draw.choice(("vm", f"t{self.count}")), f"s{self.count}"
        makes: tuple[Callable[[], Message], ...] = (
            lambda: RequestTicket(lease, number, op, slice_, type_, 1, term, "", wish, b""),
            lambda: RequestTicket(lease, number, "new", "s", "vm", 1, term, "", {"deferrable": "true"}, b""),
            lambda: DryRun(lease, number, "vm", 1, term, "", wish),
            lambda: Withdraw(lease, number, 1), lambda: CloseLease(lease, number, note),
            lambda: Redeem(lease, number, op, f"s{self.count}", ticket, {}, wish, (), b""),
            lambda: Relinquish(lease, number, ticket, note), lambda: ReturnTicket(lease, number, note),
            lambda: Truncated(lease, number, ticket, note), lambda: Relinquished(lease, number, note, said("x")),
            lambda: TicketUpdate(lease, number, 1, "granted", ticket, "site", {}, note, None, -1, word),
            lambda: LeaseUpdate(lease, number, 1, "active", term, (), None, note, note),
            lambda: Offer(delegation, number, ticket, {slice_: "y"}), lambda: LetGo(delegation, number, ticket, now),
            lambda: OfferAnswer(delegation, number, None, now), lambda: Reclaim(delegation, number, ticket, note),
            lambda: Withhold(delegation, number, f"w{self.count}", 1, term, "x"),
            lambda: Introduce(f"peer-{self.count}", number, word), lambda: Ack(lease, number),
            lambda: Holdings((digest,)),
            lambda: ClaimReport(digest.hex(), number, Reason("replaced")), lambda: Accepted(lease, number),
            lambda: ErrorReply(lease, number, Reason("busy", detail=f"x{self.count}")),
            lambda: Administer("peer.add", number, "{}"), lambda: Quote(lease, number, term, ("vm",)),
            lambda: Plan(f"{tag}-{self.count}", number, "hold", b"{}"), lambda: ReleaseParts(lease, number),
        )  # fmt: skip
        return draw.choice(makes)()


def size_of(actor: object) -> int:
    """The bytes of all that is reached from an actor, code apart."""
    seen, total, waiting = set(), 0, [actor]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _CODE):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        waiting += gc.get_referents(thing)
    return total


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_day_of_hostile_messages(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever hostile peers have been quiet for some hours, an actor has no more rows than the first time, and takes
    no more memory; an honest guest has its leases all day.
    """
    monkeypatch.setattr(tree, "TIDY_MIN", 4)  # children of a claim that are over are let go of soon
    world = DeployedWorld(CHAIN.replace("1d", "3d"), tmp_path, changes=LIMITS)
    world.site().claims.tree._early_max = 20  # as many ends of claims that never were are kept
    for victim in VICTIMS:
        world.nodes[victim].actor.kernel.tidy_every = 1  # what is past is let go of at once
    hostile = Hostile(world, seed)
    sizes: dict[str, list[int]] = {victim: [] for victim in VICTIMS}
    rows: dict[str, list[int]] = {victim: [] for victim in VICTIMS}
    served = 0
    for hour in range(24):
        lease = world.request("batch", 1, world.now, world.now + 55 * MINUTE, properties={"deferrable": "true"})
        for _minute in range(50):
            for _ in range(20):
                sender = hostile.random.choice(HOSTILE)
                victim = hostile.random.choice(VICTIMS)
                world.receive(victim, sender, hostile.message(sender))
            world.pass_time(MINUTE)
            del world.sent[:-200]
        served += world.lease("batch", lease)["state"] in ("ticketed", "active")
        world.pass_time(10 * MINUTE)
        if hour % 8 == 7:
            world.pass_time(QUIET)
            for victim in VICTIMS:
                node = world.nodes[victim]
                sizes[victim].append(size_of(node.actor))
                rows[victim].append(sum(map(len, node.store.load().values())))
    assert served > 20, "an honest guest has leases"
    for victim in VICTIMS:
        introduced = 3 * len(HOSTILE)
        assert max(rows[victim][1:]) <= rows[victim][0] + introduced, (victim, rows)
        assert max(sizes[victim][1:]) < sizes[victim][0] + GROWTH_MAX, (victim, sizes)
