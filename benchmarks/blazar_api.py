"""Blazar's API: a lease created among many, against Blazar itself; and sixteen clients that race for one host.

    python benchmarks/blazar_api.py [--json] [--quick] [--peer PYTHON]

``PYTHON`` is one that has Blazar from PyPI; without it an environment with Blazar is made in a scratch folder. Blazar's
manager and its host plugin run in one process over SQLite: its HTTP, RPC and tokens are left out, in its favour, and
stubs stand for Nova's and the placement client, Keystone's trusts, enforcement and notifications (_blazar_peer.py).
Ours is asked by HTTP, with all daemons.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from _report import emit, result

from leasekit.cli.daemon_experiment import LEASEKIT

BLAZAR = "blazar==18.0.0"
HOSTS, LEASES = 1_000, 5_000
TIMES = 100
"""How many times as fast as Blazar a create is to be."""
RACERS, RACES = 16, 500
LOADERS = 8
BEGIN = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(days=1)
HOUR = timedelta(hours=1)
DEPLOYMENT = """
[deployment]
name = "bench"
state = "{state}"
create_keys = true
[actor.site]
role = "authority"
listen = ["unix:site.sock"]
log_level = "error"
[[actor.site.inventory]]
type = "host"
units = {hosts}
prefix = "compute-"
capacity = {{ cpu = 16, memory = "64GiB" }}
[[actor.site.inventory]]
type = "host"
names = ["raced"]
capacity = {{ cpu = 16, memory = "64GiB" }}
unit_properties = {{ raced = "yes" }}
[[actor.site.delegation]]
broker = "broker"
type = "host"
length = "365d"
[actor.site.driver.imagined]
kind = "null"
[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
log_level = "error"
[actor.guest]
role = "guest"
log_level = "error"
[actor.web]
role = "gateway"
listen = ["unix:web.http"]
log_level = "error"
without_login = true
blazar = {{ site = "site", type = "host" }}
"""


@contextmanager
def deployed(hosts: int) -> Iterator[Path]:
    """The socket of a gateway, in front of so many hosts."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "bench.toml"
        file.write_text(DEPLOYMENT.format(state=Path(scratch) / "state", hosts=hosts), encoding="utf-8")
        with subprocess.Popen([*LEASEKIT, "up", str(file)], stdout=subprocess.PIPE, text=True) as daemons:
            assert daemons.stdout is not None
            try:
                next(line for line in daemons.stdout if line.startswith("ready web"))
                yield Path(scratch) / "state" / "web.http"
            finally:
                daemons.terminate()


class BlazarCaller:
    """Somebody who asks for leases, over one connection."""

    def __init__(self, socket: Path) -> None:
        transport = httpx.HTTPTransport(uds=str(socket))
        self._http = httpx.Client(transport=transport, base_url="http://gateway/blazar/v1", timeout=60)

    def ask(self, start: datetime, end: datetime, **more: Any) -> str:
        """The id of a lease of one host, empty if it was refused because there is none."""
        reservation = {"resource_type": "physical:host", "min": 1, "max": 1, **more}
        body = {"name": "bench", "start_date": f"{start:%Y-%m-%d %H:%M}", "end_date": f"{end:%Y-%m-%d %H:%M}"}
        answer = self._http.post("/leases", json={**body, "reservations": [reservation]})
        if answer.status_code not in (201, 409):
            raise RuntimeError(answer.text)
        return str(answer.json()["lease"]["id"]) if answer.status_code == 201 else ""

    def delete(self, lease: str) -> None:
        """Delete a lease."""
        self._http.delete(f"/leases/{lease}").raise_for_status()


def created(socket: Path, hosts: int, leases: int, asked: int) -> float:
    """How long a create takes in the median, in ms, when so many leases of an hour are spread over all hosts."""
    callers, numbers = [BlazarCaller(socket) for _ in range(LOADERS)], count()

    def load(caller: BlazarCaller) -> None:
        while (number := next(numbers)) < leases:
            start = BEGIN + 2 * HOUR * (number // hosts)
            if not caller.ask(start, start + HOUR):
                raise RuntimeError(f"lease {number} was refused")

    with ThreadPoolExecutor(LOADERS) as pool:
        list(pool.map(load, callers))
    took = []
    for number in range(asked):
        start, begin = BEGIN + HOUR + 2 * HOUR * (number % 4), time.perf_counter()
        if not callers[0].ask(start, start + HOUR / 2):
            raise RuntimeError("a lease was refused for which there are hosts")
        took.append(1000 * (time.perf_counter() - begin))
    return statistics.median(took)


def raced(socket: Path, races: int) -> int:
    """In how many races of sixteen for one host exactly one got it."""
    callers, right = [BlazarCaller(socket) for _ in range(RACERS)], 0
    wish = {"resource_properties": '["==", "$raced", "yes"]'}
    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(races):
            start = BEGIN + 2 * HOUR * number
            won = list(filter(None, pool.map(lambda one: one.ask(start, start + HOUR, **wish), callers)))  # noqa: B023
            right += len(won) == 1
            for lease in won:
                callers[0].delete(lease)
    return right


def peer(python: Path | None, hosts: int, leases: int, asked: int) -> float:
    """How long Blazar itself takes for a create in the median, in ms."""
    with tempfile.TemporaryDirectory() as scratch:
        if python is None:
            venv.create(Path(scratch) / "venv", with_pip=True)
            python = Path(scratch) / "venv" / "bin" / "python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", BLAZAR], check=True)
        script = Path(__file__).with_name("_blazar_peer.py")
        line = [python, "-W", "ignore", script, str(hosts), str(leases), str(asked), Path(scratch) / "blazar.db"]
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return statistics.median(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer hosts, leases and races")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--peer", type=Path, help="a Python that has Blazar")
    options = parser.parse_args()
    hosts, leases, races = (50, 250, 20) if options.quick else (HOSTS, LEASES, RACES)
    with deployed(hosts) as socket:
        ours = created(socket, hosts, leases, 20)
        right = raced(socket, races)
    theirs = peer(options.peer, hosts, leases, 3 if options.quick else 1)
    results = [
        result("create_ms", ours, "ms", None, theirs),
        result("create_times", theirs / ours, "times as fast as Blazar", None if options.quick else TIMES, None, True),
        result("races_with_one_winner", right / races, "of all races", 1, None, True),
    ]
    return 0 if emit("blazar", "quick" if options.quick else "full", results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
