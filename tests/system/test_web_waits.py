"""The waiting list: what does not fit is waited for from the form that says so, and asked for once it is free."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from gateway.gateway_world import until
from playwright.sync_api import expect
from web_world import XSS, Person, ada, chromium, lab, person

__all__ = ["ada", "chromium", "lab", "person"]
pytestmark = pytest.mark.xdist_group("web")


def test_what_is_taken_is_waited_for_by_keys_and_leased(person: Callable[..., Person], ada: httpx.Client) -> None:
    """The page shows by itself when it is free, and leads to a request that is granted."""
    taken = ada.post("/leases", json={"type": "vm", "units": 6, "length": "4h", "name": "all"}).json()["id"]
    until(ada, taken, "active")
    who = person("bob")
    page = who.open("/request?type=vm&units=2&length=2h&name=mine")
    page.get_by_role("button", name="Tell me when it is free…").press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("To begin by (UTC)", exact=True)).to_be_visible()
    who.check()
    dialog.get_by_role("button", name="Tell me").press("Enter")
    expect(dialog).to_have_count(0)
    page.locator("#notes").get_by_role("link", name="Waiting list").press("Enter")
    row = page.get_by_role("row").filter(has_text="bob")
    expect(row).to_contain_text("waiting")
    who.check()
    ada.post(f"/leases/{taken}/close", json={})
    expect(row).to_contain_text("free")
    who.check()
    row.get_by_role("link", name="Request now, site").press("Enter")
    expect(page.locator(".answer")).to_have_attribute("data-kind", "granted")
    page.get_by_role("button", name="Request", exact=True).press("Enter")
    expect(page).to_have_url(re.compile("/leases/"))
    page = who.open("/waits")
    page.get_by_role("button", name="Remove 2 \N{MULTIPLICATION SIGN} vm of bob").press("Enter")
    expect(page.locator(".empty")).to_contain_text("Nobody waits")
    expect(page.locator(".empty p")).to_be_focused()
    who.check()


def test_what_others_wait_for_is_text(person: Callable[..., Person], ada: httpx.Client) -> None:
    """A manager sees it, whatever is in it."""
    value = XSS.replace('"', "").replace("'", "")
    asked = {"type": "vm", "length": "1h", "filter": f'rack == "{value}"'}
    answer = ada.post("/waits", json=asked)
    assert answer.status_code == 201, answer.text
    manager = person("mona")
    page = manager.open("/waits")
    expect(page.get_by_role("row").filter(has_text="ada")).to_contain_text(value)
    manager.check()
    assert "hit" not in page.title()
