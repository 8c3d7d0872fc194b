"""The pages of those who operate a deployment, or look into its accounts: what they show, and what is done there."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cli.test_evidence_command import BROKER, FOUND
from gateway.gateway_world import until
from playwright.sync_api import Browser, Page, Route, expect
from web_world import (
    PASSWORD,
    Person,
    ada,
    chromium,
    gateway_alone,
    lab,
    lab_apart,
    log_in,
    olga,
    person,
    web_lab,
)

from leasekit.core.claims.evidence import decode_evidence, encode_evidence, of_overdelegation
from leasekit.core.leases.records import Incident
from leasekit.core.schema import Change

__all__ = ["ada", "chromium", "lab", "olga", "person"]
pytestmark = pytest.mark.xdist_group("web")
HOSTS = """
[[actor.site.inventory]]
type = "node"
units = 2
prefix = "rack-seven-node-"
driver = "null"
capacity = { cpu = 2, memory = "8GiB" }

[[actor.site.delegation]]
broker = "broker"
type = "node"
"""
FULL = "/request?project=alpha&type=vm&units=6"
"""A request that does not fit for as long as there is any lease."""
BEGINS = """() => {
  const open = [...document.querySelectorAll("dialog[open]")].at(-1);
  const field = [...open.querySelectorAll("input, select, textarea")].find((one) => one.checkVisibility());
  return document.activeElement === (field ?? open.querySelector("button"));
}"""
"""Whether what is open has the focus at its first field, or at its button where there is none."""


def test_machines_are_shown_with_their_hosts(chromium: Browser, tmp_path: Path) -> None:
    """On a phone as well: what a host has left, what a machine gets; names are whole."""
    with web_lab(tmp_path, HOSTS) as lab, lab.client("ada") as ada:
        wish = {"type": "node", "length": "2h", "needs": {"cpu": "0.5", "memory": "4GiB"}}
        machine = until(ada, ada.post("/leases", json=wish).json()["id"], "active")["members"][0]["unit"]
        who = log_in(lab, chromium, "olga", viewport={"width": 390, "height": 844})
        rows = who.open("/sites").get_by_role("region", name="Units").get_by_role("row")
        host = machine.rpartition(".")[0]
        expect(rows.filter(has_text=machine)).to_contain_text(f"{host}0.5")
        expect(rows.filter(has_text=host).first).to_contain_text("cpu=0.5, memory=4GiB of cpu=2, memory=8GiB")
        for name in (host, machine):
            shown = who.page.locator(".named").get_by_text(name, exact=True).first
            assert shown.evaluate("one => one.offsetHeight < 2 * parseFloat(getComputedStyle(one).lineHeight)")
        who.check()
        who.context.close()
        assert not who.complaints


def test_maintenance_hits_a_lease_and_is_removed(
    person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client
) -> None:
    """It names the lease, and its units go back into service; a button does its work, drawn anew under the pointer."""
    lease = ada.post("/leases", json={"type": "vm", "length": "2h", "name": "hit"}).json()["id"]
    until(ada, lease, "active")
    who = person("olga")
    page = who.open("/sites")
    who.check()
    page.get_by_role("button", name="Maintenance…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Withhold").click()
    expect(dialog.get_by_label("Units", exact=True)).to_be_focused()  # none is chosen: not all of the site is meant
    dialog.get_by_label("What", exact=True).select_option("vm")
    dialog.get_by_label("Why").fill("new disks <b>")
    who.check()
    dialog.get_by_role("button", name="Withhold").click()
    windows = page.get_by_role("region", name="Maintenance")
    expect(windows).to_contain_text("new disks <b>")
    expect(windows).to_contain_text(lease)
    expect(windows).to_contain_text("until it is removed")
    windows.get_by_role("button", name="Remove").hover()
    page.mouse.down()
    unit = "/units/board-1"
    assert olga.post(f"{unit}/disable", json={"reason": "it hums"}).is_success
    expect(page.get_by_role("row").filter(has_text="board-1")).to_contain_text("it hums")  # the page was drawn anew
    page.mouse.up()
    expect(windows).to_have_count(0)
    assert olga.post(f"{unit}/enable", json={}).is_success
    ada.post(f"/leases/{lease}/close", json={})


def test_a_unit_is_drained_and_a_lease_evicted(person: Callable[..., Person], ada: httpx.Client) -> None:
    """Each with its reason, which its holder sees."""
    lease = ada.post("/leases", json={"type": "vm", "length": "2h", "name": "evicted"}).json()["id"]
    members = until(ada, lease, "active")["members"]
    who = person("olga")
    for path, place in (("/claims", "listitem"), ("/sites", "row")):
        page = who.open(path)
        page.get_by_role(place).get_by_role("link", name=lease).first.click()
        expect(page.get_by_role("heading", name="evicted")).to_be_visible()
    page = who.open("/sites")
    unit = members[0]["unit"]
    page.get_by_role("button", name=f"Evict from {unit}").click()
    soon = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"End lease evicted · ada, alpha · {lease}?")
    who.check()
    dialog.get_by_label("Why").fill("needed elsewhere")
    dialog.get_by_label("When (UTC)", exact=True).fill(soon)
    dialog.get_by_role("button", name="Evict").click()
    expect(page.locator("#notes")).to_contain_text(f"Lease {lease} ends then; its holder is told.")
    told = ada.get(f"/leases/{lease}").json()
    assert (told["state"], told["end"][:16]) == ("active", soon) and "needed elsewhere" in told["reason"]
    page.get_by_role("button", name="Disable vm-5").click()
    page.get_by_role("dialog").get_by_label("Why").fill("it smokes")
    page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    row = page.get_by_role("row").filter(has_text="vm-5")
    expect(row).to_contain_text("it smokes")
    who.check()
    row.get_by_role("button", name="Enable vm-5").click()
    expect(row).not_to_contain_text("it smokes")
    page.get_by_label("Find units").fill("nothing")
    expect(page.locator(".empty")).to_have_text("No unit fits.")
    ada.post(f"/leases/{lease}/close", json={})


def test_dialogs_begin_where_one_types(person: Callable[..., Person], ada: httpx.Client) -> None:
    """Each at its first field, whatever explanation lies before it; Escape leads back to the button."""
    lease = ada.post("/leases", json={"type": "vm", "length": "2h", "name": "talked-of"}).json()["id"]
    until(ada, lease, "active")
    who, opened = person("olga"), set()
    for path in ("/sites", "/admin", "/leases?project=alpha", "/leases/talked-of?project=alpha", FULL):
        page = who.open(path)
        if path == FULL:
            expect(page.get_by_role("button", name="Tell me when it is free…")).to_be_visible()
        if path.startswith("/leases?"):
            page.get_by_role("checkbox", name="Choose talked-of").check()
        buttons = page.get_by_role("button").filter(has_text=re.compile("…$"))
        for words in dict.fromkeys(buttons.all_text_contents()):
            button = buttons.filter(has_text=words).first
            button.press("Enter")
            expect(page.get_by_role("dialog")).to_have_count(1)
            assert page.evaluate(BEGINS), f"{words} of {path}"
            page.keyboard.press("Escape")
            expect(button).to_be_focused()
            opened.add(words)
    assert opened == {
        "Maintenance…", "Disable…", "Move…", "Evict…", "Announce an outage…", "Add user…", "Rights…", "Password…",
        "Remove…", "New token…", "Change…", "New rule…", "Extend…", "Close…", "Hand over…", "Save as template…",
        "Tell me when it is free…",
    }  # fmt: skip
    ada.post(f"/leases/{lease}/close", json={})


def test_usage_and_audit(person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client) -> None:
    """A user sees the project's own, and takes the numbers away as CSV; an operator sees who commanded what."""
    lease = ada.post("/leases", json={"type": "vm", "length": "2h"}).json()["id"]
    until(ada, lease, "active")
    assert ada.post("/leases", json={"type": "vm", "units": 40, "length": "2h"}).status_code == 201
    who = person("ada")
    page = who.open("/usage")
    row = page.get_by_role("row").filter(has_text="alpha").first
    expect(row).to_contain_text("vm")
    expect(page.get_by_role("region", name="Usage")).to_contain_text("too_large")
    who.check()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as CSV").click()
    lines = saved.value.path().read_text().splitlines()
    assert lines[0].startswith('"project","type","site"')
    assert any(line.startswith('"alpha","vm","site"') for line in lines)
    over, months = page.get_by_label("Over"), re.compile(r"days=\d{4}-\d{2}")
    this_month = over.locator("option").nth(5).get_attribute("value")
    over.select_option(this_month)
    expect(page).to_have_url(months)
    expect(row).to_contain_text("vm")
    held: list[Route] = []
    page.route("**/api/v1/usage?*", lambda route: held.append(route), times=1)
    with page.expect_request("**/api/v1/usage?*"):
        over.select_option(index=0)
    over.select_option(index=6)
    nothing = page.get_by_text("Nothing was asked for or used in this time.")
    expect(nothing).to_be_visible()
    with page.expect_response("**/api/v1/usage?*") as older:
        held[0].continue_()
    older.value.finished()
    page.evaluate("new Promise((done) => setTimeout(done))")
    expect(nothing).to_be_visible()  # what was asked for before, and is answered last, covers nothing
    assert who.open(f"/usage?days={this_month}").get_by_label("Over").input_value() == this_month
    expect(page.get_by_role("link", name="Sites")).to_have_count(0)
    page = who.open("/audit")
    expect(page.get_by_role("region", name="Commands")).to_contain_text("ada")
    who.check()
    for what in ("disable", "enable"):
        assert olga.post(f"/units/board-1/{what}", json={}).is_success
    other = person("olga")
    page = other.open("/audit?of=site")
    expect(page.locator("#page")).to_contain_text("olga")
    expect(page.get_by_role("link", name="Sites")).to_be_visible()
    other.check()
    ada.post(f"/leases/{lease}/close", json={})


