"""docs/coallocation.md: its files are right, its commands can be typed as they stand, it leaves out no key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from cli_daemons import running

from leasekit.actors.settings import BrokerSettings
from leasekit.cli import main
from leasekit.cli.topology import read_topology_file
from leasekit.core.topology import Frames, PlanOptions, RequestedLink, RequestedSite, TopologyRequest
from leasekit.drivers.link.settings import End, LinkSettings, LinkTable
from leasekit.policies.broker.coallocate import CoallocationSettings
from leasekit.policies.broker.fcfs import FcfsSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "coallocation.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.xdist_group("docs_examples")


def _blocks(language: str, section: str) -> list[str]:
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [body for found, body in BLOCK.findall(text) if found == language]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with deploy/ and the page's topology file."""
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (text,) = _blocks("toml", "Lease a topology")
    (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    return tmp_path


def _environment(folder: Path) -> dict[str, str]:
    known = {key: value for key, value in os.environ.items() if key != "LEASEKIT_FILE"}
    return {**known, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LEASEKIT_STATE": str(folder / "s")}


def test_the_topology_is_leased_as_the_page_says(folder: Path) -> None:
    """What the reader types succeeds: the plan leads through the exchange point, all of its leases are there."""
    (block,) = _blocks("console", "Lease a topology")
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    environment = _environment(folder)
    deploy = ROOT / "deploy" / "coallocation" / "coallocation.toml"
    with running(deploy, environment, folder / "s"):
        script = "\n".join(["set -euo pipefail", *lines])
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    for name in ("store", "render", "frames.0.0", "frames.0.1"):
        assert re.search(rf"^\S+ +{re.escape(name)} .* joined ", done.stdout, re.MULTILINE), name
    assert "south-x1" in done.stdout
    assert "committed" in done.stdout


def test_the_offline_problem_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's problem has the answer that the page tells of: a plan, and a start at which a link is full."""
    (problem,) = _blocks("json", "Plan offline")
    file = tmp_path / "problem.json"
    file.write_text(problem)
    assert main.run(["plan", "coallocate", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["plans"]
    assert "link N0-X1 full 0-900" in [refused["reason"] for refused in answer["refused"]]


def test_every_key_is_told() -> None:
    """All keys of a topology file, of the mapper and of the broker's holds are on the page."""
    told = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", BLOCK.sub("", PAGE)))))
    for cls in (TopologyRequest, RequestedSite, RequestedLink, PlanOptions, Frames):
        names = {field.name.rstrip("_") for field in attrs.fields(cls)} - {"sites", "links"}
        assert names - told == set(), cls.__name__
    own = {field.name for field in attrs.fields(CoallocationSettings)} - {f.name for f in attrs.fields(FcfsSettings)}
    assert own - told - {"nodes", "milp_nodes"} == set()
    holding = {"hold_for", "holds_max", "planners"}
    assert holding <= {field.name for field in attrs.fields(BrokerSettings)}
    assert holding <= told


def test_every_setting_of_the_link_driver_is_told() -> None:
    """docs/drivers.md has them all."""
    text = (ROOT / "docs" / "drivers.md").read_text().partition("\n## link\n")[2].partition("\n## ")[0]
    told = set(re.findall(r"[a-z_]+", text))
    names = {field.name for cls in (LinkSettings, LinkTable, End) for field in attrs.fields(cls)}
    assert names - told == set()


def test_the_topology_file_is_read(folder: Path) -> None:
    """It says what the comments beside its keys say."""
    found = read_topology_file(folder / "render.toml", 1_800_000_000_000)
    assert (found.sites[0].pin, found.sites[1].units, found.links[0].max_latency) == ("south", 6, 5)
