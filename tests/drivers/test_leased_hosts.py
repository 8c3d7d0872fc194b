"""Hosts that are leased machines: the book that says which is which, how each is reached, and what there is without."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from leasekit.core.drivers import UNIT_HOST, DriverError, UnitContext
from leasekit.core.settings import SettingsError
from leasekit.drivers.libvirt.driver import LibvirtDriver
from leasekit.drivers.libvirt.leased import HostBook, LeasedHost, LeasedMachine, machine_of
from leasekit.drivers.libvirt.settings import LeasedHosts
from leasekit.drivers.registry import examine, make_driver

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMJdpVBIBavuwwCcmlU6ZjtVlTGwAwkARC4VysxM8kZf"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRU09aZ5Wa7jPAn7jb0z6bBnSJ3XTk8gLxTkYpLZVKw"


def machine(name: str = "lease-1/node-1", host: str = "192.0.2.7", key: str = KEY, until: int = 0) -> LeasedMachine:
    return machine_of(name, {"host": host, "host_key": key}, until)


@pytest.fixture
def book(tmp_path: Path) -> HostBook:
    return HostBook(tmp_path / "state/book.json", ("first", "second"))


def test_machines_are_hosts_in_turn(book):
    """A machine is the first free host, stays that however often it is added, and frees it when it goes."""
    assert book.all() == {}
    assert book.add(machine("a")) == "first"
    assert book.add(machine("b")) == "second"
    assert book.add(machine("b", until=7)) == "second"
    assert book.all() == {"first": machine("a"), "second": machine("b", until=7)}
    with pytest.raises(
        DriverError, match=r"machine c: there is no host left for it: first is a, second is b"
    ) as caught:
        book.add(machine("c"))
    assert not caught.value.retry
    assert [book.remove("a"), book.remove("a")] == ["first", ""]
    assert book.add(machine("c")) == "first"
    assert HostBook(book.path, book.slots).all() == book.all()


def test_machines_that_come_at_the_same_time(tmp_path):
    """Machines of one lease join side by side: each is another host."""
    slots = tuple(f"host-{number}" for number in range(20))
    found: list[str] = []

    def add(number: int) -> None:
        found.append(HostBook(tmp_path / "book", slots).add(machine(f"node-{number}")))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found) == sorted(slots)
    assert len(HostBook(tmp_path / "book", slots).all()) == 20


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"host": "-oProxyCommand=id", "host_key": KEY}, "unit property host: found '-oProxyCommand=id'"),
        ({"host": "192.0.2.7"}, "host_key"),
        ({"host": "192.0.2.7", "host_key": "ssh-ed25519 AAAA\nunit *"}, "unit property host_key"),
        ({"host": "192.0.2.7", "host_key": KEY, "user": "a b"}, "unit property user: found 'a b'"),
        ({"host": "192.0.2.7", "host_key": KEY, "port": "0"}, "unit property port: found '0'"),
    ],
    ids=["host", "no key", "key", "user", "port"],
)
def test_machines_that_are_not_to_be_believed(properties, reason):
    """What says how to log in to a machine comes from another site: what is no address, key or name is refused."""
    with pytest.raises(DriverError, match=reason) as caught:
        machine_of("node-1", properties)
    assert not caught.value.retry


@pytest.mark.parametrize("name", ["", "../up", "a b", "$(id)", "a\nb"])
def test_names_that_are_none(name):
    """A machine's name is that of a unit."""
    with pytest.raises(DriverError, match="unit id: found"):
        machine(name)


@pytest.mark.parametrize(
    "row",
    [
        [], {}, *(
            {**machine().as_row(), **change}
            for change in ({"until": "soon"}, {"host": 7}, {"x": ""}, {"host": "-x"}, {"until": -1})
        ),
    ],
    ids=["list", "empty", "until", "number", "more", "host", "negative"],
)  # fmt: skip
def test_a_book_that_was_damaged(book, row):
    """What is no book is told of by the file's name, and not written over."""
    book.path.parent.mkdir()
    book.path.write_text(json.dumps({"first": row}))
    for action in (book.all, lambda: book.add(machine("b")), lambda: book.remove("b")):
        with pytest.raises(DriverError, match=r"book\.json: found "):
            action()
    assert json.loads(book.path.read_text()) == {"first": row}


def leased(book: HostBook, **changes: Any) -> LeasedHosts:
    return LeasedHosts(book=book.path, key=book.path.with_name("a key"), **changes)


