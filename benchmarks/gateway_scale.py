"""What HTTP costs where there is much: pages of 100,000 leases that are over, 1,000 listeners, windows among 10,000
bookings.

    python benchmarks/gateway_scale.py [--json] [--quick] [--only NAME ...] [--burst EVENTS]

Gateway, actors and callers are processes of their own. ``history``: a guest's store has so many leases that are over,
copies of some that were. ``listeners``: so many connections hear events; one lease changes, and the last of them hears
of it; then much changes at once, and the gateway grows by so much meanwhile, and in the last half of that. ``slots``: a
broker has 1,000 units in 20 classes for 30 days, and so many bookings. ``calendar``: all of these, as the project sees
them, and a stranger.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sqlite3
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec
import trio
from _bench_sockets import control, daemons
from _report import Result, emit, result
from gateway import GATEWAY, Caller

from leasekit.cli.daemon_experiment import started_daemon
from leasekit.core.time import DAY, HOUR
from leasekit.runtime.client import ControlClient

KEPT = 100_000
LISTENERS = 1_000
BOOKINGS = 10_000
UNITS, CLASSES = 1_000, 20
MOST_MS = {"page": 20.0, "slots": 10.0, "listeners": 250.0}
MOST_KB = 300.0
EVENTS = 100
CHANGE = b'"slice.create"'
BURST = 20_000


def p99(took: list[float]) -> float:
    """The time that one in a hundred is over."""
    return sorted(took)[int(len(took) * 0.99)]


@contextmanager
def door(file: Path) -> Iterator[tuple[Path, str]]:
    """A gateway, and a token of a user of the guest."""
    with started_daemon(file, "web"), ControlClient(control(file, "web")) as client:
        asked = {"name": "bench", "projects": {"guest": "user"}}
        token = client.command("api", method="POST", path="/tokens", body=asked)["secret"]
        yield file.parent / "state" / "web.http", str(token)


def history(kept: int, asked: int) -> list[Result]:
    """Pages of leases that are over: one after the other, and those of a state that few have."""
    with daemons(10, GATEWAY) as file:
        guest = control(file, "guest")
        with ControlClient(guest) as client, ControlClient(guest) as watcher:
            events = watcher.watch("")
            now = int(client.query("clock")["now"])
            request = {"type": "vm", "units": 1, "term": [now, now + HOUR], "properties": {"deferrable": "true"}}
            lease = client.command("lease.request", **request)["id"]
            next(event for event in events if event["lease"] == lease and event["to_state"] == "active/-")
            client.command("lease.close", lease=lease)
            next(event for event in events if event["lease"] == lease and event["to_state"].startswith("closed"))
            client.request("stop", "", {})
        _until_gone(guest)
        with sqlite3.connect(file.parent / "state" / "guest.db") as store:
            store.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT INTO leases"
                " SELECT id || '-' || i, live, slice, peer, type, CASE i % 1000 WHEN 0 THEN 'failed' ELSE state END,"
                " pending, units, term_start - i, term_end - i, reason, updated - i, body FROM leases, n",
                (kept,),
            )
        store.close()
        with started_daemon(file, "guest"), door(file) as (web, token):
            every = trio.run(_pages, web, token, "/leases?all=true&limit=100", asked)
            few = trio.run(_pages, web, token, "/leases?all=true&limit=100&state=failed", 1)
            since = quote("2020-01-01T00:00:00Z")
            term = trio.run(_pages, web, token, f"/leases?all=true&limit=100&since={since}&state=failed", 1)
    return [
        result("page_of_100_p99_ms", p99(every), "ms", MOST_MS["page"]),
        result("page_of_a_rare_state_ms", statistics.median(few), "ms", MOST_MS["page"]),
        result("page_of_a_state_and_term_ms", statistics.median(term), "ms", MOST_MS["page"]),
    ]


def _until_gone(socket: Path) -> None:
    """Its daemon removes a control socket as the last thing that it does."""
    while socket.exists():
        time.sleep(0.05)


async def _pages(web: Path, token: str, path: str, count: int) -> list[float]:
    """How long each of so many pages takes, in ms, the first one left out."""
    took, following = [], ""
    async with await trio.open_unix_socket(os.fspath(web)) as stream:
        caller = Caller(stream, token)
        await caller.ask("GET", path)
        for _ in range(count):
            begin = time.perf_counter()
            page = msgspec.json.decode(await caller.ask("GET", f"{path}&cursor={quote(following)}"))
            took.append(1000 * (time.perf_counter() - begin))
            following = page["next"] or ""
    return took


def listeners(count: int, changes: int, burst: int) -> list[Result]:
    """From a command to the last listener that hears of what it did; then as many changes as come at once are told:
    how fast, to how many that did not keep up, and how the gateway grows meanwhile.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * count)), hard))
    with daemons(10, GATEWAY) as file, door(file) as (web, token):
        with ControlClient(control(file, "web")) as client:
            pid = int(client.query("status")["pid"])
        took, grown, late, rate, lost = trio.run(
            _listened, web, token, control(file, "guest"), count, changes, burst, pid
        )
    return [
        result("listeners_last_p99_ms", p99(took), "ms", MOST_MS["listeners"]),
        result("listeners_burst_rate", rate, "events/s to all", None),
        result("listeners_hung_up_on", lost, "of them", 0),
        result("listeners_growth_mb", grown, "MB", None),
        result("listeners_growth_late_mb", late, "MB", None),
    ]


