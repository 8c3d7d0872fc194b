"""What a deploy file says, checked and resolved: plain values that both shells build actors from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from leasekit.actors.settings import ActorSettings
from leasekit.config.emulation import EmulationSpec, RunSpec
from leasekit.config.shell import ShellSettings
from leasekit.config.tables import DriverSpec, PeerSpec, Permission, Role
from leasekit.config.traces import SignalSpec
from leasekit.config.transport import TransportSettings


@attrs.frozen(kw_only=True)
class MapperSpec:
    """``target`` is a built-in name, an entry point, ``module:Class`` or ``/path/to/file.py:Class``; ``where`` is for
    errors.
    """

    target: str
    settings: Mapping[str, Any]
    signal: SignalSpec | None
    where: str


@attrs.frozen(kw_only=True)
class ActorSpec:
    """One actor. Paths are absolute; ``listen`` holds addresses (``unix:/PATH``, ``tcp://HOST:PORT``, with
    ``?tls=false`` where TLS is not spoken), the first for peers of this file. ``store`` is its SQLite file (None: its
    rows are in memory). ``passphrase_file`` is where the passphrase of its key is, if the file says, ``after`` where
    the keys are that it had before, the latest first.

    ``driver_of`` says which of ``drivers`` serves a resource type; ``other_types`` names the one for types not in it
    (a guest's only: it does not know all types beforehand), or is empty.
    """

    name: str
    role: Role
    key: Path
    listen: tuple[str, ...]
    control: Path
    store: Path | None
    log: Literal["human", "json"]
    log_level: Literal["debug", "info", "warning", "error"]
    settings: ActorSettings
    mapper: MapperSpec
    drivers: Mapping[str, DriverSpec]
    driver_of: Mapping[str, str]
    other_types: str
    shell: ShellSettings
    transport: TransportSettings = attrs.Factory(TransportSettings)
    permissions: Mapping[str, Permission] = attrs.Factory(dict)
    passphrase_file: Path | None = None
    after: tuple[Path, ...] = ()

    def driver_for(self, type_: str) -> str:
        """The driver that serves a resource type; empty if there is none."""
        return self.driver_of.get(type_, self.other_types)


@attrs.frozen(kw_only=True)
class Deployment:
    """One deploy file. ``document`` is the file as it was read, which :meth:`with_overrides` starts from."""

    file: Path
    name: str
    state: Path
    create_keys: bool
    signatures: bool
    actors: Mapping[str, ActorSpec]
    peers: Mapping[str, PeerSpec]
    emulation: EmulationSpec | None
    document: Mapping[str, Any] = attrs.field(repr=False)
    remake: Callable[[Mapping[str, Any]], Deployment] = attrs.field(repr=False, eq=False)

    def with_overrides(self, changes: Mapping[str, Any]) -> Deployment:
        """The same file with other values at dotted keys (``actor.web.mapper.term``; lists by index:
        ``actor.site.inventory.0.units``).

        Raises :class:`~.errors.ConfigErrors`.
        """
        return self.remake(changes) if changes else self

    def with_run(self, run: RunSpec) -> Deployment:
        """The deployment of one run of its emulation."""
        return self.with_overrides(run.changes)

    def of_role(self, role: Role) -> Sequence[ActorSpec]:
        """The file's actors of a role, in its order."""
        return [actor for actor in self.actors.values() if actor.role == role]
