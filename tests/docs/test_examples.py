"""The examples in README and docs run as they stand.

A code block that begins with ``# NAME`` is a file of that name; the lines of a ``console`` block that begin with ``$``
are what a reader types, in a folder with the files of the page and ``deploy/``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from cli_daemons import running

from leasekit.cli import main
from leasekit.core.mappers import BrokerCycle, Defer, EndedLease, Grant, PendingRequest, Source
from leasekit.core.time import DAY, HOUR, MINUTE, Term
from leasekit.core.timetable import Timetable
from leasekit.drivers.commands import BLAMES, EXIT_TEMPORARY
from leasekit.drivers.script import ScriptSettings
from leasekit.policies.registry import make_mapper
from leasekit.runtime.client import ControlClient

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
QUICKSTART = "deploy/quickstart/all.toml"
NAMED = re.compile(r"# ([\w-]+\.\w+)\n")

pytestmark = pytest.mark.xdist_group("docs_examples")


def _blocks(page: str, language: str, section: str = "") -> list[str]:
    text = (ROOT / page).read_text()
    if section:
        _, _, text = text.partition(f"\n## {section}")
        text = text.partition("\n## ")[0]
    return [body for found, body in BLOCK.findall(text) if found == language]


def _files(page: str, folder: Path) -> list[Path]:
    made = []
    for body in [*_blocks(page, "python"), *_blocks(page, "toml")]:
        match = NAMED.match(body)
        assert match is not None, f"{page}: a block without a name: {body[:40]!r}"
        (folder / match[1]).write_text(body)
        made.append(folder / match[1])
    return made


def _typed(page: str, section: str) -> list[str]:
    (block,) = _blocks(page, "console", section)
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture
def port() -> str:
    """A port that is free: another test, or the reader's own daemons, may listen at the one that a page names."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture
def folder(tmp_path: Path, port: str) -> Path:
    """A folder with deploy/ in it, as a reader has it, whose quickstart has its gateway at ``port``."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    quickstart = tmp_path / QUICKSTART
    quickstart.write_text(quickstart.read_text().replace("8770", port))
    return tmp_path


def _environment(folder: Path) -> dict[str, str]:
    known = {key: value for key, value in os.environ.items() if key != "LEASEKIT_FILE"}
    return {**known, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LEASEKIT_STATE": str(folder / "s")}


def _type(lines: list[str], folder: Path) -> str:
    """What the lines print, all of which must succeed."""
    script = "\n".join(["set -euo pipefail", *lines])
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _until_units_are_free(state: Path) -> None:
    """The site has torn down what was leased: its processes would live on. It is asked again when its log grows."""
    with ControlClient(state / "site.control.sock") as site, ControlClient(state / "site.control.sock") as watching:
        events = watching.watch("")
        while any(unit["lease"] for unit in site.query("units")):
            next(events)


def test_operator(folder: Path) -> None:
    """README: what an operator types leases units, extends, shows, closes, and stops the daemons."""
    first, *rest = _typed("README.md", "Operate")
    command = first.removesuffix(" &").split()
    assert command[:2] == ["leasekit", "up"]
    with running(folder / command[2], _environment(folder), folder / "s") as daemons:
        printed = _type(rest, folder)
        assert daemons.wait(timeout=30) == 0
    assert "joined" in printed
    assert "12 units, at most" in printed


def test_the_http_api(folder: Path, port: str) -> None:
    """docs/api.md: what is typed by curl, by a program and by the command line leases, looks, tries and closes."""
    for path in _files("docs/api.md", folder):
        path.write_text(path.read_text().replace("8770", port))
    lines = [line.replace("8770", port) for line in _typed("docs/api.md", "Ten examples")]
    with running(folder / QUICKSTART, _environment(folder), folder / "s"):
        printed = _type([f"{line}; echo" for line in lines], folder)
        _until_units_are_free(folder / "s")
    answers = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert [answer["status"] for answer in answers if "status" in answer] == ["refused"]
    assert [answer["name"] for answer in answers if "id" in answer] == ["web"] * 4
    assert re.search(r"^vm-\d+,vm-\d+$", printed, re.MULTILINE)
    assert "127.0.0.1 2" in printed


def test_watching(folder: Path, port: str) -> None:
    """docs/observability.md: daemons tell numbers that promtool takes, and the rules hold."""
    (file,) = _files("docs/observability.md", folder)
    file.write_text(file.read_text().replace("9464", port))
    with running(file, _environment(folder), folder / "s"):
        printed = _type([line.replace("9464", port) for line in _typed("docs/observability.md", "Try it")], folder)
    assert 'leasekit_units{actor="site",role="authority",state="active",type="vm"} 3.0' in printed
    assert "SUCCESS" in _type(_typed("docs/observability.md", "Prometheus and Grafana"), folder)


@pytest.mark.soak  # what is typed there is what tests/gateway/test_blazar_api.py types
def test_blazar(folder: Path, port: str) -> None:
    """docs/blazar.md: OpenStack's clients create, show, change and delete leases and hosts."""
    file = folder / "blazar.toml"
    file.write_text((ROOT / "deploy" / "blazar" / "blazar.toml").read_text().replace("8780", port))
    lines = [line.replace("8780", port) for line in _typed("docs/blazar.md", "By OpenStack's clients")]
    with running(file, _environment(folder), folder / "s"):
        printed = _type(lines, folder)
    assert re.findall(r"^Deleted (\w+): (\S+)$", printed, re.MULTILINE) == [
        ("host", "compute-5"), ("lease", "machines"), ("lease", "premier"),
    ]  # fmt: skip
    assert re.search(r"\| 4 +\| compute-4 ", printed)


