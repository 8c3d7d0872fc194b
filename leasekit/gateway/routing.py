"""How a route is declared: by its function.

The function takes the :class:`Call`, the words of its path by their names, ``params`` (what stands in the query) and
``body``; the types of these, and of what it returns, are what is checked, and what the OpenAPI document says::

    @route("GET", "/leases/{lease}")
    async def show_lease(call: Call, lease: str, params: OfProject) -> Lease:
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import attrs
import msgspec
from msgspec import Struct, inspect

from leasekit.core.settings import expect_one_of
from leasekit.gateway.problems import ProblemError

if TYPE_CHECKING:
    from leasekit.core.schema import Change
    from leasekit.gateway.callers import Caller
    from leasekit.gateway.door import GatewayDoor

BASE: Final = "/api/v1"
KEY: Final = re.compile(r"[\x21-\x7e]{1,200}")
NO_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading JSON raises: also where it is no UTF-8, or lists are in lists too deep."""


@attrs.frozen
class Call:
    """One request: who calls, at which door, and with which idempotency ``key``, from which address."""

    door: GatewayDoor
    caller: Caller
    headers: Mapping[str, str]
    key: str = ""
    source: str = ""
    keep: Callable[[Any], Sequence[Change]] = lambda answer: ()
    """What keeps an answer for a repeat of the call. It is committed together with what the call changes."""
    of_actor: Mapping[str, Any] = attrs.Factory(dict)
    """The arguments of a query that answers a part of a list by itself."""

    @property
    def signed(self) -> dict[str, str]:
        """What goes with a command of this caller's."""
        return {"caller": self.caller.name, "way": self.caller.way, "key": self.key}


@attrs.frozen
class Picture:
    """An answer that is a picture, of a ``kind`` of :data:`PICTURES`."""

    data: bytes
    kind: str


PICTURES: Final = {".png": "image/png", ".svg": "image/svg+xml"}
"""Kinds of pictures, by the end of their names."""


@attrs.frozen(kw_only=True, slots=False)
class Route:
    """One method of one path."""

    method: str
    path: str
    name: str
    words: str
    run: Callable[..., Awaitable[Any]]
    params: type[Struct] | None
    body: type[Struct] | None
    answer: Any
    status: HTTPStatus = HTTPStatus.OK
    is_open: bool = False
    """Whether who calls need not say who that is."""

    @cached_property
    def has_defaults(self) -> bool:
        """Whether nothing needs to stand in its query."""
        return self.params is not None and not any(one.required for one in msgspec.structs.fields(self.params))

    @property
    def tag(self) -> str:
        """The noun that it is about."""
        return self.path.split("/")[1]

    @property
    def variables(self) -> list[str]:
        """The words of its path that stand for something."""
        return variables(self.path)

    def read_params(self, query: Mapping[str, str]) -> dict[str, Any]:
        """What its function is given of a query. Raises :class:`ProblemError`."""
        if self.params is None:
            if query:
                raise unprocessable(f"query: found {next(iter(query))!r:.40}, this path takes none")
            return {}
        if not query and self.has_defaults:
            return {"params": self.params()}
        try:
            return {"params": msgspec.convert(dict(query), self.params, strict=False)}
        except msgspec.ValidationError as error:
            raise unprocessable(explained("query", str(error), query, self.params)) from None

    def read_body(self, data: bytes) -> dict[str, Any]:
        """What its function is given of a body. Raises :class:`ProblemError`."""
        if self.body is None:
            if data.strip() not in (b"", b"{}"):
                raise unprocessable("body: found one, this path takes none")
            return {}
        try:
            return {"body": msgspec.json.decode(data or b"{}", type=self.body)}
        except NO_JSON as error:  # of a type that is not expected, or no JSON at all, maybe further on
            try:
                found = msgspec.json.decode(data)
            except NO_JSON as worse:
                text = f"body: expected JSON: {worse}"
                raise ProblemError(HTTPStatus.BAD_REQUEST, text, code="bad_argument") from None
            in_query = self.params.__struct_encode_fields__ if self.params is not None else ()
            raise unprocessable(explained("body", str(error), found, self.body, in_query)) from None


