"""The ASGI application of a gateway: who calls, what they ask for, and what is answered, for every route alike."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache, partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from leasekit.client.shapes import ProblemDetails
from leasekit.config.gateway import is_loopback
from leasekit.core.errors import LeasekitError
from leasekit.core.frames import MEDIA_TYPE
from leasekit.gateway import (  # noqa: F401 - they declare their routes
    accounts,
    announcements,
    approvals,
    deployment,
    feeds,
    holders,
    leases,
    notifications,
    runs,
    series,
    slots,
    templates,
    timeline,
    tokens,
    topologies,
    usage,
    waits,
)
from leasekit.gateway.blazar.routes import blazar_routes
from leasekit.gateway.callers import NOBODY
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.events import WholeStream
from leasekit.gateway.feeds import PATH, answer_feed
from leasekit.gateway.incoming import (
    JSON,
    SAFE,
    Endpoint,
    caller_of,
    counted,
    read_body,
    read_rest,
    source_of,
    take_unknown,
)
from leasekit.gateway.matching import change_if_matched, made_response
from leasekit.gateway.openapi import document
from leasekit.gateway.pages.frames import PageFrames
from leasekit.gateway.pages.routes import page_routes
from leasekit.gateway.paging import link, page_asked, paged
from leasekit.gateway.problems import ProblemError, details, of_error
from leasekit.gateway.repeats import is_kept
from leasekit.gateway.routing import BASE, KEY, ROUTES, Call, Picture, Route, unprocessable
from leasekit.gateway.tunnel import answer_frame

PROBLEM: Final = "application/problem+json"
EVENTS: Final = "text/event-stream"

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

    @cache  # made when it is first asked for: it takes as long as an eighth of the start of a gateway
    def described() -> bytes:
        return _encode(document(ordered, base))

    async def openapi(request: Request) -> Response:
        return Response(described(), media_type=JSON, headers=SAFE)

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
    feed = _told(door, PATH, partial(answer_feed, door))
    made.append(StarletteRoute(f"{base}{BASE}{PATH}", feed, methods=["GET"]))
    control = _told(door, "/control/{actor}", partial(_control, door))
    made.append(StarletteRoute(f"{base}{BASE}/control/{{actor}}", control, methods=["POST"]))
    made += blazar_routes(door, f"{base}/blazar") if door.table.blazar is not None else []
    made += page_routes(door, base)
    unrouted = partial(_unrouted, PageFrames(base, f"{base}{BASE}"))
    app = Starlette(routes=made, exception_handlers={HTTPException: unrouted, Exception: _bug})
    # It would send who asks for `/leases/` to an address without TLS, as the gateway is asked behind a proxy.
    app.router.redirect_slashes = False
    return app


def _told(door: GatewayDoor, path: str, answer: Endpoint) -> Endpoint:
    """The ``answer`` at a ``path``, with what it raises as problem details, counted."""
    return counted(door, path, partial(_or_problem, answer))


async def _or_problem(answer: Endpoint, request: Request) -> Response:
    try:
        return await answer(request)
    except LeasekitError as error:
        await read_rest(request)
        problem = of_error(error)
        headers = dict(error.headers) if isinstance(error, ProblemError) else {}
        return told(problem, headers)
    except ClientDisconnect:
        return Response(status_code=499)


async def _control(door: GatewayDoor, request: Request) -> Response:
    call = Call(door, await caller_of(door, request.headers, source_of(request)), request.headers)
    return await answer_frame(call, request.path_params["actor"], await read_body(request, MEDIA_TYPE))


async def _answer(door: GatewayDoor, route: Route, request: Request) -> Response:
    headers = _headers(request)
    source, caller = source_of(request), NOBODY
    if route.is_open:
        take_unknown(door, source)
    else:
        caller = await caller_of(door, headers, source, changes=route.method != "GET")
    key = headers.get("idempotency-key", "")
    if key and not KEY.fullmatch(key):
        raise unprocessable(f"Idempotency-Key: found {key!r:.60}, expected 1 to 200 visible characters")
    query = _once(request)
    asked = dict(query)
    page = page_asked(route, query)
    call = Call(door, caller, headers, key, source, of_actor={} if page is None else page.of_actor)
    given = {**request.path_params, **route.read_params(query)}
    if route.method != "GET":
        given |= route.read_body(await read_body(request))
    run: Callable[[Call], Awaitable[Any]]
    if route.method != "GET" and "if-match" in headers:
        run = partial(change_if_matched, route=route, given=given, query=query)
    else:
        run = partial(route.run, **given)
    answer = await (door.repeats.once(call, route, given, run) if is_kept(call, route) else run(call))
    if isinstance(answer, AsyncIterator):
        return WholeStream(answer, media_type=EVENTS, headers=SAFE)
    if isinstance(answer, Picture):
        return Response(answer.data, media_type=answer.kind, headers=SAFE)
    answer, cursor = paged(route, page, answer)
    return await made_response(route, answer, headers, link(asked, cursor))


def _headers(request: Request) -> dict[str, str]:
    """The headers; one that comes in several lines is a list (RFC 9110, 5.3). Starlette goes through all of them for
    each that is looked up.
    """
    found = dict[str, str]()
    for name, value in request.scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        found[key] = text if key not in found else f"{found[key]}{'; ' if key == 'cookie' else ', '}{text}"
    return found


def _once(request: Request) -> dict[str, str]:
    """The query, in which each word stands once. Raises :class:`ProblemError`."""
    if not request.scope["query_string"]:
        return {}
    pairs = request.query_params.multi_items()
    found = dict(pairs)
    if len(found) < len(pairs):
        raise unprocessable("query: found a word twice, expected each once")
    return found


def at_known_hosts(app: ASGIApp, hosts: Sequence[str]) -> ASGIApp:
    """The application for those who call this machine by one of its own names, or by one of ``hosts``. A page of
    another site, whose name leads here from one moment to the next (DNS rebinding), is not let in. No browser calls by
    a Unix socket.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        respond = app
        if scope["type"] == "http" and scope["client"] is not None:
            found = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
            host = re.sub(r":\d*$", "", found).rstrip(".").lower()
            if not is_loopback(host) and host not in hosts:
                status, allowed = HTTPStatus.MISDIRECTED_REQUEST, ", ".join(["localhost", "127.0.0.1", "[::1]", *hosts])
                detail = f"Host: found {found!r:.80}, expected one of {allowed}"
                respond = told(details(status, detail, "bad_argument"))
        await respond(scope, receive, send)

    return answer


