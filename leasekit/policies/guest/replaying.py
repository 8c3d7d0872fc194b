"""Guests that ask for jobs: of a log (:class:`Replay`), or of users who think in between (:class:`ThinkingUsers`).

Theory of operation. A job is asked for when it is submitted, as a lease of its estimate, and its lease is closed when
its run time has passed. A job that is to begin when it is submitted may wait (``patience``); a reservation, which is to
begin later, may not, unless its log says until when. What became of a request is seen at the next look: at the end of a
job whose start is known, and every ``look`` while any waits for a broker's answer.

Leases are told by their slice and name. A guest that is started late, or again, skips jobs that were due more than a
minute ago.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import attrs

from leasekit.core.draws import Distribution, Exponential, Lognormal, uniform
from leasekit.core.mappers import CloseLeaseEarly, GuestCycle, GuestDecision, LeaseView, RequestLease, Wake
from leasekit.core.properties import EMPTY, valid_properties
from leasekit.core.requests import TRUE, ReplayedJob
from leasekit.core.settings import DurationSetting
from leasekit.core.time import DAY, INSTANT_MAX, MINUTE, SECOND, Duration, Instant, Term

LATE_MAX: Final[Duration] = MINUTE
USER: Final = "user"
"""The request property that says whose job it is."""
_UNKNOWN: Final = "?"


@attrs.frozen(kw_only=True)
class ReplaySettings:
    """Settings of :class:`Replay`."""

    type: str = attrs.field(validator=attrs.validators.min_len(1))
    """The resource type of jobs of which the log says none."""
    slice: str = attrs.field(default="jobs", validator=attrs.validators.min_len(1))
    """The slice of the leases."""
    broker: str = ""
    """The broker to ask (default: the guest's default broker)."""
    site: str = ""
    """The site of jobs of which the log says none (default: any)."""
    patience: DurationSetting = 7 * DAY
    """How long after its submission a job may begin; 0: at once or never."""
    look: DurationSetting = attrs.field(default=MINUTE, validator=attrs.validators.ge(SECOND))
    """How often it is looked whether a job that waits has begun."""
    properties: Mapping[str, str] = attrs.field(default=EMPTY, validator=valid_properties)
    """Request properties of all jobs; those of the log go before."""


class Replay:
    """A guest's mapper that asks for the jobs of a log, or jobs that come by distributions (the table ``jobs``)."""

    Settings: ClassVar[type[ReplaySettings]] = ReplaySettings
    needs_jobs: ClassVar[bool] = True
    inline: ClassVar[bool] = True

    def __init__(self, settings: ReplaySettings, *, jobs: Sequence[ReplayedJob]) -> None:
        """``jobs`` are in order of submission, on the guest's clock."""
        self.settings = settings
        self._jobs = jobs
        self._next = 0
        self._runs: dict[str, Duration] = {}

    def plan(self, cycle: GuestCycle) -> list[GuestDecision]:
        """Ask for what was submitted, and close what is done."""
        now, jobs = cycle.now, self._jobs
        decisions, wake = _ends(cycle, self.settings.slice, self._runs, self.settings.look)
        while self._next < len(jobs) and jobs[self._next].submit <= now:
            job = jobs[self._next]
            self._next += 1
            if now - job.submit <= LATE_MAX:
                self._runs[job.id] = job.run
                decisions.append(request_of(job, self.settings, now))
                wake = min(wake, now + self.settings.look)
        if self._next < len(jobs):
            wake = min(wake, jobs[self._next].submit)
        if wake < INSTANT_MAX:
            decisions.append(Wake(max(wake, now + 1)))
        return decisions


def request_of(job: ReplayedJob, settings: ReplaySettings, now: Instant) -> RequestLease:
    """What a guest asks for when a job is submitted."""
    begin = max(job.start, now)
    patience = settings.patience if job.start <= job.submit else 0
    latest = begin + patience if job.latest < 0 else job.latest
    properties = {**settings.properties, **job.properties}
    if latest > begin:
        properties |= {"deferrable": TRUE, "latest_start": str(min(latest, INSTANT_MAX - job.estimate))}
    if job.priority:
        properties["priority"] = str(job.priority)
    if job.holder != _UNKNOWN:
        properties[USER] = job.holder
    return RequestLease(
        job.type or settings.type, job.units, Term(begin, begin + job.estimate), settings.slice, job.id,
        broker=settings.broker, site=job.site or settings.site, properties=properties,
    )  # fmt: skip


def _ends(
    cycle: GuestCycle, slice_: str, runs: dict[str, Duration], look: Duration
) -> tuple[list[GuestDecision], Instant]:
    """Closes for jobs that are done, and when the next is, or is to be looked at. Jobs that are over are forgotten."""
    now, wake = cycle.now, INSTANT_MAX
    decisions: list[GuestDecision] = []
    open_ = set()
    for lease in cycle.leases:
        run = runs.get(lease.name) if lease.slice == slice_ else None
        if run is None or lease.closing:
            continue
        open_.add(lease.name)
        if lease.state == "nascent":
            wake = min(wake, now + look)
        elif (end := lease.term.start + run) <= now:
            decisions.append(CloseLeaseEarly(lease.id))
        elif end < lease.term.end:
            wake = min(wake, end)
    for name in [name for name in runs if name not in open_]:
        del runs[name]
    return decisions, wake


@attrs.frozen(kw_only=True)
class UsersSettings:
    """Settings of :class:`ThinkingUsers`."""

    type: str = attrs.field(validator=attrs.validators.min_len(1))
    """The resource type of the units."""
    users: int = attrs.field(default=1, validator=[attrs.validators.ge(1), attrs.validators.le(100_000)])
    """How many users there are; each has one job at a time."""
    think: Distribution = attrs.field(factory=lambda: Exponential(mean=10 * MINUTE))
    """How long a user thinks before the first job, and from the end of one job (or its refusal) to the next."""
    run: Distribution = attrs.field(factory=lambda: Lognormal(median=20 * MINUTE))
    """How long a job takes; a second at least."""
    estimate: float = attrs.field(default=2.0, validator=[attrs.validators.ge(1), attrs.validators.le(1000)])
    """What a user asks for: so many times the run time."""
    units: tuple[int, ...] = attrs.field(default=(1,), validator=attrs.validators.min_len(1))
    """How many units a job needs: one of these, each as likely."""
    slice: str = attrs.field(default="users", validator=attrs.validators.min_len(1))
    """The slice of the leases."""
    broker: str = ""
    """The broker to ask (default: the guest's default broker)."""
    patience: DurationSetting = 7 * DAY
    """How long after its submission a job may begin; 0: at once or never."""
    look: DurationSetting = attrs.field(default=MINUTE, validator=attrs.validators.ge(SECOND))
    """How often it is looked whether a job that waits has begun."""
    properties: Mapping[str, str] = attrs.field(default=EMPTY, validator=valid_properties)
    """Request properties."""
    seed: int = 0
    """What is drawn depends on it, on the user, and on how many jobs the user has had."""

    def __attrs_post_init__(self) -> None:
        if min(self.units) < 1:
            raise ValueError(f"units are {self.units}, expected each at least 1")


@attrs.define
class _User:
    jobs: int = 0
    at: Instant = -1
    """When the next job is asked for; -1: there is one, or the user has not begun to think."""
    name: str = ""


class ThinkingUsers:
    """A guest's mapper of a closed loop: each of its users asks for a job, waits until it is over, and thinks."""

    Settings: ClassVar[type[UsersSettings]] = UsersSettings
    inline: ClassVar[bool] = True

    def __init__(self, settings: UsersSettings) -> None:
        self.settings = settings
        self._asking = ReplaySettings(
            type=settings.type, slice=settings.slice, broker=settings.broker, patience=settings.patience,
            look=settings.look, properties=settings.properties,
        )  # fmt: skip
        self._users = [_User() for _ in range(settings.users)]
        self._runs: dict[str, Duration] = {}

    def plan(self, cycle: GuestCycle) -> list[GuestDecision]:
        """Close what is done, and ask for those whose users have thought enough."""
        now = cycle.now
        decisions, wake = _ends(cycle, self.settings.slice, self._runs, self.settings.look)
        done = {one.lease for one in decisions if isinstance(one, CloseLeaseEarly)}
        busy = {lease.name: lease for lease in cycle.leases if lease.slice == self.settings.slice}
        for number, user in enumerate(self._users):
            lease = busy.get(user.name) if user.name else None
            if lease is not None and lease.id not in done and not lease.closing:
                wake = min(wake, self._again(lease, now))
                continue
            if user.at < 0:
                user.name, user.at = "", now + self.settings.think.draw(self._draw("think", number, user.jobs))
            if user.at <= now:
                job = self._job(number, user, now)
                user.name, user.at = job.id, -1
                self._runs[job.id] = job.run
                decisions.append(request_of(job, self._asking, now))
                wake = min(wake, now + self.settings.look)
            else:
                wake = min(wake, user.at)
        decisions.append(Wake(max(wake, now + 1)))
        return decisions

    def _again(self, lease: LeaseView, now: Instant) -> Instant:
        """When a job that is not done is to be looked at again: when its lease is over, at the latest."""
        return now + self.settings.look if lease.state == "nascent" else max(lease.term.end, now + self.settings.look)

    def _job(self, number: int, user: _User, now: Instant) -> ReplayedJob:
        settings, count = self.settings, user.jobs
        user.jobs += 1
        run = max(SECOND, settings.run.draw(self._draw("run", number, count)))
        units = settings.units[int(self._draw("units", number, count) * len(settings.units))]
        estimate = round(run * settings.estimate)
        return ReplayedJob(f"u{number + 1}-{count + 1}", f"u{number + 1}", now, now, -1, units, estimate, run)

    def _draw(self, what: str, user: int, count: int) -> float:
        return uniform(self.settings.seed, what, user, count)
