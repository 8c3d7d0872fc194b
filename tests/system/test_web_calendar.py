"""The calendar as somebody uses it: by pointer, by keys alone, by its table, two at once, and while things break."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import httpx
import pytest
from gateway.gateway_world import give_back, until
from playwright.sync_api import Browser, Locator, Page, expect
from system.system_waits import wait_until
from web_world import Person, WebLab, ada, chromium, gateway_alone, lab, lab_apart, log_in, person

__all__ = ["ada", "chromium", "lab", "person"]
pytestmark = pytest.mark.xdist_group("web")
HOUR = timedelta(hours=1)
ROW = "site/vm"


@attrs.frozen
class ChartUnderTest:
    """The calendar's chart on a page: where a row and an instant are."""

    page: Page

    @property
    def scroll(self) -> Locator:
        """What has the focus, and hears the pointer."""
        return self.page.locator(".chart-scroll")

    def x(self, at: datetime) -> float:
        """Where an instant is."""
        of = "one => ({...one.dataset, ...one.getBoundingClientRect().toJSON(), larger: one.currentCSSZoom})"
        found = self.scroll.evaluate(of)
        begin, end, labels = (float(found[name]) for name in ("from", "to", "labels"))
        labels *= found["larger"]
        share = (at.timestamp() * 1000 - begin) / (end - begin)
        return float(found["x"]) + labels + share * (float(found["width"]) - labels)

    def y(self, label: str) -> float:
        """Where the profile of a row is."""
        box = self.page.locator(".row-label", has_text=label).first.bounding_box()
        assert box is not None
        return box["y"] + 20

    def drag(self, label: str, start: datetime, end: datetime, *, down: float = 0) -> None:
        """With the pointer over a row from one instant to another, and let go."""
        mouse, y = self.page.mouse, self.y(label) + down
        mouse.move(self.x(start), y)
        mouse.down()
        mouse.move(self.x(end), y, steps=6)
        mouse.up()


