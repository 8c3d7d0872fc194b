"""The lean set-up: what it leaves out changes nothing of what is decided."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from leasekit.actors.base import Actor
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, UnitGroup
from leasekit.core.mappers import CloseLeaseEarly, RequestLease
from leasekit.core.protocol.codec import UnknownKind, decode_batch, encode_batch
from leasekit.core.steps import Action, Outgoing
from leasekit.core.time import Instant, Term
from leasekit.emulation import lean
from leasekit.emulation.compare.drive import drive
from leasekit.emulation.compare.works import WorkShape, generate
from leasekit.emulation.world import ActionModel, Outcome, instant
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.waiting import Backfill, BackfillSettings
from leasekit.stores.memory import MemoryStore

WORKS = generate(WorkShape(jobs=60, nodes=16, seed=3, load=1.5)).works


class Wired(lean.LeanWorld):
    """The same world, with the wire encoding, with records and timers, and with actions at guests."""

    def put(self, actor: Actor, model: ActionModel = instant, *, records: bool = True, log: bool = True) -> None:
        """As a whole world has them."""
        if isinstance(actor, ServiceManager):
            actor.membership._drives = True
        self.add(actor, MemoryStore(), model)

    def _send(self, sender: str, outgoing: Iterable[Outgoing]) -> None:
        for peer, message in outgoing:
            (copy,) = decode_batch(encode_batch([message]))
            assert not isinstance(copy, UnknownKind)
            super()._send(sender, [Outgoing(peer, copy)])


@pytest.mark.parametrize("suspension", ["none", "all"])
def test_wire_and_records_change_no_decision(suspension: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start, end and reason is the same as where messages are copied and records are kept."""
    settings = BackfillSettings(suspension=suspension)  # type: ignore[arg-type]
    plain = drive(WORKS, 16, Backfill(settings))
    monkeypatch.setattr(lean, "LeanWorld", Wired)
    whole = drive(WORKS, 16, Backfill(settings))
    assert plain.starts == whole.starts
    assert (plain.reasons, plain.suspended, plain.turns) == (whole.reasons, whole.suspended, whole.turns)
    assert (plain.suspensions > 0) == (suspension == "all")


def test_only_what_takes_no_time_is_done_at_once() -> None:
    """A decision is carried out at its instant, whoever has to do with it; an action that takes time ends later."""
    seen: list[tuple[Instant, str]] = []

    def model(action: Action) -> Outcome:
        return Outcome(50 if action.op == "setup" else 0, True, {}, "")

    site = AuthoritySettings(inventory=(UnitGroup(type="node", names=("a", "b")),))
    world = lean.lean_world(
        ["me"], Backfill(), {"nodes": (FirstFit(), site)}, model=model, start=1000,
        observe=lambda now, actor, changes: seen.extend(
            (now, row[2]) for table, _, row in changes if table == "log" and row is not None and actor == "me"
        ),
    )  # fmt: skip
    world.decide_at(2000, "me", RequestLease("node", 2, Term(2000, 9000)))
    world.decide_at(3000, "me", CloseLeaseEarly("another"))  # there is none: nothing comes of it
    world.run_until(5000)
    assert seen == [(2000, "ask"), (2000, "ticket"), (2000, "redeem"), (2050, "lease"), (2050, "joined")]
    assert world.next_at == 9000
