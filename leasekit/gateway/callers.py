"""Who calls, and what they may do: tokens, of which only hashes are kept.

In a project, which is a guest, somebody is a viewer, a user or a manager; an operator may do everything in all of the
deployment, an auditor look at everything.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import msgpack

from leasekit.client.shapes import Office, Role
from leasekit.core.errors import LeasekitError
from leasekit.core.schema import Change, Row
from leasekit.core.time import DAY, MINUTE, Duration, Instant

VIEWER: Final = "viewer"
USER: Final = "user"
MANAGER: Final = "manager"
OPERATOR: Final = "operator"
AUDITOR: Final = "auditor"
ROLES: Final[tuple[Role, ...]] = (VIEWER, USER, MANAGER)
"""Roles in a project, each with the rights of those before it."""
OFFICES: Final = (OPERATOR, AUDITOR)
PREFIX: Final = "lk_"
TOKEN: Final = re.compile(f"{PREFIX}[A-Za-z0-9_-]{{43}}")
USED_EVERY: Final[Duration] = MINUTE
"""How exactly it is kept when a token was used last."""
TOKENS_MAX: Final = 10_000
OVER_KEPT: Final[Duration] = 30 * DAY
"""How long a token that is over is still listed."""
SESSIONS_MAX: Final = 20
"""How many sessions somebody has at once."""
TABLE: Final = "tokens"


@attrs.frozen
class Caller:
    """Who calls: ``name``, by which ``way`` (a token, a session, no login), and their rights: ``projects`` with a role
    in each, and ``offices``. ``token`` is the id of the token that they show, ``until`` when a JWT is over.
    """

    name: str
    way: str
    projects: Mapping[str, Role] = attrs.Factory(dict)
    offices: frozenset[Office] = frozenset()
    token: str = ""
    until: Instant | None = None

    def may(self, project: str, role: str) -> bool:
        """Whether they have ``role``, or one above it, in a project."""
        if OPERATOR in self.offices or (role == VIEWER and AUDITOR in self.offices):
            return True
        has = self.projects.get(project)
        return has is not None and ROLES.index(has) >= ROLES.index(role)

    def role(self, project: str) -> Role:
        """The highest role that they have in a project into which they may look; an office has one in each."""
        return next(one for one in reversed(ROLES) if self.may(project, one))

    @property
    def sees_all(self) -> bool:
        """Whether they may look at everything."""
        return not self.offices.isdisjoint(OFFICES)

    def covers(self, projects: Mapping[str, Role], offices: Iterable[Office]) -> bool:
        """Whether they have all these rights themselves."""
        return OPERATOR in self.offices or (
            self.offices.issuperset(offices) and all(self.may(name, role) for name, role in projects.items())
        )


ANYBODY: Final = Caller("anybody", "no login", {}, frozenset({OPERATOR}))
"""Who calls where the deploy file says that nobody has to log in."""
NOBODY: Final = Caller("nobody", "no login")
"""Who calls a route by which one logs in."""


@attrs.define(kw_only=True)
class TokenRecord:
    """A token as it is kept: ``digest`` is the hash of what its holder shows. That of a session has no name."""

    id: str
    name: str
    digest: bytes
    caller: Caller
    created: Instant
    expires: Instant | None = None
    used: Instant | None = None

    @property
    def is_session(self) -> bool:
        """Whether somebody logged in by it."""
        return not self.name

    def row(self) -> Row:
        """Its row."""
        body = msgpack.packb([dict(self.caller.projects), sorted(self.caller.offices), self.expires, self.used])
        return (self.id, self.name, self.caller.name, self.digest, self.created, body)

    @classmethod
    def of_row(cls, row: Row) -> TokenRecord:
        """From its row."""
        id_, name, caller, digest, created, body = row
        projects, offices, expires, used = msgpack.unpackb(body)
        who = Caller(caller, _way(name), projects, frozenset(offices), id_)
        return cls(id=id_, name=name, digest=digest, caller=who, created=created, expires=expires, used=used)


class TokenError(LeasekitError):
    """A token that can't be made or is not there."""


