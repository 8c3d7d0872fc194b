"""``leasekit plan coallocate``: sites, paths and a start for one request, offline."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

import attrs
import click

from leasekit.cli.files import STANDARD_INPUT, wrong_problem
from leasekit.cli.output import example, json_option, note, print_fields, print_json, print_table, report
from leasekit.core.json_text import JsonError, read_json
from leasekit.core.settings import SettingsError


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

    if schema:
        document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A co-allocation problem"}
        print_json(document | _schema(Problem))
        return 0
    if file is None:
        raise click.UsageError("missing argument 'FILE'")
    begin = time.monotonic()
    try:
        problem = read_problem(_read(file))
        decision = Decision(problem, remaining=lambda: begin + problem.options.time_limit_s - time.monotonic())
    except (ProblemError, SettingsError) as error:
        lines = error.errors if isinstance(error, SettingsError) else [str(error)]
        return wrong_problem(f"{STANDARD_INPUT if file == '-' else file}: {'; '.join(lines)}")
    answer = decision.answer()
    answer["solve_ms"] = round(1000 * (time.monotonic() - begin), 3)
    report(answer, _print_plans if "plans" in answer else _print_one, as_json=as_json)
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
