"""The pages of those who decide and administer: what waits to be approved; users, tokens, policies, and who is told."""

from __future__ import annotations

import os
import queue as queues
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway.gateway_world import give_back, until
from playwright.sync_api import Browser, Page, Route, expect
from system.system_waits import wait_until
from web_world import (
    PASSWORD,
    WITHIN_MS,
    XSS,
    Person,
    WebLab,
    ada,
    chromium,
    gateway_alone,
    lab_apart,
    olga,
    person,
    web_lab,
)

from leasekit.client.shapes import ApprovalRequest, LeaseRequest
from leasekit.core.schema import Change
from leasekit.core.time import DAY
from leasekit.gateway.notices import DEAD, TRIES_MAX, DeliveryRecord, Notification, RuleRecord
from leasekit.gateway.policies import APPROVING, ApprovalRecord

__all__ = ["ada", "chromium", "olga", "person"]
pytestmark = pytest.mark.xdist_group("web")
SERIES = "/request?type=vm&start=2031-01-05T00:00&begin=09:00&finish=17:00&until=2031-01-17&every=mon,wed"


class Hook(BaseHTTPRequestHandler):
    """A webhook, which keeps what comes."""

    got: queues.Queue[bytes] = queues.Queue()

    def do_POST(self) -> None:
        """Take one."""
        Hook.got.put(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def hook() -> Iterator[str]:
    """The address of a webhook."""
    server = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook"
    server.shutdown()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, hook: str) -> Iterator[WebLab]:
    """The deployment, whose gateway has tried in vain for half a day to send something to the webhook, and was killed
    a day ago while it did what was approved.
    """
    rule = RuleRecord(
        id="r1", project="alpha", caller="ada", events=["granted"], url=f"{hook}?of=ada", mail="", type=XSS,
        ends=["1d"], starts=["1h"], secret="whsec_c2VjcmV0",
    )  # fmt: skip
    notice = Notification(kind="granted", key="k", project="alpha", at=1, lease=XSS)
    dead = DeliveryRecord(
        id="d1", rule="r1", state=DEAD, at=2**52, notice=notice, tries=TRIES_MAX, problem=f"it was away {XSS}"
    )
    asked = ApprovalRequest(request=LeaseRequest(type="vm", length="1h", name="half-way"))
    begun = time.time_ns() // 1_000_000 - DAY
    approved = ApprovalRecord(
        id="a1", project="alpha", caller="ada", asked=asked, created=begun, until=2**52, decided=APPROVING, by="mona",
        begun=begun,
    )  # fmt: skip
    kept = [Change(one.table, one.id, one.row()) for one in (rule, dead, approved)]
    with web_lab(tmp_path_factory.mktemp("web"), 'webhook_networks = ["127.0.0.0/8"]\n', web=kept) as made:
        yield made


@contextmanager
def first_answer_last(page: Page, address: str) -> Iterator[None]:
    """The first answer from ``address`` in a block comes to the page after the block."""
    held: list[Route] = []
    page.route(address, lambda route: route.continue_() if held else held.append(route))
    yield
    with page.expect_request_finished(lambda request: request == held[0].request):
        held[0].continue_()
    page.unroute(address)
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")


@contextmanager
def policy(olga: httpx.Client, **words: Any) -> Iterator[None]:
    """The project has a policy, until the end."""
    assert olga.put("/policies/alpha", json=words).status_code == 200
    yield
    olga.put("/policies/alpha", json={})


