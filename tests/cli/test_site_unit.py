"""`leasekit site unit` against real daemons: hosts that come, change and go, with machines on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_daemons import Cli, running, site_and_broker
from system.system_waits import wait_until

pytestmark = pytest.mark.xdist_group("cli_daemons")

TEXT = site_and_broker("""
delegation = [{ broker = "broker", type = "node" }]
[[actor.site.inventory]]
type = "node"
names = ["a", "b"]
capacity = { cpu = 4, memory = "8GiB" }
""")


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    file = tmp_path / "leasekit.toml"
    file.write_text(TEXT)
    with running(file):
        yield Cli(file, capfd)


def differs(cli: Cli) -> dict[str, str]:
    """How each host differs from the file."""
    return {row["unit"]: row["differs"] for row in cli.json("site unit list")}


def machines(cli: Cli) -> dict[str, str]:
    """The machines that are up, and where."""
    return {unit["unit"]: unit["host"] for unit in cli.json("site units --in active") if unit["host"]}


def test_hosts_come_change_and_go(cli: Cli) -> None:
    """Each command says what it has done; a host that is removed with --move is gone when its machines have moved."""
    cli("lease request node 3 --for 1h --needs cpu=1,memory=2GiB --name web --wait")
    (host,) = set(machines(cli).values())
    said = cli("site host add c --type node --capacity cpu=8,memory=16GiB --attribute rack=c")[1]
    assert said == "unit c of type node is free: cpu=8,memory=16GiB\n"
    wait_until("the broker", lambda: "" if cli.json("status site")[0]["delegations"] == [] else "an offer")
    cli("lease request node 1 --for 1h --needs cpu=8 --name large --wait")
    assert set(machines(cli).values()) == {host, "c"}
    small = cli(f"site unit set {host} --capacity cpu=4,memory=4GiB", 1)[1]
    assert f"host {host}: found cpu=4,memory=4GiB, its machines take up to memory=6GiB, now or later" in small
    assert cli(f"site unit set {host} --least-yield 0.5")[1] == f"unit {host} is free: cpu=4,memory=8GiB\n"
    cli(f"site host remove {host} --move")
    wait_until("the moves", lambda: machines(cli) if host in machines(cli).values() else "")
    assert differs(cli) == {"a": "", "b": "", "c": "added"} | {host: "removed"}
    assert {unit["unit"]: unit["state"] for unit in cli.json("site units")}[host] == "out"
    assert cli(f"site unit reset {host}")[1] == f"unit {host} is as the file says, free\n"
    assert differs(cli) == {"a": "", "b": "", "c": "added"}
    assert "unit: found 'd', which is not in the inventory" in cli("site unit remove d", 1)[1]


def test_a_machine_is_moved_by_command(cli: Cli) -> None:
    """To the host that is named; one that is no machine is not."""
    cli("lease request node 1 --for 1h --needs cpu=1,memory=2GiB --name web --wait")
    ((machine, host),) = machines(cli).items()
    other = "b" if host == "a" else "a"
    assert f"moves to {other}" in cli(f"site move {machine} --host {other}")[1]
    wait_until("the move", lambda: "" if machines(cli) == {machine: other} else machines(cli))
    assert "has no room for it, or is not of its class" in cli(f"site move {machine} --host {other}", 1)[1]
    (shown,) = [line.split() for line in cli("site units --in active")[0].splitlines()[1:]]
    assert (shown[0], shown[4], shown[5]) == (machine, other, "1")
