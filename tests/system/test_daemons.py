"""Three daemons as a user runs them, from deploy/quickstart: one lease through all that can be done with it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runtime.runtime_processes import UpProcess
from system.system_waits import no_units_left, unit_processes, wait_until

from leasekit.config.keys import new_key
from leasekit.core.time import SECOND
from leasekit.runtime.client import ControlClient, RequestError

QUICKSTART = Path(__file__).parents[2] / "deploy" / "quickstart"
WITHIN = 30.0


class Up:
    """``leasekit up FILE`` with a state folder of its own; a command, where it has an ``environment`` beside the usual
    that has to be there from its start, and else forked.
    """

    def __init__(self, file: Path, state: Path, environment: Mapping[str, str] = {}) -> None:
        self.file, self.state = file, state
        self.name = file.stem
        reader, writer = os.pipe()
        log = state / f"{self.name}.stderr"
        words = [str(file), "--state", str(state), "--ready-fd"]
        self.process: UpProcess | subprocess.Popen[bytes]
        if environment:
            with log.open("ab") as output:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "leasekit.cli.main", "up", *words, str(writer)],
                    env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=output, pass_fds=[writer],
                )  # fmt: skip
        else:
            self.process = UpProcess(words, writer, log)
        os.close(writer)
        with os.fdopen(reader) as ready:
            self.ready = ready.readline()
        assert self.ready.startswith(f"ready {self.name} "), log.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(WITHIN)


class Quickstart:
    """The three daemons, and what a user asks them."""

    def __init__(self, folder: Path, changes: Mapping[str, str]) -> None:
        self.state = folder / "s"
        self.files = folder / "deploy"
        shutil.copytree(QUICKSTART, self.files)
        # Units get ports that no other test uses.
        for file in self.files.glob("*.toml"):
            text = file.read_text()
            for old, new in {r"ports = \[\d+, \d+\]": "ports = [28000, 28999]", **changes}.items():
                text = re.sub(old, new, text)
            file.write_text(text)
        self.state.mkdir(mode=0o700)
        for name in ("site", "broker", "guest"):
            new_key(self.state / "keys" / f"{name}.key")
        self.up: dict[str, Up] = {}
        self.environment: Mapping[str, str] = {}

    def start(self, *names: str) -> None:
        for name in names:
            self.up[name] = Up(self.files / f"{name}.toml", self.state, self.environment)

    def client(self, name: str = "guest") -> ControlClient:
        return ControlClient(self.state / f"{name}.control.sock")

    def query(self, name: str, query: str, /, **arguments: Any) -> Any:
        with self.client(name) as client:
            return client.query(query, **arguments)

    def lease(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.query("guest", "lease", lease=name)
        return found

    def joined(self, lease: dict[str, Any]) -> list[str]:
        return sorted(unit["unit"] for unit in lease["units"] if unit["state"] == "joined")

    def wait_joined(self, name: str, units: int, **wanted: Any) -> dict[str, Any]:
        """The lease, when it has that many units, all joined, and nothing pending."""

        def missing() -> Any:
            lease = self.lease(name)
            fine = len(self.joined(lease)) == len(lease["units"]) == units and lease["pending"] == "-"
            return None if fine and all(lease[key] == value for key, value in wanted.items()) else lease

        wait_until(f"{units} units of {name}", missing, WITHIN)
        return self.lease(name)

    def members(self) -> list[str]:
        """Who has joined the guest's application, by the file that its driver keeps."""
        path = self.state / "guest-units" / "members.json"
        return sorted(re.findall(r"vm-\d+", path.read_text())) if path.exists() else []


@contextmanager
def quickstart(
    folder: Path, changes: Mapping[str, str] = {}, *, world: Quickstart | None = None
) -> Iterator[Quickstart]:
    """Three running daemons, those of ``world`` if it is given; all are gone afterwards."""
    world = world or Quickstart(folder, changes)
    with no_units_left(world.state), ended(world):
        world.start("site", "broker", "guest")
        wait_until("the delegation", lambda: {d["state"] for d in world.query("site", "delegations")} ^ {"held"})
        yield world


@contextmanager
def ended(world: Quickstart) -> Iterator[None]:
    """End what a failed test leaves running."""
    try:
        yield
    finally:
        for up in world.up.values():
            if up.process.poll() is None:
                up.process.kill()
                up.process.wait()


