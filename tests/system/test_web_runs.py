"""The runs of an emulation in a browser: side by side, and the calendar of one, which is played and scrubbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import attrs
import pytest
from playwright.sync_api import Browser, Page, expect
from run_folders import MARKUP, run_folder, serving
from web_world import WITHIN_MS, asked_of_axe, chromium

__all__ = ["chromium"]
pytestmark = pytest.mark.xdist_group("web")
RUN = f"{MARKUP} 4"
TYPE = f"{MARKUP}, 50%"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where runs are served whose names and types are markup."""
    folder: Path = run_folder(tmp_path_factory.mktemp("lab"), TYPE, MARKUP)
    with serving("runs", str(folder)) as (address, _):
        yield address


@attrs.define
class Reader:
    """Somebody with a browser, who looks at pages by day alone, or by night as well. What a page complains of fails the
    test at its end.
    """

    page: Page
    looks: tuple[Literal["light", "dark"], ...]
    complaints: list[str] = attrs.field(factory=list)

    def open(self, address: str) -> Page:
        """A page, once it shows what it has."""
        self.page.goto(address)
        expect(self.page.locator("#page:not([aria-busy])")).to_be_attached()
        return self.page

    def check(self) -> None:
        """Axe finds nothing against WCAG 2.2 AA, and no name has become an element."""
        for look in self.looks:
            self.page.emulate_media(color_scheme=look)
            found = asked_of_axe(self.page)
            assert found.violations_count == 0, f"{look}: {found.generate_report()}"
        assert self.page.locator("#page img[src=x], #page script").count() == 0


@pytest.fixture(params=["desk", pytest.param("phone", marks=pytest.mark.soak)])
def reader(request: pytest.FixtureRequest, chromium: Browser) -> Iterator[Reader]:
    """At a desk, by day and by night, and on a phone."""
    size = {"width": 360, "height": 740} if request.param == "phone" else {"width": 1280, "height": 800}
    context = chromium.new_context(viewport=size, timezone_id="UTC", reduced_motion="reduce")
    context.set_default_timeout(WITHIN_MS)
    one = Reader(context.new_page(), ("light",) if request.param == "phone" else ("dark", "light"))
    one.page.on("pageerror", lambda error: one.complaints.append(str(error)))
    one.page.on("console", lambda said: one.complaints.append(said.text) if said.type == "error" else None)
    one.page.on("dialog", lambda dialog: one.complaints.append(dialog.message))
    yield one
    context.close()
    assert one.complaints == []


def test_runs_are_compared_and_one_is_opened(reader: Reader, address: str) -> None:
    """What differs between them, as figures, with pictures; the name of a run leads to its calendar."""
    page = reader.open(address)
    reader.check()
    head = page.get_by_role("columnheader")
    expect(head.filter(has_text=f"{MARKUP} 2")).to_have_count(1)
    expect(page.get_by_role("row", name="web.mean_leased")).to_contain_text("%")
    settings = page.get_by_role("row", name="actor.web.settings")
    expect(settings).to_have_count(0)
    page.get_by_label("Only what differs").uncheck()
    expect(settings).to_contain_text('"30s"')
    page.get_by_label("Only what differs").check()
    page.get_by_role("searchbox").fill("idle_leased")
    expect(page.get_by_role("row", name="web.mean_leased")).to_have_count(0)
    expect(page.get_by_role("img", name="site_usage").first).to_be_attached()
    page.get_by_role("link", name=RUN).click()
    expect(page.locator(".row-label", has_text=TYPE).first).to_be_visible()
    reader.check()


def test_a_run_is_played_scrubbed_and_asked(reader: Reader, address: str) -> None:
    """By buttons and keys alone: an instant has figures, lines of the log, and the lease that was chosen; the address
    has all that one sees.
    """
    page = reader.open(address)
    page.get_by_role("link", name=RUN).click()
    slider, side = page.get_by_role("slider"), page.get_by_role("complementary", name="At this time")
    expect(side).to_contain_text("day 1 00:00")
    chart = page.locator(".chart-scroll")
    chart.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    chosen = side.locator(".picked")
    expect(chosen).to_contain_text(f"{TYPE} at lab")
    expect(chosen.get_by_role("code")).to_have_count(1)
    expect(page.locator("#notes .note")).to_have_count(0)
    reader.check()
    page.get_by_label("Speed").select_option("1 h/s")  # else the whole run is over in a second
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")
    expect(side.locator("h2").last).not_to_have_text("day 1 00:00")
    page.get_by_role("button", name="Pause").click()
    slider.press("End")
    expect(page.locator(".when")).to_have_text("day 2 00:00")
    expect(chosen).to_be_empty()
    expect(side).to_contain_text("What has happened last")
    slider.press("Home")
    expect(side).to_contain_text("What comes next")
    page.locator(".row-label", has_text=TYPE).first.get_by_role("button").click()
    expect(page.locator(".row-label", has_text="n3")).to_be_visible()
    heights = page.locator(".row-label[data-kind=unit]").evaluate_all("all => all.map(one => one.offsetHeight)")
    assert heights == [22] * 4, "a unit that nobody had is as high as others"
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_url("**from=*")
    page.reload()
    expect(page.locator(".row-label", has_text="n3")).to_be_visible()
    reader.check()


def test_a_run_is_read_as_tables(reader: Reader, address: str) -> None:
    """What is free, and who has what, of the window that one sees; a lease leads to its instant, as in the chart."""
    page = reader.open(address)
    page.get_by_role("link", name=RUN).click()
    page.get_by_role("button", name="Table").click()
    free, leases = page.get_by_role("table", name="What is free"), page.get_by_role("table", name="Bookings")
    expect(free.get_by_role("columnheader", name="web", exact=True)).to_be_visible()
    expect(free.get_by_role("cell", name="2 of 4", exact=True).first).to_be_visible()
    expect(free.get_by_role("button")).to_have_count(0)
    reader.check()
    last = leases.get_by_role("row").last
    begin, bars = last.get_by_role("cell").nth(2).inner_text(), leases.get_by_role("row").count()
    last.get_by_role("button").press("Enter")
    expect(page.locator(".when")).to_have_text(begin)
    expect(page.locator(".picked")).to_contain_text(f"{TYPE} at lab")
    page.wait_for_url("**at=*")
    page.reload()
    expect(leases.get_by_role("row")).to_have_count(bars)
    page.get_by_role("button", name="Zoom in").click()
    expect(leases.get_by_role("row")).not_to_have_count(bars)
    page.get_by_role("button", name="Table").click()
    expect(page.locator(".row-label", has_text=TYPE).first).to_be_visible()
    reader.check()


def test_bars_that_are_left_out_are_counted(reader: Reader, address: str) -> None:
    """As long as the window has more of them than are sent."""
    asked = "**/api/calendar?*"
    reader.page.route(asked, lambda route: route.continue_(url=f"{route.request.url}&limit=3"))
    page = reader.open(address)
    page.get_by_role("link", name=RUN).click()
    expect(page.get_by_text("The shortest bars are left out: ")).to_contain_text(" of leases. Profiles count them all")
    reader.check()
    page.unroute(asked)
    page.get_by_role("button", name="Zoom in").click()
    page.reload()
    expect(page.locator(".chart-scroll")).not_to_have_attribute("data-bars", "3")
    expect(page.get_by_text("The shortest bars are left out: ")).to_have_count(0)
