"""A guest's slices as wholes: made, given login keys, closed; those that hold their redeems until all have tickets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from leasekit.actors.dispatch import command
from leasekit.actors.guest.decisions import check_name, text_of
from leasekit.actors.guest.endings import Endings
from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.transitions import Transitions
from leasekit.actors.kernel import Kernel
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import GuestLease, Slice
from leasekit.core.reasons import Code, Reason, said

KEY_MAX: Final = 4096


class Slices:
    """The slices of a guest."""

    def __init__(self, kernel: Kernel, records: Leases, endings: Endings, transitions: Transitions) -> None:
        self._kernel = kernel
        self._records = records
        self._endings = endings
        self._transitions = transitions
        self.closing: list[Callable[[str, Reason], None]] = []
        """Who is told, in order, of a slice that is to be closed, and why."""

    def settle(self, lease: GuestLease) -> None:
        """A lease has its ticket, or is over: a slice that holds its redeems goes on when every ticket is there, and
        closes when one was refused.
        """
        record = self._records.slices.get(lease.slice)
        if record is None or record.released or not record.hold:
            return
        members = self._records.of_slice(record.id)
        lost = next((other for other in members if other.state in (sm.FAILED, sm.CLOSED)), None)
        if lost is not None:
            record.refused = Reason(Code.LEASE_LOST, lost.id, lost.state).because(lost.reason)
            record.released = True
            self._kernel.touch(record)
            for other in members:
                self._endings.close_if_open(other, Reason(Code.SLICE_HOLDS_FOR_ALL).because(record.refused))
        elif sum(other.approved is not None for other in members) >= record.hold:
            record.released = True
            self._kernel.touch(record)
            for other in members:
                if other is not lease:
                    self._transitions.advance(other)

    @command("slice.create")
    def _create(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        name, hold = text_of(arguments, "name"), arguments.get("hold", 0)
        check_name("name", name)
        if not name or name in self._records.slices:
            raise CommandError(f"name: found {name!r}, expected a name that no slice has yet")
        if type(hold) is not int or not 0 <= hold <= 10_000:
            raise CommandError(f"hold: found {hold!r}, expected how many leases to wait for (0: none)")
        key = _key_text(arguments)
        record = Slice(name, hold, hold == 0, key=key)
        self._records.slices[name] = record
        self._kernel.touch(record)
        return {"slice": name, "hold": hold}

    @command("slice.key")
    def _set_key(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The slice's users log in with another key: units that are there are told, those to come get it."""
        name, key = text_of(arguments, "name"), _key_text(arguments)
        record = self._find(name)
        record.key = key
        self._kernel.touch(record)
        leases = [lease for lease in self._records.open.values() if lease.slice == name]
        for lease in leases:
            self._transitions.advance(lease)
        return {"slice": name, "leases": [lease.id for lease in leases]}

    def _find(self, name: str) -> Slice:
        record = self._records.slices.get(name)
        if record is None:
            known = ", ".join(self._records.slices) or "(none)"
            raise CommandError(f"name: no slice {name!r} here; there are {known}")
        return record

    @command("slice.close")
    def _close(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        name, text = text_of(arguments, "name"), text_of(arguments, "reason")
        reason = said(text) if text else Reason(Code.SLICE_CLOSED)
        for tell in self.closing:
            tell(name, reason)
        self._find(name)
        closed = []
        for lease in list(self._records.open.values()):
            if lease.slice == name and lease.suspends and lease.pending == sm.CLOSING:
                lease.closing = True  # its rest is not asked for
                self._kernel.touch(lease)
            elif lease.slice == name and not lease.closing and lease.pending not in (sm.CLOSING, sm.CLOSE_WAIT):
                self._endings.close(lease, reason)
                closed.append(lease.id)
        return {"slice": name, "closed": closed}


def _key_text(arguments: Mapping[str, Any]) -> str:
    key = text_of(arguments, "key").strip()
    if len(key) > KEY_MAX or any(not line.isprintable() for line in key.splitlines()):
        raise CommandError(f"key: expected OpenSSH public keys, a line each, at most {KEY_MAX} characters in all")
    return key
