"""Logging in by a device's flow (RFC 8628), and where what one has logged in by is kept: a file for its owner alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx

GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
WITHIN: Final = 30.0
"""How long an answer is waited for, in seconds."""
EVERY: Final = 5.0
"""How often it is asked whether somebody has agreed, where the provider doesn't say, in seconds (RFC 8628)."""


class LoginError(Exception):
    """A login that came to nothing."""


def logins_file() -> Path:
    """Where tokens are kept, by the gateway's URL."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "leasekit" / "logins.json"


def kept_token(url: str) -> str:
    """The token for a gateway; empty where nobody has logged in."""
    with suppress(OSError, ValueError):
        found = json.loads(logins_file().read_text())
        if isinstance(found, dict):
            return str(found.get(url.rstrip("/"), ""))
    return ""


def keep_token(url: str, token: str) -> Path:
    """Keep the token for a gateway, and say where. Raises ``OSError``."""
    path = logins_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept: dict[str, str] = {}
    with suppress(OSError, ValueError):
        kept = json.loads(path.read_text())
    kept[url.rstrip("/")] = token
    fresh = path.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(kept, file, indent=1)
    fresh.replace(path)
    return path


def device_login(issuer: str, client_id: str, scopes: str, tell: Callable[[str, str], None]) -> str:
    """The token of who agrees, at the address and by the code that are told. Raises :class:`LoginError`."""
    with httpx.Client(timeout=WITHIN) as client:
        try:
            found = client.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration").json()
            asked = _form(client, found["device_authorization_endpoint"], client_id=client_id, scope=scopes)
            tell(asked.get("verification_uri_complete") or asked["verification_uri"], asked["user_code"])
            form = {"grant_type": GRANT, "device_code": asked["device_code"], "client_id": client_id}
            return next(_answers(client, found["token_endpoint"], form, float(asked.get("interval", EVERY))))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            raise LoginError(f"{issuer}: no device can log in there: {error!r:.200}") from None


def _answers(client: httpx.Client, where: str, form: dict[str, str], every: float) -> Iterator[str]:
    """The token, as soon as somebody has agreed. Raises :class:`LoginError`."""
    while True:
        time.sleep(every)
        found = _form(client, where, **form)
        error = found.get("error", "")
        if error == "slow_down":
            every += EVERY
        elif not error:
            # An ID token says for whom it is, and what the groups are; not every provider's access token does.
            yield str(found.get("id_token") or found["access_token"])
        elif error != "authorization_pending":
            raise LoginError(f"{where}: {found.get('error_description') or error:.200}")


def _form(client: httpx.Client, where: str, **form: str) -> dict[str, Any]:
    found: dict[str, Any] = client.post(where, data=form).json()
    return found
