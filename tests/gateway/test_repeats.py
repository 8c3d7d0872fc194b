"""Requests that come again under their idempotency key, of what the gateway itself keeps, and of what one has seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_world import GatewayUnderTest, until

from leasekit.config.gateway import GatewayTable
from leasekit.core.schema import Change
from leasekit.core.time import DAY, HOUR
from leasekit.gateway import repeats
from leasekit.gateway.actors import ActorConnection
from leasekit.gateway.app import make_app
from leasekit.gateway.callers import Caller
from leasekit.gateway.door import GatewayDoor
from leasekit.stores.memory import MemoryStore

Leased = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("path", "body", "other"),
    [
        ("/tokens", {"name": "ci"}, {"name": "cd"}),
        ("/feeds", {}, {"mine": True}),
        ("/waits", {"type": "vm", "units": 2, "length": "1h"}, {"type": "vm", "units": 3, "length": "1h"}),
        (
            "/templates",
            {"name": "lab", "request": {"type": "vm", "length": "1h"}},
            {"name": "x", "request": {"type": "vm", "length": "1h"}},
        ),
    ],
)
def test_a_repeat_is_answered_as_the_first_was(
    gateway: GatewayUnderTest, path: str, body: dict[str, Any], other: dict[str, Any]
) -> None:
    """It is done once, however many come at once; another request is not taken for it, nor is somebody else's."""
    keyed = {"idempotency-key": f"once{path}"}
    with (
        gateway.client(gateway.token("rita", alpha="user")) as rita,
        gateway.client(gateway.token("rolf", alpha="user")) as rolf,
    ):
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda _: rita.post(path, json=body, headers=keyed), range(4)))
        assert {one.status_code for one in made} == {201}, made[0].text
        assert len({one.content for one in made}) == 1
        again = rita.post(path, json=other, headers=keyed)
        assert (again.status_code, again.json()["code"]) == (422, "key_used")
        assert rolf.post(path, json=body, headers=keyed).json()["id"] != made[0].json()["id"]


def test_what_is_refused_is_tried_again(operator: httpx.Client) -> None:
    """Only what was done is kept."""
    keyed, user = {"idempotency-key": "user"}, {"name": "urs", "password": "correct horse battery"}
    assert operator.post("/users", json={**user, "password": "short"}, headers=keyed).status_code == 422
    assert [operator.post("/users", json=user, headers=keyed).status_code for _ in range(2)] == [201, 201]
    assert operator.post("/users", json=user).status_code == 422, "there is one of that name"
    assert [operator.delete("/users/urs", headers={"idempotency-key": "gone"}).status_code for _ in range(2)] == [
        200,
        200,
    ]


def test_an_answer_is_for_the_token_that_asked(gateway: GatewayUnderTest, leased: Leased) -> None:
    """A token of the same caller that allows less, or in another project, is given no secret and shown no lease."""
    keyed, many = {"idempotency-key": "close-web-1"}, {"name": "ci", "projects": {"alpha": "user"}}
    with (
        gateway.client(gateway.token("rosa", alpha="user")) as whole,
        gateway.client(gateway.token("rosa", beta="viewer")) as less,
    ):
        lease = until(whole, leased(start="2031-01-01T08:00:00Z")["id"], "ticketed")["id"]
        asked = [
            ("/tokens", many, keyed),
            (f"/leases/{lease}/close?project=alpha", {}, {"if-match": "*", "idempotency-key": "close-web-2"}),
        ]
        for path, body, headers in asked:
            first = whole.post(path, json=body, headers=headers)
            assert first.is_success, first.text
            theirs = less.post(path, json=body, headers=headers)
            assert (theirs.status_code, theirs.json()["code"]) == (409, "answer_sealed")
            assert whole.post(path, json=body, headers=headers).content == first.content


def test_a_repeat_of_a_change_of_what_was_seen(user: httpx.Client, leased: Leased) -> None:
    """That the first has changed it is no reason to refuse the second."""
    lease = until(user, leased(start="2031-01-01T08:00:00Z")["id"], "ticketed")["id"]
    seen = user.get(f"/leases/{lease}").headers["etag"]
    headers = {"if-match": seen, "idempotency-key": f"close-{lease}"}
    first, second = (user.post(f"/leases/{lease}/close", json={}, headers=headers) for _ in range(2))
    assert (first.status_code, second.content) == (200, first.content)
    assert user.post(f"/leases/{lease}/close", json={}, headers={"if-match": seen}).status_code == 412


class Killed(BaseException):
    """The gateway is no more."""


class LastingStore(MemoryStore):
    """A store whose process is killed right after so many commits."""

    left = 10**6

    def commit(self, changes: Sequence[Change]) -> None:
        super().commit(changes)
        self.left -= 1
        if not self.left:
            raise Killed