def test_what_is_large_is_asked_for_approved_and_leased(
    person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client
) -> None:
    """The asker says why where it is refused; the manager, who sees it come, sees what it would be and says why too."""
    with policy(olga, approve_units=1):
        manager = person("mona")
        queue = manager.open("/approvals")
        expect(queue.locator(".empty")).to_have_text("Nothing waits to be approved.")
        manager.check()
        who = person("ada")
        page = who.open("/request?type=vm&units=2&name=large")
        expect(page.locator(".answer")).to_have_attribute("data-kind", "granted")
        expect(page.locator(".answer")).to_contain_text("more than 1 are approved first")
        page.get_by_role("button", name="Request", exact=True).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("more than 1 are approved first")
        dialog.get_by_label("Why").fill(XSS)
        who.check()
        dialog.get_by_role("button", name="Ask for approval").click()
        expect(dialog).to_have_count(0)
        card = queue.get_by_role("region", name="2 \N{MULTIPLICATION SIGN} vm, large for ada")
        expect(card).to_contain_text(XSS)
        expect(card.locator(".answer")).to_contain_text("2 units at site")
        manager.check()
        card.get_by_role("button", name="Approve").click()
        queue.get_by_role("dialog").get_by_label("Why").fill(f"fine {XSS}")
        queue.get_by_role("dialog").get_by_role("button", name="Approve").click()
        expect(card).to_have_count(0)
        expect(queue.locator(".empty p")).to_be_focused()
        queue.get_by_label("State").select_option("approved")
        row = queue.get_by_role("row").filter(has_text="large")
        expect(row).to_contain_text(f"fine {XSS}")
        manager.check()
        row.get_by_role("link").click()
        expect(queue.get_by_role("heading", name="large")).to_be_visible()
        assert until(ada, "large", "active")["units"] == 2
        ada.post("/leases/large/close", json={})


def test_the_login(lab: WebLab, chromium: Browser) -> None:
    """By keys: who has no session comes to the form, reads that the password is wrong, and then gets to the page that
    was asked for.
    """
    with chromium.new_context(reduced_motion="reduce") as context:
        page = context.new_page()
        page.goto(f"{lab.url}/leases?state=all")
        for password in ("guess", PASSWORD):
            Person(lab, context, page).check()
            page.get_by_label("Name").fill("ada")
            page.get_by_label("Password").fill(password)
            page.keyboard.press("Enter")
            if password == "guess":
                expect(page.get_by_role("alert")).to_have_text("Name or password is wrong.")
        expect(page.locator(".caller")).to_have_text("ada")
        assert page.url == f"{lab.url}/leases?state=all"


def test_who_decides_what(person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client) -> None:
    """An asker withdraws, an approver of the policy decides what others ask for, an operator refuses."""
    with policy(olga, approve_units=1, approvers=["bob", "ada"]):
        for name in (XSS, "second"):
            asked = {"type": "vm", "units": 2, "length": "1h", "name": name, "configuration": {XSS: XSS}}
            assert ada.post("/approvals", json={"request": asked, "why": name}).status_code == 201
        who = person("ada")
        page = who.open("/approvals")
        cards = page.locator(".approval")
        expect(cards).to_have_count(2)
        expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        cards.filter(has_text="second").get_by_role("button", name="Withdraw").click()
        page.get_by_role("dialog").get_by_role("button", name="Withdraw").click()
        expect(cards).to_have_count(1)
        other = person("bob")
        expect(other.open("/approvals").get_by_role("button", name="Approve")).to_have_count(1)
        expect(other.page.get_by_role("button", name="Withdraw")).to_have_count(0)
        boss = person("olga")
        page = boss.open("/approvals")
        page.get_by_role("button", name="Refuse").click()
        page.get_by_role("dialog").get_by_label("Why").fill("no room")
        page.get_by_role("dialog").get_by_role("button", name="Refuse").click()
        expect(other.page.locator(".empty")).to_be_visible()
        page.get_by_label("State").select_option("all")
        expect(page.get_by_role("row").filter(has_text="no room")).to_contain_text("olga")
        boss.check()
        assert [one["state"] for one in ada.get("/approvals").json()["items"]][-2:] == ["refused", "withdrawn"]


