"""The page of requests, as somebody uses it: what recurs, and what became of each day."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from gateway.gateway_world import give_back, until
from playwright.sync_api import expect
from web_world import XSS, Person, ada, chromium, lab, person

__all__ = ["ada", "chromium", "lab", "person"]
pytestmark = pytest.mark.xdist_group("web")

MARKUP = XSS.partition("<script>")[0]
SERIES = "/request?type=vm&start=2031-01-05T00:00&begin=09:00&finish=17:00&until=2031-01-17&every=mon,wed"


@pytest.fixture(autouse=True)
def tidy(ada: httpx.Client) -> Iterator[None]:
    """What a test leases is closed after it, and free again."""
    yield
    give_back(ada, "2031-01-13T09:00:00Z")


def test_a_request_recurs_by_keys(person: Callable[..., Person], ada: httpx.Client) -> None:
    """One answer says which day can't be had; then those that can be had are leased."""
    busy = {"type": "vm", "units": 3, "start": "2031-01-13T10:00:00Z", "length": "1h"}
    until(ada, ada.post("/leases", json=busy).json()["id"], "ticketed")
    who = person("ada")
    page = who.open("/request?type=vm&units=5&start=2031-01-05T00:00&name=lab")
    expect(page.locator(".answer")).to_have_attribute("data-kind", "granted")
    page.get_by_text("Recur", exact=True).focus()
    page.keyboard.press("Enter")
    for day in ("Mon", "Wed"):
        page.get_by_label(day, exact=True).press("Space")
    page.get_by_label("Last day").fill("2031-01-17")
    expect(page.get_by_label("For how long", exact=True)).to_be_disabled()
    page.get_by_role("button", name="Try").press("Enter")
    expect(page.locator(".answer")).to_contain_text("1 of 4 days can't be had.")
    expect(page.get_by_role("row").filter(has_text="possible")).to_have_count(3)
    who.check()
    page.get_by_role("button", name="Request", exact=True).press("Enter")
    expect(page.locator(".answer")).to_contain_text("1 of 4 days can't be had: none was kept.")
    page.get_by_role("checkbox", name="Those that can be had").press("Space")
    page.get_by_role("button", name="Request", exact=True).press("Enter")
    expect(page.get_by_role("link", name="lab.2031-01-15")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="refused")).to_contain_text("Mon 13 Jan 2031")
    who.check()
    page.get_by_label("Last day").fill("2031-03-20")
    page.get_by_role("button", name="Try").press("Enter")
    days, later = page.get_by_role("row").filter(has_text="2031"), page.get_by_role("button", name="Days: next page")
    expect(days).to_have_count(20)
    expect(days.first).to_contain_text("refused")
    later.press("Enter")
    expect(page.get_by_text("21 to 22 of 22")).to_be_visible()
    expect(days).to_have_count(2)
    expect(later).to_be_focused()
    who.check()
    assert {one["name"] for one in ada.get("/leases?state=ticketed").json()["items"]} == {
        "", "lab.2031-01-06", "lab.2031-01-08", "lab.2031-01-15",
    }  # fmt: skip
    who.open(f"/leases/{ada.get('/leases/lab.2031-01-15').json()['id']}")
    expect(page.get_by_role("button", name="Change…")).to_be_visible()
    expect(page.get_by_role("button", name="Extend…")).to_have_count(0)  # it has not begun


