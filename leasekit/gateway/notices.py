"""Who is told of what: rules, what becomes of the lines of guests' logs by them, and the queue of what is to be sent.

How far each log was read, and what is to be sent for what was read, are committed together: nothing is told of twice
or not at all, whenever the gateway ends. What is sent may come twice, with the same id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from leasekit.client.shapes import EventKind
from leasekit.config.instants import dated
from leasekit.core.leases.records import KeptRecord
from leasekit.core.reasons import Code
from leasekit.core.schema import Change, Row
from leasekit.core.time import DAY, HOUR, SECOND, Duration, Instant, format_duration, parse_duration
from leasekit.gateway.kept import Kept

POSITIONS: Final = "positions"
WAITING: Final = "waiting"
DONE: Final = "done"
DEAD: Final = "dead"
RETRY_FIRST: Final[Duration] = SECOND
RETRY_LONGEST: Final[Duration] = HOUR
TRIES_MAX: Final = 24
"""After so many tries, over half a day, it is not tried again."""
KEPT_FOR: Final[Duration] = 30 * DAY
"""How long what was sent, or could not be, is remembered."""
WAITING_MAX: Final = 1_000
"""How many deliveries of one rule may wait; further ones are dead at once."""
STARTS_SOON: Final = frozenset({"ticketed"})
ENDS_SOON: Final = frozenset({"active"})
"""States of leases whose starts, or ends, are told of; one that is extended already is not."""

LOST_UNIT: Final = "changed"
"""The event of a lease that its site has told of other units."""
_BY_EVENT: Final[Mapping[str, EventKind]] = {
    "ticket": "granted", "ticket_refused": "refused", "lease_refused": "refused", "closed": "ended", "lost": "ended",
    "notice": "evicted",
}  # fmt: skip
_BY_CODE: Final[Mapping[str, EventKind]] = {
    Code.EVICTED: "evicted", Code.PREEMPTED_BY: "evicted", Code.MAKES_ROOM: "evicted", Code.OUTBID: "evicted",
    Code.MAINTENANCE: "maintenance", Code.DRAINED: "maintenance", Code.SETUP_FAILED: "unit_failed",
    Code.MODIFY_FAILED: "unit_failed", Code.JOIN_FAILED: "unit_failed", Code.DOWN: "unit_failed",
    Code.OUT_OF_SERVICE: "unit_failed",
}  # fmt: skip
_ONCE: Final = frozenset({"granted", "refused", "ended", "evicted"})
"""What is told once of a lease, however many lines say so."""
_WORDS: Final[Mapping[EventKind, str]] = {
    "granted": "was granted", "refused": "was refused", "starts_soon": "starts in {}", "ends_soon": "ends in {}",
    "ended": "has ended", "unit_failed": "has a unit that failed", "evicted": "is ended early",
    "maintenance": "is hit by maintenance",
}  # fmt: skip
"""What happened to a lease."""
_OTHER_WORDS: Final[Mapping[EventKind, str]] = {
    "approval_wanted": "{name} of {project} waits to be approved", "free": "{name} would fit now for {project}",
    "announced": "announced to {project}: {reason}", "test": "a test of what {project} is told",
}  # fmt: skip


@attrs.frozen(kw_only=True)
class RuleRecord(KeptRecord):
    """A rule as it is kept."""

    id: str
    project: str
    caller: str
    events: Sequence[EventKind]
    url: str = ""
    mail: str = ""
    type: str = ""
    ends: Sequence[str] = ()
    starts: Sequence[str] = ()
    secret: str = ""

    table = "rules"


@attrs.frozen(kw_only=True)
class Notification:
    """Something that happened ``at`` an instant to a lease of a project. ``key`` is the same whenever it is found."""

    kind: EventKind
    key: str
    project: str
    at: Instant
    lease: str = ""
    name: str = ""
    type: str = ""
    units: int = 0
    start: Instant = -1
    end: Instant = -1
    before: Duration = 0
    reason: str = ""
    code: str = ""

    @property
    def words(self) -> str:
        """What happened, in one line without anything that a mail, or a terminal, would obey."""
        if self.kind in _OTHER_WORDS:
            said = {"name": self.name, "project": self.project, "reason": self.reason}
            return one_line(_OTHER_WORDS[self.kind].format_map(said))
        what = _WORDS[self.kind].format(format_duration(self.before // SECOND * SECOND))
        return one_line(f"lease {self.name or self.lease or '-'} of {self.project} {what}")


def one_line(text: str) -> str:
    """The text with blanks for all that is no printable character."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


