"""A driver whose actions are a site's own executables.

Each action runs one command, or several in order. A command sees the properties in its environment, as
``LEASEKIT_`` and the key in capitals with ``_`` for everything but ASCII letters and digits, and all about the action
as a JSON object on its standard input: ``op``, ``unit``, ``lease``, ``type``, ``number``, ``properties``, ``guest``,
``results`` (what the commands before it returned) and, for an operator's action, ``operation`` and ``arguments``. What
a guest has said is ``guest`` there, and begins with ``LEASEKIT_GUEST_`` in the environment: none of the site's words
can be replaced by it. Where several keys make one variable, one with dots comes before others; ``LEASEKIT_OP``,
``_UNIT``, ``_LEASE``, ``_TYPE`` and ``_NUMBER`` are the action's always. What no environment can hold, a NUL or half a
character, is U+FFFD there.

It writes the unit's properties to standard output, as a JSON object of strings (or nothing), and what it has to say to
standard error. Exit status 0 is success; 65 says that the lease asks for what can't be had, 69 that the site lacks
something, 75 that it may pass, any other that the unit has failed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs

from leasekit.core.drivers import DriverError, ProbeResult, UnitContext
from leasekit.core.properties import Properties, check_properties
from leasekit.core.settings import DurationSetting, SettingsError
from leasekit.core.time import SECOND
from leasekit.drivers.commands import Abandoned, Command, Run, as_commands, mark_of, resolve_commands
from leasekit.drivers.files import SEARCH
from leasekit.drivers.names import check_member_id, one_line, unknown_operation

INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "LOGNAME", "TMPDIR", "TZ", "USER")
"""The variables that commands have of the daemon's environment, by default."""

_OPERATIONS: Final = ("setup", "teardown", "modify", "join", "leave", "probe")
_STATES: Final = ("up", "down", "unknown")
_NOT_IN_VARIABLES: Final = re.compile("[\x00\ud800-\udfff]")


def _as_operations(value: Any) -> dict[str, tuple[Command, ...]]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("expected a table of commands")
    return {name: as_commands(commands) for name, commands in value.items()}


def _commands() -> Any:
    return attrs.field(default=(), converter=as_commands)


@attrs.frozen(kw_only=True)
class ScriptSettings:
    """Commands by action, each a list of words or a list of such lists.

    Setup, teardown, join and leave without a command have nothing to do; modify and probe without one are refused
    and unknown. Relative names with a slash, and commands themselves, start in ``directory``. After ``grace`` what
    did not heed SIGTERM gets SIGKILL.
    """

    setup: tuple[Command, ...] = _commands()
    teardown: tuple[Command, ...] = _commands()
    modify: tuple[Command, ...] = _commands()
    join: tuple[Command, ...] = _commands()
    leave: tuple[Command, ...] = _commands()
    probe: tuple[Command, ...] = _commands()
    operations: Mapping[str, tuple[Command, ...]] = attrs.field(factory=dict, converter=_as_operations)
    directory: Path = Path()
    environment: Mapping[str, str] = attrs.Factory(dict)
    inherit: tuple[str, ...] = INHERITED
    grace: DurationSetting = 5 * SECOND