def full_hour(hours: int) -> datetime:
    """So many hours after the next full one."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + (hours + 1) * HOUR


def text(at: datetime) -> str:
    """As the API has it."""
    return at.isoformat()


@pytest.fixture(autouse=True)
def tidy(ada: httpx.Client) -> Iterator[None]:
    """Whatever was leased is closed after the test, and its units are free at the broker."""
    yield
    give_back(ada, text(full_hour(1)))


def calendar(who: Person, path: str = "/calendar") -> ChartUnderTest:
    """The calendar, once it shows a row."""
    page = who.open(path)
    expect(page.locator(".row-label", has_text="vm").first).to_be_visible()
    return ChartUnderTest(page)


@pytest.mark.parametrize(
    ("width", "larger"), [pytest.param(1280, 1, marks=pytest.mark.soak), (3840, 2)], ids=["desk", "wall"]
)
def test_reserving_by_dragging(person: Callable[..., Person], ada: httpx.Client, width: int, larger: float) -> None:
    """While it is dragged it is said what would be answered; then a button asks for it, and the lease shows. What is on
    a wall screen is larger, and drawn as finely as the screen can.
    """
    who = person("ada", viewport={"width": width, "height": width * 9 // 16})
    chart, start = calendar(who), full_hour(2)
    page, mouse, y = chart.page, chart.page.mouse, chart.y("vm")
    drawn = page.locator(".chart-canvas").evaluate("one => one.width / one.clientWidth")
    assert drawn == pytest.approx(larger, abs=0.01)
    mouse.move(chart.x(start), y)
    mouse.down()
    mouse.move(chart.x(start + 3 * HOUR), y, steps=6)
    expect(page.locator(".tip")).to_contain_text("granted")
    box = page.locator(".tip").bounding_box()
    assert box is not None
    assert 0 < box["y"] - y < 30 * larger
    mouse.up()
    expect(page.locator(".side .answer")).to_contain_text("1 unit at site")
    ends = page.get_by_label("To (UTC)")
    before = ends.input_value()
    ends.fill("2020-01-01T00:00")
    expect(page.locator(".side .answer")).to_have_text("To (UTC): expected a time after the start")
    ends.fill(before)
    page.get_by_role("spinbutton", name="Units").fill("2")
    page.get_by_label("Name", exact=True).fill("dragged")
    expect(page.locator(".side .answer")).to_contain_text("2 units at site")
    who.check()
    page.get_by_role("button", name="Reserve", exact=True).last.click()
    expect(page.locator("#notes")).to_contain_text("dragged")
    made = ada.get("/leases/dragged").json()
    assert made["units"] == 2
    assert abs(datetime.fromisoformat(made["start"]) - start) <= timedelta(minutes=15)
    page.get_by_role("button", name="Table").click()
    expect(page.get_by_role("button", name="dragged")).to_be_visible()
    who.check()


def test_what_does_not_fit_is_offered_at_another_time(person: Callable[..., Person], ada: httpx.Client) -> None:
    """The offer is taken by a click, and granted."""
    busy = {"type": "vm", "units": 6, "start": text(full_hour(1)), "end": text(full_hour(9)), "name": "busy"}
    until(ada, ada.post("/leases", json=busy).json()["id"], "ticketed")
    who = person("bob")
    chart = calendar(who)
    page = chart.page
    chart.drag("vm", full_hour(2), full_hour(4))
    answer = page.locator(".side .answer")
    expect(answer).to_have_attribute("data-kind", "refused")
    offers = page.locator(".offer")
    expect(offers.first).to_be_visible()
    who.check()
    offers.first.click()
    expect(answer).to_have_attribute("data-kind", "granted")
    page.get_by_label("Name", exact=True).fill("offered")
    page.get_by_role("button", name="Reserve", exact=True).last.click()
    expect(page.locator("#notes")).to_contain_text("offered")
    until(ada, "offered", "ticketed")


def test_a_lease_of_ones_own_is_dragged(person: Callable[..., Person], ada: httpx.Client) -> None:
    """To another time by its middle, to another end by its edge; a click shows it."""
    wish = {"type": "vm", "start": text(full_hour(2)), "end": text(full_hour(4)), "name": "moved"}
    until(ada, ada.post("/leases", json=wish).json()["id"], "ticketed")
    chart = calendar(person("ada"))
    page, lane = chart.page, 30
    chart.drag("vm", full_hour(3), full_hour(5), down=lane)
    expect(page.locator(".side .answer")).to_have_attribute("data-kind", "granted")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.locator(".side h2")).to_have_text("moved")
    page.wait_for_function("async () => (await (await fetch('/api/v1/leases/moved')).json()).pending === ''")
    moved = ada.get("/leases/moved").json()
    assert datetime.fromisoformat(moved["start"]) == full_hour(4)
    assert datetime.fromisoformat(moved["end"]) == full_hour(6)
    expect(page.locator(".side dl")).to_contain_text(f"{full_hour(4):%H:%M}")
    page.mouse.move(chart.x(full_hour(6)) - 2, chart.y("vm") + lane)
    chart.drag("vm", full_hour(6) - timedelta(minutes=1), full_hour(8) - timedelta(minutes=1), down=lane)
    expect(page.locator(".side .answer")).to_have_attribute("data-kind", "granted")
    page.get_by_role("button", name="Change", exact=True).click()
    page.wait_for_function(
        "async end => Date.parse((await (await fetch('/api/v1/leases/moved')).json()).end) >= end",
        arg=(full_hour(8) - timedelta(minutes=15)).timestamp() * 1000,
    )
    page.mouse.click(chart.x(full_hour(5)), chart.y("vm") + lane)
    expect(page.locator(".side h2")).to_have_text("moved")


def test_with_keys_alone(person: Callable[..., Person], ada: httpx.Client) -> None:
    """One reaches the calendar, chooses a time, reserves, comes back to the lease and closes it."""
    who = person("ada")
    page = who.open("/calendar")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "chart-scroll":
            break
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator(".chart [role=status]")).to_contain_text("6 of 6 free")
    page.keyboard.press("Enter")
    expect(page.get_by_role("spinbutton", name="Units")).to_be_focused()
    expect(page.locator(".side .answer")).to_have_attribute("data-kind", "granted")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("keys")
    page.keyboard.press("Enter")
    expect(page.locator("#notes")).to_contain_text("keys")
    until(ada, "keys", "ticketed")
    expect(page.locator(".chart-scroll")).to_be_focused()
    expect(page.locator(".side")).to_be_hidden()
    expect(page.locator(".chart-scroll")).to_have_attribute("data-bars", "1")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".chart [role=status]")).to_contain_text("keys")
    page.keyboard.press("Enter")
    expect(page.locator(".side h2")).to_have_text("keys")
    page.get_by_role("button", name="Table").press("Enter")
    page.get_by_role("button", name="keys", exact=True).press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator(".side")).to_be_hidden()
    expect(page.get_by_role("button", name="keys", exact=True)).to_be_focused()


def test_the_last_unit_goes_to_one_of_two(person: Callable[..., Person], ada: httpx.Client) -> None:
    """Both see it free and ask for it; one gets it, the other is told why not, and sees what happened."""
    start = full_hour(3)
    most = {"type": "vm", "units": 5, "start": text(start), "end": text(start + 2 * HOUR)}
    until(ada, ada.post("/leases", json=most).json()["id"], "ticketed")
    charts = [calendar(person(name)) for name in ("ada", "bob")]
    for chart in charts:
        chart.drag("vm", start, start + 2 * HOUR)
        expect(chart.page.locator(".side .answer")).to_have_attribute("data-kind", "granted")
    for chart, name in zip(charts, ("last-a", "last-b"), strict=True):
        chart.page.get_by_label("Name", exact=True).fill(name)
    for chart in charts:
        chart.page.get_by_role("button", name="Reserve", exact=True).last.click()
    for chart in charts:
        expect(chart.page.locator("#notes")).to_contain_text("last")
    charts[0].page.goto(charts[0].page.url.split("/calendar")[0] + "/leases?state=all&find=last")
    rows = charts[0].page.get_by_role("row")
    expect(rows.filter(has_text="ticketed")).to_have_count(1)
    expect(rows.filter(has_text="failed")).to_have_count(1)
    expect(rows.filter(has_text="failed").first).to_contain_text("0 free at site")


def test_what_somebody_else_does_shows_at_once(person: Callable[..., Person], lab: WebLab) -> None:
    """Also what is another project's, of which one may see how much it is and no more."""
    page = person("ada").open("/calendar?view=table")
    expect(page.locator("#live")).to_contain_text("live")
    table = page.get_by_role("region", name="What is free")
    expect(table).to_contain_text("6 of 6")
    with lab.client("olga") as olga:
        wish = {"type": "vm", "units": 4, "start": text(full_hour(2)), "end": text(full_hour(4)), "name": "secret"}
        made = olga.post("/leases", params={"project": "beta"}, json=wish)
        id_ = made.json()["id"]
        begun = time.monotonic()
        expect(table).to_contain_text("2 of 6")
        assert time.monotonic() - begun < 5
        expect(page.locator("#page")).not_to_contain_text("secret")
        olga.post(f"/leases/{id_}/close", json={})
        until(olga, id_, "closed")
    expect(table).not_to_contain_text("2 of 6")


