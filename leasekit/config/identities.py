"""Who signs as which actor: key files for daemons, keys made from a seed or none at all for emulations."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EEXIST, ENOTDIR
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import attrs

from leasekit.config.deployment import ActorSpec, Deployment
from leasekit.config.errors import ConfigError, Faults
from leasekit.config.keys import (
    Ask,
    KeyFileError,
    KeyFileMissing,
    check_key,
    folder_trouble,
    load_key,
    load_public,
    load_succession,
    new_key,
    passphrase_of,
    public_path,
    read_passphrase,
    statement_path,
    write_public,
)
from leasekit.config.sockets import UNIX_PATH_MAX, socket_path, too_long
from leasekit.core.claims.signed import (
    ED25519,
    UNSIGNED,
    Keypair,
    Scheme,
    Signer,
    UnsignedIdentity,
    can_verify,
    check_succession,
    fingerprint,
)
from leasekit.core.errors import TicketError
from leasekit.core.time import Instant

LOG: Final = logging.getLogger("leasekit.keys")
_RELATIVE: Final = "paths are relative to the state folder"


class Former(NamedTuple):
    """A key that an actor had before; it is honoured ``until`` then (milliseconds)."""

    signer: Signer
    until: Instant


@attrs.frozen(eq=False)
class KeySource:
    """Where :func:`~.build.build` gets keys from, by the names of actors: what signs as one, the public key of an
    actor or peer (both raise ``KeyError``), and the keys that an actor had before.
    """

    scheme: Scheme
    signer: Callable[[str], Signer]
    public: Callable[[str], bytes]
    _former: Mapping[str, Sequence[Former]] = attrs.Factory(dict)

    def former(self, name: str) -> Sequence[Former]:
        """The keys that an actor of this source had before; nobody changes a key in an emulation."""
        return self._former.get(name, ())


def emulation_keys(deployment: Deployment) -> KeySource:
    """The keys of a deployment in virtual time: real ones, made from a seed, or names in the place of keys where its
    signatures are off. There are no files, and no secrets.
    """
    if not deployment.signatures:
        return KeySource(UNSIGNED, UnsignedIdentity, lambda name: UnsignedIdentity(name).public)
    return _derived(0 if deployment.emulation is None else deployment.emulation.seed)


@lru_cache(maxsize=4)
def _derived(seed: int) -> KeySource:
    @cache
    def pair(name: str) -> Keypair:
        return Keypair(sha256(f"leasekit emulated key {seed}/{name}".encode()).digest())

    return KeySource(ED25519, pair, lambda name: pair(name).public)


def prepare(deployment: Deployment, names: Iterable[str] | None = None, ask: Ask | None = None) -> KeySource:
    """Make the folders of the actors ``names`` (default: all of the file) and read their keys, making those that may
    be made. The passphrase of a key that is under one comes from the file that the deploy file or the environment
    names, else from ``ask``.

    What is made is for its owner only; a folder of keys into which others can look is reported. Raises
    :class:`~.errors.ConfigErrors` with all that keeps the actors from being started: names that are not in the file,
    keys that are missing or locked, paths that are too long for a socket, signatures off.
    """
    faults = Faults(str(deployment.file))
    wanted = list(deployment.actors) if names is None else list(names)
    for name in wanted:
        if name not in deployment.actors:
            faults.add("actor", f"no actor {name!r}", f"one of: {', '.join(deployment.actors)}")
    faults.finish()
    if not deployment.signatures:
        faults.add("deployment.signatures", "false", "true: daemons always sign")
    _make_folders(deployment, wanted, faults)
    faults.finish()
    keys = _file_keys(deployment, wanted, faults, ask)
    faults.finish()
    return keys


def _make_folders(deployment: Deployment, names: Sequence[str], faults: Faults) -> None:
    for folder, key in _folders(deployment, names, faults).items():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            _not_made(folder, key, error, faults)


def _not_made(folder: Path, key: str, error: OSError, faults: Faults) -> None:
    faults.add(key, f"{folder}, which can't be made ({error.strerror})", "a folder that is there or can be made")


def _folders(deployment: Deployment, names: Sequence[str], faults: Faults) -> Mapping[Path, str]:
    """The folders that a start needs, and by which key; sockets whose paths are too long go to ``faults``."""
    folders = {deployment.state: "deployment.state"}
    for name in names:
        spec, where = deployment.actors[name], f"actor.{name}"
        sockets = {f"{where}.control": spec.control}
        for index, address in enumerate(spec.listen):
            path = socket_path(address)
            if path is not None:
                sockets[f"{where}.listen[{index}]"] = path
        for key, path in sockets.items():
            folders.setdefault(path.parent, key)
            if too_long(path):
                faults.add(
                    key, str(path), f"a path of at most {UNIX_PATH_MAX} bytes: give a shorter folder with --state"
                )
        if spec.store is not None:
            folders.setdefault(spec.store.parent, f"{where}.store")
    return folders


def _file_keys(deployment: Deployment, names: Sequence[str], faults: Faults, ask: Ask | None) -> KeySource:
    signers: dict[str, Keypair] = {}
    publics: dict[str, bytes] = {}
    former: dict[str, Sequence[Former]] = {}
    for name, spec in deployment.actors.items():
        with faults.noting(f"actor.{name}.key"):
            if name in names or (deployment.create_keys and not public_path(spec.key).exists()):
                pair = _own(spec, deployment.create_keys, ask)
                signers[name], publics[name] = pair, pair.public
                former[name] = _former(spec, pair, ask) if name in names else ()
            else:
                publics[name] = load_public(str(public_path(spec.key)))
    for name, peer in deployment.peers.items():
        with faults.noting(f"peer.{name}.key"):
            publics[name] = load_public(peer.key)
    _check_distinct(deployment, publics, faults)
    for trouble in sorted({folder_trouble(deployment.actors[name].key) for name in names} - {""}):
        LOG.warning("%s: %s", deployment.file, trouble)
    own = {name: signers[name] for name in names if name in signers}
    return KeySource(ED25519, own.__getitem__, publics.__getitem__, former)


def _check_distinct(deployment: Deployment, publics: Mapping[str, bytes], faults: Faults) -> None:
    by_key: dict[bytes, str] = {}
    for name, public in publics.items():
        if public in by_key:
            kind = "actor" if name in deployment.actors else "peer"
            faults.add(f"{kind}.{name}.key", f"the key of {by_key[public]}", "a key of its own")
        by_key.setdefault(public, name)


def _former(spec: ActorSpec, now: Keypair, ask: Ask | None) -> list[Former]:
    """The keys that an actor had before, each followed by the next one as its succession says. Raises
    ``KeyFileError``.
    """
    found: list[Former] = []
    following = now.public
    for path in spec.after:
        with _had_before():
            pair = load_key(path, passphrase_of(path, spec.passphrase_file, ask))
        statement = statement_path(path)
        said = load_succession(statement)
        try:
            check_succession(ED25519, said.encode(), name=spec.name, old=pair.public)
        except TicketError as error:
            raise KeyFileError(f"{statement}, which is not believed: {error}", f"the succession of {path}") from None
        if said.new != following:
            raise KeyFileError(
                f"{statement}, which names {fingerprint(said.new)}",
                f"the succession of {path} by {fingerprint(following)}",
            )
        found.append(Former(pair, said.until))
        following = pair.public
    return found


@contextmanager
def _had_before() -> Iterator[None]:
    """Says of a key that is missing in it that the actor had it before."""
    try:
        yield
    except KeyFileMissing as error:
        raise KeyFileMissing(error.found, f"a key that the actor had before; {_RELATIVE}") from None


def _following(spec: ActorSpec, error: KeyFileMissing) -> KeyFileMissing:
    """Why the missing key of an actor that had others before is not made: it would be nobody's successor."""
    how = f"the key that follows {spec.after[0]}, as `leasekit keys rotate` made it; {_RELATIVE}"
    return KeyFileMissing(error.found, how)


