"""Whose leases are, and those whose holder must be heard of: one that falls silent for too long is closed, so that
nobody's dead job keeps units.

Holders speak through a gateway. Silence counts only while a gateway says that it is there: after an outage of the
gateway, or of this actor, it counts anew, so that no outage of theirs ends a job that lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import attrs

from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.lifecycle import Endings
from leasekit.actors.kernel import Kernel, command, keeps
from leasekit.core.answers import HandedLease, KeptAlive, Present
from leasekit.core.commands import HandLease, KeepAlive, SayPresent
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import GuestLease
from leasekit.core.reasons import Code, Reason, said
from leasekit.core.requests import keepalive_of
from leasekit.core.schema import Row
from leasekit.core.time import Duration, Instant, format_duration


@attrs.define(slots=True, eq=False)
class Keepalive:
    """A lease whose holder may be silent for ``length``, and was ``heard`` of last; that is not kept."""

    table: ClassVar[str] = "keepalives"
    id: str
    length: Duration
    heard: Instant = 0
    timer: Instant | None = None

    def row(self) -> Row:
        """Its row."""
        return (self.id, self.length)


@keeps(rows="_kept", volatile="_present_until")
class Keepalives:
    """Which leases must be heard of, and whether a gateway is there that would say so."""

    def __init__(self, kernel: Kernel, records: Leases, endings: Endings) -> None:
        self._kernel, self._records, self._endings = kernel, records, endings
        self._kept: dict[str, Keepalive] = {}
        self._present_until: Instant = -1
        kernel.register(Keepalive, due_at=self._due_at, on_due=self._silent)

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept: silence counts from when a gateway is there."""
        for id_, length in rows:
            self._kept[id_] = Keepalive(id_, length)

    def begun(self, lease: GuestLease) -> None:
        """A lease was asked for, which may say that it must be heard of."""
        length = keepalive_of(lease.asked.properties)
        if length:
            self._keep(lease, length)

    @command("lease.keepalive")
    def _hear(self, asked: KeepAlive) -> KeptAlive:
        lease = self._open(asked.lease)
        record = self._kept.get(lease.id)
        if asked.length is None and record is None:
            raise CommandError(f"lease {lease.id} need not be heard of: say for how long it may be silent (length)")
        if record is None or (asked.length or record.length) != record.length:
            record = self._keep(lease, asked.length or 0)
        record.heard = self._kernel.now
        self._kernel.schedule(record, self._due_at(record))
        return KeptAlive(lease.id, record.length, record.heard + record.length)

    @command("lease.hand")
    def _hand(self, asked: HandLease) -> HandedLease:
        """Only its history says whose a lease is; the new holder may be silent for as long as the old one might."""
        lease = self._open(asked.lease)
        record = self._kept.get(lease.id)
        why = Reason(Code.HANDED, who=asked.to)
        self._kernel.note(lease.id, "handed", "", "", why.because(said(asked.reason)) if asked.reason else why)
        if record is not None:
            record.heard = self._kernel.now
            self._kernel.schedule(record, self._due_at(record))
        return HandedLease(lease.id, asked.to)

    def _open(self, name: str) -> GuestLease:
        lease = self._records.find(name)
        if lease.is_over:
            raise CommandError(f"lease {lease.id} is {lease.state} already")
        return lease

    @command("gateway.present")
    def _here(self, asked: SayPresent) -> Present:
        now, was_away = self._kernel.now, self._kernel.now > self._present_until
        self._present_until = now + asked.length
        for record in list(self._kept.values()) if was_away else ():
            record.heard = now
            self._kernel.schedule(record, self._due_at(record))
        return Present(self._present_until)

    def _keep(self, lease: GuestLease, length: Duration) -> Keepalive:
        record = self._kept[lease.id] = Keepalive(lease.id, length, self._kernel.now)
        self._kernel.touch(record)
        return record

    def _due_at(self, record: Keepalive) -> Instant | None:
        return record.heard + record.length if self._present_until >= self._kernel.now else None

    def _silent(self, record: Keepalive) -> None:
        lease = self._records.by_id.get(record.id)
        if lease is not None and not lease.is_over and not lease.is_closing:
            if self._present_until < record.heard + record.length:
                self._kernel.forget(record)  # nobody would have said so: it counts anew when a gateway is there
                return
            reason = Reason(Code.NOT_HEARD, who=lease.id, detail=format_duration(record.length))
            self._endings.close_if_open(lease, reason)
        del self._kept[record.id]
        self._kernel.erase(record)
