"""From a deploy file to running daemons."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from getpass import getpass
from pathlib import Path
from typing import Final

import attrs

from leasekit.config.build import BuiltActor, build, make_drivers, open_store
from leasekit.config.deployment import Deployment
from leasekit.config.identities import KeySource, prepare
from leasekit.config.reach import out_of_reach
from leasekit.core.errors import LeasekitError
from leasekit.core.time import INSTANT_MAX, Instant
from leasekit.runtime.frames import parse_endpoint
from leasekit.runtime.mapper_turns import apart
from leasekit.runtime.service import EXIT_START, Job, StartError, run_jobs
from leasekit.runtime.transport import PeerAddress

ORIGIN_SUFFIX: Final = ".origin"


def run(
    deployment: Deployment,
    names: Sequence[str] = (),
    *,
    ready_fd: int | None = None,
    data_dir: Path | None = None,
    synthetic: bool = False,
    accept_clock: bool = False,
) -> int:
    """Run the actors ``names`` of a deployment (none: all) in this process until they are stopped.

    Returns the exit status (see :mod:`leasekit.runtime.service`); what goes wrong is said on standard error, one
    line for each error. ``ready_fd`` is as in :func:`~leasekit.runtime.service.run_jobs`, ``data_dir`` and
    ``synthetic`` as in :func:`leasekit.config.build.build`, ``accept_clock`` as in
    :class:`~leasekit.runtime.service.Job`.
    """
    wanted = list(names) or list(deployment.actors)
    for line in out_of_reach(deployment, wanted):
        print(f"leasekit: warning: {deployment.file}: {line}", file=sys.stderr)
    try:
        keys = prepare(deployment, wanted, _ask if sys.stdin is not None and sys.stdin.isatty() else None)
        jobs = [
            attrs.evolve(
                make_job(deployment, name, keys, data_dir=data_dir, synthetic=synthetic), accept_clock=accept_clock
            )
            for name in wanted
        ]
    except LeasekitError as error:
        for line in str(error).splitlines():
            print(f"leasekit: {line}", file=sys.stderr)
        return EXIT_START
    return run_jobs(jobs, ready_fd=ready_fd)


def make_job(
    deployment: Deployment, name: str, keys: KeySource, *, data_dir: Path | None = None, synthetic: bool = False
) -> Job:
    """What the daemon needs to run the actor ``name``. Raises what building it raises, and :class:`StartError`."""
    origin = _origin(deployment, name)
    guard = partial(apart, settings=deployment.actors[name].shell)

    def built() -> BuiltActor:
        return build(deployment, name, keys=keys, data=data_dir, synthetic=synthetic, origin=origin, guard=guard)

    first = built()
    spec = first.spec
    drivers = make_drivers(deployment, name)
    try:
        listen = [parse_endpoint(address) for address in spec.listen]
        peers = [
            PeerAddress(link.name, link.key, parse_endpoint(link.address) if link.address else None)
            for link in first.peers
        ]
    except ValueError as error:
        raise StartError(f"{deployment.file}: {name}: {error}") from error
    return Job(
        name=name,
        role=spec.role,
        make=lambda: built().actor,
        inline=first.actor.inline,
        mapper=spec.mapper.target.rpartition("/")[2],
        open_store=lambda: open_store(spec),
        signer=first.signer,
        scheme=first.scheme,
        peers=peers,
        listen=listen,
        control=spec.control,
        state=deployment.state,
        driver_of=lambda type_: drivers.get(spec.driver_for(type_)),
        drivers=tuple(drivers.values()),
        clock_skew=spec.settings.clock_skew,
        shell=spec.shell,
        transport=spec.transport,
        log=spec.log,
        log_level=spec.log_level,
        log_file=True,
    )


def _ask(key: Path) -> str:
    return getpass(f"passphrase of {key}: ")


def _origin(deployment: Deployment, name: str) -> Instant:
    """Where a load signal begins that its file doesn't date: at the actor's first start, also after later ones."""
    wanted = deployment.actors[name].mapper.signal
    if wanted is None or wanted.origin is not None:
        return 0
    path = deployment.state / f"{name}{ORIGIN_SUFFIX}"
    try:
        try:
            text = path.read_text("ascii")
        except FileNotFoundError:
            text = str(time.time_ns() // 1_000_000)
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            beside.write_text(text, "ascii")
            beside.replace(path)
        origin = int(text)
    except (OSError, ValueError) as error:
        raise StartError(f"{path}: expected the instant of the first start in milliseconds: {error}") from error
    if not 0 <= origin <= INSTANT_MAX:
        raise StartError(f"{path}: found {origin}, expected the instant of the first start in milliseconds")
    return origin
