"""`leasekit lease request --topology` and what goes with it, against real daemons of deploy/coallocation."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_daemons import Cli

from leasekit.cli import main
from leasekit.config.instants import shown
from leasekit.config.load import load
from leasekit.runtime.client import ControlClient

pytestmark = pytest.mark.xdist_group("cli_topology")

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "coallocation"
DEPLOY = (FOLDER / "coallocation.toml").read_text()

REQUEST: dict[str, Any] = {
    "duration": "10m",
    "sites": [{"id": "left", "type": "vm", "units": 2}, {"id": "right", "type": "vm", "units": 2}],
    "links": [{"id": "between", "from": "left", "to": "right", "bw": 30}],
}


class Topologies(Cli):
    """The command line, with topologies to ask for in a folder."""

    def __init__(self, file: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        super().__init__(file, capfd)
        self.folder = folder

    def topology(self, **changes: Any) -> str:
        """The command line that asks for a topology."""
        file = self.folder / "topology.json"
        file.write_text(json.dumps(REQUEST | changes))
        return f"lease request --topology {file}"


@pytest.fixture
def cli(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Topologies]:
    """All topologies are closed afterwards."""
    made = Topologies(file, tmp_path, capfd)
    yield made
    capfd.readouterr()
    for each in made.json("lease topologies"):
        made(f"lease close-topology {each['topology']} --wait")


def test_a_dry_run_shows_a_plan_and_holds_nothing(cli: Topologies) -> None:
    """30 Mbit/s is more than the direct link has: the path leads through the exchange point. Nothing is leased."""
    out, _ = cli(cli.topology() + " --dry-run")
    lines = [line.split() for line in out.splitlines()]
    assert ["between", "1/2", "network", "north-x1", "6", "broker"] in lines
    assert ["between", "2/2", "network", "south-x1", "6", "broker"] in lines
    assert {line[1] for line in lines if line[0] in ("left", "right")} == {"north", "south"}
    plan = cli.json(cli.topology() + " --dry-run")
    assert (plan["status"], plan["expires"]) == ("planned", None)
    assert cli.json("lease list") == []
    free = {link["link"]: link["free_now_mbps"] for link in cli.json("broker topology")["links"]}
    assert free == {"north-x1": 200, "south-x1": 200, "north-south": 20}


def test_a_topology_is_leased_listed_and_closed(cli: Topologies) -> None:
    """All leases come into force over one term, are shown together, and end together."""
    out, err = cli(cli.topology() + " --wait")
    assert "4 of 4 leases active" in err
    assert out.count("active") == 4
    (row,) = cli.json("lease topologies")
    assert row["state"] == "committed"
    found = cli.json(f"lease topology {row['topology']}")
    leases = {lease["id"]: lease for lease in cli.json("lease list")}
    assert {part["lease"] for part in found["parts"]} == set(leases)
    assert {lease["end"] for lease in leases.values()} == {found["term"][1]}
    assert {lease["group"] for lease in leases.values()} == {row["topology"]}
    listed, _ = cli("lease list")
    assert listed.count(row["topology"]) == 4
    assert row["topology"] not in cli("lease list --actor north")[0]
    out, _ = cli(f"lease topology {row['topology']}")
    assert all(lease in out for lease in leases)
    links = {link["link"]: link["free_now_mbps"] for link in cli.json("broker topology")["links"]}
    assert links == {"north-x1": 170, "south-x1": 170, "north-south": 20}
    cli(f"lease close-topology {row['topology']} --reason enough --wait")
    assert cli.json("lease list") == []
    (closed,) = [each for each in cli.json("lease topologies --all") if each["topology"] == row["topology"]]
    assert closed["state"] == "closed"


def test_a_backup_path_is_shown_as_one(cli: Topologies) -> None:
    """A link with a backup has two paths that share no link."""
    links = [{"id": "safe", "from": "left", "to": "right", "bw": 20, "backup": True}]
    out, _ = cli(cli.topology(links=links) + " --dry-run")
    routes = [line.split()[1:3] for line in out.splitlines() if line.startswith("safe")]
    shown = sorted(" ".join(route).removesuffix(" network") for route in routes)
    assert shown in (["1/1", "backup 1/2", "backup 2/2"], ["1/2", "2/2", "backup 1/1"])


REFUSALS = [
    ({"sites": [{**REQUEST["sites"][0], "pin": "east"}, REQUEST["sites"][1]]}, "east"),
    (
        {
            "sites": [*REQUEST["sites"], {"id": "third", "type": "vm", "units": 1}],
            "links": [*REQUEST["links"], {"from": "third", "to": "left", "bw": 1}],
        },
        "3",
    ),
    ({"links": [{"id": "between", "from": "left", "to": "right", "bw": 400}]}, "200"),
    ({"sites": [{**REQUEST["sites"][0], "units": 17}, REQUEST["sites"][1]]}, "17"),
    ({"links": [{"id": "between", "from": "left", "to": "right", "bw": 30, "max_latency": 3}]}, "latency"),
]


@pytest.mark.parametrize(("change", "words"), REFUSALS, ids=["site", "sites", "bandwidth", "units", "latency"])
def test_a_refusal_says_why(cli: Topologies, change: dict[str, Any], words: str) -> None:
    """An unknown site, more sites than there are, more bandwidth, more units, too short a path: one line says what,
    in a dry run and for real.
    """
    for more in (" --dry-run", " --tries 1"):
        _, err = cli(cli.topology(**change) + more, main.EXIT_ERROR)
        (line,) = [line for line in err.splitlines() if line.startswith("leasekit: ")]
        assert words in line.partition(": ")[2], line
    assert cli.json("lease list") == []


def test_a_window_finds_the_first_start_and_a_refusal_names_it(cli: Topologies) -> None:
    """While 150 of 200 Mbit/s are leased, as much again fits when they are free again: that is the plan where the
    window is long enough, and is said where it isn't, as a date.
    """
    links = [{"id": "wide", "from": "left", "to": "right", "bw": 150}]
    first = cli.json(cli.topology(links=links))
    later = cli.json(cli.topology(links=links, est="+1m", lst="+1h") + " --dry-run")
    assert later["term"][0] == first["term"][1]
    _, err = cli(cli.topology(links=links) + " --dry-run", main.EXIT_ERROR)
    assert re.search(r"link \S+ has 50 free .* 150 wanted", err)
    assert shown(first["term"][1]) in err
    assert str(first["term"][1]) not in err


def test_the_network_as_text_and_as_a_picture(cli: Topologies) -> None:
    """What the broker knows of sites, exchange points and links; a picture whose name ends otherwise is refused."""
    out, _ = cli("broker topology")
    for words in (["north", "vm", "16"], ["X1"], ["north-x1", "north", "X1", "200"]):
        assert any(line.split()[: len(words)] == words for line in out.splitlines()), words
    picture = cli.folder / "net.svg"
    _, err = cli(f"broker topology --out {picture}")
    assert err == f"written to {picture}\n"
    assert "200 of 200 Mbit/s" in picture.read_text()
    _, err = cli("broker topology --out net.pdf", main.EXIT_USAGE)
    assert "expected a name that ends in .png or .svg" in err


def test_a_topology_that_is_not_there(cli: Topologies) -> None:
    """To show or close one that was never asked for is one line."""
    for line in ("lease topology nowhere", "lease close-topology nowhere"):
        _, err = cli(line, main.EXIT_ERROR)
        assert "nowhere" in err
        assert len(err.splitlines()) == 1


def test_a_lost_daemon_ends_the_wait(cli: Topologies) -> None:
    """Where no daemon answers it is said, with no traceback."""
    _, err = cli(cli.topology() + f" --control {cli.folder / 'none'}", main.EXIT_ERROR)
    assert "no daemon answers at" in err


def test_the_deploy_file_is_the_network_that_it_draws(file: Path) -> None:
    """The broker holds what the comment at the top of the file shows."""
    with ControlClient(load(file).actors["broker"].control) as client:
        types = {(each["site"], each["type"], each["units"]) for each in client.query("sources")}
    assert types == {
        ("north", "vm", 16),
        ("south", "vm", 8),
        ("network", "north-x1", 40),
        ("network", "south-x1", 40),
        ("network", "north-south", 4),
    }


def test_the_deploy_file_in_virtual_time(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In an emulated day topologies fill the smaller site at times, and never take more than there is of any type. How
    many were granted and refused is told, and is what the guest's log says.
    """
    assert main.run(["emulate", str(FOLDER / "coallocation.toml"), "--json", "--out", str(tmp_path)]) == 0
    (run,) = json.loads(capfd.readouterr().out)["runs"]
    types = {(name, kind): one for name, site in run["sites"].items() for kind, one in site["types"].items()}
    assert all(one["peak"] <= one["capacity"] for one in types.values())
    assert types["south", "vm"]["peak"] == 8
    assert types["network", "north-x1"]["peak"] >= 24
    assert run["sites"]["north"]["used"] > 0.2
    assert "usage" not in run["sites"]["network"], "links of different types are not added"
    guest = run["guests"]["guest"]
    assert "mean_leased" not in guest, "machines and bandwidth are not added"
    assert guest["types"].keys() == {"vm", "north-x1", "south-x1", "north-south"}
    with (tmp_path / "a_day_of_topologies-transitions.csv").open(newline="") as rows:
        events = Counter(row["event"] for row in csv.DictReader(rows) if "-topology-" in row["lease"])
    counts = guest["topologies"]
    assert (counts["asked"], counts["granted"]) == (events["plan"], events["commit"])
    assert (counts["refused"], counts["given_up"], counts["waiting"]) == (events["refuse"], 0, 0)
    assert counts["granted"] and counts["refused"]
    with (tmp_path / "a_day_of_topologies-series.csv").open(newline="") as rows:
        assert {"guest.leased.vm", "network.in_use.north-x1"} <= set(next(csv.reader(rows)))


def test_a_person_is_told_what_became_of_topologies(capfd: pytest.CaptureFixture[str]) -> None:
    """Asked for, granted and refused; and what was leased, by type."""
    assert main.run(["emulate", str(FOLDER / "coallocation.toml")]) == 0
    out = capfd.readouterr().out
    assert re.search(
        r"guest  topologies asked for  granted  refused  given up  waiting\n.* +\d+ +\d+ +\d+ +0 +0\n", out
    )
    assert re.search(r"run +guest +type +leased +peak\n.* vm +[\d.]+ +16\n", out)
