"""``leasekit evidence`` and ``leasekit ticket verify``: what anybody can check without a daemon."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from leasekit.cli import main
from leasekit.core.claims.claim import Ticket, decode_claim, delegate, delegate_root
from leasekit.core.claims.evidence import encode_evidence, of_overdelegation, of_returned
from leasekit.core.claims.signed import (
    CONTRACT,
    RECEIPT,
    RELINQUISHMENT,
    TRUNCATION,
    Keypair,
    fingerprint,
    standing,
    state,
)
from leasekit.core.claims.tree import ClaimTree
from leasekit.core.time import Term

SITE, BROKER, GUEST, OTHER = (Keypair(bytes([n]) * 32) for n in (1, 2, 3, 4))
TERM = Term(1_700_000_000_000, 1_700_000_900_000)
ROOT = delegate_root(SITE, holder=BROKER.public, type="vm", units=10, term=TERM, serial=1)
TICKETS = [delegate(ROOT, BROKER, holder=GUEST.public, units=6, term=TERM, serial=serial) for serial in (1, 2)]
(FOUND,) = [finding for tree in [ClaimTree()] for ticket in TICKETS for finding in tree.add(ticket).found]
DEPLOY = f"""
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


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in a folder without a deploy file, where there is evidence and a ticket."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEKIT_FILE", raising=False)
    (tmp_path / "e.json").write_text(encode_evidence(of_overdelegation(FOUND), "lies"))
    word = standing(SITE, [claim.digest for claim in FOUND.claims], TERM.start + 1, FOUND.instant)
    (tmp_path / "proven.json").write_text(encode_evidence(of_overdelegation(FOUND, word), "lies"))
    (tmp_path / "t").write_bytes(TICKETS[0].encode())
    return tmp_path