def explained(part: str, text: str, found: Any, kind: type[Struct], in_query: Sequence[str] = ()) -> str:
    """msgspec's words, with the path of what is wrong before them, what was found there, and what is allowed; of a key
    that belongs ``in_query`` that it does.
    """
    words, _, path = text.partition(" - at `$")
    where = path.rstrip("`").lstrip(".")
    if match := _UNKNOWN.match(words):
        if not where and match[1] in in_query:
            return f"{part}: found the key {match[1]!r}, which goes into the query: ?{match[1]}=..."
        allowed = expect_one_of(match[1], kind.__struct_encode_fields__)
        return f"{where or part}: found an unknown key {match[1]!r:.80}, {allowed}"
    if match := _MISSING.match(words):
        return f"{match[1]}: found nothing, it is needed"
    choices = _choices(kind, where)
    for name, place, of_map in re.findall(r"\.?(\w+)|\[(\d+)\]|\[(\.\.\.)\]", where):
        try:
            if of_map:  # which of a map it is msgspec does not say
                name = next(key for key, value in found.items() if _is_wrong(value, words, choices))
                where = where.replace("[...]", f".{name}", 1)
            found = found[int(place)] if place else found[name]
        except (AttributeError, LookupError, StopIteration, TypeError):
            break
    if "datetime" in words:
        words = "expected an instant with its zone, such as 2027-03-01T08:00:00Z"
    elif "RFC3339" in words or "`date`" in words:
        words = "expected a day, such as 2027-03-01"
    words = words.partition(", got")[0].replace("`", "")
    if choices:
        words = expect_one_of(str(found), choices)
    words = _LENGTH.sub(lambda of: f"at {_BOUNDS[of[1]]} {of[2]} of them", words)
    return f"{where or part}: found {found!r:.80}, {words[:1].lower()}{words[1:]}"


def _is_wrong(value: Any, words: str, choices: Sequence[str]) -> bool:
    """Whether a value of a map is what msgspec means by its ``words``, as far as that can be told."""
    if choices:
        return value not in choices
    return words.startswith("Expected `str`") and not isinstance(value, str)


def _choices(kind: type[Struct], where: str) -> Sequence[str]:
    """The words of which one is allowed at a path; none where it is something else."""
    at: inspect.Type = inspect.type_info(kind)
    for step in re.findall(r"\w+|\[\d+\]|\[\.\.\.\]", where):
        at = _plain(at)
        if isinstance(at, inspect.StructType):
            at = next((field.type for field in at.fields if field.encode_name == step), inspect.AnyType())
        elif isinstance(at, inspect.DictType):
            at = at.value_type
        elif isinstance(at, inspect.ListType):
            at = at.item_type
    at = _plain(at)
    return [str(value) for value in at.values if value] if isinstance(at, inspect.LiteralType) else ()


def _plain(kind: inspect.Type) -> inspect.Type:
    """The type, without what is said about it, and without null."""
    if isinstance(kind, inspect.Metadata):
        return _plain(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _plain(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    return kind


_LENGTH: Final = re.compile(r"(?:array|object) of length ([<>])= (\d+)")
_BOUNDS: Final = {">": "least", "<": "most"}
_UNKNOWN: Final = re.compile("Object contains unknown field `(.*)`")
_MISSING: Final = re.compile("Object missing required field `(.*)`")


def unprocessable(text: str) -> ProblemError:
    """Something that was given is not what is allowed there."""
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, text, code="bad_argument")


def number_of(text: str) -> int | None:
    """The number that decimal digits are; None: there are others among them, or more than any log has lines."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def variables(path: str) -> list[str]:
    """The words of a path that stand for something."""
    return re.findall(r"{(\w+)}", path)


ROUTES: Final[list[Route]] = []
"""All of them."""
Handler = Callable[..., Awaitable[Any]]


def route(
    method: str, path: str, *, status: HTTPStatus = HTTPStatus.OK, is_open: bool = False
) -> Callable[[Handler], Handler]:
    """The function answers a method of a path."""

    def declare(function: Handler) -> Handler:
        hints = get_type_hints(function, localns={"Call": Call}, include_extras=True)
        ROUTES.append(
            Route(
                method=method, path=path, name=function.__name__, words=function.__doc__ or "", run=function,
                params=hints.get("params"), body=hints.get("body"), answer=hints["return"], status=status,
                is_open=is_open,
            )
        )  # fmt: skip
        return function

    return declare
