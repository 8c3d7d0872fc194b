"""Requests with an idempotency key that the gateway itself answers. What actors do, they do once themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from weakref import WeakValueDictionary

import attrs
import msgspec
import trio

from leasekit.core.reasons import Code, Reason, words
from leasekit.core.time import DAY, Duration, Instant
from leasekit.gateway.problems import ProblemError
from leasekit.gateway.routing import Call, Route

OWN: Final = frozenset({
    "announcements", "approvals", "feeds", "notifications", "policies", "templates", "tokens", "users", "waits"
})  # fmt: skip
"""Nouns of what the gateway keeps itself."""
KEPT: Final[Duration] = DAY
MOST: Final = 5_000
"""How many answers are kept at most; the oldest make room."""
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


@attrs.frozen
class Done:
    """What was answered to a request, of which ``asked`` is the digest."""

    asked: bytes
    until: Instant
    answer: msgspec.Raw


@attrs.define(eq=False)
class Repeats:
    """What was answered to requests with keys, by caller and key. It is kept in memory alone: there are secrets in some
    answers of which the store has no more than a hash.
    """

    _done: dict[bytes, Done] = attrs.field(init=False, factory=dict)
    _running: WeakValueDictionary[bytes, trio.Lock] = attrs.field(init=False, factory=WeakValueDictionary)

    async def once(self, call: Call, route: Route, given: Mapping[str, Any], run: Callable[[], Awaitable[Any]]) -> Any:
        """What ``run`` answers, or what the same request was answered before; a repeat waits for the one that runs.
        Raises what ``run`` raises, and :class:`ProblemError` for a key that another request had.
        """
        now, asked = call.door.clock(), _digest(route.method, route.path, given)
        id_ = _digest(call.caller.name, call.key)
        running = self._running.setdefault(id_, trio.Lock())
        async with running:
            done = self._done.get(id_)
            if done is not None and done.until > now:
                if done.asked != asked:
                    text = words(Reason(Code.KEY_USED, what=f"{route.method} {route.path}"))
                    raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, text, code=Code.KEY_USED)
                return done.answer
            answer = await run()
            self._done.pop(id_, None)
            self._done[id_] = Done(asked, now + KEPT, msgspec.Raw(_encode(answer)))
            if len(self._done) > MOST:
                del self._done[next(iter(self._done))]
        return answer


def is_kept(call: Call, route: Route) -> bool:
    """Whether the answer to a request is kept here: it is about what the gateway keeps, or a repeat of it would find
    what it is about changed, by itself.
    """
    return bool(call.key) and route.method != "GET" and (route.tag in OWN or "if-match" in call.headers)


def _digest(*what: Any) -> bytes:
    return hashlib.sha256(_encode(what)).digest()