def test_types_and_attributes_that_are_markup(person: Callable[..., Person]) -> None:
    """Are shown as they are, in the chart, its table, and pages of operators."""
    who = person("olga")
    who.page.on("dialog", lambda dialog: who.complaints.append(dialog.message))
    for path in (
        "/calendar",
        "/calendar?view=table",
        "/sites",
        "/claims",
        "/usage",
        "/request",
        "/leases?project=alpha",
    ):
        page = who.open(path)
        assert page.locator("#page img, #page script").count() == 0, path
    who.open("/calendar")
    expect(page.locator(".row-label", has_text="<img src=x onerror=alert(1)>").first).to_be_visible()


def test_a_view_has_an_address(person: Callable[..., Person]) -> None:
    """What one sees is what a colleague sees who opens it: the time, what is open, and the table."""
    chart = calendar(person("ada"))
    page = chart.page
    page.get_by_role("button", name="Week").click()
    page.locator(".row-label", has_text="vm").first.get_by_role("button").click()
    expect(page.locator(".row-label", has_text="vm-5")).to_be_visible()
    page.wait_for_url("**from=*")
    address = page.url
    other = person("bob").page
    other.goto(address)
    expect(other.locator(".row-label", has_text="vm-5")).to_be_visible()
    expect(other.get_by_role("button", name="Week")).to_have_attribute("aria-pressed", "true")
    dataset = [
        one.locator(".chart-scroll").evaluate("one => [one.dataset.from, one.dataset.to]") for one in (page, other)
    ]
    assert dataset[0] == dataset[1]


