"""Settings of plug-ins: attrs classes filled from the tables of a deploy file, with all that is wrong said at once.

A driver or mapper writes its settings down as an attrs class::

    @attrs.frozen(kw_only=True)
    class FollowSettings:
        window: int = attrs.field(default=30, validator=attrs.validators.ge(1))
        patience: DurationSetting = 90 * SECOND

and gets an instance with ``structure(FollowSettings, table, "actors.web.mapper")``. Nothing is converted silently: a
number in quotes is text, a whole number is accepted where a fraction may stand, and that is all. Types may be
``bool``, ``int``, ``float``, ``str``, ``Path``, :data:`DurationSetting`, ``Literal``, enums, ``X | None``, lists,
tuples, sets, mappings, other attrs classes, and unions of attrs classes that each name themselves in a class
variable ``kind`` (the table's key ``kind`` then picks one). A class variable ``shorthand`` names the field that a
plain value in place of the table fills.
"""

from __future__ import annotations

import difflib
import enum
import math
import re
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import lru_cache
from inspect import get_annotations
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs
import cattrs

from leasekit.core.errors import LeasekitError
from leasekit.core.time import INSTANT_MAX, Duration, format_duration, parse_duration

T = TypeVar("T")

_DURATION: Final = "leasekit duration"
DurationSetting: TypeAlias = Annotated[Duration, _DURATION]
"""A duration in milliseconds; in a file, text such as ``90s`` or ``1h30m``, or a whole number of milliseconds."""

_SHOWN_MAX = 60
_RESOLVED: Final = "resolved"


def resolved(default: Any) -> Any:
    """A field of a settings class that no table can give: who reads the table finds it, and adds it with
    ``attrs.evolve``.
    """
    return attrs.field(default=default, metadata={_RESOLVED: True})


def setting_fields(cls: Any) -> list[attrs.Attribute[Any]]:
    """The fields of a settings class that a table can give, with their types."""
    attrs.resolve_types(cls, include_extras=True)
    return [field for field in attrs.fields(cls) if field.init and _RESOLVED not in field.metadata]


def written_types(cls: type) -> dict[str, Any]:
    """What the source says of the types of a class's fields, and of those of the classes above."""
    return {name: text for each in reversed(cls.__mro__) for name, text in get_annotations(each).items()}


class SettingsError(LeasekitError):
    """Settings that can't be used. ``errors`` holds one line for each fault: ``where.key: found X, expected Y``."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = list(errors)
        super().__init__("\n".join(self.errors))

    def within(self, where: str) -> SettingsError:
        """The same errors, one level further out: each line's key comes to stand under ``where``."""
        return SettingsError(f"{where}.{error}" for error in self.errors)


def structure(cls: type[T], mapping: Mapping[str, Any], where: str, *, base: Path | None = None) -> T:
    """An instance of the attrs class ``cls`` from a table of a deploy file.

    ``where`` is what errors call the table (``site.toml: types.vm.driver``; empty: they begin with the key); relative
    paths, defaults too, are taken from the folder ``base``. Raises :class:`SettingsError` with every fault that can be
    found: unknown keys, missing ones, wrong types, values that a validator refuses.
    """
    try:
        made: T = _converter(base).structure(mapping, cls)
    except _FaultsError as error:
        lines = [f"{where}{path}: {text}" for path, text in error.faults]
        raise SettingsError(lines if where else [line.lstrip(".").removeprefix(": ") for line in lines]) from None
    return made


