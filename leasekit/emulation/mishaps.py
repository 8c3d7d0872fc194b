"""What goes wrong in an emulation as its file says: when units fail and are repaired, actors are down, messages are
lost or late, units are in maintenance; and how often each was, for how long, and what was lost.

All is drawn by the emulation's seed and by what it concerns alone: another table, or another guest, changes no draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, permutations, repeat
from typing import Any, Final, NamedTuple

import attrs

from leasekit.actors.settings import AuthoritySettings
from leasekit.config.deployment import Deployment
from leasekit.config.failing import MaintenanceTable, NetworkTable, OutageTable, PartitionTable, Recurring
from leasekit.core.draws import Distribution, uniform
from leasekit.core.protocol.codec import decode_batch
from leasekit.core.steps import ActionDone, ActorLike, Received
from leasekit.core.time import HOUR, INSTANT_MAX, SECOND, Duration, Instant, Term, format_duration
from leasekit.emulation.clocks import Clock
from leasekit.emulation.failing import FailingWorld
from leasekit.emulation.pictures import emulation_of
from leasekit.emulation.recorder import Recorder
from leasekit.emulation.world import INPUTS

FAILED: Final = "a failure of the emulation"
Remake = Callable[[str], ActorLike]
"""Makes the actor of a name anew, as its daemon would when it starts."""


@attrs.define
class Mishap:
    """What a kind of mishap has come to: how often, for how many ms, and what was lost. ``delay`` is of messages."""

    times: int = 0
    spans: list[Term] = attrs.Factory(list)
    messages: int = 0
    actions: int = 0
    delay: Duration = 0
    batches: int = 0

    def plain(self, end: Instant) -> dict[str, Any]:
        """As JSON, of what was up to ``end``."""
        lasted = sum(max(0, min(span.end, end) - span.start) for span in self.spans)
        return {"times": self.times, "hours": lasted / HOUR, "messages_lost": self.messages,
                "actions_lost": self.actions,
                "mean_delay_s": self.delay / self.batches / SECOND if self.batches else None}  # fmt: skip


class _Line(NamedTuple):
    """What a table of the network says of batches from one actor to another."""

    table: NetworkTable
    mishap: Mishap
    numbers: Iterator[int]


class Mishaps:
    """Has them happen in a world, and keeps count."""

    def __init__(self, deployment: Deployment, world: FailingWorld, recorder: Recorder, remake: Remake) -> None:
        """``recorder`` tells of units that are out of service."""
        self._emulation, self._world, self._remake = emulation_of(deployment), world, remake
        self._actors = deployment.actors
        self._recorder = recorder
        self._found: dict[tuple[str, str], Mishap] = {}
        self._repairs: dict[tuple[str, str], tuple[Distribution | None, Callable[[], None]]] = {}
        self._drawn: dict[tuple[object, ...], Iterator[int]] = {}
        self._lines: dict[tuple[str, str], _Line] = {}
        self._latest: dict[tuple[str, str], Instant] = {}
        self._partitions: dict[tuple[str, str], Mishap] = {}
        self.clocks = {one.actor: Clock(one.ahead - one.behind) for one in self._emulation.clocks}
        """The clocks that are not right, by actor."""

    def begin(self) -> None:
        """Put all that will happen onto the world's calendar; its actors are in it."""
        emulation = self._emulation
        self._recorder.on_failure = self._out_of_service
        for number, failure in enumerate(emulation.failures):
            for site, type_, unit in self._units(failure.site, failure.type):
                again = partial(self._fail_later, number, failure.every, failure.repair, site, type_, unit)
                again()
        for number, outage in enumerate(emulation.outages):
            self._recur("outage", number, outage, outage.actor, partial(self._go_down, outage))
        for number, partition in enumerate(emulation.partitions):
            first = partition.sides[0][0]
            self._recur("partition", number, partition, first, partial(self._part, partition))
        for number, window in enumerate(emulation.maintenances):
            self._recur("maintenance", number, window, window.site, partial(self._maintain, window), window.notice)
        for sender, receiver in permutations(self._actors, 2):
            self._lay_line(sender, receiver)

    def summary(self, window: Term) -> list[dict[str, Any]]:
        """What each mishap has come to: its ``kind``, ``of`` what, how often, for how many hours (unit-hours of units),
        how many messages and actions were lost.
        """
        found = [
            {"kind": kind, "of": of, **mishap.plain(window.end)}
            for (kind, of), mishap in self._found.items()
            if mishap.times or mishap.messages or mishap.batches
        ]
        found += [
            {"kind": f"clock {'ahead' if clock.offset > 0 else 'behind'} by {format_duration(abs(clock.offset))}",
             "of": name, **Mishap(times=1, spans=[window]).plain(window.end)}
            for name, clock in self.clocks.items()
        ]  # fmt: skip
        units = []
        for site, types in self._recorder.outages.items():
            for type_, out in types.items():
                for kind, times, series in (
                    ("units fail", out.failed, out.broken), ("units in maintenance", out.maintained, out.in_window)
                ):  # fmt: skip
                    if times:
                        hours = series.mean(window) * window.length / HOUR
                        units.append({"kind": kind, "of": f"{site}: {type_}", **Mishap(times=times).plain(0),
                                      "hours": hours})  # fmt: skip
        return [*units, *found]

    # -- when --------------------------------------------------------------------------------------------------

    def _draw(self, spec: Distribution, *key: object) -> Duration:
        """A span of a tick at least: the next one of its key."""
        number = next(self._drawn.setdefault(key, count()))
        return max(self._emulation.tick, spec.draw(uniform(self._emulation.seed, *key, number)))

    def _mishap(self, kind: str, of: str) -> Mishap:
        return self._found.setdefault((kind, of), Mishap())

    def _recur(
        self, kind: str, number: int, when: Recurring, owner: str, begin: Callable[[Term], None], before: Duration = 0
    ) -> None:
        """Have something begin at its instants, ``before`` earlier, each time for as long as is drawn."""
        world, start = self._world, self._emulation.start
        ends = start + self._emulation.horizon

        def call(at: Instant) -> None:
            term = Term(at, at + self._draw(when.lasts, kind, number, "lasts"))
            world.call_at(max(world.now, at - before), owner, partial(happen, term))

        def happen(term: Term) -> None:
            begin(term)
            if when.every is not None:
                follow(term.end)

        def follow(after: Instant) -> None:
            assert when.every is not None, "it recurs"
            at = after + self._draw(when.every, kind, number, "every")
            if at < ends:
                call(at)

        for at in when.at:
            call(start + at)
        if when.every is not None:
            follow(start)

    # -- units -------------------------------------------------------------------------------------------------

    def _units(self, site: str, type_: str) -> Iterator[tuple[str, str, str]]:
        for name, actor in self._actors.items():
            if isinstance(actor.settings, AuthoritySettings) and site in ("", name):
                for group in actor.settings.inventory:
                    if type_ in ("", group.type):
                        yield from zip(repeat(name), repeat(group.type), group.names)

    def _fail_later(
        self, number: int, every: Distribution, repair: Distribution | None, site: str, type_: str, unit: str
    ) -> None:
        again = partial(self._fail_later, number, every, repair, site, type_, unit)
        at = self._world.now + self._draw(every, "failure", number, site, unit)
        if at < INSTANT_MAX:
            self._world.call_at(at, site, partial(self._fail, site, unit, repair, again))

    def _fail(self, site: str, unit: str, repair: Distribution | None, again: Callable[[], None]) -> None:
        """A unit fails: who watches it tells the site at once, or as soon as its daemon is there again."""
        world = self._world
        if not world.is_up(site):
            call = partial(self._fail, site, unit, repair, again)
            world.call_at(world.nodes[site].up_at, site, call)
            return
        self._repairs[site, unit] = repair, again
        if not world.command(site, "unit.fail", unit=unit, reason=FAILED).error:
            return
        if world.command(site, "unit.disable", unit=unit, reason=FAILED).error:  # it is out of service already
            del self._repairs[site, unit]
            again()
        else:
            world.fail_actions(site, unit, FAILED)

    def _out_of_service(self, at: Instant, site: str, unit: str) -> None:
        """A unit has failed, or its driver has: it is repaired after a while, if at all."""
        repair, again = self._repairs.pop((site, unit), (None, None))
        repair = repair or self._emulation.repair
        if repair is not None:
            back = at + self._draw(repair, "repair", site, unit)
            self._world.call_at(back, site, partial(self._repair, site, unit, again))

    def _repair(self, site: str, unit: str, again: Callable[[], None] | None) -> None:
        """As an operator would."""
        world = self._world
        if not world.is_up(site):
            world.call_at(world.nodes[site].up_at, site, partial(self._repair, site, unit, again))
            return
        world.command(site, "unit.enable", unit=unit)
        if again is not None:
            again()

    def _maintain(self, table: MaintenanceTable, term: Term) -> None:
        world, site = self._world, table.site
        mishap = self._mishap("maintenance", site)
        if not world.is_up(site):
            world.call_at(world.nodes[site].up_at, site, partial(self._maintain, table, term))
            return
        clock = self.clocks.get(site, Clock())
        start, end = clock.local(term.start), clock.local(term.end)
        asked = {"units": table.units, "type": table.type, "close": table.close}
        if end > clock.local(world.now):
            world.command(site, "maintenance.add", start=start, end=end, **asked)
            mishap.times += 1
            mishap.spans.append(term)

    # -- actors ------------------------------------------------------------------------------------------------

    def _go_down(self, table: OutageTable, term: Term) -> None:
        world, name = self._world, table.actor
        mishap = self._mishap("down", name)
        mishap.times += 1
        mishap.spans.append(term)
        if not world.is_up(name) and world.nodes[name].up_at >= term.end:
            return
        for _, _, _, kind, payload in world.take_down(name, term.end):
            if kind == INPUTS:
                mishap.messages += sum(isinstance(one, Received) for one in payload[1])
                mishap.actions += sum(isinstance(one, ActionDone) for one in payload[1])
        world.call_at(term.end, name, partial(self._come_back, name))

    def _come_back(self, name: str) -> None:
        world = self._world
        if not world.is_up(name):
            return  # another outage has begun since
        world.take_up(world.nodes[name], self._remake(name), world.now)
        for other in world.nodes:
            if other != name and not world.is_cut(name, other):
                world.connect(name, other)

    # -- the network -------------------------------------------------------------------------------------------

    def _part(self, table: PartitionTable, term: Term) -> None:
        mishap = self._mishap("partition", " | ".join(" ".join(side) for side in table.sides))
        mishap.times += 1
        mishap.spans.append(term)
        pairs = [
            (one, other)
            for one_side, other_side in permutations(table.sides, 2)
            for one in one_side
            for other in other_side
        ]
        for pair in pairs:
            self._world.cuts[pair] = max(term.end, self._world.cuts.get(pair, 0))
            self._partitions[pair] = mishap
        self._world.call_at(term.end, table.sides[0][0], partial(self._meet_again, pairs))

    def _meet_again(self, pairs: Sequence[tuple[str, str]]) -> None:
        world = self._world
        for one, other in pairs:
            if one < other and not world.is_cut(one, other) and world.is_up(one) and world.is_up(other):
                world.connect(one, other)

    def _lay_line(self, sender: str, receiver: str) -> None:
        tables = [one for one in self._emulation.networks if one.is_for(sender, receiver)]
        if tables:
            mishap = self._mishap("network", " - ".join(sorted((sender, receiver))))
            self._lines[sender, receiver] = _Line(tables[-1], mishap, count())
        off = [self.clocks.get(name, Clock()).offset for name in (sender, receiver)]
        if abs(off[0] - off[1]) > self._actors[receiver].settings.clock_skew:
            self._world.cuts[sender, receiver] = INSTANT_MAX
            self._partitions[sender, receiver] = self._mishap("clocks too far off", f"{sender} - {receiver}")

    def carry(self, sender: str, receiver: str, data: bytes) -> Instant | None:
        """When a batch of messages arrives that is sent now; None if it does not."""
        world, pair = self._world, (sender, receiver)
        if world.is_cut(sender, receiver):
            self._partitions[pair].messages += len(decode_batch(data))
            return None
        delay, line = self._emulation.message_latency, self._lines.get(pair)
        if line is not None:
            seed, number = self._emulation.seed, next(line.numbers)
            if line.table.loss and uniform(seed, "loss", *pair, number) < line.table.loss:
                line.mishap.messages += len(decode_batch(data))
                line.mishap.times += 1
                return None
            if line.table.delay is not None:
                delay = line.table.delay.draw(uniform(seed, "delay", *pair, number))
            line.mishap.delay += delay
            line.mishap.batches += 1
        at = max(world.now + delay, self._latest.get(pair, 0))
        self._latest[pair] = at
        if world.nodes[receiver].up_at > at:
            self._mishap("down", receiver).messages += len(decode_batch(data))
            return None
        return at
