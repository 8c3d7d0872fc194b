"""A driver that touches nothing: it takes the time, and fails as often, as its settings say.

:class:`LatencyModel` is a pure function of the settings and of what is done, so the virtual-time shell uses it in
place of the driver, and gets what the driver would have got. A draw depends on (seed, operation, unit, action
number) and on nothing else: not on the order of draws, nor on how many there were.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

import attrs
import trio

from leasekit.core.draws import Distribution, Fixed
from leasekit.core.drivers import DROP, NOT_RESUMED, RESUME, SAVE, UNIT_CAP, DriverError, ProbeResult, UnitContext
from leasekit.core.leases.power import OPERATIONS, POWER_OFF, SUSPEND
from leasekit.core.properties import CPU, EMPTY, NEEDS, Properties, valid_properties
from leasekit.core.time import SECOND, Duration
from leasekit.drivers.names import unknown_operation

Operation: TypeAlias = Literal[
    "setup", "teardown", "modify", "join", "leave", "power_on", "power_off", "suspend", "resume"
]

_SHARE: Final = re.compile(r"0(\.\d{1,9})?|1(\.0*)?")


def _check_probabilities(_: object, __: object, failures: Mapping[str, float]) -> None:
    wrong = {operation: share for operation, share in failures.items() if not 0 <= share <= 1}
    if wrong:
        raise ValueError(f"a probability lies between 0 and 1 ({', '.join(f'{k}: {v}' for k, v in wrong.items())})")


@attrs.frozen(kw_only=True)
class NullSettings:
    """``latency`` and ``failure`` (a probability, 0 to 1) by operation; operations left out take no time, and succeed.

    ``properties`` are added to the unit properties of every setup; ``metered`` is what power operations return of units
    that have a meter (``watts``, ``idle_watts``). Probes say that machines on hosts use the share ``use`` of the CPU
    that they need, or the one that the configuration property ``use`` says, as far as they are let. Two drivers with
    one ``seed`` draw the same.
    """

    seed: int = 0
    latency: Mapping[Operation, Distribution] = attrs.Factory(dict)
    failure: Mapping[Operation, float] = attrs.field(factory=dict, validator=_check_probabilities)
    properties: Mapping[str, str] = attrs.field(factory=dict, validator=valid_properties)
    metered: Mapping[str, str] = attrs.field(factory=dict, validator=valid_properties)
    use: float = attrs.field(default=1.0, validator=[attrs.validators.ge(0), attrs.validators.le(1)])


class NullOutcome(NamedTuple):
    """How an action ends: with the unit's ``properties``, or failed for ``reason``."""

    ok: bool
    properties: Properties = EMPTY
    reason: str = ""


_DONE: Final = NullOutcome(True)


class LatencyModel:
    """How long each action takes and how it ends, as pure functions."""

    def __init__(self, settings: NullSettings) -> None:
        self._seed = b"%d" % settings.seed
        self._latency: dict[str, Distribution] = {str(op): model for op, model in settings.latency.items()}
        self._failure: dict[str, float] = {op: share for op, share in settings.failure.items() if share > 0}
        self._properties = dict(settings.properties)
        self._metered = dict(settings.metered)

    def latency(self, op: str, unit: str, number: int) -> Duration:
        """Milliseconds that action ``number``, ``op`` on ``unit``, takes."""
        distribution = self._latency.get(op)
        if distribution is None:
            return 0
        if isinstance(distribution, Fixed):
            return distribution.latency
        return distribution.draw(self._uniform(b"latency", op, unit, number))

    def outcome(self, op: str, unit: str, number: int) -> NullOutcome:
        """How action ``number``, ``op`` on ``unit``, ends: the same way however often it is done."""
        share = self._failure.get(op, 0.0)
        if share and self._uniform(b"failure", op, unit, number) < share:
            return NullOutcome(False, reason=f"{op} of {unit} failed, as one in {1 / share:.4g} is set to")
        if op in ("join", "leave", "teardown"):
            return _DONE
        return NullOutcome(True, self.properties(unit) if op in ("setup", "modify") else self.metered(op))

    def properties(self, unit: str) -> Properties:
        """The unit properties of a unit that is set up."""
        return {"host": unit, **self._properties}

    def metered(self, op: str) -> Properties:
        """What an operation returns of the unit's meter."""
        return dict(self._metered) if op in OPERATIONS else EMPTY

    def _uniform(self, purpose: bytes, op: str, unit: str, number: int) -> float:
        """A number strictly between 0 and 1: with 52 random bits neither end can be rounded to."""
        text = f"{op}\0{number}\0{unit}".encode("utf-8", "surrogatepass")
        digest = blake2b(text, digest_size=8, key=self._seed[:64], person=purpose).digest()
        return ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52


