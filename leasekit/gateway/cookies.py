"""What a browser shows: the cookie of its session, and the word by which a page of ours says that it is one.

A page of another site can have a browser send the cookie, but can't read the word: it is made from the session's token,
stands in our pages, and comes back in a header (a "CSRF token").
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

NAME: Final = "leasekit"
SECURE_NAME: Final = "__Host-leasekit"
"""Where pages come by TLS: a browser takes it from there alone, and gives it to no other host."""
HEADER: Final = "x-csrf-token"


def session_of(headers: Mapping[str, str]) -> str:
    """The token of the session; empty where the browser has none."""
    found = dict(part.strip().split("=", 1) for part in headers.get("cookie", "").split(";") if "=" in part)
    return found.get(SECURE_NAME) or found.get(NAME, "")


def set_session(token: str, seconds: int, *, secure: bool) -> str:
    """The header that has a browser keep a session for so long; 0: forget it."""
    name, more = (SECURE_NAME, "; Secure") if secure else (NAME, "")
    return f"{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{more}"


def word_of(token: str) -> str:
    """What pages of a session say in :data:`HEADER`."""
    return hmac.digest(token.encode(), b"leasekit csrf", hashlib.sha256).hex()[:32]


def says_word(headers: Mapping[str, str], token: str) -> bool:
    """Whether a page of the session asks."""
    return hmac.compare_digest(headers.get(HEADER, "").encode(), word_of(token).encode())


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a page of another site asks. Programs say nothing of it."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")
