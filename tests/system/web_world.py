"""Real daemons with a gateway, and a real Chromium that opens its pages."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import httpx
import pytest
from axe_playwright_python.base import AXE_FILE_PATH, AxeResults
from cli_daemons import running, site_and_broker
from openid_provider import free_port
from packages import CHROMIUM, require
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from runtime.runtime_processes import Daemons, UpProcess

from leasekit.config.load import load
from leasekit.core.schema import Change
from leasekit.gateway.users import BLOCK, COST, MEMORY, SALT, TIMES, UserRecord
from leasekit.stores.sqlite import SqliteStore

PASSWORD = "correct horse battery"
XSS = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>'\"&"
"""What would change the title of a page, if anything made markup of it."""
WITHIN_MS = 30_000
"""How long a page may take to show something, on a machine whose disk others write to as well."""
HASHED_WITHIN = 120.0
"""How long a login may take, in seconds: to hash a password needs a third of a second of a processor, which others may
have (a whole run of the tests begins with virtual machines that are emulated).
"""
SESSIONS: dict[tuple[str, str], httpx.Cookies] = {}
"""The cookies of those who have logged in, by the address of the pages and the name."""
_USED = ExitStack()
"""What ends with the browser."""
expect.set_options(timeout=WITHIN_MS)
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]},
    "resultTypes": ["violations"],
}
AXE = "rules => axe.run(rules).then(({violations, url}) => ({violations, url}))"
"""What is wrong alone: to hand over all that is right takes a third of what a check does."""
INVENTORY = """
[[actor.site.inventory]]
type = "vm"
units = 6
prefix = "vm-"
driver = "null"

[[actor.site.delegation]]
broker = "broker"
type = "vm"

[[actor.site.inventory]]
type = "<img src=x onerror=alert(1)>"
units = 2
prefix = "board-"
driver = "null"
unit_properties = {{ note = "<script>alert(2)</script>" }}

[[actor.site.delegation]]
broker = "broker"
type = "<img src=x onerror=alert(1)>"

[actor.site.driver.null]
kind = "null"

[actor.web]
role = "gateway"
listen = ["http://127.0.0.1:{port}"]
"""


@attrs.frozen
class WebLab:
    """A deployment whose pages are at ``url``; ``ada`` and ``bob`` use the project alpha, ``mona``
    manages it, ``olga`` operates all. ``pid`` is the process that has all its daemons, if one has."""

    file: Path
    folder: Path
    url: str
    pid: int = 0

    def client(self, name: str) -> httpx.Client:
        """The API as somebody."""
        asked = {"name": "test", "password": PASSWORD}
        sessions = f"{self.url}/api/v1/sessions"
        secret = httpx.post(sessions, json={**asked, "name": name}, timeout=HASHED_WITHIN).json()["secret"]
        return httpx.Client(base_url=f"{self.url}/api/v1", headers={"authorization": f"Bearer {secret}"}, timeout=30)

    def session(self, name: str) -> httpx.Cookies:
        """The cookies of somebody who has filled in the form of the login: once, for as long as that session lasts."""
        known = SESSIONS.get((self.url, name))
        if known and httpx.get(f"{self.url}/api/v1/me", cookies=known, timeout=HASHED_WITHIN).status_code == 200:
            return known
        try:
            form = {"name": name, "password": PASSWORD}
            SESSIONS[self.url, name] = httpx.post(f"{self.url}/login", data=form, timeout=HASHED_WITHIN).cookies
            return SESSIONS[self.url, name]
        except httpx.TimeoutException as error:
            # Where all its threads are is in the log then; ss tells what it has not read, and what is not acknowledged.
            port = self.url.rpartition(":")[2]
            sockets = subprocess.run(
                ["ss", "-tniop", f"sport = :{port} or dport = :{port}"], capture_output=True, text=True
            )
            # Nanoseconds that each thread had a processor, and waited for one.
            ran = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat")]
            if self.pid:
                os.kill(self.pid, signal.SIGABRT)
            raise AssertionError(
                "".join(ran) + sockets.stdout + self.file.with_suffix(".log").read_text()[-8_000:]
            ) from error


@cache
def users() -> tuple[Change, ...]:
    """Those who log in, as a gateway's store has them: to hash a password once is enough for all deployments."""
    salt = bytes(SALT)
    digest = hashlib.scrypt(PASSWORD.encode(), salt=salt, n=COST, r=BLOCK, p=TIMES, maxmem=MEMORY)
    known = partial(UserRecord, created=time.time_ns() // 1_000_000, salt=salt, digest=digest)
    return tuple(
        Change(one.table, one.name, one.row())
        for one in (
            known(name="ada", projects={"alpha": "user"}, offices=[]),
            known(name="bob", projects={"alpha": "user"}, offices=[]),
            known(name="mona", projects={"alpha": "manager"}, offices=[]),
            known(name="olga", projects={}, offices=["operator"]),
        )
    )


def _keep(file: Path, kept: Mapping[str, Sequence[Change]]) -> Path:
    """Write what stores of daemons have before these begin, and say where they are."""
    made = load(file)
    for name, changes in kept.items():
        path = (made.actors.get(name) or made.gateways[name]).store
        assert path is not None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(SqliteStore(path)) as store:
            store.commit(changes)
    return made.state


@contextmanager
def gateway_alone(lab: WebLab) -> Iterator[UpProcess]:
    """The gateway as a process of its own, once it listens; it is killed at the end, if it was not before."""
    reader, writer = os.pipe()
    log = lab.file.with_suffix(".log")
    process = UpProcess([str(lab.file), "web", "--state", str(lab.folder), "--ready-fd"], writer, log)
    os.close(writer)
    try:
        with os.fdopen(reader) as ready:
            assert ready.readline().startswith("ready web"), log.read_text()
        yield process
    finally:
        process.kill()


@contextmanager
def lab_apart(folder: Path) -> Iterator[tuple[WebLab, Daemons]]:
    """The deployment, with each actor in a process of its own, and no gateway yet."""
    file, port = folder / "leasekit.toml", free_port()
    file.write_text(site_and_broker(INVENTORY.format(port=port), "alpha", "beta"))
    lab = WebLab(file, _keep(file, {"web": users()}), f"http://127.0.0.1:{port}")
    with Daemons(file, lab.folder) as daemons:
        daemons.start_all()
        yield lab, daemons


@contextmanager
def web_lab(folder: Path, more: str = "", **kept: Sequence[Change]) -> Iterator[WebLab]:
    """The deployment, with ``more`` in the gateway's table. By name, what a daemon's store has when it begins."""
    file, port = folder / "leasekit.toml", free_port()
    file.write_text(site_and_broker(INVENTORY.format(port=port) + more, "alpha", "beta"))
    state = _keep(file, kept | {"web": [*kept.get("web", ()), *users()]})
    with running(file) as daemons:
        yield WebLab(file, state, f"http://127.0.0.1:{port}", daemons.pid)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebLab]:
    """The deployment, once for the tests of a module."""
    with web_lab(tmp_path_factory.mktemp("web")) as made:
        yield made