class NullDriver:
    """A :class:`~leasekit.core.drivers.Driver` of units that are only imagined, at the pace of its model."""

    Settings: ClassVar[type] = NullSettings
    capabilities: frozenset[str] = frozenset({"power", "suspend", "save", "cap", "migrate"})
    operations: frozenset[str] = OPERATIONS | {"status", DROP}

    def __init__(self, settings: NullSettings) -> None:
        self.model = LatencyModel(settings)
        self._use = settings.use
        self._up: dict[str, int | None] = {}  # the number of each unit's setup, None once it was torn down
        self._power: dict[str, str] = {}
        self._saved: dict[str, str | None] = {}  # the unit that each was saved from, or None once it is gone

    async def setup(self, unit: UnitContext) -> Properties:
        """Waits; the unit's ``host`` is its own id. What was saved is as imagined as the unit: it is there unless this
        instance knows that it is gone.
        """
        if self._up.get(unit.unit) == unit.number:
            await trio.lowlevel.checkpoint()
            return self.model.properties(unit.unit)
        properties = await self._act("setup", unit)
        self._up[unit.unit] = unit.number
        key = unit.properties.get(RESUME)
        if key is None:
            return properties
        if self._saved.get(key, unit.unit) is None:
            unit.log(f"is set up anew: nothing is saved as {key} any more")
            return {**properties, NOT_RESUMED: "what was saved of it is gone"}
        unit.log(f"goes on from what was saved of {self._saved.get(key, 'a unit')}")
        self._saved[key] = None
        return properties

    async def teardown(self, unit: UnitContext) -> None:
        """Waits."""
        await self._act("teardown", unit)
        self._up[unit.unit] = None
        if SAVE in unit.properties:
            self._saved[unit.properties[SAVE]] = unit.unit
            unit.log(f"is saved as {unit.properties[SAVE]}")

    async def modify(self, unit: UnitContext) -> Properties:
        """Waits."""
        return await self._act("modify", unit)

    async def join(self, unit: UnitContext) -> Properties:
        """Waits."""
        return await self._act("join", unit)

    async def leave(self, unit: UnitContext) -> None:
        """Waits."""
        await self._act("leave", unit)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """``unknown`` for a unit that this instance has not set up or torn down itself."""
        await trio.lowlevel.checkpoint()
        if unit.unit not in self._up:
            return ProbeResult(state="unknown", detail="an imagined unit, not set up since this driver started")
        state = "down" if self._up[unit.unit] is None else "up"
        return ProbeResult(state=state, detail="an imagined unit", measured=self._used(unit))

    def _used(self, unit: UnitContext) -> dict[str, float]:
        """What a machine on a host uses of CPU, in millicores: no more than its cap."""
        needs = unit.properties.get(f"{NEEDS}{CPU}")
        if needs is None:
            return {}
        said = unit.configuration.get("use", "")
        share = float(said) if _SHARE.fullmatch(said) else self._use
        return {"cpu": min(float(unit.properties.get(UNIT_CAP, needs)), int(needs) * share)}

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """Switches the unit's power, as far as there is one: waits, and returns ``power``, which ``status`` reads.

        A unit is on until it is switched.
        """
        if operation not in self.operations:
            await trio.lowlevel.checkpoint()
            raise unknown_operation("null", operation, self.operations)
        if operation == DROP:
            await trio.lowlevel.checkpoint()
            self._saved[unit.unit] = None
            return EMPTY
        metered: Properties = EMPTY
        if operation == "status":
            await trio.lowlevel.checkpoint()
        else:
            metered = await self._act(operation, unit)
            self._power[unit.unit] = {POWER_OFF: "off", SUSPEND: "suspended"}.get(operation, "on")
        return {"power": self._power.get(unit.unit, "on"), **metered}

    async def _act(self, op: str, unit: UnitContext) -> Properties:
        latency = self.model.latency(op, unit.unit, unit.number)
        unit.log(f"{op} takes {latency} ms")
        await trio.sleep(latency / SECOND)
        outcome = self.model.outcome(op, unit.unit, unit.number)
        if not outcome.ok:
            # Drawn once for each action, so that doing it again changes nothing.
            raise DriverError(outcome.reason, retry=False)
        return outcome.properties
