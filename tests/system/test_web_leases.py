"""The pages of leases, as somebody uses them: what they show, what is done with them, and what they show then."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import httpx
import pytest
from gateway.gateway_world import until
from playwright.sync_api import Route, expect
from web_world import XSS, Person, WebLab, ada, chromium, lab, person

__all__ = ["ada", "chromium", "lab", "person"]
pytestmark = pytest.mark.xdist_group("web")


at = datetime.fromisoformat


@pytest.fixture
def lease(ada: httpx.Client) -> Iterator[Callable[..., str]]:
    """Asks for a lease and waits until it is active; it is closed after the test."""
    made: list[str] = []

    def ask(state: str = "active", **wish: object) -> str:
        answer = ada.post("/leases", json={"type": "vm", "length": "1h", **wish})
        assert answer.status_code == 201, answer.text
        made.append(answer.json()["id"])
        until(ada, made[-1], state)
        return made[-1]

    yield ask
    for id_ in made:
        ada.post(f"/leases/{id_}/close", json={})


def test_a_lease_is_extended_changed_and_closed(
    person: Callable[..., Person], ada: httpx.Client, lease: Callable[..., str]
) -> None:
    """By its page, each step with what would be answered before it is taken."""
    lease(name="web", units=2)
    who = person("ada")
    page = who.open("/leases")
    row = page.get_by_role("row").filter(has_text="web")
    expect(row).to_contain_text("active")
    who.check()
    row.get_by_role("link", name="web").click()
    expect(page.get_by_role("heading", name="web")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="joined")).to_have_count(2)
    who.check()

    page.get_by_role("button", name="Extend…").click()
    page.get_by_label("For", exact=True).fill("soon")
    expect(page.locator("dialog .answer")).to_have_text("For: A number and a unit, such as 90m, 2h or 1d 12h")
    page.get_by_label("For", exact=True).fill("2h")
    expect(page.locator("dialog .answer")).to_contain_text("granted")
    who.check()
    with page.expect_request("**/extend?*") as sent:
        page.get_by_role("button", name="Extend", exact=True).click()
    assert sent.value.post_data_json == {"length": "2h", "victims": []}  # units as it has by then, which may be others
    expect(page.locator("#notes")).to_contain_text("web is to go on for 2h more")
    expect(page.locator(".timeline")).to_contain_text("lease.extend")
    facts = page.locator("#page dl").first
    expect(facts).to_contain_text(re.compile(r"\(UTC\), 3h ends in (3h|2h 59m)"))  # all that it was extended by
    expect(facts).to_contain_text("Extended")
    expect(page.locator("#page .chip").first).to_have_text("active")
    page.get_by_role("button", name="Change…").click()
    end, dialog = page.locator("dialog input[name=end]"), page.get_by_role("dialog")
    end.fill((datetime.fromisoformat(end.input_value()) - timedelta(minutes=90)).isoformat(timespec="minutes"))
    expect(dialog.locator(".answer")).to_contain_text("so its end can't be modified")
    expect(dialog).not_to_contain_text("leasekit")  # what would do is a button here, and no command of a shell
    who.check()
    dialog.get_by_role("button", name="Undo extension…").press("Enter")
    dialog.get_by_role("button", name="Take it back").press("Enter")
    expect(facts).to_contain_text("(UTC), 1h ends in")
    expect(page.get_by_role("button", name="Undo extension…")).to_have_count(0)

    page.get_by_role("button", name="Change…").click()
    page.get_by_role("spinbutton", name="Units").fill("40")
    expect(page.locator("dialog .answer")).to_contain_text("refused")
    page.get_by_role("spinbutton", name="Units").fill("1")
    page.get_by_role("checkbox", name="vm-1").check()
    expect(page.locator("dialog .answer")).to_contain_text("granted")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_role("row").filter(has_text="joined")).to_have_count(1)
    assert [one["unit"] for one in ada.get("/leases/web").json()["members"]] == ["vm-0"]

    page.get_by_role("button", name="Close…").click()
    page.get_by_label("Why").fill("done")
    page.get_by_role("button", name="Close now").click()
    expect(page.locator("#page .chip").first).to_have_text("closed")
    expect(page.get_by_text("None any more.")).to_be_visible()
    expect(page.get_by_role("button", name="Extend…")).to_have_count(0)


def test_a_line_leads_to_its_lease(person: Callable[..., Person], lease: Callable[..., str]) -> None:
    """Wherever it is pressed, but on what else it has."""
    id_ = lease(name="line")
    page = person("ada").open("/leases")
    row = page.get_by_role("row").filter(has_text="line")
    row.get_by_label("Choose line").check()
    row.get_by_role("button", name="Extend").click()
    page.get_by_role("button", name="Cancel").click()
    cells = row.get_by_role("cell")
    for number in (2, 3, 4, 6, 7):
        cells.nth(number).click(force=True)  # what is pressed is the link, which lies above
        expect(page).to_have_url(re.compile(f"/leases/{id_}"))
        page.go_back()


def test_a_lease_is_handed_to_a_colleague(person: Callable[..., Person], lease: Callable[..., str]) -> None:
    """By keys; the page says whose it is, whatever the reason is; one who is no user is refused with why."""
    id_ = lease(name="desk")
    who = person("ada", viewport={"width": 360, "height": 740})
    page = who.open(f"/leases/{id_}")
    expect(page.locator("dl").first).to_contain_text("Holderada")
    page.get_by_role("button", name="Hand over…").press("Enter")
    page.get_by_role("textbox", name="To").fill("olaf")
    page.get_by_role("textbox", name="Why").fill(XSS)
    who.check()
    page.get_by_role("button", name="Hand over", exact=True).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("found 'olaf', who is no user of alpha")
    page.get_by_role("textbox", name="To").fill("bob")
    page.get_by_role("button", name="Hand over", exact=True).press("Enter")
    expect(page.locator("dl").first).to_contain_text("Holderbob")
    expect(page.locator(".timeline")).to_contain_text(f"handed to bob: {XSS}")
    who.check()
    assert "hit" not in page.title()


def test_many_leases_are_extended_at_once(
    person: Callable[..., Person], ada: httpx.Client, lease: Callable[..., str]
) -> None:
    """Those that are chosen, each once, also where an answer was lost and one presses again; how far it is is said."""
    names = ["one", "two", "three", "four", "five", "six"]
    ids = [lease(name=name) for name in names]
    page = person("ada").open("/leases")
    page.get_by_label("Choose all 6 that are found").check()
    page.get_by_label("Choose six").uncheck()
    page.get_by_role("button", name="Extend…").click()
    dialog, said = page.locator("dialog"), page.locator("#notes .note")
    dialog.get_by_label("For", exact=True).fill("3h")
    asked: list[Route] = []

    def lost(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            expect(dialog.get_by_role("progressbar")).to_have_attribute("max", "5")
            expect(dialog).to_contain_text("4 of 5")  # others go on
            assert route.fetch().ok
            route.abort()
        else:
            route.continue_()

    page.route("**/extend?*", lost)
    dialog.get_by_role("button", name="Extend").press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("4 of 5 are done. one: The gateway does not answer.")
    dialog.get_by_role("button", name="Extend").press("Enter")
    expect(said).to_contain_text("one: to go on for 3h more.")
    expect(dialog).to_be_hidden()
    assert len({route.request.header_value("idempotency-key") for route in asked}) == 5 == len(asked) - 1
    expect(page.get_by_role("row").filter(has_text="in 3h 59m")).to_have_count(5)
    longer = [ada.get(f"/leases/{id_}").json() for id_ in ids]
    assert [timedelta(0) if (to := one["extended_to"]) is None else at(to) - at(one["end"]) for one in longer] == [
        *[timedelta(hours=3)] * 5, timedelta(0),
    ]  # fmt: skip
    page.get_by_label("State").select_option("active")
    expect(page.get_by_role("row").filter(has_text="active")).to_have_count(6)


def test_what_happens_elsewhere_shows(person: Callable[..., Person], ada: httpx.Client) -> None:
    """Without loading the page again; so does that the gateway is there again after it was away."""
    page = person("bob").open("/leases")
    expect(page.locator("#live")).to_contain_text("live")
    made = ada.post("/leases", json={"type": "vm", "length": "1h", "name": "elsewhere"}).json()
    row = page.get_by_role("row").filter(has_text="elsewhere")
    expect(row).to_contain_text("active")
    ada.post(f"/leases/{made['id']}/close", json={})
    expect(row).to_have_count(0)


def test_words_of_others_are_text(person: Callable[..., Person], ada: httpx.Client, lease: Callable[..., str]) -> None:
    """A name, a slice, a reason and a configuration that would be markup are shown as they are."""
    asked = {"name": XSS[:200], "slice": XSS[:100], "configuration": {XSS[:100]: XSS}}
    made = ada.post("/leases", json={"type": "vm", "length": "1h", **asked})
    if made.status_code == 201:
        ada.post(f"/leases/{made.json()['id']}/close", json={"reason": XSS})
    id_ = lease(configuration={"note": XSS})
    ada.post(f"/leases/{id_}/close", json={"reason": XSS})
    until(ada, id_, "closed")
    page = person("ada").open(f"/leases/{id_}")
    expect(page.locator("#page")).to_contain_text("<script>document.title='hit'</script>")
    page.goto(page.url.replace(f"/{id_}", "?state=all"))
    expect(page.get_by_role("row")).not_to_have_count(0)
    assert page.title() != "hit"
    assert page.locator("#page img, #page script").count() == 0


def test_nothing_and_nobody(person: Callable[..., Person], lab: WebLab) -> None:
    """An empty list says what to do; a lease that there is not is told; so is a session that is over."""
    who = person("bob")
    page = who.open("/leases?state=ticketed")
    expect(page.locator(".empty")).to_contain_text("No leases")
    who.check()
    who.open("/leases/nothing")
    expect(page.locator(".empty")).to_contain_text("no lease nothing")
    who.check()
    page.get_by_role("link", name="All leases").click()
    expect(page.locator("h1")).to_have_text("Leases")
    who.open("/leases/nothing")
    with lab.client("olga") as olga:
        for token in olga.get("/tokens").json()["items"]:
            if token["caller"] == "bob":
                olga.post(f"/tokens/{token['id']}/revoke", json={})
    page.reload()
    expect(page.get_by_label("Password")).to_be_visible()


def test_pages_of_a_phone(person: Callable[..., Person], lease: Callable[..., str]) -> None:
    """At 360 px nothing is wider than the screen but tables, which scroll by themselves."""
    id_ = lease(name="phone" * 25)
    who = person("ada", viewport={"width": 360, "height": 740})
    for path in ("/leases", f"/leases/{id_}", f"/leases/{'x' * 200}"):
        page = who.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        who.check()
    who.open(f"/leases/{id_}").get_by_role("button", name="Close…").click()
    assert page.get_by_role("dialog").evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")


def test_what_happens_while_a_page_is_loaded_shows(person: Callable[..., Person], ada: httpx.Client) -> None:
    """Also what happens after the page has asked, and before it hears of what happens, when nothing comes after it."""
    who, asked = person("ada"), {"request": {"type": "vm", "length": "1h", "name": "early"}}

    def late(route: Route) -> None:
        expect(who.page.locator(".empty")).to_have_text("Nothing waits to be approved.")
        assert ada.post("/approvals", json=asked).status_code == 201
        route.continue_()

    who.page.route("**/api/v1/events?*", late, times=1)
    card = who.open("/approvals").locator(".approval")
    expect(card).to_contain_text("early")
    card.get_by_role("button", name="Withdraw").press("Enter")
    who.page.get_by_role("dialog").get_by_role("button", name="Withdraw").press("Enter")
    expect(card).to_have_count(0)


def test_an_answer_that_breaks_off_is_told(person: Callable[..., Person]) -> None:
    """In words, with a way to try again."""
    who = person("ada")
    who.page.route("**/api/v1/waits*", lambda route: route.fulfill(body='{"items": [', content_type="application/json"))
    page = who.open("/waits")
    expect(page.locator(".refused")).to_contain_text("The answer broke off.")
    page.unroute("**/api/v1/waits*")
    page.get_by_role("button", name="Try again").press("Enter")
    expect(page.locator(".empty")).to_contain_text("Nobody waits")
