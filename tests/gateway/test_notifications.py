"""Who is told what happens: by a real webhook receiver and a real SMTP server, and what neither can be made to do."""

from __future__ import annotations

import json
import queue
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from aiosmtpd.controller import Controller
from cli_daemons import running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest, until
from polling import PATIENCE
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from leasekit.config.errors import ConfigErrors
from leasekit.config.gateway import MailTable
from leasekit.config.load import load
from leasekit.core.schema import Change
from leasekit.core.time import DAY, HOUR, MINUTE
from leasekit.gateway.notices import (
    DEAD,
    DONE,
    RETRY_LONGEST,
    TRIES_MAX,
    WAITING,
    WAITING_MAX,
    DeliveryRecord,
    Notification,
    Notifications,
    RuleRecord,
    soon,
)  # fmt: skip
from leasekit.gateway.sending import SendingError, addresses, check_mail, check_url, message, post
from leasekit.runtime.client import ControlClient
from leasekit.stores.memory import MemoryStore

WISH = {"type": "vm", "length": "1h"}


class Receiver:
    """A webhook receiver: it keeps what comes, and answers each with the next of ``answers`` (none: 204)."""

    def __init__(self) -> None:
        self.got: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        self.answers: queue.Queue[int] = queue.Queue()
        self.others: list[tuple[dict[str, str], bytes, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = 204 if receiver.answers.empty() else receiver.answers.get()
                self.send_response(status)
                self.send_header("location", "http://127.0.0.1:1/")
                self.send_header("content-length", "0")
                self.end_headers()
                receiver.got.put(({name.lower(): value for name, value in self.headers.items()}, body))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def event(self, kind: str, lease: str) -> tuple[dict[str, str], bytes]:
        """The headers and the body of the next event of that kind about a lease; others may come before it."""
        fits = (f"leasekit.lease.{kind}", lease)
        while not (mine := [one for one in self.others if (one[2]["type"], one[2]["data"]["lease"]) == fits]):
            headers, body = self.got.get(timeout=PATIENCE)
            self.others.append((headers, body, json.loads(body)))
        self.others.remove(mine[0])
        return mine[0][:2]


class MailBox:
    """An SMTP server's handler, which keeps messages."""

    def __init__(self) -> None:
        self.got: queue.Queue[tuple[list[str], EmailMessage]] = queue.Queue()

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        """Take one."""
        self.got.put((envelope.rcpt_tos, message_from_bytes(envelope.content, policy=policy.default)))
        return "250 OK"


@attrs.frozen
class World:
    """A gateway with somebody to tell."""

    gateway: GatewayUnderTest
    receiver: Receiver
    mails: MailBox


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Daemons, a receiver and a mail server, once for the tests of this module."""
    folder = tmp_path_factory.mktemp("notifications")
    receiver, mails = Receiver(), MailBox()
    threading.Thread(target=receiver.server.serve_forever, daemon=True).start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Controller(mails, hostname="127.0.0.1", port=port)
    server.start()
    more = f"""
webhook_networks = ["127.0.0.0/8"]
mail = {{ server = "127.0.0.1:{port}", sender = "leasekit@lab.example", tls = "none", domains = ["lab.example"] }}
"""
    file = folder / "leasekit.toml"
    file.write_text(site_and_broker(INVENTORY + more, "alpha", "beta"))
    try:
        with running(file):
            yield World(GatewayUnderTest(file, load(file).state), receiver, mails)
    finally:
        server.stop()
        receiver.server.shutdown()
        receiver.server.server_close()


@pytest.fixture
def ursula(world: World) -> Iterator[httpx.Client]:
    """A user of the project alpha."""
    with world.gateway.client(world.gateway.token("ursula", alpha="user")) as client:
        yield client


@pytest.fixture
def olga(world: World) -> Iterator[httpx.Client]:
    """An operator."""
    with world.gateway.client(world.gateway.token("olga", "operator")) as client:
        yield client


def ruled(client: httpx.Client, **rule: Any) -> dict[str, Any]:
    """A new rule."""
    answer = client.post("/notifications?project=alpha", json=rule)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_who_waits_hears_that_it_is_free(world: World, ursula: httpx.Client, olga: httpx.Client) -> None:
    """By one's own rules that want it, of that type, once; others' rules are silent."""
    mine = ruled(ursula, url=world.receiver.url, events=["free"], type="vm")
    silent = [
        ruled(olga, url=world.receiver.url, events=["free"]),
        ruled(ursula, url=world.receiver.url, events=["ended"]),
    ]
    day = "2032-01-01T08:00:00Z"
    taken = ursula.post("/leases", json={**WISH, "units": 6, "start": day, "length": "2h"}).json()["id"]
    until(ursula, taken, "ticketed")
    wait = ursula.post(
        "/waits", json={"type": "vm", "units": 2, "length": "1h", "start": day, "end": "2032-01-01T10:00:00Z"}
    )
    assert wait.json()["state"] == "waiting"
    ursula.post(f"/leases/{taken}/close", json={})
    headers, body = world.receiver.event("free", "")
    assert Webhook(mine["secret"]).verify(body, headers) == json.loads(body)
    told = json.loads(body)["data"]
    assert (told["text"], told["units"]) == ("2 vm would fit now for alpha", 2)
    assert told["start"] == "2032-01-01T08:00:00.000Z"
    rules = {
        one["rule"]
        for one in olga.get("/notifications/deliveries?project=alpha").json()["items"]
        if one["event"] == "free"
    }
    assert rules == {mine["id"]}
    for rule in (mine, *silent):
        olga.post(f"/notifications/{rule['id']}/remove")


def test_who_wants_it_hears_what_is_announced(world: World, ursula: httpx.Client, olga: httpx.Client) -> None:
    """By each rule for it once, of whatever type of leases that is."""
    rule = ruled(ursula, url=world.receiver.url, events=["announced"], type="gpu")
    outage = {"text": "no power", "start": "2031-01-01T08:00:00Z", "end": "2031-01-01T12:00:00Z"}
    made = olga.post("/announcements", json=outage).json()
    headers, body = world.receiver.event("announced", "")
    assert Webhook(rule["secret"]).verify(body, headers) == json.loads(body)
    told = json.loads(body)["data"]
    assert (told["text"], told["start"]) == ("announced to alpha: no power", "2031-01-01T08:00:00.000Z")
    olga.post(f"/announcements/{made['id']}/remove")
    olga.post(f"/notifications/{rule['id']}/remove")


def test_a_receiver_hears_of_a_lease(world: World, ursula: httpx.Client, olga: httpx.Client) -> None:
    """CloudEvents that another library's check of signatures takes: granted, starts soon, evicted, ended."""
    rule = ruled(ursula, url=world.receiver.url, events=["granted", "starts_soon", "evicted", "ended"], starts=["2h"])
    assert "secret" not in ursula.get("/notifications").json()["items"][0]
    lease = ursula.post("/leases", json={**WISH, "units": 2}).json()["id"]
    headers, body = world.receiver.event("granted", lease)
    assert headers["content-type"] == "application/cloudevents+json"
    assert Webhook(rule["secret"]).verify(body, headers) == json.loads(body)
    with pytest.raises(WebhookVerificationError):
        Webhook(rule["secret"]).verify(body + b" ", headers)
    event = json.loads(body)
    assert (event["specversion"], event["source"], event["subject"]) == ("1.0", "/leasekit/web/alpha", lease)
    assert event["id"] == headers["webhook-id"]
    assert (event["data"]["type"], event["data"]["units"]) == ("vm", 2)
    assert event["data"]["text"] == f"lease {lease} of alpha was granted"
    until(ursula, lease, "active")
    olga.post(f"/sites/leases/{lease}/evict", json={"reason": "space is needed"})
    evicted = json.loads(world.receiver.event("evicted", lease)[1])["data"]
    assert (evicted["code"], evicted["reason"][-15:]) == ("evicted", "space is needed")
    ended = json.loads(world.receiver.event("ended", lease)[1])
    assert ended["data"]["units"] == 2
    assert (ended["data"]["code"], ended["data"]["reason"][-15:]) == ("evicted", "space is needed")
    later = ursula.post("/leases", json={**WISH, "start": _in(ursula, HOUR)}).json()["id"]
    text = json.loads(world.receiver.event("starts_soon", later)[1])["data"]["text"]
    assert re.search(r"starts in 59m(\d+s)?$", text), text
    ursula.post(f"/leases/{later}/close", json={})
    assert ursula.post(f"/notifications/{rule['id']}/remove").status_code == 200
    assert ursula.get("/notifications").json()["items"] == []


def test_units_that_fail_and_maintenance_are_told_of(world: World, ursula: httpx.Client, olga: httpx.Client) -> None:
    """A site's operator says that a unit is down, and then that there is maintenance: the lease's project hears why."""
    rule = ruled(ursula, url=world.receiver.url, events=["unit_failed", "maintenance"])
    lease = ursula.post("/leases", json={**WISH, "units": 2}).json()["id"]
    members = until(ursula, lease, "active")["members"]
    with ControlClient(world.gateway.folder / "site.control.sock") as site:
        site.command("unit.fail", unit=members[0]["unit"], reason="its fan stands still")
    failed = json.loads(world.receiver.event("unit_failed", lease)[1])["data"]
    assert failed["text"] == f"lease {lease} of alpha has a unit that failed"
    assert "its fan stands still" in failed["reason"]
    window = {
        "units": [members[1]["unit"]],
        "start": _in(olga, HOUR // 2),
        "end": _in(olga, HOUR),
        "close": True,
        "reason": "disks",
    }
    made = olga.post("/maintenance", json=window)
    assert made.status_code == 200, made.text
    hit = json.loads(world.receiver.event("maintenance", lease)[1])["data"]
    assert hit["text"] == f"lease {lease} of alpha is hit by maintenance"
    assert "disks" in hit["reason"]
    olga.post(f"/maintenance/{made.json()['window']}/remove", json={})
    ursula.post(f"/leases/{lease}/close", json={})
    ursula.post(f"/notifications/{rule['id']}/remove")


def _in(client: httpx.Client, length: int) -> str:
    from datetime import UTC, datetime, timedelta

    return (datetime.now(UTC) + timedelta(milliseconds=length)).isoformat()


def test_what_a_receiver_does_not_take_is_sent_again(world: World, ursula: httpx.Client) -> None:
    """A redirect is not followed, and counts as no answer; the next try has the same id."""
    rule = ruled(ursula, url=world.receiver.url, events=["granted"])
    for status in (302, 500):
        world.receiver.answers.put(status)
    sent = ursula.post(f"/notifications/{rule['id']}/test").json()
    ids = {world.receiver.event("test", "")[0]["webhook-id"] for _ in range(3)}
    assert ids == {sent["id"]}
    ursula.post(f"/notifications/{rule['id']}/remove")


def test_a_mail_comes(world: World, ursula: httpx.Client) -> None:
    """In plain text and in HTML, to the one that it is for."""
    rule = ruled(ursula, mail="ada@lab.example", events=["granted"])
    name = "web"
    lease = ursula.post("/leases", json={**WISH, "name": name}).json()["id"]
    to, mail = world.mails.got.get(timeout=PATIENCE)
    assert to == ["ada@lab.example"]
    assert mail["subject"] == f"lease {name} of alpha was granted"
    plain, rich = mail.get_body(("plain",)), mail.get_body(("html",))
    assert plain is not None and rich is not None
    assert lease in plain.get_content()
    assert f"<td>{lease}</td>" in rich.get_content()
    ursula.post(f"/leases/{lease}/close", json={})
    ursula.post(f"/notifications/{rule['id']}/remove")


def test_who_has_to_approve_is_told(world: World, ursula: httpx.Client, olga: httpx.Client) -> None:
    """A manager's rule, which only managers and its maker see."""
    olga.put("/policies/alpha", json={"approve_units": 2})
    with world.gateway.client(world.gateway.token("manfred", alpha="manager")) as manfred:
        rule = ruled(manfred, mail="manfred@lab.example", events=["approval_wanted"])
        asked = ursula.post("/approvals?project=alpha", json={"request": {**WISH, "units": 3}})
        assert asked.status_code == 201, asked.text
        _, mail = world.mails.got.get(timeout=PATIENCE)
        assert mail["subject"] == f"approval {asked.json()['id']} of alpha waits to be approved"
        assert rule["id"] not in [one["id"] for one in ursula.get("/notifications").json()["items"]]
        assert rule["id"] in [one["id"] for one in manfred.get("/notifications").json()["items"]]
        assert ursula.post(f"/notifications/{rule['id']}/remove").status_code == 404
        (sent,) = [
            one for one in manfred.get("/notifications/deliveries").json()["items"] if one["event"] == "approval_wanted"
        ]
        assert sent["id"] not in ursula.get("/notifications/deliveries").text
        assert ursula.post(f"/notifications/deliveries/{sent['id']}/retry").status_code == 404
        manfred.post(f"/notifications/{rule['id']}/remove")
    olga.put("/policies/alpha", json={})


def test_a_stranger_has_no_rules_in_a_project(world: World) -> None:
    """Another project's rules are as if there were none, and a viewer makes none."""
    with world.gateway.client(world.gateway.token("stefan", beta="user")) as stefan:
        assert stefan.get("/notifications?project=alpha").status_code == 404
        assert stefan.post("/notifications?project=alpha", json={"events": ["ended"], "url": "x"}).status_code == 404
    with world.gateway.client(world.gateway.token("viktor", alpha="viewer")) as viktor:
        assert viktor.post("/notifications", json={"events": ["ended"], "mail": "a@lab.example"}).status_code == 403


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"url": "http://10.1.2.3/"}, "an internal address"),
        ({"url": "http://[::1]/"}, "an internal address"),
        ({"url": "http://169.254.169.254/latest/meta-data/"}, "an internal address"),
        ({"url": "http://[::ffff:10.0.0.1]/"}, "an internal address"),
        ({"url": "http://0/"}, "an internal address"),
        ({"url": "file:///etc/passwd"}, "expected http:// or https://"),
        ({"url": "https://lab.example:99999/"}, "url: found port 99999, expected 1 to 65535"),
        ({"url": "http://user:secret@example.com/"}, "and no user"),
        ({"url": "http://127.0.0.1/", "mail": "a@lab.example"}, "expected either a url or a mail address"),
        ({}, "expected either a url or a mail address"),
        ({"mail": "a@lab.example\r\nBcc: eve@lab.example"}, "expected an address"),
        ({"mail": "a@lab.example, eve@lab.example"}, "expected an address"),
        ({"mail": "ada@elsewhere.example"}, "allowed are lab.example"),
        ({"url": "http://127.0.0.1/", "ends": ["soon"]}, "ends: "),
        (
            {"url": "http://127.0.0.1/", "events": ["grant"]},
            "events[0]: found 'grant', expected one of: announced, app",
        ),
    ],
)
def test_rules_that_can_not_be(world: World, ursula: httpx.Client, rule: Mapping[str, Any], told: str) -> None:
    """Each is refused with its field."""
    answer = ursula.post("/notifications", json={"events": ["granted"], **rule})
    assert answer.status_code == 422
    assert told in answer.json()["detail"]


