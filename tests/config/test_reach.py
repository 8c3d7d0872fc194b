"""Who can dial whom: pairs that must talk and can't are told, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekit.cli import main
from leasekit.config.deployment import dialled_at, for_daemons, out_of_reach
from leasekit.config.load import load

SITE = """
[actor.site]
role = "authority"
inventory = [{ type = "vm", units = 4 }]
delegation = [{ broker = "top", type = "vm" }]
"""
BROKER = """
[actor.top]
role = "broker"
"""
GUEST = """
[actor.guest]
role = "guest"
"""
KEY = "ab" * 32


def listening(table: str, address: str = "unix:here.sock") -> str:
    return f'{table}listen = ["{address}"]\n'


def pairs(folder: Path, *tables: str, names: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """The pairs that are told of a file with these tables."""
    file = folder / "d.toml"
    file.write_text("".join(tables))
    lines = out_of_reach(load(file), names)
    assert all("neither knows where to dial the other" in line for line in lines)
    found = []
    for line in lines:
        one, other = line.partition(":")[0].split(", ")
        found.append((one, other))
    return found


def test_one_of_two_is_enough(tmp_path: Path) -> None:
    """The other one dials it."""
    assert pairs(tmp_path, listening(SITE, "unix:a.sock"), listening(BROKER), GUEST) == []


def test_each_pair_that_must_talk_is_told(tmp_path: Path) -> None:
    """With nobody to be dialled: a site and its broker, a guest and its broker, a guest and the site."""
    site_broker, site_guest = ("actor.site", "actor.top"), ("actor.site", "actor.guest")
    assert pairs(tmp_path, SITE, BROKER, GUEST) == [site_broker, site_guest, ("actor.top", "actor.guest")]
    assert pairs(tmp_path, SITE, listening(BROKER), GUEST) == [site_guest]
    assert pairs(tmp_path, SITE, BROKER, GUEST, names=("top",)) == [site_broker, ("actor.top", "actor.guest")]


def test_a_port_that_is_not_known_beforehand_can_not_be_dialled(tmp_path: Path) -> None:
    """Port 0 is any free one."""
    site = listening(SITE, "tcp://127.0.0.1:0")
    assert pairs(tmp_path, site, listening(BROKER), GUEST) == [("actor.site", "actor.guest")]
    assert dialled_at(load(tmp_path / "d.toml").actors["site"]) == ""


def test_who_has_nothing_to_say_to_another_need_not_reach_it(tmp_path: Path) -> None:
    """Two brokers of which none gives to the other, and a guest and a broker that it doesn't ask."""
    low = '\n[actor.low]\nrole = "broker"\n'
    asks = f'{GUEST}settings = {{ default_broker = "low" }}\n'
    site = listening(SITE, "unix:a.sock")
    assert pairs(tmp_path, site, BROKER, low, asks) == [("actor.low", "actor.guest")]
    gives = f'{BROKER}delegation = [{{ broker = "low", type = "vm", units = 1 }}]\n'
    assert pairs(tmp_path, site, gives, low) == [("actor.top", "actor.low")]


def test_peers_of_other_files(tmp_path: Path) -> None:
    """A peer without an address must be able to dial."""
    peer = f'\n[peer.site]\nrole = "authority"\nkey = "{KEY}"\n'
    assert pairs(tmp_path, BROKER, peer) == [("actor.top", "peer.site")]
    assert pairs(tmp_path, BROKER, f'{peer}address = "tcp://site.example.org:7000"\n') == []
    assert pairs(tmp_path, listening(BROKER), peer) == []


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ("", True),
        ("[emulation]\nhorizon = '1d'\n", False),
        ("[deployment]\ncreate_keys = true\n[emulation]\nhorizon = '1d'\n", True),
    ],
)
def test_check_warns_of_files_for_daemons(
    more: str, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But not of a file that is for emulations only; nothing is wrong with either."""
    file = tmp_path / "d.toml"
    file.write_text(f"{more}{SITE}{BROKER}{GUEST}")
    assert for_daemons(load(file)) is warned
    assert main.run(["config", "check", str(file)]) == 0
    err = capsys.readouterr().err
    assert ("warning: actor.site, actor.top: they must talk" in err) is warned
    assert f"{file}: nothing wrong" in err


def test_up_warns_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before it starts, or fails to."""
    file = tmp_path / "d.toml"
    file.write_text(f"{SITE}{BROKER}{GUEST}")
    assert main.run(["up", str(file), "guest"]) == 1
    err = capsys.readouterr().err
    assert f"leasekit: warning: {file}: actor.site, actor.guest: they must talk" in err
    assert "actor.site, actor.top" not in err