@attrs.frozen(kw_only=True)
class DeliveryRecord(KeptRecord):
    """What is to be sent for a rule; ``at`` is when it is tried next, or, once it is over, until when it is kept."""

    id: str
    rule: str
    state: Literal["waiting", "done", "dead"]
    at: Instant
    tries: int = 0
    problem: str = ""
    notice: Notification

    table = "deliveries"


@attrs.define(eq=False)
class Notifications:
    """All rules and deliveries of a gateway. Each change is returned, to be committed before it is told or sent."""

    rules: Kept[RuleRecord] = attrs.field(init=False, factory=lambda: Kept(RuleRecord))
    deliveries: Kept[DeliveryRecord] = attrs.field(init=False, factory=lambda: Kept(DeliveryRecord))
    positions: dict[str, int] = attrs.field(init=False, factory=dict)
    """The last line that was read of the log of each actor."""

    def restore(self, tables: Mapping[str, Iterable[Row]]) -> None:
        """Take up what the store has kept."""
        self.rules.restore(tables)
        self.deliveries.restore(tables)
        self.positions = dict(tables.get(POSITIONS, ()))

    def remove(self, rule: str) -> list[Change]:
        """One rule less, with all that was to be sent by it."""
        gone = [one.id for one in self.deliveries.values() if one.rule == rule]
        return [*self.rules.drop(rule), *self.deliveries.drop(*gone)]

    def read_until(self, actor: str, seq: int) -> Change:
        """An actor's log was read up to there."""
        self.positions[actor] = seq
        return Change(POSITIONS, actor, (actor, seq))

    def tell(self, notice: Notification, now: Instant, *rules: RuleRecord) -> list[Change]:
        """Have those told whose ``rules`` (none: all of the project) want it, and who were not told of it before."""
        made = []
        for rule in rules or self.rules.of(notice.project):
            id_ = hashlib.blake2b(f"{rule.id}\n{notice.key}".encode(), digest_size=12).hexdigest()
            fits = rules or (notice.kind in rule.events and rule.type in ("", notice.type))
            if fits and id_ not in self.deliveries:
                waits = sum(one.rule == rule.id and one.state == WAITING for one in self.deliveries.values())
                delivery = DeliveryRecord(id=id_, rule=rule.id, state=WAITING, at=now, notice=notice)
                if waits >= WAITING_MAX:
                    why = f"{WAITING_MAX} wait already"
                    delivery = attrs.evolve(delivery, state=DEAD, at=now + KEPT_FOR, problem=why)
                made.append(self.deliveries.put(delivery))
        return made

    def due(self, now: Instant) -> list[DeliveryRecord]:
        """What is to be tried now."""
        return [one for one in self.deliveries.values() if one.state == WAITING and one.at <= now]

    def next_at(self) -> Instant | None:
        """When the next one is to be tried."""
        return min((one.at for one in self.deliveries.values() if one.state == WAITING), default=None)

    def tried(self, id_: str, problem: str, now: Instant) -> list[Change]:
        """It was sent, or came to nothing because of a ``problem``."""
        one = self.deliveries.get(id_)
        if one is None:
            return []  # its rule is gone
        tries = one.tries + 1
        if not problem:
            return [self.deliveries.put(attrs.evolve(one, state=DONE, at=now + KEPT_FOR, tries=tries, problem=""))]
        if tries >= TRIES_MAX:
            return [self.deliveries.put(attrs.evolve(one, state=DEAD, at=now + KEPT_FOR, tries=tries, problem=problem))]
        wait = min(RETRY_LONGEST, RETRY_FIRST * 2 ** (tries - 1))
        return [self.deliveries.put(attrs.evolve(one, at=now + wait, tries=tries, problem=problem))]

    def again(self, id_: str, now: Instant) -> Change:
        """Have a dead one tried again from the beginning."""
        return self.deliveries.put(attrs.evolve(self.deliveries[id_], state=WAITING, at=now, tries=0))

    def forget(self, now: Instant) -> list[Change]:
        """Let go of what was remembered long enough."""
        over = (one.id for one in self.deliveries.values() if one.state != WAITING and one.at <= now)
        return self.deliveries.drop(*over)