class RestartedGateway:
    """A gateway of one project, which starts anew for each request, at an instant, and keeps its store."""

    def __init__(self) -> None:
        self.store, self.now = LastingStore(), 0
        door = self._opened()
        who = Caller("ada", "token", {"alpha": "user"}, frozenset({"operator"}))
        made = [door.tokens.create(name, who, 0, None) for name in ("own", "other")]
        self.store.commit([change for _, _, change in made])
        self.secret, self.other = (secret for _, secret, _ in made)

    def _opened(self) -> GatewayDoor:
        actors = {"alpha": ActorConnection("alpha", "guest", Path("none"))}
        return GatewayDoor("web", actors, GatewayTable(role="gateway"), self.store, clock=lambda: self.now)

    async def ask(self, method: str, path: str, body: Any = None, key: str = "", secret: str = "") -> httpx.Response:
        """Answers a request."""
        headers = {"authorization": f"Bearer {secret or self.secret}"} | ({"idempotency-key": key} if key else {})
        transport = httpx.ASGITransport(make_app(self._opened(), ""), client=None)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway/api/v1", headers=headers) as client:
            return await client.request(method, path, json=body)

    async def things(self, path: str) -> list[str]:
        """What there is, by id, but for what it began with."""
        items = (await self.ask("GET", path)).json()["items"]
        return [one["id"] for one in items if one["name"] not in ("own", "other")] if path == "/tokens" else [
            one["id"] for one in items
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokens", {"name": "ci"}),
        ("/feeds", {}),
        ("/templates", {"name": "lab", "request": {"type": "vm", "length": "1h"}}),
        ("/announcements", {"text": "power is off", "end": "2031-01-01T00:00:00Z"}),
    ],
)
async def test_a_repeat_is_done_once_wherever_the_gateway_was_killed(path: str, body: dict[str, Any]) -> None:
    """After any of its commits: what it did, and what it answered, are on the disk together."""
    survived = False
    for left in range(1, 10):
        gateway = RestartedGateway()
        gateway.store.left = left
        try:
            await gateway.ask("POST", path, body, "once")
            survived = True
        except Killed:
            gateway.store.left = 10**6
        there = await gateway.things(path)
        again = [await gateway.ask("POST", path, body, "once") for _ in range(2)]
        assert again[0].content == again[1].content
        assert await gateway.things(path) == [again[0].json()["id"]]
        assert there in ([], [again[0].json()["id"]])
        if survived:
            break
    assert survived
    assert left > 1, "it was killed at least once"


async def test_an_answer_is_sealed() -> None:
    """The store has no secret in it; who has another token is told that it was done. Another request is not taken for
    it, and after a day it is one of its own.
    """
    gateway = RestartedGateway()
    made = await gateway.ask("POST", "/tokens", {"name": "ci"}, "once")
    kept = repr(gateway.store.load()["answers"])
    assert made.json()["secret"] not in kept
    assert "secret" not in kept
    other = await gateway.ask("POST", "/tokens", {"name": "ci"}, "once", gateway.other)
    assert (other.status_code, other.json()["code"]) == (409, "answer_sealed")
    another = await gateway.ask("POST", "/tokens", {"name": "cd"}, "once")
    assert (another.status_code, another.json()["code"]) == (422, "key_used")
    assert len(await gateway.things("/tokens")) == 1
    gateway.now += DAY
    assert (await gateway.ask("POST", "/tokens", {"name": "cd"}, "once")).status_code == 201
    assert len(gateway.store.load()["answers"]) == 1, "the one that was over has made room"


async def test_a_caller_keeps_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest answers make room: of a caller who has many bytes of them, and of all where there are many."""
    monkeypatch.setattr(repeats, "SHARE", 1_500)
    gateway = RestartedGateway()
    for number in range(9):
        gateway.now += HOUR
        await gateway.ask("POST", "/tokens", {"name": f"ci-{number}"}, f"once-{number}")
    rows = gateway.store.load()["answers"]
    assert 1 < len(rows) < 9
    assert sum(len(row[-1]) for row in rows) <= 1_500
    assert max(row[1] for row in rows) == gateway.now + DAY
    monkeypatch.setattr(repeats, "MOST", 2)
    await gateway.ask("POST", "/tokens", {"name": "last"}, "last")
    assert len(gateway.store.load()["answers"]) == 2


async def test_a_caller_takes_nothing_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many answers they have kept, and however short these are."""
    monkeypatch.setattr(repeats, "EACH", 3)
    monkeypatch.setattr(repeats, "MOST", 8)
    gateway = RestartedGateway()
    asked = {"name": "others", "caller": "bob", "projects": {"alpha": "user"}}
    bob = (await gateway.ask("POST", "/tokens", asked)).json()["secret"]
    first = await gateway.ask("POST", "/feeds", {}, "bobs", bob)
    for number in range(9):
        assert (await gateway.ask("POST", "/feeds", {}, f"once-{number}")).status_code == 201
    assert (await gateway.ask("POST", "/feeds", {}, "bobs", bob)).content == first.content
    assert len(gateway.store.load()["answers"]) == 4


def test_tags_of_all_lines_that_are_strong(user: httpx.Client, leased: Leased) -> None:
    """A header in two lines is one list; a weak tag is that of nothing that may be changed."""
    lease = until(user, leased(start="2031-01-01T08:00:00Z")["id"], "ticketed")["id"]
    seen = user.get(f"/leases/{lease}").headers["etag"]

    def close(*tags: str) -> int:
        headers = [(b"if-match", tag.encode()) for tag in tags]
        return user.post(f"/leases/{lease}/close", json={}, headers=headers).status_code

    assert close(f"W/{seen}") == 412
    assert user.get(f"/leases/{lease}", headers={"if-none-match": f"W/{seen}"}).status_code == 304
    assert close(seen, '"other"') == 200