def test_leases_in_ci(folder: Path, port: str) -> None:
    """docs/ci.md: a suite has its leases, and so has a job."""
    _files("docs/ci.md", folder)
    lines = [*_typed("docs/ci.md", "pytest"), *_typed("docs/ci.md", "A job")]
    with running(folder / QUICKSTART, _environment(folder), folder / "s"):
        printed = _type([f"export LEASEKIT_URL=http://127.0.0.1:{port}", *lines], folder)
        _until_units_are_free(folder / "s")
    assert "4 passed" in printed
    assert re.search(r"^vm-\d+,vm-\d+$", printed, re.MULTILINE)


def test_researcher(folder: Path) -> None:
    """README: a mapper in a file takes the place of a built-in one in an emulation, here of three days, not a month."""
    _files("README.md", folder)
    _, made, emulated = _typed("README.md", "Research")
    printed = _type([made, """sed -i 's/^horizon = "30d"/horizon = "3d"/' polite.toml""", emulated], folder)
    assert "web" in printed
    assert list((folder / "polite").glob("*.png"))


@pytest.mark.parametrize("sizes", [(10, 12, 16), pytest.param((6, 8, 10, 12, 16, 20), marks=pytest.mark.soak)], ids=len)
def test_planner(folder: Path, sizes: Sequence[int]) -> None:
    """README: a deployment is emulated in several sizes, more units leave less demand unserved, and the figures in the
    page, with the knee, are those of the run; `make test` has the sizes around the knee.
    """
    _files("README.md", folder)
    lab, all_ = folder / "lab.toml", "[6, 8, 10, 12, 16, 20]"
    assert all_ in lab.read_text()
    lab.write_text(lab.read_text().replace(all_, str(list(sizes))))
    lines = [f"{line} --json" for line in _typed("README.md", "Plan")]
    (bought,) = json.loads(_type(lines, folder))["purchases"]
    unserved = [one["unserved"] for one in bought["rows"]]
    assert unserved == sorted(unserved, reverse=True) and unserved[0] > unserved[-1]
    assert (folder / "lab" / "purchase.png").is_file()
    rows = [
        f"| {one['units']:g} | {one['unserved']:.1%} | {one['used']:.1%} | {one['idle']:.1%} "
        f"| {one['refused']} of {one['asked']} | {'knee ' if one['units'] == bought['knee'] else ''}|"
        for one in bought["rows"]
    ]
    assert "\n".join(rows) in (ROOT / "README.md").read_text()


