"""What drivers of virtual machines have in common, whoever runs the domains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from leasekit.core.drivers import DriverError, Orphan, ProbeResult, UnitContext, all_orphans
from leasekit.core.properties import Properties
from leasekit.core.settings import expect_one_of
from leasekit.drivers.libvirt.record import MachineRecord
from leasekit.drivers.names import check_unit_id, unknown_operation
from leasekit.drivers.one_sided import SiteOnly
from leasekit.drivers.unit_books import AddressBook, CpuSamples, UnitLocks


class DomainPlace(Protocol):
    """A host of domains."""

    name: str

    def name_of(self, unit: str) -> str:
        """How a unit's domain is called."""

    async def belongings(self) -> list[tuple[str, str, str]]:
        """What there is of units here: (unit, what it is, its name). Raises ``DriverError``."""


class DomainImage(Protocol):
    """An image of the settings."""

    @property
    def user(self) -> str:
        """Who logs in."""


class FoundDomain(Protocol):
    """What there is of a unit on a host."""

    @property
    def alive(self) -> bool:
        """Whether it runs, or would go on if it were resumed."""

    @property
    def why(self) -> str:
        """How its domain is, in words."""


P = TypeVar("P", bound=DomainPlace)
Act = TypeVar("Act", bound=Callable[..., Awaitable[Properties]])
_OPERATION: Final = "is_operation"


def operation(method: Act) -> Act:
    """Marks what a driver does to a unit when a site asks for it by the method's name, without its underscore."""
    vars(method)[_OPERATION] = True
    return method


class DomainDriver(SiteOnly, Generic[P]):
    """The half of a driver that does not depend on who runs the domains of its ``places``."""

    operations: frozenset[str]

    def __init_subclass__(cls) -> None:
        cls.operations = frozenset(name[1:] for name, found in vars(cls).items() if hasattr(found, _OPERATION))

    def __init__(self, places: Mapping[str, P], images: Mapping[str, DomainImage]) -> None:
        self._places, self._images = places, images
        self._locks, self._addresses, self._samples = UnitLocks(), AddressBook(), CpuSamples()

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """``suspend`` (memory to disk) and ``resume``; ``restart``; ``migrate`` (argument ``host``); ``console``,
        which returns the last lines as property ``console``. Those of one driver are said in its page.
        """
        if operation not in self.operations:
            raise unknown_operation(self.kind, operation, self.operations)
        check_unit_id(unit.unit)
        act: Callable[[UnitContext, Mapping[str, Any]], Awaitable[Properties]] = getattr(self, f"_{operation}")
        async with self._locks.of(unit.unit):
            return await act(unit, arguments)

    async def orphans(self, known: Collection[str]) -> list[Orphan]:
        """What there is on all hosts of units that are not ``known``, domains first. Raises ``PartlyToldError`` with
        hosts that can't be asked. A teardown of the unit removes it.
        """

        async def look(place: P) -> list[Orphan]:
            return [Orphan(place.name, *what) for what in await place.belongings() if what[0] not in known]

        return await all_orphans(partial(look, place) for place in self._places.values())

    def _target(self, arguments: Mapping[str, Any]) -> P:
        """The host that a unit is to move to. Raises ``DriverError``."""
        wanted = str(arguments.get("host", ""))
        if wanted not in self._places:
            text = f"host: found {wanted[:40]!a}, {expect_one_of(wanted[:40], self._places)}"
            raise DriverError(text, retry=False)
        return self._places[wanted]

    def _properties(self, place: P, record: MachineRecord) -> Properties:
        image = self._images.get(record.image)
        found = record.properties(place.name, place.name_of(record.unit))
        return {**found, "user": image.user} if image is not None and record.host_key else found

    def _measured(self, unit: str, cpu: float, memory: int, vcpus: int) -> dict[str, float]:
        """What a probe reads: ``cpu`` in seconds, ``memory`` in bytes. It tells ``cpu`` in millicores."""
        found = {"cpu_seconds": cpu, "memory_bytes": float(memory), "vcpus": float(vcpus)}
        percent = self._samples.percent(unit, cpu)
        return found if percent is None else {**found, "cpu_percent": percent, "cpu": percent * 10}

    @staticmethod
    def _probed(place: P, state: FoundDomain, measured: dict[str, float], *, ready: bool) -> ProbeResult:
        """What a probe says of a unit that was set up."""
        if not state.alive:
            return ProbeResult(state="down", detail=f"its domain is {state.why}", measured=measured)
        if not ready:
            return ProbeResult(state="down", detail="not ready yet", measured=measured)
        return ProbeResult(state="up", detail=f"{state.why} on host {place.name}", measured=measured)
