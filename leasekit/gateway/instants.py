"""Instants and lengths of time of actors, which are milliseconds, as HTTP has them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

from msgspec import UNSET, Struct

from leasekit.config.instants import CALENDAR_END, dated, parse_instant
from leasekit.core.errors import CommandError
from leasekit.core.reasons import Reason
from leasekit.core.settings import written_types
from leasekit.core.time import Duration, Instant, parse_duration

_WORDS: Final = ("reason", "words", "detail")
"""Fields with words for people, in which instants are marked."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Converter = Callable[[Any], Any]
S = TypeVar("S", bound=Struct)
T = TypeVar("T")


def moment(instant: Instant) -> datetime:
    """An instant of an actor. What no calendar has is its end."""
    return _EPOCH + timedelta(milliseconds=min(max(instant, 0), CALENDAR_END))


def instant(at: datetime | None) -> Instant | None:
    """The other way round."""
    return None if at is None else parse_instant(at)


def span(text: str | None, field: str) -> Duration | None:
    """A length of time that somebody gave. Raises ``CommandError`` that names the ``field``."""
    if text is None:
        return None
    try:
        length = parse_duration(text)
    except (ValueError, OverflowError) as error:
        raise CommandError(f"{field}: {error}") from None
    return length


def iso(at: Instant) -> str | None:
    """An instant as JSON has it, None for one that there is none of."""
    return None if at < 0 else moment(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def values_of(because: dict[str, Any] | None) -> dict[str, Any]:
    """A reason for programs, in which instants are text."""
    found = dict(because or {})
    for name in ("at", "until", "now"):
        if name in found:
            found[name] = iso(found[name])
    if "detail" in found:
        found["detail"] = dated(found["detail"])
    if "causes" in found:
        found["causes"] = [values_of(cause) for cause in found["causes"]]
    return found


def told_reason(words: str, because: dict[str, Any] | None) -> dict[str, Any]:
    """A reason for people, its code and its values."""
    values = values_of(because)
    return {"reason": dated(words), "code": values.pop("code", ""), "values": values}


def told(shape: type[S], thing: Any, **others: Any) -> S:
    """A record, or an answer of an actor, as HTTP has it: what it has of the fields of ``shape``, its instants as
    moments; and ``others``.
    """
    read = thing.get if isinstance(thing, dict) else partial(getattr, thing)
    has = {name: read(name, UNSET) for name in shape.__struct_fields__ if name not in others}
    for name in _moments(shape) & has.keys():
        has[name] = moment(has[name]) if type(has[name]) is int else has[name]
    return shape(**{name: value for name, value in has.items() if value is not UNSET}, **others)


@cache
def _moments(shape: type[Struct]) -> set[str]:
    return {name for name, type_ in get_type_hints(shape).items() if datetime in (type_, *get_args(type_))}


def _term(value: Any) -> Any:
    return None if value is None else [iso(at) for at in value]


def converted(answer: Any, kind: type[T]) -> T:
    """An answer of an actor (plain data, of the type ``kind``) as HTTP has it."""
    convert = converter(cast(Any, kind))
    made: T = answer if convert is None else convert(answer)
    return made


@cache
def converter(kind: Any) -> Converter | None:
    """What makes an answer of an actor (plain data, of the type ``kind``) fit for HTTP: its instants become text, in
    place. None: there are none.

    A field is an instant, or a term, where its class says so in the source; once resolved these are numbers.
    """
    if kind is Reason:
        return values_of
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _of_struct(kind)
    for argument in get_args(kind):
        inner = converter(argument)
        if inner is not None and getattr(kind, "__origin__", None) is list:
            return lambda items: [inner(item) for item in items]
        if inner is not None:
            return lambda value: value if value is None else inner(value)
    return None


def _of_struct(kind: type[Struct]) -> Converter | None:
    written = written_types(kind)
    hints, changes = get_type_hints(kind), dict[str, Converter]()
    for name, encoded in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        text = str(written[name])
        if text.startswith("Instant"):
            changes[encoded] = lambda value: value if value is None else iso(value)
        elif text.startswith("Term"):
            changes[encoded] = _term
        elif name in _WORDS:
            changes[encoded] = lambda value: value and dated(value)
        elif (inner := converter(hints[name])) is not None:
            changes[encoded] = inner
    if not changes:
        return None

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        for name, change in changes.items():
            if name in value:
                value[name] = change(value[name])
        return value

    return convert


def read_instants(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a command, with text in the place of its instants, as the command has them: those that are not
    given are left out. Raises ``CommandError`` that names the field.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name, text in written_types(kind).items():
        if str(text).startswith("Instant") and name in found:
            try:
                found[name] = parse_instant(str(found[name]))
            except ValueError as error:
                raise CommandError(f"{name}: {error}") from None
    return found