def test_a_change_that_needs_approval_is_asked_for(
    person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client
) -> None:
    """From the form of the lease; who approves sees what of it would change."""
    lease = ada.post("/leases", json={"type": "vm", "length": "1h", "name": "grows"}).json()["id"]
    until(ada, lease, "active")
    with policy(olga, approve_units=1):
        who = person("ada")
        page = who.open(f"/leases/{lease}")
        page.get_by_role("button", name="Change…").click()
        page.get_by_role("dialog").get_by_label("Units", exact=True).fill("3")
        page.get_by_role("dialog").get_by_role("button", name="Change", exact=True).click()
        page.get_by_role("dialog").last.get_by_label("Why").fill("more of it")
        page.get_by_role("button", name="Ask for approval").click()
        manager = person("mona")
        queue = manager.open("/approvals")
        card = queue.locator(".approval")
        expect(card).to_contain_text("more of it")
        expect(card.get_by_role("link", name=lease)).to_be_visible()
        expect(card.locator(".answer")).to_contain_text("3 units at site")
        card.get_by_role("button", name="Approve").click()
        queue.get_by_role("dialog").get_by_role("button", name="Approve").click()
        expect(card).to_have_count(0)
        assert ada.get("/approvals?state=approved").json()["items"][-1]["lease"] == lease
    ada.post(f"/leases/{lease}/close", json={})


def test_what_was_begun_too_long_ago_is_not_done_twice(person: Callable[..., Person], ada: httpx.Client) -> None:
    """Nothing is leased by it, and the page says what would do."""
    who = person("ada")
    row = who.open("/approvals?state=stopped").get_by_role("row").filter(has_text="half-way")
    expect(row).to_contain_text("Something was away for a day.")
    who.check()
    row.get_by_role("link", name="Leases").press("Enter")
    expect(who.page.get_by_role("heading", name="Leases")).to_be_visible()
    assert "half-way" not in {one["name"] for one in ada.get("/leases?all=true").json()["items"]}


def test_what_recurs_is_approved_by_one_decision(
    person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client
) -> None:
    """By keys; which day can't be had is said before and after it, on a phone as well."""
    busy = {"type": "vm", "units": 1, "start": "2031-01-13T10:00:00Z", "length": "1h", "name": "busy"}
    until(ada, ada.post("/leases", json=busy).json()["id"], "ticketed")
    with policy(olga, approve_units=1):
        who = person("ada")
        page = who.open(f"{SERIES}&units=6&each=yes&name=lab")
        page.get_by_role("button", name="Request", exact=True).press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("more than 1 are approved first")
        dialog.get_by_label("Why").fill(XSS)
        dialog.get_by_role("button", name="Ask for approval").press("Enter")
        expect(dialog).to_have_count(0)
        manager = person("mona", viewport={"width": 360, "height": 740})
        queue = manager.open("/approvals")
        card = queue.get_by_role("region", name="6 \N{MULTIPLICATION SIGN} vm, lab, mon,wed for ada")
        expect(card).to_contain_text("1 of 4 days can't be had.")
        manager.check()
        card.get_by_role("button", name="Approve").press("Enter")
        queue.get_by_role("dialog").get_by_role("button", name="Approve").press("Enter")
        expect(queue.locator("#notes")).to_contain_text("Approved. 1 of 4 days can't be had.")
        queue.get_by_label("State").select_option("approved")
        row = queue.get_by_role("row").filter(has_text="lab, mon,wed")
        row.get_by_text("1 of 4 days can't be had.").press("Enter")
        expect(row.get_by_role("row").filter(has_text="refused")).to_contain_text("Mon 13 Jan 2031")
        assert queue.evaluate("document.documentElement.scrollWidth") <= 360
        manager.check()
        row.get_by_role("link", name="lab.2031-01-06").press("Enter")
        expect(queue.get_by_role("heading", name="lab.2031-01-06")).to_be_visible()
        assert "hit" not in page.title() + queue.title()
    give_back(ada, "2031-01-13T09:00:00Z")