async def _listened(
    web: Path, token: str, guest: Path, count: int, changes: int, burst: int, pid: int
) -> tuple[list[float], float, float, float, int]:
    heard = trio.Semaphore(0)
    ready = trio.Semaphore(0)
    knocking = trio.CapacityLimiter(20)

    async def listen() -> None:
        head = f"GET /api/v1/events HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {token}\r\n\r\n"
        async with knocking:  # a server's queue of those who knock is short
            stream = await trio.open_unix_socket(os.fspath(web))
            await stream.send_all(head.encode())
            data = b""
            while b": connected" not in data:
                data += await stream.receive_some(65_536)
        ready.release()
        async with stream:
            data, seen, told = b"", 0, 0
            while more := await stream.receive_some(65_536):
                data = data[1 - len(CHANGE) :] + more
                seen += data.count(CHANGE)
                if told < wanted[0] <= seen:
                    told = wanted[0]
                    heard.release()
                if changes + burst // 2 <= seen and not half:
                    half.append(_megabytes(pid))
        lost.append(1)
        heard.release()

    took: list[float] = []
    wanted, lost, half = [0], list[int](), list[float]()
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(listen)
        for _ in range(count):
            await ready.acquire()
        before = _megabytes(pid)
        with ControlClient(guest) as client:
            for number in range(changes):
                begin, wanted[0] = time.perf_counter(), number + 1
                await trio.to_thread.run_sync(partial(client.command, "slice.create", name=f"s{number}"))
                for _ in range(count):
                    await heard.acquire()
                took.append(1000 * (time.perf_counter() - begin))
            begin, wanted[0] = time.perf_counter(), changes + burst
            for at in range(0, burst, 500):
                asked = [("command", "slice.create", {"name": f"burst{at + n}"}) for n in range(500)]
                answers = await trio.to_thread.run_sync(lambda asked=asked: list(client.batch(asked)))
                assert not any(isinstance(one, Exception) for one in answers), answers[0]
            for _ in range(count):
                await heard.acquire()
            rate = burst * count / (time.perf_counter() - begin)
        after = _megabytes(pid)
        nursery.cancel_scope.cancel()
    return took, after - before, after - half[0], rate, len(lost)


def _megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


RACKS = "".join(
    f'[[actor.site.inventory]]\ntype = "node"\nunits = {UNITS // CLASSES}\nprefix = "node-{one}-"\ndriver = "null"\n'
    f'unit_properties = {{ rack = "{one}" }}\n'
    for one in range(CLASSES)
)
NODES = f'{RACKS}[[actor.site.delegation]]\nbroker = "broker"\ntype = "node"\n'


