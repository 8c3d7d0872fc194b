"""What calendars cost a browser: 1,000 units, 10,000 bookings, 30 days; drawn, panned and zoomed, and changed. And the
run of an emulated month, with 1,000 nodes and more than a million transitions: opened.

    python benchmarks/pages.py [--json] [--quick | --folder FOLDER]

Debian's Chromium, without a screen, driven by Playwright. ``drawn``: from the click on a link until all that is in
sight is drawn, as the page itself marks it. ``frame``: how long a frame takes while one pans and zooms. ``change``:
from a command elsewhere until the page shows it. ``run_drawn``: from the request to a server that has not opened the
run yet until its whole month is drawn. With ``--folder`` the run is that of a folder which an emulation has written,
and nothing else is measured.
"""

from __future__ import annotations

import argparse
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from _report import Result, emit, result
from emulation import crowd_of
from gateway import GATEWAY
from gateway_scale import BOOKINGS, booked
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

import leasekit
from leasekit.cli.daemon_experiment import free_ports
from leasekit.runtime.client import ControlClient

PASSWORD = "correct horse battery"
DRAWN_MS, WIRE_KB, FRAME_MS, SLOW_MS, HEAP_MB, CHANGE_MS = 1_000.0, 300.0, 1_000 / 30, 100.0, 150.0, 1_000.0
RUN_MS, NODES, GUESTS, DAYS = 2_000.0, 1_000, 10, 30.0
STEPS = 120
FLOOR = """async steps => {
    const over = document.querySelector(".chart-canvas"), bare = document.createElement("canvas"), took = [];
    [bare.width, bare.height] = [over.width, over.height];
    over.before(bare);
    over.hidden = true;
    const context = bare.getContext("2d");
    let before = await new Promise(requestAnimationFrame);
    for (let step = 0; step < steps; step++) {
        context.fillStyle = step % 2 ? "#eee" : "#ddd";
        context.fillRect(0, 0, bare.width, bare.height);
        const now = await new Promise(requestAnimationFrame);
        took.push(now - before);
        before = now;
    }
    bare.remove();
    over.hidden = false;
    return took;
}"""
"""The floor: how long frames take in which a canvas of that size is filled with one colour, on this machine."""
FRAMES = """async steps => {
    const scroll = document.querySelector(".chart-scroll"), box = scroll.getBoundingClientRect(), took = [];
    const turn = (how) => scroll.dispatchEvent(new WheelEvent("wheel",
        { bubbles: true, cancelable: true, clientX: box.x + box.width / 2, clientY: box.y + 60, ...how }));
    let before = await new Promise(requestAnimationFrame);
    for (let step = 0; step < steps; step++) {
        const way = step % 60 < 30 ? 1 : -1;
        turn(step % 2 ? { deltaX: 40 * way } : { deltaY: 12 * way, ctrlKey: true });
        const now = await new Promise(requestAnimationFrame);
        took.push(now - before);
        before = now;
    }
    return took;
}"""


def measured(bookings: int) -> list[Result]:
    """All figures."""
    (port,) = free_ports(1)
    gateway = GATEWAY.replace('"unix:web.http"', f'"unix:web.http", "http://127.0.0.1:{port}"')
    url = f"http://127.0.0.1:{port}"
    with booked(bookings, gateway) as (web, token, _), sync_playwright() as playwright:
        with ControlClient(web.with_name("web.control.sock")) as control:
            ada = {"name": "ada", "password": PASSWORD, "projects": {"guest": "user"}}
            control.command("api", method="POST", path="/users", body=ada)
        with _chromium(playwright) as browser:
            return _of_calendar(browser, url, token)


@contextmanager
def _chromium(playwright: Playwright) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium-headless-shell", args=["--no-sandbox"])
    try:
        yield browser
    finally:
        browser.close()


def emulated(days: float) -> list[Result]:
    """The figures of a run of so many days."""
    with TemporaryDirectory() as out:
        leasekit.emulate(crowd_of(NODES, GUESTS, days, "10m", "40m", "all"), synthetic=True, out=out)
        return of_run(Path(out))


