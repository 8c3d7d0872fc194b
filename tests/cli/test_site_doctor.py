"""`leasekit site doctor`: what a host lacks, and what to do about it."""

from __future__ import annotations

import json
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from leasekit.cli import main

SITE = """
[deployment]
name = "host"
state = "state"
create_keys = {make}
[actor.site]
role = "authority"
listen = ["tcp://127.0.0.1:{port}"]
[[actor.site.inventory]]
type = "node"
units = 2
driver = "steps"
[[actor.site.delegation]]
broker = "broker"
type = "node"
[actor.site.driver.steps]
kind = "script"
setup = ["{program}"]
directory = "/"
[actor.broker]
role = "broker"
"""


def written(folder: Path, *, make: bool = True, port: int = 0, program: str = "/bin/true") -> Path:
    """A deploy file in ``folder``."""
    file = folder / "host.toml"
    file.write_text(SITE.format(make=str(make).lower(), port=port or free_port(), program=program), encoding="utf-8")
    return file


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def findings(capfd: pytest.CaptureFixture[str], status: int, *words: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What doctor found, by where and what, after it has ended with ``status``."""
    assert main.run(["site", "doctor", *words, "--json"]) == status
    return {(row["at"], row["what"]): row for row in json.loads(capfd.readouterr().out)}


def test_a_host_that_has_everything(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where nothing is missing each thing looked at is ok, nothing is made, and the exit status is 0."""
    found = findings(capfd, 0, str(written(tmp_path)))
    assert {row["verdict"] for row in found.values()} == {"ok"}
    assert {at for at, _ in found} == {"site", "site.steps", "broker"}
    assert not (tmp_path / "state").exists()


def test_what_is_missing_is_said_with_its_cure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A taken port, a missing key and a missing program are told all at once, each with what to do about it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = findings(capfd, 1, str(written(tmp_path, make=False, port=port, program="/nowhere/setup")), "site")
    assert {what for (_, what), row in found.items() if row["verdict"] == "missing"} == {
        f"port {port}",
        "key",
        "settings",
    }
    assert found["site", f"port {port}"]["advice"] == f"find who has it: ss -ltnp sport = :{port}"
    assert found["site", "key"]["advice"] == f"leasekit keys new {tmp_path}/state/keys/site.key"
    assert "/nowhere/setup" in found["site.steps", "settings"]["found"]


def test_a_key_that_others_can_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What is wrong with the file itself, or with a key that it names, is told first, with its cure."""
    file = written(tmp_path)
    key = tmp_path / "state" / "keys" / "site.key"
    assert main.run(["keys", "new", str(key)]) == 0
    key.chmod(0o644)
    assert main.run(["site", "doctor", str(file), "site"]) == 1
    assert f"run `chmod 600 {key}`" in capfd.readouterr().err


def test_a_database_that_is_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A damaged database is found, and left as it is; a sound one is told as such."""
    file = written(tmp_path)
    database = tmp_path / "state" / "site.db"
    database.parent.mkdir()
    database.write_bytes(b"no database at all, but long enough to be read as one" * 100)
    row = findings(capfd, 1, str(file), "site")["site", "database"]
    assert row["verdict"] == "missing" and str(database) in row["found"]
    database.unlink()
    sqlite3.connect(database).execute("CREATE TABLE leases (id)").connection.close()
    before = database.read_bytes()
    assert findings(capfd, 0, str(file), "site")["site", "database"]["found"] == f"{database} is sound"
    assert database.read_bytes() == before


def test_the_deploy_file_is_found_as_other_commands_find_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named first, by --file or by the environment, or it is the one in this folder."""
    file = written(tmp_path)
    monkeypatch.delenv("LEASEKIT_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main.run(["site", "doctor"]) == 1
    assert "no deploy file: name one with --file or LEASEKIT_FILE" in capfd.readouterr().err
    for words in ([str(file)], ["host.toml"], ["--file", str(file)]):
        assert {at for at, _ in findings(capfd, 0, *words, "broker")} == {"broker"}
    monkeypatch.setenv("LEASEKIT_FILE", str(file))
    assert {at for at, _ in findings(capfd, 0)} == {"site", "site.steps", "broker"}
    monkeypatch.delenv("LEASEKIT_FILE")
    file.rename(tmp_path / "leasekit.toml")
    assert {at for at, _ in findings(capfd, 0, "broker")} == {"broker"}


def test_an_actor_that_is_not_in_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A name that the file doesn't have is refused with those that it has."""
    assert main.run(["site", "doctor", str(written(tmp_path)), "sitr"]) == 1
    assert "no actor 'sitr'; it has site, broker" in capfd.readouterr().err
