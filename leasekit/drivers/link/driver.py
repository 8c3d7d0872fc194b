"""The driver itself: a unit adds its granule to its lease's class at both ends of its link, and takes it out again.

Its memory is a file for each link, which says which units of it a lease has, and is written before the kernel is told.
What the kernel should have follows from that, so setup and teardown may come in any order, twice, and after a restart.
``tc`` and ``ip`` of iproute2 are told by batches on their standard input, never through a shell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
import trio

from leasekit.core.drivers import DriverError, Finding, ProbeResult, SiteFaultError, UnitContext
from leasekit.core.properties import Properties
from leasekit.core.settings import SettingsError, expect_one_of, expecting
from leasekit.core.time import SECOND, Duration
from leasekit.core.topology import number_of
from leasekit.drivers.commands import Run
from leasekit.drivers.examining import missing_capabilities
from leasekit.drivers.files import SEARCH, find_executable, read_as, write_whole
from leasekit.drivers.link.settings import KBIT_MAX, SLOTS_MAX, End, LinkSettings, LinkTable
from leasekit.drivers.link.shaping import (
    HANDLE,
    Kind,
    Lane,
    LinkShape,
    SeenShape,
    addresses,
    classes,
    filters,
    leaves,
    removals,
)
from leasekit.drivers.names import check_unit_id, unknown_operation
from leasekit.drivers.one_sided import SiteOnly

NET_ADMIN, SYS_ADMIN = {12: "CAP_NET_ADMIN"}, {21: "CAP_SYS_ADMIN"}
"""Capabilities of Linux (``man 7 capabilities``): to change interfaces, and to enter namespaces."""

_GRACE: Final[Duration] = 2 * SECOND
_CLASS: Final = re.compile(rf"class htb {HANDLE}([0-9a-f]+) .*?rate (\d+)([KMGT]?)bit")
_SENT: Final = re.compile(r"Sent (\d+) bytes \d+ pkts? \(dropped (\d+)")
_KBIT: Final = {"": 0.001, "K": 1, "M": 10**3, "G": 10**6, "T": 10**9}
_GONE: Final = ("does not exist", "Cannot open network namespace", "Cannot find device", "No such device")


class NoEndError(SiteFaultError):
    """The interface of an end is not there."""


class NoQueueError(SiteFaultError):
    """The kernel has not the kind of queue that was asked for."""


def missing_rights(*, namespaces: bool) -> str:
    """What this process may not do that the driver has to, in words; empty where it may."""
    missing = missing_capabilities({**NET_ADMIN, **SYS_ADMIN} if namespaces else NET_ADMIN)
    if not missing:
        return ""
    return (
        f"this process lacks {' and '.join(missing)}, which shaping needs: start the daemon as root, or with just that"
    )


@attrs.frozen(kw_only=True)
class Tools:
    """The two programs, by their paths. All methods raise ``DriverError``."""

    tc: str
    ip: str

    async def see(self, end: End, log: Callable[[str], None]) -> SeenShape:
        """What an end has. Raises :class:`NoEndError` where there is no interface."""
        interface = end.interface
        (found,) = self._json(await self._run(self.ip, end, ["-j", "address", "show", "dev", interface], log), end)
        up = "UP" in found.get("flags", ())
        addresses = {f"{entry['local']}/{entry['prefixlen']}" for entry in found["addr_info"] if "local" in entry}
        queues = self._json(await self._run(self.tc, end, ["-j", "qdisc", "show", "dev", interface], log), end)
        root = next((queue for queue in queues if queue.get("root")), {"kind": "none", "handle": "0:"})
        if (root["kind"], root["handle"]) != ("htb", HANDLE):
            if root["handle"] != "0:":
                text = f"end {end} has a queue {root['kind']} {root['handle']} that is not leasekit's: remove it first"
                raise SiteFaultError(text, retry=False)
            return SeenShape(up=up, addresses=frozenset(addresses))
        shown = await self._run(self.tc, end, ["class", "show", "dev", interface], log)
        rules = await self._run(self.tc, end, ["-j", "filter", "show", "dev", interface, "parent", HANDLE], log)
        return SeenShape(
            up=up,
            ours=True,
            classes={int(minor, 16): round(int(rate) * _KBIT[unit]) for minor, rate, unit in _CLASS.findall(shown)},
            leaves={
                _minor(queue["parent"]): queue["kind"] for queue in queues if queue.get("parent", "").startswith(HANDLE)
            },
            filters=_filters(self._json(rules, end)),
            addresses=frozenset(addresses),
        )

    async def counters(self, end: End, minor: int, log: Callable[[str], None]) -> dict[str, float]:
        """What a class of an end has sent and dropped since it is there; nothing where there is no such class."""
        shown = await self._run(self.tc, end, ["-s", "class", "show", "dev", end.interface], log)
        for text in shown.split("class htb ")[1:]:
            found = _SENT.search(text)
            if text.startswith(f"{HANDLE}{minor:x} ") and found is not None:
                return {"sent_bytes": float(found[1]), "dropped": float(found[2])}
        return {"sent_bytes": 0.0, "dropped": 0.0}

    async def shape(self, end: End, lines: Iterable[str], log: Callable[[str], None]) -> None:
        """Have ``tc`` carry out commands, in order, until one fails."""
        await self._batch(self.tc, end, list(lines), log)

    async def address(self, end: End, lines: Iterable[str], log: Callable[[str], None]) -> None:
        """Have ``ip`` carry out commands, in order, until one fails."""
        await self._batch(self.ip, end, list(lines), log)

    async def _batch(self, program: str, end: End, lines: Sequence[str], log: Callable[[str], None]) -> None:
        if lines:
            await self._run(program, end, ["-batch", "-"], log, "".join(f"{line}\n" for line in lines))

    async def _run(
        self, program: str, end: End, words: Sequence[str], log: Callable[[str], None], given: str = ""
    ) -> str:
        said: list[str] = []

        def hear(line: str) -> None:
            said.append(line)
            log(f"{Path(program).name}: {line}")

        inside = ["-n", end.namespace] if end.namespace else []
        run = Run(
            command=(program, *inside, *words),
            directory=Path("/"),
            environment={"PATH": SEARCH, "LC_ALL": "C"},
            given=given.encode(),
            grace=_GRACE,
            log=hear,
            what=f"end {end}: {Path(program).name}",
        )
        try:
            return (await run.output()).decode("utf-8", "replace")
        except DriverError as error:
            raise _explained(error, end, " ".join(said)) from error

    def _json(self, text: str, end: End) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = json.loads(text or "[]")
        except ValueError as error:
            raise SiteFaultError(f"end {end}: iproute2 wrote something else than JSON", retry=False) from error
        return [entry for entry in found if entry]


def _explained(error: DriverError, end: End, said: str) -> DriverError:
    """The error in words that say what to do, where it is a known one; another try may help with the others."""
    if any(words in said for words in _GONE):
        return NoEndError(f"end {end} is not there: {said[:200]}")
    if "kind is unknown" in said:
        return NoQueueError(str(error), retry=False)
    if "Operation not permitted" in said or "Permission denied" in said:
        return SiteFaultError(f"end {end}: this process must not shape it: start the daemon as root", retry=False)
    return SiteFaultError(f"{error} ({said[:300]})" if said not in str(error) else str(error))


def _minor(parent: str) -> int:
    return int(parent.removeprefix(HANDLE), 16)


def _filters(rules: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rule in rules:
        minors = found.setdefault(rule["pref"], [])
        flow = rule.get("options", {}).get("flowid", "")
        if flow.startswith(HANDLE):
            minors.append(_minor(flow))
    return found


def _are_rates(units: Mapping[str, int]) -> bool:
    return all(1 <= kbit <= KBIT_MAX for kbit in units.values())


@attrs.frozen
class Holding:
    """What a lease has of a link: its slot, which makes its class and its subnet, and its units with kbit/s of each."""

    slot: int = attrs.field(validator=[attrs.validators.ge(1), attrs.validators.le(SLOTS_MAX)])
    units: Mapping[str, int] = attrs.field(
        validator=[attrs.validators.min_len(1), expecting(f"1 to {KBIT_MAX} kbit/s of each", _are_rates)]
    )

    @property
    def rate(self) -> int:
        """In kbit/s."""
        return sum(self.units.values())


@attrs.frozen
class LinkRecord:
    """All leases of a link."""

    leases: Mapping[str, Holding]

    def __attrs_post_init__(self) -> None:
        slots = {holding.slot for holding in self.leases.values()}
        units = [unit for holding in self.leases.values() for unit in holding.units]
        if len(slots) < len(self.leases) or len(set(units)) < len(units):
            raise ValueError("found a slot or a unit twice")

    @property
    def rate(self) -> int:
        """Of all leases together, in kbit/s."""
        return sum(holding.rate for holding in self.leases.values())

    def lease_of(self, unit: str) -> str | None:
        """Which lease has a unit."""
        return next((lease for lease, holding in self.leases.items() if unit in holding.units), None)

    def without(self, unit: str) -> LinkRecord:
        """The same without a unit; a lease that has none left is gone."""
        lease = self.lease_of(unit)
        if lease is None:
            return self
        holding = self.leases[lease]
        units = {name: kbit for name, kbit in holding.units.items() if name != unit}
        others = {name: other for name, other in self.leases.items() if name != lease}
        return LinkRecord({**others, lease: Holding(holding.slot, units)} if units else others)

    def with_unit(self, unit: str, lease: str, kbit: int, slots: int) -> LinkRecord | None:
        """The same where the unit is the lease's, of whoever it was before; a new lease has the lowest slot that is
        free, and where none of ``slots`` is, there is no such record.
        """
        rest, before = self.without(unit).leases, self.leases.get(lease)
        taken = {other.slot for other in rest.values()}
        free = (slot for slot in range(1, slots + 1) if slot not in taken)
        slot = before.slot if before is not None else next(free, None)
        if slot is None:
            return None
        units = rest[lease].units if lease in rest else {}
        return LinkRecord({**rest, lease: Holding(slot, {**units, unit: kbit})})


Log = Callable[[str], None]

GRANULE: Final = "link.granule_mbps"


class LinkDriver(SiteOnly):
    """A :class:`~leasekit.core.drivers.Driver` of bandwidth.

    Raises ``SettingsError`` where iproute2 is missing or this process must not shape traffic.
    """

    kind = "link"
    Settings: ClassVar[type] = LinkSettings
    capabilities: frozenset[str] = frozenset()
    operations: frozenset[str] = frozenset()

    def __init__(self, settings: LinkSettings) -> None:
        errors, found = _programs(settings)
        lacking = missing_rights(namespaces=settings.namespaces)
        if lacking:
            errors.append(f"links: {lacking}")
        if errors:
            raise SettingsError(errors)
        self._settings = settings
        tools = Tools(**found)
        self._links = {name: _Link(name, table, settings, tools) for name, table in settings.links.items()}

    @classmethod
    async def examine(cls, settings: LinkSettings) -> list[Finding]:
        """Whether this host has the programs, this process the rights, and both ends of each link are there."""
        programs, found = _programs(settings)
        lacking = missing_rights(namespaces=settings.namespaces)
        findings = [Finding("iproute2", "missing", line, "install the package iproute2") for line in programs]
        if lacking:
            findings.append(
                Finding("rights", "missing", lacking.partition(":")[0], "start the daemon as root, or with just that")
            )
        if findings:
            return findings
        findings = [Finding("iproute2", "ok", f"{found['tc']}, {found['ip']}"), Finding("rights", "ok", "as needed")]
        for name, table in settings.links.items():
            for end in (table.a, table.b):
                try:
                    seen = await Tools(**found).see(end, lambda line: None)
                except NoEndError as error:
                    findings.append(Finding(f"link {name}", "doubtful", str(error), "have it before a lease comes"))
                except DriverError as error:
                    findings.append(Finding(f"link {name}", "missing", str(error)))
                else:
                    how = _down(end) if not seen.up else f"end {end} shapes leases" if seen.ours else f"end {end} is up"
                    findings.append(Finding(f"link {name}", "ok" if seen.up else "doubtful", how))
        return findings

    async def setup(self, unit: UnitContext) -> Properties:
        """Adds the unit's granule to its lease's class, which the first unit makes; returns addresses and subnet.

        A unit that is there already is seen to be in force. When it fails or is cancelled, what it added goes again.
        """
        link, name = self._link(unit.type), check_unit_id(unit.unit)
        granule = _granule(unit.properties)
        lacking = missing_rights(namespaces=self._settings.namespaces)
        if lacking:
            raise SiteFaultError(lacking, retry=False)
        await link.add(name, unit.lease, granule, unit.log)
        return link.properties(name)

    async def teardown(self, unit: UnitContext) -> None:
        """Takes the unit's granule out of its lease's class; with the last one class, filters and addresses go."""
        link, name = self._link(unit.type), check_unit_id(unit.unit)
        await link.remove(name, unit.log)

    async def modify(self, unit: UnitContext) -> Properties:
        """Brings the unit to the granule that its properties say."""
        link, name = self._link(unit.type), check_unit_id(unit.unit)
        if await link.lease_of(name) != unit.lease:
            raise DriverError(f"unit {name} is not set up for this lease, so it can't be modified", retry=False)
        await link.add(name, unit.lease, _granule(unit.properties), unit.log)
        return link.properties(name)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """Up where both ends have the lease's class, filters and address as they should be.

        Measured, of the whole lease: ``rate_mbps``, and by end ``a_sent_bytes``, ``a_dropped`` and so on.
        """
        link, name = self._link(unit.type), check_unit_id(unit.unit)
        return await link.probe(name, unit.log)

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """There are no operations."""
        await trio.lowlevel.checkpoint()
        raise unknown_operation("link", operation, self.operations)

    def _link(self, type_: str) -> _Link:
        if type_ not in self._links:
            expected = expect_one_of(type_[:60], self._links)
            raise SiteFaultError(f"links: found no link for the type {type_[:60]!a}, {expected}", retry=False)
        return self._links[type_]


def _programs(settings: LinkSettings) -> tuple[list[str], dict[str, str]]:
    """What is wrong with the programs, a line each, and the paths of those that are there."""
    errors = []
    found: dict[str, str] = {}
    for key, name in (("tc", settings.tc), ("ip", settings.ip)):
        try:
            found[key] = str(find_executable(name, Path(), SEARCH))
        except ValueError as error:
            errors.append(f"{key}: {error}; it comes with the package iproute2")
    return errors, found


def _granule(properties: Properties) -> int:
    """The bandwidth of a unit in kbit/s. Raises ``DriverError``, not worth a retry."""
    try:
        kbit = number_of(properties, GRANULE, "1") * 1000
    except ValueError as error:
        raise SiteFaultError(str(error), retry=False) from error
    if kbit.denominator != 1 or not 1 <= kbit <= KBIT_MAX:
        text = f"{GRANULE}: found {properties[GRANULE]!a}, expected whole kbit/s: 0.001 to {KBIT_MAX // 1000} Mbit/s"
        raise SiteFaultError(text, retry=False)
    return int(kbit)


class _Link:
    """One link: what its leases should have, and how both ends are brought there."""

    def __init__(self, name: str, table: LinkTable, settings: LinkSettings, tools: Tools) -> None:
        self._name = name
        self._table = table
        self._settings = settings
        self._tools = tools
        self._path = settings.directory / f"{name}.json"
        self._record: LinkRecord | None = None
        self._lock = trio.Lock()
        self._wanted = 0
        self._done = 0
        self._problems: dict[int, str] = {}
        """Why an end does not carry anything, by its number: empty where it does."""
        self._kind: Kind | None = None if settings.queue == "auto" else settings.queue
        if table.delay:
            self._kind = "netem"

    # What is wanted

    async def add(self, unit: str, lease: str, kbit: int, log: Log) -> None:
        """Have the unit in force for the lease, with ``kbit``. Raises ``DriverError``, with everything as before."""
        before = await self._known()
        wanted = before.with_unit(unit, lease, kbit, self._table.slots)
        if wanted is None:
            raise SiteFaultError(
                f"link {self._name}: all {self._table.slots} subnets of {self._table.subnets} are taken"
            )
        # More than that has been granted where the capacity was lowered since: what is in force stays so.
        if wanted.rate > max(before.rate, self._table.capacity):
            text = f"link {self._name}: its leases would have {_mbps(wanted.rate)} of {_mbps(self._table.capacity)}"
            raise SiteFaultError(text, retry=False)
        adopted = before.lease_of(unit) == lease
        self._record = wanted
        try:
            await self._settle(log)
            for problem in filter(None, self._problems.values()):
                raise NoEndError(problem)
        except BaseException:
            # What was in force before stays wanted: its next try, or its teardown, finds it.
            if not adopted:
                await self._take_back(unit, log)
            raise
        rate = wanted.leases[lease].rate
        log(f"link {self._name}: {_mbps(kbit)}, with which the lease has {_mbps(rate)}" if not adopted else "in force")

    async def remove(self, unit: str, log: Log) -> None:
        """Have the unit gone. Raises ``DriverError``."""
        self._record = (await self._known()).without(unit)
        await self._settle(log)

    async def lease_of(self, unit: str) -> str | None:
        """Which lease has a unit."""
        return (await self._known()).lease_of(unit)

    def properties(self, unit: str) -> Properties:
        """What a guest is told of a unit that was set up."""
        assert self._record is not None
        lease = self._record.lease_of(unit)
        if lease is None:
            raise DriverError(f"unit {unit} was taken away while it was set up")
        holding, table = self._record.leases[lease], self._table
        subnet = table.subnet(holding.slot)
        return {
            "name": unit,
            "rate_mbps": f"{holding.units[unit] / 1000:g}",
            "subnet": str(subnet),
            "address.a": str(subnet[1]),
            "address.b": str(subnet[2]),
        }

    async def _known(self) -> LinkRecord:
        if self._record is None:
            found = await trio.to_thread.run_sync(read_as, LinkRecord, self._path)
            # Another action may have read it in the meantime, and gone on from there.
            self._record = self._record or found or LinkRecord({})
        return self._record

    async def _take_back(self, unit: str, log: Log) -> None:
        with trio.CancelScope(shield=True):
            assert self._record is not None
            self._record = self._record.without(unit)
            try:
                await self._settle(log)
            except DriverError as error:
                # Why the setup ended is the reason to tell; what is left goes with the next try or the teardown.
                log(f"something is left for now: {error}")

    # How it comes about

    async def _settle(self, log: Log) -> None:
        """Brings record and kernel to what is wanted now. Actions that come together are served by one round."""
        self._wanted += 1
        mine = self._wanted
        async with self._lock:
            if self._done >= mine:
                return
            goal, record = self._wanted, await self._known()
            await trio.to_thread.run_sync(self._write, record)
            for number, end in enumerate((self._table.a, self._table.b)):
                await self._bring(number, end, record, log)
            self._done = goal

    def _write(self, record: LinkRecord) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SiteFaultError(f"can't make {self._path.parent}: {error.strerror}") from error
        if record.leases:
            write_whole(self._path, attrs.asdict(record))
        else:
            self._path.unlink(missing_ok=True)

    async def _bring(self, number: int, end: End, record: LinkRecord, log: Log) -> None:
        shape = self._shape(number, end, record)
        try:
            seen = await self._tools.see(end, log)
        except NoEndError as error:
            # It has taken all with it: nobody can be added, and whoever leaves has left.
            self._problems[number] = str(error)
            return
        self._problems[number] = "" if seen.up else _down(end)
        await self._tools.shape(end, removals(shape, seen), log)
        await self._tools.shape(end, classes(shape, seen), log)
        await self._queues(end, shape, seen, log)
        removable = [address for address in seen.addresses if self._table.gave(address, number)]
        await self._tools.address(end, addresses(shape, seen, removable), log)
        await self._tools.shape(end, filters(shape, seen), log)

    def _shape(self, number: int, end: End, record: LinkRecord) -> LinkShape:
        return LinkShape(
            interface=end.interface,
            capacity=self._table.capacity,
            rest=self._table.rest,
            queue_time=self._settings.queue_time,
            delay=self._table.delay,
            lanes=[self._lane(number, holding) for holding in record.leases.values()],
        )

    def _lane(self, number: int, holding: Holding) -> Lane:
        slot = holding.slot
        return Lane(
            slot=slot, rate=holding.rate, subnet=self._table.subnet(slot), address=self._table.address(slot, number)
        )

    async def _queues(self, end: End, shape: LinkShape, seen: SeenShape, log: Log) -> None:
        """What stands below the classes; where that is left to the kernel, the first lease finds out what it has."""
        if not shape.lanes:
            return
        plain = any(seen.leaves.get(lane.minor) == "bfifo" for lane in shape.lanes)
        kind: Kind = self._kind or ("bfifo" if plain else "fq_codel")
        try:
            await self._tools.shape(end, leaves(shape, seen, kind), log)
        except NoQueueError as error:
            if kind == "netem":
                text = f"link {self._name}: delay needs netem, which this kernel has not (module sch_netem)"
                raise SiteFaultError(text, retry=False) from error
            if self._kind is not None:
                raise
            log("the kernel has no fq_codel (module sch_fq_codel): leases have a plain queue")
            kind = "bfifo"
            await self._tools.shape(end, leaves(shape, seen, kind), log)
        self._kind = kind

    # How it is

    async def probe(self, unit: str, log: Log) -> ProbeResult:
        """How a unit is, and what its lease has sent. Raises ``DriverError``.

        The first look of a new daemon brings back what a reboot of the host took.
        """
        record = await self._known()
        lease = record.lease_of(unit)
        if lease is None:
            return ProbeResult(state="down", detail="not set up")
        if not self._done:
            try:
                await self._settle(log)
            except DriverError as error:
                return ProbeResult(state="down", detail=str(error))
        holding = record.leases[lease]
        measured = {"rate_mbps": holding.rate / 1000}
        for number, (side, end) in enumerate((("a", self._table.a), ("b", self._table.b))):
            lane = self._lane(number, holding)
            try:
                seen = await self._tools.see(end, log)
            except NoEndError as error:
                return ProbeResult(state="down", detail=str(error))
            if not seen.up:
                return ProbeResult(state="down", detail=_down(end))
            if not seen.has(lane):
                return ProbeResult(state="down", detail=f"end {end} does not shape the lease as it should")
            counters = await self._tools.counters(end, lane.minor, log)
            measured |= {f"{side}_{key}": value for key, value in counters.items()}
        return ProbeResult(state="up", detail=f"{_mbps(holding.rate)} in each direction", measured=measured)


def _down(end: End) -> str:
    return f"end {end} is down: `ip link set {end.interface} up`, in its namespace where it has one"


def _mbps(kbit: int) -> str:
    return f"{kbit / 1000:g} Mbit/s"
