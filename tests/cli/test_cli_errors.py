"""How errors end a command: one line on standard error, the exit status says whose fault it is, never a traceback."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from leasekit.cli import main
from leasekit.core.errors import LeasekitError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in a folder without a deploy file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEKIT_FILE", raising=False)
    return tmp_path


TWO_GUESTS = """
[deployment]
name = "two"
state = "run"
create_keys = true
[actor.web]
role = "guest"
mapper = { name = "manual" }
[actor.batch]
role = "guest"
mapper = { name = "manual" }
[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
mapper = { name = "fcfs" }
[peer.north]
role = "authority"
key = "0101010101010101010101010101010101010101010101010101010101010101"
address = "unix:north.sock"
"""


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("lease list", 1, "no deploy file: name one with --file or LEASEKIT_FILE"),
        ("lease list --file none.toml", 1, "none.toml"),
        ("lease list --control none.sock", 1, "no daemon answers at none.sock: start it with leasekit up FILE"),
        ("lease request vm 0 --for 1h", 2, "'UNITS': found 0, expected a whole number from 1 on"),
        ("lease request vm four --for 1h", 2, "'UNITS': found four, expected a whole number from 1 on"),
        ("lease request vm -3 --for 1h", 2, "found -3, expected a whole number of units: 1 or more"),
        ("lease request vm 99999999999999999 --for 1h", 2, "expected a whole number from 1 to 9007199254740991"),
        ("lease logs web --lines 1000000", 2, "'--lines': found 1000000, expected a whole number from 0 to 10000"),
        ("peer add lab", 2, "Missing option '--role'. Choose from: guest, broker, authority"),
        ("site units --in nowhere", 2, "'--in': 'nowhere' is not one of 'free', 'setup', 'active'"),
        ("plan timetable none.csv", 2, "none.csv: can't be read: No such file or directory"),
        ("mapper compare fcfs --swf none.swf --nodes 4", 1, "trace is missing: none.swf"),
        ("lease request vm 4", 2, "Missing option '--for'"),
        ("lease request vm 4 --for soon", 2, "'soon' is not a duration"),
        ("lease request vm 4 --for 1h --start someday", 2, "expected now, +2h, tomorrow, monday 9:00"),
        ("lease request vm 4 --for 1h --config colour", 2, "found 'colour', expected KEY=VALUE"),
        ("lease request vm 4 --for 1h --group-size 2", 2, "--group-size goes with --group"),
        ("lease extend web", 2, "give either --for or --until"),
        ("lease extend web --for 1h --until +1h", 2, "give either --for or --until"),
        ("lease logs web --follow --control none.sock", 2, "--follow goes with a UNIT"),
        ("lease request vm 4 --for 1h --start +1h --deferrable-until +30m", 2, "--deferrable-until: found 20"),
        ("lease request vm 4 --for 1h --deferrable-until -1h", 2, "which is before the start, 20"),
        ("lease fly", 2, "No such command 'fly'"),
        ("ticket show", 2, "give a FILE, - or --lease"),
        ("ticket show none.ticket", 1, "none.ticket: No such file or directory"),
        ("config check", 1, "no deploy file"),
        ("lease request vm 1 --for 1h --needs cpu", 2, "found 'cpu', expected RESOURCE=AMOUNT"),
        ("lease request vm 1 --for 1h --needs cpu=-1", 2, "cpu: found '-1', expected cores"),
        ("keys show none.pub", 1, "none.pub"),
        ("emulate none.toml", 1, "none.toml"),
        ("up none.toml", 1, "none.toml"),
        ("completion tcsh", 2, "'tcsh' is not one of"),
    ],
)
def test_error_is_one_line(line: str, status: int, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A bad command line or a missing file ends with one line that says what was found or is missing."""
    assert main.run(line.split()) == status
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("leasekit: ")
    assert words in err


def test_which_actor_must_be_clear(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where several actors have the role, or none has, the error names them and the option that helps."""
    (elsewhere / "leasekit.toml").write_text(TWO_GUESTS)
    assert main.run(["lease", "list"]) == 1
    assert "leasekit.toml has 2 guests: web, batch; say which with --actor" in capfd.readouterr().err
    assert main.run(["lease", "list", "--actor", "wob"]) == 1
    assert "no actor 'wob'; it has web (guest), batch (guest), broker (broker)" in capfd.readouterr().err
    assert main.run(["site", "units"]) == 1
    assert "no authority in it; it has web (guest), batch (guest), broker (broker)" in capfd.readouterr().err
    assert main.run(["status", "wob"]) == 1
    assert "no actor 'wob'; it has web, batch, broker" in capfd.readouterr().err
    assert main.run(["lease", "list", "--actor", "batch"]) == 1
    assert "run/batch.control.sock: start it with leasekit up FILE" in capfd.readouterr().err


def test_all_faults_of_a_file_are_told(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A command that needs a deploy file with two faults tells both, each on a line of its own."""
    (elsewhere / "leasekit.toml").write_text('[deployment]\nnama = "x"\n[actor.site]\nrole = "king"\n')
    assert main.run(["status"]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("leasekit: leasekit.toml: ") for line in lines)


@pytest.mark.parametrize(
    ("raised", "status", "told"),
    [
        (LeasekitError("no\x1b[31m way"), 1, "leasekit: no\\x1b[31m way\n"),
        (click.UsageError("nonsense"), 2, "leasekit: nonsense (see leasekit fail --help)\n"),
        (KeyboardInterrupt(), 130, ""),
        (OSError(28, "No space left on device", "x.csv"), 1, "leasekit: x.csv: No space left on device\n"),
        (ZeroDivisionError("oops"), 70, "leasekit: internal error: ZeroDivisionError: oops (LEASEKIT_TRACEBACK=1"),
    ],
    ids=["refused", "usage", "interrupt", "system", "bug"],
)
def test_exit_status_says_whose_fault_it_is(
    raised: BaseException, status: int, told: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each kind of error has its exit status; terminal escapes in its text are shown, not obeyed; no traceback."""

    @click.command()
    def fail() -> None:
        raise raised

    monkeypatch.setitem(main.cli.commands, "fail", fail)
    assert main.run(["fail"]) == status
    err = capfd.readouterr().err
    assert err.lstrip("\n").startswith(told)
    assert "Traceback" not in err


def test_traceback_on_request(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """With LEASEKIT_TRACEBACK a bug shows where it is."""

    @click.command()
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(main.cli.commands, "fail", fail)
    monkeypatch.setenv("LEASEKIT_TRACEBACK", "1")
    assert main.run(["fail"]) == 70
    assert "Traceback" in capfd.readouterr().err


def test_a_gateway_that_is_not_there(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is in the file, so that is not what is wrong."""
    (elsewhere / "leasekit.toml").write_text(f'{TWO_GUESTS}\n[actor.door]\nrole = "gateway"\nwithout_login = true\n')
    assert main.run(["project", "list"]) == 1
    told = capsys.readouterr().err
    assert "no daemon answers at" in told and "door.control.sock: start it with leasekit up FILE" in told


@pytest.mark.parametrize(
    ("url", "token", "told"),
    [
        ("http://127.0.0.1:abc", "lk_one", "leasekit: --url: found 'http://127.0.0.1:abc': Port"),
        ("http://[::1", "lk_one", "leasekit: --url: found 'http://[::1': "),
        ("http://a b:80", "lk_one", "leasekit: --url: found 'http://a b:80': "),
        ("http://127.0.0.1:1", "l\u00e4k", "leasekit: http://127.0.0.1:1: the token has other than printable ASCII"),
        ("http://127.0.0.1:1", "lk_one\n", "leasekit: http://127.0.0.1:1: the token has other than printable ASCII"),
    ],
)
def test_a_gateway_that_is_none_is_told(
    url: str, token: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what was found, and without the token."""
    monkeypatch.setenv("LEASEKIT_TOKEN", token)
    assert main.run(["lease", "list", "--url", url]) == 1
    assert capsys.readouterr().err.startswith(told)
