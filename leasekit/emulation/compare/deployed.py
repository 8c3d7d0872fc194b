"""Mappers of any role against each other in a world of one's own: a deploy file, emulated once with each of them.

Whatever the file has is the same in all runs but the mapper of one actor. What its runs vary is left alone, but for one
that is named. A mapper that does not fit there, or does not end its turn, takes its own run with it and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from leasekit.config.deployment import Deployment
from leasekit.config.emulation import RunSpec
from leasekit.config.load import load
from leasekit.core.errors import LeasekitError
from leasekit.core.settings import expect_one_of
from leasekit.emulation.compare.targets import Target
from leasekit.emulation.experiment import file_stems, run_one, runs_named
from leasekit.emulation.mapper_faults import Tell
from leasekit.emulation.outputs import write_json, write_rows, writing
from leasekit.emulation.pictures import emulation_of
from leasekit.emulation.spread import Progress
from leasekit.policies.registry import find_mapper

_REQUESTS: Final = ("asked", "granted_at_once", "granted_later", "refused", "given_up", "failed", "cut", "mean_wait_s")
_GUEST: Final = ("mean_leased", "peak_leased", "rmse", "unserved", "idle_leased", "fidelity")
_SITE: Final = ("used", "idle", "out_of_service")
_POWER: Final = ("e_savings", "delay_req", "delayed", "switched")


@attrs.frozen(kw_only=True)
class Contest:
    """Where mappers meet: ``actor`` of the deploy ``file``, or of its variant ``run``, is given each of them. ``data``,
    ``synthetic`` and ``seed`` are as for an emulation.
    """

    file: Path
    actor: str
    run: str = ""
    data: Path | None = None
    synthetic: bool = False
    seed: int | None = None

    def open(self) -> Deployment:
        """The deployment. Raises ``LeasekitError`` where it has no such actor or run, or can't be emulated."""
        deployment = load(self.file)
        if deployment.emulation is None:
            raise LeasekitError(f"{self.file}: found no [emulation] table, expected one that says how long to run")
        if self.actor not in deployment.actors:
            raise LeasekitError(f"--actor: found {self.actor!r}, {expect_one_of(self.actor, deployment.actors)}")
        deployment = deployment.with_overrides({} if self.seed is None else {"emulation.seed": self.seed})
        if not self.run:
            return deployment
        (run,) = runs_named(emulation_of(deployment).runs, (self.run,))
        return deployment.with_run(run)


def run_contest(
    targets: Sequence[Target],
    contest: Contest,
    out: Path | None,
    *,
    tell: Tell | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any] | LeasekitError]:
    """A run for each target, in their order: the run's summary as an emulation has it, with a ``mapper`` and its
    ``figures``, those that the actor's role is judged by. ``out`` gets each run's log and series.

    Raises ``LeasekitError`` for what is wrong whatever the mapper.
    """
    deployment = contest.open()
    found: list[dict[str, Any] | LeasekitError] = []
    for target, stem in zip(targets, file_stems([target.label for target in targets]), strict=True):
        try:
            varied = deployment.with_overrides({f"actor.{contest.actor}.mapper": _table(target, deployment, contest)})
            run = run_one(
                varied, RunSpec(name=target.label), out, stem=stem, data=contest.data, synthetic=contest.synthetic,
                tell=tell, progress=progress,
            )  # fmt: skip
        except LeasekitError as error:
            found.append(error)
            continue
        summary = dict(run.summary)
        found.append({"mapper": target.label, "figures": figures(summary, contest.actor), **summary})
    return found


def _table(target: Target, deployment: Deployment, contest: Contest) -> dict[str, Any]:
    """The mapper as the deploy file would have it: with the load that the actor follows, if this one follows any."""
    in_file = target.name.endswith(".py") or target.name.rpartition(":")[0].endswith(".py")
    name = str(Path(target.name).absolute()) if in_file else target.name
    kind = find_mapper(name, deployment.actors[contest.actor].role, target.label)
    before: Mapping[str, Any] = deployment.document["actor"][contest.actor].get("mapper", {})
    loads = {key: before[key] for key in ("signal", "jobs") if getattr(kind, f"needs_{key}", False) and key in before}
    return {"name": name, **target.settings, **loads}


def figures(summary: Mapping[str, Any], actor: str) -> dict[str, Any]:
    """What an actor's mapper is judged by, from the summary of a run: of a guest what it held, and its requests; of a
    site what became of its units, and the requests for them; of a broker all guests' requests.
    """
    if actor in summary["guests"]:
        guest = summary["guests"][actor]
        return {**_some(guest, _GUEST), **_requests([guest["requests"]])}
    if actor in summary["sites"]:
        site = summary["sites"][actor]
        asked = [one["requests"] for one in site["types"].values()]
        return {**_some(site, _SITE), **_requests(asked), **_some(site.get("energy", {}), _POWER)}
    return _requests([guest["requests"] for guest in summary["guests"].values()])


def _some(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: values[key] for key in keys if key in values}


def _requests(tallies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of tallies, and the mean wait of all leases that were granted, None where there are none."""
    summed = {key: sum(tally[key] for tally in tallies) for key in _REQUESTS[:-1]}
    leases = sum(tally["leases"] for tally in tallies)
    waits = sum(tally["mean_wait_s"] * tally["leases"] for tally in tallies if tally["leases"])
    return {**summed, _REQUESTS[-1]: waits / leases if leases else None}


def columns_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The figures that any run has, in order."""
    return list(dict.fromkeys(key for run in runs for key in run["figures"]))


def write_contest(out: Path, contest: Contest, runs: Sequence[Mapping[str, Any]]) -> list[Path]:
    """``summary.json``, without what a clock measured, and ``summary.csv``, a row for each mapper, into ``out``."""
    files = [out / "summary.json", out / "summary.csv"]
    columns = columns_of(runs)
    with writing(out):
        plain = [{key: value for key, value in run.items() if key != "measured"} for run in runs]
        write_json(files[0], {"file": contest.file.name, "actor": contest.actor, "runs": plain})
        rows = ([run["mapper"], *(run["figures"].get(key) for key in columns)] for run in runs)
        write_rows(files[1], ("mapper", *columns), rows)
    return files