@cache
def _started() -> Browser:
    require(CHROMIUM)
    folder = Path(_USED.enter_context(TemporaryDirectory()))
    source, library = Path(__file__).with_name("no_netlink.c"), folder / "no_netlink.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    playwright = _USED.enter_context(sync_playwright())
    browser = playwright.chromium.launch(
        executable_path="/usr/bin/chromium-headless-shell", args=["--no-sandbox"],
        env={**os.environ, "LD_PRELOAD": str(library)},
    )  # fmt: skip
    _USED.callback(browser.close)
    return browser


def end_chromium() -> None:
    """End the browser, if one runs: the next test that needs one starts another."""
    _started.cache_clear()
    _USED.close()


@pytest.fixture
def chromium() -> Browser:
    """Debian's Chromium without a window, which takes half as much for a page; root can't have its sandbox. It goes on
    for the tests of other modules that come next, as conftest.py says.
    """
    return _started()


def asked_of_axe(page: Page) -> AxeResults:
    """What Axe finds against WCAG 2.2 AA on a page as it is now."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
    return AxeResults(page.evaluate(AXE, RULES))


@attrs.define
class Person:
    """Somebody with a browser of their own, who is logged in. What a page complains of fails the test at its end."""

    lab: WebLab
    context: BrowserContext
    page: Page
    complaints: list[str] = attrs.field(factory=list)

    def open(self, path: str) -> Page:
        """A page, once it shows what it has."""
        self.page.goto(self.lab.url + path)
        expect(self.page.locator("#page:not([aria-busy])")).to_be_attached()
        return self.page

    def check(self) -> None:
        """Axe finds nothing against WCAG 2.2 AA on the page as it is now."""
        found = asked_of_axe(self.page)
        assert found.violations_count == 0, found.generate_report()


def log_in(lab: WebLab, chromium: Browser, name: str, **how: Any) -> Person:
    """Somebody, in a browser of their own, where nothing fades in: contrast is what it is at the end."""
    usual = {"viewport": {"width": 1280, "height": 800}, "timezone_id": "UTC", "reduced_motion": "reduce"}
    context = chromium.new_context(**usual | how)
    context.set_default_timeout(WITHIN_MS)
    one = Person(lab, context, context.new_page())
    one.page.on("pageerror", lambda error: one.complaints.append(str(error)))
    one.page.on("console", lambda said: one.complaints.append(said.text) if "Content Security" in said.text else None)
    # The form itself is filled in by the test of the login.
    context.add_cookies([{"name": key, "value": value, "url": lab.url} for key, value in lab.session(name).items()])
    return one


@pytest.fixture(scope="module")
def ada(lab: WebLab) -> Iterator[httpx.Client]:
    """A user of the project, by the API."""
    with lab.client("ada") as client:
        yield client


@pytest.fixture(scope="module")
def olga(lab: WebLab) -> Iterator[httpx.Client]:
    """An operator, by the API."""
    with lab.client("olga") as client:
        yield client


@pytest.fixture
def person(lab: WebLab, chromium: Browser) -> Iterator[Callable[..., Person]]:
    """Logs somebody in."""
    made: list[Person] = []

    def known(name: str, **how: Any) -> Person:
        made.append(log_in(lab, chromium, name, **how))
        return made[-1]

    yield known
    for one in made:
        one.context.close()
    assert [each for one in made for each in one.complaints] == []