def test_a_series_is_approved_while_the_gateway_is_killed(tmp_path: Path) -> None:
    """It goes on once there is a gateway again; nobody can undo half of it, and no day is leased twice."""
    days = {"every": "day", "begin": "9:00", "finish": "17:00", "until": "2031-01-08", "each": True}
    series = {"request": {"type": "vm", "start": "2031-01-05T00:00:00Z"}, **days}
    with lab_apart(tmp_path) as (lab, daemons):
        broker = daemons.running["broker"].process.pid
        assert broker is not None
        with (
            gateway_alone(lab) as gateway,
            ThreadPoolExecutor() as threads,
            daemons.client("alpha") as guest,
            lab.client("ada") as ada,
            lab.client("mona") as mona,
        ):
            approval = ada.post("/approvals", json={"series": series}).json()["id"]
            os.kill(broker, signal.SIGSTOP)  # so that no day is answered before the end
            answer = threads.submit(mona.post, f"/approvals/{approval}/approve", json={})
            wait_until("some days", lambda: not guest.query("leases") and "none")
            gateway.kill()
            with pytest.raises(httpx.TransportError):
                answer.result()
            os.kill(broker, signal.SIGCONT)
        with gateway_alone(lab), lab.client("mona") as mona:
            refused = mona.post(f"/approvals/{approval}/refuse", json={})
            assert (refused.status_code, refused.json()["code"]) == (409, "decided")
            found = lambda: mona.get(f"/approvals/{approval}").json()  # noqa: E731
            wait_until("approved", lambda: found()["state"] == "approving" and found())
            assert found()["state"] == "approved"
            granted = {one["lease"]: one["status"] for one in found()["series"]["days"]}
            assert list(granted.values()) == ["granted"] * 4
            assert {one["id"] for one in mona.get("/leases").json()["items"]} == granted.keys()


def test_an_operator_makes_changes_and_removes_a_user(person: Callable[..., Person], lab: WebLab) -> None:
    """The rights that are ticked are those that there are; what has ended has ended, and an open page says so."""
    who = person("olga")
    page = who.open("/admin")
    who.check()
    users = page.get_by_role("region", name="Users")
    page.get_by_role("button", name="Add user…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill(XSS)
    dialog.get_by_label("Password", exact=True).fill("short")
    who.check()
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_role("dialog")).to_contain_text("password: found 5 characters")
    dialog.get_by_label("Password", exact=True).fill(PASSWORD)
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_role("dialog")).to_contain_text("expected 1 to 64 letters")
    dialog.get_by_label("Name", exact=True).fill("nina")
    dialog.get_by_label("alpha").select_option("viewer")
    dialog.get_by_role("button", name="Add").dblclick()  # a user is there once
    row = users.get_by_role("row").filter(has_text="nina")
    expect(row).to_contain_text("viewer of alpha")
    hers = person("nina").open("/leases")
    expect(hers.locator("#live")).to_have_text("live")
    expect(page.locator(".note.refused", has_text="already")).to_have_count(0)
    page.get_by_role("button", name="Rights of nina").click()
    dialog.get_by_label("alpha").select_option("")
    dialog.get_by_label("auditor").check()
    dialog.get_by_role("button", name="Change").click()
    expect(row).to_contain_text("auditor")
    expect(row).not_to_contain_text("alpha")
    expect(hers.locator("#over")).to_contain_text("The session is over.")
    page.get_by_role("button", name="Password of nina").click()
    dialog.get_by_label("New password", exact=True).fill("quite another one")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog).to_be_hidden()
    asked = {"name": "nina", "password": "quite another one"}
    assert httpx.post(f"{lab.url}/api/v1/sessions", json=asked, timeout=30).status_code == 201
    page.get_by_role("button", name="Remove nina").click()
    dialog.get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)
    assert httpx.post(f"{lab.url}/api/v1/sessions", json=asked, timeout=30).status_code == 401


