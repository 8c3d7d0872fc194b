"""The words for people: what reasons say, and how things are counted and named in messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from leasekit.core.reasons import Code, Reason, mark

WORDS: Final[Mapping[str, str]] = {
    # wanted by somebody
    Code.CLOSED_BY_GUEST: "closed by its guest",
    Code.CLOSED_BEFORE_NOTICE: "closed by its guest, before it was to end at {at}",
    Code.CLOSED_UNREDEEMED: "closed before it was redeemed",
    Code.SLICE_CLOSED: "its slice was closed",
    Code.WITHDRAWN: "its guest gave the request up",
    Code.REQUEST_REPLACED: "a later request was made",
    Code.GIVEN_BACK: "its claim was given back",
    Code.GIVEN_BACK_BEFORE: "its holder had given the claim back",
    Code.CLAIM_IN_USE: "lease {who} is using the claim: close the lease instead",
    Code.EXTEND_TAKEN_BACK: "its guest takes the extend back",
    Code.RELEASED: "{who} released it",
    Code.SUSPENDED_BY: "{who} suspends it",
    Code.ENDED_BY: "{who} ends it early",
    Code.ENDED_ABOVE: "its ticket, or one above it, was ended early",
    Code.ENDS_AT: "ends at {at}",
    Code.PREEMPTED_BY: "the lease is preempted",
    Code.SEVERAL: "",
    Code.ACCEPTED_MEANWHILE: "accepted meanwhile",
    Code.MAINTENANCE: "{detail} ({who}, until {until})",
    # what became of another
    Code.LEASE_LOST: "lease {who} is {what}",
    Code.REDEEM_PREDECESSOR: "its redeem predecessor {who} is {what}",
    Code.JOIN_PREDECESSOR: "its join predecessor {who} is {what}",
    Code.SLICE_HOLDS_FOR_ALL: "its slice holds for all",
    Code.GROUP_REFUSED: "a member of its group was refused",
    Code.GROUP_WITHDRAWN: "a member of its group was withdrawn",
    Code.GROUP_INCOMPLETE: "only {units} of {of} requests of group {what!r} arrived in time",
    Code.TOPOLOGY_FAILED: "its topology came to nothing",
    Code.PARTS_UNASKED: "its plan's other parts are not asked for yet",
    # too late
    Code.TERM_OVER: "its term is over",
    Code.TERM_UNUSED: "its term ended before it could be redeemed",
    Code.NOT_GRANTED: "not granted in time",
    Code.HOLD_EXPIRED: "hold expired",
    Code.START_PAST: "its latest start, {at}, is past: it is {now} at {who}",
    Code.NO_TICKET: "no answer from broker {who} in time",
    Code.NO_TICKET_TO_GO_ON: "no answer from broker {who} before the lease is to go on",
    Code.TICKETS_LATE: "not all of its tickets came in time",
    Code.NO_LEASE: "site {who} did not make the lease before its term ended",
    Code.NO_EXTEND: "site {who} did not extend the lease in time",
    Code.NO_MODIFY: "site {who} did not modify the lease in time",
    Code.NO_UNDO: "its extension was taken back, which site {who} has not confirmed in time",
    Code.NO_CLOSE: "site {who} never confirmed the close",
    Code.UNDO_LATE: "the extension had begun, and was not undone",
    Code.SILENT: "{who} did not answer in time",
    # mappers, and what they plan
    Code.MAPPER: "{detail}{fits}",
    Code.MAPPER_FAILED: "the broker's mapper has failed on it",
    Code.MAPPER_SILENT: "the broker's mapper doesn't decide it now",
    Code.MAPPER_WRONG: "the broker's mapper decided what can't be carried out",
    Code.NOT_OFFERED: "no site offers {what!r} here yet",
    Code.NO_PLAN: "the broker's mapper found no plan, and did not say why",
    Code.NOT_HELD: "a plan to start at {at} could not be held",
    Code.PLAN_UNUSABLE: "{who}'s plan can't be leased",
    Code.TICKET_UNUSABLE: "the broker's ticket can't be believed",
    Code.NOTHING_TO_HOLD: "there is nothing to hold, or its time is over",
    Code.PARTS_ALIKE: "two parts have one name",
    Code.HOLDS_OTHER: "{who} holds something else under {what}",
    Code.PLANS_MAX: "{who} holds {units} plans for {what}, its limit",
    Code.PLANS_OF_GUEST_MAX: "{who} holds {units} plans of {what} for the same guest, its limit",
    Code.NO_PEER: "{who} is no peer any more",
    Code.HELD_UNTIL: "it was held until {at}",
    Code.NOT_GRANTABLE: "{who}",
    Code.SAYS: "{who}",
    Code.OTHER_DELEGATION: "{who}: {what} is another delegation by now",
    Code.UNITS_OUT: "{who}: units of {what} were taken out of service meanwhile",
    # units
    Code.UNIT: "unit {who}",
    Code.FOR_LEASE: "for lease {who}",
    Code.SETUP_FAILED: "setup failed",
    Code.TEARDOWN_FAILED: "teardown failed",
    Code.MODIFY_FAILED: "modify failed",
    Code.JOIN_FAILED: "join failed",
    Code.LEAVE_FAILED: "leave failed",
    Code.POWER_FAILED: "{what} failed",
    Code.FAILED_IN_A_ROW: "failed {units} times in a row",
    Code.DOWN: "it is down, says the operator",
    Code.OUT_OF_SERVICE: "taken out of service by the operator",
    Code.NOT_IN_INVENTORY: "no longer in the inventory",
    Code.UNITS_MISSING: "{units} of {of} units are missing",
    Code.UNITS_NOT_JOINED: "{units} of {of} units did not join",
    Code.NO_UNIT: "no unit came up",
    Code.FEWER_FREE: "only {units} more were free",
    Code.REPLACED_ENOUGH: "{units} of its units were replaced already",
    Code.OUTAGE: "{who} can't set up units of type {what} for now",
    Code.WAITS_FOR_SITE: "waits until the site is mended",
    Code.SETUP_STOPPED: "its setup was stopped",
    Code.NOT_SAVED: "unit {who} was not saved",
    Code.NOT_UP: "it was not up yet",
    Code.SAVED_MAX: "{of} of its holder's are kept already",
    Code.SET_UP_ANEW: "set up anew",
    Code.NOTHING_SAVED: "nothing of {who} is kept for it (any more)",
    # delegations
    Code.TAKES_BACK: "{who} takes back what it gave to {what}",
    Code.OPERATOR_TAKES_BACK: "taken back by the operator",
    Code.OPERATOR_LETS_GO: "let go of by the operator",
    Code.TOOK_BACK: "{who} took {what} back",
    Code.TAKES_BACK_AS_OF: "{who} takes it back as of {at}",
    Code.TAKEN_BACK_UNOFFERED: "it is taken back before it was offered",
    Code.LET_GO: "{who} has let go of it",
    Code.NOT_HEARD_OF: "{who} does not hear of it",
    Code.HOLDER_SAYS: "{who} says so",
    Code.FORGOTTEN: "forgotten: its taker holds what was given before",
    Code.PLANNED_END: "it was to end at {at}",
    Code.TYPE_GONE: "{who} has no {what!r} any more",
    Code.REPORTED: "{who} reports",
    Code.IN_ITS_PLACE: "{who} is in its place, with {units}",
    # what is wrong, by its values
    Code.NOTICED: "lease {who} ends at {at}",
    Code.NOT_GOING_ON: "lease {who} does not go on by what {what} has accepted",
    Code.WAITING: "lease {who} has an extend or modify waiting already",
}
"""What a code says with its values. Codes that are not here say their detail alone."""


def words(reason: Reason | None) -> str:
    """A reason as people read it, once its instants are shown (:func:`~.reasons.unmark`). A code that is not known here
    is shown with its values.
    """
    if reason is None:
        return ""
    template, detail = WORDS.get(reason.code), reason.detail
    if template is not None:
        text = template.format(
            who=reason.who, what=reason.what, units=reason.units, detail=detail,
            of="an unknown number of" if reason.of < 0 else reason.of,
            at=mark(reason.at), until=mark(reason.until), now=mark(reason.now),
            fits="" if reason.at < 0 or mark(reason.at) in detail else f"; it would fit at {mark(reason.at)}",
        )  # fmt: skip
        detail = "" if "{detail}" in template else detail
    else:
        text = "" if reason.code in _CODES else _unknown(reason)
    behind = "; ".join(words(cause) for cause in reason.causes)
    return ": ".join(filter(None, (text, detail, behind))) or reason.code


_CODES: Final = frozenset(Code)


def _unknown(reason: Reason) -> str:
    values = [
        f"{name} {mark(value) if name in ('at', 'until', 'now') else value}"
        for name in ("who", "what", "units", "of", "at", "until", "now")
        if (value := getattr(reason, name)) not in ("", -1)
    ]
    return f"{reason.code} ({', '.join(values)})" if values else reason.code


def view(reason: Reason | None) -> dict[str, Any]:
    """A reason in a row that a query answers: ``reason`` for people, and ``because`` for programs (None: none)."""
    return {"reason": words(reason), "because": reason and msgspec.to_builtins(reason)}


def counted(count: int, noun: str = "unit") -> str:
    """A number of things: ``1 unit``, ``2 units``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def with_article(noun: str) -> str:
    """``noun``, as in "a broker" or "an authority"."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"
