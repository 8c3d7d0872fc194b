"""Why something is as it is: for programs a code and its values, for people a sentence.

Whatever is refused, announced or ended says why by a :class:`Reason`: reasons travel, records and the log keep them,
and programs read the code and the values. Sentences are made of them here, by :func:`words`, and read by nobody else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

CODE_MAX: Final = 64
"""The longest code, in characters."""
DETAIL_MAX: Final = 2048
"""The longest detail, in characters."""
TEXT_MAX: Final = 1000
"""The longest text of a driver, a mapper or a person that is taken into a reason, in characters."""
CAUSES_MAX: Final = 8
"""How many reasons may stand behind one, side by side."""
DEPTH_MAX: Final = 8
"""How many reasons may stand one behind the other."""
REASONS_MAX: Final = 64
"""How many a reason may be in all, with those behind it."""


class Code(StrEnum):
    """Every code that this version gives, with what it says by its values; one without words says its detail alone. A
    peer of another version may give others.
    """

    words: str | None

    def __new__(cls, code: str, words: str | None = None) -> Code:
        made = str.__new__(cls, code)
        made._value_, made.words = code, words
        return made

    # wanted by somebody
    SAID = "said"
    COMMANDED = "commanded", "commanded by {who} ({what})"
    KEY_USED = "key_used", "its key was given before, with another {what}"
    NOT_FOUND = "not_found"
    BAD_ARGUMENT = "bad_argument"
    CLOSED_BY_GUEST = "closed_by_guest", "closed by its guest"
    CLOSED_BEFORE_NOTICE = "closed_before_notice", "closed by its guest, before it was to end at {at}"
    CLOSED_UNREDEEMED = "closed_unredeemed", "closed before it was redeemed"
    SLICE_CLOSED = "slice_closed", "its slice was closed"
    NOT_HEARD = "not_heard", "its holder was not heard of for {detail}"
    HANDED = "handed", "handed to {who}"
    WITHDRAWN = "withdrawn", "its guest gave the request up"
    REQUEST_REPLACED = "request_replaced", "a later request was made"
    GIVEN_BACK = "given_back", "its claim was given back"
    GIVEN_BACK_BEFORE = "given_back_before", "its holder had given the claim back"
    CLAIM_IN_USE = "claim_in_use", "lease {who} is using the claim: close the lease instead"
    EXTEND_TAKEN_BACK = "extend_taken_back", "its guest takes the extend back"
    GOES_ON = "goes_on"
    RELEASED = "released", "{who} released it"
    SUSPENDED_BY = "suspended_by", "{who} suspends it"
    ENDED_BY = "ended_by", "{who} ends it early"
    ENDED_ABOVE = "ended_above", "its ticket, or one above it, was ended early"
    ENDS_AT = "ends_at", "ends at {at}"
    PREEMPTED_BY = "preempted_by", "the lease is preempted"
    SEVERAL = "several", ""
    ACCEPTED_MEANWHILE = "accepted_meanwhile", "accepted meanwhile"
    MAINTENANCE = "maintenance", "{detail} ({who}, until {until})"
    DRAINED = "drained", "{detail} ({who})"
    MAKES_ROOM = "makes_room", "makes room for lease {who}, ends at {at}"
    MAX_RUN = "max_run", "has run for as long as it may, ends at {at}"
    OUTBID = "outbid", "outbid by lease {who}, ends at {at}"
    PROMISED = "promised", "starts at {at}, when others have made room: {units}"
    EVICTED = "evicted", "evicted: {detail}"
    MOVED = "moved", "moved to another unit: {detail}"

    # what became of another
    LEASE_LOST = "lease_lost", "lease {who} is {what}"
    REDEEM_PREDECESSOR = "redeem_predecessor", "its redeem predecessor {who} is {what}"
    JOIN_PREDECESSOR = "join_predecessor", "its join predecessor {who} is {what}"
    SLICE_HOLDS_FOR_ALL = "slice_holds_for_all", "its slice holds for all"
    GROUP_REFUSED = "group_refused", "a member of its group was refused"
    GROUP_WITHDRAWN = "group_withdrawn", "a member of its group was withdrawn"
    GROUP_INCOMPLETE = "group_incomplete", "only {units} of {of} requests of group {what!r} arrived in time"
    PART_OF = "part_of", "{what} of {who}"
    TOPOLOGY_FAILED = "topology_failed", "its topology came to nothing"
    PARTS_UNASKED = "parts_unasked", "its plan's other parts are not asked for yet"

    # too late
    TERM_OVER = "term_over", "its term is over"
    TERM_UNUSED = "term_unused", "its term ended before it could be redeemed"
    NOT_GRANTED = "not_granted", "not granted in time"
    HOLD_EXPIRED = "hold_expired", "hold expired"
    LAPSED = "lapsed", "it was not redeemed by {at}"
    START_PAST = "start_past", "its latest start, {at}, is past: it is {now} at {who}"
    NO_TICKET = "no_ticket", "no answer from broker {who} in time"
    NO_TICKET_TO_GO_ON = "no_ticket_to_go_on", "no answer from broker {who} before the lease is to go on"
    TICKETS_LATE = "tickets_late", "not all of its tickets came in time"
    NO_LEASE = "no_lease", "site {who} did not make the lease before its term ended"
    NO_EXTEND = "no_extend", "site {who} did not extend the lease in time"
    NO_MODIFY = "no_modify", "site {who} did not modify the lease in time"
    NO_UNDO = "no_undo", "its extension was taken back, which site {who} has not confirmed in time"
    NO_CLOSE = "no_close", "site {who} never confirmed the close"
    UNDO_LATE = "undo_late", "the extension had begun, and was not undone"
    SILENT = "silent", "{who} did not answer in time"

    # mappers, and what they plan
    MAPPER = "mapper", "{detail}{fits}"
    MAPPER_FAILED = "mapper_failed", "the broker's mapper has failed on it"
    MAPPER_SILENT = "mapper_silent", "the broker's mapper doesn't decide it now"
    MAPPER_WRONG = "mapper_wrong", "the broker's mapper decided what can't be carried out"
    NOT_OFFERED = "not_offered", "no site offers {what!r} here yet"
    NO_PLAN = "no_plan", "the broker's mapper found no plan, and did not say why"
    NOT_HELD = "not_held", "a plan to start at {at} could not be held"
    PLAN_UNUSABLE = "plan_unusable", "{who}'s plan can't be leased"
    TICKET_UNUSABLE = "ticket_unusable", "the broker's ticket can't be believed"
    NOTHING_TO_HOLD = "nothing_to_hold", "there is nothing to hold, or its time is over"
    PARTS_ALIKE = "parts_alike", "two parts have one name"
    HOLDS_OTHER = "holds_other", "{who} holds something else under {what}"
    PLANS_MAX = "plans_max", "{who} holds {units} plans for {what}, its limit"
    PLANS_OF_GUEST_MAX = "plans_of_guest_max", "{who} holds {units} plans of {what} for the same guest, its limit"
    NO_PEER = "no_peer", "{who} is no peer any more"
    HELD_UNTIL = "held_until", "it was held until {at}"
    NOT_GRANTABLE = "not_grantable", "{who}"
    SAYS = "says", "{who}"
    OTHER_DELEGATION = "other_delegation", "{who}: {what} is another delegation by now"
    UNITS_OUT = "units_out", "{who}: units of {what} were taken out of service meanwhile"

    # what is written down of leases, for accounts
    ASKED = "asked", "{who}: {units} {what}"
    GRANTED = "granted", "{units} of {what} at {who} over [{at}, {until})"
    CAME_BACK = "came_back", "{units} from {at} on"
    LEFT = "left", "{units} over [{at}, {until}) are left"
    TURNED_AWAY = "turned_away", "{units} of {who} for {what!r}"
    INVENTORY = "inventory", "{units} of {what}"
    BID = "bid", "bids {units}"
    PRICE = "price", "a unit of {what} costs {units}"

    # units
    UNIT = "unit", "unit {who}"
    FOR_LEASE = "for_lease", "for lease {who}"
    SETUP_FAILED = "setup_failed", "setup failed"
    TEARDOWN_FAILED = "teardown_failed", "teardown failed"
    MODIFY_FAILED = "modify_failed", "modify failed"
    JOIN_FAILED = "join_failed", "join failed"
    LEAVE_FAILED = "leave_failed", "leave failed"
    POWER_FAILED = "power_failed", "{what} failed"
    FAILED_IN_A_ROW = "failed_in_a_row", "failed {units} times in a row"
    DOWN = "down", "it is down, says the operator"
    OUT_OF_SERVICE = "out_of_service", "taken out of service by the operator"
    NOT_IN_INVENTORY = "not_in_inventory", "no longer in the inventory"
    UNITS_MISSING = "units_missing", "{units} of {of} units are missing"
    UNITS_NOT_JOINED = "units_not_joined", "{units} of {of} units did not join"
    NO_UNIT = "no_unit", "no unit came up"
    FEWER_FREE = "fewer_free", "only {units} more were free"
    TOO_LITTLE = "too_little", "too little {what} on {units} of {of} hosts"
    NEEDED = "needed"
    OTHER_CLASS = "other_class", "unit {who} has other attributes: there was none left with those of the ticket"
    REPLACED_ENOUGH = "replaced_enough", "{units} of its units were replaced already"
    OUTAGE = "outage", "{who} can't set up units of type {what} for now"
    WAITS_FOR_SITE = "waits_for_site", "waits until the site is mended"
    SETUP_STOPPED = "setup_stopped", "its setup was stopped"
    NOT_SAVED = "not_saved", "unit {who} was not saved"
    NOT_UP = "not_up", "it was not up yet"
    SAVED_MAX = "saved_max", "{of} of its holder's are kept already"
    SET_UP_ANEW = "set_up_anew", "set up anew"
    NOTHING_SAVED = "nothing_saved", "nothing of {who} is kept for it (any more)"

    # delegations
    TAKES_BACK = "takes_back", "{who} takes back what it gave to {what}"
    OPERATOR_TAKES_BACK = "operator_takes_back", "taken back by the operator"
    OPERATOR_LETS_GO = "operator_lets_go", "let go of by the operator"
    TOOK_BACK = "took_back", "{who} took {what} back"
    TAKES_BACK_AS_OF = "takes_back_as_of", "{who} takes it back as of {at}"
    TAKEN_BACK_UNOFFERED = "taken_back_unoffered", "it is taken back before it was offered"
    LET_GO = "let_go", "{who} has let go of it"
    NOT_HEARD_OF = "not_heard_of", "{who} does not hear of it"
    NOT_KNOWN = "not_known", "{who} does not know of it: its store was lost, or is from before"
    HOLDER_SAYS = "holder_says", "{who} says so"
    FORGOTTEN = "forgotten", "forgotten: its holder holds what was given before"
    PLANNED_END = "planned_end", "it was to end at {at}"
    TYPE_GONE = "type_gone", "{who} has no {what!r} any more"
    REPORTED = "reported", "{who} reports"
    IN_ITS_PLACE = "in_its_place", "{who} is in its place, with {units}"

    # what a peer, a claim or a statement has wrong: the words are those of the check
    BAD_ENDORSEMENT = "bad_endorsement"
    BAD_ID = "bad_id"
    BAD_NAME = "bad_name"
    BAD_NUMBER = "bad_number"
    BAD_OP = "bad_op"
    BAD_PROOF = "bad_proof"
    BAD_PROPERTIES = "bad_properties"
    BAD_REQUEST = "bad_request"
    BAD_SIGNATURE = "bad_signature"
    BROKEN_CHAIN = "broken_chain"
    BUSY = "busy"
    CONTRADICTION = "contradiction"
    DUPLICATE = "duplicate"
    EXCEEDS_DEGREE = "exceeds_degree"
    EXCEEDS_PARENT = "exceeds_parent"
    EXCEEDS_TERM = "exceeds_term"
    EXCEEDS_UNITS = "exceeds_units"
    EXISTS = "exists"
    EXPIRED = "expired"
    FORBIDDEN = "forbidden"
    FRAGMENTED = "fragmented"
    FUTURE = "future"
    GUILTY_ISSUER = "guilty_issuer"
    INSUFFICIENT = "insufficient"
    MALFORMED = "malformed"
    NAME_TAKEN = "name_taken"
    NOT_AFTER = "not_after"
    NOT_CHILD = "not_child"
    NOT_EXCEEDING = "not_exceeding"
    NOT_HOLDER = "not_holder"
    NOT_LEASEKIT = "not_leasekit"
    NOT_PREEMPTIBLE = "not_preemptible"
    NOT_YOURS = "not_yours"
    NOTHING_RETURNED = "nothing_returned"
    TERMINATING = "terminating", "lease {who} ends at {at}"
    NOT_GOING_ON = "not_going_on", "lease {who} does not go on by what {what} has accepted"
    OUT_OF_TURN = "out_of_turn"
    OVERDELEGATED = "overdelegated"
    OVERDELEGATION = "overdelegation"
    OVERSUBSCRIBED = "oversubscribed"
    PAST = "past"
    PREEMPTED = "preempted"
    PROPERTIES_CHANGED = "properties_changed"
    RECLAIMED = "reclaimed"
    REDEEMED = "redeemed"
    REFUSED = "refused"
    REFUTED = "refuted"
    REPLACED = "replaced"
    REPLACES = "replaces"
    RESIGNED = "resigned"
    RETURNED = "returned"
    SELF = "self"
    SEQUENCE = "sequence"
    STAYS_TOO_LONG = "stays_too_long"
    SUSPENDED = "suspended"
    TLS = "tls"
    TOO_DEEP = "too_deep"
    TOO_LARGE = "too_large"
    TOO_LATE = "too_late"
    TYPE_CHANGED = "type_changed"
    UNAVAILABLE = "unavailable"
    UNEXPECTED = "unexpected"
    UNKNOWN_CLAIM = "unknown_claim"
    UNKNOWN_DELEGATION = "unknown_delegation"
    UNKNOWN_KIND = "unknown_kind"
    UNKNOWN_LEASE = "unknown_lease"
    UNKNOWN_PEER = "unknown_peer"
    UNKNOWN_SITE = "unknown_site"
    UNKNOWN_TYPE = "unknown_type"
    VERSION = "version"
    WAITING = "waiting", "lease {who} has an extend or modify waiting already"
    WRONG_CLAIM = "wrong_claim"
    WRONG_CONTRACT = "wrong_contract"
    WRONG_HOLD = "wrong_hold"
    WRONG_INSTANT = "wrong_instant"
    WRONG_ISSUER = "wrong_issuer"
    WRONG_KEY = "wrong_key"
    WRONG_KIND = "wrong_kind"
    WRONG_CHAIN = "wrong_chain"
    WRONG_PARENT = "wrong_parent"
    WRONG_PEER = "wrong_peer"
    WRONG_PROPERTIES = "wrong_properties"
    WRONG_ROOT = "wrong_root"
    WRONG_SIGNER = "wrong_signer"
    WRONG_SITE = "wrong_site"
    WRONG_SUBJECT = "wrong_subject"
    WRONG_TERM = "wrong_term"
    WRONG_TERMS = "wrong_terms"
    WRONG_TYPE = "wrong_type"


_At: TypeAlias = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
_Name: TypeAlias = Annotated[str, Meta(max_length=256)]


class Reason(Struct, frozen=True, omit_defaults=True):
    """A ``code`` and the values that it has; it travels, and is kept, as a map of those.

    ``who`` is whose it is: an actor, a lease, a unit. ``what`` names a type, a state or the like. ``units`` are so many
    ``of`` so many (-1: not known). ``at`` is an instant, with ``until`` a term, and ``now`` what the clock showed where
    it was decided (-1: none). ``detail`` are the words of a person, a driver, a mapper or a check, in which instants
    are written as :func:`mark` does. ``causes`` stand behind it.
    """

    code: Annotated[str, Meta(min_length=1, max_length=CODE_MAX)]
    who: _Name = ""
    what: _Name = ""
    units: _At = -1
    of: _At = -1
    at: _At = -1
    until: _At = -1
    now: _At = -1
    detail: Annotated[str, Meta(max_length=DETAIL_MAX)] = ""
    causes: Annotated[tuple[Reason, ...], Meta(max_length=CAUSES_MAX)] = ()

    @property
    def depth(self) -> int:
        """How many reasons stand one behind the other, with this one."""
        return 1 + max((cause.depth for cause in self.causes), default=0)

    @property
    def root(self) -> Reason:
        """The first one behind all: peers pass on what others say."""
        return self.causes[0].root if self.causes else self

    @property
    def size(self) -> int:
        """How many reasons it is, with those behind it."""
        return 1 + sum(cause.size for cause in self.causes)

    def because(self, *causes: Reason | None) -> Reason:
        """The same with ``causes`` behind it; those that would stand too deep, or be too many, are left out."""
        found = [cause for cause in causes if cause is not None]
        if not found and not self.causes:
            return self
        return msgspec.structs.replace(self, causes=_fitting(found, DEPTH_MAX - 1, REASONS_MAX - 1))

    def text(self) -> str:
        """As it stands in a column of a store and in the log: JSON."""
        return _encode(self).decode()


def check_depth(reason: Reason | None) -> None:
    """Raises ``ValueError`` where more reasons stand behind each other, or in one, than are taken from others."""
    if reason is not None and reason.depth > DEPTH_MAX:
        raise ValueError(f"found {reason.depth} reasons behind each other, allowed are at most {DEPTH_MAX}")
    if reason is not None and reason.size > REASONS_MAX:
        raise ValueError(f"found {reason.size} reasons in one, allowed are at most {REASONS_MAX}")


def _fitting(causes: Sequence[Reason], depth: int, size: int) -> tuple[Reason, ...]:
    kept: list[Reason] = []
    for cause in causes[:CAUSES_MAX]:
        if depth < 1 or size < 1:
            break
        if cause.depth > depth or cause.size > size:
            cause = msgspec.structs.replace(cause, causes=_fitting(cause.causes, depth - 1, size - 1))
        kept.append(cause)
        size -= cause.size
    return tuple(kept)


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Reason).decode


def to_text(reason: Reason | None) -> str:
    """What :func:`read` reads: empty for none."""
    return "" if reason is None else reason.text()


def with_code(code: str) -> str:
    """How the text of every reason with a ``code`` begins."""
    return Reason(code or Code.SAID).text().removesuffix("}")


def read(text: str) -> Reason | None:
    """The reason in a column of a store or a line of the log."""
    return _decode(text) if text else None


def said(words: object) -> Reason:
    """The words of somebody."""
    return Reason(Code.SAID, detail=clip(str(words)))


def all_of(*reasons: Reason | None) -> Reason | None:
    """Several reasons as one; None if there is none."""
    found: list[Reason] = []
    for reason in reasons:
        if reason is not None:
            found += reason.causes if reason.code == Code.SEVERAL else (reason,)
    return Reason(Code.SEVERAL).because(*found) if len(found) > 1 else next(iter(found), None)


class Coded(str):
    """A mapper's reason in words that has a ``code`` for programs as well: 1 to 48 lower-case letters, digits and
    underscores. Raises ``ValueError`` for another one. ``causes`` stand behind it, with values of their own.
    """

    __slots__ = ("causes", "code")
    code: str
    causes: Sequence[Reason]

    def __new__(cls, text: str, code: str, causes: Sequence[Reason] = ()) -> Coded:
        if _CODE.fullmatch(code) is None:
            raise ValueError(f"code: found {code!r:.60}, expected 1 to 48 lower-case letters, digits and underscores")
        made = super().__new__(cls, text)
        made.code, made.causes = code, causes
        return made


_CODE: Final = re.compile(r"[a-z0-9_]{1,48}")


def of_mapper(text: str, fits: int | None = None) -> Reason:
    """What a mapper gave as its reason; ``fits`` is when a request would fit, if that is known. A mapper's own code
    stands behind ``mapper:``, so that it is none of leasekit's.
    """
    code, causes = (f"{Code.MAPPER}:{text.code}", text.causes) if isinstance(text, Coded) else (Code.MAPPER, ())
    return Reason(code, at=-1 if fits is None else fits, detail=clip(text)).because(*causes)


def is_mappers(reason: Reason) -> bool:
    """Whether a mapper gave it."""
    return reason.code.partition(":")[0] == Code.MAPPER


def clip(text: str, limit: int = TEXT_MAX) -> str:
    """What somebody wrote, as a reason can carry it: at most ``limit`` characters, all of them Unicode."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    return str(text) if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def mark(instant: int) -> str:
    """How an instant, milliseconds, is written in words, so that it can be shown as its reader has it."""
    return f"@{{{instant}}}"


