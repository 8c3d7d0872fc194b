"""Commands that need no daemon: keys, config check, down, emulate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leasekit.cli import main
from leasekit.config.keys import load_key

EMULATION = """
[deployment]
name = "tiny"
signatures = false
[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "node"
units = 4
driver = "none"
[[actor.site.delegation]]
broker = "broker"
type = "node"
units = 4
[actor.site.driver.none]
kind = "null"
latency = { setup = "1m" }
[actor.broker]
role = "broker"
mapper = { name = "fcfs" }
[actor.web]
role = "guest"
[actor.web.mapper]
name = "load_following"
type = "node"
term = "1h"
signal = { synthetic = {}, peak = 4 }
[emulation]
horizon = "6h"
seed = 1
[[emulation.plot]]
kind = "site_usage"
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEKIT_FILE", raising=False)
    return tmp_path


def test_new_key_is_shown_and_kept_secret(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A new key is in a file that only its owner may read; its public half is printed, its secret is not."""
    assert main.run(["keys", "new", "k/site.key", "k/web.key", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert [row["name"] for row in rows] == ["site", "web"]
    for row in rows:
        path = elsewhere / row["file"]
        assert path.stat().st_mode & 0o777 == 0o600
        assert load_key(path).public.hex() == row["public"]
        assert path.read_text().split()[1] not in json.dumps(rows)


def test_keys_are_shown_alike(capfd: pytest.CaptureFixture[str]) -> None:
    """Secret and public file of a key show the same public key."""
    assert main.run(["keys", "new", "site.key"]) == 0
    capfd.readouterr()
    assert main.run(["keys", "show", "site.key", "site.pub", "--json"]) == 0
    secret, public = json.loads(capfd.readouterr().out)
    assert secret["public"] == public["public"]


def test_no_key_is_overwritten(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A second key of the same name is refused, and the first stays."""
    assert main.run(["keys", "new", "site.key"]) == 0
    before = (elsewhere / "site.key").read_text()
    assert main.run(["keys", "new", "site.key"]) == 1
    assert "never overwritten" in capfd.readouterr().err
    assert (elsewhere / "site.key").read_text() == before


def test_config_check_lists_every_fault(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each fault has a file, a key, what was found and what is allowed; the exit status tells whether there is one."""
    (elsewhere / "bad.toml").write_text(
        EMULATION.replace('"load_following"', '"psychic"').replace("units = 4", "units = -4", 1)
    )
    assert main.run(["config", "check", "bad.toml", "--json"]) == 1
    faults = json.loads(capfd.readouterr().out)
    assert {"actor.site.inventory[0].units", "actor.web.mapper.name"} <= {fault["key"] for fault in faults}
    assert all(fault["file"] == "bad.toml" and fault["found"] and fault["allowed"] for fault in faults)
    assert main.run(["config", "check", "bad.toml"]) == 1
    assert len(capfd.readouterr().out.splitlines()) == len(faults) + 1
    (elsewhere / "good.toml").write_text(EMULATION)
    assert main.run(["config", "check", "good.toml", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == []
    assert main.run(["config", "check", "good.toml", "bad.toml"]) == 1
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == len(faults) + 1
    assert err == "good.toml: nothing wrong\n"
    assert main.run(["config", "check"]) == 1
    assert "no deploy file" in capfd.readouterr().err
    (elsewhere / "good.toml").rename("leasekit.toml")
    assert main.run(["config", "check"]) == 0


def test_down_without_daemons(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where nothing runs there is nothing to stop, which is said."""
    (elsewhere / "leasekit.toml").write_text(EMULATION)
    assert main.run(["down"]) == 1
    assert "none of its daemons is running" in capfd.readouterr().err
    assert main.run(["down", "king"]) == 1
    assert "no actor 'king'; it has site, broker, web" in capfd.readouterr().err


def test_emulate_prints_its_summary(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The summary is one JSON document, the same for the same seed but for what was measured; pictures are named."""
    (elsewhere / "tiny.toml").write_text(EMULATION)
    summaries = []
    for out in ("one", "two"):
        assert main.run(["emulate", "tiny.toml", "--out", out, "--synthetic", "--seed", "5", "--json"]) == 0
        summary = json.loads(capfd.readouterr().out)
        assert summary["runs"][0].pop("measured")["wall_s"] >= 0
        summaries.append(summary)
    assert summaries[0] == summaries[1]
    assert summaries[0]["seed"] == 5
    assert set(summaries[0]["pictures"]) == {
        path.name for path in (elsewhere / "one").iterdir() if path.suffix in (".png", ".svg")
    }


def test_emulate_for_a_person(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without --json there is a line for each guest, one for each site and type, what became of their requests, and
    what it was run with.
    """
    (elsewhere / "tiny.toml").write_text(EMULATION)
    assert main.run(["emulate", "tiny.toml"]) == 0
    out, err = capfd.readouterr()
    guests, line, sites, node, requests, asked, offered = (line.split() for line in out.splitlines() if line)
    assert guests[:4] == ["run", "guest", "demand", "leased"]
    assert "web" in line
    assert sites[:3] == ["run", "site", "type"]
    assert "node" in node
    assert requests[:5] == ["run", "requests", "type", "asked", "at"]
    assert (asked[1:5], offered[1:5]) == (["web", "node", "10", "10"], ["site", "node", "10", "10"])
    assert "seed 1; signatures off" in err
