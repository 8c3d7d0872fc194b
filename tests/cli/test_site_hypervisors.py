"""`leasekit site hypervisor` against real daemons: which machine is which host, and when its units are in service."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_daemons import running
from system.libvirt_site import HEAD
from system.system_waits import wait_until

from leasekit.cli import main
from leasekit.core.time import INSTANT_MAX

pytestmark = pytest.mark.xdist_group("cli_daemons")

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMJdpVBIBavuwwCcmlU6ZjtVlTGwAwkARC4VysxM8kZf"
UNTIL = 4_000_000_000_000
DRIVER = """
[actor.site.driver.{name}]
kind = "libvirt"
{leased}
[actor.site.driver.{name}.hosts]
{type}-1 = {{ {uri} }}
{type}-2 = {{ {uri} }}
[actor.site.driver.{name}.images.tiny]
disk = {{ volume = "base" }}
seed = "none"
ready = "running"
[[actor.site.inventory]]
type = "{type}"
names = ["{type}-1", "{type}-2"]
capacity = {{ cpu = 2, memory = "1GiB" }}
driver = "{name}"
[[actor.site.delegation]]
broker = "broker"
type = "{type}"
"""
TEXT = HEAD.replace('name = "vms"', 'name = "vms"\nstate = "run"')
NEEDS = ("--needs", "cpu=1,memory=512MiB")
LEASED = 'leased = { book = "book.json", key = "key" }'


class Cli:
    """Runs commands in this process."""

    def __init__(self, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.file, self._capfd = file, capfd

    def __call__(self, *words: str, status: int = 0) -> tuple[str, str]:
        """Standard output and error of a command that must end with ``status``."""
        found = main.run([*words, "--file", str(self.file)])
        out, err = self._capfd.readouterr()
        assert found == status, err
        return out, err

    def json(self, *words: str) -> Any:
        """The JSON document that it prints."""
        return json.loads(self(*words, "--json")[0])

    def add(self, name: str, *more: str, status: int = 0) -> str:
        """Adds a machine; what the command says."""
        words = ("--address", "192.0.2.7", "--host-key", KEY)
        return self("site", "hypervisor", "add", name, *words, *more, status=status)[1]

    def windows(self) -> dict[str, tuple[int, int, list[str]]]:
        """The windows by reason: start (0: begun), end and units."""
        found = self.json("site", "maintenance", "list")
        assert len({window["reason"] for window in found}) == len(found)
        return {w["reason"]: (0 if w["begun"] else w["start"], w["end"], sorted(w["units"])) for w in found}

    def states(self) -> dict[str, str]:
        """The states of the units."""
        return {unit["unit"]: unit["state"] for unit in self.json("site", "units")}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("d") / "leasekit.toml"
    path.write_text(TEXT + DRIVER.format(name="vms", type="vm", leased=LEASED, uri=""))
    with running(path):
        yield path


@pytest.fixture
def cli(file: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(file, capfd)


FIRST, SECOND = "host vm-1 is not leased", "host vm-2 is not leased"


def test_hosts_are_in_service_while_they_have_a_machine(cli):
    """Windows over all time without a machine follow the book, are asked for once each, and brokers heed them."""
    nobody = {FIRST: (0, INSTANT_MAX, ["vm-1"]), SECOND: (0, INSTANT_MAX, ["vm-2"])}
    assert cli("site", "hypervisor", "sync")[1] == "2 hosts changed: vm-1, vm-2\n"
    assert cli("site", "hypervisor", "sync")[1] == "all is as it should be\n"
    assert cli.windows() == nobody
    assert set(cli.states().values()) == {"out"}

    assert cli.add("a/node-7", "--until", str(UNTIL)) == "a/node-7 is host vm-1 until 2096-10-02T07:06:40Z\n"
    assert cli.windows() == {**nobody, FIRST: (UNTIL, INSTANT_MAX, ["vm-1"])}
    assert cli.states() == {"vm-1": "free", "vm-2": "out"}
    cli.add("a/node-7", "--until", str(UNTIL + 1))
    assert cli.windows()[FIRST][0] == UNTIL + 1
    cli.add("b/node-1")
    assert list(cli.windows()) == [FIRST]
    listed = cli.json("site", "hypervisor", "list")
    assert [(row["host"], row["machine"], row["address"], row["until"], row["units"]) for row in listed] == [
        ("vm-1", "a/node-7", "192.0.2.7", UNTIL + 1, []), ("vm-2", "b/node-1", "192.0.2.7", 0, []),
    ]  # fmt: skip
    assert "there is no host left for it: vm-1 is a/node-7, vm-2 is b/node-1" in cli.add("c", status=1)

    for name in ("a/node-7", "b/node-1"):
        assert cli("site", "hypervisor", "remove", name)[1] == f"{name} is no host any more\n"
    assert cli("site", "hypervisor", "remove", "a/node-7")[1] == "a/node-7 is no host\n"
    assert cli.windows() == nobody
    assert "vm-1" in cli("site", "hypervisor", "list")[0]


def test_a_broker_grants_no_more_than_there_is(cli):
    """A request is granted for as many units as hosts have room for, and for no time in which a host has no machine."""

    def answers(expected: bool, units: int, start: str, span: str = "1h") -> None:
        words = ("lease", "request", "vm", str(units), *NEEDS, "--start", start, "--for", span, "--dry-run")

        def missing() -> str:
            status = main.run([*words, "--file", str(cli.file)])
            return "" if (status == 0) == expected else f"the status {status}"

        # The site tells the broker as soon as it can, which is after the command is done.
        wait_until(f"{words}", missing)

    cli("site", "hypervisor", "sync")
    answers(False, 1, "+10m")
    cli.add("node-7", "--until", "+4h")
    answers(True, 2, "+10m")
    answers(False, 3, "+10m")
    answers(False, 1, "+10m", "5h")
    answers(False, 1, "+5h")
    cli("site", "hypervisor", "remove", "node-7")
    answers(False, 1, "+10m")


def test_a_machine_that_does_not_answer_is_let_go(cli):
    """A lease with a unit on a host whose machine goes ends for it; where nothing is heard of that, the command waits
    no longer than it may, and the unit ends with the machine.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        cli("site", "hypervisor", "add", "mute", "--address", "127.0.0.1", "--port", port, "--host-key", KEY)
        lease = cli.json("lease", "request", "vm", "1", *NEEDS, "--for", "1h")["id"]
        wait_until("a unit", lambda: "" if "setup" in cli.states().values() else cli.states(), 60)
        said = cli("site", "hypervisor", "remove", "mute", "--patience", "100ms")[1]
        assert said == "mute is no host any more; 1 unit of it had not ended\n"
    wait_until("its end", lambda: set(cli.states().values()) - {"out"})
    wait_until("the lease's end", lambda: cli.json("lease", "show", lease)["state"] not in ("closed", "failed"))


