"""Local users: who may make them, how they log in, how often, and what ends when they go."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from cli_daemons import Cli, running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest, until

from leasekit.client.shapes import ApprovalRequest, FeedRequest, LeaseRequest, TokenRequest
from leasekit.config.gateway import GatewayTable
from leasekit.config.load import load
from leasekit.core.time import HOUR, MINUTE
from leasekit.gateway import approvals, feeds, tokens
from leasekit.gateway.actors import ActorConnection
from leasekit.gateway.approvals import ask_approval
from leasekit.gateway.callers import OVER_KEPT, SESSIONS_MAX, Caller, Tokens
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.events import ENDED
from leasekit.gateway.feeds import create_feed
from leasekit.gateway.incoming import caller_of
from leasekit.gateway.leases import OfProject
from leasekit.gateway.problems import ProblemError
from leasekit.gateway.rates import KEPT_MAX, Rates, network
from leasekit.gateway.routing import Call
from leasekit.gateway.tokens import create_token
from leasekit.gateway.users import LocalUsers, UserError, UserRecord
from leasekit.stores.memory import MemoryStore

PASSWORD = "correct horse battery"
OTHER = "staple, and so on"


@pytest.fixture
def ada(operator: httpx.Client) -> Iterator[str]:
    """A user of the project alpha, with a password."""
    asked = {"name": "ada", "password": PASSWORD, "projects": {"alpha": "user"}}
    assert operator.post("/users", json=asked).status_code == 201
    yield "ada"
    operator.delete("/users/ada")


def login(client: httpx.Client, name: str, password: str, source: str = "192.0.2.1") -> httpx.Response:
    """What is answered to an attempt to log in, from an address as a reverse proxy tells it."""
    return client.post("/sessions", json={"name": name, "password": password}, headers={"x-forwarded-for": source})


def at_once(client: httpx.Client, who: list[tuple[str, str]]) -> list[httpx.Response]:
    """What is answered to wrong passwords for names, from addresses, all at once."""
    with ThreadPoolExecutor(len(who)) as pool:
        return list(pool.map(lambda one: login(client, one[0], OTHER, one[1]), who))


def test_who_logs_in_may_what_the_user_may(gateway: GatewayUnderTest, ada: str) -> None:
    """A session is a token with the user's rights, which ends when its holder says so; its commands name the user."""
    with gateway.client() as client:
        session = login(client, ada, PASSWORD).json()
    assert session["projects"] == {"alpha": "user"}
    with gateway.client(session["secret"]) as own:
        me = {"caller": "ada", "way": "session", "projects": {"alpha": "user"}, "offices": []}
        assert own.get("/me").json() == me
        assert own.get("/leases", params={"project": "beta"}).status_code == 404
        lease = own.post("/leases", json={"type": "vm", "units": 1, "length": "1h"}).json()["id"]
        own.post(f"/leases/{lease}/close")
        reasons = [line["reason"] for line in own.get(f"/leases/{lease}/history").json()["items"]]
        assert "commanded by ada (session)" in reasons
        assert own.delete("/sessions").status_code == 200
        assert own.get("/me").status_code == 401


def test_a_wrong_password_and_an_unknown_name_are_told_alike(gateway: GatewayUnderTest, ada: str) -> None:
    """By the same words."""
    with gateway.client() as client:
        wrong, unknown = login(client, ada, OTHER), login(client, "nobody-here", OTHER)
    assert (wrong.status_code, wrong.json()) == (401, unknown.json())


async def test_an_unknown_name_takes_as_long_as_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same is computed, once, with a salt of the same length."""
    users, computed = LocalUsers(), list[tuple[object, ...]]()
    salt, digest = await users.hashed(PASSWORD)
    users.add(UserRecord(name="ada", created=0, projects={}, offices=[], salt=salt, digest=digest))
    scrypt = hashlib.scrypt

    def noted(password: bytes, *, salt: bytes, **cost: int) -> bytes:
        computed.append((password, len(salt), cost))
        return scrypt(password, salt=salt, **cost)

    monkeypatch.setattr(hashlib, "scrypt", noted)
    assert await users.check("ada", OTHER) is None
    assert await users.check("nobody", OTHER) is None
    one, other = computed
    assert one == other


class WatchedSecret(str):
    """Text that nothing is compared with as it is."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError(f"compared with {other!r}")

    def __hash__(self) -> int:
        raise AssertionError("looked for")


