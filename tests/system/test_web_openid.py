"""Logging in to pages by a real OpenID Connect provider, behind a reverse proxy with TLS; and what is no such login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import pytest
from cli_daemons import running, site_and_broker
from openid_provider import CLIENT, SCOPES, OpenIdProvider, provider
from packages import OPENID, require

from leasekit.config.load import load
from leasekit.gateway.cookies import SECURE_NAME
from leasekit.gateway.pages.openid import COOKIE, BegunLogin

pytestmark = pytest.mark.xdist_group("web")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIdProvider]:
    """The provider."""
    require(OPENID)
    with provider(tmp_path_factory.mktemp("provider")) as made:
        yield made


@pytest.fixture(scope="module")
def socket(lab: OpenIdProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a gateway listens that believes the provider."""
    file = tmp_path_factory.mktemp("web") / "leasekit.toml"
    table = '[actor.web]\nrole = "gateway"\nlisten = ["unix:web.http"]\nproxies = 1\n[actor.web.oidc]\n'
    table += f'issuer = "{lab.issuer}"\nclient_id = "{CLIENT}"\nscopes = "openid lab"\n'
    table += '[actor.web.oidc.groups]\nlab-users = ["alpha:user"]\n'
    file.write_text(site_and_broker('inventory = [{ type = "vm", units = 2 }]\n' + table, "alpha"))
    with running(file):
        yield load(file).state / "web.http"


class TlsProxy(httpx.BaseTransport):
    """What a reverse proxy does that has the TLS: it asks the gateway by HTTP, and says how it was asked."""

    def __init__(self, socket: Path) -> None:
        self._inner = httpx.HTTPTransport(uds=str(socket))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request."""
        more = {"x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.1", "x-forwarded-host": "lab.example"}
        headers = {**request.headers, **more}
        url = request.url.copy_with(scheme="http")
        return self._inner.handle_request(httpx.Request(request.method, url, headers=headers, stream=request.stream))


@pytest.fixture
def browser(socket: Path) -> Iterator[httpx.Client]:
    """A browser that comes by the reverse proxy of https://lab.example."""
    with httpx.Client(transport=TlsProxy(socket), base_url="https://lab.example", timeout=30) as made:
        yield made


def sent_back(lab: OpenIdProvider, name: str, place: str) -> str:
    """Where the provider sends somebody who agrees."""
    with lab.session(name) as there:
        there.put(f"/auth/grant/{CLIENT}", json={"scope": SCOPES}).raise_for_status()
        parts = urlsplit(place)
        query = {**dict(parse_qsl(parts.query)), "g_continue": ""}
        answer = there.get(f"{parts.scheme}://{parts.netloc}{parts.path}?{urlencode(query)}")
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])


def begun(browser: httpx.Client, to: str = "/leases") -> str:
    """A login is begun: where its browser is sent."""
    answer = browser.get("/login/openid", params={"to": to})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def test_who_logs_in_at_the_provider_has_a_session(lab: OpenIdProvider, browser: httpx.Client) -> None:
    """With the rights of their groups; the cookie goes by TLS and to this host alone."""
    assert "Log in by 127.0.0.1" in browser.get("/login?to=/leases").text
    place = begun(browser)
    asked = {name: values[0] for name, values in parse_qs(urlsplit(place).query).items()}
    assert asked["code_challenge_method"] == "S256"
    assert asked["redirect_uri"] == "https://lab.example/callback"
    back = browser.get(sent_back(lab, "ada", place))
    assert (back.status_code, back.headers["location"]) == (303, "/leases")
    cookies = back.headers.get_list("set-cookie")
    assert any(one.startswith(f"{SECURE_NAME}=") and one.endswith("HttpOnly; SameSite=Lax; Secure") for one in cookies)
    me = browser.get("/api/v1/me").json()
    assert (me["way"], me["projects"]) == ("session", {"alpha": "user"})
    assert me["caller"].startswith("oidc:")


def test_a_code_is_good_in_the_browser_that_asked_for_it(lab: OpenIdProvider, browser: httpx.Client) -> None:
    """Not in another, which has begun none or its own; not a second time, nor with another's verifier or nonce."""
    address = sent_back(lab, "ada", begun(browser))
    kept = BegunLogin.of_cookie(browser.cookies[COOKIE])
    assert kept is not None
    browser.cookies.clear()
    assert browser.get(address).status_code == 401
    begun(browser)
    assert browser.get(address).status_code == 401
    own = BegunLogin.of_cookie(browser.cookies[COOKIE])
    assert own is not None
    for wrong in (
        BegunLogin(kept.state, kept.nonce, own.verifier, ""),
        BegunLogin(kept.state, own.nonce, kept.verifier, ""),
    ):
        address = sent_back(lab, "ada", begun(browser))
        current = BegunLogin.of_cookie(browser.cookies[COOKIE])
        assert current is not None
        verifier = current.verifier if wrong.verifier == kept.verifier else wrong.verifier
        browser.cookies.clear()
        made = BegunLogin(current.state, wrong.nonce, verifier, "").cookie(secure=True).split(";")[0]
        refused = browser.get(address, headers={"cookie": made})
        assert refused.status_code == 401, refused.text
        assert SECURE_NAME not in str(refused.headers)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"iss": "https://evil.example"}, "The answer is another provider"),
        ({"state": "x"}, "This login was not begun in this browser"),
        ({"error": "access_denied"}, "The provider says: access_denied"),
    ],
)
def test_what_another_sends_back(
    lab: OpenIdProvider, browser: httpx.Client, change: dict[str, str], words: str
) -> None:
    """Is told in the form, and leads nowhere; with a code that is good as well."""
    begun(browser, "//evil.example")
    kept = BegunLogin.of_cookie(browser.cookies[COOKIE])
    assert kept is not None
    assert kept.to == ""
    answer = browser.get("/callback", params={"state": kept.state, **change})
    assert answer.status_code == 401
    assert 'role="alert"' in answer.text
    assert words in answer.text
    if "error" not in change:
        address = httpx.URL(sent_back(lab, "ada", begun(browser)))
        refused = browser.get(address.copy_merge_params(change))
        assert (refused.status_code, words in refused.text) == (401, True)
    assert BegunLogin.of_cookie("nonsense") is None


def test_who_has_no_group_here(lab: OpenIdProvider, browser: httpx.Client) -> None:
    """Has no session."""
    answer = browser.get(sent_back(lab, "eve", begun(browser)))
    assert answer.status_code == 401
    assert "None of your groups" in answer.text
