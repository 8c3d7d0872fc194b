"""`leasekit peer export` and `peer import`: peers that were added by command, in a file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from cli_daemons import Cli, site_and_broker

from leasekit.config.load import load
from leasekit.core.claims.signed import Keypair

pytestmark = pytest.mark.xdist_group("cli_daemons")

DEPLOY = site_and_broker('inventory = [{ type = "vm", units = 2 }]\n')
KEYS = [Keypair(letter * 32).public.hex() for letter in (b"1", b"2", b"3")]


def test_what_is_exported_can_be_imported(cli: Cli, tmp_path: Path) -> None:
    """An actor that imports what another one exported knows the same peers, with what they may do; and so does one
    whose deploy file has it.
    """
    cli(f"peer add lab --role guest --key {KEYS[0]} --may redeem --open-requests 7 --priority-max 3 --actor site")
    cli(f"peer add a.b --role broker --key {KEYS[1]} --address tcp://[::1]:7000?tls=false --actor site")
    out, _ = cli("peer export --actor site")
    assert list(tomllib.loads(out)["peer"]) == ["lab", "a.b"]
    file = tmp_path / "peers.toml"
    file.write_text(out)
    _, err = cli(f"peer import {file} --actor guest")
    assert err == "known are lab, a.b\n"

    def added(actor: str) -> list[object]:
        return [peer for peer in cli.json(f"peer list --actor {actor}") if peer["origin"] == "operator"]

    assert added("guest") == added("site") and len(added("site")) == 2
    assert cli.json("peer export --actor site") == added("site")
    assert len(tomllib.loads(cli("peer export --all --actor site")[0])["peer"]) == 4
    whole = tmp_path / "whole.toml"
    whole.write_text(f"{DEPLOY}\n{out}")
    deployment = load(whole)
    assert deployment.peers["a.b"].address == "tcp://[::1]:7000?tls=false"
    assert deployment.actors["site"].table.permissions["lab"].priority_max == 3
    for name in ("lab", "a.b"):
        for actor in ("site", "guest"):
            cli(f"peer remove {name} --actor {actor}")
    assert cli("peer export --actor site")[0] == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[peer.x]\nrole = 'guest'\n", "peer.x.key: found nothing"),
        (f"[peer.x]\nrole = 'king'\nkey = '{KEYS[2]}'\n", "peer.x.role: found 'king'"),
        ("[peer.x]\nrole = 'guest'\nkey = 'x.pub'\n", "peer.x.key: found no file"),
        (f"[peer.x]\nrole = 'guest'\nkey = '{KEYS[2]}'\naddress = 'http:'\n", "peer.x.address: found 'http:'"),
        (f"[peer.x]\nrole = 'guest'\nkey = '{KEYS[2]}'\n[actor.site.permissions.x]\nmay = ['fly']\n", "x.may: found"),
        (f"[peer.guest]\nrole = 'guest'\nkey = '{KEYS[2]}'\n", "name: 'guest' has key"),
        ("peer = 3\n", "peer: found 3"),
        ("[peer", "syntax error"),
    ],
)
def test_what_cannot_be_imported(cli: Cli, tmp_path: Path, text: str, words: str) -> None:
    """A file that is wrong makes nobody known, not those either that stand before what is wrong."""
    file = tmp_path / "peers.toml"
    file.write_text(
        text
        if words in ("syntax error", "peer: found 3")
        else f"{text}\n[peer.fine]\nrole = 'guest'\nkey = '{KEYS[1]}'\n"
    )
    _, err = cli(f"peer import {file} --actor site", 1)
    assert words in err
    assert "fine" not in {peer["peer"] for peer in cli.json("peer list --actor site")}


def test_a_file_without_peers(cli: Cli, tmp_path: Path) -> None:
    """It says so."""
    (tmp_path / "none.toml").touch()
    assert "no [peer.NAME] in it" in cli(f"peer import {tmp_path / 'none.toml'} --actor site")[1]


def test_who_runs_is_waited_for(cli: Cli) -> None:
    """Where all run there is nothing to wait for."""
    assert len(cli.json("status --wait")) == 3
