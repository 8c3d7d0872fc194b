"""All experiments, in the order in which they are shown, and how several are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.core.settings import expect_one_of
from leasekit.emulation.outputs import make_folder, write_json, writing
from leasekit.emulation.papers import page
from leasekit.emulation.papers.claims import Means, PaperExperiment, carry_out, told_of
from leasekit.emulation.papers.decisions import COALLOCATION, ENERGY, PREEMPTION, YIELD
from leasekit.emulation.papers.mixes import BORROW, HAIZEA, TARIFF
from leasekit.emulation.papers.shirako import ACTIVATION, COMPETE, FIDELITY, SCALING, TERM_LENGTHS

EXPERIMENTS: Final[tuple[PaperExperiment, ...]] = (
    ACTIVATION, FIDELITY, TERM_LENGTHS, COMPETE, SCALING, PREEMPTION, YIELD, COALLOCATION, ENERGY, HAIZEA, TARIFF,
    BORROW,
)  # fmt: skip


def run_all(
    only: Sequence[str],
    means: Means,
    tell: Callable[[str], None],
    experiments: Sequence[PaperExperiment] = EXPERIMENTS,
) -> list[dict[str, Any]]:
    """Run the experiments of these names, or all, and judge them; ``tell`` hears of each. Where ``means`` has a folder
    it gets the page, the JSON and the Markdown, after each experiment.

    One whose data are missing has ``error`` in the place of claims. One that was ended by Ctrl-C and has figures all
    the same is the last. Raises ``LeasekitError`` for a name that is none's.
    """
    known = [one.name for one in experiments]
    for name in only:
        if name not in known:
            raise LeasekitError(f"experiment: found {name!r}, {expect_one_of(name, known)}")
    results: list[dict[str, Any]] = []
    for experiment in experiments:
        if only and experiment.name not in only:
            continue
        own = None if means.out is None else means.out / experiment.name
        if own is not None:
            make_folder(own)
        try:
            results.append(carry_out(experiment, attrs.evolve(means, out=own)))
        except LeasekitError as error:
            results.append({**told_of(experiment, means), "error": str(error)})
            tell(f"{experiment.name}: not run: {error}")
        else:
            tell(f"{experiment.name}: {page.counted(results[-1:])}")
        if means.out is not None:
            _write(means.out, results)
        if "ended" in results[-1]:
            break
    return results


def _write(out: Path, results: Sequence[Mapping[str, Any]]) -> None:
    with writing(out):
        write_json(out / "results.json", {"experiments": results})
        (out / "index.html").write_text(page.html(results, out), encoding="utf-8")
        (out / "experiments.md").write_text("\n".join(map(page.markdown, results)), encoding="utf-8")