def told(problem: ProblemDetails, headers: dict[str, str] | None = None) -> Response:
    """A problem as it is answered."""
    all_headers = {**SAFE, **(headers or {})}
    return Response(_encode(problem), status_code=problem.status, media_type=PROBLEM, headers=all_headers)


async def _unrouted(frames: PageFrames, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    status, path = HTTPStatus(error.status_code), request.url.path[:200]
    in_browser = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if status == HTTPStatus.NOT_FOUND and in_browser and not path.startswith(frames.api):
        return frames.made("absent.html", request, status, path=path)
    detail, headers = f"{request.method} {path}: {status.phrase.lower()}", {}
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        # Starlette names the methods of the first route of a path alone.
        scope = {**request.scope, "method": ""}
        fitting = (one for one in request.app.routes if one.matches(scope)[0] is not Match.NONE)
        headers["allow"] = ", ".join(sorted({method for one in fitting for method in one.methods or ()}))
        detail += f", allowed are {headers['allow']}"
    code = "not_found" if status == HTTPStatus.NOT_FOUND else "bad_argument"
    return told(details(status, detail, code), headers)


async def _bug(request: Request, error: Exception) -> Response:
    logger.critical("bug: in the answer to %s %s", request.method, request.url.path, exc_info=error)
    return told(details(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug: the gateway's log says more", "bug"))
