"""Local users: their names, their rights, and what their passwords are checked by."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from functools import partial
from typing import ClassVar, Final

import attrs
import trio

from leasekit.client.shapes import Office, Role
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.records import KeptRecord
from leasekit.core.schema import Change
from leasekit.core.time import Instant
from leasekit.gateway.callers import Caller
from leasekit.gateway.kept import Kept

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
NAME_ALLOWED: Final = "1 to 64 letters, digits and . _ @ -"
USERS_MAX: Final = 10_000
LENGTH_MIN: Final = 12
"""The shortest password, in characters."""
LENGTH_MAX: Final = 1_024
SALT: Final = 16
COST, BLOCK, TIMES = 2**15, 8, 3
"""Of scrypt: 32 MiB, three times over (OWASP's cheat sheet on passwords)."""
MEMORY: Final = 2 * 128 * COST * BLOCK
AT_ONCE: Final = 2
"""How many passwords are hashed at once, which bounds the memory and the processors that this takes."""


class UserError(LeasekitError):
    """A user that can't be made or is not there."""


@attrs.frozen(kw_only=True)
class UserRecord(KeptRecord):
    """A user as kept: ``digest`` is the password's, under ``salt``."""

    name: str
    created: Instant
    projects: dict[str, Role]
    offices: list[Office]
    salt: bytes = attrs.field(repr=False)
    digest: bytes = attrs.field(repr=False)

    @property
    def caller(self) -> Caller:
        """Who calls in a session of theirs."""
        return Caller(self.name, "session", self.projects, frozenset(self.offices))

    table = "users"
    columns: ClassVar = {"id": "name"}


class LocalUsers(Kept[UserRecord]):
    """All local users of a gateway, by name."""

    def __init__(self) -> None:
        super().__init__(UserRecord)
        self._hashing = trio.CapacityLimiter(AT_ONCE)

    def find(self, name: str) -> UserRecord:
        """One. Raises ``UserError``."""
        if name not in self:
            raise UserError(f"found {name!r:.80}, which is no user here")
        return self[name]

    def add(self, record: UserRecord) -> Change:
        """One more. Raises ``UserError``."""
        if not NAME.fullmatch(record.name):
            raise UserError(f"name: found {record.name!r:.80}, expected {NAME_ALLOWED}")
        if record.name in self:
            raise UserError(f"name: found {record.name!r}, who is a user already")
        if len(self) >= USERS_MAX:
            raise UserError(f"there are {USERS_MAX} users already: remove some")
        return self.put(record)

    async def check(self, name: str, password: str) -> UserRecord | None:
        """Whose password that is. Of a name that nobody has as much is computed as of any other, so that the time says
        nothing of the names that there are.
        """
        record = self.get(name)
        salt, kept = (record.salt, record.digest) if record else (bytes(SALT), b"")
        fits = hmac.compare_digest(await self._hash(password, salt), kept)
        # Somebody may have been removed, or have another password, while it was computed.
        return record if fits and self.get(name) is record else None

    async def hashed(self, password: str) -> tuple[bytes, bytes]:
        """The salt and the digest of a new password. Raises ``UserError``."""
        if not LENGTH_MIN <= len(password) <= LENGTH_MAX:
            raise UserError(f"password: found {len(password)} characters, expected {LENGTH_MIN} to {LENGTH_MAX:,}")
        salt = secrets.token_bytes(SALT)
        return salt, await self._hash(password, salt)

    async def _hash(self, password: str, salt: bytes) -> bytes:
        text = password.encode("utf-8", "surrogatepass")
        compute = partial(hashlib.scrypt, text, salt=salt, n=COST, r=BLOCK, p=TIMES, maxmem=MEMORY)
        return await trio.to_thread.run_sync(compute, limiter=self._hashing)
