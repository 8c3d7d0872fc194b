"""What is answered as bytes: its tag, by which one asks for what has changed or changes what one has seen, and shorter
where its reader can have it so.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache, partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
import trio
from starlette.responses import Response

from leasekit.gateway.incoming import JSON, SAFE
from leasekit.gateway.problems import ProblemError
from leasekit.gateway.routing import ROUTES, Call, Route, variables

PACKED_FROM: Final = 4_096
"""Answers of fewer bytes are sent as they are."""
PACKED: Final = "gzip"
LEVEL: Final = 5
_changing: Final = WeakValueDictionary[str, trio.Lock]()
_encode: Final = msgspec.json.Encoder().encode


async def made_response(
    route: Route, answer: Any, headers: Mapping[str, str], more: Mapping[str, str] = MappingProxyType({})
) -> Response:
    """What a route answers to a request with these ``headers``, with some ``more`` of its own."""
    data = _encode(answer)
    tag, own = _tag(data), {**SAFE, **more}
    is_packed = False
    if route.method == "GET" and len(data) >= PACKED_FROM:
        own["vary"] = "accept-encoding"
        is_packed = takes_packed(headers.get("accept-encoding", ""))
    own["etag"] = f'"{tag}-{PACKED}"' if is_packed else f'"{tag}"'
    if route.method == "GET" and not _tags(headers.get("if-none-match", "")).isdisjoint((tag, "*")):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=own)
    if is_packed:
        own["content-encoding"] = PACKED
        data = await trio.to_thread.run_sync(partial(gzip.compress, data, LEVEL, mtime=0))
    return Response(data, status_code=route.status, media_type=JSON, headers=own)


def takes_packed(accepted: str) -> bool:
    """Whether who accepts these encodings takes gzip."""
    for part in accepted.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() == PACKED:
            return not re.fullmatch(r"q=0(\.0*)?", weight.replace(" ", ""))
    return False


async def change_if_matched(call: Call, route: Route, given: Mapping[str, Any], query: Mapping[str, str]) -> Any:
    """Carry a change out if what it is about is as who asks for it has seen it; changes of one path with ``If-Match``
    wait for each other. Raises :class:`ProblemError` if it is not.
    """
    about = f"{route.path} {sorted(query.items())} {[given[name] for name in route.variables]}"
    lock = _changing.setdefault(about, trio.Lock())
    async with lock:
        await _check_match(call, route, given, query)
        return await route.run(call, **given)


async def _check_match(call: Call, route: Route, given: Mapping[str, Any], query: Mapping[str, str]) -> None:
    """``GET`` of the nearest path, which is that of the thing, or of the list that it is in, is to answer what
    ``If-Match`` says.
    """
    wanted = _tags(call.headers["if-match"], weak=False)
    seen = _seen_at(route.path)
    if seen is not None:
        known = seen.params.__struct_encode_fields__ if seen.params is not None else ()
        params = seen.read_params({name: value for name, value in query.items() if name in known})
        path = {name: given[name] for name in variables(seen.path)}
        if "*" in wanted or _tag(_encode(await seen.run(call, **path, **params))) in wanted:
            return
    what = seen.path if seen is not None else route.path
    detail = f"If-Match: {what} is not as it was seen any more: look at it again"
    raise ProblemError(HTTPStatus.PRECONDITION_FAILED, detail, code="changed_meanwhile")


@cache
def _seen_at(path: str) -> Route | None:
    """The route that shows what a path is about."""
    shown = {one.path: one for one in ROUTES if one.method == "GET"}
    while path:
        if path in shown:
            return shown[path]
        path = path.rpartition("/")[0]
    return None


def _tag(data: bytes) -> str:
    """The tag of an answer, without its quotes."""
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _tags(text: str, *, weak: bool = True) -> set[str]:
    """The tags that a header names, of whatever encoding; without the weak ones where these match nothing (RFC 9110,
    13.1.1).
    """
    named = [tag.strip() for tag in text.split(",")]
    strong = [tag.removeprefix("W/") for tag in named if weak or not tag.startswith("W/")]
    return {tag.strip('"').removesuffix(f"-{PACKED}") for tag in strong}
