"""``leasekit plan``: one decision, or one workload, of a mapper, offline."""

from __future__ import annotations

import sys
import time
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin

import attrs
import click

from leasekit.cli.emulate import went_wrong
from leasekit.cli.output import (
    STANDARD_INPUT,
    check_out_file,
    example,
    is_standard_input,
    json_option,
    note,
    print_fields,
    print_json,
    print_table,
    report,
    wrong_problem,
)
from leasekit.cli.times import Count, saving_options
from leasekit.core.json_text import JsonError, read_json
from leasekit.core.settings import SettingsError

if TYPE_CHECKING:
    from leasekit.emulation.compare.works import Work


class ProblemError(Exception):
    """What is wrong with a problem file, in one line."""


@click.command(epilog=example("leasekit plan coallocate problem.json --json", "leasekit plan coallocate --schema"))
@click.argument("file", type=click.Path(allow_dash=True), required=False)
@click.option("--schema", is_flag=True, help="Print what a problem file holds, as a JSON schema.")
@json_option
def coallocate(file: str | None, schema: bool, as_json: bool) -> int:
    """Place a requested graph of sites and links on a network, or with frames: plan when to, too.

    FILE is a JSON file (- for standard input) with resources (vertices, links), request (sites, links), and options.
    The answer is exact unless a limit is met; it says so then. Ends with 2 if the file is wrong.
    """
    from leasekit.policies.broker.coallocation.model import Problem, read_problem
    from leasekit.policies.broker.coallocation.problem import Decision

    def decide(content: Mapping[str, Any]) -> dict[str, Any]:
        problem, begin = read_problem(content), time.monotonic()
        return Decision(problem, remaining=lambda: begin + problem.options.time_limit_s - time.monotonic()).answer()

    if schema:
        return _print_schema("A co-allocation problem", Problem)
    return _decide(file, decide, lambda answer: (_print_plans if "plans" in answer else _print_one)(answer), as_json)


@click.command(epilog=example("leasekit plan preempt problem.json --json", "leasekit plan preempt --schema"))
@click.argument("file", type=click.Path(allow_dash=True), required=False)
@click.option("--schema", is_flag=True, help="Print what a problem file holds, as a JSON schema.")
@json_option
def preempt(file: str | None, schema: bool, as_json: bool) -> int:
    """Choose the host for a request, and the preemptible leases that have to leave it, at least cost.

    FILE is a JSON file (- for standard input) with the request, the hosts and the leases on them. The answer has the
    runners-up as well: other hosts with room, or other sets of leases that would make enough. Ends with 2 if the file
    is wrong.
    """
    from leasekit.policies.preempting.problem import PreemptDecision, PreemptProblem, read_preempt_problem

    if schema:
        return _print_schema("A request for a place on hosts with preemptible leases", PreemptProblem)
    return _decide(
        file, lambda content: PreemptDecision(read_preempt_problem(content)).answer(), _print_placements, as_json
    )


def _print_schema(title: str, cls: type) -> int:
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title} | _schema(cls))
    return 0


def _decide(
    file: str | None,
    decide: Callable[[Mapping[str, Any]], dict[str, Any]],
    show: Callable[[Mapping[str, Any]], None],
    as_json: bool,
) -> int:
    """Decide what a problem file holds, and print the answer; the exit status."""
    if file is None:
        raise click.UsageError("missing argument 'FILE'")
    try:
        content = _read(file)
        begin = time.monotonic()
        answer = decide(content)
    except (ProblemError, SettingsError) as error:
        lines = error.errors if isinstance(error, SettingsError) else [str(error)]
        return wrong_problem(f"{STANDARD_INPUT if file == '-' else file}: {'; '.join(lines)}")
    answer["solve_ms"] = round(1000 * (time.monotonic() - begin), 3)
    report(answer, show, as_json=as_json)
    return 0


