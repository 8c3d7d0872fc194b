"""Tokens and who one is, over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from msgspec import Struct

from leasekit.client.shapes import Me, Token, TokenRequest
from leasekit.core.time import DAY, Duration
from leasekit.gateway.callers import OPERATOR, Caller, TokenError, TokenRecord, rights
from leasekit.gateway.door import GUEST, forbidden
from leasekit.gateway.instants import span, told
from leasekit.gateway.problems import not_found
from leasekit.gateway.routing import Call, route

USUAL: Final[Duration] = 90 * DAY
"""How long a token is good that doesn't say."""


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
    """Make a token, with no more rights than one has oneself. What it is is shown now, and never again."""
    name = body.caller or call.caller.name
    if name != call.caller.name and OPERATOR not in call.caller.offices:
        raise forbidden("caller: only an operator makes tokens for others")
    rights(body.projects, body.offices, [actor.name for actor in call.door.of_role(GUEST)])
    if not call.caller.covers(body.projects, body.offices):
        raise forbidden("projects, offices: a token can't allow more than its maker may")
    if not body.name.strip():
        raise TokenError("name: found nothing, expected what the token is for")
    door, length = call.door, span(body.length, "length")
    now = door.clock()
    caller = Caller(name, "", dict(body.projects), frozenset(body.offices))
    record, secret, change = door.tokens.create(body.name, caller, now, now + (USUAL if length is None else length))
    made = shown(record, secret)
    await door.commit(change, *call.keep(made))
    return made


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
