"""The control sockets of actors over HTTP, for the command line: a frame comes as a body, and frames are answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from leasekit.core.errors import LeasekitError
from leasekit.core.frames import LENGTH, MEDIA_TYPE, REQUEST_MAX, FrameError, length, pack, unpack
from leasekit.gateway.actors import ActorConnection, RefusedError
from leasekit.gateway.callers import AUDITOR, OPERATOR, USER, VIEWER
from leasekit.gateway.door import GATEWAY, GUEST, forbidden
from leasekit.gateway.events import WholeStream
from leasekit.gateway.holders import HAND
from leasekit.gateway.policies import DRY_RUNS, admit
from leasekit.gateway.problems import not_found
from leasekit.gateway.routing import Call, unprocessable

READS: Final = frozenset({"query", "history", "log", "log_end", "archived", "past", "usage", "unit_log", "watch"})
"""The kinds of requests that only look."""
STREAMS: Final = frozenset({"watch", "unit_log"})
EACH: Final = 150
ALL: Final = 200
"""How many streams of an actor one caller may have, and all together: each is one of the 256 connections that an actor
serves, of which its operator, and the gateway itself, need some.
"""
API: Final = "api"
"""The command of a gateway by which an operator asks its API."""
OF_USERS: Final = ("lease.", "slice.", "topology.")
"""How the names of a guest's commands begin that its users may give."""


async def answer_frame(call: Call, name: str, data: bytes) -> Response:
    """Answer the frame of a request to the actor of that ``name``. Raises :class:`ProblemError`."""
    actor = call.door.daemons.get(name)
    if actor is None or not (call.caller.sees_all or (actor.role == GUEST and call.caller.may(name, VIEWER))):
        raise not_found("actor", name)
    try:
        size = length(data[: LENGTH.size], REQUEST_MAX) if len(data) >= LENGTH.size else -1
        if size != len(data) - LENGTH.size:
            raise FrameError(f"found {len(data)} bytes, expected one frame")
        request = unpack(data[LENGTH.size :])
    except FrameError as error:
        raise unprocessable(f"body: {error}") from None
    id_, kind, what = request.get("id"), str(request.get("kind")), str(request.get("name", ""))
    arguments = request.get("arguments") or {}
    if not isinstance(id_, int) or not isinstance(arguments, dict):
        raise unprocessable("body: expected a request with an id and a map of arguments")
    if not _may(call, actor, kind, what):
        raise forbidden(f"{call.caller.name} may not {kind} {what} at {name}")
    approval = await admit(call, actor, what, arguments) if kind == "command" and actor.role == GUEST else ""
    if kind in STREAMS and (kind == "watch" or arguments.get("follow")):
        return WholeStream(_counted(call, actor, id_, kind, what, arguments), media_type=MEDIA_TYPE)
    key = {"key": str(request["key"])} if request.get("key") else {}
    ask = partial(actor.request, kind, what, arguments, **{**call.signed, **key})
    try:
        result = await (call.door.unless_away(ask) if kind == "command" and what in DRY_RUNS else ask())
        found = {**result, "approval": approval} if approval else result
        return Response(pack({"id": id_, "ok": True, "result": found}), media_type=MEDIA_TYPE)
    except RefusedError as error:
        return Response(pack(_refusal(id_, error)), media_type=MEDIA_TYPE)


def _may(call: Call, actor: ActorConnection, kind: str, name: str) -> bool:
    """Whether somebody may ask that of a daemon."""
    if actor.role == GATEWAY and kind == "command" and name == API:
        return False  # who asks by its control socket has no token whose time and rights count
    if OPERATOR in call.caller.offices:
        return True
    if kind in READS:
        return AUDITOR in call.caller.offices or (actor.role == GUEST and call.caller.may(actor.name, VIEWER))
    # Who may hand a lease on, and to whom, `POST /leases/LEASE/hand` knows.
    of_users = kind == "command" and actor.role == GUEST and name.startswith(OF_USERS) and name != HAND
    return of_users and call.caller.may(actor.name, USER)


async def _counted(
    call: Call, actor: ActorConnection, id_: int, kind: str, name: str, arguments: Mapping[str, Any]
) -> AsyncIterator[bytes]:
    """What an actor goes on telling, if it is not told to too many already."""
    streams, whose = call.door.streams, (actor.name, call.caller.name)
    if streams[whose] >= EACH or sum(count for (of, _), count in streams.items() if of == actor.name) >= ALL:
        text = f"{actor.name} goes on telling {EACH} to {call.caller.name}, or {ALL} to all, already: end some"
        yield pack({"id": id_, "ok": False, "error": text})
        return
    streams[whose] += 1
    try:
        async with aclosing(_follow(call, actor, id_, kind, name, arguments)) as told:
            async for frame in told:
                yield frame
    finally:
        streams[whose] -= 1
        if not streams[whose]:
            del streams[whose]


async def _follow(
    call: Call, actor: ActorConnection, id_: int, kind: str, name: str, arguments: Mapping[str, Any]
) -> AsyncGenerator[bytes]:
    try:
        async with actor.following(kind, name, **arguments) as events:
            yield pack({"id": id_, "ok": True, "result": None})
            async for event in events:
                if not call.door.knows(call.caller):
                    return  # what they called with is over
                yield pack({"id": id_, "event": event})
    except RefusedError as error:
        yield pack(_refusal(id_, error))
    except LeasekitError:
        return  # the actor has gone: the end of the answer says so


def _refusal(id_: int, error: RefusedError) -> dict[str, Any]:
    return {"id": id_, "ok": False, "error": str(error), **({"because": error.because} if error.because else {})}