def test_claims_show_who_gave_what(person: Callable[..., Person], ada: httpx.Client) -> None:
    """From the site's own down to a lease, each by whom, and how much of it is given when."""
    leases = [
        ada.post("/leases", json={"type": "vm", "units": units, "length": length}).json()["id"]
        for units, length in ((2, "2h"), (1, "1h"))
    ]
    for lease in leases:
        until(ada, lease, "active")
    who = person("olga")
    page = who.open("/claims")
    root = page.locator(".claims > li").first
    expect(root).to_contain_text("broker 6")
    expect(root).to_contain_text("3 of 6 given at most")
    expect(root.locator("li").filter(has_text=leases[0])).to_contain_text("alpha 2")
    expect(page.get_by_text("oversubscribed")).to_have_count(0)
    expect(page.locator("#page")).to_contain_text("None: nobody was found")
    drawn = root.get_by_role("img", name="Given over time")
    heights = drawn.locator("rect").evaluate_all("all => all.map(one => one.height.baseVal.value)")
    widths = drawn.locator("rect").evaluate_all("all => all.map(one => one.width.baseVal.value)")
    assert [heights[-2], heights[-1]] == [12, 8], "3 of 6 units, then 2 of them, on a drawing of 24"
    assert widths[-1] == pytest.approx(500, abs=20), "the second of two hours"
    who.check()
    _too_much(page, leases[1])
    expect(root.locator(".chip", has_text="oversubscribed")).to_be_visible()
    expect(root.locator(".beyond", has_text="11 of 6, ")).to_be_visible()
    expect(drawn.locator("rect.beyond")).to_have_count(1)
    who.check()
    for lease in leases:
        ada.post(f"/leases/{lease}/close", json={})


