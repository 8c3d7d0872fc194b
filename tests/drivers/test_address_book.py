"""Addresses of slices' blocks: whatever is taken and given back, in whatever order, nobody has what another has."""

from __future__ import annotations

import ipaddress
import json
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.drivers import DriverError
from leasekit.drivers.directory.addresses import DirectoryAddresses

NETWORKS = [ipaddress.ip_network("10.9.0.0/27"), ipaddress.ip_network("fd00:9::/64")]
SLICES = st.sampled_from(["web", "db", '["a", "b\\n"]', "../x", "ü$(id)"])
UNITS = st.sampled_from([f"vm-{number}" for number in range(12)])
STEPS = st.lists(st.one_of(st.tuples(SLICES, UNITS), UNITS, st.none()), max_size=60)


def book(folder: Path, size: int = 4, first: int = 3) -> DirectoryAddresses:
    return DirectoryAddresses(folder / "book.json", NETWORKS, size, first)


def check(made: DirectoryAddresses, held: dict[str, tuple[str, tuple[str, ...]]], size: int, first: int) -> None:
    """The book has what was given, and blocks are of one slice each."""
    assert made.units() == held
    every = [address for _, addresses in held.values() for address in addresses]
    assert len(every) == len(set(every)) == 2 * len(held)
    owners: dict[int, str] = {}
    for slice_, addresses in held.values():
        numbers = {
            int(ipaddress.ip_interface(text).ip) - int(network.network_address)
            for text, network in zip(addresses, NETWORKS, strict=True)
        }
        assert len(numbers) == 1
        (number,) = numbers
        assert first <= number < NETWORKS[0].num_addresses - 1
        assert owners.setdefault((number - first) // size, slice_) == slice_


@given(STEPS, st.integers(1, 6), st.integers(1, 5))
def test_whatever_happens(steps, size, first):
    """Units have addresses of their own in blocks of their slice, the same when they ask again, after restarts (None)
    too; a block is refused only when all are given; when all is given back all is free.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, held = Path(name), {}
        made = book(folder, size, first)
        for step in steps:
            if step is None:
                made = book(folder, size, first)
            elif isinstance(step, str):
                made.give_back(step)
                held.pop(step, None)
            else:
                slice_, unit = step
                before = held.get(unit)
                if before is not None and before[0] != slice_:
                    del held[unit]
                try:
                    given_ = made.take(slice_, unit)
                except DriverError:
                    owners = {owner for owner, _ in held.values()}
                    mine = sum(owner == slice_ for owner, _ in held.values())
                    assert mine % size == 0 or slice_ not in owners or len(held) >= made.blocks
                    # What could not be taken anew is as it was.
                    if before is not None:
                        held[unit] = before
                else:
                    assert before is None or before[0] != slice_ or before[1] == given_
                    held[unit] = (slice_, given_)
            check(made, held, size, first)
        for unit in list(held):
            made.give_back(unit)
        assert made.units() == {}
        assert json.loads((folder / "book.json").read_text()) == {} if held else True


def test_all_of_a_block_is_used_before_another(tmp_path):
    """A slice fills its block, then gets another; what is free in it goes to the slice's next unit, not to others."""
    made = book(tmp_path)
    first = [made.take("web", f"vm-{number}") for number in range(4)]
    assert [addresses[0] for addresses in first] == [f"10.9.0.{number}/27" for number in (3, 4, 5, 6)]
    assert first[0][1] == "fd00:9::3/64"
    assert made.take("db", "vm-9")[0] == "10.9.0.7/27"
    assert made.take("web", "vm-4")[0] == "10.9.0.11/27"
    made.give_back("vm-1")
    assert made.take("db", "vm-8")[0] == "10.9.0.8/27"
    assert made.take("web", "vm-7")[0] == "10.9.0.4/27"


def test_no_room(tmp_path):
    """When every block is some slice's, another slice gets none, with a reason that a later try may be rid of."""
    made = book(tmp_path, size=10)
    for number in range(made.blocks):
        made.take(f"slice-{number}", f"vm-{number}")
    with pytest.raises(DriverError, match=r"slice 'more': all 2 blocks of 10 addresses of 10.9.0.0/27") as caught:
        made.take("more", "vm-9")
    assert caught.value.retry
    with pytest.raises(ValueError, match=r"a block of 40 addresses after the first 1 does not fit into 10.9.0.0/27"):
        book(tmp_path, size=40, first=1)


@pytest.mark.parametrize("text", ['{"vm-1": ["web", 0]}', '{"vm-1": ["web", -1, 0]}', '{"vm-1": 7}', "[]", "{"])
def test_a_book_that_was_changed_by_hand(tmp_path, text):
    """A book that is none is refused with its name and what was found; nothing is given from it."""
    (tmp_path / "book.json").write_text(text)
    with pytest.raises(DriverError, match=r"book.json: found ") as caught:
        book(tmp_path).take("web", "vm-2")
    assert not caught.value.retry


def test_many_drivers_have_one_book(tmp_path):
    """Drivers that take addresses from one book at the same time, by whatever name of it, all get their own."""
    networks = [ipaddress.ip_network("10.8.0.0/16")]
    (tmp_path / "real").mkdir()
    (tmp_path / "real/book.json").write_text("{}")
    (tmp_path / "book.json").symlink_to("real/book.json")
    names = [tmp_path / "book.json", tmp_path / "real/book.json"]
    found: dict[str, tuple[str, ...]] = {}

    def take(number: int) -> None:
        made = DirectoryAddresses(names[number % 2], networks, 4, 1)
        for each in range(5):
            unit = f"vm-{number}-{each}"
            found[unit] = made.take(f"slice-{number}", unit)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60 == len(set(found.values()))
    assert {
        unit: addresses for unit, (_, addresses) in DirectoryAddresses(names[0], networks, 4, 1).units().items()
    } == found
