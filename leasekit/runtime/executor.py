"""Carrying out actions: drivers run here, as trio tasks, and whatever they do ends in an ``ActionDone``. Drivers are
plug-ins, and may raise anything: :func:`explain` says in one line what it was.

Actions on one unit run one after the other. A newer one replaces what is running or waiting there: the older is
cancelled and waited for, so a teardown never works against the setup that it undoes. How an older one ended is told
to nobody, for the actor asks only for the newest. What is cancelled by a stop of the daemon is not told either: the
records say that it is due, and the next start does it again.

A teardown is not given up as soon as the others: a host that is down as a lease ends is up again later, with the
guests on it. One that fails by the site's fault is not given up at all. Between its tries an action leaves its turn
to others, and a stop does not wait for it.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import attrs
import trio

from leasekit.config.build import BoundDriver
from leasekit.core.drivers import DROP, LEASE, SITE, UNIT, Blame, Driver, DriverError, UnitContext
from leasekit.core.leases import power
from leasekit.core.properties import EMPTY, Properties, check_properties
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import SECOND, Duration, format_duration
from leasekit.runtime.logs import UnitLogs

REASON_MAX: Final = 1000

T = TypeVar("T")


def explain(error: BaseException, op: str) -> DriverError:
    """What a driver raised in ``op`` as a ``DriverError``: its own, several at once, or any other exception."""
    leaves = list(_leaves(error))
    planned = [leaf for leaf in leaves if isinstance(leaf, DriverError)]
    if len(planned) == len(leaves):
        retry = all(leaf.retry for leaf in planned)
        return DriverError(_short("; ".join(map(str, leaves))), retry=retry, blame=_blame(planned))
    words = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves)
    return DriverError(_short(f"the driver failed in {op}: {words}"), retry=False)


async def within_timeout(
    bound: BoundDriver, op: str, log: Callable[[str], None], call: Callable[[], Awaitable[T]]
) -> T:
    """What a ``call`` of a driver returns in time. Raises ``DriverError``, whatever the driver raised."""
    try:
        with trio.move_on_after(bound.spec.timeout / SECOND):
            return await call()
    except (Exception, SystemExit) as error:
        # Plug-ins: whatever they raise is their unit's reason, and nobody else's trouble. A bug's traceback goes to the
        # unit's log.
        if not all(isinstance(leaf, DriverError) for leaf in _leaves(error)):
            log("".join(traceback.format_exception(error)).rstrip())
        raise explain(error, op) from error
    raise DriverError(f"{op} took longer than {format_duration(bound.spec.timeout)}", retry=True)


def _blame(errors: Iterable[DriverError]) -> Blame:
    """Of several at once: what the site lacks comes first, and a lease is at fault only where nothing else is."""
    found = {error.blame for error in errors}
    return SITE if SITE in found else LEASE if found == {LEASE} else UNIT


def _leaves(error: BaseException) -> Iterable[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _short(text: str) -> str:
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))
    return line if len(line) <= REASON_MAX else f"{line[:REASON_MAX]}..."


OPERATIONS: Final = frozenset({"setup", "teardown", "modify", "join", "leave", DROP, *power.OPERATIONS})
RETRY_FIRST: Final[Duration] = 1 * SECOND
RETRY_LONGEST: Final[Duration] = 60 * SECOND

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Lane:
    """What goes on at one unit: the ``action`` that runs, and the one that is to ``follow`` it."""

    action: Action
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    follow: Action | None = None
    driver: Driver | None = None
    """Who carries it out, as soon as that has begun."""
    waits: bool = True
    """For its turn among the driver's actions, or to be tried again."""
    trouble: str = ""
    """Why the last try failed, while another is to come."""


