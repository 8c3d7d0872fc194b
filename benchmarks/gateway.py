"""What HTTP costs: one lease read through a gateway, by 32 callers and by one; a lease asked for and granted; a page.

    python benchmarks/gateway.py [--json] [--quick]

The floor of reads is a bare Starlette route on the same server, which answers a body of the same length; that of
requests is the same by the guest's control socket. Gateway, actors, floor and callers are processes of their own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import trio
from _bench_sockets import control, daemons, drive
from _report import emit, result

from leasekit.cli.daemon_experiment import started_daemon
from leasekit.core.time import DAY
from leasekit.runtime.client import ControlClient

CALLERS = 32
SHARE = 0.6
"""Which share of the floor's requests a second are to be reached."""
EXTRA_MS = 1.0
"""How much longer than the floor one read may take, in milliseconds."""
REQUEST = 1.5
"""How many times as long as by the control socket a request may take to its grant."""
PAGE_MS = 20.0
LEASES = 1_000
GATEWAY = """
[actor.web]
role = "gateway"
listen = ["unix:web.http"]
log_level = "warning"
"""
FLOOR = """
import sys, trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
body = sys.stdin.buffer.read()
async def show(request):
    return Response(body, media_type="application/json")
config = Config()
config.bind, config.errorlog, config.include_server_header = ["unix:" + sys.argv[1]], None, False
config.keep_alive_max_requests = 2**31
async def main():
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: serve(
            Starlette(routes=[Route("/api/v1/leases/{lease}", show)]), config, task_status=task_status))
        print("ready", flush=True)
trio.run(main)
"""


class Caller:
    """One connection, over which requests go one after the other."""

    def __init__(self, stream: trio.SocketStream, token: str) -> None:
        self._stream, self._token = stream, token

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of an answer, whose status must be good."""
        head = f"{method} /api/v1{path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {self._token}\r\n"
        if body:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        await self._stream.send_all(f"{head}\r\n".encode() + body)
        data = b""
        while b"\r\n\r\n" not in data:
            data += await self._stream.receive_some(65_536)
        head_, _, found = data.partition(b"\r\n\r\n")
        lines = head_.decode().lower().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        while len(found) < length:
            found += await self._stream.receive_some(65_536)
        if not lines[0].startswith("http/1.1 2"):
            raise RuntimeError(f"{method} {path}: {lines[0]}: {found.decode()[:200]}")
        return found


async def ask_many(socket: Path, token: str, callers: int, each: int, path: str) -> tuple[float, list[float]]:
    """How many requests a second ``callers`` get answered, ``each`` so many, and how long each took, in ms."""
    took: list[float] = []

    async def call() -> None:
        async with await trio.open_unix_socket(os.fspath(socket)) as stream:
            caller = Caller(stream, token)
            await caller.ask("GET", path)
            ready.release()
            await go.wait()
            for _ in range(each):
                begin = time.perf_counter()
                await caller.ask("GET", path)
                took.append(1000 * (time.perf_counter() - begin))

    ready, go = trio.Semaphore(0), trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(call)
        for _ in range(callers):
            await ready.acquire()
        begin = time.perf_counter()
        go.set()
    return callers * each / (time.perf_counter() - begin), took


@contextmanager
def bare(socket: Path, body: bytes) -> Iterator[None]:
    """The floor: a route that answers ``body``."""
    line = [sys.executable, "-c", FLOOR, os.fspath(socket)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(body)
        process.stdin.close()
        process.stdout.readline()
        try:
            yield
        finally:
            process.terminate()


def until_granted(guest: Path, ask: Callable[[], str], count: int) -> float:
    """How long it takes in the median from a request to the transition that says it has its ticket, in ms."""
    took = []
    with ControlClient(guest) as watcher:
        events = watcher.watch("")
        for _ in range(count):
            begin = time.perf_counter()
            lease = ask()
            next(event for event in events if event["lease"] == lease and event["event"] == "ticket")
            took.append(1000 * (time.perf_counter() - begin))
    return statistics.median(took)


def main() -> int:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer requests and leases")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    each, leases, asked = (50, 200, 30) if options.quick else (300, LEASES, 200)
    with daemons(leases + 2 * asked, GATEWAY) as file:
        guest, web = control(file, "guest"), file.parent / "state" / "web.http"
        drive(guest, leases, 50)
        with started_daemon(file, "web"), ControlClient(control(file, "web")) as door:
            asked_token = {"name": "bench", "projects": {"guest": "user"}}
            token = door.command("api", method="POST", path="/tokens", body=asked_token)["secret"]
            with ControlClient(guest) as client:
                path = f"/leases/{client.query('leases')[0]['id']}"
            rate, _ = trio.run(ask_many, web, token, CALLERS, each, path)
            _, single = trio.run(ask_many, web, token, 1, 4 * each, path)
            _, pages = trio.run(ask_many, web, token, 1, each, "/leases?limit=100")
            body = trio.run(_one, web, token, path)
            with bare(file.parent / "bare", body):
                floor_rate, _ = trio.run(ask_many, file.parent / "bare", token, CALLERS, each, path)
                _, floor_single = trio.run(ask_many, file.parent / "bare", token, 1, 4 * each, path)
            by_http, by_socket = _requests(guest, web, token, asked)
    ours, floor = statistics.median(single), statistics.median(floor_single)
    results = [
        result("get_32_callers", rate, "requests/s", None, floor_rate),
        result("get_32_callers_share", rate / floor_rate, "of the floor", SHARE, higher_is_better=True),
        result("get_one_caller_ms", ours, "ms", floor + EXTRA_MS, floor),
        result("request_to_grant_ms", by_http, "ms", None, by_socket),
        result("request_to_grant_times", by_http / by_socket, "times", REQUEST),
        result("page_of_100_p99_ms", sorted(pages)[int(len(pages) * 0.99)], "ms", PAGE_MS),
    ]
    return 0 if emit("gateway", "quick" if options.quick else "full", results, options.json) else 1


async def _one(socket: Path, token: str, path: str) -> bytes:
    async with await trio.open_unix_socket(os.fspath(socket)) as stream:
        return await Caller(stream, token).ask("GET", path)


def _requests(guest: Path, web: Path, token: str, count: int) -> tuple[float, float]:
    """A request to its grant, by HTTP and by the control socket, in ms."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=os.fspath(web)), base_url="http://gateway/api/v1") as api:
        api.headers["authorization"] = f"Bearer {token}"
        wish = {"type": "vm", "units": 1, "length": "30d"}
        by_http = until_granted(guest, lambda: str(api.post("/leases", json=wish).json()["id"]), count)
    with ControlClient(guest) as client:

        def ask() -> str:
            now = int(client.query("clock")["now"])
            term = [now, now + 30 * DAY]
            asked = {"type": "vm", "units": 1, "term": term, "properties": {"deferrable": "true"}}
            return str(client.command("lease.request", **asked)["id"])

        return by_http, until_granted(guest, ask, count)


if __name__ == "__main__":
    sys.exit(main())
