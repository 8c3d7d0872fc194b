"""``leasekit plan``: one decision, or one workload, of a mapper, offline."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from leasekit.cli.output import example, json_option, note, print_json, print_table
from leasekit.cli.saving import saving_options


@click.group()
def plan() -> None:
    """See what a mapper would decide, without daemons."""


@plan.command(epilog=example("leasekit plan timetable workload.csv --nodes 64 --policy fcfs --out answers.csv"))
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--nodes", type=int, default=64, show_default=True, metavar="N", help="How many nodes there are.")
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
) -> None:
    """Run a workload of reservations through a broker's mapper over one timetable.

    FILE is a CSV file with the columns submit_s, earliest_start_s, deadline_s, duration_s, nodes and kind: ar
    (advance reservation), im (immediate), be (best effort, done by deadline_s; empty: no limit). Best effort may be
    suspended by a mapper that does so (`--set suspension=all`); with the wait up to the first start, and the slowdown
    up to the end.
    """
    from leasekit.emulation import timetable_plan, workload_file
    from leasekit.emulation.compare.parts import Saving

    if schema:
        print_json(_schema(workload_file.COLUMNS, workload_file.KINDS))
        return
    if file is None:
        raise click.UsageError("missing argument 'FILE'")
    summary, answers = timetable_plan.plan(
        workload_file.read_workload(file), nodes, policy, dict(map(_setting, settings)),
        Saving(memory=memory, rate=rate),
    )  # fmt: skip
    if out is not None:
        timetable_plan.write_answers(out, answers)
    if as_json:
        print_json(summary)
        return
    rows = [(kind, counts["accepted"], counts["refused"]) for kind, counts in summary["kinds"].items()]
    print_table(("kind", "accepted", "refused"), rows, empty="no requests", right=("accepted", "refused"))
    others = {key: value for key, value in summary.items() if key != "kinds"}
    print_table(("", "value"), [(key.replace("_", " "), value) for key, value in others.items()], empty="")
    if out is not None:
        note(f"written to {out}")


def _setting(text: str) -> tuple[str, Any]:
    """``KEY=VALUE``, the value as a deploy file would have it; what is no TOML is text without its quotes."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"found {text!r}, expected KEY=VALUE", param_hint="--set")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _schema(columns: tuple[str, ...], kinds: Any) -> dict[str, Any]:
    number = {"type": "number", "minimum": 0}
    properties: dict[str, Any] = dict.fromkeys(columns, number)
    properties["deadline_s"] = {"anyOf": [number, {"const": ""}]}
    properties["nodes"] = {"type": "integer", "minimum": 1}
    properties["kind"] = {"enum": list(kinds), "description": "; ".join(f"{k}: {v}" for k, v in kinds.items())}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A row of a workload (CSV with a header)",
        "type": "object",
        "properties": properties,
        "required": list(columns),
        "additionalProperties": False,
    }
