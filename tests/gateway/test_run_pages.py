"""The pages of emulated runs without a browser: who gets them, and what they answer."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from run_folders import MARKUP, run_folder

from leasekit.emulation.runs.opened import RunsFolder
from leasekit.gateway.pages.runs import RunPages

RUN = f"{MARKUP} 4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs whose names and types are markup."""
    return run_folder(tmp_path_factory.mktemp("lab"), MARKUP, MARKUP)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[RunPages, httpx.AsyncClient]]:
    """The pages, and who asks for them."""
    pages = RunPages(RunsFolder(folder))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(pages.app()), base_url="http://127.0.0.1") as client:
        yield pages, client


async def test_nobody_sees_a_run_without_its_address(folder: Path) -> None:
    """Which has 192 random bits, others each time."""
    async with opened(folder) as (pages, client):
        assert re.fullmatch(r"/[\w-]{32}", pages.base)
        assert RunPages(pages.folder).base != pages.base
        for path in (
            "/",
            "/run",
            "/api/runs",
            f"/api/calendar?run={quote(RUN)}",
            f"/pictures/{RunsFolder(folder).overview().pictures[0]}",
        ):
            assert (await client.get(pages.base + path)).status_code == 200, path
            for other in ("", "/x", pages.base[:-1], pages.base.swapcase()):
                assert (await client.get(other + path)).status_code == 404, (other, path)


async def test_pages_load_only_what_is_ours_and_have_no_names(folder: Path) -> None:
    """Names, which may be markup, come as JSON and are shown as text; the policy allows no script in the page."""
    async with opened(folder) as (pages, client):
        for path in ("/", "/run?run=" + quote(RUN)):
            page = await client.get(pages.base + path)
            assert "default-src 'none'; script-src 'self'" in page.headers["content-security-policy"]
            assert page.headers["referrer-policy"] == "same-origin"
            assert MARKUP not in page.text
            assert re.findall(r"<script[^>]*>[^<]+|\son\w+=|\sstyle=|<style", page.text) == []
            loaded = re.findall(r'(?:src|href)="([^"]+/static/[^"]+)"', page.text)
            assert loaded
            for one in loaded:
                assert (await client.get(one)).status_code == 200, one
        told = await client.get(f"{pages.base}/api/runs")
        assert told.headers["content-type"] == "application/json"
        assert told.headers["x-content-type-options"] == "nosniff"
        assert [one["run"] for one in told.json()["runs"]] == [f"{MARKUP} 2", RUN]


async def test_the_calendar_of_a_run(folder: Path) -> None:
    """As coarse as it is asked for, at most so many bars; an instant of it has figures and lines of the log."""
    async with opened(folder) as (pages, client):
        asked = {"run": RUN, "bins": "24", "limit": "3", "guest": "web", "open": f"lab/{MARKUP}"}
        told = (await client.get(f"{pages.base}/api/calendar", params=asked)).json()
        assert (told["begin"], told["over"], told["step"]) == ("1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z", "1h")
        assert len(told["bars"]) == 3 < told["more"]
        assert told["more_stays"] == 0
        assert {name for one in told["stays"] for name in [one["project"]]} == {"web"}
        assert [unit["name"] for unit in told["rows"][0]["units"]] == ["n0", "n1", "n2", "n3"]
        at = {"run": RUN, "at": "1970-01-01T12:00:00Z"}
        moment = (await client.get(f"{pages.base}/api/moment", params=at)).json()
        assert moment["at"] == "1970-01-01T12:00:00Z"
        assert {one["actor"] for one in moment["lines"]} == {"broker", "lab", "web"}
        assert moment["series"]


@pytest.mark.parametrize(
    ("path", "asked", "said"),
    [
        ("calendar", {"run": "other"}, "run: found 'other', expected one that has a calendar: "),
        ("calendar", {"run": RUN, "bins": "0"}, "Expected `int` >= 1 - at `$.bins`"),
        ("calendar", {"run": RUN, "limit": "-1"}, "Expected `int` >= 0 - at `$.limit`"),
        ("calendar", {"run": RUN, "bins": "9" * 9}, "Expected `int` <= 20000 - at `$.bins`"),
        ("calendar", {"run": RUN, "until": "1969-01-01T00:00:00Z"}, "until: expected an instant after since"),
        ("calendar", {"run": RUN, "since": "noon"}, "Invalid RFC3339 encoded datetime - at `$.since`"),
        ("calendar", {"run": RUN, "colour": "red"}, "unknown field `colour`"),
        ("moment", {"run": RUN}, "at: '' is not an instant: write ISO 8601"),
        ("moment", {"run": "other", "at": "1970-01-01"}, "run: found 'other'"),
    ],
    ids=lambda one: str(one)[:30],
)
async def test_what_cannot_be_answered_is_told(folder: Path, path: str, asked: dict[str, str], said: str) -> None:
    """As the API of a gateway tells it."""
    async with opened(folder) as (pages, client):
        refused = await client.get(f"{pages.base}/api/{path}", params=asked)
        assert (refused.status_code, refused.json()["code"]) == (422, "bad_argument")
        assert said in refused.json()["detail"]


async def test_only_pictures_of_the_summary_are_shown(folder: Path) -> None:
    """As pictures, in which no script runs; one that was removed since is not there."""
    async with opened(folder) as (pages, client):
        name, *_ = (await client.get(f"{pages.base}/api/runs")).json()["pictures"]
        shown = await client.get(f"{pages.base}/pictures/{name}")
        assert shown.headers["content-type"] == "image/svg+xml"
        assert "script-src 'self'" in shown.headers["content-security-policy"]
        assert shown.content == (folder / name).read_bytes()
        assert (await client.get(f"{pages.base}/pictures/{name[:-4]}.png")).headers["content-type"] == "image/png"
        for other in ("summary.json", "..%2Flab.toml", "none.svg"):
            assert (await client.get(f"{pages.base}/pictures/{other}")).status_code == 404
        away = (folder / name).rename(folder / "away")
        try:
            assert (await client.get(f"{pages.base}/pictures/{name}")).status_code == 404
        finally:
            away.rename(folder / name)
