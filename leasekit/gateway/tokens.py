"""Tokens and who one is, over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from msgspec import Struct

from leasekit.client.shapes import Me, Token, TokenRequest
from leasekit.core.time import DAY, INSTANT_MAX, Duration, Instant
from leasekit.gateway.callers import OPERATOR, Caller, TokenError, TokenRecord, rights
from leasekit.gateway.door import GUEST, forbidden
from leasekit.gateway.instants import iso, span, told
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.routing import Call, route

USUAL: Final[Duration] = 90 * DAY
"""How long a token is good that doesn't say."""
EACH: Final = 200
"""How many tokens one may have who is no operator: all have a part of what the gateway keeps, and logins need some."""


class TokenList(Struct, kw_only=True):
    """All tokens that somebody may see."""

    items: list[Token]


@route("GET", "/me")
async def show_me(call: Call) -> Me:
    """Show who calls, by which way, and what they may do."""
    who = call.caller
    return Me(caller=who.name, way=who.way, projects=dict(who.projects), offices=sorted(who.offices))


@route("GET", "/tokens")
async def list_tokens(call: Call) -> TokenList:
    """List one's own tokens; an operator sees everybody's."""
    return TokenList(items=[shown(one) for one in call.door.tokens.all() if _is_theirs(call.caller, one)])


@route("POST", "/tokens", status=HTTPStatus.CREATED)
async def create_token(call: Call, body: TokenRequest) -> Token:
    """Make a token, with no more rights than one has oneself, for no longer than what one shows is good. What it is is
    shown now, and never again.
    """
    name = body.caller or call.caller.name
    if name != call.caller.name and OPERATOR not in call.caller.offices:
        raise forbidden("caller: only an operator makes tokens for others")
    rights(body.projects, body.offices, [actor.name for actor in call.door.of_role(GUEST)])
    if not call.caller.covers(body.projects, body.offices):
        raise forbidden("projects, offices: a token can't allow more than its maker may")
    if not body.name.strip():
        raise TokenError("name: found nothing, expected what the token is for")
    door, length = call.door, span(body.length, "length")
    now, last = door.clock(), _last(call)
    expires = now + (USUAL if length is None else length)
    if length is not None and expires > last:
        raise forbidden(f"length: a token can't be good for longer than the one that its maker shows, to {iso(last)}")
    if OPERATOR not in call.caller.offices and len(door.tokens.named(name)) >= EACH:
        raise ProblemError(HTTPStatus.CONFLICT, f"{name} has {EACH} tokens already: revoke some", code="too_many")
    gone = door.tokens.end_old(now)
    caller = Caller(name, "", dict(body.projects), frozenset(body.offices))
    record, secret, change = door.tokens.create(body.name, caller, now, min(expires, last))
    made = shown(record, secret)
    await door.commit(*gone, change, *call.keep(made))
    return made


def _last(call: Call) -> Instant:
    """Until when what somebody makes may be good: whoever has a token for an hour, or is in a provider's group for so
    long, has no other for good by it. A session stands for its user, whose rights end by name.
    """
    caller, never = call.caller, INSTANT_MAX
    if OPERATOR in caller.offices:
        return never
    if caller.until is not None:
        return caller.until
    shown_by = next((one for one in call.door.tokens.all() if one.id == caller.token and not one.is_session), None)
    return never if shown_by is None or shown_by.expires is None else shown_by.expires


@route("POST", "/tokens/{token}/revoke")
async def revoke_token(call: Call, token: str) -> Token:
    """Have a token be none any more."""
    found = next((one for one in call.door.tokens.all() if one.id == token and _is_theirs(call.caller, one)), None)
    if found is None:
        raise not_found("token", token)
    gone = shown(found)
    await call.door.commit(call.door.tokens.revoke(token), *call.keep(gone))
    return gone


def _is_theirs(caller: Caller, token: TokenRecord) -> bool:
    return caller.sees_all or token.caller.name == caller.name


def shown(record: TokenRecord, secret: str = "") -> Token:
    """A token, without what it is, unless that is to be shown, too."""
    who = record.caller
    return told(Token, record, caller=who.name, projects=dict(who.projects), offices=sorted(who.offices), secret=secret)