def of_run(folder: Path) -> list[Result]:
    """The figures of the run in a folder: the median of three, each with a server of its own."""
    drawn, wire = [], 0.0
    with sync_playwright() as playwright, _chromium(playwright) as browser:
        for _ in range(3):
            with _served(folder) as address:
                page = browser.new_page(viewport={"width": 1600, "height": 1000})
                took, wire = _opened(page, f"{address}run", "run-drawn", "/api/calendar", times=1)
                drawn.append(took)
                page.close()
    with (folder / "transitions.csv").open("rb") as log:
        transitions = sum(1 for _ in log) - 1
    return [
        result("run_transitions", transitions, "", None),
        result("run_drawn_ms", statistics.median(drawn), "ms", RUN_MS),
        result("run_on_the_wire_kb", wire, "kB", None),
    ]


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    line = [sys.executable, "-m", "leasekit.cli.main", "runs", str(folder)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = re.search(r"http://\S+", server.stderr.readline())
        assert found is not None
        yield found[0]
        server.send_signal(signal.SIGINT)


def _of_calendar(browser: Browser, url: str, token: str) -> list[Result]:
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.goto(f"{url}/login")
    page.fill("#name", "ada")
    page.fill("#password", PASSWORD)
    page.click("button.do")
    page.wait_for_url("**/calendar")
    cdp = page.context.new_cdp_session(page)
    now = datetime.now(UTC)
    since, until = now.isoformat(), (now + timedelta(days=30)).isoformat()
    address = f"{url}/calendar?from={since[:19]}Z&to={until[:19]}Z".replace("+", "%2B")
    drawn, wire = _opened(page, address, "calendar-drawn", "/api/v1/calendar")
    floor, took = sorted(page.evaluate(FLOOR, STEPS)), sorted(page.evaluate(FRAMES, STEPS))
    cdp.send("HeapProfiler.collectGarbage")
    heap = cdp.send("Runtime.getHeapUsage")["usedSize"] / 1e6
    return [
        result("drawn_ms", drawn, "ms", DRAWN_MS),
        result("on_the_wire_kb", wire, "kB", WIRE_KB),
        result("frame_median_ms", statistics.median(took), "ms", FRAME_MS, statistics.median(floor)),
        result("frame_p95_ms", took[int(len(took) * 0.95)], "ms", SLOW_MS, floor[int(len(floor) * 0.95)]),
        result("heap_mb", heap, "MB", HEAP_MB),
        result("change_ms", _change(page, url, token), "ms", CHANGE_MS),
    ]


def _opened(page: Page, address: str, mark: str, data: str, times: int = 3) -> tuple[float, float]:
    """The median of when the page has drawn, as its mark says; and the most kilobytes of its data on the wire."""
    cdp = page.context.new_cdp_session(page)
    cdp.send("Network.enable")
    paths, sizes = dict[str, str](), dict[str, float]()
    cdp.on("Network.requestWillBeSent", lambda one: paths.__setitem__(one["requestId"], one["request"]["url"]))
    cdp.on("Network.loadingFinished", lambda one: sizes.__setitem__(one["requestId"], one["encodedDataLength"]))
    drawn = []
    for _ in range(times):
        page.goto(address)
        page.wait_for_function("mark => performance.getEntriesByName(mark).length > 0", arg=mark)
        drawn.append(page.evaluate("mark => performance.getEntriesByName(mark)[0].startTime", mark))
    wire = max(size for id_, size in sizes.items() if data in paths.get(id_, ""))
    return statistics.median(drawn), wire / 1000


def _change(page: Page, url: str, token: str) -> float:
    """From a request elsewhere until its lease is in the calendar's table, in ms: the median of five."""
    took = []
    page.goto(f"{url}/calendar?view=table")
    page.wait_for_selector("table")
    page.wait_for_selector('#live[data-state="live"]')
    with httpx.Client(base_url=f"{url}/api/v1", headers={"authorization": f"Bearer {token}"}) as client:
        for number in range(5):
            begin = time.perf_counter()
            name = f"change-{number}"
            made = client.post("/leases", json={"type": "vm", "length": "1h", "name": name})
            assert made.status_code == 201, made.text
            page.wait_for_selector(f"button:text-is('{name}')")
            took.append(1000 * (time.perf_counter() - begin))
    return statistics.median(took)


def main() -> int:
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the bookings, and of the month")
    parser.add_argument("--folder", type=Path, help="a folder that `leasekit emulate --out` has written")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.folder is not None:
        results = of_run(options.folder)
    else:
        part = 10 if options.quick else 1
        results = [*measured(BOOKINGS // part), *emulated(DAYS / part)]
    return 0 if emit("pages", "quick" if options.quick else "full", results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
