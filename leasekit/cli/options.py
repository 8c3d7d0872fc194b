"""How a command is declared: by its function; and how times, durations, numbers and ``key=value`` pairs are written on
the command line.

A parameter's default says what the command line calls it and what its help is, its annotation of which type it is::

    @command(site)
    def disable(place: DeployPlace, unit: str = argument(), reason: str = option("Why.")) -> Shown:

``type_: str`` is ``--type``, text that is empty unless it is given; ``bool`` is a flag; ``X | None`` need not be given;
``tuple[X, ...]`` may be given several times. ``Instant``, ``Duration``, ``Path`` and ``tuple[str, str]``
(``KEY=VALUE``) are read as everywhere on the command line. ``place`` and ``as_json`` need no default: they are the
daemon that is meant, and ``--json``.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from datetime import time as time_of_day
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import click

from leasekit.cli.output import Told, report
from leasekit.cli.places import DEFAULT_FILE, FILE_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE, DeployPlace
from leasekit.config.instants import on_clock, parse_clock, parse_instant, shown, weekday, zone_named
from leasekit.core.errors import LeasekitError
from leasekit.core.time import INSTANT_MAX, SECOND, Duration, Instant, format_duration, parse_duration

if TYPE_CHECKING:
    from leasekit.emulation.compare.pool import Saving


T = TypeVar("T")

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}")
COUNT_MAX: Final = 2**53 - 1
"""The greatest whole number that every part of leasekit can hold."""


def now() -> Instant:
    """The time of day in Unix milliseconds."""
    return int(time.time() * SECOND)


class Parsed(click.ParamType[T]):
    """What ``parse`` makes of a text; it raises ``ValueError`` that says what is allowed."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            made: T = value
            return made
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _span(text: str) -> Duration:
    span = parse_duration(text)
    if span <= 0:
        raise ValueError(f"found {text!r}, expected a duration above 0")
    return span


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise ValueError(f"found {text!r}, expected KEY=VALUE")
    return key, value


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"found {text:.40}, expected a whole number")
    return int(text)


class Count(click.IntRange):
    """A whole number within bounds; what is none is told with what is allowed."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        least, most = self.min or 0, self.max or COUNT_MAX
        number = int(value) if _WHOLE.fullmatch(str(value)) else None
        if number is None or not least <= number <= most:
            to = f" to {most}" if self.max or (number or 0) > most else " on"
            allowed = f"a whole number from {least}{to}"
            self.fail(f"found {value!s:.40}, expected {allowed}{_where_files_go(value, ctx)}", param, ctx)
        return number


class Number(click.FloatRange):
    """A finite number within bounds; what is none is told with what is allowed."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        least, most = -math.inf if self.min is None else self.min, math.inf if self.max is None else self.max
        above = number > least if self.min_open else number >= least
        if not (above and number <= most and math.isfinite(number)):
            low = "" if self.min is None else f" above {least:g}" if self.min_open else f" of at least {least:g}"
            high = "" if self.max is None else f"{',' if low else ''} at most {most:g}"
            self.fail(f"found {value!s:.40}, expected a number{low}{high}{_where_files_go(value, ctx)}", param, ctx)
        return number


def _where_files_go(value: Any, ctx: click.Context | None) -> str:
    """The options of the command that take a file, for who has given one where a number is meant."""
    if ctx is None or not re.search(r"[/.][A-Za-z]", str(value)):
        return ""
    names = [f"{param.opts[0]} {param.metavar}" for param in ctx.command.params if param.metavar == "FILE"]
    return f"; a file is given by {' or '.join(names)}" if names else ""


WHEN: Final = Parsed("time", lambda text: parse_when(text, now(), zone_of(click.get_current_context(silent=True))))
SPAN: Final = Parsed("duration", _span)
PAIR: Final = Parsed("key=value", _pair)
WHOLE: Final = Parsed("integer", _whole)


