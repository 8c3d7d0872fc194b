"""`leasekit run`: how it ends as its command does, and what becomes of command and lease when it is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_daemons import Cli, site_and_broker
from system.system_waits import wait_until

from leasekit.cli import main

DEPLOY = site_and_broker('inventory = [{ type = "vm", units = 2 }]\ndelegation = [{ broker = "broker", type = "vm" }]')
LEASEKIT = (sys.executable, "-m", "leasekit.cli.main")
LINE = "run vm {} --for 1h --name {} --"
TRAP = "trap 'echo told > {0}.told; exit 3' TERM; echo $$ > {0}.new && mv {0}.new {0}; while :; do sleep 0.05; done"


def started(file: Path, units: int, name: str, *words: str) -> subprocess.Popen[bytes]:
    """The command line in a process of its own."""
    line = LINE.format(units, name).split()
    return subprocess.Popen([*LEASEKIT, *line, *words], env={**os.environ, "LEASEKIT_FILE": str(file)})


def state(cli: Cli, name: str) -> str:
    """That of a lease by its name; empty: there is none yet."""
    return next((str(one["state"]) for one in cli.json("lease list --all") if one["name"] == name), "")


@pytest.mark.parametrize(
    ("script", "status"), [("exit 5", 5), ("kill -9 $$", 137), ("yes | head -1 > units; kill -PIPE $$", 141)]
)
def test_it_ends_as_its_command_does(
    file: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, script: str, status: int
) -> None:
    """Also where a signal ended that; its lease is closed."""
    monkeypatch.setenv("LEASEKIT_FILE", str(file))
    monkeypatch.chdir(file.parent)
    assert main.run([*LINE.format(1, f"s{status}").split(), "sh", "-c", script]) == status
    wait_until("it is closed", lambda: state(cli, f"s{status}") != "closed")


def test_nothing_is_leased_for_what_can_not_be_run(
    file: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a shell tells it; what turns out when it is to be run alone ends its lease."""
    monkeypatch.setenv("LEASEKIT_FILE", str(file))
    text, odd = file.with_name("text"), file.with_name("odd")
    text.write_text("words")
    odd.write_text("#!/none/such\n")
    odd.chmod(0o755)
    for word, status, told in (
        ("no-such", 127, "no-such: no such command"), (str(text), 126, f"{text}: is no program that can be run"),
        (str(odd), 127, f"{odd}: can't be run: No such file"),
    ):  # fmt: skip
        assert main.run([*LINE.format(1, Path(word).name).split(), word]) == status
        assert told in capfd.readouterr().err
        assert (state(cli, Path(word).name) != "") == (word == str(odd))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_is_told_to_end_when_its_run_is(file: Path, cli: Cli, number: signal.Signals) -> None:
    """By the run, which ends with its status and closes the lease, or by the system where the run was killed."""
    mark = file.with_name(f"mark-{number}")
    with started(file, 1, f"told-{number}", "sh", "-c", TRAP.format(mark)) as process:
        wait_until("the command runs", lambda: not mark.exists())
        process.send_signal(number)
        wait_until("it was told", lambda: not mark.with_suffix(".told").exists())
    assert process.returncode == (3 if number == signal.SIGTERM else -signal.SIGKILL)
    cli(f"lease close told-{number} --wait", 1 if number == signal.SIGTERM else 0)


def test_a_run_that_waits_for_its_units_takes_its_request_back(file: Path, cli: Cli) -> None:
    """When it is told to end."""
    cli("lease request vm 2 --for 1h --name all --wait")
    with started(file, 1, "waits", "true") as process:
        wait_until("it waits", lambda: not state(cli, "waits"))
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    wait_until("it is closed", lambda: state(cli, "waits") != "closed")
    cli("lease close all --wait")


def test_a_lease_that_ends_before_its_command_is_told_of(file: Path, cli: Cli) -> None:
    """The command goes on; its status is as ever."""
    line = [*LINE.format(1, "short").split()[:-1], "--keepalive", "1s", "--", "sh", "-c", "echo run; read word; exit 4"]
    pipe, env = subprocess.PIPE, {**os.environ, "LEASEKIT_FILE": str(file)}
    with subprocess.Popen([*LEASEKIT, *line], env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"run\n"
        cli("lease close short --wait")
        told = next(line for line in process.stderr if b"already" in line)
        assert told.endswith(b"is closed already: its command goes on without it\n")
        process.stdin.write(b"\n")
    assert process.returncode == 4


def test_a_lease_that_was_over_is_told_of_at_the_end(file: Path, cli: Cli) -> None:
    """Where its command ended before the next time at which its run would have said that it is there."""
    line = [*LINE.format(1, "brief").split(), "sh", "-c", "echo run; read word"]
    pipe, env = subprocess.PIPE, {**os.environ, "LEASEKIT_FILE": str(file)}
    with subprocess.Popen([*LEASEKIT, *line], env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"run\n"
        cli("lease close brief --wait")
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.stderr.read().endswith(b" was over before its command ended\n")
    assert process.returncode == 0
