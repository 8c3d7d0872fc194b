"""Logging in to pages by an OpenID Connect provider: the authorization code flow with PKCE (RFC 7636).

What is begun here is known again by a cookie of the very browser: who brings another's code, or comes from another
provider (RFC 9207), has begun nothing. The code is of no use to who does not have the verifier, which only the cookie
has; the ID token must have the nonce that was asked for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import attrs

from leasekit.core.time import Instant
from leasekit.gateway.callers import Caller
from leasekit.gateway.problems import ProblemError

if TYPE_CHECKING:
    from leasekit.gateway.oidc import OpenIdKeys

COOKIE: Final = "leasekit-login"
WITHIN_S: Final = 600
"""How long somebody may take at the provider, in seconds."""


@attrs.frozen
class BegunLogin:
    """A login that was begun: what its browser keeps until it comes back from the provider."""

    state: str = attrs.field(factory=lambda: secrets.token_urlsafe(24))
    nonce: str = attrs.field(factory=lambda: secrets.token_urlsafe(24))
    verifier: str = attrs.field(factory=lambda: secrets.token_urlsafe(48))
    to: str = ""

    @classmethod
    def of_cookie(cls, text: str) -> BegunLogin | None:
        """What a cookie says; None for one that is none."""
        try:
            return cls(*(str(one) for one in json.loads(base64.urlsafe_b64decode(text))))
        except (ValueError, TypeError):
            return None

    def cookie(self, *, secure: bool) -> str:
        """The header that has a browser keep it."""
        text = base64.urlsafe_b64encode(json.dumps(attrs.astuple(self)).encode()).decode()
        more = "; Secure" if secure else ""
        return f"{COOKIE}={text}; Path=/; Max-Age={WITHIN_S}; HttpOnly; SameSite=Lax{more}"


async def way_to(keys: OpenIdKeys, begun: BegunLogin, back: str) -> str:
    """The address at the provider where one logs in and is sent ``back``. Raises :class:`ProblemError`."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=").decode()
    async with keys.asking() as client:
        place = (await keys.document(client))["authorization_endpoint"]
    query = {
        "response_type": "code", "client_id": keys.table.client_id, "redirect_uri": back, "scope": keys.table.scopes,
        "state": begun.state, "nonce": begun.nonce, "code_challenge": challenge, "code_challenge_method": "S256",
    }  # fmt: skip
    return f"{place}{'&' if '?' in place else '?'}{urlencode(query)}"


async def who_came_back(
    keys: OpenIdKeys, begun: BegunLogin | None, query: Mapping[str, str], back: str, now: Instant
) -> Caller:
    """Who that is that the provider has sent back. Raises :class:`ProblemError`."""
    if begun is None or not hmac.compare_digest(begun.state.encode(), query.get("state", "").encode()):
        raise _refused("This login was not begun in this browser, or took too long.")
    if query.get("iss", keys.table.issuer) != keys.table.issuer:
        raise _refused("The answer is another provider's.")
    if "code" not in query:
        raise _refused(f"The provider says: {query.get('error_description') or query.get('error', 'nothing')!s:.200}")
    form = {
        "grant_type": "authorization_code", "code": query["code"], "redirect_uri": back,
        "client_id": keys.table.client_id, "code_verifier": begun.verifier,
    }  # fmt: skip
    async with keys.asking() as client:
        place = (await keys.document(client))["token_endpoint"]
        answer = await client.post(place, data=form)
        if answer.status_code != HTTPStatus.OK:
            raise _refused("The provider does not know the code.")
        token = str(answer.json()["id_token"])
    caller = await keys.caller(token, now)
    if caller is None or not hmac.compare_digest(_claims(token).get("nonce", "").encode(), begun.nonce.encode()):
        raise _refused("The provider's token is not for this login.")
    if not caller.projects and not caller.offices:
        raise _refused(
            "None of your groups may do anything here: an operator can say in the deploy file what they may."
        )
    return caller


def _claims(token: str) -> dict[str, Any]:
    """What a token says that was checked already."""
    part = token.split(".")[1]
    found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _refused(text: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNAUTHORIZED, text, code="unauthenticated")