def test_what_can_not_be_a_machine(cli):
    """What another site says of its machine is checked before it is written down."""
    said = cli("site", "hypervisor", "add", "n", "--address", "-oProxyCommand=x", "--host-key", KEY, status=1)[1]
    assert "unit property host: found '-oProxyCommand=x', expected an address or a host name" in said
    said = cli("site", "hypervisor", "add", "../n", "--address", "192.0.2.7", "--host-key", KEY, status=1)[1]
    assert "unit id: found '..'" in said
    said = cli("site", "hypervisor", "add", "n", "--address", "192.0.2.7", "--host-key", "rsa", status=1)[1]
    assert "unit property host_key: found 'rsa'" in said
    assert [row["machine"] for row in cli.json("site", "hypervisor", "list")] == ["", ""]


def test_which_driver_is_meant(tmp_path, capfd):
    """Where no driver has leased hosts, or several have, the command says so."""
    file = tmp_path / "two.toml"
    one = DRIVER.format(name="one", type="vm", leased=LEASED, uri="")
    two = DRIVER.format(name="two", type="vn", leased=LEASED.replace("book.json", "2.json"), uri="")
    none = DRIVER.format(name="none", type="vm", leased="", uri='uri = "test:///default"')
    for text, words, said in (
        (
            one + two,
            (),
            "actor site has 2 drivers of kind libvirt with leased hosts: one, two; say which with --driver",
        ),
        (none, (), "actor site has no drivers of kind libvirt with leased hosts"),
        (one, ("--driver", "x"), "actor site has no drivers called 'x' of kind libvirt with leased hosts"),
    ):
        file.write_text(TEXT + text)
        assert main.run(["site", "hypervisor", "list", *words, "--file", str(file)]) == 1
        assert said in capfd.readouterr().err
