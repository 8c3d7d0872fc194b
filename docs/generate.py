"""Writes those parts of the documentation that the code knows best: ``python docs/generate.py`` (or ``make docs``).

``docs/cli.md`` is made as a whole from what ``--help`` says, ``docs/mapper-api.md`` by ``mapper_api.py``. In other
pages, what stands between ``<!-- generated: NAME -->`` and ``<!-- end -->`` is replaced: state diagrams come from the
tables of the lease machines, settings from their attrs classes. With ``--check`` nothing is written, and the exit
status says whether anything would have to be.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import click
import mapper_api

from leasekit.actors import settings as actor_settings
from leasekit.cli.main import LazyGroup, cli
from leasekit.config.jobs import JobsSpec
from leasekit.config.tables import ShellSettings, TransportSettings
from leasekit.core.leases import authority, broker, delegation, membership, outage, power, returns, service_manager
from leasekit.core.leases.machine import NONE, Joint, TransitionTable
from leasekit.core.time import format_duration
from leasekit.gateway.app import routes
from leasekit.policies.authority.energy import EnergySettings
from leasekit.policies.authority.energy_plan import EnergyPowerSettings, EwmaSettings
from leasekit.policies.authority.preemption import HostPreemptionSettings, RetrySettings
from leasekit.policies.authority.weighing import HostWeigherSettings, WeighingSettings
from leasekit.policies.authority.yields import YieldSettings
from leasekit.policies.broker.capacity import SiteFilterSettings, SiteWeigherSettings
from leasekit.policies.broker.fair_share import FairShareSettings
from leasekit.policies.broker.fcfs import FcfsSettings
from leasekit.policies.broker.preemption import PreemptionSettings
from leasekit.policies.broker.quotas import QuotaSettings
from leasekit.policies.broker.spot import SpotSettings
from leasekit.policies.broker.turn import StandardSettings
from leasekit.policies.broker.waiting import PrioritySettings, WaitingSettings
from leasekit.policies.guest.filters import FlopFlipSettings
from leasekit.policies.guest.load_following import LoadFollowingSettings
from leasekit.policies.guest.replaying import ReplaySettings, UsersSettings
from leasekit.policies.guest.static import DemandSettings, StaticSettings

DOCS: Final = Path(__file__).resolve().parent
HELP_WIDTH: Final = 100
REGION: Final = re.compile(r"<!-- generated: ([\w ]+) -->\n.*?<!-- end -->", re.DOTALL)

MACHINES: Final[Mapping[str, TransitionTable]] = {
    "service manager": service_manager.TABLE,
    "membership of a lease": membership.TABLE,
    "membership of a unit": membership.UNIT_TABLE,
    "broker": broker.TABLE,
    "authority": authority.TABLE,
    "unit at a site": authority.UNIT_TABLE,
    "power of a unit": power.TABLE,
    "setups for a lease that its site can't do": outage.TABLE,
    "delegation": delegation.TABLE,
    "return of a ticket": returns.TABLE,
}
SETTINGS: Final[Mapping[str, type]] = {
    "settings of every actor": actor_settings.ActorSettings,
    "settings of a guest": actor_settings.GuestSettings,
    "settings of a broker": actor_settings.BrokerSettings,
    "settings of preemptible leases": actor_settings.PreemptibleLimits,
    "settings of an authority": actor_settings.AuthoritySettings,
    "settings of the shell": ShellSettings,
    "settings of the transport": TransportSettings,
    "settings of every mapper of a broker": StandardSettings,
    "settings of a filter of sites": SiteFilterSettings,
    "settings of a weigher of sites": SiteWeigherSettings,
    "settings of a quota": QuotaSettings,
    "settings of fcfs": FcfsSettings,
    "settings of backfill": WaitingSettings,
    "settings of priority": PrioritySettings,
    "settings of preemption": PreemptionSettings,
    "settings of spot": SpotSettings,
    "settings of fair_share": FairShareSettings,
    "settings of load_following": LoadFollowingSettings,
    "settings of the filter": FlopFlipSettings,
    "settings of static": StaticSettings,
    "settings of a demand": DemandSettings,
    "settings of replay": ReplaySettings,
    "settings of users": UsersSettings,
    "settings of jobs": JobsSpec,
    "settings of energy": EnergySettings,
    "settings of yield": YieldSettings,
    "settings of filter_and_weigh": WeighingSettings,
    "settings of a weigher": HostWeigherSettings,
    "settings of preemption on hosts": HostPreemptionSettings,
    "settings of retry": RetrySettings,
    "settings of switching": EnergyPowerSettings,
    "settings of ewma": EwmaSettings,
}
TABLES_OF_THEIR_OWN: Final = frozenset({"priorities", "inventory", "delegations", "serves"})
"""Settings that a deploy file gives in tables of their own."""


# -- state diagrams ----------------------------------------------------------------------------------------------------


def diagrams() -> str:
    """All lease machines, one Mermaid diagram each."""
    return "\n\n".join(f"### {name.capitalize()}\n\n{diagram(table)}" for name, table in MACHINES.items())


def diagram(table: TransitionTable) -> str:
    """A state table as a Mermaid state diagram; events between the same two states share an arrow."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{_label(joint)}" as {_id(joint)}' for joint in table]
    lines.append(f"    [*] --> {_id(next(iter(table)))}")
    for joint, events in table.items():
        arrows: dict[Joint, list[str]] = {}
        for event, after in events.items():
            arrows.setdefault(after, []).append(event)
        lines += [f"    {_id(joint)} --> {_id(after)}: {', '.join(names)}" for after, names in arrows.items()]
        if not events:
            lines.append(f"    {_id(joint)} --> [*]")
    return "\n".join([*lines, "```"])