def test_mapper_of_ones_own(folder: Path) -> None:
    """docs/mappers.md: the mapper leases what it says, on each day from opening to closing time."""
    _files("docs/mappers.md", folder)
    (summary,) = _json_documents(_type(_typed("docs/mappers.md", "One of your own"), folder))
    office = summary["runs"][0]["guests"]["office"]
    assert office["peak_leased"] == 12
    assert office["mean_leased"] == pytest.approx(12 * 9 / 24)


def test_mappers_with_an_order_of_their_own(folder: Path) -> None:
    """docs/mappers.md: the lottery and the auction are compared. More tickets, or a higher offer, is first; before the
    next round nobody is.
    """
    _files("docs/mappers.md", folder)
    *_, workload, compared = _typed("docs/mappers.md", "An order of your own")
    assert "--jobs 300 " in workload
    workload = workload.replace("--jobs 300 ", "--jobs 100 ")
    printed = _type([workload, compared], folder)
    assert {"fcfs", "lottery.py", "auction.py"} <= {line.split()[0] for line in printed.splitlines() if line.split()}

    def granted(target: str, at: int, requests: Sequence[PendingRequest], settings: Mapping[str, Any]) -> list[str]:
        table = Timetable(1)
        source = Source("d", "site", "vm", 1, Term(0, DAY), {}, table)
        cycle = BrokerCycle(at, requests, (), lambda _: (source,))
        mapper = make_mapper(str(folder / target), "broker", settings, "mapper", {})
        return [one.lease for one in mapper.allocate(cycle) if isinstance(one, Grant)]

    def request(lease: str, holder: str, **more: Any) -> PendingRequest:
        return PendingRequest(
            lease, holder, "new", "vm", 1, 1, Term(HOUR, 2 * HOUR), HOUR, DAY, 0, "", frozenset(), "", 0, "", 0, False,
            {}, **more,
        )  # fmt: skip

    first = [
        granted("lottery.py", 0, [request(f"a{n}", "a"), request(f"b{n}", "b")], {"tickets": {"a": 3}})[0][0]
        for n in range(400)
    ]
    assert 0.68 < first.count("a") / 400 < 0.82
    bids = [request("low", "a"), request("high", "b")]
    bids[1] = bids[1]._replace(properties={"offer": "7"})
    assert granted("auction.py", 0, bids, {"every": "10m"}) == []
    assert granted("auction.py", 600_000, bids, {"every": "10m"})[0] == "high"


def test_a_mapper_that_learns(folder: Path) -> None:
    """docs/mappers.md: it has people wait for less long than by first come, first served. It predicts by the last two
    leases that a holder has given back; who is unknown runs for its term. That it passes the check is another test's.
    """
    _files("docs/mappers.md", folder)
    checked, *compared = _typed("docs/mappers.md", "A mapper that learns")
    assert checked.startswith("leasekit mapper check learning.py")
    printed = _type(compared, folder)
    waits = {line.split()[0]: line.split()[3] for line in printed.splitlines() if len(line.split()) > 9}
    assert float(waits["learning.py"].replace(",", "")) < float(waits["fcfs"].replace(",", ""))

    mapper: Any = make_mapper(str(folder / "learning.py"), "broker", {}, "mapper", {})
    table = Timetable(1)
    source = Source("d", "site", "vm", 1, Term(0, DAY), {}, table)
    ended = [
        EndedLease("", "a", "vm", "site", 1, 0, HOUR, ran * MINUTE, why, {})
        for ran, why in ((50, "given_back"), (4, "given_back"), (6, "given_back"), (60, "term_over"))
    ]
    requests = [
        PendingRequest(
            holder, holder, "new", "vm", 1, 1, Term(0, HOUR), DAY, DAY, 0, "", frozenset(), "", 0, "", 0, False, {}
        )
        for holder in ("b", "a")
    ]
    cycle = BrokerCycle(0, requests, (), lambda _: (source,), ended=ended)
    decided = [one[0] for one in mapper.allocate(cycle) if isinstance(one, Grant | Defer)]
    assert decided == ["a", "b"] and mapper.predicted(requests[1]) == 5 * MINUTE


