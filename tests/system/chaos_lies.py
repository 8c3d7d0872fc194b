"""Histories that did not happen: what daemons did, with one thing changed that a checker must not let pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from system.chaos_journal import Record
from system.chaos_replay import Change
from system.chaos_tap import OUT, RESTORED, TAKEN
from system.chaos_world import BROKERS, SITES

from leasekit.core.protocol.codec import decode_message
from leasekit.core.protocol.messages import Redeem, TicketUpdate
from leasekit.core.steps import ActionDone


def _without_teardowns(record: Record) -> Record:
    """Sites tear nothing down, and give units to the next."""
    if record.what != OUT or record.who not in SITES:
        return record
    kept = [action for action in record.contents.actions if action[1] != "teardown"]
    return record._replace(contents=record.contents._replace(actions=kept))


def _numbers_skipped(record: Record) -> Record:
    """Brokers leave out the first update of each lease."""
    if record.what != OUT or record.who not in BROKERS:
        return record
    sent = [
        (peer, data) for peer, data in record.contents.messages
        if not (isinstance(message := decode_message(data), TicketUpdate) and message.update == 1)
    ]  # fmt: skip
    return record._replace(contents=record.contents._replace(messages=sent))


def _unasked_acceptances(record: Record) -> Record:
    """Sites never got the redeems that they answer."""
    if record.what != TAKEN or record.who not in SITES:
        return record
    inputs = [
        entry for entry in record.contents.inputs
        if isinstance(entry, ActionDone) or not isinstance(decode_message(entry[1]), Redeem)
    ]  # fmt: skip
    return record._replace(contents=record.contents._replace(inputs=inputs))


def _units_not_up(record: Record) -> Record:
    """No setup at a site ever ends."""
    if record.what != TAKEN or record.who not in SITES:
        return record
    inputs = [entry for entry in record.contents.inputs if not isinstance(entry, ActionDone)]
    return record._replace(contents=record.contents._replace(inputs=inputs))


def _forgetful_sites(record: Record) -> Record:
    """Sites come back from a crash without a lease."""
    if record.what != RESTORED or record.who not in SITES:
        return record
    return record._replace(contents=record.contents._replace(leases={}))


def _each(change: Callable[[Record], Record]) -> Change:
    def changed(records: Iterator[Record]) -> Iterator[Record]:
        return map(change, records)

    return changed


LIES: Final[dict[str, Change]] = {
    change.__doc__ or "": _each(change)
    for change in (_without_teardowns, _numbers_skipped, _unasked_acceptances, _units_not_up, _forgetful_sites)
}
"""Changes of a history, by what they make of it."""