def test_a_token_is_made_shown_once_and_revoked(person: Callable[..., Person], lab: WebLab) -> None:
    """By a user, whose rights it can't exceed."""
    who = person("ada")
    page = who.open("/admin")
    expect(page.get_by_role("button", name="Add user…")).to_have_count(0)
    expect(page.get_by_role("region", name="Users").get_by_role("row")).to_have_count(2)
    page.get_by_role("button", name="New token…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("For", exact=True).fill(XSS)
    dialog.get_by_label("alpha").select_option("manager")
    dialog.get_by_role("button", name="Make").click()
    expect(page.get_by_role("dialog")).to_contain_text("can't allow more than its maker may")
    dialog.get_by_label("alpha").select_option("viewer")
    who.check()
    dialog.get_by_role("button", name="Make").click()
    secret = dialog.get_by_label("The secret")
    expect(secret).to_contain_text("lk_")
    who.check()
    headers = {"authorization": f"Bearer {secret.text_content()}"}
    me = httpx.get(f"{lab.url}/api/v1/me", headers=headers).json()
    assert (me["caller"], me["projects"], me["offices"]) == ("ada", {"alpha": "viewer"}, [])
    dialog.get_by_role("button", name="I have it").click()
    expect(page.get_by_role("button", name="New token…")).to_be_focused()
    row = page.get_by_role("region", name="Tokens").get_by_role("row").filter(has_text=XSS)
    row.get_by_role("button").click()
    expect(row).to_have_count(0)
    assert httpx.get(f"{lab.url}/api/v1/me", headers=headers).status_code == 401
    who.check()


def test_a_policy_is_set(person: Callable[..., Person], olga: httpx.Client) -> None:
    """What is left empty is not limited; what is wrong is told, and nothing is set."""
    who = person("olga")
    page = who.open("/admin")
    row = page.get_by_role("region", name="Policies").get_by_role("row").filter(has_text="beta")
    expect(row).to_contain_text("not limited")
    page.get_by_role("button", name="Change the policy of beta").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Longest", exact=True).fill("two hours")
    dialog.get_by_label("Most units", exact=True).fill("3")
    dialog.get_by_label("Recurring", exact=True).uncheck()
    dialog.get_by_label("Approvers", exact=True).fill(f"bob, {XSS}")
    who.check()
    dialog.get_by_role("button", name="Set").click()
    expect(page.get_by_role("dialog")).to_contain_text("longest:")
    dialog.get_by_label("Longest", exact=True).fill("2h")
    dialog.get_by_role("button", name="Set").click()
    expect(row).to_contain_text(f"approvers: bob, {XSS}")
    (beta,) = (one["policy"] for one in olga.get("/policies").json()["items"] if one["project"] == "beta")
    assert beta == {"longest": "2h", "most_units": 3, "recurring": False, "approvers": ["bob", XSS]}
    who.check()
    page.get_by_role("button", name="Change the policy of beta").click()
    expect(dialog.get_by_label("Longest", exact=True)).to_have_value("2h")
    expect(dialog.get_by_label("Recurring", exact=True)).not_to_be_checked()
    for name in ("Longest", "Most units", "Approvers"):
        dialog.get_by_label(name, exact=True).fill("")
    dialog.get_by_label("Recurring", exact=True).check()
    dialog.get_by_role("button", name="Set").click()
    expect(row).to_contain_text("not limited")


def test_a_rule_is_made_and_tested_and_what_was_dead_is_retried(person: Callable[..., Person], hook: str) -> None:
    """What was sent is there, by itself."""
    who = person("ada")
    page = who.open("/admin")
    deliveries = page.get_by_role("region", name="Deliveries")
    row = deliveries.get_by_role("row").filter(has_text="dead")
    expect(row).to_contain_text(f"it was away {XSS}")
    who.check()
    page.get_by_role("button", name="New rule…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("unit failed").check()
    dialog.get_by_label("Webhook", exact=True).fill(f"javascript:{XSS}")
    who.check()
    dialog.get_by_role("button", name="Make").click()
    expect(dialog.get_by_role("alert")).to_have_count(1)
    dialog.get_by_label("Webhook", exact=True).fill(f"{hook}?of=rule")
    dialog.get_by_label("Type", exact=True).fill(XSS)
    dialog.get_by_role("button", name="Make").click()
    expect(dialog.get_by_label("The secret")).to_contain_text("whsec_")
    dialog.get_by_role("button", name="I have it").click()
    page.get_by_role("button", name=f"Test {hook}?of=rule").click()
    assert b"leasekit.lease.test" in Hook.got.get(timeout=WITHIN_MS / 1000)
    expect(deliveries.get_by_role("row").filter(has_text="?of=rule")).to_contain_text("done")
    row.get_by_role("button", name="Retry").click()
    assert b"leasekit.lease.granted" in Hook.got.get(timeout=WITHIN_MS / 1000)
    expect(deliveries.get_by_role("row").filter(has_text="?of=ada")).to_contain_text("done")
    expect(row).to_have_count(0)
    with first_answer_last(page, "**/notifications/deliveries?*"):
        page.get_by_label("State", exact=True).select_option("done")
        page.get_by_label("State", exact=True).select_option("dead")
        expect(deliveries).to_have_count(0)
    expect(deliveries).to_have_count(0)  # none is dead any more
    page.get_by_label("State", exact=True).select_option("")
    page.get_by_role("button", name=f"Remove {hook}?of=rule").click()
    expect(page.get_by_role("region", name="Rules").get_by_role("row").filter(has_text="?of=rule")).to_have_count(0)
    who.check()


def test_an_outage_is_announced_on_all_pages(
    person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client
) -> None:
    """An operator writes it; others see it come, as text, and put it away; then it is announced no more."""
    user = person("ada", viewport={"width": 360, "height": 740})
    seen = user.open("/leases")
    expect(seen.locator("#live")).to_contain_text("live")
    expect(seen.locator("#announced")).to_be_hidden()
    operator = person("olga")
    page = operator.open("/admin")
    page.get_by_role("button", name="Announce an outage…").press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="What").fill(XSS)
    dialog.get_by_label("Until (UTC)").fill("2031-01-01T12:00:00")
    operator.check()
    seen.route("**/announcements", lambda asked: asked.abort(), times=1)  # what has no answer is asked for again
    dialog.get_by_role("button", name="Announce", exact=True).press("Enter")
    expect(page.get_by_role("table", name="Announcements")).to_contain_text(XSS)
    for place in (page, seen):
        expect(place.locator("#announced")).to_contain_text(XSS)
        expect(place.locator("#announced")).to_contain_text("Wed 1 Jan 2031 12:00 (UTC)")
    operator.check()
    user.check()
    assert seen.evaluate("document.documentElement.scrollWidth") <= 360
    seen.locator("#announced").get_by_role("button", name="Put away").press("Enter")
    expect(seen.locator("#announced")).to_be_hidden()
    expect(seen.locator("#main")).to_be_focused()
    (made,) = ada.get("/announcements").json()["items"]
    with seen.expect_response("**/announcements") as asked:
        user.open("/calendar")
    assert asked.value.json()["items"] == [made]
    expect(seen.locator("#announced")).to_be_hidden()
    page.get_by_role("button", name="Remove <img").press("Enter")
    expect(page.locator("#announced")).to_be_hidden()
    assert olga.get("/announcements").json() == {"items": []}
    assert "hit" not in page.title() + seen.title()


def test_what_an_operator_has_not_seen_is_not_undone(person: Callable[..., Person], olga: httpx.Client) -> None:
    """A policy that is another since is not set; the page shows it, and then it may be."""
    with policy(olga):
        page = person("olga").open("/admin")
        change = page.get_by_role("button", name="Change the policy of alpha")
        change.press("Enter")
        olga.put("/policies/alpha", json={"most_units": 5})
        page.get_by_label("Longest", exact=True).fill("2h")
        page.get_by_role("button", name="Set", exact=True).press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text("not as it was seen any more")
        expect(page.get_by_role("row").filter(has_text="most units: 5")).to_have_count(1)
        page.get_by_role("button", name="Cancel").press("Enter")
        change.press("Enter")
        page.get_by_label("Longest", exact=True).fill("2h")
        page.get_by_role("button", name="Set", exact=True).press("Enter")
        expect(page.get_by_role("row").filter(has_text="longest: 2h · most units: 5")).to_have_count(1)
