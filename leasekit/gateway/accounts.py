"""Local users over HTTP, and the sessions that they open by their passwords."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import attrs
from msgspec import Struct

from leasekit.client.shapes import LoginWays, SessionRequest, Token, User, UserChange, UserRequest
from leasekit.core.schema import Change
from leasekit.core.time import HOUR, Duration
from leasekit.gateway.callers import OPERATOR, VIEWER, Caller, rights
from leasekit.gateway.door import GUEST, GatewayDoor, forbidden
from leasekit.gateway.instants import told
from leasekit.gateway.kept import Kept
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.rates import network
from leasekit.gateway.routing import Call, route, unprocessable
from leasekit.gateway.tokens import shown
from leasekit.gateway.users import UserRecord

SESSION: Final[Duration] = 8 * HOUR
"""How long a session is good."""


class UserList(Struct, kw_only=True):
    """All users that somebody may see."""

    items: list[User]


@route("GET", "/login", is_open=True)
async def show_login(call: Call) -> LoginWays:
    """Say how one logs in: by a local user's password, and by which OpenID Connect provider."""
    oidc = call.door.oidc
    if oidc is None:
        return LoginWays()
    return LoginWays(issuer=oidc.table.issuer, client_id=oidc.table.client_id, scopes=oidc.table.scopes)


@route("POST", "/sessions", status=HTTPStatus.CREATED, is_open=True)
async def open_session(call: Call, body: SessionRequest) -> Token:
    """Log in by name and password: a token with the user's rights for eight hours, shown now and never again."""
    door = call.door
    record = await _checked(call, body.name, body.password)
    if record is None:
        raise ProblemError(
            HTTPStatus.UNAUTHORIZED, "name, password: there is no user of that name with that password",
            code="unauthenticated",
        )  # fmt: skip
    return await begin_session(door, record.caller)


async def begin_session(door: GatewayDoor, who: Caller) -> Token:
    """A session of somebody who has shown who they are. Raises ``TokenError``."""
    now = door.clock()
    ended = [*door.tokens.end_sessions(who.name, now), *door.tokens.end_old(now)]
    kept, secret, change = door.tokens.create("", who, now, now + SESSION)
    await door.commit(*ended, change)
    return shown(kept, secret)


@route("DELETE", "/sessions")
async def close_session(call: Call) -> Token:
    """End the session whose token is shown."""
    found = next((one for one in call.door.tokens.all() if one.id == call.caller.token), None)
    if found is None or not found.is_session:
        raise unprocessable("Authorization: found no token of a session; other tokens are revoked by their ids")
    await call.door.commit(call.door.tokens.revoke(found.id))
    return shown(found)


@route("GET", "/users")
async def list_users(call: Call) -> UserList:
    """List local users; who is no operator or auditor sees themselves."""
    seen = [one for one in call.door.users.values() if call.caller.sees_all or one.name == call.caller.name]
    return UserList(items=[told(User, one) for one in sorted(seen, key=lambda one: one.name)])


@route("POST", "/users", status=HTTPStatus.CREATED)
async def add_user(call: Call, body: UserRequest) -> User:
    """Make a local user."""
    _operators(call)
    door = call.door
    rights(body.projects, body.offices, [actor.name for actor in door.of_role(GUEST)])
    salt, digest = await door.users.hashed(body.password)
    record = UserRecord(
        name=body.name, created=door.clock(), projects=body.projects, offices=body.offices, salt=salt, digest=digest
    )
    made = told(User, record)
    await door.commit(door.users.add(record), *call.keep(made))
    return made


@route("PATCH", "/users/{user}")
async def change_user(call: Call, user: str, body: UserChange) -> User:
    """Change rights, or a password: one's own with the `old` one, anybody's as an operator. Their sessions end; with
    rights their tokens that allow more, and their calendars, rules, waits and own templates of projects that are lost.
    """
    if OPERATOR in call.caller.offices:
        _there(call, user)
    elif body.password is None or body.projects is not None or body.offices is not None:
        raise forbidden(f"{call.caller.name} is no operator, and may change their own password only")
    elif user != call.caller.name or await _checked(call, user, body.old) is None:
        raise forbidden("old: it is not the password until now")
    door = call.door
    rights(body.projects or {}, body.offices or [], [actor.name for actor in door.of_role(GUEST)])
    hashed = None if body.password is None else await door.users.hashed(body.password)
    kept = door.users.find(user)
    salt, digest = hashed or (kept.salt, kept.digest)
    record = attrs.evolve(
        kept, salt=salt, digest=digest,
        projects=kept.projects if body.projects is None else body.projects,
        offices=kept.offices if body.offices is None else body.offices,
    )  # fmt: skip
    gone = door.tokens.end_sessions(user, None)
    if (record.projects, record.offices) != (kept.projects, kept.offices):
        gone += [*door.tokens.end_beyond(record.caller), *_let_go(door, record.caller)]
    changed = told(User, record)
    await door.commit(door.users.put(record), *gone, *call.keep(changed))
    return changed


@route("DELETE", "/users/{user}")
async def remove_user(call: Call, user: str) -> User:
    """Have somebody be no user any more. Their sessions, tokens, calendars, rules, waits and own templates end."""
    _operators(call)
    _there(call, user)
    door = call.door
    record = door.users[user]
    theirs = [one.id for one in door.tokens.all() if one.caller.name == user]
    gone = _let_go(door, Caller(user, ""))
    removed = told(User, record)
    await door.commit(*door.users.drop(user), *map(door.tokens.revoke, theirs), *gone, *call.keep(removed))
    return removed


def _let_go(door: GatewayDoor, who: Caller) -> list[Change]:
    """What somebody has made in projects into which they may not look any more goes, but for what others use."""
    gone = list[Change]()
    made: tuple[Kept[Any], ...] = (door.feeds, door.waits, door.templates)
    for kept in made:
        lost = [one.id for one in kept.values() if _is_lost(one, who) and not getattr(one, "shared", False)]
        gone += kept.drop(*lost)
    for rule in [one.id for one in door.notices.rules.values() if _is_lost(one, who)]:
        gone += door.notices.remove(rule)
    return gone


def _is_lost(one: Any, who: Caller) -> bool:
    return one.caller == who.name and not who.may(one.project, VIEWER)


def _operators(call: Call) -> None:
    if OPERATOR not in call.caller.offices:
        raise forbidden(f"{call.caller.name} is no operator")


def _there(call: Call, user: str) -> None:
    if user not in call.door.users:
        raise not_found("user", user)


async def _checked(call: Call, name: str, password: str) -> UserRecord | None:
    """Whose password that is. Raises ``ProblemError`` when there were too many attempts."""
    door, now = call.door, call.door.clock()
    door.sources.take(network(call.source), now)
    door.logins.take(name, now)
    return await door.users.check(name, password)