@contextmanager
def booked(bookings: int, gateway: str = GATEWAY) -> Iterator[tuple[Path, str, random.Random]]:
    """A deployment with so many bookings over 30 days: its ``gateway``'s socket and token."""
    rng = random.Random(1)
    with (
        daemons(10, NODES + gateway + "[actor.broker.settings]\nbooked_hours = 1_000_000\n") as file,
        door(file) as (web, token),
    ):
        guest = control(file, "guest")
        with ControlClient(guest, timeout=120) as client, ControlClient(guest, timeout=120) as watcher:
            events, decided = watcher.watch(""), 0
            now = int(client.query("clock")["now"])
            wishes = []
            for _ in range(bookings):
                start = now + rng.randrange(HOUR, 30 * DAY)
                rack = f"rack == {rng.randrange(CLASSES)}"
                term = [start, start + rng.randrange(HOUR, 12 * HOUR)]
                wish = {"type": "node", "units": rng.randint(1, 8), "term": term, "properties": {"filter": rack}}
                wishes.append(("command", "lease.request", wish))
            for at in range(0, len(wishes), 50):
                for answer in client.batch(wishes[at : at + 50]):
                    if isinstance(answer, Exception):
                        raise answer
                for event in events:  # the broker is idle again
                    decided += event["event"] == "ticket" or event["to_state"].startswith("failed")
                    if decided == at + 50:
                        break
        yield web, token, rng


def windows(bookings: int, asked: int, only: Sequence[str]) -> list[Result]:
    """The first windows of so many units, over 30 days, by the HTTP client; and the calendar of these."""
    results = []
    with booked(bookings) as (web, token, rng):
        if "calendar" in only:
            until = quote((datetime.now(UTC) + timedelta(days=30)).isoformat())
            # In the first one all is looked for. The others are of what has not changed since.
            _, types = trio.run(_seen, web, token, "/types", asked // 10)
            packed, took = trio.run(_seen, web, token, f"/calendar?until={until}", asked // 10)
            results += [
                result("calendar_on_the_wire_kb", packed / 1000, "kB", MOST_KB),
                result("calendar_first_ms", took[0], "ms", None),
                result("types_median_ms", statistics.median(types), "ms", None),
                result("calendar_again_median_ms", statistics.median(took[1:]), "ms", None),
            ]
        if "slots" in only:
            took, least = trio.run(_searched, web, token, rng, asked)
            results += [
                result("slots_p99_ms", p99(took), "ms", MOST_MS["slots"]),
                result("slots_median_ms", statistics.median(took), "ms", None),
                result("who_am_i_p99_ms", p99(least), "ms", None),
            ]
    return results


async def _seen(web: Path, token: str, path: str, count: int) -> tuple[int, list[float]]:
    """How many bytes an answer has on the wire, and how long each takes, in ms."""
    took, size = [], 0
    transport = httpx.AsyncHTTPTransport(uds=os.fspath(web))
    headers = {"authorization": f"Bearer {token}", "accept-encoding": "gzip"}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway/api/v1", headers=headers) as client:
        for _ in range(count):
            begin = time.perf_counter()
            answer = await client.get(path, timeout=60)
            took.append(1000 * (time.perf_counter() - begin))
            assert answer.status_code == 200, answer.text
            size = answer.num_bytes_downloaded
    return size, took


async def _searched(web: Path, token: str, rng: random.Random, count: int) -> tuple[list[float], list[float]]:
    """How long so many searches take, and, one after the other with these, a request that asks no actor: in ms."""
    took, least = [], []
    async with await trio.open_unix_socket(os.fspath(web)) as stream:
        caller = Caller(stream, token)
        for _ in range(count):
            wish = {"type": "node", "units": rng.randint(1, 40), "length": f"{rng.randint(1, 48)}h"}
            if rng.random() < 0.5:
                wish["filter"] = f"rack == {rng.randrange(CLASSES)}"
            begin = time.perf_counter()
            await caller.ask("POST", "/slots", msgspec.json.encode(wish))
            took.append(1000 * (time.perf_counter() - begin))
            begin = time.perf_counter()
            await caller.ask("GET", "/me")
            least.append(1000 * (time.perf_counter() - begin))
    return took, least


def main() -> int:
    """Run all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parts = ("history", "listeners", "slots", "calendar")
    parser.add_argument("--only", action="append", choices=parts, help="only this one")
    parser.add_argument("--burst", type=int, help="how many events are told at once to all listeners")
    options = parser.parse_args()
    part = 10 if options.quick else 1
    results: list[Result] = []
    only = options.only or parts
    if "history" in only:
        results += history(KEPT // part, 500 // part)
    if "listeners" in only:
        results += listeners(LISTENERS // part, EVENTS, options.burst or BURST // part)
    if {"slots", "calendar"} & set(only):
        results += windows(BOOKINGS // part, 300 // part, only)
    return 0 if emit("gateway_scale", "quick" if options.quick else "full", results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
