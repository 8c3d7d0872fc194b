"""Pages without a browser: who gets one, how one logs in and out, and what keeps pages of other sites out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from blazar_world import free_port
from cli_daemons import running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest

from leasekit.config.load import load
from leasekit.gateway.cookies import HEADER, NAME, SECURE_NAME, is_foreign, session_of, set_session, word_of
from leasekit.gateway.pages.frames import ROOM, STATIC, VERSION
from leasekit.gateway.pages.routes import PAGES

PASSWORD = "correct horse battery"


@pytest.fixture
def ada(operator: httpx.Client) -> Iterator[str]:
    """A user of the project alpha, with a password."""
    asked = {"name": "ada", "password": PASSWORD, "projects": {"alpha": "user"}}
    assert operator.post("/users", json=asked).status_code == 201
    yield "ada"
    operator.delete("/users/ada")


@pytest.fixture
def browser(gateway: GatewayUnderTest) -> Iterator[httpx.Client]:
    """What keeps cookies, as a browser does."""
    with gateway.client() as client:
        client.base_url = httpx.URL("http://gateway")
        yield client


def logged_in(browser: httpx.Client, to: str = "", password: str = PASSWORD, **headers: str) -> httpx.Response:
    """What is answered to the form."""
    form = {"name": "ada", "password": password, "to": to}
    return browser.post("/login", data=form, headers={"sec-fetch-site": "same-origin", **headers})


def test_who_has_no_session_is_sent_to_the_login_and_comes_back(browser: httpx.Client, ada: str) -> None:
    """To the very address that was asked for."""
    sent = browser.get("/leases?state=all")
    assert (sent.status_code, sent.headers["location"]) == (303, f"/login?to={quote('/leases?state=all', safe='')}")
    assert 'value="/leases?state=all"' in browser.get(sent.headers["location"]).text
    back = logged_in(browser, "/leases?state=all")
    assert (back.status_code, back.headers["location"]) == (303, "/leases?state=all")
    cookie = back.headers["set-cookie"]
    assert re.fullmatch(rf"{NAME}=lk_[\w-]{{43}}; Path=/; Max-Age=28800; HttpOnly; SameSite=Lax", cookie)
    page = browser.get("/leases?state=all")
    assert page.status_code == 200
    assert "ada" in page.text


def test_a_page_that_is_not_there_is_one_for_people(browser: httpx.Client) -> None:
    """What was asked for is text in it; programs are told as by the API."""
    html = {"accept": "text/html,application/xhtml+xml"}
    absent = browser.get("/templates/<script>", headers=html)
    assert (absent.status_code, absent.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is no page <code>/templates/&lt;script&gt;</code>." in absent.text
    for path, headers in (("/templates", {}), ("/api/v1/nothing", html)):
        assert browser.get(path, headers=headers).json()["code"] == "not_found"
    assert browser.post("/templates", headers=html).json()["code"] == "not_found"


@pytest.mark.parametrize("to", ["//evil.example/", "/\\evil.example/", "https://evil.example/", "javascript:alert(1)"])
def test_a_login_leads_to_no_other_site(browser: httpx.Client, ada: str, to: str) -> None:
    """What is no path of the gateway counts for nothing."""
    assert logged_in(browser, to).headers["location"] == "/"


def test_a_wrong_password_is_told_in_the_form(browser: httpx.Client, ada: str) -> None:
    """The name stays, as text."""
    answer = logged_in(browser, password="x", name="ada")
    assert answer.status_code == 401
    assert "Name or password is wrong." in answer.text
    evil = browser.post("/login", data={"name": '"><script>alert(1)</script>', "password": "x"})
    assert "<script>alert" not in evil.text
    assert "set-cookie" not in answer.headers


def test_a_form_of_another_site_logs_nobody_in(browser: httpx.Client, ada: str) -> None:
    """As somebody else, whose session it would watch."""
    answer = logged_in(browser, **{"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_the_api_takes_the_cookie_with_the_word_of_a_page(browser: httpx.Client, ada: str) -> None:
    """Reading needs the cookie alone; a change needs the word, which stands in pages of the session."""
    logged_in(browser)
    page = browser.get("/leases").text
    word = re.search(r'data-word="(\w+)"', page)
    assert word is not None
    assert browser.get("/api/v1/me").json()["caller"] == "ada"
    asked = {"type": "vm", "units": 1, "length": "1h"}
    for headers in ({}, {HEADER: "0" * 32}, {HEADER: "é"}):
        refused = browser.post("/api/v1/leases", json=asked, headers={k: v.encode() for k, v in headers.items()})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    made = browser.post("/api/v1/leases", json=asked, headers={HEADER: word[1]})
    assert made.status_code == 201
    closed = browser.post(f"/api/v1/leases/{made.json()['id']}/close", json={}, headers={HEADER: word[1]})
    assert closed.status_code == 200


def test_logging_out_ends_the_session(browser: httpx.Client, ada: str) -> None:
    """Not by a form of another site, which does not know the word."""
    logged_in(browser)
    token = browser.cookies[NAME]
    browser.post("/logout", data={"word": "other"})
    assert browser.get("/api/v1/me").status_code == 200
    browser.post("/logout", data={"word": word_of(token)})
    assert NAME not in browser.cookies
    assert browser.get("/api/v1/me", headers={"cookie": f"{NAME}={token}"}).status_code == 401


def test_pages_load_only_what_is_ours(browser: httpx.Client, ada: str) -> None:
    """No script, style or frame but from files of the gateway, which are kept for ever by their version."""
    logged_in(browser)
    for one in PAGES:
        answer = browser.get(one.path.replace("{", "").replace("}", ""))
        assert answer.status_code == 200, one
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "frame-ancestors 'none'; require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert re.findall(r"<script[^>]*>[^<]+", answer.text) == []
        assert re.findall(r"\son\w+=|\sstyle=|<style", answer.text) == []
        for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text):
            loaded = browser.get(path)
            assert loaded.status_code == 200, path
            assert "immutable" in loaded.headers["cache-control"]
    assert browser.get(f"/static/{VERSION}/../routes.py").status_code == 404
    assert browser.get("/static/other/dom.js").status_code == 404


def test_a_page_without_a_module_would_stay_empty() -> None:
    """Each page has one, and templates and modules make no markup of text."""
    assert [one.name for one in PAGES if f"{one.name}.js" not in STATIC] == []
    for name, data in STATIC.items():
        if name.endswith(".js"):
            found = re.findall(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", data.decode()
            )
            assert found == [], name
    for template in (ROOM / "templates").iterdir():
        assert "|safe" not in template.read_text().replace(" ", "")


def test_without_login_a_page_of_another_site_changes_nothing(tmp_path: Path) -> None:
    """Programs, and pages of this gateway, do as before."""
    file = tmp_path / "leasekit.toml"
    file.write_text(site_and_broker(INVENTORY.replace("[actor.web]", "[actor.web]\nwithout_login = true"), "alpha"))
    with running(file):
        gateway = GatewayUnderTest(file, load(file).state)
        with gateway.client() as client:
            assert client.get("http://gateway/leases").status_code == 200
            made = client.post(
                "/leases", json={"type": "vm", "length": "1h"}, headers={"sec-fetch-site": "same-origin"}
            )
            path = f"/leases/{made.json()['id']}/close"
            for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}):
                assert client.post(path, headers=headers).status_code == 403
            assert client.post(path).status_code == 200


def test_without_login_a_name_that_leads_here_is_not_let_in(tmp_path: Path) -> None:
    """By TCP (DNS rebinding): this machine's own names are, and those of ``hosts``; pages, API and Blazar's alike. What
    is passed on by who says that it is a proxy changes nothing. Where callers show a token all names are let in.
    """
    port, login = free_port(), free_port()
    file = tmp_path / "leasekit.toml"
    table = """[actor.web]
