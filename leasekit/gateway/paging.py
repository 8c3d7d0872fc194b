"""Lists in pages. Whoever asks for a list may have a part of it, and in the order of a field of what is in it: each
list of the API, in the same way. A page begins after what was last in the one before, so that what comes and goes
meanwhile moves nothing.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin
from urllib.parse import urlencode

import attrs
import msgspec
from msgspec import Meta, Struct

from leasekit.core.commands import by_number
from leasekit.core.settings import expect_one_of
from leasekit.gateway.instants import instant
from leasekit.gateway.routing import Route, unprocessable

LIMIT_MAX: Final = 1_000
SCALARS: Final = (str, int, float, bool, datetime)
Told: TypeAlias = str | int | float | None


class PageOf(Struct, forbid_unknown_fields=True, kw_only=True):
    """So many, after those of the page that had this ``cursor`` as its next; by a field (``order``), the largest first
    with ``-`` before it. Without any of these a list comes whole.
    """

    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT_MAX
    cursor: str = ""
    order: str = ""


class _Cursor(Struct, array_like=True):
    order: str
    value: Told
    id: str


@attrs.frozen
class Page:
    """The part of a list that is asked for."""

    limit: int
    order: str
    after: _Cursor | None
    _kind: type[Struct]

    @property
    def of_actor(self) -> dict[str, Any]:
        """The arguments of a query that answers a part by itself: no more of it than is shown, and one that says
        whether there are others.
        """
        if self.order:
            return {}
        return {"limit": self.limit + 1, "after": "" if self.after is None else self.after.id}

    def of(self, items: Sequence[Any]) -> tuple[list[Any], str]:
        """The part of a list, and the cursor of the next one; empty where nothing follows."""
        name, is_down = self.order.removeprefix("-"), self.order.startswith("-")
        called = self._kind.__struct_encode_fields__[0]
        keyed = [(_sorted_by(_value(one, name) if name else None, str(_value(one, called))), one) for one in items]
        keyed.sort(key=lambda pair: pair[0], reverse=is_down)
        if self.after is not None:
            last = _sorted_by(self.after.value, self.after.id)
            keyed = [pair for pair in keyed if (pair[0] < last if is_down else pair[0] > last)]
        found = [one for _, one in keyed[: self.limit]]
        if len(keyed) <= self.limit:
            return found, ""
        cursor = _Cursor(self.order, _value(found[-1], name) if name else None, str(_value(found[-1], called)))
        return found, base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def page_asked(route: Route, query: dict[str, str]) -> Page | None:
    """The page that a query asks for; its words are taken out of the ``query``. None: all of the list, or none is
    asked for. Raises :class:`ProblemError`.
    """
    kind = items_of(route)
    words = {name: query.pop(name) for name in PageOf.__struct_fields__ if name in query} if kind is not None else {}
    if kind is None or not words:
        return None
    try:
        asked = msgspec.convert(words, PageOf, strict=False)
    except msgspec.ValidationError:
        raise unprocessable(f"limit: found {words['limit']!r:.40}, expected 1 to {LIMIT_MAX}") from None
    return page_of(kind, asked.limit, asked.cursor, asked.order)


def page_of(kind: type[Struct], limit: int, cursor: str, order: str) -> Page:
    """A page of things of a kind. Raises :class:`ProblemError` for a field that has no order, and a cursor that is none
    in this order.
    """
    after = _read(cursor) if cursor else None
    order = order or (after.order if after is not None else "")
    if after is not None and after.order != order:
        raise unprocessable(f"order: found {order!r:.80}, the page before had {after.order!r:.80}")
    allowed = [field.encode_name for field in msgspec.structs.fields(kind) if _is_scalar(field.type)]
    if order and order.removeprefix("-") not in allowed:
        raise unprocessable(f"order: found {order!r:.80}, {expect_one_of(order.removeprefix('-'), allowed)}")
    return Page(limit, order, after, kind)


def items_of(route: Route) -> type[Struct] | None:
    """What a list is of; None: the answer is no list, or has pages of its own."""
    if route.method != "GET" or "limit" in getattr(route.params, "__struct_fields__", ()):
        return None
    answer = route.answer
    if isinstance(answer, type) and issubclass(answer, Struct) and answer.__struct_fields__ == ("items",):
        answer = msgspec.structs.fields(answer)[0].type
    (kind,) = get_args(answer) if getattr(answer, "__origin__", None) is list else (None,)
    return kind if isinstance(kind, type) and issubclass(kind, Struct) else None


def paged(route: Route, page: Page | None, answer: Any) -> tuple[Any, str]:
    """The part of an answer that is a list, or has one, and the cursor of the next part, if anything follows."""
    if page is None:
        has_own = "cursor" in getattr(route.params, "__struct_fields__", ())
        return answer, (answer.next or "") if has_own else ""
    if isinstance(answer, list):
        return page.of(answer)
    items, cursor = page.of(answer.items)
    return msgspec.structs.replace(answer, items=items), cursor


def link(query: Mapping[str, str], cursor: str) -> dict[str, str]:
    """The header that says where the next page is (RFC 8288)."""
    return {"link": f'<?{urlencode({**query, "cursor": cursor})}>; rel="next"'} if cursor else {}


def _value(one: Any, name: str) -> Told:
    """A field of something, which is a shape or plain data, as it is compared and told."""
    found = one.get(name) if isinstance(one, dict) else getattr(one, _field(type(one), name), None)
    return instant(found) if isinstance(found, datetime) else found


def _field(kind: type[Struct], name: str) -> str:
    return kind.__struct_fields__[kind.__struct_encode_fields__.index(name)]


def _sorted_by(value: Told, called: str) -> tuple[int, Any, tuple[int, str]]:
    rank = 0 if value is None else 2 if isinstance(value, str) else 1
    return rank, 0 if value is None else value, by_number(called)


def _is_scalar(kind: Any) -> bool:
    """Whether values of a type have an order."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _is_scalar(get_args(kind)[0])
    if origin in (Union, UnionType):
        return all(_is_scalar(one) for one in get_args(kind) if one is not NoneType)
    return kind in SCALARS or origin is Literal


def _read(cursor: str) -> _Cursor:
    try:
        if re.fullmatch(r"[\w-]{1,2000}", cursor, re.ASCII):
            return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=_Cursor)
    except (ValueError, msgspec.DecodeError):
        pass
    raise unprocessable(f"cursor: found {cursor!r:.60}, expected what the page before gave as next")
