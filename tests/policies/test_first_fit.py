"""The authority's first-fit mapper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.filters import Filter, parse_filter
from leasekit.core.mappers import Assign, AuthorityCycle, Demand, Refuse, Release, UnitView
from leasekit.core.time import Term
from leasekit.policies.authority.first_fit import FirstFit


def demand(lease: str, units: int, **changes: Any) -> Demand:
    fields: dict[str, Any] = {
        "lease": lease,
        "holder": "guest",
        "op": "shrink" if units < 0 else "new",
        "type": "vm",
        "units": units,
        "held": (),
        "wanted": (),
        "term": Term(0, 10),
        "properties": {},
    }
    return Demand(**{**fields, **changes})


class Site:
    """Units that are on offer, by type; counts how many were looked at."""

    def __init__(self, **units: Sequence[str]) -> None:
        self.units = units
        self.looked = 0

    def free(self, type_: str, filter_: str = "") -> Iterator[UnitView]:
        accepts = parse_filter(filter_) if filter_ else None
        return self._free(type_, accepts)

    def _free(self, type_: str, accepts: Filter | None) -> Iterator[UnitView]:
        for name in self.units.get(type_, ()):
            self.looked += 1
            if accepts is None or accepts(self.unit(name).attributes):
                yield self.unit(name)

    def unit(self, name: str) -> UnitView:
        return UnitView(name, name.partition("-")[0], "free", "", 0, {})

    def cycle(self, *demands: Demand) -> AuthorityCycle:
        return AuthorityCycle(0, demands, self.free, self.unit)


def names(type_: str, count: int) -> list[str]:
    return [f"{type_}-{index}" for index in range(count)]


def test_units_are_taken_in_order_and_once() -> None:
    """Each demand gets the next units of its type, whatever other types want in between."""
    site = Site(vm=names("vm", 5), gpu=names("gpu", 2))
    decisions = FirstFit().assign(site.cycle(demand("a", 2), demand("g", 1, type="gpu"), demand("b", 2)))
    assert decisions == [
        Assign("a", ("vm-0", "vm-1")),
        Assign("g", ("gpu-0",)),
        Assign("b", ("vm-2", "vm-3")),
    ]


def test_only_as_many_units_are_looked_at_as_are_given() -> None:
    """A turn's work is that of the units given, not that of the site."""
    site = Site(vm=names("vm", 10_000))
    FirstFit().assign(site.cycle(*(demand(f"l{index}", 2) for index in range(10))))
    assert site.looked == 20


def test_shrinking_releases_the_newest() -> None:
    """A shrinking lease gives up the units that it got last."""
    held = ("vm-0", "vm-3", "vm-1")
    assert FirstFit().assign(Site().cycle(demand("a", -2, held=held))) == [Release("a", ("vm-3", "vm-1"))]


def test_what_is_there_is_assigned_and_nothing_is_refused() -> None:
    """Too few units are assigned all the same, for each op; none at all is refused in words."""
    for op in ("grow", "replace", "new"):
        decisions = FirstFit().assign(Site(vm=["vm-0"]).cycle(demand("a", 3, op=op), demand("b", 1, op=op)))
        assert decisions == [Assign("a", ("vm-0",)), Refuse("b", "no unit of type 'vm' is in service and free")]


def test_named_units_go_to_who_is_tied_to_them() -> None:
    """A lease gets the units that its ticket names, though another demand comes first; held ones aren't asked for."""
    site = Site(vm=names("vm", 4))
    tied = demand("tied", 2, held=("vm-9",), wanted=("vm-9", "vm-1", "vm-0"))
    assert FirstFit().assign(site.cycle(demand("first", 2), tied)) == [
        Assign("first", ("vm-2", "vm-3")),
        Assign("tied", ("vm-1", "vm-0")),
    ]


def test_named_units_that_are_gone_are_not_replaced_by_others() -> None:
    """The ticket ties the lease to its units: it gets those that are there, or a refusal that names them."""
    site = Site(vm=names("vm", 3))
    some, none = demand("some", 2, wanted=("vm-1", "vm-7")), demand("none", 1, wanted=("vm-1", "vm-8"))
    assert FirstFit().assign(site.cycle(some, none)) == [
        Assign("some", ("vm-1",)),
        Refuse("none", "none of the units that the ticket names is free: vm-1, vm-8"),
    ]


