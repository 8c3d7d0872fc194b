"""Callers whom an OpenID Connect provider vouches for: bearer JWTs, checked by the keys that it publishes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, cast

import attrs
import httpx
import trio
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from leasekit.client.shapes import Office, Role
from leasekit.config.gateway import OidcTable
from leasekit.core.time import MINUTE, SECOND, Duration, Instant
from leasekit.gateway.callers import OFFICES, ROLES, Caller
from leasekit.gateway.problems import ProblemError

FETCHED_EVERY: Final[Duration] = MINUTE
"""How often keys are fetched at most."""
AGAIN_AFTER: Final[Duration] = 5 * SECOND
"""When they are fetched again if the provider did not answer."""
WITHIN: Final = 10.0
"""How long the provider has to answer, in seconds."""
LEEWAY: Final = 60
"""By how much clocks may differ, in seconds."""


@attrs.define(eq=False)
class OpenIdKeys:
    """The keys of the provider of ``table``, which are fetched when one is needed that is not known."""

    table: OidcTable
    _keys: KeySet = attrs.field(init=False, factory=lambda: KeySet([]))
    _not_before: Instant = attrs.field(init=False, default=0)
    _fetching: trio.Lock = attrs.field(init=False, factory=trio.Lock)

    async def caller(self, token: str, now: Instant) -> Caller | None:
        """Whom a JWT stands for; None for one that is not the provider's, not for this gateway, or over. Raises
        :class:`ProblemError` where the provider is away.
        """
        try:
            claims = await self._claims(token, now)
            registry = jwt.JWTClaimsRegistry(
                now=now // SECOND, leeway=LEEWAY,
                iss={"essential": True, "value": self.table.issuer},
                aud={"essential": True, "value": self.table.audience or self.table.client_id},
                exp={"essential": True}, sub={"essential": True},
            )  # fmt: skip
            registry.validate(claims)
        except (JoseError, ValueError):
            return None
        return self._vouched(claims)

    async def _claims(self, token: str, now: Instant) -> dict[str, Any]:
        try:
            return self._decoded(token)
        except InvalidKeyIdError:
            async with self._fetching:
                if now >= self._not_before:
                    await self._fetch(now)
            return self._decoded(token)

    def _decoded(self, token: str) -> dict[str, Any]:
        return jwt.decode(token, self._keys, algorithms=list(self.table.algorithms)).claims

    async def _fetch(self, now: Instant) -> None:
        """Have the keys that the provider has now. Raises :class:`ProblemError`."""
        self._not_before = now + AGAIN_AFTER
        async with self.asking() as client:
            keys = (await client.get((await self.document(client))["jwks_uri"])).json()
            self._keys = KeySet.import_key_set(keys)
        self._not_before = now + FETCHED_EVERY

    async def document(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """What the provider says of itself: where its keys are, and where one logs in."""
        issuer = self.table.issuer
        found: dict[str, Any] = (await client.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")).json()
        if found["issuer"] != issuer:
            raise ValueError(f"its document is of {found['issuer']!r:.200}")
        return found

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[httpx.AsyncClient]:
        """Questions to the provider. Raises :class:`ProblemError` for one that does not answer as it should."""
        try:
            async with httpx.AsyncClient(timeout=WITHIN) as client:
                yield client
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, JoseError) as error:
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self.table.issuer}: no OpenID Connect provider answers there: {error!s:.200}",
                code="away",
            ) from None

    def _vouched(self, claims: dict[str, Any]) -> Caller | None:
        """Who that is, with what their groups may do."""
        name = claims["sub"]
        if self.table.name == "email":
            name = claims.get("email") if claims.get("email_verified") is True else None
        if (
            not isinstance(name, str) or not name or "events" in claims
        ):  # a token that ends a session vouches for nobody
            return None
        groups = claims.get(self.table.groups_claim, ())
        groups = [groups] if isinstance(groups, str) else groups
        given = [right for group in groups if isinstance(group, str) for right in self.table.groups.get(group, ())]
        projects = _projects(right for right in given if right not in OFFICES)
        offices = frozenset(cast(Office, right) for right in given if right in OFFICES)
        until = (int(claims["exp"]) + LEEWAY) * SECOND
        return Caller(f"oidc:{name}", "OpenID Connect", projects, offices, until=until)


def _projects(rights: Iterable[str]) -> dict[str, Role]:
    """The highest role in each project."""
    found: dict[str, Role] = {}
    for right in rights:
        project, _, role = right.rpartition(":")
        if project not in found or ROLES.index(role) > ROLES.index(found[project]):
            found[project] = cast(Role, role)
    return found