# -- without daemons -------------------------------------------------------------------------------------------------

RULE = RuleRecord(id="r", project="p", caller="c", events=["granted", "ends_soon", "starts_soon"], mail="a@lab.example",
                  ends=["7d", "3d", "1d"], starts=["1h"])  # fmt: skip


def test_an_end_is_told_of_at_each_length_once() -> None:
    """Of those that are late the last; none that lies before the lease's start."""
    notices, start = Notifications(), 100 * DAY
    notices.rules.put(RULE)
    lease = {"id": "l", "name": "", "type": "vm", "units": 1, "state": "active", "start": start, "end": start + 8 * DAY}
    told = []
    for now in range(start, start + 9 * DAY, HOUR):
        for notice in soon(RULE, lease, now):
            told += [(now - start) // DAY for _ in notices.tell(notice, now, RULE)]
    assert told == [1, 5, 7]
    assert [one.before // DAY for one in soon(RULE, lease, start + 7 * DAY + HOUR)] == [0]
    short = {**lease, "end": start + 2 * DAY}
    assert [one.before for one in soon(RULE, short, start + 2)] == []
    assert [one.before for one in soon(RULE, short, start + DAY)] == [DAY]
    waits = {**lease, "state": "ticketed"}
    assert [(one.kind, one.before) for one in soon(RULE, waits, start - MINUTE)] == [("starts_soon", MINUTE)]


def test_tries_wait_longer_and_longer_and_end() -> None:
    """Over half a day; what is dead can be tried again, and is forgotten in the end."""
    notices = Notifications()
    notices.rules.put(RULE)
    (made,) = notices.tell(Notification(kind="granted", key="k", project="p", at=0), 0)
    now, waits = 0, []
    while (at := notices.next_at()) is not None:
        waits.append(at - now)
        now = at
        notices.tried(made.key, "it is down", now)
    assert len(waits) == TRIES_MAX
    assert waits == sorted(waits) and waits[-1] == RETRY_LONGEST and sum(waits) > 12 * HOUR
    assert notices.deliveries[made.key].state == DEAD
    notices.again(made.key, now)
    assert notices.due(now) != []
    notices.tried(made.key, "", now)
    assert (notices.deliveries[made.key].state, notices.forget(now + DAY)) == (DONE, [])
    assert notices.forget(now + 31 * DAY) == [Change("deliveries", made.key, None)]


def test_a_queue_is_bounded_and_outlives_its_gateway() -> None:
    """What waits is in the store; a receiver that is away for long does not fill it."""
    notices, store = Notifications(), MemoryStore()
    changes = [notices.rules.put(RULE), notices.read_until("p", 17)]
    for number in range(WAITING_MAX + 1):
        changes += notices.tell(Notification(kind="granted", key=str(number), project="p", at=number), 5)
    store.commit(changes)
    again = Notifications()
    again.restore(store.load())
    assert (again.rules, again.positions, again.deliveries) == (notices.rules, {"p": 17}, notices.deliveries)
    states = [one.state for one in again.deliveries.values()]
    assert (states.count(WAITING), states.count(DEAD)) == (WAITING_MAX, 1)
    assert again.tell(Notification(kind="granted", key="0", project="p", at=9), 9) == []
    store.commit(again.remove("r"))
    assert {name: store.load()[name] for name in ("rules", "deliveries")} == {"rules": [], "deliveries": []}


def test_no_line_of_a_mail_is_somebody_elses() -> None:
    """Line ends and controls in what a lease, or its reason, is called are blanks in a message."""
    table = MailTable(server="mx:25", sender="leasekit@lab.example")
    evil = "x\r\nBcc: eve@lab.example\r\n\r\n<script>\x00\x1b[2J\u2028"
    notice = Notification(
        kind="granted", key="k", project="p", at=0, lease="l", name=evil, type=evil, reason=evil, start=3_600_007
    )
    made = message(table, "a@lab.example", DeliveryRecord(id="d", rule="r", state="waiting", at=0, notice=notice))
    read = message_from_bytes(made.as_bytes(), policy=policy.default)
    assert sorted(key.lower() for key in read) == [
        "auto-submitted", "content-type", "date", "from", "message-id", "mime-version", "subject", "to"
    ]  # fmt: skip
    assert read["to"] == "a@lab.example"
    text = "".join(part.get_content() for part in read.walk() if not part.is_multipart())
    assert "<script>" not in text.partition("<p>")[2]
    assert "\nstart: 1970-01-01T01:00:00Z\n" in text.replace("\r", "")
    assert "\nBcc" not in text and "\x1b" not in text and "\x00" not in text
    with pytest.raises(SendingError):
        check_mail("a@lab.example\nBcc: e@x", table)


async def test_a_name_that_turns_internal_is_not_posted_to() -> None:
    """What a name resolves to is checked at each try, and that very address is connected to."""
    assert await addresses(check_url("http://localhost:1/"), ["127.0.0.0/8", "::1/128"]) != []
    with pytest.raises(SendingError, match="internal address"):
        await post("http://localhost:1/", [], b"", {})


async def test_a_receiver_that_says_nothing_is_not_waited_for() -> None:
    """Nor does what it says fill the gateway."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with listener:
        with pytest.raises(SendingError, match="gave no answer within"):
            await post(f"http://127.0.0.1:{port}/", ["127.0.0.0/8"], b"{}", {}, within=0.2)


def test_a_file_says_what_is_wrong_with_mail(tmp_path: Path) -> None:
    """By its key."""
    file = tmp_path / "leasekit.toml"
    file.write_text(
        site_and_broker(INVENTORY + 'webhook_networks = ["ten"]\nmail = { server = "mx", sender = "a\\nb@c" }\n')
    )
    with pytest.raises(ConfigErrors) as raised:
        load(file)
    for key in ("webhook_networks", "mail.server", "mail.sender"):
        assert f"actor.web.{key}" in str(raised.value)