def run(capfd: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    """A command's JSON."""
    assert main.run([*arguments, "--json"]) == status
    return json.loads(capfd.readouterr().out)


# -- evidence ----------------------------------------------------------------------------------------------------------


def test_evidence_is_verified(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The verdict names the guilty key, what was done, and what would refute it; words in the file are not shown."""
    found = run(capfd, "evidence", "verify", "proven.json")
    assert (found["proven"], found["open"], found["reason"], found["kind"]) == (True, False, "", "overdelegation")
    assert (found["guilty"], found["guilty_name"]) == (BROKER.public.hex(), "")
    assert found["claims"] == [ROOT.leaf.id, *(claim.id for claim in FOUND.claims)]
    assert "gave away 12 at 2023-11-14" in found["words"] and "receipt" in found["refutable"]
    assert main.run(["evidence", "verify", "proven.json"]) == 0
    out, _ = capfd.readouterr()
    assert BROKER.public.hex() in out and "gave away 12" in out and "refuted by" in out
    assert "lies" not in out


def test_evidence_without_the_sites_word_is_open(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It has an exit status of its own, and the verdict names what would prove it."""
    found = run(capfd, "evidence", "verify", "e.json", status=3)
    assert (found["proven"], found["open"], found["guilty"]) == (False, True, BROKER.public.hex())
    assert "leasekit site word" in found["missing"]
    assert main.run(["evidence", "verify", "e.json"]) == 3
    out, _ = capfd.readouterr()
    assert "accused" in out and "guilty" not in out and "proven by" in out


def test_names_come_from_the_deploy_file(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Keys that a deploy file knows are named."""
    (elsewhere / "leasekit.toml").write_text(DEPLOY)
    found = run(capfd, "evidence", "verify", "e.json", status=3)
    assert found["guilty_name"] == "agent"
    assert found["words"].startswith(f"agent ({fingerprint(BROKER.public)}) held 10 units")
    assert main.run(["evidence", "show", "e.json"]) == 0
    assert "agent" in capfd.readouterr().out


@pytest.mark.parametrize("form", ["plain", "hex", "base64", "lines"])
def test_what_the_accused_brings(form: str, elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A receipt refutes evidence that is open, in whatever form it is at hand; of evidence that the site vouched for it
    shows who has lied.
    """
    data = state(SITE, RECEIPT, FOUND.claims[0].digest, TERM.start).encode()
    other = state(SITE, RECEIPT, b"x" * 32, TERM.start).encode()
    lines = f"{other.hex()}\n{data.hex()}\n".encode()
    forms = {"plain": data, "hex": data.hex().encode(), "base64": base64.encodebytes(data), "lines": lines}
    (elsewhere / "s").write_bytes(forms[form])
    found = run(capfd, "evidence", "verify", "e.json", "--against", "s", status=1)
    assert (found["proven"], found["open"], found["reason"], found["guilty"]) == (False, False, "refuted", "")
    assert main.run(["evidence", "verify", "e.json", "--against", "s"]) == 1
    assert capfd.readouterr().err.startswith("proves nothing (refuted): claim ")
    assert run(capfd, "evidence", "verify", "proven.json", "--against", "s")["guilty"] == SITE.public.hex()


def test_a_truncation_does_not_count_by_itself(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The accused can sign one whenever it likes: whoever brings one is told to bring the site's receipt."""
    (elsewhere / "s").write_bytes(state(BROKER, TRUNCATION, FOUND.claims[0].digest, TERM.start).encode())
    assert main.run(["evidence", "verify", "proven.json", "--against", "s"]) == 0
    assert "bring the site's receipt" in capfd.readouterr().err
    assert main.run(["evidence", "verify", "e.json", "--against", "s"]) == 3


def test_receipts_of_the_site_that_is_named(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With --site the receipts of that key count, given in hex or as a file."""
    (elsewhere / "s").write_bytes(state(OTHER, RECEIPT, FOUND.claims[0].digest, TERM.start).encode())
    (elsewhere / "other.pub").write_text(f"{OTHER.public.hex()}\n")
    assert run(capfd, "evidence", "verify", "e.json", "--against", "s", status=3)["open"]
    for key in (OTHER.public.hex(), "other.pub"):
        found = run(capfd, "evidence", "verify", "e.json", "--against", "s", "--site", key, status=1)
        assert found["reason"] == "refuted"
        assert run(capfd, "evidence", "verify", "proven.json", "--site", key, status=1)["reason"] == "wrong_signer"


@pytest.mark.parametrize("how", ["option", "environment"])
@pytest.mark.parametrize("command", [("evidence", "verify", "e.json"), ("evidence", "show", "e.json")])
def test_a_deploy_file_that_is_named_must_be_there(
    how: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A deploy file for the names of keys that was asked for, and can't be read, is an error; one is not needed."""
    if how == "environment":
        monkeypatch.setenv("LEASEKIT_FILE", "nofile.toml")
    assert main.run([*command, *(["-f", "nofile.toml"] if how == "option" else [])]) == 1
    out, err = capfd.readouterr()
    assert out == "" and "nofile.toml" in err


def test_keys_have_one_form(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A key is shown by its short form, after the name that it has where that is known."""
    short = [fingerprint(key.public) for key in (SITE, BROKER, GUEST)]
    assert main.run(["evidence", "show", "e.json"]) == 0
    out = capfd.readouterr().out
    assert all(name in out for name in short)
    (elsewhere / "leasekit.toml").write_text(DEPLOY)
    for command in (("evidence", "show", "e.json"), ("ticket", "show", "t")):
        assert main.run([*command]) == 0
        out = capfd.readouterr().out
        assert f"north ({short[0]})" in out and f"agent ({short[1]})" in out and short[2] in out
    assert main.run(["evidence", "verify", "proven.json"]) == 0
    assert f"agent ({short[1]})" in capfd.readouterr().out


def test_evidence_that_proves_nothing(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each failure has its reason, a file that is none has one too; the exit status is 1."""
    document = json.loads((elsewhere / "e.json").read_text())
    entries = document["claims"]
    for claims, reason in (
        ([entries[0], entries[1], entries[1]], "duplicate"), (entries[:2], "not_exceeding"), (entries[:1], "malformed"),
        ([entries[0], entries[1], {**entries[2], "signature": base64.b64encode(bytes(64)).decode()}], "bad_signature"),
        ([entries[1], entries[0], entries[2]], "not_child"),
    ):  # fmt: skip
        (elsewhere / "bad.json").write_text(json.dumps({**document, "claims": claims}))
        assert run(capfd, "evidence", "verify", "bad.json", status=1)["reason"] == reason
    (elsewhere / "bad.json").write_text("{")
    found = run(capfd, "evidence", "verify", "bad.json", status=1)
    assert (found["reason"], found["kind"], found["instant"], found["claims"]) == ("malformed", "", None, [])


def test_evidence_is_shown(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The claims and statements are shown as they are signed, whether or not they prove anything."""
    note = state(GUEST, RELINQUISHMENT, TICKETS[0].leaf.digest, TERM.start, "L-1")
    contract = state(SITE, CONTRACT, TICKETS[0].leaf.digest, TERM.start + 5000, f"L-1 6 {TERM.start} {TERM.end}")
    (elsewhere / "r.json").write_text(encode_evidence(of_returned(TICKETS[0], note, contract)))
    assert run(capfd, "evidence", "verify", "r.json")["guilty"] == GUEST.public.hex()
    shown = run(capfd, "evidence", "show", "r.json")
    assert [claim["units"] for claim in shown["claims"]] == [10, 6]
    assert [one["kind"] for one in shown["statements"]] == ["relinquishment", "contract"]
    assert all(part["signature_ok"] for part in shown["claims"] + shown["statements"])
    assert main.run(["evidence", "show", "r.json"]) == 0
    out, _ = capfd.readouterr()
    for text in ("returned", "2023-11-14 22:13:25.000Z", "root", "link", "relinquishment", "L-1 6"):
        assert text in out
    assert main.run(["evidence", "show", "e.json"]) == 0
    assert "parent" in capfd.readouterr().out


def test_files_that_can_not_be_read(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What is missing, or no evidence or statement, ends in one line that names the file."""
    (elsewhere / "noise").write_bytes(b"\xff\xfe noise")
    for arguments, says in (
        (["evidence", "show", "noise"], "noise: evidence is not JSON"),
        (["evidence", "show", "nothing"], "nothing"),
        (["evidence", "verify", "nothing"], "nothing"),
        (["evidence", "verify", "e.json", "--against", "noise"], "noise: statement"),
    ):
        assert main.run(arguments) == 1
        out, err = capfd.readouterr()
        assert out == "" and err.startswith("leasekit: ") and err.count("\n") == 1
        assert says in err
    assert main.run(["evidence", "verify", "e.json", "--site", "nobody.pub"]) == 2
    assert "--site" in capfd.readouterr().err


# -- ticket verify -----------------------------------------------------------------------------------------------------


def test_tickets_are_verified(capfd: pytest.CaptureFixture[str]) -> None:
    """A good ticket is said to be one, with what it is for."""
    found = run(capfd, "ticket", "verify", "t", "--site", SITE.public.hex(), "--holder", GUEST.public.hex())
    assert (found["ok"], found["units"], found["depth"], found["site"]) == (True, 6, 2, SITE.public.hex())
    assert main.run(["ticket", "verify", "t"]) == 0
    out, _ = capfd.readouterr()
    assert "ok" in out and GUEST.public.hex() in out and "2023-11-14" in out


def test_tickets_from_standard_input(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """With - the ticket comes from standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TICKETS[0].encode().hex().encode())))
    assert run(capfd, "ticket", "verify", "-")["ok"]


def test_each_failure_has_its_reason(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What is wrong is named: the site, the holder, the time, the depth, the chain, the root's own signature."""

    def reason(*arguments: str) -> str:
        found = run(capfd, "ticket", "verify", *arguments, status=1)
        assert not found["ok"] and found["problem"]
        return str(found["reason"])

    assert reason("t", "--site", OTHER.public.hex()) == "wrong_site"
    assert reason("t", "--holder", OTHER.public.hex()) == "not_holder"
    assert reason("t", "--at", "2023-11-15T00:00:00") == "expired"
    assert reason("t", "--depth", "1") == "too_deep"
    forged = decode_claim(ROOT.leaf.body, OTHER.sign(ROOT.leaf.body))
    child = delegate(Ticket((forged,)), BROKER, holder=GUEST.public, units=6, term=TERM, serial=1)
    for ticket, code in (
        (child, "bad_signature"), (Ticket((forged, TICKETS[0].leaf)), "wrong_parent"),
        (Ticket(TICKETS[0].chain[1:]), "wrong_root"),
    ):  # fmt: skip
        (elsewhere / "bad").write_bytes(ticket.encode())
        assert reason("bad") == code
    (elsewhere / "bad").write_bytes(b"noise")
    assert reason("bad") == "malformed"
    assert main.run(["ticket", "verify", "bad"]) == 1
    assert capfd.readouterr().err.startswith("not to be believed (malformed): ")
    assert main.run(["ticket", "verify", "t", "--holder", "nobody.pub"]) == 2
    assert "--holder" in capfd.readouterr().err


def test_a_ticket_that_is_over_is_still_one(capfd: pytest.CaptureFixture[str]) -> None:
    """Without --at the time is not looked at; with one inside the term it is fine as well."""
    assert run(capfd, "ticket", "verify", "t")["ok"]
    assert run(capfd, "ticket", "verify", "t", "--at", "2023-11-14T22:20:00")["ok"]
