"""What a resource driver is. Drivers touch the world; the core only says what it wants done.

All methods are idempotent (the same action number may come twice, after a restart), cancellable, and free
to take hours. The runtime gives each a timeout, retries with backoff, a bound on how many run at once and a log per
unit; what a driver raises becomes the unit's reason. An authority uses ``setup``, ``teardown`` and ``modify``,
a guest ``join`` and ``leave``; ``probe`` serves both.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.time import Duration

SAVE: Final = "lease.save"
"""In a teardown's properties: keep what the unit has under this key, apart from the unit."""
RESUME: Final = "lease.resume"
"""In a setup's properties: the unit goes on from what was kept under this key."""
NOT_SAVED: Final = "save.failed"
"""What a teardown returns that could not save: why. The unit is gone all the same."""
NOT_RESUMED: Final = "resume.failed"
"""What a setup returns that found nothing under the key: why. The unit was set up anew."""
UNIT_HOST: Final = "unit.host"
"""Of a machine: the host on which its site has it. A ``modify`` with :data:`UNIT_LEAVES` moves it there."""
UNIT_LEAVES: Final = "unit.leaves"
"""The host on which the machine is until it has been moved; if that fails it stays there."""
UNIT_CAP: Final = "unit.cap"
"""How much CPU the machine gets at most, in millicores; none is said where it gets as much as there is."""
DROP: Final = "drop"
"""The operation that throws away what was kept; the context's ``unit`` is the key."""
Blame = Literal["lease", "unit", "site"]
"""Whose fault it is that an action failed. The *lease's*: what its guest has said can't be done on any unit. The
*unit's*: another one may do. The *site's*: something that all units of the type need is missing, down or full.
"""
UNIT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""The ids of units that may become the name of a file, a host or a domain: no separators, no leading dot or dash."""
UNIT_ID_ALLOWED: Final = "1 to 63 letters, digits, dots, dashes and underscores, a letter or digit first"
LEASE: Final = "lease"
UNIT: Final = "unit"
SITE: Final = "site"


class DriverError(LeasekitError):
    """An action failed; the text is the unit's reason.

    ``retry`` says whether doing it again may help: a wrong image checksum does not get better, a timeout may. What a
    guest has said never gets better. ``blame`` says whose fault it is; any other exception is the unit's.
    """

    def __init__(self, reason: str, *, retry: bool = True, blame: Blame = UNIT) -> None:
        super().__init__(reason)
        self.retry = retry and blame != LEASE
        self.blame: Blame = blame


class SiteFaultError(DriverError):
    """What all units of the type need is missing, down or full: the site's fault."""

    def __init__(self, reason: str, *, retry: bool = True) -> None:
        super().__init__(reason, retry=retry, blame=SITE)


@attrs.frozen(kw_only=True)
class UnitContext:
    """What a driver is told. ``properties`` holds the site's words (at a guest, the guest's): unit and resource
    properties, ``lease.*`` and ``slice.*``. ``configuration`` is what the guest has said, at its site: any key, any
    text; there is none in a teardown.

    ``number`` is the action's, the same when an action is done again after a restart; ``log`` writes a line to the
    unit's log.
    """

    unit: str
    type: str
    lease: str
    op: str
    number: int
    properties: Properties
    log: Callable[[str], None]
    configuration: Properties = EMPTY

    @property
    def chosen(self) -> Properties:
        """What the guest has chosen, where the site has not said it: for drivers that let it choose."""
        return {**self.configuration, **self.properties}

    def blame(self, key: str) -> Blame:
        """Whose fault it is if what was :attr:`chosen` can't be used."""
        return LEASE if key in self.configuration and key not in self.properties else SITE


@attrs.frozen(kw_only=True)
class ProbeResult:
    """``state`` is ``up``, ``down`` or ``unknown``; ``detail`` says more in words; ``measured`` what was measured."""

    state: str
    detail: str = ""
    measured: Mapping[str, float] = attrs.Factory(dict)


@attrs.frozen
class Finding:
    """How one thing is that a driver needs of its host: ``ok``, ``doubtful`` (it may still work) or ``missing``.

    ``what`` names the thing, ``found`` says how it is, ``advice`` what to do about it.
    """

    what: str
    verdict: Literal["ok", "doubtful", "missing"]
    found: str
    advice: str = ""


@attrs.frozen
class Timeouts:
    """How long an action of a driver may take, in milliseconds: ``usual`` where the site says nothing; with ``least``
    or less it ends before the driver itself gives up, for what ``why`` names.
    """

    usual: Duration
    least: Duration
    why: str