def test_a_token_that_there_is_not_takes_as_long_as_one_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each one hash is computed, of as many bytes, and it is the hash that is looked for."""
    tokens, hashed, sha256 = Tokens(), list[int](), hashlib.sha256
    _, good, _ = tokens.create("ci", Caller("ada", ""), 0, None)
    _, over, _ = tokens.create("old", Caller("ada", ""), 0, 1)
    record, gone, _ = tokens.create("lost", Caller("ada", ""), 0, None)
    tokens.revoke(record.id)

    def noted(data: bytes) -> object:
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", noted)
    nearly = good[:-1] + ("B" if good.endswith("A") else "A")
    found = [tokens.find(WatchedSecret(secret), 2)[0] for secret in (good, nearly, over, gone)]
    assert [one is not None for one in found] == [True, False, False, False]
    assert hashed == [len(good)] * 4


async def test_a_password_that_was_changed_meanwhile_is_none() -> None:
    """What is checked is whose password it is when the check is done."""
    users = LocalUsers()
    salt, digest = await users.hashed(PASSWORD)
    record = UserRecord(name="ada", created=0, projects={}, offices=[], salt=salt, digest=digest)
    users.add(record)
    assert await users.check("ada", PASSWORD) is record
    assert PASSWORD not in repr(record)
    assert repr(digest) not in repr(record)
    users.put(attrs.evolve(record, projects={"alpha": "user"}))
    assert await users.check("ada", PASSWORD) is not record


def test_only_operators_make_users(user: httpx.Client, operator: httpx.Client, ada: str) -> None:
    """Others see themselves at most."""
    unnamed = operator.post("/users", json={"name": "eve", "password": PASSWORD, "projects": {"": "boss"}}).json()
    assert "projects.: found 'boss', expected one of: manager, user, viewer" in unnamed["detail"]
    asked = {"name": "eve", "password": PASSWORD, "offices": ["operator"]}
    assert user.post("/users", json=asked).status_code == 403
    assert user.delete(f"/users/{ada}").status_code == 403
    assert user.patch(f"/users/{ada}", json={"password": OTHER}).status_code == 403
    assert user.get("/users").json() == {"items": []}
    assert [one["name"] for one in operator.get("/users").json()["items"]] == ["ada"]
    assert operator.delete("/users/eve").status_code == 404
    assert operator.patch("/users/eve", json={}).status_code == 404


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        ({"name": "oidc:eve"}, "name: found 'oidc:eve', expected 1 to 64 letters, digits and . _ @ -"),
        ({"name": "ada"}, "name: found 'ada', who is a user already"),
        ({"password": "short"}, "password: found 5 characters, expected 12 to 1,024"),
        ({"projects": {"gamma": "user"}}, "projects: found 'gamma', there are alpha, beta"),
        (
            {"projects": {"beta": "user", "alpha": "boss"}},
            "projects.alpha: found 'boss', expected one of: manager, user, viewer",
        ),
        ({"digest": "x"}, "body: found an unknown key 'digest', expected one of: name, offices, password, projects"),
    ],
)
def test_what_is_wrong_with_a_user_is_told(
    operator: httpx.Client, ada: str, wrong: dict[str, Any], detail: str
) -> None:
    """By its key; a password is not repeated."""
    answer = operator.post("/users", json={"name": "eve", "password": PASSWORD, **wrong})
    assert (answer.status_code, answer.json()["detail"]) == (422, detail)


def test_sessions_end_with_the_password(gateway: GatewayUnderTest, operator: httpx.Client, ada: str) -> None:
    """One's own is changed with the old one; then the old one is none, and the sessions are over."""
    with gateway.client() as client:
        session = login(client, ada, PASSWORD).json()["secret"]
        with gateway.client(session) as own:
            assert own.patch("/users/ada", json={"password": OTHER, "old": OTHER}).status_code == 403
            rights = {"password": OTHER, "old": PASSWORD, "offices": ["operator"]}
            assert own.patch("/users/ada", json=rights).status_code == 403
            assert own.patch("/users/ada", json={"password": OTHER, "old": PASSWORD}).status_code == 200
            assert own.get("/me").status_code == 401
        assert login(client, ada, PASSWORD).status_code == 401
        session = login(client, ada, OTHER).json()["secret"]
        assert operator.patch("/users/ada", json={"projects": {"alpha": "viewer"}}).status_code == 200
        with gateway.client(session) as own:
            assert own.get("/me").status_code == 401