def test_a_host_is_reached_as_its_machine_is(book):
    """Each machine has a URI of its own, with a program in place of ssh that knows the machine's host key; what was
    there for the machine before it goes.
    """
    host = LeasedHost("first", leased(book, uri="qemu+ssh:///system?socket=/run/s"))
    assert host.uri() == ""
    book.add(machine())
    folder = book.path.with_name("book.json.ssh")
    first = host.uri()
    program, known = sorted(folder.iterdir())
    assert first == f"qemu+ssh://root@192.0.2.7:22/system?socket=/run/s&command={program}&no_tty=1"
    assert host.uri() == first
    assert known.read_text() == f"unit {KEY}\n"
    told = subprocess.run([program, "-G", "192.0.2.7"], capture_output=True, text=True, check=True).stdout
    options = dict(line.split(" ", 1) for line in told.splitlines() if " " in line)
    assert options["stricthostkeychecking"] in ("true", "yes")
    assert options["userknownhostsfile"] == str(known)
    assert options["identityfile"] == str(book.path.with_name("a key"))
    assert options["hostkeyalias"] == "unit"
    book.remove(machine().name)
    assert list(folder.iterdir()) == []
    book.add(machine("lease-2/node-1", "2001:db8::7", OTHER))
    second = host.uri()
    assert second.startswith("qemu+ssh://root@[2001:db8::7]:22/system?")
    assert sorted(path.read_text() for path in folder.iterdir())[1] == f"unit {OTHER}\n"
    assert len(list(folder.iterdir())) == 2
    other = LeasedHost("second", leased(book))
    assert other.uri() == "" and len(list(folder.iterdir())) == 2
    book.remove("lease-2/node-1")
    assert host.uri() == "" and list(folder.iterdir()) == []


def test_a_machine_that_stays_longer_is_the_same(book):
    """Only where and who a machine is makes another host of it: its connection goes on when its time is changed."""
    host = LeasedHost("first", leased(book))
    book.add(machine(until=5))
    before = host.uri()
    book.add(machine(until=9))
    assert host.uri() == before


def settings(book: HostBook, **changes: Any) -> dict[str, Any]:
    return {
        "hosts": {"first": {}, "here": {"uri": "test:///default", "pool": "default-pool"}},
        "leased": {"book": str(book.path), "key": str(book.path.with_name("key"))},
        "images": {"tiny": {"disk": {"volume": "base"}, "seed": "none", "ready": "running"}},
        **changes,
    }


def unit(op: str, host: str = "first") -> UnitContext:
    on = {UNIT_HOST: host}
    return UnitContext(unit=f"{host}.1", type="vm", lease="l", op=op, number=1, properties=on, log=lambda line: None)


async def test_a_host_without_a_machine(book):
    """No unit can be set up there, which may pass; what was there is gone and can be torn down; others are as ever."""
    driver = make_driver("libvirt", settings(book), "libvirt")
    assert isinstance(driver, LibvirtDriver)
    with pytest.raises(DriverError, match="host first: no machine is leased for it now") as caught:
        await driver.setup(unit("setup"))
    assert caught.value.retry
    found = await driver.probe(unit("probe"))
    assert (found.state, found.detail) == ("down", "host first: no machine is leased for it now")
    await driver.teardown(unit("teardown"))
    assert await driver.orphans(set()) == []
    assert (await driver.probe(unit("probe", "here"))).detail == "not set up"


async def test_a_machine_that_is_away(book):
    """A host whose machine does not answer is not taken for one without: nobody knows what is on it."""
    driver = make_driver("libvirt", settings(book), "libvirt")
    book.add(machine_of("node-1", {"host": "127.0.0.1", "port": "1", "host_key": KEY}))
    for action in (driver.setup, driver.teardown, driver.probe):
        with pytest.raises(DriverError, match=r"host first: can't connect to qemu\+ssh://root@127\.0\.0\.1:1/system"):
            await action(unit("setup"))


async def test_what_a_doctor_says(book):
    """A host without a machine is no fault; a key that is missing, or that others can read, is."""
    key = book.path.with_name("key")

    async def said() -> dict[str, tuple[str, str]]:
        found = await examine("libvirt", settings(book, image="tiny"), "libvirt")
        return {finding.what: (finding.verdict, finding.advice) for finding in found}

    told = await said()
    assert told["host first"] == ("doubtful", "lease a machine for it, whose join runs: leasekit site hypervisor add")
    assert told["key of leased hosts"][0] == "missing" and "ssh-keygen" in told["key of leased hosts"][1]
    key.parent.mkdir(exist_ok=True)
    key.touch(0o644)
    assert (await said())["key of leased hosts"] == ("missing", f"chmod 600 {key}")
    key.chmod(0o600)
    assert (await said())["key of leased hosts"][0] == "ok"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"leased": None}, "hosts.first: found no uri, expected one, or a table leased"),
        ({"hosts": {"here": {"uri": "test:///default"}}}, "leased: found a table, but each of the hosts has a uri"),
        ({"leased": {"book": "b", "key": "k", "uri": "qemu+ssh://far/system"}}, "expected one by ssh without a host"),
        ({"leased": {"book": "b", "key": "k", "uri": "qemu:///system"}}, "expected one by ssh without a host"),
        ({"leased": {"book": "b", "key": "k", "uri": "xen+ssh:///"}}, "for Xen there is the driver of kind 'xen'"),
        ({"leased": {"book": "b"}}, "key"),
    ],
    ids=["no table", "no host", "with a host", "not by ssh", "Xen", "no key"],
)
def test_settings_that_are_wrong(book, changes, reason):
    """A host without a uri needs the table, and the table such a host."""
    table = {key: value for key, value in settings(book, **changes).items() if value is not None}
    with pytest.raises(SettingsError, match=reason):
        make_driver("libvirt", table, "libvirt")