class ScriptDriver:
    """A :class:`~leasekit.core.drivers.Driver` that runs a site's commands.

    Raises ``SettingsError`` naming each program that is missing or can't be executed.
    """

    Settings: ClassVar[type] = ScriptSettings
    capabilities: frozenset[str] = frozenset()

    def __init__(self, settings: ScriptSettings) -> None:
        inherited = {name: os.environ[name] for name in settings.inherit if name in os.environ}
        self._environment = {"PATH": SEARCH, **inherited, **settings.environment}
        self._directory = settings.directory.absolute()
        self._grace = settings.grace
        self._abandoned = Abandoned(settings.grace)
        self.operations = frozenset(settings.operations)
        commands = {name: getattr(settings, name) for name in _OPERATIONS}
        commands |= {f"operations.{name}": several for name, several in settings.operations.items()}
        search = self._environment["PATH"]
        self._commands, errors = resolve_commands(commands, self._directory, search)
        if not self._directory.is_dir():
            errors.insert(0, f"directory: found {str(settings.directory)!r}, there is no directory {self._directory}")
        if errors:
            raise SettingsError(errors)

    async def setup(self, unit: UnitContext) -> Properties:
        """Runs the commands of ``setup``; returns what they wrote."""
        return await self._run("setup", unit)

    async def teardown(self, unit: UnitContext) -> None:
        """Runs the commands of ``teardown``."""
        await self._run("teardown", unit)

    async def modify(self, unit: UnitContext) -> Properties:
        """Runs the commands of ``modify``; returns what they wrote."""
        if not self._commands["modify"]:
            raise DriverError("script driver: the site has no command for modify", retry=False)
        return await self._run("modify", unit)

    async def join(self, unit: UnitContext) -> Properties:
        """Runs the commands of ``join``; returns what they wrote."""
        return await self._run("join", unit)

    async def leave(self, unit: UnitContext) -> None:
        """Runs the commands of ``leave``."""
        await self._run("leave", unit)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """Runs the commands of ``probe``, which write ``state`` (else it is up), ``detail``, and what they measured."""
        if not self._commands["probe"]:
            return ProbeResult(state="unknown", detail="the site has no command for probe")
        found = dict(await self._run("probe", unit))
        state, detail = found.pop("state", "up"), found.pop("detail", "")
        if state not in _STATES:
            raise DriverError(f"probe: found state {state[:40]!r}, expected one of: {', '.join(_STATES)}", retry=False)
        return ProbeResult(state=state, detail=one_line(detail), measured=_numbers(found))

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """Runs the commands of ``operations.OPERATION``; returns what they wrote."""
        if operation not in self.operations:
            raise unknown_operation("script", operation, self.operations)
        return await self._run(f"operations.{operation}", unit, {"operation": operation, "arguments": dict(arguments)})

    async def _run(self, name: str, unit: UnitContext, more: Mapping[str, Any] | None = None) -> Properties:
        # Commands make names of files and machines from it, so they never see one that leads anywhere.
        check_member_id(unit.unit)
        environment = self._environment | properties_as_environment(unit, name)
        mark = mark_of(unit.unit, unit.lease)
        await self._abandoned.end(mark)
        results: dict[str, str] = {}
        for command in self._commands[name]:
            what = f"{name}: {Path(command[0]).name}"
            given = {**_described(unit, name), "results": results, **(more or {})}
            run = Run(
                command=command,
                directory=self._directory,
                environment=environment,
                given=json.dumps(given).encode(),
                grace=self._grace,
                log=unit.log,
                what=what,
                mark=mark,
            )
            results |= read_properties(await run.output(), what)
        return results


def _op(name: str) -> str:
    return "operate" if name.startswith("operations.") else name


def _described(unit: UnitContext, name: str) -> dict[str, Any]:
    return {
        "op": _op(name),
        "unit": unit.unit,
        "lease": unit.lease,
        "type": unit.type,
        "number": unit.number,
        "properties": dict(unit.properties),
        "guest": dict(unit.configuration),
    }


def properties_as_environment(unit: UnitContext, op: str) -> dict[str, str]:
    """The variables that tell a command of its action, whatever is in the properties."""
    said = {f"LEASEKIT_GUEST_{_variable(key)}": unit.configuration[key] for key in sorted(unit.configuration)}
    keys = sorted(unit.properties, key=lambda key: (key.count("."), key))
    variables = said | {f"LEASEKIT_{_variable(key)}": unit.properties[key] for key in keys}
    variables |= {
        "LEASEKIT_OP": _op(op),
        "LEASEKIT_UNIT": unit.unit,
        "LEASEKIT_LEASE": unit.lease,
        "LEASEKIT_TYPE": unit.type,
        "LEASEKIT_NUMBER": str(unit.number),
    }
    return {name: _NOT_IN_VARIABLES.sub("\ufffd", text) for name, text in variables.items()}


def _variable(key: str) -> str:
    return "".join(c.upper() if c.isascii() and c.isalnum() else "_" for c in key)


def read_properties(output: bytes, what: str) -> dict[str, str]:
    """The properties that a command wrote. Raises ``DriverError``, not worth a retry, for anything else."""
    if not output.strip():
        return {}
    try:
        found = json.loads(output)
    except (ValueError, RecursionError) as error:
        begin = one_line(output[:200].decode("utf-8", "replace"), 60)
        text = f"{what} wrote something else than JSON, which begins with {begin!r} ({one_line(str(error))})"
        raise DriverError(text, retry=False) from error
    try:
        return check_properties(found, f"{what} wrote properties")
    except ValueError as error:
        raise DriverError(one_line(str(error)), retry=False) from error


def _numbers(found: Mapping[str, str]) -> dict[str, float]:
    numbers = {}
    for key, text in found.items():
        try:
            numbers[key] = float(text)
        except ValueError as error:
            text = f"probe: found {key} = {text[:40]!r}, expected a number for what was measured"
            raise DriverError(text, retry=False) from error
    return numbers