def test_who_is_removed_has_no_token(gateway: GatewayUnderTest, operator: httpx.Client, ada: str) -> None:
    """Neither a session, nor what was made by one: nobody is told of a project by their rules any more."""
    rule = {"events": ["granted", "free"], "url": "https://93.184.215.14/hook"}
    with gateway.client() as client, gateway.client(login(client, ada, PASSWORD).json()["secret"]) as own:
        assert own.post("/feeds", json={}).status_code == 201
        assert own.post("/notifications", json=rule).status_code == 201
        assert own.post("/waits", json={"type": "vm", "length": "1h", "units": 7}).status_code == 201
        assert own.post("/templates", json={"name": "mine", "request": {"type": "vm"}}).status_code == 201
        made = own.post("/tokens", json={"name": "ci", "projects": {"alpha": "user"}}).json()
        assert operator.delete("/users/ada").status_code == 200
        assert own.get("/me").status_code == 401
        with gateway.client(made["secret"]) as lesser:
            assert lesser.get("/me").status_code == 401
            assert lesser.delete("/sessions").status_code == 401
        assert login(client, ada, PASSWORD).status_code == 401
    for kind in ("feeds", "notifications", "waits", "templates"):
        kept = operator.get(f"/{kind}", params={"project": "alpha"}).json()["items"]
        assert [one for one in kept if one["caller"] == "ada"] == []


def test_lesser_rights_are_those_of_all_that_a_user_has_made(
    gateway: GatewayUnderTest, operator: httpx.Client, ada: str
) -> None:
    """Tokens that allow more end, events by them, and what tells of a project that is lost; leases go on."""
    both = {"alpha": "manager", "beta": "user"}
    assert operator.patch("/users/ada", json={"projects": both}).status_code == 200
    with gateway.client() as client, gateway.client(login(client, ada, PASSWORD).json()["secret"]) as own:
        made = [
            own.post("/tokens", json={"name": name, "projects": may}).json()
            for name, may in (("all", both), ("less", {"alpha": "viewer"}))
        ]
        for project in both:
            of = {"project": project}
            assert own.post("/feeds", params=of, json={}).status_code == 201
            assert own.post("/waits", params=of, json={"type": "vm", "length": "1h", "units": 7}).status_code == 201
            mailed = {"events": ["granted"], "url": "https://93.184.215.14/hook"}
            assert own.post("/notifications", params=of, json=mailed).status_code == 201
        lease = own.post("/leases", params={"project": "beta"}, json={"type": "vm", "length": "1h"}).json()["id"]
    with gateway.client(made[0]["secret"]) as more, gateway.client(made[1]["secret"]) as less:
        with more.stream("GET", "/events") as heard:
            assert operator.patch("/users/ada", json={"projects": {"alpha": "viewer"}}).status_code == 200
            assert ENDED.decode().strip() in list(heard.iter_lines())
        assert more.get("/me").status_code == 401
        assert less.get("/me").json()["projects"] == {"alpha": "viewer"}
    for kind in ("feeds", "waits", "notifications"):
        found = {project: operator.get(f"/{kind}", params={"project": project}).json()["items"] for project in both}
        assert [project for project, items in found.items() if any(one["caller"] == "ada" for one in items)] == [
            "alpha"
        ]
    assert until(operator, lease, "active")["project"] == "beta"
    assert operator.post(f"/leases/{lease}/close", json={}).status_code == 200


def test_who_listens_by_a_token_hears_nothing_once_it_is_revoked(
    gateway: GatewayUnderTest, operator: httpx.Client
) -> None:
    """Though the connection is open; others go on listening."""
    with gateway.client(gateway.token("gone", alpha="user")) as client, operator.stream("GET", "/events") as others:
        lines = others.iter_lines()
        with client.stream("GET", "/events") as heard:
            (token,) = (one["id"] for one in operator.get("/tokens").json()["items"] if one["name"] == "gone")
            assert operator.post(f"/tokens/{token}/revoke").status_code == 200
            assert list(heard.iter_lines())[-2:] == [ENDED.decode().strip(), ""]
        assert client.get("/events").status_code == 401
        lease = operator.post("/leases", params={"project": "beta"}, json={"type": "vm", "length": "1h"}).json()["id"]
        next(line for line in lines if line.startswith("data:") and lease in line)
        operator.post(f"/leases/{lease}/close", json={})