def test_a_year_has_each_month_once(person: Callable[..., Person]) -> None:
    """With the year above it; what is written on the canvas is noted."""
    who = person("ada")
    who.page.add_init_script("""
      const write = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (words, ...where) {
        (window.written ??= []).push(words);
        return write.call(this, words, ...where);
      };
    """)
    page = calendar(who, "/calendar?from=2031-01-15T00:00:00Z&to=2032-01-15T00:00:00Z").page
    months = ["Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan"]
    again = "window.written = []; window.dispatchEvent(new Event('look'));"
    page.evaluate(again)
    page.wait_for_function("window.written.includes('UTC')")
    written = page.evaluate("window.written")
    assert [one for one in written if one in months] == months
    assert [one for one in written if one in ("2031", "2032")] == ["2031", "2032"]


@pytest.mark.parametrize("look", ["light", "dark"])
def test_accessible_in_both_looks_and_on_a_phone(person: Callable[..., Person], look: str) -> None:
    """Axe has nothing to say, nothing is wider than the screen, and the help opens by its key."""
    who = person("ada", color_scheme=look, viewport={"width": 360, "height": 740})
    page = calendar(who).page
    who.check()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator(".chart-scroll").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Drag over a row")
    who.check()


def test_on_paper_it_is_light_and_has_the_time_that_one_sees(person: Callable[..., Person]) -> None:
    """Whatever the screen looks like, which has what it had afterwards."""
    page = calendar(person("ada", color_scheme="dark")).page
    pixel = "one => [...one.getContext('2d').getImageData(one.width - 2, one.height - 2, 1, 1).data].slice(0, 3)"
    chart, canvas = page.locator(".chart-scroll"), page.locator(".chart-canvas")
    window = chart.evaluate("one => [one.dataset.from, one.dataset.to]")
    width = chart.evaluate("one => one.clientWidth")

    def not_dark() -> object:  # a weekend, or the line of an hour, may be there, with a shade of its own
        return max(shown := canvas.evaluate(pixel)) > 0x60 and shown

    wait_until("a dark screen", not_dark)
    page.emulate_media(media="print")
    wait_until("white paper", lambda: min(shown := canvas.evaluate(pixel)) < 0xA0 and shown)
    assert chart.evaluate("one => one.clientWidth") < width
    assert chart.evaluate("one => [one.dataset.from, one.dataset.to]") == window
    page.emulate_media(media="screen")
    wait_until("a dark screen", not_dark)
    assert chart.evaluate("one => [one.dataset.from, one.dataset.to]") == window


def test_the_gateway_is_killed_under_an_open_page(tmp_path: Path, chromium: Browser) -> None:
    """The page says so, and comes back by itself with what happened meanwhile."""
    with lab_apart(tmp_path) as (lab, daemons):
        with gateway_alone(lab) as gateway:
            who = log_in(lab, chromium, "ada")
            page = who.open("/calendar?view=table")
            table = page.get_by_role("region", name="What is free")
            expect(table).to_contain_text("6 of 6")
            form = who.context.new_page()
            form.goto(f"{lab.url}/request?type=vm&units=4")
            expect(form.locator(".answer")).to_have_attribute("data-kind", "granted")
            gateway.kill()
            for one in (page, form):
                expect(one.locator("#live")).to_contain_text("away")
        with daemons.client("alpha") as guest:
            now = int(guest.query("clock")["now"])
            guest.command("lease.request", type="vm", units=3, term=[now, now + 3_600_000])
        with gateway_alone(lab):
            expect(page.locator("#live")).to_contain_text("live")
            expect(table).to_contain_text("3 of 6")
            expect(form.locator(".answer")).not_to_have_attribute("data-kind", "granted")
            who.context.close()
        assert who.complaints == []