def now() -> int:
    return int(time.time() * 1000)


def test_a_lease_through_all_its_life(tmp_path: Path) -> None:
    """4 units are leased and joined, grow to 6, lose named victims, are modified in mid-term, and close."""
    with quickstart(tmp_path) as world, world.client() as guest:
        start = now()
        guest.command(
            "lease.request",
            type="vm",
            units=4,
            term=[start, start + 8 * SECOND],
            name="web",
            properties={"deferrable": "true", "request_timeout": "20s"},
        )
        lease = world.wait_joined("web", 4)
        assert len(unit_processes(world.state)) >= 4
        ports = {unit["properties"]["port"] for unit in lease["units"]}
        assert len(ports) == 4
        first = world.joined(lease)

        guest.command("lease.extend", lease="web", end=lease["end"] + 6 * SECOND, units=6)
        grown = world.wait_joined("web", 6, end=lease["end"] + 6 * SECOND)
        assert set(first) < set(world.joined(grown)), "those that stay are not touched"
        assert {u["properties"]["port"] for u in grown["units"] if u["unit"] in first} == ports

        victims = world.joined(grown)[1:3]
        guest.command("lease.extend", lease="web", end=grown["end"] + 600 * SECOND, units=4, victims=victims)
        shrunk = world.wait_joined("web", 4, end=grown["end"] + 600 * SECOND)
        assert not set(victims) & set(world.joined(shrunk))

        guest.command("lease.modify", lease="web", configuration={"colour": "blue"}, units=5)
        changed = world.wait_joined("web", 5)
        assert changed["configuration"]["colour"] == "blue"
        assert changed["end"] == shrunk["end"]

        log = guest.unit_log(world.joined(changed)[0])
        assert any("join" in line and "done in" in line for line in log)

        guest.command("lease.close", lease="web")
        wait_until("the close", lambda: None if world.lease("web")["state"] == "closed" else world.lease("web"))
        wait_until("units", lambda: [u for u in world.query("site", "units") if u["state"] != "free"])
        wait_until("processes", lambda: unit_processes(world.state))
        events = [row["event"] for row in guest.history(changed["id"])]
        assert [e for e in events if e in ("ask", "extend", "modify", "close", "closed")] == [
            "ask", "extend", "extend", "modify", "close", "closed"
        ]  # fmt: skip
        assert [up.end() for up in world.up.values()] == [0, 0, 0]


def test_units_outlive_the_daemon(tmp_path: Path) -> None:
    """A site that is killed and started again adopts its running units: same processes, same ports, no new setup."""
    with quickstart(tmp_path) as world, world.client() as guest:
        start = now()
        guest.command("lease.request", type="vm", units=2, term=[start, start + 600 * SECOND], name="db",
                      properties={"deferrable": "true"})  # fmt: skip
        before = world.wait_joined("db", 2)
        running = sorted(unit_processes(world.state))
        world.up["site"].end(signal.SIGKILL)
        assert sorted(unit_processes(world.state)) == running
        world.start("site")
        assert world.lease("db")["units"] == before["units"]
        assert [u["state"] for u in world.query("site", "units") if u["lease"] == before["id"]] == ["active"] * 2
        assert sorted(unit_processes(world.state)) == running
        guest.command("lease.close", lease="db")
        wait_until("processes", lambda: unit_processes(world.state))
        wait_until("members", world.members)


