"""``leasekit plan``: one decision, or one workload, of a mapper, offline."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.cli.emulate import went_wrong
from leasekit.cli.files import STANDARD_INPUT, check_out_file, is_standard_input, wrong_problem
from leasekit.cli.lazy import LazyGroup
from leasekit.cli.output import example, json_option, note, print_json, print_table
from leasekit.cli.saving import saving_options
from leasekit.cli.times import Count

if TYPE_CHECKING:
    from leasekit.emulation.compare.works import Work

_LABELS: Final = {"utilisation": "utilisation of the makespan"}
"""What figures are called for a person, where their names leave something open."""
_APART: Final = frozenset({"kinds", "mapper_errors"})


@click.group(cls=LazyGroup, later={"coallocate": "leasekit.cli.plan_coallocate:coallocate"})
def plan() -> None:
    """See what a mapper would decide, without daemons."""


@plan.command(epilog=example("leasekit plan timetable workload.csv --nodes 64 --policy fcfs --out answers.csv"))
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True), required=False)
@click.option(
    "--nodes", type=Count(min=1), default=64, show_default=True, metavar="N", help="How many nodes there are."
)
@click.option(
    "--policy", default="fcfs", show_default=True, metavar="MAPPER", help="A broker's mapper, by name or target."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the mapper; may be repeated.")
@saving_options
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write start and reason of each request.")
@click.option("--schema", is_flag=True, help="Print what a workload file holds, as a JSON schema of its rows.")
@json_option
def timetable(
    file: Path | None,
    nodes: int,
    policy: str,
    settings: Sequence[str],
    memory: float,
    rate: float,
    out: Path | None,
    schema: bool,
    as_json: bool,
) -> int:
    """Run a workload of reservations through a broker's mapper, in virtual time.

    FILE is a CSV file (- for standard input) with the columns submit_s, earliest_start_s, deadline_s, duration_s, nodes
    and kind: ar (advance reservation), im (immediate), be (best effort, done by deadline_s; empty: no limit). Best
    effort may be suspended by a mapper that does so (`--set suspension=all`); with the wait up to the first start, and
    the slowdown up to the end. Utilisation is over the makespan, from the first submission to the last end. Ends with 2
    if the file is wrong, with 1 if the mapper went wrong.
    """
    from leasekit.emulation import timetable_plan, workload_file
    from leasekit.emulation.compare.pool import Saving

    if schema:
        print_json(_schema())
        return 0
    if file is None:
        raise click.UsageError("missing argument 'FILE'")
    if out is not None:
        check_out_file(out, file)
    try:
        requests = _workload(file)
    except workload_file.WorkloadError as error:
        return wrong_problem(str(error))
    summary, answers = timetable_plan.plan(
        requests, nodes, policy, dict(map(_setting, settings)), Saving(memory=memory, rate=rate), note
    )
    wrong = went_wrong({policy: summary["mapper_errors"]})
    if out is not None:
        timetable_plan.write_answers(out, answers)
    if as_json:
        print_json(summary)
        return 1 if wrong else 0
    rows = [(kind, counts["accepted"], counts["refused"]) for kind, counts in summary["kinds"].items()]
    print_table(("kind", "accepted", "refused"), rows, empty="no requests", right=("accepted", "refused"))
    others = [(_LABELS.get(key, key.replace("_", " ")), value) for key, value in summary.items() if key not in _APART]
    print_table(("", "value"), others, empty="")
    if out is not None:
        note(f"written to {out}")
    for line in wrong:
        note(line)
    return 1 if wrong else 0


def _workload(file: Path) -> list[Work]:
    from leasekit.emulation.workload_file import parse_workload, read_workload

    if is_standard_input(file):
        return parse_workload(sys.stdin, STANDARD_INPUT)
    return read_workload(file)


def _setting(text: str) -> tuple[str, Any]:
    """``KEY=VALUE``, the value as a deploy file would have it; what is no TOML is text without its quotes."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"found {text!r}, expected KEY=VALUE", param_hint="--set")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _schema() -> dict[str, Any]:
    """What a row holds. (That it ends in time, and starts when it is submitted at the earliest, no schema says.)"""
    from leasekit.core.time import INSTANT_MAX, SECOND
    from leasekit.emulation.workload_file import COLUMNS, KINDS, NODES_MAX

    number = {"type": "number", "minimum": 0, "maximum": INSTANT_MAX / SECOND}
    properties: dict[str, Any] = dict.fromkeys(COLUMNS, number)
    properties["deadline_s"] = {"anyOf": [number, {"const": ""}]}
    properties["duration_s"] = number | {"minimum": 1 / SECOND}
    properties["nodes"] = {"type": "integer", "minimum": 1, "maximum": NODES_MAX}
    properties["kind"] = {"enum": list(KINDS), "description": "; ".join(f"{k}: {v}" for k, v in KINDS.items())}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A row of a workload (CSV with a header)",
        "type": "object",
        "properties": properties,
        "required": list(COLUMNS),
        "additionalProperties": False,
    }