def test_evidence_is_saved_and_checked(tmp_path: Path, chromium: Browser) -> None:
    """What a site holds against a broker is a file that anybody can check; instants in its words are as people read
    them.
    """
    held = of_overdelegation(FOUND)
    incident = Incident(
        "b-1", 1_700_000_001_000, held.kind, BROKER.public.hex(), "gave away 12 at 2023-11-14 22:13:20.000Z",
        encode_evidence(held).encode(),
    )  # fmt: skip
    with web_lab(tmp_path, site=[Change("evidence", incident.id, incident.row())]) as lab, lab.client("olga") as olga:
        who = log_in(lab, chromium, "olga")
        page = who.open("/claims")
        row = page.get_by_role("table", name="Evidence").get_by_role("row").filter(has_text="overdelegation")
        expect(row).to_contain_text("gave away 12 at Tue 14 Nov 2023 22:13")
        who.check()
        with page.expect_download() as saved:
            row.get_by_role("button", name="Save evidence b-1").click()
        assert saved.value.suggested_filename == "evidence-b-1.json"
        assert decode_evidence(Path(saved.value.path()).read_text()) == held
        missing = olga.get("/evidence/b-2")
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
        who.context.close()


def _too_much(page: Page, lease: str) -> None:
    """As if the claim of a lease had more units than its parent: no site would take it, but for an agreed degree."""

    def more(route: Route) -> None:
        told = route.fetch()
        claims = [{**one, "units": 9} if one["lease"] == lease else one for one in told.json()]
        route.fulfill(response=told, json=claims)

    page.route("**/api/v1/claims?*", more)
    page.reload()