@attrs.frozen
class OnlyUnits:
    """Which units alone a driver can serve, by its settings: those that ``takes`` says. For any other unit there is no
    ``what`` (``node``) in the settings' ``key`` (``nodes``). Of units with a capacity, on which machines are, a driver
    may serve others: those of ``hosts``.
    """

    takes: Callable[[str], bool]
    key: str
    what: str
    hosts: Container[str] | None = None

    def lacks(self, unit: str, *, divided: bool) -> str:
        """What there is not for a unit: ``what``, or ``host``; empty: it can be served. ``divided``: machines are on
        units of its type.
        """
        if divided and self.hosts is not None:
            return "" if unit in self.hosts else "host"
        return "" if self.takes(unit) else self.what


@attrs.frozen
class Orphan:
    """Something of ``unit``'s that nobody asked for: its ``kind`` in a word, its ``name``, and on which ``host``."""

    host: str
    unit: str
    kind: str
    name: str


class PartlyToldError(DriverError):
    """What there is of old units can't be found out everywhere, for these ``problems``: ``found`` is the rest."""

    def __init__(self, problems: Sequence[str], found: Sequence[Orphan]) -> None:
        super().__init__("; ".join(problems))
        self.found = tuple(found)


class OrphanFinder(Protocol):
    """What a driver is besides, whose units can outlive what is known of them."""

    async def orphans(self, known: Collection[str]) -> list[Orphan]:
        """What there is of units that are not ``known``; ``teardown`` of such a unit removes it. Raises ``DriverError``
        where that can't be found out, :class:`PartlyToldError` where it can be in part (:func:`all_orphans`).
        """
        ...


class Closable(Protocol):
    """What a driver is besides that has something of its own open: a server, a port."""

    def close(self) -> None:
        """Give it up: a driver with other settings takes the place of this one. What it does just then may fail."""
        ...


async def all_orphans(looks: Iterable[Callable[[], Awaitable[Iterable[Orphan]]]]) -> list[Orphan]:
    """What each of ``looks`` finds, one after the other; a host that is away keeps no other from being looked at.
    Raises :class:`PartlyToldError` if any of them raised ``DriverError``.
    """
    found: list[Orphan] = []
    problems: list[str] = []
    for look in looks:
        try:
            found += await look()
        except PartlyToldError as error:
            found += error.found
            problems.append(str(error))
        except DriverError as error:
            problems.append(str(error))
    if problems:
        raise PartlyToldError(problems, found)
    return found


class Driver(Protocol):
    """One instance serves all units of a resource type at one actor."""

    capabilities: frozenset[str]
    """Of ``cap``, ``resize``, ``migrate``, ``suspend``, ``power``, ``image``: what :meth:`operate` and ``modify`` can
    do. ``save``: ``teardown`` keeps a unit that it is told to (:data:`SAVE`), ``setup`` goes on from that
    (:data:`RESUME`), also as another unit, and what is not wanted any more is thrown away (:data:`DROP`). A setup that
    fails or is cancelled leaves what was kept as it was.
    """

    operations: frozenset[str]
    """What :meth:`operate` can be asked for: ``restart``, ``reboot``, ``console``, ..."""

    async def setup(self, unit: UnitContext) -> Properties:
        """Make the unit usable; returns its properties (name, addresses, ports). Raises ``DriverError``."""
        ...

    async def teardown(self, unit: UnitContext) -> Properties | None:
        """Take the unit away, and all that setup made. A unit that is not there is done. Returns something only where
        it was to save, and could not (:data:`NOT_SAVED`). Nothing that a guest has said may make it fail. Raises
        ``DriverError``.
        """
        ...

    async def modify(self, unit: UnitContext) -> Properties:
        """Bring a running unit to the properties given; returns unit properties as they are now. Raises
        ``DriverError``.
        """
        ...

    async def join(self, unit: UnitContext) -> Properties:
        """Guest side: take the unit into the guest's application. Raises ``DriverError``."""
        ...

    async def leave(self, unit: UnitContext) -> None:
        """Guest side: take the unit out again. Raises ``DriverError``."""
        ...

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """How the unit is. Raises ``DriverError`` only when that can't be found out."""
        ...

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """An operator's action on a live unit (``reboot``, ``console``); the driver's ``operations`` say which.
        Raises ``DriverError``.
        """
        ...
