"""How a command is declared: by its function.

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
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import click

from leasekit.cli.output import Told, report
from leasekit.cli.places import DEFAULT_FILE, FILE_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE, DeployPlace
from leasekit.cli.times import PAIR, SPAN, WHEN, Number, zone_option
from leasekit.core.errors import LeasekitError

if TYPE_CHECKING:
    from leasekit.emulation.compare.pool import Saving

Shown: TypeAlias = tuple[Any, Told] | tuple[Any, Told, int | LeasekitError | None]
"""What a command has found or done, and what a person is told of it; and the exit status, or what went wrong all the
same, if that is not nothing."""

_PATH: Final = click.Path(path_type=Path)
_TYPES: Final[Mapping[str, Any]] = {
    "str": str, "int": int, "float": float, "Instant": WHEN, "Duration": SPAN, "Path": _PATH,
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
