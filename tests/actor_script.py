"""Text scripts of actors: what is done to them, and every message, transition and action that follows, in order.

A script is lines. Those that begin with ``>`` are done, ``#`` is a comment, and all others are what came of the line
above them: :func:`run_script` gives the whole text anew, as it should be. What can be done:

=====================================  ===================================================================
``> world units=4 guest.leave_time=5s``  who is there (first line; may be left out): see ``_world``
``> guest lease.request type=vm ...``   a command, with its arguments; the reply is shown
``> run 10s`` / ``> run until 1m``      time passes
``> show guest lease web``              a record in a line (``lease``, ``leases``, ``units``, ``free``, ``errors``)
``> lose guest broker Ack 2``           the next messages of a kind are lost (or ``repeat``, or ``keep``)
``> release``                           what was kept is delivered, last first
``> resend guest site Redeem``          the last message of a kind comes once more
``> cut guest site`` / ``> heal``       nothing gets through / all is well, and connected anew
``> fail site setup vm-1 2``            the driver fails the next times
``> blame site lease``                  from now on that is the lease's fault (or the ``site``'s, or the ``unit``'s)
``> slow site teardown 20s``            the driver takes that long from now on
``> restart site``                      a crash, and a start from the store
=====================================  ===================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from actor_bench import Bench, Fault, Mappers, Plan
from bad_mappers import BAD_MAPPERS

from leasekit.actors.settings import AuthoritySettings, BrokerSettings, GuestSettings
from leasekit.core.answers import plain
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.claims.signed import decode_statement
from leasekit.core.protocol.messages import (
    Accepted,
    Ack,
    ClaimReport,
    CloseLease,
    ErrorReply,
    Holdings,
    Introduce,
    Largest,
    LeaseUpdate,
    LetGo,
    Message,
    Offer,
    OfferAnswer,
    Reclaim,
    Redeem,
    Relinquish,
    Relinquished,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    Truncated,
    Withdraw,
    Withhold,
)
from leasekit.core.reasons import read, unmark, words
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import INSTANT_MAX, Instant, format_duration, parse_duration

_SETTINGS: Mapping[str, type[Any]] = {"guest": GuestSettings, "broker": BrokerSettings, "site": AuthoritySettings}
_NUMBERS = frozenset({"units", "hold"})
_INSTANTS = frozenset({"start", "end"})
_FLAGS = {"all", "close"}
_NAMES = frozenset({"victims"})
_TABLES = frozenset({"properties", "configuration"})


def run_script(text: str) -> str:
    """The script with what follows from its lines."""
    lines = [line for line in text.splitlines() if line.startswith((">", "#")) or not line]
    script = _Script()
    written: list[str] = []
    for line in lines:
        written.append(line)
        if line.startswith(">"):
            written += script.do(line[1:].split())
    script.check_answers()
    return "\n".join(written).rstrip("\n") + "\n"


class _Script:
    """One run of a script; listens to its bench."""

    def __init__(self) -> None:
        self._bench: Bench | None = None
        self._lines: list[str] = []
        self._names: dict[str, str] = {}
        self._claims: dict[str, int] = {}

    def do(self, words: Sequence[str]) -> list[str]:
        """Carry out one line; returns what came of it."""
        self._lines = []
        if words[0] == "world":
            self._bench = self._world(words[1:])
        else:
            if self._bench is None:
                self._bench = self._world(())
            self._step(words)
        return ["  " + self._named(unmark(line, str)) for line in self._lines]

    def _world(self, words: Sequence[str]) -> Bench:
        """``units=4`` or ``units=vm:4,gpu:2``, ``sites=a,b``, ``guests=x,y``, ``clocks=site:2s``, ``mapper.site=NAME``,
        ``delegated``, ``tick``, and any setting as ``guest.NAME``, ``broker.NAME`` or ``site.NAME``.
        """
        given = dict(word.split("=", 1) for word in words)
        settings: dict[str, dict[str, Any]] = {role: {} for role in _SETTINGS}
        mappers: dict[str, Any] = {}
        others: dict[str, str] = {}
        for key, value in given.items():
            role, _, name = key.partition(".")
            if role == "mapper":
                mappers[name] = BAD_MAPPERS[value]
            elif name:
                settings[role][name] = int(value) if value.isdigit() else parse_duration(value)
            else:
                others[key] = value
        units = _pairs(others.pop("units", "4"), "vm", int)
        made: dict[str, Any] = {role: kind(**settings[role]) for role, kind in _SETTINGS.items()}
        made["sites"] = dict.fromkeys(others.pop("sites", "site").split(","), units)
        made["guests"] = tuple(others.pop("guests", "guest").split(","))
        made["clocks"] = _pairs(others.pop("clocks", ""), "", _signed)
        made["delegated"] = int(others.pop("delegated", "0"))
        tick = parse_duration(others.pop("tick", "1s"))
        assert not others, f"a world has no {', '.join(others)}"
        bench = Bench(Plan(**made), Mappers(**mappers), tick=tick).start()
        bench.listeners.append(self)
        return bench

    def _step(self, words: Sequence[str]) -> None:
        bench = self._bench
        assert bench is not None
        what, rest = words[0], words[1:]
        if what in bench.nodes:
            self._command(bench, what, rest[0], rest[1:])
        elif what == "run":
            at = parse_duration(rest[1]) if rest[0] == "until" else bench.now + parse_duration(rest[0])
            bench.run_until(at)
        elif what == "show":
            self._show(bench, *rest)
        elif what in ("lose", "repeat", "keep"):
            bench.faults.append(Fault(what, rest[0], rest[1], rest[2], int(rest[3]) if len(rest) > 3 else 1))
        elif what == "release":
            bench.release()
        elif what == "resend":
            bench.resend(*rest)
        elif what == "cut":
            bench.cut.add(frozenset(rest))
        elif what == "heal":
            cut, bench.cut = bench.cut, set()
            for pair in sorted(cut, key=sorted):
                bench.connect(*sorted(pair))
        elif what == "fail":
            bench.failures[rest[0], rest[1], rest[2]] = int(rest[3]) if len(rest) > 3 else 1
        elif what == "blame":
            bench.blames[rest[0]] = rest[1]
        elif what == "slow":
            bench.latencies[rest[0], rest[1]] = parse_duration(rest[2])
        elif what == "restart":
            bench.crash(rest[0])
        else:
            raise AssertionError(f"no script can do {what!r}")

    # -- commands and queries ----------------------------------------------------------------------------------

    def _command(self, bench: Bench, actor: str, command: str, words: Sequence[str]) -> None:
        arguments: dict[str, Any] = {}
        for word in words:
            key, value = word.split("=", 1)
            arguments[key] = self._argument(key, value)
        before = len(self._lines)
        reply = bench.command(actor, command, **arguments)
        if not reply.error and isinstance(reply.result, dict) and "id" in reply.result:
            self._names[reply.result["id"]] = reply.result["name"] or f"lease-{len(self._names) + 1}"
        self._lines.insert(before, f"! {reply.error}" if reply.error else "ok")

    @staticmethod
    def _argument(key: str, value: str) -> Any:
        if key == "term" and "," in value:
            return [_instant(part) for part in value.strip("[)").split(",")]
        if key in _INSTANTS and value[0].isdigit():
            return _instant(value)
        if key in _NUMBERS and re.fullmatch(r"-?\d+", value):
            return int(value)
        if key in _NAMES:
            return value.split(",")
        if key in _FLAGS:
            return value == "true"
        if key in _TABLES:
            return {k: int(v) if v == "7" else v for k, v in (pair.split(":", 1) for pair in value.split(","))}
        return value

    def _show(self, bench: Bench, actor: str, what: str, name: str = "") -> None:
        if what == "units":
            for unit in bench.query(actor, "units"):
                held = f" of {unit['lease']}" if unit["lease"] else ""
                promised = f", promised to {unit['promised']}" if unit["promised"] else ""
                self._lines.append(f"{unit['unit']} {unit['state']}{held}{promised} {unit['reason']}".rstrip())
        elif what == "free":
            for source in bench.query(actor, "sources"):
                self._lines.append(f"{source['source']}: {source['free_now']} of {source['units']} free")
        elif what == "outages":
            for outage in bench.query(actor, "status")["outages"]:
                since = _time(outage["since"])
                self._lines.append(f"{outage['type']} for {outage['lease']} since {since}: {outage['reason']}")
        elif what == "errors":
            made = bench.actor(actor)
            self._lines += made.errors
        elif what == "leases":
            for lease in bench.query(actor, "leases", all=True):
                self._lines.append(self._lease(bench.query(actor, "lease", lease=lease["id"])))
        else:
            wanted = next((id_ for id_, alias in self._names.items() if alias == name), name)
            self._lines.append(self._lease(bench.query(actor, "lease", lease=wanted)))

    @staticmethod
    def _lease(found: Mapping[str, Any]) -> str:
        words = [found["id"], f"{found['state']}/{found['pending']}"]
        if found.get("join", "-") != "-":
            words.append(found["join"])
        for unit in found.get("units", ()):
            words.append(unit if isinstance(unit, str) else f"{unit['unit']}:{unit['state']}")
        if "end" in found:
            words.append(f"to {_time(found['end'])}")
        for claim in found.get("claims", ()):
            words.append(f"{claim['units']} over {_term(claim['term'])}")
        configuration = found.get("configuration")
        if configuration:
            words.append(_properties(configuration))
        return " ".join(words) + (f": {found['reason']}" if found["reason"] else "")

    def check_answers(self) -> None:
        """What each actor answers at the end is what its handlers declare, and nothing else."""
        assert self._bench is not None, "a script has a line that is done"
        for name in self._bench.nodes:
            dispatch = self._bench.actor(name).dispatch
            every: dict[str, dict[str, Any]] = {"leases": {"all": True}, "topologies": {"all": True}}
            for query in {*dispatch.queries} - {*ONE_OF, "slots"}:
                _check(dispatch.answers[query], dispatch.ask(query, every.get(query, {})))
            for type_ in self._bench.actor(name).book.types() if "slots" in dispatch.queries else ():
                asked = {"type": type_, "units": 1, "length": 1, "end": INSTANT_MAX}
                _check(dispatch.answers["slots"], dispatch.ask("slots", asked))
            for query, (all_, key, id_) in ONE_OF.items():
                for one in dispatch.ask(all_, every.get(all_, {})) if query in dispatch.queries else ():
                    _check(dispatch.answers[query], dispatch.ask(query, {key: one[id_]}))

    # -- what is heard -----------------------------------------------------------------------------------------

    def _line(self, at: Instant, text: str) -> None:
        self._lines.append(f"{_time(at):>8} {text}")

    def _claim(self, digest: str) -> int:
        """Claims are numbered as they appear: their digests say nothing to a reader."""
        return self._claims.setdefault(digest[:16], len(self._claims) + 1)

    def _named(self, line: str) -> str:
        for id_ in sorted(self._names, key=len, reverse=True):
            line = line.replace(id_, self._names[id_])
        return line

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Transitions."""
        for _, lease, event, before, after, reason in rows:
            step = f"{before} -> {after} " if before or after else ""
            subject = f"claim {self._claim(lease)}" if re.fullmatch(r"[0-9a-f]{64}", lease) else lease
            why = re.sub(r"claim [0-9a-f]{16}", lambda found: f"claim {self._claim(found[0][6:])}", words(read(reason)))
            self._line(at, f"{actor:7} {subject} {event}: {step}{f'({why})' if why else ''}".rstrip())

    def sent(self, at: Instant, sender: str, receiver: str, message: Message, fate: str) -> None:
        """Messages."""
        fates = {"lose": " -- LOST", "keep": " -- KEPT", "repeat": " -- TWICE"}
        self._line(at, f"{sender:7} > {receiver}: {_message(message)}{fates.get(fate, '')}")

    def received(self, at: Instant, sender: str, receiver: str, message: Message) -> None:
        """Arrivals are not written: what comes of them is."""

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Actions that drivers are told."""
        self._line(at, f"{actor:7} does {action.op} of {action.unit}, action {action.number}")

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """Actions that ended."""
        how = "done" if done.ok else f"failed ({done.reason})"
        self._line(at, f"{actor:7} action {done.number} on {done.unit}: {how}")


# -- words -------------------------------------------------------------------------------------------------------------


ONE_OF: Mapping[str, tuple[str, str, str]] = {
    "lease": ("leases", "lease", "id"), "topology": ("topologies", "topology", "topology"),
}  # fmt: skip
"""Queries of one thing: which query has all, the argument that names it, and the field that has its name."""


def _check(declared: Any, answer: Any) -> None:
    assert plain(msgspec.convert(answer, declared)) == answer


def _pairs(text: str, default: str, read: Callable[[str], int]) -> dict[str, int]:
    found = {}
    for word in filter(None, text.split(",")):
        key, _, value = word.rpartition(":")
        found[key or default] = read(value)
    return found


def _signed(text: str) -> int:
    return -parse_duration(text[1:]) if text.startswith("-") else parse_duration(text)


def _instant(text: str) -> Instant:
    return int(text) if re.fullmatch(r"-?\d+", text) else parse_duration(text)


def _time(at: Instant) -> str:
    whole, rest = divmod(at, 1000)
    text = format_duration(whole * 1000)
    if rest:
        text = f"{text[:-1]}.{rest:03}s" if text.endswith("s") else f"{text}0.{rest:03}s"
    return text


def _term(term: Sequence[int]) -> str:
    return f"[{_time(term[0])}, {_time(term[1])})"


def _properties(properties: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in properties.items()) + "}"


def _leaf(ticket: bytes) -> str:
    leaf = decode_ticket(ticket).leaf
    return f"{leaf.units} {leaf.type} over {_term(leaf.term)}"


def _said(statement: bytes) -> str:
    said = decode_statement(statement)
    return f"{said.kind} at {_time(said.at)}"


_MESSAGES: Mapping[type[Any], Callable[[Any], str]] = {
    RequestTicket: lambda m: (
        f"#{m.number} {m.op} {m.units} {m.type} over {_term(m.term)}"
        + (f" at {m.site}" if m.site else "")
        + (f" {_properties(m.properties)}" if m.properties else "")
    ),
    Withdraw: lambda m: f"#{m.number} of #{m.request}",
    ReturnTicket: lambda m: f"#{m.number} {_said(m.receipt)}",
    TicketUpdate: lambda m: (
        f"update {m.update} for #{m.number} {m.status}"
        + (f" {_leaf(m.ticket)} at {m.site}" if m.ticket else "")
        + (f", {_said(m.truncation)}" if m.truncation else "")
        + (f": {words(m.reason)}" if m.reason else "")
        + (f" (would fit at {_time(m.earliest)})" if m.earliest >= 0 else "")
    ),
    Redeem: lambda m: (
        f"#{m.number} {m.op}"
        + (f" {_leaf(m.ticket)}" if m.ticket else "")
        + (f" without {', '.join(m.victims)}" if m.victims else "")
        + (f" {_properties(m.properties)}" if m.properties else "")
    ),
    CloseLease: lambda m: f"#{m.number}" + (f" {_said(m.relinquishment)}" if m.relinquishment else ""),
    Relinquish: lambda m: f"#{m.number} {_leaf(m.ticket)}, {_said(m.relinquishment)}",
    Relinquished: lambda m: f"#{m.number} " + (_said(m.receipt) if m.receipt else f"refused: {words(m.reason)}"),
    LeaseUpdate: lambda m: (
        f"update {m.update} for #{m.number} {m.state} {_term(m.term)}"
        + (f" {', '.join(unit.unit for unit in m.units)}" if m.units else "")
        + (f", {_said(m.receipt)}" if m.receipt else "")
        + (f": {words(m.reason)}" if m.reason else "")
    ),
    Accepted: lambda m: f"#{m.number}",
    Ack: lambda m: f"update {m.update}",
    Offer: lambda m: f"#{m.number} {_leaf(m.ticket)}",
    OfferAnswer: lambda m: f"#{m.number} {words(m.reason) or 'taken'}",
    LetGo: lambda m: f"#{m.number} until {m.until}",
    Holdings: lambda m: f"{len(m.claims)} claims",
    ClaimReport: lambda m: f"#{m.number} {m.reason.code} {words(m.reason)}",
    Reclaim: lambda m: f"#{m.number} {_leaf(m.ticket)}",
    Truncated: lambda m: f"#{m.number} from {decode_statement(m.truncation).at} on",
    Withhold: lambda m: f"#{m.number} {m.units} over {_term(m.term)}: {m.reason}",
    Largest: lambda m: (
        f"#{m.number} "
        + (", ".join(f"{one.resource} {one.most} until {one.until}" for one in m.pieces) or "all that hosts have")
    ),
    Introduce: lambda m: f"#{m.number} {decode_statement(m.endorsement).detail}",
    ErrorReply: lambda m: f"#{m.number} {m.reason.code}: {words(m.reason)}",
}


def _message(message: Message) -> str:
    subject = getattr(message, "lease", "") or getattr(message, "delegation", "")
    return f"{type(message).__name__} {subject} {_MESSAGES[type(message)](message)}"