def expect_one_of(found: str, allowed: Iterable[str]) -> str:
    """The words for a name that is not one of the ``allowed``, with the nearest of them where one is near."""
    names = sorted(set(allowed))
    near = difflib.get_close_matches(found, names, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"expected one of: {', '.join(names)}{hint}" if names else "none is expected here"


def repeated_ids(where: str, ids: Iterable[str]) -> Iterator[str]:
    """What is wrong where an id occurs more than once."""
    for name, times in Counter(ids).items():
        if times > 1:
            yield f"{where}: found the id {name!r:.80} {times} times, expected it once"


def expecting(words: str, is_right: re.Pattern[str] | Callable[[Any], object]) -> Callable[[Any, Any, Any], None]:
    """A validator of values that are right, or of text that matches a pattern; others are told what is expected."""
    test = is_right.fullmatch if isinstance(is_right, re.Pattern) else is_right

    def check(_: object, __: object, value: Any) -> None:
        if not test(value):
            raise ValueError(f"expected {words}")

    return check


def is_name(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    """A validator: the text is not empty."""
    if not value:
        raise ValueError(f"'{attribute.name}' must be a name: {value}")


class _FaultsError(Exception):
    """Carries (path, text) pairs up through the nesting; each level puts its own name before the path."""

    def __init__(self, faults: Iterable[tuple[str, str]]) -> None:
        super().__init__()
        self.faults = list(faults)

    def within(self, path: str) -> list[tuple[str, str]]:
        return [(path + inner, text) for inner, text in self.faults]


class _UnknownKey(str):
    """The text of a fault: a table has no such key. The tables around it may have one: then that is said."""

    key: str
    known: tuple[str, ...]

    def __new__(cls, key: str, known: Iterable[str], of: str = "an unknown key") -> _UnknownKey:
        made = super().__new__(cls, f"found {of}, {expect_one_of(key, known)}")
        made.key, made.known = key, tuple(known)
        return made

    def seen_from(self, around: Iterable[str]) -> _UnknownKey:
        """The text, for whom the table around it has the keys ``around``."""
        if self.key not in around:
            return self
        return _UnknownKey("", self.known, f"{self.key!r}, a key of a table around this one")


@lru_cache(maxsize=32)
def _converter(base: Path | None) -> cattrs.Converter:
    """The cattrs converter for one base folder. What was registered last is asked first."""
    converter = cattrs.Converter(detailed_validation=False)
    structurer = _Structurer(converter, base)
    hooks: list[tuple[Callable[[Any], bool], Callable[[Any, Any], Any]]] = [
        (lambda cls: cls in (Any, object), lambda value, _: value),
        (lambda cls: isinstance(cls, type) and issubclass(cls, enum.Enum), structurer.member),
        (lambda cls: get_origin(cls) is Literal, structurer.literal),
        (_is_sequence, structurer.sequence),
        (_is_mapping, structurer.mapping),
        (lambda cls: isinstance(cls, type) and attrs.has(cls), structurer.table),
        (lambda cls: get_origin(cls) in (Union, types.UnionType), structurer.union),
        (lambda cls: get_origin(cls) is Annotated, structurer.annotated),
    ]
    for predicate, hook in hooks:
        converter.register_structure_hook_func(predicate, hook)
    # Of these types cattrs has hooks of its own, which go before predicates.
    for plain in _PLAIN:
        converter.register_structure_hook(plain, structurer.plain)
    converter.register_structure_hook(Path, structurer.path)
    return converter


_PLAIN: Final = (bool, int, float, str)
_SEQUENCES: Final = (list, tuple, set, frozenset, Sequence, AbstractSet)


def _is_sequence(cls: Any) -> bool:
    return get_origin(cls) in _SEQUENCES or cls in (list, tuple)


def _is_mapping(cls: Any) -> bool:
    return get_origin(cls) in (dict, Mapping) or cls is dict


class _Structurer:
    """One hook per kind of type. All raise :class:`_FaultsError`."""

    def __init__(self, converter: cattrs.Converter, base: Path | None) -> None:
        self._structure = converter.structure
        self._base = base

    def plain(self, value: Any, cls: type) -> Any:
        if cls is float and type(value) is int:
            return float(value)
        if type(value) is not cls or (isinstance(value, float) and not math.isfinite(value)):
            raise _refused(value, _describe(cls))
        return value

    def path(self, value: Any, cls: type) -> Path:
        if isinstance(value, Path):
            return value
        if not isinstance(value, str) or not value or "\0" in value:
            raise _refused(value, _describe(cls))
        return Path(value) if self._base is None else self._base / value

    def annotated(self, value: Any, cls: Any) -> Any:
        inner, *marks = get_args(cls)
        if _DURATION not in marks:
            return self._structure(value, inner)
        try:
            duration = parse_duration(value) if isinstance(value, str) else value
        except (ValueError, OverflowError):
            raise _refused(value, _describe(cls)) from None
        if type(duration) is not int or not 0 <= duration <= INSTANT_MAX:
            raise _refused(value, _describe(cls))
        return duration

    def member(self, value: Any, cls: type[enum.Enum]) -> enum.Enum:
        if isinstance(value, cls):
            return value
        for member in cls:
            if type(value) is type(member.value) and value == member.value:
                return member
        raise _refused(value, _describe(cls))

    def literal(self, value: Any, cls: Any) -> Any:
        for allowed in get_args(cls):
            if type(value) is type(allowed) and value == allowed:
                return value
        raise _refused(value, _describe(cls))

    def sequence(self, value: Any, cls: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _refused(value, _describe(cls))
        kind, arguments = get_origin(cls) or cls, get_args(cls)
        if kind is tuple and arguments and arguments[-1] is not Ellipsis:
            if len(value) != len(arguments):
                raise _fault(f"found {len(value)} items, expected {len(arguments)}")
            inner = list(arguments)
        else:
            inner = [arguments[0] if arguments else Any] * len(value)
        items, faults = [], []
        for index, (item, item_type) in enumerate(zip(value, inner, strict=True)):
            try:
                items.append(self._structure(item, item_type))
            except _FaultsError as error:
                faults += error.within(f"[{index}]")
        if faults:
            raise _FaultsError(faults)
        if kind in (list, set):
            return kind(items)
        return frozenset(items) if kind in (frozenset, AbstractSet) else tuple(items)

    def mapping(self, value: Any, cls: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _refused(value, _describe(cls))
        key_type, item_type = get_args(cls) or (str, Any)
        made, faults = {}, []
        for key, item in value.items():
            try:
                name = self._structure(key, key_type)
            except _FaultsError as error:
                faults += [(f".{key}", f"as a key, {text}") for _, text in error.faults]
                continue
            try:
                made[name] = self._structure(item, item_type)
            except _FaultsError as error:
                faults += error.within(f".{key}")
        if faults:
            raise _FaultsError(faults)
        return made

    def union(self, value: Any, cls: Any) -> Any:
        members = [member for member in get_args(cls) if member is not type(None)]
        if value is None and len(members) < len(get_args(cls)):
            return None
        if all(hasattr(member, "kind") and attrs.has(member) for member in members):
            return self._tagged(value, members)
        faults: list[tuple[str, str]] = []
        for member in members:
            try:
                return self._structure(value, member)
            except _FaultsError as error:
                faults = faults or [fault for fault in error.faults if fault[0]]
                if len(members) == 1:
                    raise
        if faults:
            raise _FaultsError(faults)
        raise _refused(value, _describe(cls))

    def _tagged(self, value: Any, members: Sequence[Any]) -> Any:
        if not isinstance(value, Mapping):
            for member in members:
                if hasattr(member, "shorthand"):
                    try:
                        return self.table(value, member)
                    except _FaultsError:
                        continue
            raise _refused(value, _describe_tagged(members))
        kinds = {member.kind: member for member in members}
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            words = expect_one_of(kind if isinstance(kind, str) else "", kinds)
            raise _FaultsError([(".kind", f"found {_show(kind)}, {words}")])
        return self.table({key: item for key, item in value.items() if key != "kind"}, kinds[kind])

    def table(self, value: Any, cls: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            shorthand = getattr(cls, "shorthand", None)
            if shorthand is None:
                raise _refused(value, _describe(cls))
            try:
                return self.table({shorthand: value}, cls)
            except _FaultsError as error:
                raise _FaultsError((path.removeprefix(f".{shorthand}"), text) for path, text in error.faults) from None
        fields = {field.alias or field.name: field for field in setting_fields(cls)}
        faults: list[tuple[str, str]] = [
            (f".{key}", _UnknownKey(str(key), fields)) for key in value if key not in fields
        ]
        arguments: dict[str, Any] = {}
        for name, field in fields.items():
            if name in value:
                try:
                    arguments[name] = self._field(value[name], field)
                except _FaultsError as error:
                    faults += [
                        (path, text.seen_from(fields) if isinstance(text, _UnknownKey) else text)
                        for path, text in error.within(f".{name}")
                    ]
            elif field.default is attrs.NOTHING:
                faults.append((f".{name}", f"found nothing, expected {_describe(field.type)}"))
            elif isinstance(field.default, Path) and self._base is not None:
                arguments[name] = self._base / field.default
        if faults:
            raise _FaultsError(faults)
        try:
            return cls(**arguments)
        except (ValueError, TypeError) as error:
            # What a check over several fields says.
            raise _FaultsError([("", str(error))]) from None

    def _field(self, value: Any, field: attrs.Attribute[Any]) -> Any:
        """The value for a field, checked by its own validator, so that one fault does not hide another's."""
        if field.converter is None:
            made = self._structure(value, field.type or Any)
        else:
            made = _checked(value, field.name, lambda: _convert(field.converter, value))
        if field.validator is not None:
            _checked(value, field.name, lambda: _validate(field, made), "a duration" in _describe(field.type))
        # A converter runs once more in the class itself, on what it was given here.
        return made if field.converter is None else value


def _checked(value: Any, name: str, check: Callable[[], T], is_duration: bool = False) -> T:
    try:
        return check()
    except (ValueError, TypeError) as error:
        said = _expectation(name, str(error.args[0]) if error.args else type(error).__name__)
        if is_duration and isinstance(value, str):
            said = re.sub(r"(?<=[<>]= )\d+$", lambda found: format_duration(int(found[0])), said)
        raise _fault(f"found {_show(value)}, {said}") from None


def _convert(converter: Any, value: Any) -> Any:
    return getattr(converter, "converter", converter)(value)


def _validate(field: attrs.Attribute[Any], value: Any) -> None:
    # A validator that compares fields needs the instance and fails here; it runs when the instance is made.
    if field.validator is not None:
        with suppress(AttributeError):
            field.validator(None, field, value)


def _refused(value: Any, expected: str) -> _FaultsError:
    return _fault(f"found {_show(value)}, expected {expected}")


def _fault(text: str) -> _FaultsError:
    return _FaultsError([("", text)])


def _show(value: Any) -> str:
    """A value as its file has it, cut where it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple | AbstractSet):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def _expectation(name: str, text: str) -> str:
    """What a validator says, in the words of all other errors where it is one of those of attrs."""
    found = re.fullmatch(rf"(Length of )?'{name}' must be (.+?)(?:: [^:]*| \(got .*\))", text, re.DOTALL)
    return f"expected {'a length ' if found[1] else ''}{found[2]}" if found else f"but {text}"


_WORDS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    Path: "a path",
    Any: "a value",
}


def _describe(cls: Any) -> str:
    """What a type wants to see, in words."""
    if cls in _WORDS:
        return _WORDS[cls]
    origin, arguments = get_origin(cls), get_args(cls)
    if origin is Annotated:
        if _DURATION in arguments[1:]:
            return "a duration such as 90s or 1h30m, or a whole number of milliseconds"
        return _describe(arguments[0])
    if origin is Literal:
        return f"one of: {', '.join(_show(value) for value in arguments)}"
    if isinstance(cls, type) and issubclass(cls, enum.Enum):
        return f"one of: {', '.join(_show(member.value) for member in cls)}"
    if _is_sequence(cls):
        inner = [argument for argument in arguments if argument is not Ellipsis]
        return f"a list of {_many(_describe(inner[0]))}" if len(set(inner)) == 1 else "a list"
    if origin in (Union, types.UnionType):
        members = [member for member in arguments if member is not type(None)]
        if all(hasattr(member, "kind") for member in members):
            return _describe_tagged(members)
        return " or ".join(_describe(member) for member in members)
    return "a table"


def _many(what: str) -> str:
    """Several of what :func:`_describe` names."""
    return f"{what.removeprefix('a ')}s" if re.fullmatch(r"a [a-z ]+", what) else what


def _describe_tagged(members: Sequence[Any]) -> str:
    short = [(member, member.shorthand) for member in members if hasattr(member, "shorthand")]
    bare = [_describe(get_type_hints(member, include_extras=True)[name]) for member, name in short]
    return ", or ".join([*bare, f"a table with kind = {' or '.join(_show(member.kind) for member in members)}"])
