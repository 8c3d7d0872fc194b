"""Looking after a site's units while nothing is done to them.

Units that are up are probed every so often: one that is found down twice in a row has failed, and the actor hears
of it as if an operator had said so. What drivers find of units that nobody asked for is told at the start, and removed
when an operator wants it. An operator's own actions on a unit (its console, a restart) pass here too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import attrs
import trio

from leasekit.config.build import BoundDriver
from leasekit.core.answers import OrphanReport, OrphanTrouble, ProbedUnit
from leasekit.core.drivers import (
    UNIT_HOST,
    DriverError,
    Orphan,
    OrphanFinder,
    PartlyToldError,
    ProbeResult,
    UnitContext,
)
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.time import SECOND, format_duration
from leasekit.runtime.executor import explain, within_timeout
from leasekit.runtime.shell import ActorShell

AGAIN_AFTER: Final = 1.0
HELD: Final = frozenset({"setup", "active", "modify", "teardown"})
"""States of units of which there may be something."""

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Tending:
    """Looks after the units of the site that ``shell`` runs, with its ``drivers`` (none: there is nothing to do).

    A unit that was found down is probed again after ``again_after`` seconds, before anything is done about it.
    """

    _shell: ActorShell
    _drivers: Sequence[BoundDriver]
    _again_after: float = attrs.field(default=AGAIN_AFTER, kw_only=True)
    _orphans: list[Orphan] = attrs.field(init=False, factory=list)
    _untold: list[OrphanTrouble] = attrs.field(init=False, factory=list)
    _changed: trio.Event = attrs.field(init=False, factory=trio.Event)

    @property
    def requests(self) -> Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Any]]]:
        """The commands that it carries out, by name."""
        return {
            "orphans.list": self._list_orphans,
            "orphans.remove": self._remove_orphans,
            "unit.operate": self._operate,
            "unit.probe": self._probe_now,
        }

    def describe(self) -> OrphanReport | None:
        """What was left of old units when it was looked for last; None: there are no drivers that could say."""
        return OrphanReport(self._orphans, self._untold) if self._drivers else None

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            self._changed = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.tend)
                await self._changed.wait()
                nursery.cancel_scope.cancel()

    async def tend(self) -> None:
        """Say what is left of old units, and watch those that drivers are to probe, if there are such."""
        async with trio.open_nursery() as nursery:
            if self._drivers:
                nursery.start_soon(self._tell_orphans)
            for bound in self._drivers:
                if bound.spec.probe_every:
                    nursery.start_soon(self._watch, bound)

    def use(self, drivers: Sequence[BoundDriver]) -> None:
        """Look after the units with these drivers from now on."""
        self._drivers = drivers
        self._changed.set()

    # -- units that go down --------------------------------------------------------------------------------------

    async def _watch(self, bound: BoundDriver) -> None:
        while True:
            await trio.sleep(bound.spec.probe_every / SECOND)
            limit = trio.CapacityLimiter(bound.spec.concurrency)
            try:
                units = await self._shell.query("watched", {})
            except CommandError:
                continue  # it is stopping, or waits for its disk
            async with trio.open_nursery() as nursery:
                for unit in units:
                    if self._shell.executor.driver_of(unit["type"]) is bound:
                        nursery.start_soon(self._look, bound, limit, unit)

    async def _look(self, bound: BoundDriver, limit: trio.CapacityLimiter, unit: Mapping[str, Any]) -> None:
        async with limit:
            for last in (False, True):
                try:
                    found = await self._probe(bound, unit)
                except DriverError as error:
                    logger.info("%s can't be probed: %s", unit["unit"], error, extra={"unit": unit["unit"]})
                    return
                if found.state != "down":
                    await self._tell_use(unit, found)
                    return
                if not last:
                    await trio.sleep(self._again_after)
        what = {key: unit[key] for key in ("unit", "lease", "setup")}
        try:
            await self._shell.command("unit.fail", {**what, "reason": f"found down: {found.detail}"})
        except CommandError as error:
            logger.debug("%s is down: %s", unit["unit"], error)
        else:
            logger.warning("%s is down: %s", unit["unit"], found.detail, extra={"unit": unit["unit"]})

    async def _tell_use(self, unit: Mapping[str, Any], found: ProbeResult) -> None:
        """The actor hears what a machine that is up uses, if its driver can say that."""
        used = found.measured.get("cpu")
        if used is None or UNIT_HOST not in unit["properties"]:
            return
        try:
            what = {key: unit[key] for key in ("unit", "lease", "setup")}
            await self._shell.command("unit.measured", {**what, "cpu": max(0, round(used))})
        except CommandError as error:
            logger.debug("what %s uses is not told: %s", unit["unit"], error)

    async def _probe(self, bound: BoundDriver, unit: Mapping[str, Any]) -> ProbeResult:
        """Raises ``DriverError``, whatever the driver raised."""
        context = self._context(unit, "probe")
        found: object = await within_timeout(bound, "probe", context.log, lambda: bound.driver.probe(context))
        if not isinstance(found, ProbeResult):
            raise DriverError(f"probe returned {found!r:.100}, expected ProbeResult", retry=False)
        return found

    def _context(self, unit: Mapping[str, Any], op: str) -> UnitContext:
        log = self._shell.unit_logs.open(unit["unit"], f"{unit['lease'] or '-'} {op}: ")
        return UnitContext(
            unit=unit["unit"],
            type=unit["type"],
            lease=unit["lease"],
            op=op,
            number=unit["setup"],
            properties=unit["properties"],
            log=log,
            configuration=unit["configuration"],
        )

    # -- what is left of units -----------------------------------------------------------------------------------

    async def _tell_orphans(self) -> None:
        try:
            await self._find_orphans()
        except CommandError as error:
            logger.warning("what is left of old units can't be found out: %s", error)
            return
        for trouble in self._untold:
            logger.warning("driver %s can't say what is left of old units: %s", trouble.driver, trouble.reason)
        for orphan in self._orphans:
            logger.warning(
                "%s %s on %s is of unit %s, which nobody has: `leasekit site orphans --remove` removes it",
                orphan.kind, orphan.name, orphan.host, orphan.unit, extra={"unit": orphan.unit},
            )  # fmt: skip

    async def _find_orphans(self) -> list[tuple[BoundDriver, Orphan]]:
        """What all drivers find that can look, all at once: one that waits for a dead host holds up none. Why others
        could not is in ``_untold``.
        """
        known = {unit["unit"] for unit in await self._shell.query("units", {}) if unit["state"] in HELD}
        finders = [bound for bound in self._drivers if hasattr(bound.driver, "orphans")]
        answers: list[list[Orphan]] = [[] for _ in finders]
        troubles: list[OrphanTrouble | None] = [None for _ in finders]

        async def ask(number: int, bound: BoundDriver) -> None:
            try:
                answers[number] = await self._orphans_of(bound, known)
            except DriverError as error:
                answers[number] = list(error.found) if isinstance(error, PartlyToldError) else []
                troubles[number] = OrphanTrouble(bound.spec.name, "", str(error))

        async with trio.open_nursery() as nursery:
            for number, bound in enumerate(finders):
                nursery.start_soon(ask, number, bound)
        self._untold = [trouble for trouble in troubles if trouble is not None]
        found = [(bound, orphan) for bound, answer in zip(finders, answers, strict=True) for orphan in answer]
        self._orphans = [orphan for _, orphan in found]
        return found

    async def _orphans_of(self, bound: BoundDriver, known: Collection[str]) -> list[Orphan]:
        """Raises ``DriverError``, whatever the driver raised or returned."""
        try:
            with trio.move_on_after(bound.spec.timeout / SECOND):
                return _checked(await cast(OrphanFinder, bound.driver).orphans(known))
        except PartlyToldError as error:
            _checked(list(error.found))
            raise
        except Exception as error:
            # Plug-ins: what they raise must not end the daemon, nor keep what others find from being told.
            logger.debug("driver %s failed in orphans", bound.spec.name, exc_info=error)
            raise explain(error, "orphans") from error
        raise DriverError(f"it took longer than {format_duration(bound.spec.timeout)}")

    async def _list_orphans(self, arguments: Mapping[str, Any]) -> OrphanReport:
        """What was found, of all units or of the one ``unit``, and which drivers could not look, and why."""
        wanted = str(arguments.get("unit") or "")
        found = [orphan for _, orphan in await self._find_orphans() if wanted in ("", orphan.unit)]
        return OrphanReport(found, self._untold)

    async def _remove_orphans(self, arguments: Mapping[str, Any]) -> OrphanReport:
        """Has drivers tear down the units of all orphans, or of those of the one ``unit``: what is gone, and what went
        wrong.
        """
        wanted = str(arguments.get("unit") or "")
        found = [(bound, one) for bound, one in await self._find_orphans() if wanted in ("", one.unit)]
        troubles: dict[tuple[int, str], OrphanTrouble] = {}
        for bound, unit in {(id(bound), one.unit): (bound, one.unit) for bound, one in found}.values():
            try:
                await self._remove(bound, unit)
            except (CommandError, DriverError) as error:
                troubles[id(bound), unit] = OrphanTrouble(bound.spec.name, unit, str(error))
        gone = [one for bound, one in found if (id(bound), one.unit) not in troubles]
        await self._find_orphans()
        return OrphanReport(gone, [*self._untold, *troubles.values()])

    async def _remove(self, bound: BoundDriver, name: str) -> None:
        """Out of service meanwhile, so that no lease gets the unit while it is being torn down."""
        states = {unit["unit"]: unit["state"] for unit in await self._shell.query("units", {})}
        held = states.get(name) == "free"
        if held:
            told = await self._shell.command("unit.disable", {"unit": name, "reason": "what is left of it is removed"})
            if told["state"] != "out":
                await self._shell.command("unit.enable", {"unit": name})
                raise CommandError(f"unit {name} was given to a lease just now: nothing of it is removed")
        elif states.get(name) in HELD:
            raise CommandError(f"unit {name} is {states[name]}: nothing of it is removed")
        unit = {"unit": name, "type": "", "lease": "", "setup": 0, "properties": {}, "configuration": {}}
        context = self._context(unit, "teardown")
        try:
            await within_timeout(bound, "teardown", context.log, lambda: bound.driver.teardown(context))
        finally:
            if held:
                await self._shell.command("unit.enable", {"unit": name})

    # -- an operator's actions -----------------------------------------------------------------------------------

    async def _operate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Has the driver carry out ``operation`` on ``unit``, which is up, with ``arguments``; what it returns."""
        bound, unit = await self._find(arguments)
        given = arguments.get("arguments") or {}
        if not isinstance(given, Mapping):
            raise ArgumentError(f"arguments: found {given!r:.60}, expected names and values")
        context, operation = self._context(unit, "operate"), str(arguments.get("operation", ""))
        try:
            call = partial(bound.driver.operate, context, operation, given)
            return dict(await within_timeout(bound, operation, context.log, call))
        except DriverError as error:
            raise CommandError(str(error)) from error

    async def _probe_now(self, arguments: Mapping[str, Any]) -> ProbedUnit:
        bound, unit = await self._find(arguments)
        try:
            found = await self._probe(bound, unit)
        except DriverError as error:
            raise CommandError(str(error)) from error
        return ProbedUnit(found.state, found.detail, dict(found.measured))

    async def _find(self, arguments: Mapping[str, Any]) -> tuple[BoundDriver, Mapping[str, Any]]:
        name = str(arguments.get("unit", ""))
        for unit in await self._shell.query("watched", {}):
            if unit["unit"] == name:
                bound = self._shell.executor.driver_of(unit["type"])
                if bound is None:
                    raise CommandError(f"unit {name} has no driver")
                return bound, unit
        raise CommandError(f"no unit {name!r} is up here; `leasekit site units` shows those there are")


def _checked(found: object) -> list[Orphan]:
    """What a driver says is left, which a plug-in may say in any way. Raises ``DriverError``."""
    if not isinstance(found, list | tuple):
        raise DriverError(f"orphans returned {found!r:.100}, expected a list of Orphan", retry=False)
    for one in found:
        if not isinstance(one, Orphan) or not all(isinstance(text, str) for text in attrs.astuple(one)):
            raise DriverError(f"orphans returned {one!r:.100} among others, expected Orphan, all in text", retry=False)
    return list(found)