def test_units_that_are_not_named_come_from_the_rest() -> None:
    """Where the ticket names fewer units than the lease has, the others are as they come."""
    site = Site(vm=names("vm", 4))
    assert FirstFit().assign(site.cycle(demand("a", 3, wanted=("vm-2",)))) == [Assign("a", ("vm-2", "vm-0", "vm-1"))]


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 14), max_size=3, unique=True)), max_size=8),
)
def test_no_unit_is_given_twice_and_none_is_held_back(count: int, shapes: list[tuple[int, list[int]]]) -> None:
    """Units given are on offer, each once, never more than wanted; a demand goes short only when nothing was left."""
    site = Site(vm=names("vm", count))
    demands = [
        demand(f"l{index}", units, wanted=tuple(f"vm-{number}" for number in wanted))
        for index, (units, wanted) in enumerate(shapes)
    ]
    decisions = FirstFit().assign(site.cycle(*demands))
    assert [decision.lease for decision in decisions] == [wish.lease for wish in demands]  # type: ignore[union-attr]
    given_ = [unit for decision in decisions if isinstance(decision, Assign) for unit in decision.units]
    assert len(given_) == len(set(given_))
    assert set(given_) <= set(site.units["vm"])
    named = {unit for wish in demands for unit in wish.wanted}
    spare = set(site.units["vm"]) - set(given_) - named
    for wish, decision in zip(demands, decisions, strict=True):
        got = decision.units if isinstance(decision, Assign) else ()
        assert len(got) <= wish.units
        if len(got) < wish.units and len(wish.wanted) < wish.units:
            others = wish.units - len(wish.wanted)
            assert len(set(got) - set(wish.wanted)) == others or not spare


class Racks(Site):
    """Units that differ: the even ones are in rack a, the odd ones in rack b; with 64 and more GB."""

    def unit(self, name: str) -> UnitView:
        number = int(name.partition("-")[2])
        properties = {"rack": "ab"[number % 2], "memory_gb": str(64 * (1 + number))}
        return super().unit(name)._replace(properties=properties)


def wants(lease: str, units: int, filter_: str, **changes: Any) -> Demand:
    return demand(lease, units, properties={"filter": filter_, "cap": "50"}, **changes)


def test_a_filter_chooses_among_units_that_differ() -> None:
    """Each demand gets units that it accepts, in the site's order; what one has taken, or left, is seen by the next."""
    site = Racks(vm=names("vm", 8))
    demands = [
        wants("b", 2, "rack == b"),
        demand("any", 2),
        wants("large", 1, "memory_gb >= 320 and rack == a"),
        wants("b2", 9, "rack == b"),
        wants("named", 1, "unit in {vm-4, vm-6}"),
        demand("rest", 9),
    ]
    assert FirstFit().assign(site.cycle(*demands)) == [
        Assign("b", ("vm-1", "vm-3")),
        Assign("any", ("vm-0", "vm-2")),
        Assign("large", ("vm-4",)),
        Assign("b2", ("vm-5", "vm-7")),
        Assign("named", ("vm-6",)),
        Refuse("rest", "no unit of type 'vm' is in service and free"),
    ]


def test_a_filter_that_no_unit_meets() -> None:
    """The refusal says what was wrong with some; one that can't be read is pointed at."""
    site = Racks(vm=names("vm", 4))
    demands = [
        wants("few", 1, "memory_gb > 512"),
        wants("unknown", 1, "gpu == a100"),
        wants("bad", 1, "rack == "),
        wants("none", 1, "rack == a", type="gpu"),
    ]
    few, unknown, bad, none = FirstFit().assign(site.cycle(*demands))
    assert isinstance(few, Refuse) and few.reason.startswith(
        "no free unit of type 'vm' satisfies the filter 'memory_gb > 512' (vm-0: memory_gb is 64, wanted > 512"
    )
    assert few.reason.endswith("...)")
    assert isinstance(unknown, Refuse) and "gpu" in unknown.reason and "vm-0" in unknown.reason
    assert isinstance(bad, Refuse) and bad.reason.startswith("configuration.filter: character 9: ")
    assert none == Refuse("none", "no unit of type 'gpu' is in service and free")


def test_what_the_ticket_names_is_not_filtered() -> None:
    """Named units go to their lease whatever the filter says; the others of it must satisfy that."""
    site = Racks(vm=names("vm", 6))
    decisions = FirstFit().assign(site.cycle(wants("named", 2, "rack == b", wanted=("vm-2",)), demand("any", 1)))
    assert decisions == [Assign("named", ("vm-2", "vm-1")), Assign("any", ("vm-0",))]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", "rack == a", "rack == b", "memory_gb > 200"]))),
    st.integers(0, 9),
)
def test_no_unit_is_given_twice_whatever_the_filters(wishes: list[tuple[int, str]], there: int) -> None:
    """Every unit goes to one demand at most, each suits it, and nobody is refused while one that suits is left."""
    site = Racks(vm=names("vm", there))
    demands = [wants(str(number), units, text) for number, (units, text) in enumerate(wishes)]
    given: list[str] = []
    for (units, text), decision in zip(wishes, FirstFit().assign(site.cycle(*demands)), strict=True):
        suits = [n for n in names("vm", there) if n not in given and suited(site.unit(n), text)]
        got = list(decision.units) if isinstance(decision, Assign) else []
        assert got == suits[:units]
        given += got


def suited(unit: UnitView, text: str) -> bool:
    rack, memory = unit.properties["rack"], int(unit.properties["memory_gb"])
    return {"": True, "rack == a": rack == "a", "rack == b": rack == "b", "memory_gb > 200": memory > 200}[text]