without_login = true
proxies = 1
hosts = ["lab.example"]
blazar = { site = "site", type = "vm" }"""
    other = f'[actor.door]\nrole = "gateway"\nlisten = ["http://127.0.0.1:{login}"]\n'
    listen = INVENTORY.replace("[actor.web]", table).replace('["unix:', f'["http://127.0.0.1:{port}", "unix:')
    file.write_text(site_and_broker(listen + other, "alpha"))
    with running(file), httpx.Client() as client:
        for path in ("/api/v1/me", "/leases", "/blazar/v1/leases"):
            url = f"http://127.0.0.1:{port}{path}"
            for own in (f"127.0.0.1:{port}", "LOCALHOST:1", "[::1]:80", "lab.example", "lab.example:443"):
                assert client.get(url, headers={"host": own}).status_code == 200, (path, own)
            for foreign in (f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1"):
                refused = client.get(url, headers={"host": foreign, "x-forwarded-host": "localhost"})
                assert refused.status_code == 421, (path, foreign)
                assert f"Host: found '{foreign}', expected one of localhost," in refused.json()["detail"]
        assert client.get(f"http://127.0.0.1:{login}/login", headers={"host": "any.example"}).status_code == 200
        with GatewayUnderTest(file, load(file).state).client() as local:
            assert local.get("/me").status_code == 200


def test_cookies_by_tls_are_of_this_host_alone() -> None:
    """And go before others of their kind, which another host of the domain could have set."""
    assert set_session("lk_x", 60, secure=True) == (
        f"{SECURE_NAME}=lk_x; Path=/; Max-Age=60; HttpOnly; SameSite=Lax; Secure"
    )
    assert session_of({"cookie": f"{NAME}=other; a=b=c; {SECURE_NAME}=own"}) == "own"
    assert session_of({"cookie": "nonsense; =; ;"}) == ""


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-site"}, True),
        ({"origin": "http://lab.example", "host": "lab.example"}, False),
        ({"origin": "null", "host": "lab.example"}, True),
    ],
)
def test_what_a_browser_says_of_where_a_request_is_from(headers: dict[str, str], foreign: bool) -> None:
    """A program says nothing."""
    assert is_foreign(headers) is foreign


GROUNDS = ("bg", "surface", "raised")
ON_OWN_GROUND = {"on-accent": "accent", "good": "soft-good", "failed": "soft-bad", "withheld": "soft-warn"}


def luminance(colour: str) -> float:
    """How light a colour is, by WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """How far two colours are apart, by WCAG 2.2."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_colours_can_be_told_from_what_they_stand_on() -> None:
    """In each look: words by 4.5 to 1, marks and edges of fields, which axe does not see on a canvas, by 3 to 1."""
    sheet = STATIC["leasekit.css"].decode()
    looks = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", look)) for look in sheet.split("\n  color-scheme: ")[1:]]
    assert len(looks) == 3
    for look in looks:
        for least, names in (
            (4.5, ("text", "dim", "accent", "failed", "good", "withheld")),
            (3.0, ("edge", "mine", "other", "held", "now")),
        ):
            pairs = {(name, ground) for name in names for ground in GROUNDS}
            pairs |= set(ON_OWN_GROUND.items()) if least > 3 else set()
            assert [pair for pair in pairs if contrast(look[pair[0]], look[pair[1]]) < least] == []