def test_the_address_has_what_recurs(person: Callable[..., Person], ada: httpx.Client) -> None:
    """It can be sent to a colleague; what names say is text, and a phone shows all of it."""
    who = person("bob", viewport={"width": 360, "height": 740})
    page = who.open(f"{SERIES}&name=web")
    expect(page.get_by_label("Wed", exact=True)).to_be_checked()
    page.get_by_label("Name").fill(MARKUP)
    page.get_by_role("button", name="Request", exact=True).click()
    expect(page.locator(".answer")).to_contain_text("All 4 days are granted.")
    expect(page.get_by_role("row").filter(has_text="granted")).to_have_count(4)
    expect(page.get_by_role("link", name=f"{MARKUP}.2031-01-06")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    who.check()
    assert "hit" not in page.title()


def test_windows_are_offered_where_one_may_be(person: Callable[..., Person]) -> None:
    """What is refused at any time is answered once, without offers; what is only taken for now has them."""
    page = person("ada").open("/request?type=vm&length=1h&units=7&needs=cpu%3D2")
    answer, offers = page.locator(".answer"), page.locator(".offers")
    expect(answer).to_contain_text("units: found 7 that need cpu=2 each, no site here has more than 6 of 'vm'")
    page.get_by_role("textbox", name="Needs").fill("")
    page.get_by_label("Units", exact=True).fill("1")
    page.get_by_role("textbox", name="Filter").fill("rack === b")
    expect(answer).to_contain_text("properties.filter: character 8: found '='")
    expect(offers).to_be_empty()
    page.get_by_role("textbox", name="Filter").fill("site == nowhere")
    expect(offers).to_contain_text("It fits nowhere within 30 days: no site passes the filter")
    expect(offers.get_by_role("button", name="Tell me when it is free")).to_be_visible()


def test_what_can_not_be_asked_for_is_told(person: Callable[..., Person]) -> None:
    """By the label of its field; what an address names is asked for, or refused, and nothing else in its place."""
    who = person("ada")
    for query, told in {
        "type=gpu": "type: found 'gpu', broker has",
        "type=vm&site=moon": "found 'moon'",
        "type=vm&units=0": "Units: Value must be",
        "type=vm&elastic=5": "Would do with: found 5, expected at most the 1 unit asked for",
    }.items():
        page = who.open(f"/request?{query}")
        expect(page.locator(".answer")).to_contain_text(told, ignore_case=True)


def test_a_template_is_shared_with_the_project(person: Callable[..., Person], ada: httpx.Client) -> None:
    """Saved by keys, whatever it is called; a colleague fills the form by it."""
    who = person("ada")
    page = who.open("/request?type=vm&units=3&length=90m&preemptible=yes&configuration=image%3Dx")
    page.get_by_role("button", name="Save as template…").press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill(MARKUP)
    dialog.get_by_label("All of the project see it").press("Space")
    who.check()
    dialog.get_by_role("button", name="Save", exact=True).press("Enter")
    expect(page.locator("#notes")).to_contain_text(f"Saved as {MARKUP}.")
    other = person("bob", viewport={"width": 360, "height": 740})
    seen = other.open("/request")
    seen.get_by_label("Templates").select_option(f"{MARKUP} (ada)")
    expect(seen.get_by_role("spinbutton", name="Units", exact=True)).to_have_value("3")
    expect(seen.get_by_role("textbox", name="For how long", exact=True)).to_have_value("90m")
    expect(seen.get_by_role("checkbox", name="Preemptible", exact=True)).to_be_checked()
    expect(seen.get_by_role("textbox", name="Configuration", exact=True)).to_have_value("image=x")
    other.check()
    page.get_by_role("button", name="Save as template…").press("Enter")
    dialog.get_by_text("Yours", exact=True).press("Enter")
    dialog.get_by_role("button", name="Remove").press("Enter")
    expect(page.get_by_label("Templates")).to_have_count(0)
    assert ada.get("/templates").json() == {"items": []}
    assert "hit" not in page.title() + seen.title()


def test_a_template_keeps_the_days_of_what_recurs(person: Callable[..., Person], ada: httpx.Client) -> None:
    """One that a program has made, with other words for the same, fills the form as well; the last day is asked for."""
    who = person("ada")
    page = who.open(f"{SERIES}&zone=Europe/Berlin&each=yes")
    page.get_by_role("button", name="Save as template…").press("Enter")
    page.get_by_role("dialog").get_by_role("textbox", name="Name").fill("lectures")
    page.get_by_role("dialog").get_by_role("button", name="Save", exact=True).press("Enter")
    expect(page.locator("#notes")).to_contain_text("Saved as lectures.")
    (kept,) = ada.get("/templates").json()["items"]
    days = {"every": "mon,wed", "begin": "09:00", "finish": "17:00", "zone": "Europe/Berlin", "each": True}
    assert kept["days"] == days
    ada.post(
        "/templates",
        json={"name": "lectures", "request": {"type": "vm"}, "days": {**days, "every": "fri-mon,wed", "begin": "9:00"}},
    )
    who.open("/request")
    page.get_by_label("Templates").select_option("lectures")
    for day, chosen in (("Mon", True), ("Tue", False), ("Wed", True), ("Thu", False), ("Fri", True), ("Sun", True)):
        expect(page.get_by_label(day, exact=True)).to_be_checked(checked=chosen)
    expect(page.get_by_label("At", exact=True)).to_have_value("09:00")
    expect(page.get_by_label("Zone of the hours")).to_have_value("Europe/Berlin")
    expect(page.get_by_role("checkbox", name="Those that can be had")).to_be_checked()
    page.get_by_role("button", name="Try").press("Enter")
    expect(page.get_by_label("Last day")).to_be_focused()
    who.check()
    ada.post("/templates/lectures/remove")
