"""Delegations change while daemons run: `delegate`, `reclaim`, `release`, the inventory, and a store that is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_daemons import Cli, running, site_and_broker

from leasekit.config.load import load
from leasekit.runtime.client import ControlClient

pytestmark = pytest.mark.xdist_group("cli_daemons")

DEPLOY = site_and_broker("""
inventory = [{ type = "vm", units = 4 }]
delegation = [{ broker = "broker", type = "vm" }]
""")
LINE = "site/vm@broker"


class Live(Cli):
    """The command line on a deploy file, and what its daemons say."""

    def until(self, actor: str, query: str, ready: Callable[[Any], bool]) -> None:
        """Wait for transitions of an actor until what it answers to a query is so."""
        control = load(self.file).actors[actor].control
        with ControlClient(control) as watcher, ControlClient(control) as client:
            events = watcher.watch("")
            while not ready(client.query(query)):
                next(events)

    def settled(self, units: int) -> None:
        """Wait until the broker holds so many units now, and the site knows."""
        self.until("broker", "sources", lambda rows: [r["units"] for r in rows if r["state"] == "held"] == [units])
        self.until("site", "delegations", lambda rows: [r["units"] for r in rows if r["state"] == "held"] == [units])

    def rewrite(self, old: str, new: str) -> None:
        """Change the deploy file."""
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def notes(self) -> str:
        """What `status` says beside its table."""
        return self("status")[1]


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Live:
    """A deploy file whose daemons are not running yet."""
    file = tmp_path / "leasekit.toml"
    file.write_text(DEPLOY)
    return Live(file, capfd)


def test_again_fewer_more_and_until_when(cli: Live) -> None:
    """Each reaches the broker at once, stands over a restart, and `status` says where the file differs."""
    with running(cli.file):
        cli.settled(4)
        assert cli.notes() == ""
        cli("lease request vm 3 --for 1h --name web --wait")
        assert "run out, those that have not are off" in cli(f"site reclaim {LINE}")[1]
        cli.until("site", "delegations", lambda rows: rows[0]["state"] == "reclaimed")
        assert f"{LINE}: vm of broker is reclaimed (the deploy file says 4)" in cli.notes()
        _, err = cli("site delegate broker vm")
        assert "4 vm are offered to broker" in err
        cli.settled(4)
        assert cli.notes() == ""
        (row,) = [row for row in cli.json("broker sources") if row["state"] == "held"]
        assert row["free_now"] == 1, "the lease of before goes on"
        assert cli.json("site delegate broker vm 2")["difference"]["wanted"] == 2
        cli.settled(2)
        assert "broker has 2 vm, and leases go on to use more until" in cli.notes()
        assert [r["free_now"] for r in cli.json("broker sources") if r["state"] == "held"] == [-1]
        assert cli.json("lease show web")["state"] == "active"
        cli("lease close web --wait")
    with running(cli.file):
        cli.settled(2)
        cli("site delegate broker vm 3 --until +3h")
        cli.settled(3)
        assert "broker has 3 vm until" in cli.notes()
        assert "by `delegate`, the deploy file says 4" in cli.notes()
        (difference,) = cli.json("status site")[0]["delegations"]
        assert (difference["code"], difference["held"], difference["file"]) == ("overridden", 3, 4)
        assert difference["until"] in [row["grants_until"] for row in cli.json("broker sources")]
        cli("lease request vm 3 --for 2h --name web --wait")
        _, err = cli("site delegate broker vm 9", 1)
        assert "site has 4 to give" in err
        _, err = cli("site delegate nobody vm", 1)
        assert "the brokers that site knows are broker" in err


def test_inventory_that_grows_and_shrinks(cli: Live) -> None:
    """What the deploy file has more or less of reaches the broker when the daemons have read it; a lease goes on."""
    with running(cli.file):
        cli.settled(4)
        cli("lease request vm 3 --for 1h --name web --wait")
    cli.rewrite("units = 4", "units = 7")
    with running(cli.file):
        cli.settled(7)
        assert cli.notes() == ""
        cli("lease modify web --units 6 --wait")
        assert len(cli.json("lease show web")["units"]) == 6
    cli.rewrite("units = 7", "units = 2")
    with running(cli.file):
        cli.settled(2)
        assert "broker has 2 vm, and leases go on to use more" in cli.notes()
        assert len(cli.json("lease show web")["units"]) == 6
        cli("lease close web --wait")
        out = cli.json("site units --in out")
        assert {unit["reason"] for unit in out} == {"no longer in the inventory"}
        assert len(out) == 5
        cli("lease request vm 2 --for 1h --name small --wait")


def test_a_site_that_lost_its_store(cli: Live) -> None:
    """It takes up the claim that its broker shows: leases are granted at once, and it can be taken back."""
    with running(cli.file):
        cli.settled(4)
    for part in (cli.file.parent / "run").glob("**/site*.db*"):
        part.unlink()
    with running(cli.file):
        cli.settled(4)
        assert cli.notes() == ""
        cli("lease request vm 4 --for 1h --name web --wait")
        cli("lease close web --wait")
        cli(f"site reclaim {LINE}")
        cli.until("broker", "sources", lambda rows: rows[0]["state"] == "reclaimed")


def test_a_broker_lets_go(cli: Live) -> None:
    """Nothing more is granted of it; a site that is there hears of it, and offers anew."""
    with running(cli.file):
        cli.settled(4)
        cli("lease request vm 3 --for 1h --name web --wait")
        _, err = cli(f"broker release {LINE}")
        assert err == f"{LINE}: nothing more is granted of it; leases that have begun run out, others are off\n"
        cli.settled(4)
        states = {row["source"]: (row["state"], row["free_now"]) for row in cli.json("broker sources")}
        assert states == {LINE: ("reclaimed", 0), f"{LINE}#2": ("held", 1)}
        assert cli.json("lease show web")["state"] == "active"
        assert f"held are {LINE}, {LINE}#2" in cli("broker release other", 1)[1]
