"""Addresses of units from subnets of which each slice has blocks of its own, given and taken back.

A slice that has units has one block or more of the same number in each of the subnets, and its units number the
addresses in them; a slice whose last unit is gone has none. The book is a file that is whole or as it was, so that
what was given is not given again after a restart; taking twice for one unit gives the same addresses, and giving back
twice does nothing. Any number of drivers, in one process or in many, may have one book.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs

from leasekit.core.drivers import SiteFaultError
from leasekit.drivers.files import alone, damaged, read_table, write_whole
from leasekit.drivers.names import Network


@attrs.frozen
class _Place:
    """The block that an address is in, and its place there."""

    block: int
    offset: int


class DirectoryAddresses:
    """Addresses of ``networks``, each in blocks of ``size`` of which the slices have whole ones.

    The first ``first`` addresses of each network, the network's own among them, are given to nobody, nor is the last
    of an IPv4 network. Raises ``ValueError`` where not even one block fits.
    """

    def __init__(self, path: Path, networks: Sequence[Network], size: int, first: int = 1) -> None:
        self._path = path
        self._networks = tuple(networks)
        self._size = size
        self._first = first
        self.blocks = min(self._usable(network) // size for network in networks) if networks else 0
        if not self.blocks:
            told = ", ".join(map(str, networks)) or "no subnet"
            raise ValueError(f"a block of {size} addresses after the first {first} does not fit into {told}")

    def _usable(self, network: Network) -> int:
        return network.num_addresses - self._first - (1 if network.version == 4 else 0)

    def take(self, slice_: str, unit: str) -> tuple[str, ...]:
        """The unit's addresses with the length of their prefixes, one of each network; those that it has already,
        unless it has them for another slice. Raises ``DriverError`` when there is no room, or the book can't be
        written.
        """
        with self._alone():
            book = self._read()
            held = book.get(unit)
            if held is not None and held[0] == slice_:
                return self._addresses(held[1])
            book.pop(unit, None)
            place = self._free_place(slice_, book)
            book[unit] = (slice_, place)
            self._write(book)
            return self._addresses(place)

    def give_back(self, unit: str) -> None:
        """The unit has no address any more. Raises ``DriverError`` when the book can't be written."""
        with self._alone():
            book = self._read()
            if book.pop(unit, None) is not None:
                self._write(book)

    def units(self) -> Mapping[str, tuple[str, tuple[str, ...]]]:
        """Each unit that has addresses: its slice, and them. Raises ``DriverError``."""
        return {unit: (slice_, self._addresses(place)) for unit, (slice_, place) in self._read().items()}

    def _free_place(self, slice_: str, book: Mapping[str, tuple[str, _Place]]) -> _Place:
        """The first free one in the slice's blocks, else the first of a block that nobody has."""
        taken = {place for _, place in book.values()}
        owners = {place.block: owner for owner, place in book.values()}
        for block in sorted(block for block, owner in owners.items() if owner == slice_):
            for offset in range(self._size):
                if _Place(block, offset) not in taken:
                    return _Place(block, offset)
        for block in range(self.blocks):
            if block not in owners:
                return _Place(block, 0)
        told = ", ".join(map(str, self._networks))
        raise SiteFaultError(
            f"slice {slice_[:80]!a}: all {self.blocks} blocks of {self._size} addresses of {told} are given"
        )

    def _addresses(self, place: _Place) -> tuple[str, ...]:
        number = self._first + place.block * self._size + place.offset
        return tuple(f"{network.network_address + number}/{network.prefixlen}" for network in self._networks)

    def _read(self) -> dict[str, tuple[str, _Place]]:
        table = read_table(self._file) or {}
        try:
            return {unit: (str(slice_), self._place(block, offset)) for unit, (slice_, block, offset) in table.items()}
        except (TypeError, ValueError) as error:
            raise damaged(self._path, f"an entry that is none ({error})") from error

    def _place(self, block: Any, offset: Any) -> _Place:
        if type(block) is not int or type(offset) is not int or block < 0 or not 0 <= offset < self._size:
            raise ValueError(f"{block!r}, {offset!r}: blocks are of {self._size} addresses")
        return _Place(block, offset)

    def _write(self, book: Mapping[str, tuple[str, _Place]]) -> None:
        write_whole(self._file, {unit: (slice_, place.block, place.offset) for unit, (slice_, place) in book.items()})

    def _alone(self) -> AbstractContextManager[None]:
        """Nobody else changes the book, in this process or another, by whichever of its names. Blocks."""
        return alone(self._file.with_name(self._file.name + ".lock"))

    @property
    def _file(self) -> Path:
        """The book itself, where its name is a link to it."""
        return self._path.resolve()