def test_an_extended_lease_is_changed_while_daemons_are_killed(tmp_path: Path) -> None:
    """It is modified, extended further, and goes back to its old end, with a SIGKILL of each daemon in between; then it
    goes on into an extension of another size.
    """
    with quickstart(tmp_path) as world:

        def killed(name: str) -> None:
            world.up[name].end(signal.SIGKILL)
            world.start(name)

        def tell(command: str, **arguments: Any) -> None:
            with world.client() as guest:
                guest.command(command, lease="web", **arguments)

        def goes_on(*extensions: tuple[int, int]) -> dict[str, Any]:
            """The lease, when it goes on by these: units, and seconds after its old end."""
            wanted = [(units, old + after * SECOND) for units, after in extensions]

            def wrong() -> Any:
                lease = world.lease("web")
                tickets = [one for one in (lease["renewal"], *lease["continuations"]) if one]
                found = [(one["units"], one["term"][1]) for one in tickets]
                return None if (found, lease["pending"]) == (wanted, "-") else lease

            wait_until(f"{wanted}", wrong, WITHIN)
            return world.lease("web")

        def last_claim() -> tuple[int, int]:
            last = world.query("broker", "lease", lease=id_)["claims"][-1]
            return last["units"], last["term"][1]

        start = now()
        with world.client() as guest:
            guest.command("lease.request", type="vm", units=2, term=[start, start + 900 * SECOND], name="web",
                          properties={"deferrable": "true"})  # fmt: skip
        lease = world.wait_joined("web", 2)
        id_, old, first = lease["id"], lease["end"], world.joined(lease)
        tell("lease.extend", end=old + 900 * SECOND)
        killed("broker")
        goes_on((2, 900))
        tell("lease.modify", units=3, configuration={"colour": "blue"})
        killed("site")
        lease = world.wait_joined("web", 3)
        assert (lease["end"], lease["configuration"]["colour"]) == (old, "blue")
        assert set(first) < set(world.joined(lease))
        tell("lease.extend", end=old + 1800 * SECOND, units=4)
        killed("guest")
        goes_on((2, 900), (4, 1800))
        assert last_claim() == (4, old + 1800 * SECOND)

        tell("lease.undo_extend")
        killed("guest")
        goes_on((2, 900))
        wait_until("the return", lambda: last_claim() if last_claim() != (2, old + 900 * SECOND) else None, WITHIN)
        tell("lease.undo_extend")
        killed("site")
        assert goes_on()["state"] == "active"
        wait_until("the return", lambda: last_claim() if last_claim() != (3, old) else None, WITHIN)
        assert world.lease("web")["end"] == world.query("site", "lease", lease=id_)["end"] == old
        assert len(world.joined(world.lease("web"))) == 3

        old = now() + 25 * SECOND
        wait_until("no return", lambda: world.query("guest", "returns"), WITHIN)
        tell("lease.modify", end=old)
        world.wait_joined("web", 3, end=old)
        tell("lease.extend", end=old + 900 * SECOND, units=1, victims=first)
        killed("broker")
        goes_on((1, 900))
        lease = world.wait_joined("web", 1, end=old + 900 * SECOND)
        assert not set(first) & set(world.joined(lease))
        assert world.query("site", "lease", lease=id_)["units"] == world.joined(lease)
        tell("lease.close")
        wait_until("the close", lambda: None if world.lease("web")["state"] == "closed" else world.lease("web"))


