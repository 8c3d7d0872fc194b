"""Real daemons: whose fault it is that units can't be set up, and who has to bear it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_daemons import running
from system.system_waits import wait_until

from leasekit.config.load import load
from leasekit.runtime.client import ControlClient, RequestError

DEPLOY = """
deployment.name = "blame"
deployment.state = "run"
deployment.create_keys = true
actor.broker = { role = "broker", listen = ["unix:broker.sock"] }
actor.guest = { role = "guest" }

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
inventory = [{ type = "vm", units = 6 }]
delegation = [{ broker = "broker", type = "vm" }]
"""

SCRIPT = """
[actor.site.driver.units]
kind = "script"
retries = 0
directory = "."
setup = ["sh", "setup.sh"]
teardown = ["sh", "-c", 'test -z "$(env | grep GUEST)"']
"""
SETUP = """
if [ "$LEASEKIT_GUEST_IMAGE" = nonsense ]; then echo "there is no image $LEASEKIT_GUEST_IMAGE" >&2; exit 65; fi
if [ "$LEASEKIT_GUEST_IMAGE" = broken ]; then echo "the image server has no broken" >&2; exit 69; fi
if [ -e down ]; then echo "the directory is down" >&2; exit 69; fi
echo "{\\"host\\": \\"$LEASEKIT_UNIT\\"}"
"""
PROCESS = """
[actor.site.driver.units]
kind = "process"
retries = 0
directory = "units"
identify = false
ports = [27500, 27599]
command = ["sh", "unit.sh"]
"""
UNIT = """
ready=/dev/fd/$LEASEKIT_READY_FD
if grep -q nonsense "$LEASEKIT_CONFIG"; then echo "refused there is no image nonsense" > $ready; exit 1; fi
echo ready > $ready
exec sleep 3600
"""


class Deployed:
    """Site, broker and guest in one process."""

    def __init__(self, file: Path) -> None:
        self._actors = load(file).actors

    def ask(self, actor: str, query: str, **arguments: Any) -> Any:
        """What an actor says."""
        with ControlClient(self._actors[actor].control) as client:
            return client.query(query, **arguments)

    def request(self, name: str, units: int, configuration: Mapping[str, str]) -> str:
        """The id of a lease that begins now."""
        now = time.time_ns() // 1_000_000
        with ControlClient(self._actors["guest"].control) as client:
            wish = {"type": "vm", "units": units, "term": [now, now + 600_000], "name": name}
            made = client.command(
                "lease.request", **wish, configuration=dict(configuration), properties={"deferrable": "true"}
            )
            return str(made["id"])

    def close(self, lease: str) -> None:
        """End a lease."""
        with ControlClient(self._actors["guest"].control) as client:
            client.command("lease.close", lease=lease)

    def wait(self, lease: str, state: str) -> dict[str, Any]:
        """The guest's record of a lease, once it is in a state."""
        found: dict[str, Any] = {}

        def missing() -> object:
            found.update(self.ask("guest", "lease", lease=lease))
            return found if found["state"] != state else None

        wait_until(f"not {state}", missing)
        return found

    def units(self) -> list[tuple[str, int]]:
        """State and failures of each unit."""
        return [(unit["state"], unit["failures"]) for unit in self.ask("site", "units")]


@contextmanager
def deployed(folder: Path, driver: str) -> Iterator[Deployed]:
    file = folder / "leasekit.toml"
    run = folder / "run"
    run.mkdir(mode=0o700)
    for name, text in (("setup.sh", SETUP), ("unit.sh", UNIT)):
        (run / name).write_text(text)
    file.write_text(DEPLOY + driver.replace("unit.sh", str(run / "unit.sh")))
    with running(file):
        yield Deployed(file)


@pytest.mark.parametrize("driver", [SCRIPT, PROCESS], ids=["script", "process"])
def test_an_image_that_is_not_there_harms_nobody_but_its_lease(tmp_path: Path, driver: str) -> None:
    """One lease of one unit with image=nonsense fails, with the reason; no unit is held to have failed, none goes out
    of service, and the next lease has all six. What has a NUL is refused before it is asked for.
    """
    with deployed(tmp_path, driver) as world:
        for number in range(4):
            failed = world.wait(world.request(f"nonsense-{number}", 1, {"image": "nonsense"}), "failed")
            assert "there is no image nonsense" in failed["reason"]
        with pytest.raises(RequestError, match=r"configuration.image: found the control character '\\x00' at 1"):
            world.request("nul", 1, {"image": "a\0b"})
        wait_until("not all free", lambda: world.units() != [("free", 0)] * 6)
        # As long as the broker has not heard of that, it would grant a later start.
        wait_until("not given back", lambda: world.ask("broker", "leases"))
        good = world.request("good", 6, {"image": "debian"})
        world.wait(good, "active")
        assert world.units() == [("active", 0)] * 6
        world.close(good)
        wait_until("not all down", lambda: world.units() != [("free", 0)] * 6)


def test_a_directory_that_is_down_stops_setups_until_it_is_up(tmp_path: Path) -> None:
    """No unit is burnt through while the site lacks something: setups stop, guests and operator are told why, once, and
    they go on when it is mended.
    """
    with deployed(tmp_path, SCRIPT) as world:
        down = tmp_path / "run" / "down"
        down.touch()
        lease = world.request("web", 4, {})
        wait_until("not told", lambda: "the directory" not in world.ask("guest", "lease", lease=lease)["reason"])
        (outage,) = world.ask("site", "status")["outages"]
        assert (outage["type"], "the directory is down" in outage["reason"]) == ("vm", True)
        wait_until("not clean", lambda: world.units() != [("free", 0)] * 6)
        assert world.ask("guest", "lease", lease=lease)["state"] == "ticketed"
        down.unlink()
        world.wait(lease, "active")
        assert sorted(world.units()) == [("active", 0)] * 4 + [("free", 0)] * 2
        assert world.ask("site", "status")["outages"] == []
    log = (tmp_path / "leasekit.log").read_text()
    assert log.count("until that is mended") == 1
    assert log.count("units of type vm can be set up again") == 1


def test_an_image_that_can_not_be_had_holds_up_nobody_else(tmp_path: Path) -> None:
    """Of several images the site misses one: who asks for it waits until the lease is closed, and who asks for another
    one never does.
    """
    with deployed(tmp_path, SCRIPT) as world:
        broken = {world.request(f"broken-{number}", 1, {"image": "broken"}) for number in range(2)}
        wait_until("not held up", lambda: {one["lease"] for one in world.ask("site", "status")["outages"]} != broken)
        for number in range(3):
            world.wait(world.request(f"good-{number}", 1, {"image": "debian"}), "active")
        for lease in broken:
            assert "the image server has no broken" in world.ask("guest", "lease", lease=lease)["reason"]
            world.close(lease)
            world.wait(lease, "closed")
        assert world.ask("site", "status")["outages"] == []
    with closing(sqlite3.connect(tmp_path / "run" / "guest.db")) as store:
        assert {lease for (lease,) in store.execute("SELECT lease FROM log WHERE event = 'waiting'")} == broken