def no_state_folder(deployment: Deployment) -> list[str]:
    """That there is no state folder, and none that a start would fill with keys: a line, for who is about to start."""
    if deployment.state.is_dir() or deployment.create_keys:
        return []
    how = "expected keys of `leasekit keys new` there, or deployment.create_keys = true"
    return [f"deployment.state: found no folder {deployment.state}, so keys were not looked for: {how}"]


def keys_of_nobody(deployment: Deployment) -> list[str]:
    """Peers whose key can sign nothing, so that they can never connect: a line each."""
    found = []
    for name, peer in deployment.peers.items():
        with suppress(KeyFileError):
            public = load_public(peer.key)
            if not can_verify(public):
                found.append(f"peer.{name}.key: found {public.hex()}, expected a key that can sign, as this one can't")
    return found


def start_faults(deployment: Deployment) -> list[ConfigError]:
    """What would keep daemons from starting on this machine: paths that are too long for a socket, or lead through
    a file; and what is missing or can't be read of keys, where no start makes them (no key is unlocked; nothing is said
    of keys where there is :func:`no_state_folder`).
    """
    faults, publics = Faults(str(deployment.file)), dict[str, bytes]()
    for folder, key in _folders(deployment, list(deployment.actors), faults).items():
        there = next(one for one in (folder, *folder.parents) if one.exists())
        if not there.is_dir():
            number = EEXIST if there == folder else ENOTDIR
            _not_made(folder, key, OSError(number, os.strerror(number)), faults)
    if no_state_folder(deployment):
        return faults.errors
    for name, spec in deployment.actors.items():
        with faults.noting(f"actor.{name}.key"):
            _look_at(spec, deployment.create_keys)
            if public_path(spec.key).exists():
                publics[name] = load_public(str(public_path(spec.key)))
    for name, peer in deployment.peers.items():
        with faults.noting(f"peer.{name}.key"):
            publics[name] = load_public(peer.key)
    _check_distinct(deployment, publics, faults)
    return faults.errors


def _look_at(spec: ActorSpec, create: bool) -> None:
    """An actor's keys are here as far as they must be: of one that runs elsewhere the public key is enough."""
    try:
        if check_key(spec.key) and spec.passphrase_file is not None:
            read_passphrase(spec.passphrase_file)
    except KeyFileMissing as error:
        if spec.after:
            raise _following(spec, error) from None
        if public_path(spec.key).exists():
            load_public(str(public_path(spec.key)))
        elif not create:
            raise
    for path in spec.after:
        with _had_before():
            check_key(path)
        load_succession(statement_path(path))


def _own(spec: ActorSpec, create: bool, ask: Ask | None) -> Keypair:
    """The key pair of an actor, made if it may be: never for one that had another before, whose successor it would not
    be. Raises ``KeyFileError``.
    """
    path = spec.key
    passphrase = passphrase_of(path, spec.passphrase_file, ask)
    try:
        pair = load_key(path, passphrase)
    except KeyFileMissing as error:
        if spec.after:
            raise _following(spec, error) from None
        if not create:
            raise
        try:
            return new_key(path, None if spec.passphrase_file is None else read_passphrase(spec.passphrase_file))
        except KeyFileError:
            if not path.exists():
                raise
            pair = load_key(path, passphrase)  # another daemon of this deployment was quicker
    write_public(path, pair)
    return pair
