"""Leases that recur over HTTP: all of some days, or each that can be had, in one answer that says which can't."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import attrs
import trio

from leasekit.client.shapes import DayStatus, LeaseRequest, SeriesAnswer, SeriesDay, SeriesHours, SeriesRequest
from leasekit.config.instants import on_clock, parse_clock, zone_named
from leasekit.config.recurrence import Recurrence, RecurrenceError, of_group, weekdays
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import Code
from leasekit.core.time import Instant, format_duration
from leasekit.gateway.actors import ActorAwayError, ActorConnection, RefusedError
from leasekit.gateway.callers import USER
from leasekit.gateway.instants import instant, moment, told_reason
from leasekit.gateway.leases import ANSWER_WITHIN, OfProject, wanted_lease
from leasekit.gateway.policies import admit
from leasekit.gateway.routing import Call, route, unprocessable

NOT_OF_SERIES: Final = (
    "length", "end", "deferrable_until", "after", "join_after", "proceed", "group", "group_size", "keepalive",
)  # fmt: skip
"""What a request of a series can't say: its days say when, and they are a group of their own."""
BESIDE: Final = 8
"""How many days are tried at once."""


@attrs.frozen(kw_only=True)
class WantedSeries:
    """The requests of all ``days``, which have an ``id``, and are a ``group`` if it is all of them or none. Nothing is
    asked for on days that are ``skipped`` or ``past``.
    """

    guest: ActorConnection
    id: str
    group: str
    days: Sequence[dict[str, Any]]
    skipped: list[str]
    past: list[str]

    def answer(self, days: list[SeriesDay], *, kept: bool, approval: str = "") -> SeriesAnswer:
        """What is answered."""
        return SeriesAnswer(
            id=self.id, kept=kept, days=days, skipped=self.skipped, past=self.past, approval=approval
        )  # fmt: skip


@route("POST", "/leases/series", status=HTTPStatus.CREATED)
async def request_series(call: Call, params: OfProject, body: SeriesRequest) -> SeriesAnswer:
    """Ask for a lease on each of some days, all of them or none, and wait until the broker has answered: each day says
    what became of it.
    """
    series = await wanted_series(call, params.project, body, USER)
    for day in series.days:
        await admit(call, series.guest, "lease.request", day)
    return await lease_series(call, series)


async def lease_series(call: Call, series: WantedSeries) -> SeriesAnswer:
    """Ask for all days, as the caller, and wait until the broker has answered. Raises ``LeasekitError`` where nothing
    could be asked for.
    """
    away = None
    async with series.guest.watching() as changes:
        asked = await _ask(call, series)
        shown = await _leases(series.guest, asked)

        async def answered() -> None:
            while open_ := [id_ for id_, one in shown.items() if one["state"] == "nascent"]:
                await anext(changes)
                shown.update(await _leases(series.guest, open_))

        try:
            await call.door.unless_away(answered)
        except ActorAwayError as error:
            if error.actor == series.guest.name:
                raise
            away = error
    days = [
        SeriesDay(**_term(day), status="refused", reason=str(found))
        if isinstance(found, RefusedError)
        else _became(day, shown[found], away)
        for day, found in zip(series.days, asked, strict=True)
    ]
    kept = any(day.status in ("granted", "waits") for day in days)
    if series.group and not kept:
        days = await _told_apart(call, series, days)
    return series.answer(days, kept=kept)


@route("POST", "/leases/series/dry-run")
async def try_series(call: Call, params: OfProject, body: SeriesRequest) -> SeriesAnswer:
    """Say of each of some days what the broker would answer. Nothing is asked for."""
    series = await wanted_series(call, params.project, body, USER)
    found = dict.fromkeys([await admit(call, series.guest, "lease.dry_run", day) for day in series.days])
    days = await _tried(call, series.guest, series.days)
    return series.answer(days, kept=False, approval="; ".join(filter(None, found)))


async def wanted_series(
    call: Call, project: str, body: SeriesRequest, role: str, since: Instant | None = None
) -> WantedSeries:
    """All of its requests, of somebody with a ``role`` in the project. Days that began after ``since``, and have begun
    by now, are past. Raises ``LeasekitError``.
    """
    guest, request = call.door.project(call.caller, project, role), body.request
    check_recurs(request)
    wanted, recurs = wanted_lease(request), recurrence(body, body.until)
    asked = {
        "type": request.type, "units": request.units, "slice": request.slice, "name": request.name,
        "broker": request.broker, "site": request.site, "configuration": request.configuration,
        "properties": {"request_timeout": format_duration(ANSWER_WITHIN), **wanted.request_properties()},
    }  # fmt: skip
    secret = hashlib.blake2b(f"{call.caller.name}\n{call.key}".encode(), digest_size=8) if call.key else None
    id_ = f"every-{secret.hexdigest() if secret else secrets.token_hex(8)}"
    now, first = (await guest.query("clock"))["now"], instant(request.start) or 0
    try:
        days, skipped = recurs.requests(id_, max(now, first), asked)
        begun = [] if since is None else recurs.terms(max(since, first))
        past = [str(day) for day, term in begun if term[0] < now]
    except RecurrenceError as error:
        raise unprocessable(str(error)) from None
    group = "" if body.each or len(days) == 1 else id_
    return WantedSeries(guest=guest, id=id_, group=group, days=days, skipped=skipped, past=past)