def marked(term: tuple[int, int]) -> str:
    """A term in words: its instants are marked."""
    return f"[{mark(term[0])}, {mark(term[1])})"


def unmark(text: str, shown: Callable[[int], str]) -> str:
    """Words with their instants as ``shown`` writes them."""
    return _MARKED.sub(lambda found: shown(int(found[1])), text)


_MARKED: Final = re.compile(r"@\{(-?\d{1,20})\}")


def words(reason: Reason | None) -> str:
    """A reason as people read it, once its instants are shown (:func:`~.reasons.unmark`). A code that is not known here
    is shown with its values.
    """
    if reason is None:
        return ""
    code, detail = Code.MAPPER if is_mappers(reason) else _CODES.get(reason.code), reason.detail
    if code is not None and code.words is not None:
        text = code.words.format(
            who=reason.who, what=reason.what, units=reason.units, detail=detail,
            of="an unknown number of" if reason.of < 0 else reason.of,
            at=mark(reason.at), until=mark(reason.until), now=mark(reason.now),
            fits="" if reason.at < 0 or mark(reason.at) in detail else f"; it would fit at {mark(reason.at)}",
        )  # fmt: skip
        detail = "" if "{detail}" in code.words else detail
    else:
        text = _unknown(reason) if code is None else ""
    behind = "; ".join(words(cause) for cause in reason.causes)
    return ": ".join(filter(None, (text, detail, behind))) or reason.code


_CODES: Final[Mapping[str, Code]] = {str(code): code for code in Code}


def _unknown(reason: Reason) -> str:
    values = [
        f"{name} {mark(value) if name in ('at', 'until', 'now') else value}"
        for name in ("who", "what", "units", "of", "at", "until", "now")
        if (value := getattr(reason, name)) not in ("", -1)
    ]
    return f"{reason.code} ({', '.join(values)})" if values else reason.code


def view(reason: Reason | None) -> dict[str, Any]:
    """A reason in what a query answers: ``reason`` for people, and ``because`` for programs (None: none)."""
    return {"reason": words(reason), "because": reason}


def counted(count: int, noun: str = "unit") -> str:
    """A number of things: ``1 unit``, ``2 units``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def with_article(noun: str) -> str:
    """``noun``, as in "a broker" or "an authority"."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"