def _json_documents(text: str) -> list[Mapping[str, Any]]:
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text.rstrip()):
        document, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
        found.append(document)
    return found


def test_script_driver(folder: Path) -> None:
    """docs/drivers.md: a site whose units are set up by shell commands gives them the properties that these print, has
    them modified, replaces one that its probe finds down, and refuses a lease by exit status 65.
    """
    (file,) = _files("docs/drivers.md", folder)

    def typed(line: str) -> Any:
        return json.loads(_type([f"leasekit {line} --json --file {file.name}"], folder))

    def greetings() -> set[str]:
        return {unit["properties"]["greeting"] for unit in typed("lease show g")["units"]}

    with running(file, _environment(folder), folder / "s"):
        lease = typed("lease request greeter 1 --for 1h --name g --wait")
        (unit,) = lease["units"]
        assert unit["properties"]["greeting"] == f"hello from {unit['unit']}"
        typed("lease modify g --config mood=merry --wait")
        assert greetings() == {"hello, merry"}
        assert typed(f"site operate {unit['unit']} wave") == {"waves": unit["unit"]}
        assert typed(f"site probe {unit['unit']}")["state"] == "up"
        with ControlClient(folder / "s" / "guest.control.sock") as watcher:
            events = watcher.watch(lease["id"], patience=30)
            (folder / "s" / f"greeter-{lease['id']}-{unit['unit']}").unlink()
            while {one["unit"] for one in typed("lease show g")["units"]} != {"greeter-0", "greeter-1"} - {
                unit["unit"]
            }:
                next(events)
        refused = f"leasekit lease request greeter 1 --for 1h --name sad --config mood=grumpy --wait --file {file.name}"
        assert "greeters are never grumpy" in _type([f"! {refused} 2>&1"], folder)
        logged = _type([f"leasekit lease logs g --file {file.name}"], folder)
        assert f"for lease {lease['id']}" in logged
        _type([f"leasekit lease close g --wait --file {file.name}"], folder)
    assert list((folder / "s").glob(f"greeter-{lease['id']}-*")) == []


def test_every_key_of_the_script_driver_is_explained() -> None:
    """docs/drivers.md: each key of the script driver, and each exit status that has a meaning, has a row."""
    section = (ROOT / "docs" / "drivers.md").read_text().partition("\n## script\n")[2].partition("\n## ")[0]
    firsts = " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| "))
    keys = [field.name for field in attrs.fields(ScriptSettings)]
    assert [key for key in keys if f"`{key}`" not in firsts and f"`{key}.NAME`" not in firsts] == []
    assert [code for code in (0, *BLAMES, EXIT_TEMPORARY) if f" {code} " not in firsts] == []


def test_machines_that_are_hypervisors(folder: Path) -> None:
    """docs/baremetal.md: units are in service while a leased machine is their host, and the windows say so."""
    (file,) = _files("docs/baremetal.md", folder)
    lines = _typed("docs/baremetal.md", "Hypervisors")
    with running(file, _environment(folder), folder / "s"):
        printed = _type([f"{line} 2>&1" if line.startswith("leasekit") else line for line in lines], folder)
    assert "2 hosts changed: first, second" in printed
    assert "lease-7/node-1 is host first until " in printed
    assert printed.count("host first is not leased") == printed.count("host second is not leased") == 1
    assert "lease-7/node-1 is no host any more" in printed


@pytest.mark.parametrize(
    "page", ["README.md", "docs/mappers.md", "docs/drivers.md", "docs/xen.md", "docs/baremetal.md"]
)
def test_deploy_files_have_no_fault(page: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every deploy file in a page passes `leasekit config check`."""
    for file in _files(page, folder):
        if file.suffix == ".toml":
            assert main.run(["config", "check", str(file)]) == 0, capfd.readouterr().out
