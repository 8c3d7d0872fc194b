"""From a request to ssh into each of three real virtual machines, through three real daemons, and where the time goes;
and how well CPU caps hold on a busy one.

The machines are QEMU's, without KVM, under a libvirtd of the benchmark's own; it needs root, and installs what is
missing where it may. ``first`` is the first lease of a host, which brings the image there; ``next`` is one after it.
The authority's own share is from its guest's redeem to the lease, without the longest setup of a driver: messages,
commits and all. Guest, network and image are those of the tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from _report import Result, emit, result

from leasekit.core.time import parse_duration

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

UNITS = 3
CAP_LEAST, CAPS = 20, 8
"""From which cap on errors count, in percent, and how many caps that are: 20, 30, ... 90."""
MEAN, WORST = 2.0, 5.0
SPIN = "(while :; do :; done) </dev/null >/dev/null 2>&1 &"


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=4, help="how long each cap is measured")
    parser.add_argument("--quick", action="store_true", help="measure each cap for a second")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    from _pytest.outcomes import Failed, Skipped

    results: list[Result] = []
    try:
        results = measure(1 if options.quick else options.seconds)
    except (Failed, Skipped) as error:
        print(f"virtual_machines: not measured: {error}", file=sys.stderr)
    return 0 if emit("virtual_machines", "quick" if options.quick else "full", results, options.json) else 1


def measure(seconds: int) -> list[Result]:
    """All figures."""
    from system.libvirt_site import open_site
    from system.libvirt_world import open_world

    results: list[Result] = []
    with (
        open_world() as world,
        tempfile.TemporaryDirectory() as folder,
        open_site(world, Path(folder), {"bench-9": (UNITS, world.settings())}) as site,
    ):
        for name in ("first", "next"):
            lease, stages, own = leased(site, world)
            results += [result(f"{name}.{stage}", took, "s", None) for stage, took in stages.items()]
            results.append(result(f"{name}.request_to_ssh", sum(stages.values()), "s", 60.0))
            results.append(result(f"{name}.authority_itself", own, "s", 1.0))
            if name == "next":
                results += caps(site, world, lease, seconds)
            site.close(lease)
            site.over(lease)
    return results


def leased(site: Any, world: Any) -> tuple[str, dict[str, float], float]:
    """Lease the units and log in to each: the seconds of each stage, one after the other, and the authority's own."""
    began = time.time()
    lease = site.ask("bench-9", UNITS)
    units = site.joined(lease, UNITS)
    joined = time.time()
    for unit in units:
        assert world.ssh(unit["properties"], "hostname").strip() == unit["unit"]
    ended = time.time()
    guest, there = events(site, "guest", lease), events(site, "site", lease)
    # In seconds since the epoch, each the last of its kind.
    started = max(logged(site, unit["unit"], "starts as ") for unit in units)
    marks = {
        "ticket_from_broker": guest["ticket"],
        "redeem_to_setup": there["unit setup"],
        "images_and_volumes": started,
        "guests_boot": there["unit up"],
        "site_tells_guest": guest["lease"],
        "join": joined,
        "first_ssh": ended,
    }
    stages, last = {}, began
    for stage, at in marks.items():
        stages[stage] = max(0.0, at - last)
        last = max(last, at)
    drivers = max(setup_took(site, unit["unit"]) for unit in units)
    own = guest["lease"] - guest["redeem"] - drivers
    return lease, stages, own


def events(site: Any, actor: str, lease: str) -> Mapping[str, float]:
    """When each kind of transition of a lease came last, in seconds."""
    with site.daemons.client(actor) as client:
        return {row["event"]: row["at"] / 1000 for row in client.history(lease)}


def setup_took(site: Any, unit: str) -> float:
    """How long a driver was at the last setup of a unit, in seconds."""
    lines = [line for line in site.log(unit).splitlines() if " setup #" in line and ": done in " in line]
    return parse_duration(lines[-1].rpartition(" done in ")[2]) / 1000


def logged(site: Any, unit: str, words: str) -> float:
    """When a unit's log has these words last, in seconds."""
    lines = [line for line in site.log(unit).splitlines() if words in line]
    return datetime.fromisoformat(lines[-1].split()[0]).timestamp()


def caps(site: Any, world: Any, lease: str, seconds: int) -> list[Result]:
    """How far a busy guest is from its cap, over caps of 20 to 90 %. On a machine that is busy itself the guest gets
    less than most caps allow: these say nothing, so that too few are left.
    """
    unit = site.lease(lease)["units"][0]
    world.ssh(unit["properties"], SPIN)
    with site.daemons.client("site", timeout=900.0) as client:
        arguments = {"seconds": str(seconds)}
        told = client.command("unit.operate", unit=unit["unit"], operation="caps", arguments=arguments)
    free = float(told.pop("none"))
    errors = [abs(float(used) - int(cap)) for cap, used in told.items() if CAP_LEAST <= int(cap) <= free]
    found = [result("caps.uncapped", free, "%", None), result("caps.missed", CAPS - len(errors), "of 8 caps", 0)]
    if errors:
        found.append(result("caps.mean_error", sum(errors) / len(errors), "%", MEAN))
        found.append(result("caps.worst_error", max(errors), "%", WORST))
    return found


if __name__ == "__main__":
    sys.exit(main())
