"""`leasekit keys`: passphrases and rotation, as somebody types them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasekit.cli import main
from leasekit.config import keys
from leasekit.config.identities import prepare
from leasekit.config.keys import ENVIRONMENT, check_key, load_key, load_succession
from leasekit.config.load import load
from leasekit.core.time import DAY


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in an empty folder of their own, and passphrases are cheap."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setattr(keys, "SCRYPT_COST", keys.COST_MIN)
    return tmp_path


def passphrase_file(path: Path, text: str = "sesame") -> str:
    """A passphrase in a file."""
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_a_passphrase_from_a_file(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A key that was made with a passphrase file opens with its first line; showing it needs no passphrase."""
    assert main.run(["keys", "new", "a.key", "--passphrase-file", passphrase_file(folder / "pw"), "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert load_key(folder / "a.key", lambda: b"sesame").public.hex() == row["public"]
    assert main.run(["keys", "show", "a.key", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["public"] == row["public"]


def test_a_passphrase_that_is_typed(folder: Path) -> None:
    """It is asked for twice, not shown, and has to be the same both times."""
    runner = CliRunner()
    typed = runner.invoke(main.cli, ["keys", "new", "a.key", "--passphrase"], input="sesame\nsesame\n")
    assert typed.exit_code == 0, typed.output
    assert load_key(folder / "a.key", lambda: b"sesame")
    assert "sesame" not in typed.output
    assert runner.invoke(main.cli, ["keys", "new", "b.key", "--passphrase"], input="one\ntwo\n").exit_code != 0
    assert not (folder / "b.key").exists()


def test_no_passphrase_is_an_argument(capfd: pytest.CaptureFixture[str]) -> None:
    """Where somebody writes a passphrase behind the option, it is taken for a file, and no option takes one."""
    with pytest.raises(SystemExit):
        main.cli(["keys", "new", "--help"])
    text = capfd.readouterr().out
    assert "--passphrase-file PATH" in text
    assert "--passphrase " in text
    assert main.run(["keys", "new", "a.key", "--passphrase-file", "sesame"]) == 1
    assert "the passphrase file sesame, which can't be read" in capfd.readouterr().err


def test_rotate(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The new key and the statement lie beside the old key; name and instants are as given."""
    assert main.run(["keys", "new", "site.key"]) == 0
    capfd.readouterr()
    start = "2027-03-01T12:00Z"
    assert (
        main.run(["keys", "rotate", "site.key", "--name", "east", "--from", start, "--honoured-for", "60d", "--json"])
        == 0
    )
    row = json.loads(capfd.readouterr().out)
    told = load_succession(folder / "site.succession")
    assert (row["name"], row["from"][:16]) == ("east", start[:16])
    assert told.until - told.at == 60 * DAY
    assert row["new"] == load_key(folder / "site.next.key").public.hex() == told.new.hex()
    assert row["old"] == load_key(folder / "site.key").public.hex() == told.old.hex()
    assert main.run(["keys", "new", "lab.key"]) == 0
    assert main.run(["keys", "rotate", "lab.key"]) == 0
    said = capfd.readouterr().err
    assert "`leasekit peer succeed lab lab.succession`" in said
    assert f'key = {{ file = "{folder / "lab.next.key"}", after = ["{folder / "lab.key"}"] }}' in said
    assert main.run(["keys", "rotate", "site.key"]) == 1
    assert "is not being changed already" in capfd.readouterr().err


def test_what_rotate_advises_works(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Taken literally, the key in the advice is found in the deploy file, and the old one with it; checking the file
    tells where it isn't.
    """
    text = '[deployment]\nname = "one"\nstate = "state"\ncreate_keys = true\n'
    text += '[actor.hub]\nrole = "broker"\nmapper = { name = "fcfs" }\n'
    deploy = tmp_path / "one.toml"
    deploy.write_text(text, encoding="utf-8")
    prepare(load(deploy))
    assert main.run(["keys", "rotate", str(tmp_path / "state" / "keys" / "hub.key")]) == 0
    said = capfd.readouterr().err
    advised = re.search(r"with (key = \{.*\}) in its deploy file, where paths are relative to the state folder", said)
    assert advised is not None
    deploy.write_text(text + advised[1] + "\n", encoding="utf-8")
    assert main.run(["config", "check", str(deploy)]) == 0
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(text + advised[1].replace("keys/", "") + "\n", encoding="utf-8")
    assert main.run(["config", "check", str(wrong), "--json"]) == 1
    assert "paths are relative to the state folder" in capfd.readouterr().out
    keys = prepare(load(deploy))
    assert keys.public("hub") == load_key(tmp_path / "state" / "keys" / "hub.next.key").public
    assert [one.signer.public for one in keys.former("hub")] == [load_key(tmp_path / "state/keys/hub.key").public]


def test_rotate_a_key_under_a_passphrase(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The old key's passphrase is asked for once, and the new key is under the same, or under another where one is
    named.
    """
    first = passphrase_file(folder / "pw")
    assert main.run(["keys", "new", "a.key", "b.key", "--passphrase-file", first]) == 0
    typed = CliRunner().invoke(main.cli, ["keys", "rotate", "a.key"], input="sesame\n")
    assert typed.exit_code == 0, typed.output
    assert check_key(folder / "a.next.key")
    assert load_key(folder / "a.next.key", lambda: b"sesame")
    other = passphrase_file(folder / "other", "mellon")
    assert main.run(["keys", "rotate", "b.key", "--passphrase-file", first, "--new-passphrase-file", other]) == 0
    assert load_key(folder / "b.next.key", lambda: b"mellon")


def test_rotate_what_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    """A missing key is one line that names it."""
    assert main.run(["keys", "rotate", "none.key"]) == 1
    assert "none.key" in capfd.readouterr().err


def test_folders_that_others_can_see_are_reported(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A key that is made where others can look is made, with a warning that says what to do."""
    (folder / "open").mkdir(mode=0o755)
    (folder / "open").chmod(0o755)
    assert main.run(["keys", "new", "open/site.key"]) == 0
    assert f"chmod 700 {folder}/open" in capfd.readouterr().err