def test_accounts_change_as_things_happen(person: Callable[..., Person], ada: httpx.Client) -> None:
    """Claims, commands and usage, without loading a page again; what is folded, or has the focus, stays so."""
    who = person("olga")
    page = who.open("/claims")
    expect(page.locator("#live")).to_contain_text("live")
    summary = page.locator(".claims > li summary").first
    lease = ada.post("/leases", json={"type": "vm", "units": 5, "length": "2h"}).json()["id"]
    expect(summary).to_contain_text("5 of 6 given at most")
    expect(page.locator(".claims li").filter(has_text=lease).first).to_be_visible()
    summary.press("Enter")
    expect(page.get_by_text(lease)).to_be_hidden()
    more = ada.post("/leases", json={"type": "vm", "units": 1, "length": "2h"}).json()["id"]
    expect(summary).to_contain_text("6 of 6 given at most")
    expect(page.get_by_text(more)).to_be_hidden()
    expect(summary).to_be_focused()

    page = who.open("/audit?of=alpha")
    first = page.get_by_role("row").nth(1)
    expect(first).to_contain_text(more)
    expect(page.locator("#live")).to_contain_text("live")
    ada.post(f"/leases/{lease}/close", json={})
    expect(first).to_contain_text("lease.close")
    expect(first).to_contain_text(lease)

    page = who.open("/usage?project=alpha")
    requests = page.get_by_role("row").filter(has_text="vm").first.get_by_role("cell").nth(3)
    expect(page.locator("#live")).to_contain_text("live")
    count = int(requests.inner_text())
    ada.post(f"/leases/{more}/close", json={})
    last = ada.post("/leases", json={"type": "vm", "units": 1, "length": "2h"}).json()["id"]
    expect(requests).to_have_text(str(count + 1))
    ada.post(f"/leases/{last}/close", json={})


def test_a_site_that_hangs_holds_up_no_page(tmp_path: Path, chromium: Browser) -> None:
    """Each says that it is away, and has all that one chooses by; what is its is shown once it answers."""
    with lab_apart(tmp_path) as (lab, daemons):
        site = daemons.running["site"].process.pid
        assert site is not None
        with gateway_alone(lab):
            who = log_in(lab, chromium, "olga")
            os.kill(site, signal.SIGSTOP)
            for path in ("/calendar", "/usage"):
                expect(who.open(path).locator(".note.refused")).to_have_text("Away: site. What is theirs is not shown.")
            for path in ("/claims", "/audit?of=site", "/sites"):
                who.page.goto(lab.url + path)
                expect(who.page.locator(".loading")).to_contain_text("site is away: it gave no answer within 1 s.")
                expect(who.page.locator(".tools")).to_be_visible()
            # Of a browser's few connections one waits for the site, and others are left for what is opened next.
            asked: list[str] = []
            who.page.on("request", lambda request: asked.append(request.url))
            with who.page.expect_request("**/sites/status?site=site"):
                who.page.reload()
            expect(who.page.locator(".loading")).to_be_visible()
            assert [one for one in asked if "site=site" in one] == [f"{lab.url}/api/v1/sites/status?site=site"]
            os.kill(site, signal.SIGCONT)
            expect(who.page.get_by_role("region", name="Units")).to_contain_text("vm-5")
            expect(who.page.locator(".loading")).to_have_count(0)
            who.context.close()


