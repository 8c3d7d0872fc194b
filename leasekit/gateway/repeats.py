"""Requests with an idempotency key that the gateway itself answers. What actors do, they do once themselves."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

import attrs
import msgspec
import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from leasekit.core.reasons import Code, Reason, words
from leasekit.core.schema import Change, Row, StoreError
from leasekit.core.time import DAY, Duration, Instant
from leasekit.gateway.cookies import session_of
from leasekit.gateway.problems import ProblemError
from leasekit.gateway.routing import Call, Route

OWN: Final = frozenset({
    "announcements", "approvals", "feeds", "notifications", "policies", "templates", "tokens", "users", "waits"
})  # fmt: skip
"""Nouns of what the gateway keeps itself."""
KEPT: Final[Duration] = DAY
MOST: Final = 5_000
"""How many answers are kept at most; the oldest make room."""
EACH: Final = 1_000
"""How many of one caller's, so that who calls much has others keep theirs."""
SHARE: Final = 2**20
"""How many bytes of answers of one caller are kept at most; the caller's oldest make room."""
NONCE: Final = 12
_CALLER: Final = 32
"""How many characters of an id say whose answer it is."""
_encode: Final = msgspec.json.Encoder(order="deterministic").encode

logger = logging.getLogger(__name__)


@attrs.frozen
class Done:
    """What was answered to a request, of which ``asked`` is the digest. There are secrets in some answers of which the
    store has no more than a hash, and a caller's tokens may differ in what they allow: an answer is ``sealed`` with
    what its caller called with, and its key.
    """

    table: ClassVar = "answers"
    id: str
    until: Instant
    asked: bytes
    sealed: bytes

    def row(self) -> Row:
        """Its row."""
        return (self.id, self.until, self.asked, self.sealed)

    def opened(self, call: Call) -> msgspec.Raw:
        """The answer, for who calls as they did then. Raises :class:`ProblemError` for who does not."""
        try:
            return msgspec.Raw(_cipher(call).decrypt(self.sealed[:NONCE], self.sealed[NONCE:], None))
        except InvalidTag:
            text = "Idempotency-Key: this request was done; its answer is for the token that it was sent with"
            raise ProblemError(HTTPStatus.CONFLICT, text, code="answer_sealed") from None


class Repeats:
    """What was answered to requests with keys, by caller and key: in memory, and in the gateway's store."""

    def __init__(self) -> None:
        self._done: dict[str, Done] = {}
        self._running: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    def restore(self, tables: Mapping[str, Iterable[Row]]) -> None:
        """Take up what the store has kept, and nothing else."""
        found = sorted((Done(*row) for row in tables.get(Done.table, ())), key=lambda one: one.until)
        self._done = {one.id: one for one in found}

    async def once(
        self, call: Call, route: Route, given: Mapping[str, Any], run: Callable[[Call], Awaitable[Any]]
    ) -> Any:
        """What ``run`` answers, or what the same request was answered before; a repeat waits for the one that runs.
        Raises what ``run`` raises, and :class:`ProblemError` for a key that another request had.
        """
        asked = _digest(route.method, route.path, given)
        id_ = _digest(call.caller.name).hex()[:_CALLER] + _digest(call.caller.name, call.key).hex()[:_CALLER]
        running = self._running.setdefault(id_, trio.Lock())
        async with running:
            done = self._done.get(id_)
            if done is not None and done.until <= call.door.clock():
                del self._done[id_]
            elif done is not None:
                if done.asked != asked:
                    text = words(Reason(Code.KEY_USED, what=f"{route.method} {route.path}"))
                    raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, text, code=Code.KEY_USED)
                return done.opened(call)
            keep = partial(self._keep, call, id_, asked)
            answer = await run(attrs.evolve(call, keep=keep))
            kept = self._done.get(id_)
            if kept is None or bytes(kept.opened(call)) != _encode(answer):
                try:
                    await call.door.commit(*keep(answer))
                except StoreError as error:  # it is done, whether or not that can be kept
                    logger.error("the answer to %s %s is not kept: %s", route.method, route.path, error)
        return answer

    def _keep(self, call: Call, id_: str, asked: bytes, answer: Any) -> Sequence[Change]:
        now, data, nonce = call.door.clock(), _encode(answer), secrets.token_bytes(NONCE)
        self._done.pop(id_, None)
        gone = self._beyond(now, id_[:_CALLER], len(data))
        done = Done(id_, now + KEPT, asked, nonce + _cipher(call).encrypt(nonce, data, None))
        self._done[id_] = done
        return [*(Change(Done.table, one, None) for one in gone), Change(Done.table, id_, done.row())]

    def _beyond(self, now: Instant, caller: str, size: int) -> list[str]:
        """What makes room for one more answer of a caller: what is over, and the oldest."""
        theirs = {id_: len(one.sealed) for id_, one in self._done.items() if id_.startswith(caller)}
        taken, count, gone = size + sum(theirs.values()), 1 + len(theirs), list[str]()
        for place, (id_, one) in enumerate(self._done.items()):
            is_beyond = id_ in theirs and (taken > SHARE or count > EACH)
            if one.until <= now or len(self._done) - place >= MOST or is_beyond:
                gone.append(id_)
                taken -= theirs.get(id_, 0)
                count -= id_ in theirs
        for id_ in gone:
            del self._done[id_]
        return gone


def is_kept(call: Call, route: Route) -> bool:
    """Whether the answer to a request is kept here: it is about what the gateway keeps, or a repeat of it would find
    what it is about changed, by itself.
    """
    return bool(call.key) and route.method != "GET" and (route.tag in OWN or "if-match" in call.headers)


def _cipher(call: Call) -> ChaCha20Poly1305:
    shown = call.headers.get("authorization", "").partition(" ")[2].strip() or session_of(call.headers)
    return ChaCha20Poly1305(_digest("answer", shown, call.key))


def _digest(*what: Any) -> bytes:
    return hashlib.sha256(_encode(what)).digest()
