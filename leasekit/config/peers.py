"""Peers in a file of their own, as an actor prints those that were made known to it by command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leasekit.config import tables
from leasekit.config.errors import Faults
from leasekit.config.keys import load_public
from leasekit.config.load import read_document
from leasekit.config.sockets import resolve_address


def read_peers(file: Path, actor: str) -> list[dict[str, Any]]:
    """The peers of a file, and what it lets them do at ``actor`` (or at the only actor that it has), as arguments of
    ``peer.add``. Paths are relative to the file. Raises :class:`~.errors.ConfigErrors` with all that is wrong.
    """
    document, faults = read_document(file), Faults(str(file))
    actors = _table(document, "actor", "", faults)
    own = actor if actor in actors or len(actors) != 1 else next(iter(actors))
    permissions = _table(_table(actors, own, "actor", faults), "permissions", f"actor.{own}", faults)
    made = []
    for name, table in _table(document, "peer", "", faults).items():
        where = f"peer.{name}"
        spec = faults.structured(tables.PeerSpec, table, where)
        may = faults.structured(tables.Permission, permissions.get(name, {}), f"actor.{own}.permissions.{name}")
        if spec is not None and may is not None:
            made.append({"name": name, **_arguments(spec, may, where, file.absolute().parent, faults)})
    faults.finish()
    return made


def _arguments(
    spec: tables.PeerSpec, permission: tables.Permission, where: str, base: Path, faults: Faults
) -> dict[str, Any]:
    key = address = ""
    with faults.noting(f"{where}.key"):
        key = load_public(spec.key, base).hex()
    try:
        address = resolve_address(spec.address, base, spec.tls) if spec.address else ""
    except ValueError as error:
        faults.add(f"{where}.address", repr(spec.address), str(error))
    may = None if permission.may is None else sorted(permission.may)
    more = {"may": may, "open_requests": permission.open_requests, "priority_max": permission.priority_max}
    return {"role": spec.role, "key": key, "address": address, **more}


def _table(table: Mapping[str, Any], key: str, where: str, faults: Faults) -> Mapping[str, Any]:
    found = table.get(key, {})
    if isinstance(found, Mapping):
        return found
    faults.add(f"{where}.{key}".lstrip("."), f"{found!r:.40}", "a table")
    return {}
