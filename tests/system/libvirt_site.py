"""Three real daemons of which one is a site with real guests: what tests of leases of virtual machines share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.runtime_processes import Daemons
from runtime.runtime_world import request
from system.libvirt_world import World, as_toml
from system.system_waits import wait_until

JOINED_WITHIN = 150.0

HEAD = """
[deployment]
name = "vms"
create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
[actor.site.settings]
retry_first = "100ms"

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]

[actor.guest]
role = "guest"
[actor.guest.settings]
retry_first = "100ms"
redeem_lead = "100ms"
"""


def deployment(drivers: Mapping[str, tuple[int, Mapping[str, Any]]], more: str = "", capacity: str = "") -> str:
    """A deploy file with a type of units, so many of them, and a libvirt driver for each of ``drivers``. Units are
    called by their type and a number: a type that ends in another digit has addresses of its own. With a ``capacity``
    they are hosts.
    """
    parts = [HEAD]
    for type_, (units, settings) in drivers.items():
        names = [f"{type_}{number}" for number in range(units)]
        driver = as_toml({"kind": "libvirt", **settings}, f"actor.site.driver.{type_}")
        parts += [
            f'[[actor.site.inventory]]\ntype = "{type_}"\nnames = {names!r}\ndriver = "{type_}"',
            f"capacity = {capacity}" if capacity else "",
            f'[[actor.site.delegation]]\nbroker = "broker"\ntype = "{type_}"',
            driver,
        ]
    return "\n".join([*parts, more]) + "\n"


class Site:
    """The daemons, and what a guest does with them."""

    def __init__(self, world: World, daemons: Daemons) -> None:
        self.world = world
        self.daemons = daemons

    def ask(self, type_: str, units: int, **configuration: str) -> str:
        """Ask for a lease that begins now; its id."""
        wish = request(units, configuration={"slice.key": self.world.public, **configuration}) | {"type": type_}
        return str(self.daemons.command("guest", "lease.request", **wish)["id"])

    def lease(self, lease: str) -> dict[str, Any]:
        """The lease, as its guest sees it."""
        found: dict[str, Any] = self.daemons.query("guest", "lease", lease=lease)
        return found

    def joined(self, lease: str, units: int) -> list[dict[str, Any]]:
        """The units of a lease, once so many have joined."""

        def missing() -> Any:
            told = self.lease(lease)
            assert told["state"] not in ("failed", "closed"), told["reason"]
            assert "failed" not in [unit["state"] for unit in told["units"]], told
            return None if [unit["state"] for unit in told["units"]] == ["joined"] * units else told

        wait_until(f"{units} units", missing, JOINED_WITHIN)
        found: list[dict[str, Any]] = self.lease(lease)["units"]
        return found

    def over(self, lease: str) -> dict[str, Any]:
        """The lease, once it is over."""
        wait_until("its end", lambda: None if self.lease(lease)["state"] in ("failed", "closed") else "not yet", 150)
        return self.lease(lease)

    def close(self, lease: str) -> None:
        """Close a lease."""
        self.daemons.command("guest", "lease.close", lease=lease)

    def until_free(self) -> None:
        """Wait until no unit is anybody's."""
        wait_until(
            "units", lambda: [u for u in self.daemons.query("site", "units") if u["state"] not in ("free", "out")]
        )

    def log(self, unit: str) -> str:
        """What was written to a unit's log at the site."""
        with self.daemons.client("site") as client:
            return "\n".join(client.unit_log(unit))

    def restart(self) -> None:
        """SIGKILL to the site, and a new daemon."""
        self.daemons.kill("site")
        self.daemons.start("site")


@contextmanager
def open_site(
    world: World, folder: Path, drivers: Mapping[str, tuple[int, Mapping[str, Any]]], more: str = "", capacity: str = ""
) -> Iterator[Site]:
    """Three daemons of a site with these types of units; ``more`` goes to the deploy file, ``capacity`` is theirs."""
    file = folder / "vms.toml"
    file.write_text(deployment(drivers, more, capacity))
    with Daemons(file, folder / "s") as daemons:
        daemons.start_all()
        yield Site(world, daemons)


@contextmanager
def stopwatch(stages: dict[str, float], stage: str) -> Iterator[None]:
    """Adds the seconds that a block took to ``stages``."""
    began = time.monotonic()
    yield
    stages[stage] = stages.get(stage, 0.0) + time.monotonic() - began
