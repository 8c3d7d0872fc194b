"""What all parts of a deploy file's resolution share: who there is in it, where it keeps things, and what is wrong
with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from hashlib import sha256
from pathlib import Path

import attrs

from leasekit.config import tables
from leasekit.config.emulation import EmulationSpec
from leasekit.config.errors import Faults, one_of


@attrs.define(slots=True, eq=False)
class Context:
    """One file. ``actors`` and ``peers`` hold the tables that could be read, ``unreadable`` the names of the others."""

    file: Path
    state: Path
    faults: Faults
    actors: Mapping[str, tables.ActorTable] = attrs.Factory(dict)
    peers: Mapping[str, tables.PeerSpec] = attrs.Factory(dict)
    unreadable: AbstractSet[str] = frozenset()
    emulation: EmulationSpec | None = None

    def names_of(self, role: str) -> list[str]:
        """The actors and peers of a role."""
        actors = [name for name, table in self.actors.items() if table.role == role]
        return actors + [name for name, table in self.peers.items() if table.role == role]

    def check_reference(self, where: str, name: str, role: str) -> None:
        """Note a fault if ``name`` is no actor or peer of ``role``."""
        known = self.names_of(role)
        if name not in known and name not in self.unreadable:
            self.faults.add(where, f"{name!r}, which is no {role} here", one_of(name, known))

    def seed_for(self, thing: str) -> int:
        """The seed of one thing that draws: another for each name, so that two of a kind do not behave the same."""
        seed = 0 if self.emulation is None else self.emulation.seed
        return int.from_bytes(sha256(f"{seed}/{thing}".encode()).digest()[:4], "big")
