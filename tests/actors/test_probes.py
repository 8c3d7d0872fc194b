"""Asking a broker what it would answer: true answers, in bounded time, that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from actor_bench import Bench, Mappers, Plan
from bad_mappers import BAD_MAPPERS

from leasekit.actors.broker_probes import PEER_PROBES_MAX
from leasekit.actors.guest_desk import PROBE_TIMEOUT
from leasekit.core.mappers import BrokerCycle, Grant, Preempt, Wake
from leasekit.core.protocol.messages import Probe, ProbeAnswer
from leasekit.core.steps import Command, Received
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit.policies.registry import mapper_maker

NOW = SECOND


def bench(policy: str = "fcfs", guests: tuple[str, ...] = ("guest",), **settings: Any) -> Bench:
    """A site of four units under a broker with a standard mapper."""
    return Bench(Plan(guests=guests), Mappers(broker=mapper_maker(policy, "broker", settings, "mapper", {}))).start()


def ask(world: Bench, units: int = 1, start: int = NOW, hours: float = 1, **more: Any) -> dict[str, Any]:
    """The answer to a question, which must come within a second."""
    reply = world.command("guest", "lease.probe", type="vm", units=units, term=[start, start + int(hours * HOUR)], **more)
    assert reply is None or reply.error
    if reply is None:
        world.run_until(world.now + SECOND)
        reply = world.replies[world._commands]
    assert not reply.error, reply.error
    answer: dict[str, Any] = reply.result
    return answer


def lease(world: Bench, units: int, start: int = NOW, hours: float = 1, **more: Any) -> str:
    """A lease that is asked for in earnest."""
    reply = world.command(
        "guest", "lease.request", type="vm", units=units, term=[start, start + int(hours * HOUR)], **more
    )
    world.run_until(world.now + SECOND)
    return str(reply.result["id"])