_ZONE_KEY: Final = "leasekit.zone"
zone_option = click.option(
    "--zone", type=Parsed("zone", zone_named), is_eager=True, expose_value=False, metavar="NAME",
    callback=lambda ctx, _, zone: ctx.meta.__setitem__(_ZONE_KEY, zone or UTC),
    help="The time zone of times that name none, such as Europe/Berlin [UTC].",
)  # fmt: skip


def zone_of(ctx: click.Context | None) -> tzinfo:
    """The time zone in which a command line says its times."""
    zone: tzinfo = UTC if ctx is None else ctx.meta.get(_ZONE_KEY, UTC)
    return zone


def _parse_day(text: str, now: Instant, zone: tzinfo) -> Instant | None:
    """``today``, ``tomorrow``, a day of the week, each perhaps with a time of day, or that alone; None for all else. A
    day of the week, or a time of day, is the next that is to come.
    """
    day, _, clock = text.lower().partition(" ")
    if not clock and ":" in day:
        day, clock = "", day
    today = datetime.fromtimestamp(now // SECOND, zone).date()
    try:
        ahead = {"": 0, "today": 0, "tomorrow": 1}.get(day)
        if ahead is None:
            ahead, every = (weekday(day) - today.weekday()) % 7, 7
        else:
            every = 0 if day else 1
        at = parse_clock(clock.strip()) if clock else time_of_day()
    except ValueError:
        return None
    found = datetime.combine(today + timedelta(ahead), at, zone)
    return on_clock(found) if on_clock(found) > now or not every else on_clock(found + timedelta(every))


def parse_when(text: str, now: Instant, zone: tzinfo = UTC) -> Instant:
    """Unix milliseconds from ``now``, ``+2h``, ``-1d``, ``tomorrow``, ``monday 9:00``, ``9:00``, ISO 8601, or
    milliseconds. What names no zone is in ``zone``.

    Raises ``ValueError`` that says what is allowed.
    """
    text = text.strip()
    try:
        if text == "now":
            instant = now
        elif text[:1] in ("+", "-"):
            span = parse_duration(text[1:])
            instant = now + span if text[0] == "+" else now - span
        elif text.isdecimal() and len(text) > 8:
            instant = int(text)
        else:
            day = _parse_day(text, now, zone) if text else None
            instant = parse_instant(text, zone) if day is None else day
    except (ValueError, OverflowError):
        instant = -1
    if not 0 <= instant <= INSTANT_MAX:
        raise ValueError(
            f"found {text!r}, expected now, +2h, tomorrow, monday 9:00, 9:00, or ISO 8601 such as 2027-03-01T12:00Z"
        )
    return instant


def show_when(instant: Instant, now: Instant) -> str:
    """An instant as a person reads it, and how far off it is."""
    off = instant - now
    span = format_duration(round_span(abs(off)))
    return f"{to_second(instant)} ({f'in {span}' if off >= 0 else f'{span} ago'})"


def to_second(instant: Instant) -> str:
    """An instant without its milliseconds, for tables where they are noise."""
    return shown(instant // SECOND * SECOND)


def at(key: str) -> Callable[[Mapping[str, Any]], str]:
    """What makes a table's cell of the instant that a thing has at ``key``; nothing of one before all time."""
    return lambda thing: to_second(thing[key]) if thing[key] >= 0 else ""


def term_columns(
    of: Callable[[Any], Sequence[int] | None] = itemgetter("term"),
) -> tuple[tuple[str, Callable[[Any], str]], tuple[str, Callable[[Any], str]]]:
    """The columns of a table that show the term which ``of`` finds in a thing; nothing where there is none."""

    def cell(index: int) -> Callable[[Any], str]:
        return lambda thing: to_second(term[index]) if (term := of(thing)) else ""

    return ("from", cell(0)), ("until", cell(1))


TERM: Final = term_columns()


def round_span(span: Duration) -> Duration:
    """A duration without what nobody reads: to seconds below an hour, minutes below two days, else hours."""
    grain = SECOND if span < 3600 * SECOND else 60 * SECOND if span < 2 * 86400 * SECOND else 3600 * SECOND
    return span // grain * grain


Shown: TypeAlias = tuple[Any, Told] | tuple[Any, Told, int | LeasekitError | None]
"""What a command has found or done, and what a person is told of it; and the exit status, or what went wrong all the
same, if that is not nothing."""

_PATH: Final = click.Path(path_type=Path)
_TYPES: Final[Mapping[str, Any]] = {
    "str": str, "int": WHOLE, "float": Number(), "Instant": WHEN, "Duration": SPAN, "Path": _PATH,
    "tuple[str, str]": PAIR,
}  # fmt: skip
_SEVERAL: Final = re.compile(r"(?:tuple\[(.+), \.\.\.|Sequence\[(.+))\]")


FILE: Final = click.Path(path_type=Path, dir_okay=False)
FILE_OR_INPUT: Final = click.Path(path_type=Path, allow_dash=True)
"""A file, or ``-`` for standard input."""
FILE_THERE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)


class Declared(NamedTuple):
    """One parameter of the command line."""

    kind: type[click.Parameter]
    names: tuple[str, ...]
    more: Mapping[str, Any]

    def parameter(self, name: str, annotation: str) -> click.Parameter:
        """The parameter that gives a function its ``name``."""
        inner, is_option = annotation.removesuffix(" | None"), self.kind is click.Option
        several = _SEVERAL.fullmatch(inner)
        more: dict[str, Any] = {}
        if several:
            inner = several[1] or several[2]
            more = {"multiple": True} if is_option else {"nargs": -1}
        if inner == "bool":
            more["is_flag"] = True
            if annotation == "bool | None":
                more["default"] = None  # click takes a flag that is not given for false
        else:
            more["type"] = _TYPES.get(inner)
        if is_option and annotation == "str":
            more["default"] = ""
        if not is_option and annotation.endswith(" | None"):
            more["required"] = False
        names = self.names or ((f"--{name.strip('_').replace('_', '-')}",) if is_option else ())
        more |= self.more
        if "shown" in more:
            more |= {"default": more.pop("shown"), "show_default": True}
        if isinstance(more.get("type"), tuple):
            more["type"] = click.Choice(more["type"])
        if more.get("required"):
            more.pop("default", None)
        return self.kind([*names, name], **more)


class Gathered(NamedTuple):
    """Several parameters of the command line that ``make`` one of a function."""

    make: Callable[..., Any]
    parts: Mapping[str, tuple[str, Declared]]
    """Each with its annotation."""


def option(help_: str, *names: str, **more: Any) -> Any:
    """A parameter that is an option, called as the parameter unless there are ``names``. ``more`` is click's; a
    ``type`` may be a tuple of words, and a default that help shows is ``shown``.
    """
    return Declared(click.Option, names, {"help": help_, **more})


def argument(metavar: str | None = None, **more: Any) -> Any:
    """A parameter that is an argument."""
    return Declared(click.Argument, (), {"metavar": metavar, **more})


def gathered(make: Callable[..., Any], **parts: Any) -> Any:
    """A parameter that ``make`` finds from several of the command line: those that its signature declares, or these."""
    signature = {} if parts else inspect.signature(make).parameters
    return Gathered(
        make,
        {key: ("", one) for key, one in parts.items()}
        | {key: (one.annotation, one.default) for key, one in signature.items()},
    )


def _place(words: tuple[str, ...] = (), **named: Any) -> DeployPlace:
    """A place, of which ``words`` may say the deploy file, and then actors."""
    if words and named["file"] is None and ("/" in words[0] or words[0].endswith(".toml")):
        named["file"], words = Path(words[0]), words[1:]
    return DeployPlace(**named, actors=words)


_FILES: Final = {
    "file": option(f"Deploy file [{FILE_VARIABLE}, else {DEFAULT_FILE}].", "--file", "-f", type=_PATH, metavar="FILE"),
    "state": option("State folder, where it is not the file's.", type=_PATH, metavar="DIR"),
}
_ACTOR: Final = option("Actor, where the file has several.", "--actor", "-a", default="", metavar="NAME")
_URL: Final = option(f"Through this gateway [{URL_VARIABLE}; token: {TOKEN_VARIABLE}].", metavar="URL", default="")
_CONTROL: Final = option("Control socket, without a deploy file.", type=_PATH, metavar="PATH")

DAEMON: Any = gathered(_place, **_FILES, actor=_ACTOR, control=_CONTROL, url=_URL)
"""The place of commands that talk to one daemon."""
DAEMONS: Any = gathered(_place, words=argument("[ACTOR]...", nargs=-1), **_FILES, control=_CONTROL, url=_URL)
"""Of those that talk to all daemons of a deploy file, or to some."""
FILES: Any = gathered(_place, **_FILES)
"""Of those that need a deploy file."""
FILE_AND_ACTORS: Any = gathered(_place, words=argument("[FILE] [ACTOR]...", nargs=-1), **_FILES)
"""Of those that are about actors of the file, which may come before them without ``--file``: a word with a slash, or
that ends in ``.toml``."""
_MORE: Final = Number(min=0, min_open=True)


def _saving(**given: float) -> Saving:
    from leasekit.emulation.compare.pool import Saving

    return Saving(**given)


SAVING: Any = gathered(
    _saving,
    memory=option("The memory of a unit: what suspending it saves.", type=_MORE, shown=1024.0, metavar="MB"),
    rate=option("How fast a suspended unit's memory is written and read.", type=_MORE, shown=32.0, metavar="MB/S"),
)
"""Suspending and resuming take the memory over the rate."""
JSON: Any = option("Print one JSON document.", "--json")
_USUAL: Final = {"place": DAEMON, "as_json": JSON}


def command(
    group: click.Group | None, *, name: str | None = None, zoned: bool = False, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command of a function, in ``group`` if there is one. Its help is what the function's docstring says, with
    the name of the group in the place of ``GROUP``.

    What a function returns is its exit status, or (:data:`Shown`) what is printed as JSON or told to a person, as
    :func:`~.output.report` does. With ``zoned`` it has ``--zone``.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        declared = dict(_declared(function))
        shows = "as_json" in declared and "as_json" not in inspect.signature(function).parameters

        @functools.wraps(function)
        def run(**given: Any) -> Any:
            for key, one in declared.items():
                if isinstance(one[1], Gathered):
                    given[key] = one[1].make(**{part: given.pop(part) for part in one[1].parts})
            if not shows:
                return function(**given)
            as_json = given.pop("as_json")
            if as_json and given.get("as_csv"):
                raise click.UsageError("--csv goes without --json")
            value, told, *ended = function(**given)
            report(value, told, as_json=as_json)
            if ended and isinstance(ended[0], LeasekitError):
                raise ended[0]
            return ended[0] if ended else None

        params = [one for key, (kind, made) in declared.items() for one in _parameters(key, kind, made)]
        if zoned:
            zone_option(run)
            params += vars(run).pop("__click_params__")
        make = click.command if group is None else group.command
        words = (inspect.getdoc(function) or "").replace("GROUP", str(group and group.name))
        help_, _, examples = words.partition("\n\nExample:\n")
        return make(name, params=params, help=help_, epilog=f"\b\nExample:\n{examples}", **settings)(run)

    return decorate


def _declared(function: Callable[..., Any]) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Its parameters with their annotations: those with a default first."""
    signature = inspect.signature(function)
    usual = {}
    for key, one in signature.parameters.items():
        if one.default is inspect.Parameter.empty:
            usual[key] = (one.annotation, _USUAL[key])
        else:
            yield key, (one.annotation, one.default)
    if signature.return_annotation == "Shown":
        usual["as_json"] = ("bool", JSON)
    yield from usual.items()


def _parameters(name: str, annotation: str, made: Declared | Gathered) -> list[click.Parameter]:
    if isinstance(made, Declared):
        return [made.parameter(name, annotation)]
    return [one.parameter(part, annotation) for part, (annotation, one) in made.parts.items()]
