"""The page of topologies: sites and links as tables and as a drawing, planned as one types, leased and closed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import expect
from web_world import Person, WebLab, ada, chromium, person, web_lab

__all__ = ["ada", "chromium", "person"]
pytestmark = pytest.mark.xdist_group("system")
PLANS = """
[actor.broker.mapper]
name = "coallocation"

[[actor.site.inventory]]
type = "10g-link"
units = 4
driver = "null"
properties = { "link.a" = "site", "link.b" = "X1", "link.granule_mbps" = "5" }

[[actor.site.delegation]]
broker = "broker"
type = "10g-link"
"""
MARKUP = "<img src=x>'\"&"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebLab]:
    """The deployment, whose broker plans."""
    with web_lab(tmp_path_factory.mktemp("web"), PLANS) as made:
        yield made


def test_a_topology_is_drawn_planned_leased_and_closed(person: Callable[..., Person], ada: httpx.Client) -> None:
    """By keys; it begins with a type that can be had, which no link is; a link without a network is told."""
    who = person("ada")
    assert ada.get("/types").json()["items"][0]["type"] == "10g-link"
    page = who.open("/topology")
    expect(page.get_by_role("option", name="10g-link")).to_have_count(0)
    expect(page.locator(".answer")).to_contain_text("planned")
    page = who.open("/topology?sites=lab%252Cvm%252C2")
    expect(page.locator(".answer")).to_contain_text("planned")
    expect(page.locator("svg.topology")).to_contain_text("2 \N{MULTIPLICATION SIGN} vm at site")
    who.check()
    page.get_by_role("button", name="Request", exact=True).press("Enter")
    row = page.get_by_role("table", name="Topologies").get_by_role("row").filter(has_text="committed")
    expect(row).to_have_count(1)
    who.check()
    row.get_by_role("button", name="Close").press("Enter")
    expect(row).to_have_count(0)
    page.get_by_role("button", name="Add a site").press("Enter")
    page.get_by_role("button", name="Add a link").press("Enter")
    bandwidth = page.get_by_label("Mbit/s of link 1")
    bandwidth.fill("-1")
    expect(page.locator(".answer")).to_have_text(re.compile("^Mbit/s of link 1: ."))
    bandwidth.fill("10")
    expect(page.locator("svg.topology line")).to_have_count(1)
    expect(page.locator(".answer")).to_have_attribute("data-kind", "refused")
    who.check()


def test_names_are_text_and_a_phone_shows_all(person: Callable[..., Person]) -> None:
    """Also in the drawing and the address."""
    who = person("bob", viewport={"width": 360, "height": 740})
    page = who.open("/topology")
    page.get_by_label("Name of site 1").fill(MARKUP)
    expect(page.locator("svg.topology .name")).to_have_text(MARKUP)
    who.open(page.url.removeprefix(who.lab.url))
    expect(page.get_by_label("Name of site 1")).to_have_value(MARKUP)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    who.check()
