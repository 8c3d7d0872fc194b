"""What an honest guest sees at rest, and while another peer floods its broker, its site, or itself.

    python benchmarks/hostile.py [--json] [--quick] [--flood NAME ...] [--target NAME] [--mapper NAME]

Three daemons as in ``lifecycle``, and a hostile peer in a process of its own on the same machine. The honest guest asks
for one lease after the other, and waits until each is active. Figures are the latencies at rest, and those under each
flood as multiples of them. Floods of requests that wait are each of a broker with the mapper that they are meant for,
or with that which is named.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio
from _bench_attacker import CONNECTIONS, FLOODS, NAME, PLANS, QUEUES, UNITS, WAITING, Attacker
from _bench_sockets import ACTORS, control, daemons
from _report import Result, emit, result

from leasekit.config.keys import load_key
from leasekit.core.time import MINUTE, Duration
from leasekit.runtime.client import ControlClient
from leasekit.runtime.sockets import TlsError

RATIO = 5.0
"""How many times its latency at rest an honest guest's p99 may be under any flood."""
PAUSE = 0.02
"""The seconds between two leases."""
SETTLED = 2.0
"""For how many seconds a flood goes on before anything is measured."""
FILLED = 30.0
"""For how many seconds at most, where as many requests are to wait as may."""
PATIENCE = 600
"""For how many seconds a guest is waited for: a clock that goes 24 times as fast makes few of them."""
HANDSHAKES = 20
VISITOR = "visitor"
"""An honest peer that connects anew while a flood goes on."""
HANDSHAKE_MS = 5000.0
"""By when a handshake must be complete (the default of ``transport.handshake``)."""
GUEST, BROKER = 'role = "guest"\nmapper.name = "manual"', 'role = "broker"'


def hostile(target: str) -> str:
    """Two peers of ``target``, for the deploy file: a guest's peers are brokers."""
    role = BROKER if target == "guest" else GUEST
    return "".join(f"\n[actor.{name}]\n{role}\n" for name in (NAME, VISITOR))


SITES = ("N0", "N1", "N2", "N3")
"""The sites that topologies are asked of, and :data:`NET` the links between them."""
NET = "net"


def network() -> str:
    """Sites of eight units with links from each to each, for the deploy file, and a mapper that plans over them."""
    parts = ['[actor.broker.mapper]\nname = "coallocation"\n']
    plain = 'role = "authority"\nlog_level = "warning"\ndriver.null.kind = "null"\n'
    for name in (*SITES, NET):
        parts.append(f'[actor.{name}]\nlisten = ["unix:{name}.sock"]\n{plain}')
    offered = [(name, "vm", 8, "") for name in SITES]
    for a, b in itertools.permutations(SITES, 2):
        offered.append((NET, f"{a}x{b}", 10, f'"link.a" = "{a}", "link.b" = "{b}"'))
    for name, type_, units, properties in offered:
        parts.append(f"""[[actor.{name}.inventory]]
type = "{type_}"
units = {units}
driver = "null"
properties = {{ {properties} }}
[[actor.{name}.delegation]]
broker = "broker"
type = "{type_}"
""")
    return "".join(parts)


def latencies(socket: Path, count: int, length: Duration = MINUTE) -> list[float]:
    """Milliseconds from the command to the active lease, of ``count`` leases, sorted."""
    found = []
    with ControlClient(socket, timeout=PATIENCE) as commands, ControlClient(socket, timeout=PATIENCE) as watching:
        events = watching.watch(patience=PATIENCE)
        for _ in range(count):
            time.sleep(PAUSE)
            start, begin = int(time.time() * 1000), time.perf_counter()
            commands.command("lease.request", type="vm", units=1, term=[start, start + length], properties={})
            for event in events:
                if event.get("event") == "lease" and event["to_state"] == "active/-":
                    break
                if event.get("to_state", "").startswith("failed"):
                    raise RuntimeError(f"lease {event['lease']}: {event['why']}")
            found.append(1000 * (time.perf_counter() - begin))
    return sorted(found)


def quantile(found: list[float], share: float) -> float:
    """The value that ``share`` of those found do not exceed."""
    return found[min(len(found) - 1, int(share * len(found)))]