def test_a_token_is_no_session(user: httpx.Client) -> None:
    """It is revoked by its id."""
    answer = user.delete("/sessions")
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_argument")


def test_guessing_is_slowed_down(gateway: GatewayUnderTest) -> None:
    """By name, whatever a client's header says of its address where there is no reverse proxy."""
    with gateway.client() as client:
        answers = at_once(client, [("victim", f"192.0.2.{n}") for n in range(14)])
    assert {one.status_code for one in answers} == {401, 429}
    refused = [one for one in answers if one.status_code == 429]
    assert len(refused) <= 4
    assert refused[0].json()["code"] == "too_many"
    assert 1 <= int(refused[0].headers["retry-after"]) <= 60


def test_an_address_behind_a_proxy(tmp_path: Path) -> None:
    """What the reverse proxy has added says from where; what the client wrote before it does not."""
    file = tmp_path / "leasekit.toml"
    file.write_text(
        site_and_broker(INVENTORY.replace("[actor.web]", "[actor.web]\nproxies = 1\nlogins_per_minute = 1"), "alpha")
    )
    with running(file):
        under_test = GatewayUnderTest(file, load(file).state)
        with under_test.client() as client:
            answers = at_once(client, [(f"user-{n}", f"198.51.100.{n}, 192.0.2.1") for n in range(9)])
            refused = [one.status_code for one in answers].index(429)  # no password of whom was looked at
            other = login(client, f"user-{refused}", OTHER, "192.0.2.1, 198.51.100.1")
    assert {one.status_code for one in answers} == {401, 429}
    assert other.status_code == 401


async def test_who_shows_nothing_good_calls_so_often_from_an_address() -> None:
    """Whoever it says it is; who shows a token that is good is not held up by that."""
    table = GatewayTable(role="gateway", calls_per_minute=3)
    door = GatewayDoor("web", {}, table, MemoryStore(), clock=lambda: MINUTE)
    _, good, _ = door.tokens.create("ci", Caller("ada", "token", {}, frozenset()), 0, None)
    for number, source in enumerate(["192.0.2.1"] * 3 + ["192.0.2.2", "192.0.2.1"]):
        with pytest.raises(ProblemError) as refused:
            await caller_of(door, {"authorization": f"Bearer lk_{number}"} if number else {}, source)
        assert refused.value.status == (429 if number == 4 else 401)
    assert (await caller_of(door, {"authorization": f"Bearer {good}"}, "192.0.2.1")).name == "ada"


def test_so_many_a_minute() -> None:
    """As many at once, and one more as soon as it was said; others don't wait, and who came is forgotten in the end."""
    rates = Rates(3)
    for _ in range(3):
        rates.take("ada", 0)
    with pytest.raises(ProblemError) as refused:
        rates.take("ada", 0)
    seconds = int(refused.value.headers["retry-after"])
    rates.take("bob", 0)
    with pytest.raises(ProblemError):
        rates.take("ada", 1)
    rates.take("ada", 1_000 * seconds)
    for number in range(2 * KEPT_MAX):
        rates.take(f"guest {number}", MINUTE)
    assert len(rates._buckets) == KEPT_MAX


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_addresses_of_one_network(address: str, whose: str) -> None:
    """Somebody with a /64 has one place, and an IPv4 address is one however it is written."""
    assert network(address) == whose


def test_sessions_are_bounded_and_go() -> None:
    """Who logs in again and again has the latest ones; what is over is not kept."""
    tokens, who = Tokens(), Caller("ada", "session")
    for now in range(2 * SESSIONS_MAX):
        tokens.end_sessions("ada", now)
        tokens.create("", who, now, now + HOUR)
    assert [one.created for one in tokens.all()] == list(range(SESSIONS_MAX, 2 * SESSIONS_MAX))
    tokens.create("ci", who, 0, 1)
    tokens.end_sessions("bob", 2 * HOUR)
    assert [one.name for one in tokens.all()] == ["ci"]