@pytest.mark.soak
def test_a_lease_is_changed_when_its_site_goes_on_by_the_extension_already(tmp_path: Path) -> None:
    """The ticket of an extension is redeemed as soon as it comes (``extend_lead`` is half an hour): the lease is
    modified and extended further all the same, with a SIGKILL of each daemon in between, and goes on as granted.
    """
    with quickstart(tmp_path, {r'extend_lead = "5s"': 'extend_lead = "30m"'}) as world:

        def killed(name: str) -> None:
            world.up[name].end(signal.SIGKILL)
            world.start(name)

        def tell(command: str, **arguments: Any) -> None:
            with world.client() as guest:
                guest.command(command, lease="web", **arguments)

        def redeemed(units: int, *ends: int) -> dict[str, Any]:
            """The lease, when it has that many units and goes on to these, which its site knows of the first."""

            def wrong() -> Any:
                lease, there = world.lease("web"), world.query("site", "lease", lease=id_)
                tickets = [one["term"][1] for one in (lease["renewal"], *lease["continuations"]) if one]
                found = (tickets, lease["pending"], len(world.joined(lease)), there["pending"], there["end"])
                return None if found == ([*ends], "extending_lease", units, "extending", ends[0]) else found

            wait_until(f"{units} units, and {ends}", wrong, WITHIN)
            return world.lease("web")

        start = now()
        with world.client() as guest:
            guest.command("lease.request", type="vm", units=2, term=[start, start + 900 * SECOND], name="web",
                          properties={"deferrable": "true"})  # fmt: skip
        lease = world.wait_joined("web", 2)
        id_, old, first = lease["id"], lease["end"], world.joined(lease)
        tell("lease.extend", end=old + 900 * SECOND)
        redeemed(2, old + 900 * SECOND)
        for name, units, colour in (("broker", 3, "red"), ("site", 4, "blue"), ("guest", 3, "green")):
            tell("lease.modify", units=units, configuration={"colour": colour})
            killed(name)
            lease = redeemed(units, old + 900 * SECOND)
            assert (lease["end"], lease["configuration"]["colour"]) == (old, colour)
            assert set(first) <= set(world.joined(lease)), "those that stay are not touched"
        for name, after in (("guest", 1800), ("broker", 2700)):
            tell("lease.extend", end=old + after * SECOND, units=1)
            killed(name)
            redeemed(3, old + 900 * SECOND, *(old + at * SECOND for at in (1800, 2700) if at <= after))
        tell("lease.modify", units=13)
        wait_until("a refusal", lambda: None if "13" in world.lease("web")["reason"] else world.lease("web"), WITHIN)
        redeemed(3, *(old + at * SECOND for at in (900, 1800, 2700)))
        for left in ((900, 1800), (900,)):
            tell("lease.undo_extend")
            redeemed(3, *(old + at * SECOND for at in left))
        tell("lease.undo_extend")
        killed("site")
        world.wait_joined("web", 3, renewal=None)

        wait_until("no return", lambda: world.query("guest", "returns"), WITHIN)
        old = now() + 45 * SECOND
        tell("lease.modify", end=old)
        world.wait_joined("web", 3, end=old)
        tell("lease.extend", end=old + 900 * SECOND, units=2)
        redeemed(3, old + 900 * SECOND)
        tell("lease.modify", units=4, configuration={"colour": "grey"})
        killed("guest")
        killed("site")
        wait_until("the new term", lambda: None if world.lease("web")["end"] > old else world.lease("web"), 2 * WITHIN)
        lease = world.wait_joined("web", 2, end=old + 900 * SECOND)
        assert lease["configuration"]["colour"] == "grey"
        assert world.query("site", "lease", lease=id_)["units"] == world.joined(lease)
        tell("lease.close")
        wait_until("the close", lambda: None if world.lease("web")["state"] == "closed" else world.lease("web"))


def test_what_can_not_be_had_is_refused_in_words(tmp_path: Path) -> None:
    """Too many units, an unknown type, a term in the past: each gets its own reason, and the daemons live on."""
    with quickstart(tmp_path) as world, world.client() as guest:
        start = now()
        term = [start, start + 60 * SECOND]
        with pytest.raises(RequestError, match="units: found 0"):
            guest.command("lease.request", type="vm", units=0, term=term)
        with pytest.raises(RequestError, match="past"):
            guest.command("lease.request", type="vm", units=1, term=[1, 2])
        wishes = {"many": ("vm", 13, "no site here has more than 12"), "gpus": ("gpu", 1, "broker has vm")}
        for name, (type_, units, _) in wishes.items():
            guest.command("lease.request", type=type_, units=units, term=term, name=name)
        for name, (_, _, reason) in wishes.items():
            wait_until("a refusal", lambda name=name: None if world.lease(name)["state"] == "failed" else name)
            assert reason in world.lease(name)["reason"]
        statuses = [world.query(name, "status")["shell"] for name in ("site", "broker", "guest")]
        assert [(status["state"], status["bugs"]) for status in statuses] == [("running", 0)] * 3


def test_driver_failures_are_the_units_reasons(tmp_path: Path) -> None:
    """Where setups fail for good the lease says so, with what the driver said; the site goes on."""
    with quickstart(tmp_path, {r"retries = \d+": "retries = 0"}) as world, world.client() as guest:
        blocked = world.state / "site-units" / "units" / "vm-0"
        blocked.parent.mkdir(parents=True, exist_ok=True)
        blocked.write_text("a file in the place of the unit's directory")
        start = now()
        guest.command("lease.request", type="vm", units=2, term=[start, start + 600 * SECOND], name="web",
                      properties={"deferrable": "true"})  # fmt: skip
        lease = world.wait_joined("web", 2)
        assert "vm-0" not in world.joined(lease), "another unit took the place of the one that failed"
        units = {unit["unit"]: unit for unit in world.query("site", "units")}
        assert units["vm-0"]["failures"] >= 1 or units["vm-0"]["state"] == "out"
        with world.client("site") as site:
            assert any("failed" in line for line in site.unit_log("vm-0"))
        guest.command("lease.close", lease="web")
        wait_until("processes", lambda: unit_processes(world.state))
