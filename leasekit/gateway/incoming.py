"""What comes with a request, for every kind of route alike: who calls, and a body that is not too long."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from time import perf_counter
from typing import Final, TypeAlias

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from leasekit.core.schema import StoreError
from leasekit.gateway.callers import ANYBODY, Caller
from leasekit.gateway.cookies import HEADER, is_foreign, says_word, session_of
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.problems import ProblemError
from leasekit.gateway.rates import network

logger = logging.getLogger(__name__)
BODY_MAX: Final = 1024 * 1024
"""The longest body of a request, in bytes."""
BODY_WITHIN: Final = 60.0
"""How long it is waited for, in seconds: who begins to send one and does not go on holds nothing up for ever."""
REST_WITHIN: Final = 1.0
"""How long the rest of a request is waited for that is refused already, in seconds."""
JSON: Final = "application/json"
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
SAFE: Final = {
    "cache-control": "no-store", "x-content-type-options": "nosniff", "content-security-policy": "default-src 'none'",
    "x-frame-options": "DENY", "referrer-policy": "no-referrer",
}  # fmt: skip
"""Headers of every answer."""


async def read_body(request: Request, expected: str = JSON) -> bytes:
    """The body, if it is not too long, and of the kind that is expected. Raises :class:`ProblemError`."""
    data = bytearray()
    with trio.move_on_after(BODY_WITHIN) as waited:
        async for chunk in request.stream():
            data += chunk
            if len(data) > BODY_MAX:
                raise ProblemError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: at most {BODY_MAX} bytes are allowed", code="too_large"
                )
    if waited.cancelled_caught:
        raise ProblemError(
            HTTPStatus.REQUEST_TIMEOUT, f"body: it did not come within {BODY_WITHIN:g} s", code="too_slow"
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if data and kind != expected:
        # A form of another site's page can't be of this kind.
        found = f"Content-Type: found {kind or 'none'!r:.60}, expected {expected}"
        raise ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, found, code="bad_argument")
    return bytes(data)


async def read_rest(request: Request) -> None:
    """What has not been read of a request that is refused, if it comes soon and is not too long: else the server ends a
    connection that its caller goes on to use.
    """
    with trio.move_on_after(REST_WITHIN):
        try:
            left = BODY_MAX
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    return
        except (ClientDisconnect, RuntimeError):  # nobody waits; or, by Starlette, it was read whole
            return


def counted(door: GatewayDoor, path: str, answer: Endpoint) -> Endpoint:
    """The ``answer`` at a ``path``, in the numbers that the gateway tells."""

    async def endpoint(request: Request) -> Response:
        began, status = perf_counter(), int(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            answered = await answer(request)
            status = answered.status_code
        finally:
            door.answered.note(request.method, path, status, perf_counter() - began)
        return answered

    return endpoint


def source_of(request: Request) -> str:
    """The address from which a request comes; empty: it comes by a Unix socket."""
    client = request.scope["client"]
    return str(client[0]) if client else ""


async def caller_of(door: GatewayDoor, headers: Mapping[str, str], source: str, *, changes: bool = True) -> Caller:
    """Who calls from an address, with or without something that ``changes``. Raises :class:`ProblemError` for a token
    that is none, for none where one is needed, for a page of another site, and for who calls too often.
    """
    try:
        caller = await _shown(door, headers, changes)
    except ProblemError as problem:
        if problem.status == HTTPStatus.UNAUTHORIZED:
            take_unknown(door, source)
        raise
    door.calls.take(caller.name, door.clock())
    return caller


def take_unknown(door: GatewayDoor, source: str) -> None:
    """Somebody calls of whom nothing is known but the address. Raises :class:`ProblemError` when that is too often."""
    door.calls.take(f"\0{network(source)}", door.clock())  # which is nobody's name


async def _shown(door: GatewayDoor, headers: Mapping[str, str], changes: bool) -> Caller:
    given = headers.get("authorization")
    if given is None and (session := session_of(headers)):
        if changes and not says_word(headers, session):
            raise ProblemError(
                HTTPStatus.FORBIDDEN, f"{HEADER}: expected the word of a page of this session", code="forbidden"
            )
        given = f"Bearer {session}"
    if given is None:
        if not door.table.without_login:
            raise _unauthorized("a token is needed: Authorization: Bearer lk_...")
        if changes and is_foreign(headers):
            raise ProblemError(HTTPStatus.FORBIDDEN, "a page of another site may not do that", code="forbidden")
        return ANYBODY
    scheme, _, secret = given.partition(" ")
    if scheme.lower() != "bearer":
        raise _unauthorized(f"Authorization: found {scheme!r:.20}, expected Bearer and a token")
    if door.oidc is not None and secret.count(".") == 2:
        caller = await door.oidc.caller(secret.strip(), door.clock())
        if caller is None:
            raise _unauthorized("the JWT is not of this gateway's provider, not for this gateway, or its time is over")
        return caller
    record, change = door.tokens.find(secret.strip(), door.clock())
    if record is None:
        raise _unauthorized("the token is not one of this gateway's, or its time is over")
    if change is not None:
        try:
            await door.commit(change)
        except StoreError as error:  # one may look although it can't be kept when
            logger.error("%s", error)
    return record.caller


def _unauthorized(text: str) -> ProblemError:
    headers = {"www-authenticate": 'Bearer realm="leasekit"'}
    return ProblemError(HTTPStatus.UNAUTHORIZED, text, code="unauthenticated", headers=headers)
