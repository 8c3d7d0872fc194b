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
from leasekit.emulation.pictures import RunResult

_ONE = ("usable",)
_BY_TYPE = ("leased_by_type", "in_use_by_type", "out_by_type", "power", "reported")

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
    series = {name: _plain(getattr(result, name)) for name in (*_ONE, *_BY_TYPE)}
    content = {
        "made_of": digest,
        "window": [result.window.start, result.window.end],
        "summary": dict(result.summary),
        "series": series,
    }
    file.parent.mkdir(exist_ok=True)
    begun = file.with_suffix(".part")
    begun.write_text(json.dumps(content) + "\n", encoding="utf-8")
    begun.replace(file)


def take_up(
    file: Path, digest: str, spec: RunSpec, stem: str, deployment: Deployment, loads: Mapping[str, Any]
) -> RunResult | None:
    """The run that was kept there, if it was made of the same; ``loads`` are its ``signals`` and ``wanted``."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("made_of") != digest:
        return None
    series: Any = {name: {key: _series(steps) for key, steps in content["series"][name].items()} for name in _ONE}
    by_type: Any = {
        name: {
            key: {kind: _series(steps) for kind, steps in types.items()}
            for key, types in content["series"][name].items()
        }
        for name in _BY_TYPE
    }
    return RunResult(
        spec=spec, stem=stem, deployment=deployment, summary=content["summary"], window=Term(*content["window"]),
        **series, **by_type, **loads,
    )  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Series):
        return list(value)
    return {key: _plain(one) for key, one in value.items()}


def _series(steps: Any) -> Series:
    made = Series()
    for at, value in steps:
        made.append(at, value)
    return made
