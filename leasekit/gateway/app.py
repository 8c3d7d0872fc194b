"""The ASGI application of a gateway: who calls, what they ask for, and what is answered, for every route alike."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute

from leasekit.client.shapes import ProblemDetails
from leasekit.core.errors import LeasekitError
from leasekit.core.frames import MEDIA_TYPE
from leasekit.gateway import approvals, deployment, leases, slots, tokens, usage  # noqa: F401 - they declare their routes
from leasekit.gateway.callers import ANYBODY, Caller
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.openapi import document
from leasekit.gateway.problems import ProblemError, of_error
from leasekit.gateway.routing import BASE, KEY, ROUTES, Call, Route, unprocessable
from leasekit.gateway.tunnel import answer_frame

BODY_MAX: Final = 1024 * 1024
"""The longest body of a request, in bytes."""
PROBLEM: Final = "application/problem+json"
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
SAFE: Final = {
    "cache-control": "no-store", "x-content-type-options": "nosniff", "content-security-policy": "default-src 'none'",
    "x-frame-options": "DENY", "referrer-policy": "no-referrer",
}  # fmt: skip
"""Headers of every answer."""

logger = logging.getLogger(__name__)
_encode: Final = msgspec.json.Encoder().encode


def routes() -> list[Route]:
    """All routes of the API. Of a noun those with fewer words that stand for something come first; leases, which are
    asked for most, come before all else, as the router tries one after the other.
    """
    return sorted(ROUTES, key=lambda one: (one.tag != "leases", one.path.count("{")))


def make_app(door: GatewayDoor, base: str) -> Starlette:
    """The application of a ``door``, whose paths begin with ``base``."""
    ordered = routes()
    described = _encode(document(ordered, base))

    async def openapi(request: Request) -> Response:
        return Response(described, media_type=JSON, headers=SAFE)

    made = [
        StarletteRoute(
            f"{base}{BASE}{one.path}",
            _told(door, one.path, partial(_answer, door, one)),
            methods=[one.method],
            name=one.name,
        )
        for one in ordered
    ]
    made.append(StarletteRoute(f"{base}{BASE}/openapi.json", openapi, methods=["GET"]))
    control = _told(door, "/control/{actor}", partial(_control, door))
    made.append(StarletteRoute(f"{base}{BASE}/control/{{actor}}", control, methods=["POST"]))
    return Starlette(routes=made, exception_handlers={HTTPException: _unrouted, Exception: _bug})


def _told(
    door: GatewayDoor, path: str, answer: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """The ``answer`` at a ``path``, with what it raises as problem details, counted."""

    async def endpoint(request: Request) -> Response:
        began, status = perf_counter(), int(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            answered = await _or_problem(answer, request)
            status = answered.status_code
        finally:
            door.answered.note(request.method, path, status, perf_counter() - began)
        return answered

    return endpoint


async def _or_problem(answer: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    try:
        return await answer(request)
    except LeasekitError as error:
        problem = of_error(error)
        headers = dict(error.headers) if isinstance(error, ProblemError) else {}
        return told(problem, headers)
    except ClientDisconnect:
        return Response(status_code=499)


async def _control(door: GatewayDoor, request: Request) -> Response:
    call = Call(door, await _caller(door, request.headers), request.headers)
    return await answer_frame(call, request.path_params["actor"], await _body(request, MEDIA_TYPE))


async def _answer(door: GatewayDoor, route: Route, request: Request) -> Response:
    # One pass: each look-up in Starlette's headers goes through all of them.
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.scope["headers"]}
    caller = await _caller(door, headers)
    key = headers.get("idempotency-key", "")
    if key and not KEY.fullmatch(key):
        raise unprocessable(f"Idempotency-Key: found {key!r:.60}, expected 1 to 200 visible characters")
    call = Call(door, caller, headers, key)
    given = {**request.path_params, **route.read_params(_once(request))}
    if route.method != "GET":
        given |= route.read_body(await _body(request))
    answer = await route.run(call, **given)
    if isinstance(answer, AsyncIterator):
        return StreamingResponse(answer, media_type=EVENTS, headers=SAFE)
    data = _encode(answer)
    tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
    if route.method == "GET" and headers.get("if-none-match") == tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={**SAFE, "etag": tag})
    return Response(data, status_code=route.status, media_type=JSON, headers={**SAFE, "etag": tag})


def _once(request: Request) -> dict[str, str]:
    """The query, in which each word stands once. Raises :class:`ProblemError`."""
    if not request.scope["query_string"]:
        return {}
    pairs = request.query_params.multi_items()
    found = dict(pairs)
    if len(found) < len(pairs):
        raise unprocessable("query: found a word twice, expected each once")
    return found


async def _body(request: Request, expected: str = JSON) -> bytes:
    """The body, if it is not too long, and of the kind that is expected. Raises :class:`ProblemError`."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_MAX:
            raise ProblemError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: at most {BODY_MAX} bytes are allowed", code="too_large"
            )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if data and kind != expected:
        # A form of another site's page can't be of this kind.
        found = f"Content-Type: found {kind or 'none'!r:.60}, expected {expected}"
        raise ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, found, code="bad_argument")
    return bytes(data)


async def _caller(door: GatewayDoor, headers: Mapping[str, str]) -> Caller:
    """Who calls. Raises :class:`ProblemError` for a token that is none, and for none where one is needed."""
    given = headers.get("authorization")
    if given is None:
        if door.without_login:
            return ANYBODY
        raise _unauthorized("a token is needed: Authorization: Bearer lk_...")
    scheme, _, secret = given.partition(" ")
    if scheme.lower() != "bearer":
        raise _unauthorized(f"Authorization: found {scheme!r:.20}, expected Bearer and a token")
    record, change = door.tokens.find(secret.strip(), door.clock())
    if record is None:
        raise _unauthorized("the token is not one of this gateway's, or its time is over")
    if change is not None:
        await door.commit(change)
    return record.caller


def _unauthorized(text: str) -> ProblemError:
    headers = {"www-authenticate": 'Bearer realm="leasekit"'}
    return ProblemError(HTTPStatus.UNAUTHORIZED, text, code="unauthenticated", headers=headers)


def told(problem: ProblemDetails, headers: dict[str, str] | None = None) -> Response:
    """A problem as it is answered."""
    all_headers = {**SAFE, **(headers or {})}
    return Response(_encode(problem), status_code=problem.status, media_type=PROBLEM, headers=all_headers)


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    status = HTTPStatus(error.status_code)
    detail, headers = f"{request.method} {request.url.path:.200}: {status.phrase.lower()}", {}
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        # Starlette names the methods of the first route of a path alone.
        scope = {**request.scope, "method": ""}
        fitting = (one for one in request.app.routes if one.matches(scope)[0] is not Match.NONE)
        headers["allow"] = ", ".join(sorted({method for one in fitting for method in one.methods or ()}))
        detail += f", allowed are {headers['allow']}"
    code = "not_found" if status == HTTPStatus.NOT_FOUND else "bad_argument"
    return told(ProblemDetails(title=status.phrase, status=status, detail=detail, code=code), headers)


async def _bug(request: Request, error: Exception) -> Response:
    logger.critical("bug: in the answer to %s %s", request.method, request.url.path, exc_info=error)
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return told(
        ProblemDetails(title=status.phrase, status=status, detail="a bug: the gateway's log says more", code="bug")
    )