@attrs.define(eq=False)
class Tokens:
    """All tokens of a gateway. Each change is returned, to be committed before it is told."""

    _by_id: dict[str, TokenRecord] = attrs.field(init=False, factory=dict)
    _by_digest: dict[bytes, TokenRecord] = attrs.field(init=False, factory=dict)

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what the store has kept, and nothing else."""
        self._by_id.clear()
        self._by_digest.clear()
        for row in rows:
            self._add(TokenRecord.of_row(row))

    def _add(self, record: TokenRecord) -> None:
        self._by_id[record.id] = record
        self._by_digest[record.digest] = record

    def create(
        self, name: str, caller: Caller, now: Instant, expires: Instant | None
    ) -> tuple[TokenRecord, str, Change]:
        """A new token, what its holder shows, and what is to be committed. Raises ``TokenError``."""
        if len(self._by_id) >= TOKENS_MAX:
            raise TokenError(f"there are {TOKENS_MAX} tokens already: revoke some")
        secret = PREFIX + secrets.token_urlsafe(32)
        id_ = secrets.token_hex(8)
        who = attrs.evolve(caller, way=_way(name), token=id_)
        record = TokenRecord(id=id_, name=name, digest=digest_of(secret), caller=who, created=now, expires=expires)
        self._add(record)
        return record, secret, Change(TABLE, record.id, record.row())

    def find(self, secret: str, now: Instant) -> tuple[TokenRecord | None, Change | None]:
        """Whose token that is, if it is anybody's and not over; and what is to be committed, now or later.

        A token is looked for by its hash, so that how long it takes says nothing of those that there are.
        """
        record = self._by_digest.get(digest_of(secret)) if TOKEN.fullmatch(secret) else None
        if record is None or not self.is_good(record.id, now):
            return None, None
        if record.used is not None and now - record.used < USED_EVERY:
            return record, None
        record.used = now
        return record, Change(TABLE, record.id, record.row())

    def is_good(self, id_: str, now: Instant) -> bool:
        """Whether a token is there, and not over."""
        record = self._by_id.get(id_)
        return record is not None and (record.expires is None or record.expires > now)

    def all(self) -> list[TokenRecord]:
        """Every token, oldest first."""
        return sorted(self._by_id.values(), key=lambda record: (record.created, record.id))

    def named(self, name: str) -> list[TokenRecord]:
        """The tokens of somebody, without their sessions."""
        return [one for one in self._by_id.values() if one.caller.name == name and not one.is_session]

    def end_sessions(self, name: str, now: Instant | None) -> list[Change]:
        """End all sessions of somebody, or, at an instant, everybody's that are over by then, and the oldest of theirs
        where they have many.
        """
        theirs = [one for one in self.all() if one.is_session and one.caller.name == name]
        ended = {one.id for one in (theirs if now is None else theirs[: 1 - SESSIONS_MAX])}
        if now is not None:
            ended |= {one.id for one in self.all() if one.is_session and one.expires is not None and one.expires <= now}
        return [self.revoke(id_) for id_ in sorted(ended)]

    def end_old(self, now: Instant) -> list[Change]:
        """End all that have been over for long, which are room for others by then."""
        old = [one.id for one in self.all() if one.expires is not None and one.expires + OVER_KEPT <= now]
        return [self.revoke(id_) for id_ in old]

    def end_beyond(self, who: Caller) -> list[Change]:
        """End all tokens of somebody that allow more than they may by now."""
        theirs = [one for one in self.all() if one.caller.name == who.name]
        return [self.revoke(one.id) for one in theirs if not who.covers(one.caller.projects, one.caller.offices)]

    def revoke(self, id_: str) -> Change:
        """Have a token be none any more. Raises ``TokenError``."""
        record = self._by_id.pop(id_, None)
        if record is None:
            raise TokenError(f"found {id_!r:.40}, which is no token here")
        del self._by_digest[record.digest]
        return Change(TABLE, id_, None)


def _way(name: str) -> str:
    return f"token {name}" if name else "session"


def digest_of(secret: str) -> bytes:
    """The hash of a token. 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode()).digest()


def rights(projects: Mapping[str, Any], offices: Iterable[str], known: Iterable[str]) -> None:
    """Checks what a token is to allow. Raises ``TokenError``."""
    known = list(known)
    for project, role in projects.items():
        if project not in known:
            raise TokenError(f"projects: found {project!r:.80}, there are {', '.join(known)}")
        if role not in ROLES:
            raise TokenError(f"projects.{project}: found {role!r:.40}, expected one of {', '.join(ROLES)}")
    for office in offices:
        if office not in OFFICES:
            raise TokenError(f"offices: found {office!r:.40}, expected some of {', '.join(OFFICES)}")
