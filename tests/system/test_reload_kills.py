"""SIGKILL while a site takes another inventory: it comes back with what the file says, and no lease has lost a unit."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from runtime.runtime_processes import Daemons
from runtime.runtime_world import request
from system.chaos_rounds import SEED
from system.system_waits import wait_until

from leasekit.runtime.client import ControlError

ROUNDS = 6
DEPLOYMENT = """
[deployment]
name = "reload"
create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
driver.none = { kind = "null", latency = { setup = "SETUP" } }
[[actor.site.inventory]]
type = "vm"
units = UNITS
[[actor.site.delegation]]
broker = "broker"
type = "vm"

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]

[actor.guest]
role = "guest"
"""


def write(file: Path, units: int, setup: int) -> None:
    """The deploy file, as an editor writes it: whole, or as it was."""
    beside = file.with_suffix(".new")
    beside.write_text(DEPLOYMENT.replace("UNITS", str(units)).replace("SETUP", f"{setup}ms"))
    beside.replace(file)


def test_a_site_that_is_killed_while_it_reloads(tmp_path: Path) -> None:
    """In each round the inventory and the driver change, and the site dies at another moment of that."""
    file, state, rng = tmp_path / "deploy.toml", tmp_path / "s", random.Random(SEED)
    write(file, 8, 10)
    with Daemons(file, state) as daemons:
        daemons.start_all()
        with daemons.client("guest") as guest:
            lease = guest.command("lease.request", **request(5, 3600, properties={"deferrable": "true"}))["id"]
            wait_until("leased", lambda: _lacks(guest.query("lease", lease=lease), join="joined"))
            for _ in range(ROUNDS):
                units = rng.choice((2, 4, 8, 12))
                write(file, units, rng.choice((10, 200)))
                with daemons.client("site") as site:
                    asking = Thread(target=_reload, args=(site,))
                    asking.start()
                    time.sleep(rng.random() * 0.05)
                    daemons.kill("site")
                    asking.join()
                daemons.start("site")
                with daemons.client("site") as site:
                    wait_until(f"{units} units", lambda site=site, units=units: _amiss(site, units))  # type: ignore[misc]
                wait_until(
                    "the guest's view",
                    lambda units=units: _differs(guest.query("lease", lease=lease), gone=units < 5),  # type: ignore[misc]
                )


def _reload(site: Any) -> None:
    with suppress(ControlError):
        site.command("reload")


def _lacks(found: dict[str, Any], **wanted: str) -> str:
    return "" if all(found[key] == value for key, value in wanted.items()) else repr(found)


def _amiss(site: Any, units: int) -> str:
    """What is not as the file says: units that may be given out, and what the broker has of them."""
    found = site.query("units")
    named = [one for one in found if one["because"] is None]
    held = [one["units"] for one in site.query("delegations") if one["state"] == "held"]
    leased = [one for one in found if one["lease"]]
    right = (len(named), held, len(leased)) == (units, [units], 5)
    return "" if right else f"{len(named)} units, {held} delegated, {len(leased)} leased"


def _differs(lease: dict[str, Any], *, gone: bool) -> str:
    """The lease goes on with all its units, and says whether one of them is not in the inventory any more."""
    right = (lease["state"], len(lease["units"]), bool(lease["reason"])) == ("active", 5, gone)
    return "" if right else f"{lease['state']}, {len(lease['units'])} units, {lease['reason']!r}"
