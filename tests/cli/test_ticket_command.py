"""``leasekit ticket show``: any form of a ticket, and the truth about it."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from leasekit.cli import main
from leasekit.core.claims.claim import Claim, Ticket, delegate, delegate_root
from leasekit.core.claims.signed import Keypair
from leasekit.core.time import INSTANT_MAX, Term

SITE, BROKER, GUEST = (Keypair(bytes([n]) * 32) for n in (1, 2, 3))
LONG = Term(0, INSTANT_MAX)


def _ticket() -> Ticket:
    root = delegate_root(SITE, holder=BROKER.public, type="vm", units=12, term=LONG, serial=1)
    return delegate(root, BROKER, holder=GUEST.public, units=4, term=LONG, serial=1)


def _forged() -> Ticket:
    good = _ticket()
    leaf = good.leaf
    fields = {name: getattr(leaf, name) for name in Claim.__slots__ if not name.startswith("__")}
    return Ticket((good.root, Claim(**{**fields, "signature": bytes(64)})))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in a folder without a deploy file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEKIT_FILE", raising=False)
    return tmp_path


def _show(capfd: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main.run(["ticket", "show", *arguments, "--json"]) == status
    return json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("form", ["plain", "hex", "base64", "wrapped"])
def test_every_form_is_read(form: str, elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A ticket is read as it travels, in hex and in base64, in one line or many."""
    data = _ticket().encode()
    forms = {
        "plain": data,
        "hex": data.hex().encode() + b"\n",
        "base64": base64.b64encode(data),
        "wrapped": base64.encodebytes(data),
    }
    (elsewhere / "t").write_bytes(forms[form])
    shown = _show(capfd, "t")
    assert shown["ok"]
    assert [claim["units"] for claim in shown["chain"]] == [12, 4]
    assert shown["chain"][1]["holder"] == GUEST.public.hex()


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """With - the ticket comes from standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(_ticket().encode())))
    assert _show(capfd, "-")["time"] == "is of now"


def test_forged_signature(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A signature that does not verify is named, the claim is marked, and the exit status is 1."""
    (elsewhere / "t").write_bytes(_forged().encode())
    shown = _show(capfd, "t", status=1)
    assert [claim["signature_ok"] for claim in shown["chain"]] == [True, False]
    assert "does not verify" in shown["problem"]
    assert main.run(["ticket", "show", "t"]) == 1
    out, err = capfd.readouterr()
    assert "BAD" in out
    assert "the chain is wrong" in err


def test_broken_chain(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Claims that are signed rightly but do not hang together are no ticket."""
    stranger = delegate_root(SITE, holder=GUEST.public, type="vm", units=4, term=LONG, serial=2)
    (elsewhere / "t").write_bytes(Ticket((stranger.root, _ticket().leaf)).encode())
    shown = _show(capfd, "t", status=1)
    assert all(claim["signature_ok"] for claim in shown["chain"])
    assert "parent" in shown["problem"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"), (b"\xff\xfe nonsense", "goes on after its end"), (b"abcd", "incomplete"),
        (bytes(70_000), "which no ticket has"),
    ],
    ids=["empty", "noise", "hex", "big"],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["show", "verify"])
def test_what_is_no_ticket(
    verb: str, data: bytes, said: str, elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Anything else is refused in one line that names the file."""
    (elsewhere / "the.ticket").write_bytes(data)
    assert main.run(["ticket", verb, "the.ticket"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "the.ticket: " in err and said in err
    assert err.count("\n") == 1


def test_names_come_from_the_deploy_file(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Keys that a deploy file knows are shown by their actors' names."""
    (elsewhere / "leasekit.toml").write_text(
        f"""
[deployment]
name = "x"
state = "run"
[actor.web]
role = "guest"
mapper = {{ name = "manual" }}
[peer.north]
role = "authority"
key = "{SITE.public.hex()}"
address = "unix:north.sock"
[peer.agent]
role = "broker"
key = "{BROKER.public.hex()}"
address = "unix:agent.sock"
"""
    )
    (elsewhere / "t").write_bytes(_ticket().encode())
    shown = _show(capfd, "t")
    assert shown["site"] == "north"
    assert [claim["holder_name"] for claim in shown["chain"]] == ["agent", ""]