@attrs.define(eq=False)
class Executor:
    """Runs the actions of one actor.

    ``driver_of`` gives the driver of a resource type. ``done`` is called with the end of each action that was not
    replaced. Durations are milliseconds.
    """

    driver_of: Callable[[str], BoundDriver | None]
    _unit_logs: UnitLogs
    _done: Callable[[ActionDone], None]
    _retry_first: Duration = attrs.field(default=RETRY_FIRST, kw_only=True)
    _retry_longest: Duration = attrs.field(default=RETRY_LONGEST, kw_only=True)
    _lanes: dict[str, _Lane] = attrs.field(init=False, factory=dict)
    _limits: WeakKeyDictionary[BoundDriver, trio.Semaphore] = attrs.field(init=False, factory=WeakKeyDictionary)
    _troubled: set[str] = attrs.field(init=False, factory=set)
    _nursery: trio.Nursery | None = attrs.field(init=False, default=None)
    _closing: bool = attrs.field(init=False, default=False)
    _idle: trio.Event = attrs.field(init=False, factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._idle.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then every running action is cancelled and has ended."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def start(self, actions: Iterable[Action]) -> None:
        """Begin ``actions``; those on a unit where one is running replace it."""
        if self._closing:
            return
        assert self._nursery is not None, "run() comes first"
        for action in actions:
            lane = self._lanes.get(action.unit)
            if lane is None:
                lane = self._lanes[action.unit] = _Lane(action)
                if self._idle.is_set():
                    self._idle = trio.Event()
                self._nursery.start_soon(self._serve, lane)
            elif action.number > (lane.follow or lane.action).number:
                lane.follow = action
                lane.scope.cancel()

    def use(self, driver_of: Callable[[str], BoundDriver | None]) -> None:
        """Drivers are set as ``driver_of`` says from now on. What a driver was doing that is not set any more is
        cancelled, and begun again by the one in its place; what waits for a driver is begun.
        """
        self.driver_of = driver_of
        for lane in self._lanes.values():
            bound = self._find(lane.action)
            other = bound is not None if lane.driver is None else bound is None or bound.driver is not lane.driver
            if lane.follow is None and other:
                lane.follow = lane.action
                lane.scope.cancel()

    async def stop(self, grace: Duration) -> None:
        """Begin nothing new; let what runs go on for up to ``grace`` ms, then cancel it and wait until it has ended."""
        self._closing = True
        for lane in self._lanes.values():
            lane.follow = None
            if lane.waits:
                lane.scope.cancel()
        with trio.move_on_after(grace / SECOND):
            await self._idle.wait()
        for lane in self._lanes.values():
            lane.scope.cancel()
        await self._idle.wait()

    def trouble(self, unit: str) -> str:
        """Why what is done to the unit has failed, if it is tried again: empty for most."""
        lane = self._lanes.get(unit)
        return f"{lane.action.op} fails: {lane.trouble}" if lane is not None and lane.trouble else ""

    def counts(self) -> dict[str, int]:
        """How many actions run, and how many wait for their turn."""
        waiting = sum(lane.waits for lane in self._lanes.values())
        return {"running": len(self._lanes) - waiting, "waiting": waiting}

    async def _serve(self, lane: _Lane) -> None:
        """Run a lane's actions until none follows."""
        while True:
            done = await self._attend(lane)
            follow = lane.follow
            if follow is None:
                # Before the actor hears of the end: what it asks for next finds the lane free.
                del self._lanes[lane.action.unit]
                if not self._lanes:
                    self._idle.set()
                if done is not None:
                    self._done(done)
                return
            lane.action, lane.follow, lane.scope, lane.driver = follow, None, trio.CancelScope(), None
            lane.waits, lane.trouble = True, ""

    async def _attend(self, lane: _Lane) -> ActionDone | None:
        """Run one action; None if it was cancelled."""
        action = lane.action
        log = self._unit_logs.open(action.unit, f"{action.lease or '-'} {action.op} #{action.number}: ")
        done: ActionDone | None = None
        with lane.scope:
            done = await self._carry_out(action, lane, log)
        if done is None:
            log(f"cancelled{f': {lane.follow.op} comes after it' if lane.follow is not None else ''}")
        return done

    async def _carry_out(self, action: Action, lane: _Lane, log: Callable[[str], None]) -> ActionDone:
        try:
            properties = await self._with_retries(lane, log)
        except DriverError as error:
            log(f"failed: {error}")
            self._tell(action, error)
            return ActionDone(action.number, action.unit, False, EMPTY, str(error), error.blame)
        if action.op == "setup" and action.type in self._troubled:
            self._troubled.remove(action.type)
            logger.warning("units of type %s can be set up again", action.type)
        return ActionDone(action.number, action.unit, True, properties)

    def _tell(self, action: Action, error: DriverError) -> None:
        """A fault of the site is told once, until it is mended; what a guest asks for in vain is no trouble here."""
        level, more = logging.WARNING, ""
        if action.op == "setup" and (error.blame == LEASE or (error.blame == SITE and action.type in self._troubled)):
            level = logging.INFO
        elif action.op == "setup" and error.blame == SITE:
            more = f" (leases that need it wait for units of type {action.type} until that is mended)"
            self._troubled.add(action.type)
        logger.log(
            level, "%s of %s failed: %s%s", action.op, action.unit, error, more,
            extra={"lease": action.lease, "unit": action.unit},
        )  # fmt: skip

    def _limit(self, bound: BoundDriver) -> trio.Semaphore:
        limit = self._limits.get(bound)
        if limit is None:
            limit = self._limits[bound] = trio.Semaphore(bound.spec.concurrency)
        return limit

    def _find(self, action: Action) -> BoundDriver | None:
        return self.driver_of(power.power_driver(action.type) if action.op in power.OPERATIONS else action.type)

    async def _with_retries(self, lane: _Lane, log: Callable[[str], None]) -> Properties:
        action, wait, began = lane.action, self._retry_first, math.inf
        bound = self._find(action)
        if bound is None:
            what = "the power of type" if action.op in power.OPERATIONS else "type"
            error = DriverError(f"no driver is set for {what} {action.type!r}", retry=False, blame=SITE)
            if action.op != "teardown":
                raise error
            lane.trouble = str(error)  # what runs there would go on after its lease, were the teardown given up
            log(f"{error}; it waits for one")
            logger.warning(
                "teardown of %s waits: %s", action.unit, error, extra={"lease": action.lease, "unit": action.unit}
            )
            await trio.sleep_forever()  # until ``use`` sets one
        left, lane.driver = bound.spec.retries, bound.driver
        while True:
            async with self._limit(bound):
                lane.waits = False
                began = min(began, trio.current_time())
                try:
                    call = partial(self._call, action, bound, log)
                    properties = await within_timeout(bound, action.op, log, call)
                except DriverError as error:
                    lane.trouble = str(error)
                    more = self._more(action, bound, left, began, error)
                    if not more:
                        raise
                else:
                    log(f"done in {format_duration(_since(began))}")
                    return properties
            lane.waits = True
            log(f"{lane.trouble}; again in {format_duration(wait)} ({more})")
            if not left:
                logger.warning(
                    "%s of %s fails, and is tried again (%s): %s", action.op, action.unit, more, lane.trouble,
                    extra={"lease": action.lease, "unit": action.unit},
                )  # fmt: skip
            await trio.sleep(wait / SECOND)
            left, wait = left - 1, min(2 * wait, self._retry_longest)

    @staticmethod
    def _more(action: Action, bound: BoundDriver, left: int, began: float, error: DriverError) -> str:
        """How much longer an action that began then is tried, in words; empty: no longer. What the site lacks keeps no
        unit out of service: it is torn down when that is mended.
        """
        if action.op == "teardown" and error.blame == SITE:
            return "until the site is mended"
        if not error.retry:
            return ""
        most = bound.spec.teardown_for - _since(began) if action.op == "teardown" else 0
        if most > 0:
            return f"for {format_duration(-(-most // SECOND) * SECOND)} more"
        return f"{left} tries left" if left > 0 else ""

    async def _call(self, action: Action, bound: BoundDriver, log: Callable[[str], None]) -> Properties:
        if action.op not in OPERATIONS:
            raise DriverError(f"no driver can {action.op!r}", retry=False)
        context = UnitContext(
            unit=action.unit,
            type=action.type,
            lease=action.lease,
            op=action.op,
            number=action.number,
            properties=action.properties,
            log=log,
            configuration=action.configuration,
        )
        if action.op == DROP or action.op in power.OPERATIONS:
            result = await bound.driver.operate(context, _operation(bound.driver, action.op), {})
        else:
            result = await getattr(bound.driver, action.op)(context)
        if result is None:
            return EMPTY
        try:
            return check_properties(result, f"the driver's result of {action.op}")
        except ValueError as error:
            raise DriverError(str(error), retry=False) from error


def _operation(driver: Driver, op: str) -> str:
    """What the driver is asked for: most wake a machine that sleeps as they switch on one that is off."""
    return power.POWER_ON if op == power.RESUME and op not in driver.operations else op


def _since(began: float) -> Duration:
    return round((trio.current_time() - began) * SECOND)