def _read(file: str) -> Mapping[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        content = read_json(text)
    except OSError as error:
        raise ProblemError(f"can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProblemError("found bytes that are not UTF-8, expected a JSON object") from None
    except JsonError as error:
        raise ProblemError(f"{error}, expected a JSON object") from None
    if not isinstance(content, dict):
        raise ProblemError(f"found {type(content).__name__}, expected a JSON object")
    return content


# -- for a person ----------------------------------------------------------------------------------------------------


def _print_one(answer: Mapping[str, Any]) -> None:
    fields = [(key, answer[key]) for key in ("status", "objective", "bound", "reason", "solve_ms")]
    print_fields((key.replace("_", " "), value) for key, value in fields)
    if answer["sites"] is not None:
        print_table(("requested", "site"), list(answer["sites"].items()), empty="no sites")
        print_table(("link", "path", "backup"), _path_rows(answer), empty="no links")


def _print_placements(answer: Mapping[str, Any]) -> None:
    proven = "" if answer["proven"] else "no"
    print_fields([("status", answer["status"]), ("proven", proven), ("reason", answer["reason"])])
    for title, found in (("host", answer["placements"]), ("runner-up", answer["runners_up"])):
        rows = [(one["host"], ", ".join(one["victims"]), one["cost"]) for one in found]
        print_table((title, "victims", "cost"), rows, empty=f"no {title}", right=("cost",))


def _path_rows(answer: Mapping[str, Any]) -> list[tuple[str, ...]]:
    backups = answer.get("backups", [None] * len(answer["paths"]))
    return [
        (str(number), _path(path), _path(backup))
        for number, (path, backup) in enumerate(zip(answer["paths"], backups, strict=True))
    ]


def _path(path: Sequence[str] | None) -> str:
    return "" if path is None else " - ".join(path)


def _print_plans(answer: Mapping[str, Any]) -> None:
    rows = [
        (
            plan["start"],
            plan["objective"],
            "" if plan["status"] == "optimal" else f"at least {plan['bound']}",
            ", ".join(f"{name}: {site}" for name, site in plan["sites"].items()),
            "; ".join(_path(path) for path in plan["paths"] if path is not None),
        )
        for plan in answer["plans"]
    ]
    print_table(("start", "value", "bound", "sites", "paths"), rows, empty="no plan", right=("start", "value"))
    if answer["refused"]:
        refusals = [(one["start"], one["reason"]) for one in answer["refused"]]
        print_table(("refused", "reason"), refusals, empty="", right=("refused",))
    if answer["alternative"] is not None:
        note(answer["alternative"]["words"])


# -- the schema ------------------------------------------------------------------------------------------------------

_PLAIN: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _schema(cls: type) -> dict[str, Any]:
    """The JSON schema of an attrs class of a problem file: unknown keys are errors."""
    attrs.resolve_types(cls)
    properties, required = {}, []
    for field in attrs.fields(cls):
        name = (field.alias or field.name).rstrip("_")
        properties[name] = _of(field.type)
        if field.default is attrs.NOTHING:
            required.append(name)
        elif isinstance(field.default, str | int | float) or field.default is None:
            properties[name] = properties[name] | {"default": field.default}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _of(cls: Any) -> dict[str, Any]:
    origin, arguments = get_origin(cls), get_args(cls)
    if cls in _PLAIN:
        return {"type": _PLAIN[cls]}
    if cls is type(None):
        return {"type": "null"}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(argument) for argument in arguments]}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _of(arguments[0])}
    if origin is tuple:
        count = len(arguments)
        return {"type": "array", "prefixItems": [_of(a) for a in arguments], "minItems": count, "maxItems": count}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of(arguments[1])}
    return _schema(cls)


_LABELS: Final = {"utilisation": "utilisation of the makespan"}
"""What figures are called for a person, where their names leave something open."""
_APART: Final = frozenset({"kinds", "mapper_errors"})


@click.group()
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
    from leasekit.emulation import timetable_plan
    from leasekit.emulation.compare.pool import Saving

    if schema:
        print_json(_workload_schema())
        return 0
    if file is None:
        raise click.UsageError("missing argument 'FILE'")
    if out is not None:
        check_out_file(out, file)
    try:
        requests = _workload(file)
    except timetable_plan.WorkloadError as error:
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
    from leasekit.emulation.timetable_plan import parse_workload, read_workload

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


def _workload_schema() -> dict[str, Any]:
    """What a row holds. (That it ends in time, and starts when it is submitted at the earliest, no schema says.)"""
    from leasekit.core.time import INSTANT_MAX, SECOND
    from leasekit.emulation.timetable_plan import COLUMNS, KINDS, NODES_MAX

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


plan.add_command(coallocate)
plan.add_command(preempt)