def kinds_of(row: Mapping[str, Any]) -> list[EventKind]:
    """What a line of a guest's log means to those who are told: by its event, and by the codes of its reason."""
    found = [_BY_CODE[code] for code in _codes(row["because"]) if code in _BY_CODE]
    if row["event"] in _BY_EVENT and not (row["event"] == "ticket" and not row["from_state"].startswith("nascent")):
        found.append(_BY_EVENT[row["event"]])
    codes = list(_codes(row["because"]))
    if row["event"] == LOST_UNIT and not found and codes[:1] == [Code.UNIT] and Code.MOVED not in codes:
        found.append("unit_failed")  # for a reason that has no code of its own
    return list(dict.fromkeys(found))


def ends_lease(row: Mapping[str, Any]) -> bool:
    """Whether a line of a guest's log says that a lease is over, which had been granted."""
    before, after = row["from_state"].partition("/")[0], row["to_state"].partition("/")[0]
    return before in (*STARTS_SOON, *ENDS_SOON) and after in ("closed", "failed")


def _codes(because: Mapping[str, Any] | None) -> Iterator[str]:
    if because:
        yield because["code"]
        for cause in because.get("causes", ()):
            yield from _codes(cause)


def notices_of(project: str, row: Mapping[str, Any], lease: Mapping[str, Any]) -> list[Notification]:
    """The notices of a line of a guest's log about a ``lease`` (empty: it is not known any more)."""
    codes, made = list(_codes(row["because"])), []
    for kind in kinds_of(row):
        which = row["lease"] if kind in _ONCE else row["seq"]
        made.append(Notification(
            kind=kind, key=f"{project}/{which}/{kind}", project=project, at=row["at"], lease=row["lease"],
            reason=one_line(dated(row["why"])), code=codes[-1] if codes else "", **_of_lease(lease),
        ))  # fmt: skip
    return made


def _of_lease(lease: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: lease[name] for name in ("name", "type", "units", "start", "end") if name in lease}
    if isinstance(found.get("units"), list):  # of one that is shown with all that is known of it
        terms = (lease["granted"], lease["approved"], lease["requested"])  # of one that is over nothing is granted
        found["units"] = next((term["units"] for term in terms if term and term["units"]), 0)
    return found


def soon(rule: RuleRecord, lease: Mapping[str, Any], now: Instant) -> Iterator[Notification]:
    """What a rule has told of a lease because of the time. Of several that are late it is the last one; of an end it is
    none that lies before the start.
    """
    instants: tuple[tuple[EventKind, frozenset[str], Instant, Instant, Sequence[str]], ...] = (
        ("ends_soon", ENDS_SOON, lease["end"], lease["start"], rule.ends),
        ("starts_soon", STARTS_SOON, lease["start"], 0, rule.starts),
    )
    for kind, states, at, since, spans in instants:
        if kind not in rule.events or lease["state"] not in states or rule.type not in ("", lease["type"]) or at <= now:
            continue
        lengths = [parse_duration(span) for span in spans]
        reached = [length for length in lengths if since <= at - length <= now]
        if reached:
            key = f"{rule.project}/{lease['id']}/{kind}/{at}/{min(reached)}"
            yield Notification(
                kind=kind, key=key, project=rule.project, at=now, lease=lease["id"], before=at - now,
                **_of_lease(lease),
            )  # fmt: skip
