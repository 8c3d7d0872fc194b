"""Reading deploy files, and resolving their tables: what is checked here concerns more than one key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import attrs

from leasekit.actors.settings import AuthoritySettings, BrokerSettings, GuestSettings
from leasekit.config import tables
from leasekit.config.belonging import say_where
from leasekit.config.deployment import ActorSpec, Deployment, MapperSpec, for_daemons, out_of_reach
from leasekit.config.emulation import EmulationSpec, apply_changes, resolve_emulation
from leasekit.config.errors import ConfigError, ConfigErrors, Faults, one_of
from leasekit.config.gateway import GATEWAY, GatewaySpec, GatewayTable, resolve_listen
from leasekit.config.identities import keys_of_nobody, no_state_folder, start_faults
from leasekit.config.jobs import JobsSpec
from leasekit.config.keys import KeyFileMissing, check_key, load_public, looks_like_key
from leasekit.config.resources import Context, check_switched, check_units, resolve_drivers, resolve_given, resolve_site
from leasekit.config.sense import odd, senseless
from leasekit.config.sockets import (
    ALLOWED,
    FILE_MAX,
    can_be_dialled,
    control_socket,
    place,
    resolve_address,
    socket_path,
    state_folder,
)
from leasekit.config.tables import TransportSettings
from leasekit.config.traces import SignalSpec
from leasekit.core.settings import SettingsError
from leasekit.core.signals import Signal, SignalSoFar
from leasekit.core.time import format_duration
from leasekit.policies.registry import make_mapper, switched_types

_TABLES: Final = ("deployment", "actor", "peer", "emulation")


def is_gateway(table: Any) -> bool:
    """Whether a table of ``[actor.NAME]`` is that of a gateway."""
    return isinstance(table, Mapping) and table.get("role") == GATEWAY


def _known_part(table: Any) -> tuple[type[Any], Any]:
    """The class of a table of ``[actor.NAME]``, and what of the table can be read: without a role nobody can say which
    of the other keys are right.
    """
    if is_gateway(table):
        return GatewayTable, table
    role = table.get("role") if isinstance(table, Mapping) else None
    cls = tables.ACTORS.get(role) if isinstance(role, str) else None
    if cls is None:
        return tables.ActorTable, ({} if role is None else {"role": role}) if isinstance(table, Mapping) else table
    return cls, table


class Resolver:
    """Resolves one document; what is wrong with it goes to ``faults``."""

    def __init__(self, file: Path, state: Path | None, document: Mapping[str, Any], faults: Faults) -> None:
        self.file = file.absolute()
        self.document = document
        self.faults = faults
        head = faults.structured(tables.DeploymentTable, document.get("deployment", {}), "deployment")
        self.head = head or tables.DeploymentTable()
        self.state = state_folder(file, state, self.head.name, self.head.state)
        self.context = Context(self.file, self.state, faults)
        self._used: dict[str, str] = {}

    def resolve(self, remake: Callable[[Mapping[str, Any]], Deployment]) -> Deployment:
        """The deployment; only to be used if there were no faults."""
        for key in self.document:
            if key not in _TABLES:
                self.faults.add(key, "an unknown key", one_of(key, _TABLES))
        context = self.context
        actors, peers = self._named("actor"), self._named("peer")
        if self.document.get("actor", {}) == {}:
            self.faults.add("actor", "nothing", "at least one actor: [actor.NAME]")
        read = {name: self.faults.structured(*_known_part(table), f"actor.{name}") for name, table in actors.items()}
        gateways = {name: read.pop(name) for name, table in actors.items() if is_gateway(table)}
        context.actors = {name: table for name, table in read.items() if table is not None}
        known = {name: self.faults.structured(tables.PeerSpec, table, f"peer.{name}") for name, table in peers.items()}
        context.peers = {name: table for name, table in known.items() if table is not None}
        named = {*actors, *peers}
        context.unreadable = named - set(context.actors) - set(context.peers) - set(gateways)
        if gateways and not named - set(gateways):
            for name in gateways:
                self.faults.add(
                    f"actor.{name}", "no actor beside it", "the actors that it is the door of in the same file"
                )
        context.emulation = self._emulation()
        self._check_names(actors, peers)
        return Deployment(
            file=self.file,
            name=self.head.name or self.file.stem,
            state=self.state,
            create_keys=self.head.create_keys,
            signatures=self.head.signatures,
            actors={name: self._actor(name, table) for name, table in self.context.actors.items()},
            gateways={name: self._gateway(name, table) for name, table in gateways.items() if table is not None},
            peers={name: self._peer(name, table) for name, table in self.context.peers.items()},
            emulation=context.emulation,
            document=self.document,
            remake=remake,
        )

    # -- tables ------------------------------------------------------------------------------------------------

    def _named(self, key: str) -> Mapping[str, Any]:
        found = self.document.get(key, {})
        if isinstance(found, Mapping):
            return found
        self.faults.add(key, "a value", f"tables, one for each {key}: [{key}.NAME]")
        return {}

    def _emulation(self) -> EmulationSpec | None:
        if "emulation" not in self.document:
            if not self.head.signatures:
                self.faults.add("deployment.signatures", "false", "true: only an emulation may do without signatures")
            return None
        if self.context.peers:
            names = ", ".join(self.context.peers)
            self.faults.add("peer", f"actors of other files ({names})", "all actors of an emulation in its own file")
        spec = self.faults.structured(EmulationSpec, self.document["emulation"], "emulation")
        if spec is None:
            return None
        roles = {name: actor.role for name, actor in self.context.actors.items()}
        return resolve_emulation(spec, self.document, roles, self.faults)

    # -- who knows whom ----------------------------------------------------------------------------------------

    def _check_names(self, actors: Iterable[str], peers: Iterable[str]) -> None:
        for kind, name in (*(("actor", name) for name in actors), *(("peer", name) for name in peers)):
            if not tables.NAME.fullmatch(name):
                self.faults.add(f"{kind}.{name}", f"the name {name!r}", tables.NAME_ALLOWED)
        for name in self.context.peers:
            if name in self.context.actors:
                self.faults.add(f"peer.{name}", "the name of an actor of this file", "another name, or no [peer] table")
        for name, actor in self.context.actors.items():
            # Sites may become known later, by a broker's endorsement; a broker must be known to be asked.
            if actor.role == "guest" and not self.context.names_of("broker") and not self.context.unreadable:
                self.faults.add(f"actor.{name}", "no broker for it", "an [actor] or [peer] table of one")

    def _use(self, where: str, what: str) -> None:
        """Note a fault if two actors want the same file or address."""
        if what in self._used:
            self.faults.add(where, f"{what}, which {self._used[what]} has", "one of its own")
        else:
            self._used[what] = where

    # -- one actor ---------------------------------------------------------------------------------------------

    def _actor(self, name: str, table: tables.ActorTable) -> ActorSpec:
        where = f"actor.{name}"
        self._check_permissions(where, name, table)
        self._check_transport(where, table.transport)
        self._metrics(where, table)
        drivers, driver_of, other_types = resolve_drivers(self.context, name, table)
        key = table.key if isinstance(table.key, tables.KeyTable) else tables.KeyTable(file=table.key)
        settings = self._settings(where, name, table)
        if isinstance(settings, AuthoritySettings):
            serves = check_units(self.context, settings.inventory, drivers, driver_of)
            settings = attrs.evolve(settings, serves=serves)
        return ActorSpec(
            name=name,
            role=cast(tables.Role, table.role),
            key=self._key(f"{where}.key", key.file or f"keys/{name}.key"),
            listen=self._listen(where, table),
            control=self._control(where, name, table),
            store=self._store(f"{where}.store", table.store or f"sqlite:{name}.db"),
            table=table,
            settings=settings,
            mapper=self._mapper(name, table),
            drivers=drivers,
            driver_of=driver_of,
            other_types=other_types,
            passphrase_file=self.state / key.passphrase_file if key.passphrase_file else None,
            after=tuple(self.state / path for path in key.after),
        )

    def _settings(self, where: str, name: str, table: tables.ActorTable) -> Any:
        filled = self.faults.structured(tables.SETTINGS[table.role], table.settings, f"{where}.settings")
        values = {} if filled is None else attrs.asdict(filled, recurse=False)
        if isinstance(table, tables.AuthorityTable):
            inventory, delegations = resolve_site(self.context, name, table)
            return AuthoritySettings(**values, inventory=inventory, delegations=delegations)
        if isinstance(table, tables.BrokerTable):
            for guest in table.priorities:
                self.context.check_reference(f"{where}.priorities.{guest}", guest, "guest")
            for planner in values.get("planners", ()):
                self.context.check_reference(f"{where}.settings.planners", planner, "broker")
            given = resolve_given(self.context, name, table.delegation)
            return BrokerSettings(**values, priorities=dict(table.priorities), delegations=given)
        if values.get("default_broker"):
            self.context.check_reference(f"{where}.settings.default_broker", values["default_broker"], "broker")
        return GuestSettings(**values)

    def _key(self, where: str, text: str) -> Path:
        if looks_like_key(text):
            self.faults.add(where, "what looks like a key itself", "the path of a key file")
            return self.state
        path = self.state / text
        self._use(where, str(path))
        with self.faults.noting(where), suppress(KeyFileMissing):  # for who starts the actor: an emulation needs none
            check_key(path)
        return path

    def _listen(self, where: str, table: tables.ActorTable) -> tuple[str, ...]:
        made = []
        for index, entry in enumerate(table.listen):
            key = f"{where}.listen[{index}]"
            listen = entry if isinstance(entry, tables.ListenTable) else tables.ListenTable(address=entry)
            try:
                address = resolve_address(listen.address, self.state, listen.tls)
            except ValueError as error:
                self.faults.add(key, repr(listen.address), str(error))
                continue
            self._check_tls(f"{key}.tls", address, listen.tls)
            if can_be_dialled(address):
                self._use(key, place(address))
            made.append(address)
        return tuple(made)

    def _metrics(self, where: str, table: tables.ActorTable) -> None:
        """Actors may share an address of metrics, with each other alone."""
        what = f"tcp://{table.metrics}"
        if table.metrics and not self._used.get(what, "").endswith(".metrics"):
            self._use(f"{where}.metrics", what)

    def _check_tls(self, where: str, address: str, tls: bool | None) -> None:
        if tls and socket_path(address) is not None:
            self.faults.add(where, "true", "no tls for a Unix socket, which does not leave the machine")

    def _check_transport(self, where: str, transport: TransportSettings) -> None:
        if transport.heartbeat * 2 > transport.silence:
            allowed = f"at most half of silence ({format_duration(transport.silence)})"
            self.faults.add(f"{where}.transport.heartbeat", repr(format_duration(transport.heartbeat)), allowed)
        if transport.backoff_min > transport.backoff_max:
            allowed = f"at most backoff_max ({format_duration(transport.backoff_max)})"
            self.faults.add(f"{where}.transport.backoff_min", repr(format_duration(transport.backoff_min)), allowed)

    def _check_permissions(self, where: str, name: str, table: tables.ActorTable) -> None:
        others = [other for other in (*self.context.actors, *self.context.peers) if other != name]
        for peer in table.permissions:
            if peer not in others and peer not in self.context.unreadable:
                found = f"{peer!r}, which is no actor here"
                self.faults.add(f"{where}.permissions.{peer}", found, one_of(peer, others))

    def _gateway(self, name: str, table: GatewayTable) -> GatewaySpec:
        where = f"actor.{name}"
        sites = [other for other, actor in self.context.actors.items() if actor.role == "authority"]
        if table.blazar is not None and table.blazar.site not in sites:
            found = f"{table.blazar.site!r}, which is no site of this file"
            self.faults.add(f"{where}.blazar.site", found, one_of(table.blazar.site, sites))
        if table.mail and table.mail.password_file:
            mail = attrs.evolve(table.mail, password_file=str(self.state / table.mail.password_file))
            table = attrs.evolve(table, mail=mail)
        for index, address in enumerate(table.listen):
            path = socket_path(address)
            if can_be_dialled(address):
                what = address.replace("http://", "tcp://") if path is None else f"unix:{self.state / path}"
                self._use(f"{where}.listen[{index}]", what)
        return GatewaySpec(
            name=name,
            listen=resolve_listen(where, table, self.state, self.faults),
            control=self._control(where, name, table),
            store=self._store(f"{where}.store", table.store or f"sqlite:{name}.db"),
            runs=self.file.parent / table.runs if table.runs else None,
            table=table,
        )

    def _control(self, where: str, name: str, table: tables.ActorTable | GatewayTable) -> Path:
        try:
            path = control_socket(name, table.control, self.state)
        except ValueError:
            self.faults.add(f"{where}.control", repr(table.control), "a path")
            return self.state
        self._use(f"{where}.control", f"unix:{path}")
        return path

    def _store(self, where: str, text: str) -> Path | None:
        kind, _, path = text.partition(":")
        if text == "memory":
            return None
        if kind != "sqlite" or not path or "\0" in path:
            self.faults.add(where, repr(text), "memory or sqlite:PATH")
            return None
        self._use(where, str(self.state / path))
        return self.state / path

    # -- mappers and their signals -----------------------------------------------------------------------------

    def _mapper(self, name: str, table: tables.ActorTable) -> MapperSpec:
        where = f"actor.{name}.mapper"
        settings = {key: value for key, value in table.mapper.items() if key not in ("name", "signal", "jobs")}
        target = table.mapper.get("name", tables.MAPPERS[table.role])
        loads: Mapping[str, Any] = {
            key: self._load(kind, key, name, table.mapper[key], made)
            for key, kind, made in (("signal", SignalSpec, "synthetic"), ("jobs", JobsSpec, "made"))
            if key in table.mapper
        }
        if not isinstance(target, str) or not target:
            self.faults.add(f"{where}.name", repr(target), "the name of a mapper in quotes")
            target = tables.MAPPERS[table.role]
        else:
            target = self._mapper_path(target)
            # A mapper is a plain object: making one costs nothing, and finds all that is wrong with its settings.
            stand_ins: Mapping[str, Any] = {"signal": SignalSoFar(Signal([(0, 0.0)])), "jobs": ()}
            extras = {key: stand_in for key, stand_in in stand_ins.items() if key in table.mapper}
            mapper = self.faults.attempt(where, make_mapper, target, table.role, settings, where, extras)
            if isinstance(table, tables.AuthorityTable):
                switched = self.faults.attempt(where, switched_types, mapper, where)
                check_switched(self.context, name, table, switched or ())
        return MapperSpec(target=target, settings=settings, where=where, **loads)

    def _mapper_path(self, target: str) -> str:
        """A mapper in a file is looked for from the folder of the deploy file."""
        path, colon, name = target.rpartition(":")
        if not colon:
            return str(self.file.parent / target) if target.endswith(".py") else target
        return f"{self.file.parent / path}:{name}" if path.endswith(".py") else target

    def _load(self, kind: type[Any], key: str, name: str, table: Any, made: str) -> Any:
        """The ``key`` of a mapper that says what load its actor has: a file, or one that is ``made``. The seed and the
        horizon are the emulation's, unless it says them.
        """
        where, usual = f"actor.{name}.mapper.{key}", {"seed": self.context.seed_for(f"{key}/{name}")}
        if self.context.emulation is not None:
            usual["horizon"] = self.context.emulation.horizon
        spec = self.faults.structured(kind, {**usual, **table} if isinstance(table, Mapping) else table, where)
        if spec is not None and bool(spec.file) == (getattr(spec, made) is not None):
            self.faults.add(where, f"{'both' if spec.file else 'neither'} of file and {made}", "one of them")
        return spec

    # -- peers -------------------------------------------------------------------------------------------------

    def _peer(self, name: str, table: tables.PeerSpec) -> tables.PeerSpec:
        where, key, address = f"peer.{name}", table.key, table.address
        if not looks_like_key(key):
            key = str(self.state / key)
        with self.faults.noting(f"{where}.key"), suppress(KeyFileMissing):  # for whoever starts an actor
            load_public(key)
        if address:
            try:
                address = resolve_address(address, self.state, table.tls)
            except ValueError:
                address = ""
            self._check_tls(f"{where}.tls", address, table.tls)
            if not address or not can_be_dialled(address):
                self.faults.add(f"{where}.address", repr(table.address), f"{ALLOWED}, with a port to dial")
        return attrs.evolve(table, name=name, key=key, address=address)


_PLACE: Final = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def load(path: Path, state: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Deployment:
    """The deployment that the file at ``path`` describes, with all its runs checked.

    ``state`` (else the environment's ``LEASEKIT_STATE``, else the file) says where keys, stores, sockets and logs
    are;
    nothing is made or opened there but existing key files. ``overrides`` replaces values at dotted keys, as a run's
    ``set`` does. Raises :class:`~.errors.ConfigErrors` with every fault that can be found.
    """
    document = read_document(path)
    deployment = resolve_document(path, state, document, overrides or {})
    if deployment.emulation is not None:
        errors = []
        for run in deployment.emulation.runs:
            try:
                deployment.with_run(run)
            except ConfigErrors as error:
                errors += [ConfigError(e.file, f"run {run.name!r}: {e.key}", e.found, e.allowed) for e in error.errors]
        if errors:
            raise ConfigErrors(errors)
    return deployment


def check(path: Path, state: Path | None = None) -> tuple[list[ConfigError], list[str]]:
    """All that is wrong with the file at ``path``, with keys that are missing and paths that can't be, and in an
    emulation types that nobody offers; and what is not wrong but odd, a line each: such types elsewhere, names of
    nobody, scripts that are not here, actors that must talk and can't. Both are empty if all is well.
    """
    try:
        deployment = load(path, state)
    except ConfigErrors as error:
        return error.errors, []
    asked_in_vain, odd_ones = senseless(deployment), odd(deployment)
    if deployment.emulation is None:
        asked_in_vain, odd_ones = [], [*asked_in_vain, *odd_ones]
    lines = [str(one).removeprefix(f"{deployment.file}: ") for one in odd_ones]
    if not for_daemons(deployment):
        return asked_in_vain, lines
    lines += [*no_state_folder(deployment), *keys_of_nobody(deployment), *out_of_reach(deployment)]
    return [*asked_in_vain, *start_faults(deployment)], lines


def read_document(path: Path) -> dict[str, Any]:
    """The file's tables as they are. Raises :class:`~.errors.ConfigErrors` if it can't be read or is not TOML."""
    faults = Faults(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX + 1)
    except FileNotFoundError:
        faults.add("", "no such file", "a deploy file in TOML")
    except OSError as error:
        faults.add("", f"a file that can't be read ({error.strerror})", "a deploy file in TOML")
    faults.finish()
    if len(data) > FILE_MAX:
        faults.add("", f"more than {FILE_MAX} bytes", "a deploy file of at most that many")
        faults.finish()
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        faults.add(f"line {line}, column {column}", f"the byte 0x{data[error.start]:02x}", "TOML, which is UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        faults.add(*_syntax(str(error), data))
    except RecursionError:
        faults.add("", "tables or lists nested too deep", "a deploy file in TOML")
    raise ConfigErrors(faults.errors)


def _syntax(text: str, data: bytes) -> tuple[str, str, str]:
    """Key, found and allowed of a syntax error: the place is what tomllib says in its text, the end where it names
    none.
    """
    match = _PLACE.fullmatch(text)
    line, column = (match[2], match[3]) if match else (None, None)
    if line is None:
        lines = data.split(b"\n")
        line, column = str(len(lines)), str(len(lines[-1]) + 1)
    return f"line {line}, column {column}", f"a syntax error ({match[1] if match else text})", "TOML"


def resolve_document(
    path: Path, state: Path | None, document: Mapping[str, Any], changes: Mapping[str, Any]
) -> Deployment:
    """The deployment that a ``document`` describes, with ``changes`` at dotted keys; errors call its file ``path``.

    Raises :class:`~.errors.ConfigErrors`.
    """
    faults = Faults(str(path))
    try:
        changed = apply_changes(document, changes)
        deployment = Resolver(path, state, changed, faults).resolve(partial(resolve_document, path, state, changed))
    except SettingsError as error:
        faults.add_settings("", error)
        raise ConfigErrors(faults.errors) from None
    faults.errors = [say_where(error, changed) for error in faults.errors]
    faults.finish()
    return deployment
