"""Finished runs on disk, so that a sweep that was ended goes on where it was: one JSON file for each, whole or not
there.

A run is known again by what it was made of: the file's document as the run had it, but for pictures and other runs, the
mappers' files, whether load was generated, and leasekit's version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from leasekit.config.deployment import Deployment
from leasekit.config.emulation import RunSpec
from leasekit.core.time import Term
from leasekit.emulation.metrics import Series
from leasekit.emulation.outputs import read_made, write_json
from leasekit.emulation.pictures import RunResult

_SERIES = ("usable", "leased_by_type", "in_use_by_type", "out_by_type", "power", "reported")
"""What a result has of step functions, by guest or site, and by type."""

_OF_ALL_RUNS = ("run", "seeds", "plot")
"""Keys of ``[emulation]`` that no single run depends on."""


def made_of(deployment: Deployment, spec: RunSpec, synthetic: bool) -> str:
    """A digest of what a run is made of; ``deployment`` is that of this run."""
    document = dict(deployment.document)
    document["emulation"] = {key: value for key, value in document["emulation"].items() if key not in _OF_ALL_RUNS}
    described = [version("leasekit"), document, [spec.name, spec.series, spec.changes], synthetic]
    found = sha256(json.dumps(described, sort_keys=True, default=str).encode())
    for actor in deployment.actors.values():
        file = deployment.file.parent / actor.mapper.target.partition(":")[0]
        if file.suffix == ".py" and file.is_file():
            found.update(file.read_bytes())
    return found.hexdigest()


def keep(result: RunResult, digest: str, file: Path) -> None:
    """Write a finished run."""
    content = {
        "made_of": digest,
        "window": [result.window.start, result.window.end],
        "summary": dict(result.summary),
        "series": {name: _plain(getattr(result, name)) for name in _SERIES},
    }
    file.parent.mkdir(exist_ok=True)
    write_json(file, content, indent=None)


def take_up(
    file: Path, digest: str, spec: RunSpec, stem: str, deployment: Deployment, loads: Mapping[str, Any]
) -> RunResult | None:
    """The run that was kept there, if it was made of the same; ``loads`` are its ``signals`` and ``wanted``."""
    content = read_made(file, digest)
    return None if content is None else RunResult(
        spec=spec, stem=stem, deployment=deployment, summary=content["summary"], window=Term(*content["window"]),
        **{name: _series(content["series"][name]) for name in _SERIES}, **loads,
    )  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Series):
        return list(value)
    return {key: _plain(one) for key, one in value.items()}


def _series(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _series(one) for key, one in plain.items()}
    made = Series()
    for at, value in plain:
        made.append(at, value)
    return made