def test_users_are_kept(gateway: GatewayUnderTest, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By the command line: added, listed, with another password, removed. A password is never an argument."""
    cli, secret = Cli(gateway.file, capfd), tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    secret.chmod(0o600)
    out, _ = cli.run("user", "add", "bob", "--project", "alpha:user", "--password-file", str(secret))
    assert out == "bob: added\n"
    secret.write_text(OTHER)
    cli.run("user", "password", "bob", "--password-file", str(secret))
    with gateway.client() as client:
        assert [login(client, "bob", word).status_code for word in (PASSWORD, OTHER)] == [401, 201]
    (shown,) = cli.json("user list")
    assert (shown["name"], shown["projects"]) == ("bob", {"alpha": "user"})
    assert "bob" in cli("user list")[0]
    assert cli("user remove bob")[0] == "bob: removed\n"
    assert "user: found 'bob', there is none" in cli("user remove bob", 1)[1]
    assert "".join(cli("user list")).strip() == "no users"


def test_what_the_store_has_kept() -> None:
    """A user is read as written."""
    users = LocalUsers()
    record = UserRecord(name="ada", created=5, projects={"a": "user"}, offices=["auditor"], salt=b"s", digest=b"d")
    row = users.add(record).row
    assert row is not None
    again = LocalUsers()
    again.restore({"users": [row]})
    assert again == {"ada": record}
    with pytest.raises(UserError, match="no user here"):
        again.find("bob")


def test_a_token_makes_none_that_is_good_for_longer(gateway: GatewayUnderTest, operator: httpx.Client) -> None:
    """Nor does one of that; a user who has logged in makes one for as long as they like, and so does an operator."""
    with gateway.client(gateway.token("tom", length="1h", alpha="user")) as tom:
        end = tom.get("/tokens").json()["items"][0]["expires"]
        made = tom.post("/tokens", json={"name": "same", "projects": {"alpha": "viewer"}}).json()
        assert made["expires"] == end
        refused = tom.post("/tokens", json={"name": "more", "length": "2h"})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert refused.json()["detail"].startswith("length: ")
        assert tom.post("/tokens", json={"name": "less", "length": "30m"}).is_success
    with gateway.client(made["secret"]) as child:
        assert child.post("/tokens", json={"name": "more", "length": "2h"}).status_code == 403
    assert operator.post("/tokens", json={"name": "long", "length": "365d"}).is_success


async def test_one_leaves_room_for_others() -> None:
    """However many tokens, feeds and requests to be approved one makes. What is over for long makes room."""
    now = [0]
    actors = {"alpha": ActorConnection("alpha", "guest", Path("none"))}
    door = GatewayDoor("web", actors, GatewayTable(role="gateway"), MemoryStore(), clock=lambda: now[0])
    who = Caller("ada", "token", {"alpha": "user"}, frozenset())
    call, boss = Call(door, who, {}), Call(door, attrs.evolve(who, offices=frozenset({"operator"})), {})
    for _ in range(tokens.EACH):
        await create_token(call, TokenRequest(name="ci", length="1h"))
    for _ in range(feeds.EACH):
        await create_feed(call, OfProject(), FeedRequest())
    with pytest.raises(ProblemError, match="ada has 200 tokens already") as told:
        await create_token(call, TokenRequest(name="ci"))
    assert (told.value.status, told.value.code) == (409, "too_many")
    with pytest.raises(ProblemError, match="ada has 50 feeds already"):
        await create_feed(call, OfProject(), FeedRequest())
    wanted = ApprovalRequest(request=LeaseRequest(type="vm", length="1h"))
    for _ in range(approvals.EACH):
        await ask_approval(call, OfProject(), wanted)
    with pytest.raises(ProblemError, match="100 requests of ada wait to be approved already"):
        await ask_approval(call, OfProject(), wanted)
    await create_token(boss, TokenRequest(name="ops"))
    await create_feed(boss, OfProject(), FeedRequest())
    now[0] = HOUR + OVER_KEPT
    await create_token(boss, TokenRequest(name="ops"))
    assert [one.name for one in door.tokens.all()] == ["ops", "ops"]
    await create_token(call, TokenRequest(name="ci"))