def _id(joint: Joint) -> str:
    return joint[0] if joint[1] == NONE else f"{joint[0]}__{joint[1]}"


def _label(joint: Joint) -> str:
    return joint[0] if joint[1] == NONE else f"{joint[0]}, {joint[1]}"


# -- settings ----------------------------------------------------------------------------------------------------------


def settings(cls: type) -> str:
    """The fields of an attrs class that it doesn't inherit: key, default, and what its docstring says."""
    texts = _field_texts(cls)
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for field in attrs.fields(cls):
        if field.name in texts and field.name not in TABLES_OF_THEIR_OWN:
            annotation, text = texts[field.name]
            lines.append(f"| `{field.name}` | {_default(field, annotation)} | {text} |")
    if len(lines) == 2:
        return "None of its own."
    return "\n".join(lines)


def _field_texts(cls: type) -> dict[str, tuple[str, str]]:
    """Annotation and docstring of each field, in the class's own source."""
    (definition,) = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, tuple[str, str]] = {}
    name = ""
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            texts[name] = (ast.unparse(node.annotation), "")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name in texts:
            text = " ".join(inspect.cleandoc(str(node.value.value)).split()).replace("``", "`").replace("|", "\\|")
            texts[name] = (texts[name][0], text)
    texts.pop("Settings", None)
    return texts


def _default(field: attrs.Attribute[Any], annotation: str) -> str:
    value = field.default
    if value is attrs.NOTHING:
        return "needed"
    if value is not None and isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        return "none" if value.factory in (dict, list, tuple) else "see below"
    if value in (None, "", ()) or isinstance(value, Mapping):
        return "none"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    if "Duration" in annotation:
        return f'`"{format_duration(value)}"`'
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


# -- the command line --------------------------------------------------------------------------------------------------


def command_line() -> str:
    """``docs/cli.md``."""
    parts = [
        "# The command line",
        "Written by `make docs` from what `--help` says.",
        "Exit status: 0 done, 1 not done (one line on standard error says why), 2 the command line makes no sense, "
        "3 open (`evidence verify` only), 70 a bug, 130 interrupted. With `--json` a command prints one JSON document "
        "on standard output (`lease watch`: one on each line); instants in it are Unix milliseconds.",
    ]
    for path, command in _commands(cli, ("leasekit",)):
        context = click.Context(command, info_name=" ".join(path), terminal_width=HELP_WIDTH)
        context.help_option_names = ["-h", "--help"]
        parts.append(f"{'#' * min(len(path) + 1, 3)} {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```")
    return "\n\n".join(parts) + "\n"


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        later = command.later if isinstance(command, LazyGroup) else ()
        own = (name for name in command.commands if name not in later)
        for name in dict.fromkeys((*own, *later, *command.list_commands(context))):
            member = command.get_command(context, name)
            assert member is not None, "it is listed"
            yield from _commands(member, (*path, name))


# -- the HTTP API ------------------------------------------------------------------------------------------------------


def route_table() -> str:
    """Every route of a gateway: what it does, what goes in and what comes out."""
    lines = ["| | path | in | what it does |", "| --- | --- | --- | --- |"]
    for route in sorted(routes(), key=lambda one: (one.path, one.method)):
        given = [] if route.params is None else [f"`?{name}`" for name in route.params.__struct_encode_fields__]
        given += [] if route.body is None else [f"`{name}`" for name in route.body.__struct_encode_fields__]
        words = " ".join(route.words.split()).replace("``", "`").replace("|", "\\|")
        lines.append(f"| {route.method} | `{route.path}` | {' '.join(given)} | {words} |")
    return "\n".join(lines)


# -- writing -----------------------------------------------------------------------------------------------------------

REGIONS: Final[Mapping[str, Callable[[], str]]] = {
    "diagrams": diagrams,
    "routes": route_table,
    **{name: (lambda cls=cls: settings(cls)) for name, cls in SETTINGS.items()},  # type: ignore[misc]
}


def filled(text: str) -> str:
    """A page with its generated regions made anew."""

    def fill(found: re.Match[str]) -> str:
        return f"<!-- generated: {found[1]} -->\n\n{REGIONS[found[1]]()}\n\n<!-- end -->"

    return REGION.sub(fill, text)


def pages() -> Iterator[tuple[Path, str]]:
    """Each page that has generated parts, and what it must hold."""
    yield DOCS / "cli.md", command_line()
    yield DOCS / "mapper-api.md", mapper_api.page()
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path.name not in ("cli.md", "mapper-api.md") and REGION.search(text):
            yield path, filled(text)


def main() -> int:
    """Write what has changed, or with ``--check`` only say so."""
    stale = [(path, text) for path, text in pages() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path, _ in stale:
            print(f"{path.name} is not what the code says: run make docs", file=sys.stderr)
        return 1 if stale else 0
    for path, text in stale:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
