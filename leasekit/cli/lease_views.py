"""How leases are shown to a person. Guest, broker and site know different things of a lease, and all can be shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leasekit.cli.output import pairs, print_fields, print_table
from leasekit.cli.times import now, show_when, to_second
from leasekit.config.instants import dated, shown
from leasekit.core.leases.machine import NONE
from leasekit.core.reasons import counted

HISTORY_COLUMNS = ("at", "event", "from", "to", "why")


def show_lease(lease: Mapping[str, Any]) -> None:
    """One lease with all that is known of it."""
    print_fields(_fields(lease))
    units = lease.get("units")
    if isinstance(units, list) and units and isinstance(units[0], dict):
        rows = [(u["unit"], u["state"], u["reason"], pairs(u["properties"])) for u in units]
        print_table(("unit", "state", "reason", "properties"), rows, empty="")


def _fields(lease: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    instant = now()
    for key in ("id", "name", "slice", "type", "broker", "site", "holder", "state"):
        yield key, lease.get(key)
    yield "pending", _not_none(lease.get("pending"))
    yield "join", _not_none(lease.get("join"))
    yield "reason", lease.get("reason")
    before = lease.get("resumes")
    yield "resumes", f"{before['lease']}, suspended {show_when(before['suspended'], instant)}" if before else ""
    yield "suspended", "at its end" if lease.get("suspends") else ""
    for key in ("requested", "approved", "granted", "next"):
        yield key, _holding(lease.get(key))
    for extension in (lease.get("renewal"), *lease.get("further", ())):
        yield "goes on", _goes_on(extension, lease.get("name") or lease["id"])
    for claim in lease.get("claims", ()):
        yield "claim", f"{_holding(claim)} of {claim['source']}"
    if lease.get("wanted") is not None:
        yield "wanted", f"{counted(lease['wanted'])} over {_term(lease['term'])}"
    if lease.get("end") is not None:
        yield "ended" if lease["state"] in ("closed", "failed") else "ends", show_when(lease["end"], instant)
    for key in ("configuration", "resource"):
        yield key, pairs(lease.get(key) or {})
    units = lease.get("units")
    if isinstance(units, list) and units and isinstance(units[0], str):
        yield "units", " ".join(units)


def _not_none(value: Any) -> str:
    return "" if value in (None, NONE) else str(value)


def _holding(holding: Mapping[str, Any] | None) -> str:
    if not holding:
        return ""
    op = f"{holding['op']}: " if "op" in holding else ""
    extra = pairs(holding.get("properties") or {})
    return f"{op}{counted(holding['units'])} over {_term(holding['term'])}{f' ({extra})' if extra else ''}"


def _goes_on(extension: Mapping[str, Any] | None, name: str) -> str:
    if not extension:
        return ""
    how = f" (`leasekit lease extend {name} --undo` takes it back)" if extension["undo"] else ""
    return f"{_holding(extension)}{how}"


def last_end(lease: Mapping[str, Any]) -> int:
    """When it ends after all that it was extended by."""
    extensions = [one for one in (lease["renewal"], *lease["further"]) if one]
    return int(extensions[-1]["term"][1] if extensions else lease["end"])


def _term(term: Sequence[int]) -> str:
    return f"{to_second(term[0])} .. {to_second(term[1])}"


def list_leases(leases: Sequence[Mapping[str, Any]]) -> None:
    """Leases, one a line."""
    instant = now()
    theirs = bool(leases) and "holder" in leases[0]
    groups = [lease.get("group", "") for lease in leases]
    rows = [
        (
            lease["id"],
            lease["holder"] if theirs else lease["name"],
            lease["slice"],
            lease["type"],
            lease.get("site", ""),
            _count(lease),
            lease["state"] if lease["pending"] == NONE else f"{lease['state']} ({lease['pending']})",
            _not_none(lease.get("join")),
            show_when(_end(lease), instant),
            lease["reason"],
            *((group,) if any(groups) else ()),
        )
        for lease, group in zip(leases, groups, strict=True)
    ]
    columns = (
        "id",
        "holder" if theirs else "name",
        "slice",
        "type",
        "site",
        "units",
        "state",
        "join",
        "ends",
        "reason",
        *(("group",) if any(groups) else ()),
    )
    print_table(columns, rows, empty="no leases", right=("units",))


def _count(lease: Mapping[str, Any]) -> int:
    units = lease.get("units")
    if isinstance(units, int):
        return units
    if "wanted" in lease:
        return int(lease["wanted"])
    return int(lease["claims"][-1]["units"] if lease.get("claims") else lease["requested"]["units"])


def _end(lease: Mapping[str, Any]) -> int:
    if "end" in lease:
        return int(lease["end"])
    if lease.get("claims"):
        return int(lease["claims"][-1]["term"][1])
    return int((lease["term"] if "term" in lease else lease["requested"]["term"])[1])


def show_history(rows: Sequence[Mapping[str, Any]]) -> None:
    """Transitions, one a line."""
    lines = [(shown(r["at"]), r["event"], r["from_state"], r["to_state"], r["why"]) for r in rows]
    print_table(HISTORY_COLUMNS, lines, empty="no transitions of such a lease")


def transition_line(event: Mapping[str, Any]) -> str:
    """One transition as a line of a stream."""
    if "missed" in event:
        return f"... {event['missed']} transitions were too many to show"
    arrow = f"{event['from_state']} -> {event['to_state']}" if event["from_state"] else event["to_state"]
    why = f": {event['why']}" if event["why"] else ""
    return f"{shown(event['at'])} {event['lease']} {event['event']} {arrow}{dated(why)}"