def check_recurs(request: LeaseRequest) -> None:
    """Raises :class:`ProblemError` for a request that says what only one that does not recur can say."""
    for name in NOT_OF_SERIES:
        if getattr(request, name):
            raise unprocessable(f"request.{name}: found one, expected none where days are said (every)")


def recurrence(body: SeriesHours, until: date) -> Recurrence:
    """On which days up to and with one, and when on these. Raises :class:`ProblemError` that names the field."""
    read: dict[str, Any] = {}
    parsers: dict[str, Callable[[str], Any]] = {
        "every": weekdays, "begin": parse_clock, "finish": parse_clock, "zone": zone_named,
    }  # fmt: skip
    for name, parse in parsers.items():
        try:
            read[name] = parse(getattr(body, name))
        except ValueError as error:
            raise unprocessable(f"{name}: {error}") from None
    if read["begin"] >= read["finish"]:
        raise unprocessable(f"finish: found {body.finish}, which is not after begin, {body.begin}")
    last = on_clock(datetime.combine(until, time(12), read["zone"]))
    return Recurrence(read["every"], read["begin"], read["finish"], max(0, last), body.each, read["zone"])


async def _ask(call: Call, series: WantedSeries) -> list[str | RefusedError]:
    """Ask for all days: the lease of each, or why there is none. Raises ``LeasekitError`` where nothing could be asked
    for, or a group not all of it.
    """
    asked: list[str | RefusedError] = []
    for day in series.days:
        # By its start: days that have begun since it was asked for first are not among these any more.
        signed = {**call.signed, "key": f"{series.id}.{day['term'][0]}" if call.key else ""}
        try:
            made = await series.guest.command("lease.request", of_group(day, series.group, series.days), **signed)
        except RefusedError as error:
            if series.group:
                await _close(call, series.guest, [one for one in asked if isinstance(one, str)])
                raise
            asked.append(error)
        else:
            asked.append(made["id"])
    if all(isinstance(one, RefusedError) for one in asked):
        raise next(one for one in asked if isinstance(one, RefusedError))
    return asked


async def _close(call: Call, guest: ActorConnection, leases: Sequence[str]) -> None:
    unkeyed = {**call.signed, "key": ""}
    for lease in leases:
        with suppress(RefusedError):  # it is over
            await guest.command("lease.close", {"lease": lease, "reason": "not all days can be had"}, **unkeyed)


async def _leases(guest: ActorConnection, ids: Sequence[str | RefusedError]) -> dict[str, Mapping[str, Any]]:
    """These leases as they are now."""
    return {id_: await guest.query("lease", lease=id_) for id_ in ids if isinstance(id_, str)}


def _term(day: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": day["name"], "start": moment(day["term"][0]), "end": moment(day["term"][1])}


def _became(day: Mapping[str, Any], lease: Mapping[str, Any], away: ActorAwayError | None) -> SeriesDay:
    if away is not None and lease["state"] == "nascent":
        told: dict[str, Any] = {"reason": str(away), "code": "away", "values": {"actor": away.actor}}
        return SeriesDay(**_term(day), status="waits", lease=lease["id"], **told)
    granted = lease["state"] not in ("closed", "failed")
    return SeriesDay(
        **_term(day), status="granted" if granted else "refused", lease=lease["id"],
        site=lease["site"] if granted else "", **told_reason(lease["reason"], lease["because"]),
    )  # fmt: skip


async def _told_apart(call: Call, series: WantedSeries, days: list[SeriesDay]) -> list[SeriesDay]:
    """The days of a group that was refused: of those that are refused for the others alone the broker says whether they
    could be had.
    """
    others = [number for number, day in enumerate(days) if day.code == Code.GROUP_REFUSED]
    tried = await _tried(call, series.guest, [series.days[number] for number in others])
    told = dict(zip(others, tried, strict=True))
    return [told.get(number, day) for number, day in enumerate(days)]


async def _tried(call: Call, guest: ActorConnection, days: Sequence[Mapping[str, Any]]) -> list[SeriesDay]:
    """What the broker would answer for each day. Raises ``LeasekitError``."""
    found: dict[int, SeriesDay] = {}
    failed: list[LeasekitError] = []

    async def ask(number: int) -> None:
        try:
            answer = await call.door.unless_away(partial(guest.command, "lease.dry_run", days[number]))
        except LeasekitError as error:
            failed.append(error)
            return
        told = told_reason(answer["reason"], answer["because"])
        found[number] = SeriesDay(
            **_term(days[number]), status=_STATUSES[answer["status"]], site=answer["site"], **told
        )  # fmt: skip

    for first in range(0, len(days), BESIDE):
        async with trio.open_nursery() as nursery:
            for number in range(first, min(len(days), first + BESIDE)):
                nursery.start_soon(ask, number)
        if failed:
            raise failed[0]
    return [found[number] for number in range(len(days))]


_STATUSES: Final[Mapping[str, DayStatus]] = {"granted": "possible", "waits": "waits", "refused": "refused"}
"""What a dry run says of a day, by its answer."""