def test_a_request_in_all_its_words(person: Callable[..., Person], ada: httpx.Client) -> None:
    """What stands in the way, and an offer that is taken; the address is a template."""
    busy = ada.post("/leases", json={"type": "vm", "units": 6, "length": "2h", "name": "busy"}).json()["id"]
    until(ada, busy, "active")
    who = person("ada")
    page = who.open("/request?type=vm&units=3&keepalive=1h&name=asked")
    expect(page.get_by_label("Ends when silent for", exact=True)).to_have_value("1h")
    expect(page.locator(".offers")).to_contain_text("Your own in the way")
    who.check()
    ask, explained = page.locator(".ask:visible").first, page.locator(".hint-words:visible")
    ask.hover()
    explained.hover()
    expect(explained).to_have_count(1)
    page.keyboard.press("Escape")
    expect(explained).to_have_count(0)
    ask.focus()
    expect(explained).to_have_count(1)
    page.locator(".offer").first.click()
    expect(page.locator(".answer")).to_have_attribute("data-kind", "granted")
    page.get_by_role("button", name="Request", exact=True).click()
    expect(page.get_by_role("heading", name="asked")).to_be_visible()
    expect(page.locator("#page dl").first).to_contain_text("Ends when silent for1h")
    assert ada.get("/leases/asked").json()["units"] == 3
    for id_ in ("asked", busy):
        ada.post(f"/leases/{id_}/close", json={})


def test_who_may_not_is_told(person: Callable[..., Person]) -> None:
    """A page of operators says why it shows nothing."""
    who = person("ada")
    page = who.open("/sites")
    expect(page.locator(".refused").first).to_contain_text("ada is no auditor of this deployment")
    who.check()


def test_who_only_looks_is_told_so(person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client) -> None:
    """What a viewer may not do is not offered, and it is said who could change that; of another project it is."""
    rights = {"alpha": "viewer", "beta": "user"}
    assert olga.post("/users", json={"name": "vic", "password": PASSWORD, "projects": rights}).is_success
    lease = ada.post("/leases", json={"type": "vm", "length": "2h", "name": "seen"}).json()["id"]
    until(ada, lease, "active")
    who = person("vic")
    offers = re.compile(r"^(Extend|Change|Hand over|Close|Request|Reserve|New rule|Console)…?$")
    for path in ("/calendar", "/calendar?view=table", "/leases", "/leases/seen", "/request", "/topology", "/admin"):
        page = who.open(f"{path}{'&' if '?' in path else '?'}project=alpha")
        expect(page.locator("#page")).to_contain_text("You look at alpha as a viewer. An operator can make you a user")
        expect(page.locator("#page :is(button, a.button):visible").filter(has_text=offers)).to_have_count(0)
        expect(page.get_by_role("checkbox", name="Choose")).to_have_count(0)
        who.check()
    page = who.open("/calendar?project=alpha&type=vm")
    page.locator(".chart-scroll").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".side")).to_be_hidden()
    page.get_by_role("button", name="Table").press("Enter")
    page.get_by_role("button", name="seen", exact=True).press("Enter")
    expect(page.locator(".side h2")).to_have_text("seen")
    expect(page.locator(".side").get_by_role("button", name="Extend…")).to_have_count(0)
    page.get_by_label("Project").select_option("beta")
    expect(page.get_by_role("button", name="Reserve", exact=True)).to_be_visible()
    expect(who.open("/leases?project=beta").get_by_role("link", name="Request").last).to_have_class("button do")
    page = who.open("/leases?project=gamma")
    expect(page.locator("#notes")).to_contain_text("There is no project gamma, or it is not yours.")
    page.keyboard.press("Escape")
    expect(page.locator("#notes .note")).to_have_count(0)
    assert olga.delete("/users/vic").is_success
    ada.post(f"/leases/{lease}/close", json={})
