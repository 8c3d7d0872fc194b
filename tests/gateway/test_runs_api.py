"""Emulated runs by the API: in the same shapes as their pages have them, and for those who see all."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from run_folders import run_folder

from leasekit.cli.runs import open_runs
from leasekit.client.runs import RunAsked
from leasekit.config.gateway import GatewayTable
from leasekit.emulation.runs.opened import RunsFolder
from leasekit.gateway.app import make_app
from leasekit.gateway.callers import Caller
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.runs import RunShelf
from leasekit.stores.memory import MemoryStore


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one folder of runs is, and things that are none."""
    place = tmp_path_factory.mktemp("emulations")
    run_folder(place, "vm", "sweep").rename(place / "month")
    (place / "other").mkdir()
    (place / "broken").mkdir()
    (place / "broken" / "summary.json").write_text("{}")
    return place


def door_of(place: Path | None) -> GatewayDoor:
    """A gateway that keeps these runs."""
    shelf = None if place is None else RunShelf(place, open_runs)
    return GatewayDoor("web", {}, GatewayTable(role="gateway", without_login=True), MemoryStore(), runs=shelf)


def client_of(door: GatewayDoor, token: str = "") -> httpx.AsyncClient:
    """Who asks it."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(make_app(door, ""))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1", headers=headers)


async def test_what_a_folder_has(place: Path) -> None:
    """Runs, calendars and instants are those of the folder; one that is written anew is read anew."""
    kept, run = RunsFolder(place / "month"), "sweep 4"
    async with client_of(door_of(place)) as client:
        assert [one["folder"] for one in (await client.get("/runs")).json()["items"]] == ["broken", "month"]
        overview = (await client.get("/runs/month")).json()
        assert [one["run"] for one in overview["runs"]] == ["sweep 2", run]
        assert overview["pictures"] == kept.overview().pictures
        asked = {"run": run, "bins": "24", "limit": "3", "open": "lab/vm"}
        told = (await client.get("/runs/month/calendar", params=asked)).json()
        view = kept.calendar(run, RunAsked(bins=24, limit=3, open="lab/vm"))
        assert (told["begin"], told["over"], told["more"]) == (view.begin, view.over, view.more)
        assert [one["start"] for one in told["bars"]] == [one.start for one in view.bars]
        assert len(told["stays"]) == len(view.stays) > 0
        at = {"run": run, "at": "1970-01-01T12:00:00Z"}
        moment = (await client.get("/runs/month/moment", params=at)).json()
        assert moment["series"] == kept.moment(run, 12 * 3_600_000).series
        assert moment["lines"]
        summary = place / "month" / "summary.json"
        text = summary.read_text()
        try:
            summary.write_text(text.replace('"file": "', '"file": "again-'))
            assert (await client.get("/runs/month")).json()["file"] == f"again-{overview['file']}"
        finally:
            summary.write_text(text)


async def test_pictures_of_a_folder(place: Path) -> None:
    """Those that its summary names, as SVG and as PNG; no other file, whatever it is called, and to nobody else."""
    door = door_of(place)
    (place / "month" / "other.png").write_bytes(b"x")
    async with client_of(door) as client:
        name, *_ = (await client.get("/runs/month")).json()["pictures"]
        for ending, kind, begin in ((".svg", "image/svg+xml", b"<?xml"), (".png", "image/png", b"\x89PNG")):
            shown = await client.get(f"/runs/month/pictures/{name.removesuffix('.svg')}{ending}")
            assert (shown.status_code, shown.headers["content-type"].partition(";")[0]) == (200, kind)
            assert shown.content.startswith(begin)
            assert shown.headers["content-security-policy"] == "default-src 'none'"
        for other in ("other.png", "summary.json", "..%2Fmonth%2Fother.png", f"..%2Fmonth%2F{name}", f"{name}.png"):
            absent = await client.get(f"/runs/month/pictures/{other}")
            assert (absent.status_code, absent.json()["code"]) == (404, "not_found"), other
    _, secret, _ = door.tokens.create("t", Caller("ada", "", {"alpha": "manager"}), 0, None)
    async with client_of(door, secret) as client:
        assert (await client.get(f"/runs/month/pictures/{name}")).status_code == 403


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/runs/other", 404, "folder of runs"),
        ("/runs/%2E%2E%2Fmonth", 404, "GET /api/v1/runs"),
        ("/runs/broken", 422, "found no summary.json of runs"),
        (
            "/runs/month/calendar?run=lab",
            422,
            "run: found 'lab', expected one that has a calendar: 'sweep 2', 'sweep 4'",
        ),
        ("/runs/month/calendar?run=sweep+4&bins=0", 422, "bins: found '0', expected int >= 1"),
        ("/runs/month/moment?run=sweep+4", 422, "at"),
    ],
)
async def test_what_is_not_there_is_told(place: Path, path: str, status: int, said: str) -> None:
    """By name of what was asked."""
    async with client_of(door_of(place)) as client:
        answer = await client.get(path)
        assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text


async def test_who_sees_all_sees_runs(place: Path) -> None:
    """Not who has a project alone; a gateway that keeps none has an empty list."""
    door = door_of(place)
    for caller, status in (
        (Caller("ada", "", {"alpha": "manager"}), 403),
        (Caller("adam", "", {}, frozenset({"auditor"})), 200),
    ):
        _, secret, _ = door.tokens.create("t", caller, 0, None)
        async with client_of(door, secret) as client:
            for path in ("/runs", "/runs/month"):
                assert (await client.get(path)).status_code == status, path
    async with client_of(door_of(None)) as client:
        assert (await client.get("/runs")).json() == {"items": []}
        assert (await client.get("/runs/month")).status_code == 404
