"""`leasekit reload` and SIGHUP on real daemons: what changes, what needs a restart, and files that are wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_daemons import Cli, running
from system.system_waits import wait_until

from leasekit.cli import main

pytestmark = pytest.mark.xdist_group("cli_daemons")

DEPLOY = """
[deployment]
name = "test"
state = "run"
create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
[[actor.site.inventory]]
type = "vm"
units = 4
[[actor.site.delegation]]
broker = "broker"
type = "vm"

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
mapper = { name = "fcfs", quotas = [{ holder = "guest", units = 4 }] }

[actor.guest]
role = "guest"
"""


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "deploy.toml").write_text(DEPLOY)
    with running(tmp_path / "deploy.toml") as process:
        yield process


@pytest.fixture
def cli(tmp_path: Path, daemons: object, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path / "deploy.toml", capfd)


def change(cli: Cli, *replacements: tuple[str, str]) -> None:
    """Write the deploy file with some text replaced."""
    text = DEPLOY
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    cli.file.write_text(text)


def test_a_deployment_changes_under_a_lease(cli: Cli) -> None:
    """Inventory, quotas and permissions are as the file says, at once; the lease goes on, and requests are held to
    the new quota. What needs a restart is named, and is named again.
    """
    cli("lease request vm 3 --for 1h --name web --wait")
    change(
        cli,
        ("units = 4\n", "units = 2\n"),
        ("units = 4 }", "units = 1 }"),
        ('listen = ["unix:broker.sock"]', 'listen = ["unix:other.sock"]\npermissions.guest.priority_max = 5'),
    )
    moved = ("actor.broker.listen", '["unix:broker.sock"]', '["unix:other.sock"]')
    assert {(row["actor"], row["key"], row["before"], row["after"], row["restart"]) for row in cli.json("reload")} == {
        ("site", "actor.site.inventory[0].units", "4", "2", False),
        ("broker", "actor.broker.mapper.quotas[0].units", "4", "1", False),
        ("broker", "actor.broker.permissions.guest.priority_max", "", "5", False),
        ("site", *moved, False),
        ("broker", *moved, True),
        ("guest", *moved, False),
    }
    lease = cli.json("lease show web")
    assert (lease["state"], [unit["state"] for unit in lease["units"]]) == ("active", ["joined"] * 3)
    wait_until("heard of", lambda: "no longer in the inventory" not in (found := cli("lease show web")[0]) and found)
    assert {unit["unit"]: unit["state"] for unit in cli.json("site units")}["vm-3"] == "out"
    assert [peer["priority_max"] for peer in cli.json("peer list --actor broker") if peer["peer"] == "guest"] == [5]
    _, err = cli("lease request vm 2 --for 1h --start +2h --dry-run", 1)
    assert "quota" in err
    out, _ = cli("reload broker")
    assert "at a restart" in out
    assert [row["key"] for row in cli.json("reload broker")] == ["actor.broker.listen"]
    assert "broker: a restart is needed for actor.broker.listen of the deploy file" in cli("status")[1]
    assert all(peer["connected"] for actor in cli.json("status") for peer in actor["peers"]), (
        "where they are is as it was"
    )


def test_an_actor_that_is_in_the_file_no_more_runs_until_a_restart(cli: Cli) -> None:
    """It is told at each reload, and by the status: others know it no more."""
    more = '[actor.more]\nrole = "guest"\n'
    cli.file.write_text(DEPLOY + more)
    cli("reload")
    cli("status --wait")
    change(cli)
    left = {"key": "actor.more", "before": '"guest"', "after": "", "restart": True}
    for _ in range(2):
        rows = cli.json("reload")
        assert [row["actor"] for row in rows if row["key"] == "actor.more"] == ["site", "broker", "guest"]
        assert all(row | left == row for row in rows if row["key"] == "actor.more")
    assert "site: a restart is needed for actor.more of the deploy file" in cli("status")[1]
    cli.file.write_text(DEPLOY + more)
    cli("reload")
    assert "a restart is needed" not in cli("status")[1]


def test_the_priority_that_counts_is_shown(cli: Cli) -> None:
    """A guest asks for a priority; what its peer entry at the broker allows of it counts, from a reload on."""
    cli("lease request vm 4 --for 1h --name holds --wait")
    cli("lease request vm 4 --for 30m --deferrable-until +20m --name waits --property priority=7")

    def counted() -> list[int]:
        return [lease["priority"] for lease in cli.json("broker requests")]

    wait_until("the request to wait", lambda: counted() != [0])
    change(cli, ('listen = ["unix:broker.sock"]', 'listen = ["unix:broker.sock"]\npermissions.guest.priority_max = 5'))
    cli("reload")
    assert counted() == [5]
    assert "priority" in cli("broker requests")[0]


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('role = "guest"\n', "role = [", "found a syntax error"),
        ("units = 4\n", "units = -4\n", "actor.site.inventory[0].units: found -4"),
        ('role = "guest"\n', 'role = "guest"\nmapper.name = "nobody"\n', "actor.guest.mapper.name: found 'nobody'"),
    ],
    ids=["not TOML", "a value", "a mapper"],
)
def test_a_file_that_is_wrong_changes_nothing(
    cli: Cli, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, old: str, new: str, word: str
) -> None:
    """Its error is told, no actor changes anything, and daemons are reached all the same: by the file as long as it is
    TOML, and by their sockets.
    """
    cli("lease request vm 1 --for 1h --name web --wait")
    change(cli, (old, new), ('name = "fcfs"', 'name = "priority"'))
    out, err = cli("reload", 1)
    assert out == "" and err.count(word) == 1, "said once, of all daemons"
    monkeypatch.setenv("LEASEKIT_FILE", str(cli.file))

    def by_socket(line: str, actor: str, status: int = 0) -> str:
        control = cli.file.parent / "run" / f"{actor}.control.sock"
        capfd.readouterr()
        assert main.run([*line.split(), "--control", str(control)]) == status, capfd.readouterr().err
        return capfd.readouterr().err

    for line in ("status", "clock accept", "site units", "peer list", "peer export", "site delegations"):
        by_socket(line, "site")
    for line in ("ticket show --lease web", "lease show web", "lease history web"):
        by_socket(line, "guest")
    by_socket("broker receipts", "broker")
    assert word in by_socket("reload", "site", 1)
    if "syntax" not in word:
        cli("status")
        cli("lease list")
    change(cli)
    assert cli.json("reload") == []


def test_a_driver_whose_units_are_in_use_stays(cli: Cli) -> None:
    """A unit that is leased has to be torn down by what set it up; when it is free the file may have no such driver."""
    vm = 'type = "vm"\nunits = 4\n'
    pcs = '[actor.site.driver.pcs]\nkind = "null"\ntypes = ["pc"]\n'
    vms = '[actor.site.driver.vms]\nkind = "null"\ntypes = ["vm"]\n'
    pc = f'type = "pc"\nunits = 1\n{pcs}{vms}[[actor.site.inventory]]\n'
    change(cli, (vm, pc + vm))
    cli("reload")
    cli("lease request vm 1 --for 1h --name web --wait")
    (unit,) = [unit["unit"] for unit in cli.json("site units") if unit["state"] == "active"]
    gone = pc.partition("[actor.site.driver.vms]")[0]
    change(cli, (vm, gone), ('broker = "broker"\ntype = "vm"', 'broker = "broker"\ntype = "pc"'))
    _, err = cli("reload site", 1)
    assert f"found none for units of type 'vm', expected null, which they have while they are in use: {unit}" in err
    cli("lease close web --wait")
    wait_until(
        "no unit to be in use", lambda: {one["state"] for one in cli.json("site units")} != {"free"} and "one is"
    )
    assert "actor.site.driver.vms.kind" in {row["key"] for row in cli.json("reload site")}


def test_a_driver_whose_units_are_in_use_is_not_changed_for_one_of_another_kind(cli: Cli) -> None:
    """That would tear down what it has not set up, and the process would go on."""
    vm, vms = 'type = "vm"\nunits = 4\n', '[actor.site.driver.vms]\nkind = "{}"\ntypes = ["vm"]\n'
    process = f'{vm}{vms.format("process")}directory = "units"\n'
    change(cli, (vm, process))
    cli("reload")
    cli("lease request vm 1 --for 1h --name web --wait")
    change(cli, (vm, f"{vm}{vms.format('null')}"))
    _, err = cli("reload site", 1)
    assert "found null for units of type 'vm', expected process, which they have while they are in use" in err
    cli("lease close web --wait")
    wait_until(
        "no unit to be in use", lambda: {one["state"] for one in cli.json("site units")} != {"free"} and "one is"
    )
    assert "actor.site.driver.vms.kind" in {row["key"] for row in cli.json("reload site")}


def test_a_unit_of_another_type_is_refused_with_all_else(cli: Cli) -> None:
    """What only the store can tell is wrong keeps the actor as it was, too."""
    change(
        cli,
        ('type = "vm"\nunits = 4', 'type = "pc"\nnames = ["vm-0"]'),
        ('broker = "broker"\ntype = "vm"', 'broker = "broker"\ntype = "pc"'),
    )
    _, err = cli("reload site", 1)
    assert "unit 'vm-0' is of type 'vm' and of type 'pc'" in err
    assert {unit["type"] for unit in cli.json("site units")} == {"vm"}
    change(cli)
    assert cli.json("reload site") == []


def test_a_signal_does_the_same(cli: Cli, daemons: subprocess.Popen[bytes]) -> None:
    """SIGHUP has all actors of a process take what the file says, and nothing where it is wrong; the log says which."""
    log = cli.file.with_suffix(".log")
    change(cli, ("units = 4\n", "units = -4\n"))
    daemons.send_signal(signal.SIGHUP)
    wait_until("nothing", lambda: log.read_text().count("nothing is reloaded") < 3 and log.read_text())
    change(cli, ("units = 4\n", "units = 5\n"))
    daemons.send_signal(signal.SIGHUP)
    wait_until("all", lambda: "guest: reload: no key has another value" not in log.read_text() and log.read_text())
    assert "site: reload: actor.site.inventory[0].units: 4 -> 5" in log.read_text()
    assert len(cli.json("site units")) == 5


def test_a_terminal_that_goes_ends_its_daemons(tmp_path: Path) -> None:
    """SIGHUP that comes because the terminal is closed is what it always was."""
    file = tmp_path / "deploy.toml"
    file.write_text(DEPLOY)
    child, terminal = os.forkpty()
    if not child:
        os.execv(sys.executable, [sys.executable, "-m", "leasekit.cli.main", "up", str(file)])
    said = b""
    while b"ready guest" not in said:
        said += os.read(terminal, 65_536)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_mappers_in_files_are_read_anew(cli: Cli) -> None:
    """Also where the deploy file is as it was; a mapper that can't be loaded changes nothing."""
    code = "from leasekit.core.mappers import Reject\n\n\nclass No:\n    def allocate(self, cycle):\n"
    file = cli.file.with_name("no.py")
    refuse = "        return [Reject(one.lease, 'WORDS') for one in cycle.requests]\n"
    file.write_text(code + refuse.replace("WORDS", "because"))
    change(cli, ('name = "fcfs", quotas = [{ holder = "guest", units = 4 }]', 'name = "no.py:No"'))
    assert {row["key"] for row in cli.json("reload broker")} == {
        "actor.broker.mapper.name",
        "actor.broker.mapper.quotas[0].holder",
        "actor.broker.mapper.quotas[0].units",
    }
    assert "because" in cli("lease request vm 1 --for 1h --wait", 1)[1]
    file.write_text(code + refuse.replace("WORDS", "still"))
    assert cli("reload broker")[1] == "no key has another value\n"
    assert "still" in cli("lease request vm 1 --for 1h --wait", 1)[1]
    file.write_text(f"{code}    ,\n")
    assert "can't be imported" in cli("reload broker", 1)[1]
    assert "still" in cli("lease request vm 1 --for 1h --wait", 1)[1]


def test_a_peer_that_is_gone_from_the_file_is_hung_up_on(cli: Cli) -> None:
    """Its leases stay, and it is let in again when the file names it again."""
    cli("lease request vm 1 --for 1h --name web --wait")
    change(cli, ('[actor.guest]\nrole = "guest"\n', ""))
    cli("reload site broker")
    assert [peer["peer"] for peer in cli.json("peer list --actor site")] == ["broker"]
    change(cli)
    cli("reload site broker")
    wait_until("let in", lambda: "2 of 2" not in (found := cli("status site")[0]) and found)
    assert cli.json("lease show web")["state"] == "active"