def handshakes(visitor: Attacker, count: int) -> list[float]:
    """Milliseconds until an honest peer is connected, who tries again when it is turned away; sorted."""

    async def once() -> float:
        begin = trio.current_time()
        while True:
            try:
                stream, _ = await visitor.connect()
            except (TlsError, trio.BrokenResourceError, OSError):
                await trio.sleep(0.1)
            else:
                await trio.aclose_forcefully(stream)
                return 1000 * (trio.current_time() - begin)

    return sorted(trio.run(once) for _ in range(count))


def door(file: Path, target: str) -> tuple[int, bytes, Path]:
    """A daemon's port and public key, and where the keys of all lie."""
    keys = file.parent / "state" / "keys"
    with ControlClient(control(file, target)) as client:
        address = client.query("status")["listen"][0]
    return int(address.rpartition(":")[2]), load_key(keys / f"{target}.key").public, keys


def settle(file: Path, flood: str) -> None:
    """Let a flood come to what it goes on with."""
    time.sleep(SETTLED)
    deadline = time.monotonic() + FILLED - SETTLED
    with ControlClient(control(file, "broker"), timeout=PATIENCE) as client:
        while flood in QUEUES and (waiting := client.query("status")["waiting"]) < 0.9 * WAITING:
            if time.monotonic() > deadline:
                print(f"{flood}: {waiting} requests wait", file=sys.stderr)
                break
            time.sleep(SETTLED / 4)


@contextmanager
def flooded(file: Path, flood: str, target: str) -> Iterator[None]:
    """While a hostile peer floods the daemon ``target``. Says on standard error how much it got rid of."""
    port, public, keys = door(file, target)
    script = Path(__file__).with_name("_bench_attacker.py")
    command = [sys.executable, str(script), flood, target, str(port), str(keys / f"{NAME}.key"), public.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "on\n":
                raise RuntimeError(f"the flood {flood} did not begin")
            began = time.perf_counter()
            settle(file, flood)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
        seconds = time.perf_counter() - began
        print(f"{flood}: {int(process.stdout.readline() or 0) / seconds:,.0f} a second", file=sys.stderr)


def peers(flood: str, target: str, mapper: str) -> tuple[str, Sequence[str]]:
    """What the deploy file has beside the three actors, and who of it runs."""
    if flood == PLANS:
        return hostile(target) + network(), (*SITES, NET)
    mapper = mapper or QUEUES.get(flood, "")
    return hostile(target) + (f'[actor.broker.mapper]\nname = "{mapper}"\n' if mapper else ""), ()


def main() -> int:
    """Measure at rest, and under each flood."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer leases")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    floods = (*FLOODS, *QUEUES, PLANS)
    parser.add_argument("--flood", action="append", choices=floods, help="only this one (may be repeated)")
    parser.add_argument("--target", choices=ACTORS, default="broker", help="who is flooded")
    parser.add_argument("--mapper", default="", help="the broker's mapper")
    options = parser.parse_args()
    target = options.target
    count = 50 if options.quick else 200
    results: list[Result] = []
    for flood in options.flood or (floods if target == "broker" else FLOODS):
        with daemons(UNITS, *peers(flood, target, options.mapper)) as file:
            guest = control(file, "guest")
            latencies(guest, 10)
            rest = latencies(guest, count)
            with flooded(file, flood, target):
                under = latencies(guest, count)
                if flood in CONNECTIONS:
                    port, public, keys = door(file, target)
                    visitor = Attacker(target, port, load_key(keys / f"{VISITOR}.key"), public, VISITOR)
                    longest = handshakes(visitor, HANDSHAKES)[-1]
                    results.append(result(f"{flood}_handshake_max_ms", longest, "ms", HANDSHAKE_MS))
        for name, share, most in (("p50", 0.5, None), ("p99", 0.99, RATIO)):
            floor = quantile(rest, share)
            results.append(result(f"{flood}_{name}_ms", quantile(under, share), "ms", None, floor))
            results.append(result(f"{flood}_{name}", quantile(under, share) / floor, "times", most))
    return 0 if emit(f"hostile of {target}", "quick" if options.quick else "full", results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
