"""Names by a real dnsmasq, hosts, users and slices in a real slapd."""

from __future__ import annotations

import importlib
import ipaddress
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from system.packages import DIRECTORY, require, require_root
from system.system_waits import wait_until

from leasekit.core.drivers import Driver, DriverError, UnitContext
from leasekit.core.settings import SettingsError
from leasekit.drivers.directory.publishing import PublishingDriver
from leasekit.drivers.registry import make_driver

BASE = "dc=example,dc=org"
ADMIN = f"cn=admin,{BASE}"
PASSWORD = "s3cret $(id) 'x'"
SLAPD = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
database mdb
maxsize 10485760
suffix "{base}"
rootdn "{admin}"
rootpw "{password}"
directory {folder}/data
"""


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    require_root()
    require(DIRECTORY)


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _taken(port: int) -> str:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        return str(error)
    return ""


def look_up(name: str, port: int, kind: int = 1) -> set[str]:
    """The addresses that the DNS server on that port of this machine has for a name (kind 28: IPv6)."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    query = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(10)
        link.sendto(query, ("127.0.0.1", port))
        answer = link.recv(4096)
    count, at, found = struct.unpack(">H", answer[6:8])[0], len(query), set()
    for _ in range(count):
        # Each answer begins with a pointer to the name that was asked for.
        type_, _, _, length = struct.unpack(">2HIH", answer[at + 2 : at + 12])
        if type_ == kind:
            found.add(str(ipaddress.ip_address(answer[at + 12 : at + 12 + length])))
        at += 12 + length
    return found


def make_unit(name: str, op: str = "setup", **properties: str) -> UnitContext:
    given = {"lease.holder": "alice", "slice.name": "web", **properties}
    return UnitContext(unit=name, type="vm", lease="l1", op=op, number=1, properties=given, log=lambda line: None)


def make(folder: Path, publish: dict[str, Any], **properties: str) -> Driver:
    """A driver whose units have these properties, which tells of them."""
    settings = {"properties": properties, "publish": publish}
    return make_driver("null", settings, "site.toml: driver", base=folder)


@pytest.fixture
def dns(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Settings of a dnsmasq that the driver starts."""
    settings = {"folder": "names", "listen": "127.0.0.1", "port": free_port(socket.SOCK_DGRAM), "domain": "vms.example"}
    yield {"dnsmasq": settings}
    pid_file = tmp_path / "names.pid"
    if pid_file.exists():
        os.kill(int(pid_file.read_text()), signal.SIGTERM)


async def test_names_come_and_go_with_units(tmp_path, dns):
    """A unit's names lead to its addresses from the end of its setup to the beginning of its teardown; what a killed
    dnsmasq knew the next one knows; a daemon that is started anew uses the dnsmasq that runs.
    """
    port = dns["dnsmasq"]["port"]
    driver = make(tmp_path, dns, hostname="vm-1.vms.example", addresses="10.7.0.4 fd00:7::4")
    await driver.setup(make_unit("vm-1"))
    for name in ("vm-1.vms.example", "vm-1"):
        wait_until(name, lambda name=name: None if look_up(name, port) == {"10.7.0.4"} else look_up(name, port))
        assert look_up(name, port, 28) == {"fd00:7::4"}
    first = int((tmp_path / "names.pid").read_text())
    again = make(tmp_path, dns, hostname="vm-1.vms.example", addresses="10.7.0.5")
    await again.modify(make_unit("vm-1", "modify"))
    wait_until("other addresses", lambda: None if look_up("vm-1", port) == {"10.7.0.5"} else look_up("vm-1", port))
    assert int((tmp_path / "names.pid").read_text()) == first
    os.kill(first, signal.SIGKILL)
    wait_until("its end", lambda: _taken(port))
    other = make(tmp_path, dns, hostname="vm-2.vms.example", addresses="10.7.0.6")
    await other.setup(make_unit("vm-2"))
    wait_until("both", lambda: {"10.7.0.5", "10.7.0.6"} - look_up("vm-1", port) - look_up("vm-2", port))
    os.kill(int((tmp_path / "names.pid").read_text()), signal.SIGKILL)
    wait_until("its end", lambda: _taken(port))
    await other.probe(make_unit("vm-2", "probe"))
    wait_until("both again", lambda: {"10.7.0.5", "10.7.0.6"} - look_up("vm-1", port) - look_up("vm-2", port))
    assert isinstance(other, PublishingDriver)
    assert [(one.unit, one.kind) for one in await other.orphans({"vm-2"})] == [("vm-1", "name")]
    for unit in ("vm-1", "vm-2", "never"):
        await other.teardown(make_unit(unit, "teardown"))
    wait_until("nobody", lambda: look_up("vm-1.vms.example", port) | look_up("vm-2.vms.example", port))
    assert list((tmp_path / "names").iterdir()) == []


async def test_a_dnsmasq_of_the_sites_own(tmp_path):
    """Where the site runs dnsmasq the driver writes files and tells it; one that does not run is told as such."""
    port = free_port(socket.SOCK_DGRAM)
    (tmp_path / "names").mkdir()
    command = [
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--no-hosts",
        "--no-resolv",
        "--port",
        str(port),
    ]
    command += ["--listen-address=127.0.0.1", "--bind-interfaces", f"--hostsdir={tmp_path}/names", "--user=root"]
    with subprocess.Popen([*command, f"--pid-file={tmp_path}/pid"]) as process:
        try:
            wait_until("dnsmasq", lambda: None if (tmp_path / "pid").exists() else "no pid file")
            publish = {"dnsmasq": {"folder": "names", "pid_file": "pid"}}
            driver = make(tmp_path, publish, hostname="vm-3", addresses="10.7.0.9")
            await driver.setup(make_unit("vm-3"))
            wait_until("the name", lambda: None if look_up("vm-3", port) else "nothing")
            await driver.teardown(make_unit("vm-3", "teardown"))
            wait_until("nobody", lambda: look_up("vm-3", port))
            await driver.setup(make_unit("vm-3"))
        finally:
            process.kill()
    with pytest.raises(DriverError, match=r"dnsmasq does not run, as its pid_file .*pid says"):
        await driver.teardown(make_unit("vm-3", "teardown"))


HOSTILE = ["a b", "x\n10.0.0.1 bank.example", "$(id)", "../../etc/hosts", "Ä", "-a", "a..b", "#", "a" * 300, "a/b"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("key", ["hostname", "addresses"])
async def test_what_is_no_name_is_not_published(tmp_path, dns, key, text):
    """Host names and addresses that are none never get into a file that dnsmasq reads; the setup fails, for good."""
    driver = make(tmp_path, dns, **{"hostname": "vm-1", "addresses": "10.0.0.1", key: text})
    with pytest.raises(DriverError, match=f"unit property {key}: found") as caught:
        await driver.setup(make_unit("vm-1"))
    assert not caught.value.retry
    assert not (tmp_path / "names").exists() or list((tmp_path / "names").iterdir()) == []


@attrs.frozen
class Slapd:
    """An LDAP server of the test's own."""

    settings: dict[str, Any]
    port: int

    def entries(self, folder: str) -> dict[str, dict[str, list[str]]]:
        """What is in one of the folders, by DN."""
        ldap = importlib.import_module("ldap3")
        with ldap.Connection(ldap.Server(f"ldap://127.0.0.1:{self.port}"), ADMIN, PASSWORD) as link:
            link.search(f"ou={folder},{BASE}", "(objectClass=*)", ldap.LEVEL, attributes=["*"])
            return {
                one["dn"]: {key: [value.decode() for value in values] for key, values in one["raw_attributes"].items()}
                for one in link.response or []
            }


@pytest.fixture
def slapd(tmp_path: Path) -> Iterator[Slapd]:
    (tmp_path / "data").mkdir()
    words = {"folder": tmp_path, "base": BASE, "admin": ADMIN, "password": PASSWORD}
    (tmp_path / "slapd.conf").write_text(SLAPD.format(**words))
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    port = free_port()
    command = ["slapd", "-d", "0", "-f", str(tmp_path / "slapd.conf"), "-h", f"ldap://127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until("slapd", lambda: _refused(port, process))
            ldap = importlib.import_module("ldap3")
            with ldap.Connection(ldap.Server(f"ldap://127.0.0.1:{port}"), ADMIN, PASSWORD, auto_bind=True) as link:
                assert link.add(BASE, ["dcObject", "organization"], {"dc": "example", "o": "example"}), link.result
            url = f"ldap://127.0.0.1:{port}"
            yield Slapd(
                {"ldap": {"url": url, "base": BASE, "bind": ADMIN, "password_file": "password", "homes": "/people"}},
                port,
            )
        finally:
            process.kill()


def _refused(port: int, process: subprocess.Popen[str]) -> str:
    assert process.poll() is None, process.stderr and process.stderr.read()
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError as error:
        return str(error)
    return ""


async def test_hosts_users_and_slices(tmp_path, slapd):
    """The directory has a host for each unit, a user for each holder and a group for each slice that has one, with
    numbers of their own that stay; when the last unit goes, they go.
    """
    for unit, holder, slice_ in (("vm-1", "alice", "web"), ("vm-2", "alice", "db"), ("vm-3", "bob", "web")):
        driver = make(
            tmp_path, slapd.settings, hostname=f"{unit}.example", addresses=f"10.7.0.{unit[-1]} fd00::{unit[-1]}"
        )
        for _ in range(2):
            await driver.setup(make_unit(unit, **{"lease.holder": holder, "slice.name": slice_}))
    hosts, users, slices = slapd.entries("hosts"), slapd.entries("users"), slapd.entries("slices")
    assert sorted(hosts) == [f"cn=vm-{number}.example,ou=hosts,{BASE}" for number in (1, 2, 3)]
    first = hosts[f"cn=vm-1.example,ou=hosts,{BASE}"]
    assert (first["ipHostNumber"], first["cn"]) == (["10.7.0.1", "fd00::1"], ["vm-1.example", "vm-1"])
    assert first["owner"] == [f"uid=alice,ou=users,{BASE}"]
    assert {found["uid"][0]: found["homeDirectory"] for found in users.values()} == {
        "alice": ["/people/alice"],
        "bob": ["/people/bob"],
    }
    assert {found["cn"][0]: found["memberUid"] for found in slices.values()} == {
        "alice.web": ["alice"],
        "alice.db": ["alice"],
        "bob.web": ["bob"],
    }
    assert len({found["gidNumber"][0] for found in slices.values()}) == 3
    assert len({found["uidNumber"][0] for found in users.values()}) == 2
    await driver.setup(make_unit("vm-3", **{"lease.holder": "alice", "slice.name": "web"}))
    assert sorted(found["uid"][0] for found in slapd.entries("users").values()) == ["alice"]
    before = slapd.entries("slices")[f"cn=alice.web,ou=slices,{BASE}"]["gidNumber"]
    await driver.teardown(make_unit("vm-1", "teardown"))
    assert slapd.entries("slices")[f"cn=alice.web,ou=slices,{BASE}"]["gidNumber"] == before
    assert isinstance(driver, PublishingDriver)
    assert {one.unit for one in await driver.orphans(())} == {"vm-2", "vm-3"}
    for unit in ("vm-2", "vm-3", "never"):
        await driver.teardown(make_unit(unit, "teardown"))
    assert slapd.entries("hosts") == slapd.entries("users") == slapd.entries("slices") == {}


async def test_holders_and_slices_of_any_name(tmp_path, slapd):
    """Names of holders and slices that are no names of users and groups get one that is, each its own; nothing in them
    is taken as part of a DN or a filter.
    """
    odd = ["a,ou=hosts", "*)(objectClass=*", "ü \u202e", "x" * 200, "Alice", "alice", "$(id)", "a\nb", "a\\2cb", ""]
    for number, text in enumerate(odd):
        driver = make(tmp_path, slapd.settings, hostname=f"vm-{number}", addresses="10.7.0.1")
        await driver.setup(make_unit(f"vm-{number}", **{"lease.holder": text, "slice.name": text[::-1]}))
    assert len(slapd.entries("hosts")) == len(slapd.entries("users")) == len(slapd.entries("slices")) == len(odd)
    assert f"uid=alice,ou=users,{BASE}" in slapd.entries("users")
    for number in range(len(odd)):
        await driver.teardown(make_unit(f"vm-{number}", "teardown"))
    assert slapd.entries("hosts") == slapd.entries("users") == slapd.entries("slices") == {}


async def test_a_directory_that_does_not_answer(tmp_path, slapd):
    """A wrong password, or a server that is not there, is the reason of the unit, without the password in it."""
    (tmp_path / "password").write_text("wrong")
    driver = make(tmp_path, slapd.settings, hostname="vm-1", addresses="10.7.0.1")
    with pytest.raises(DriverError, match="can't log in: invalidCredentials") as caught:
        await driver.setup(make_unit("vm-1"))
    assert "wrong" not in str(caught.value)
    gone = {"ldap": {**slapd.settings["ldap"], "url": f"ldap://127.0.0.1:{free_port()}"}}
    with pytest.raises(DriverError, match=r"LDAP at ldap://127.0.0.1:.*: ") as caught:
        await make(tmp_path, gone, hostname="vm-1", addresses="10.7.0.1").setup(make_unit("vm-1"))
    assert caught.value.retry


@pytest.mark.parametrize(
    ("publish", "reason"),
    [
        ({}, "expected dnsmasq, ldap or both"),
        ({"dnsmasq": {"folder": "names"}}, "expected pid_file, of a dnsmasq that runs, or listen"),
        ({"dnsmasq": {"folder": "a b", "listen": "127.0.0.1"}}, "expected a path without blanks"),
        ({"dnsmasq": {"folder": "names", "listen": "here"}}, "'here' does not appear to be an IPv4 or IPv6 address"),
        ({"ldap": {"url": "http://x", "base": BASE}}, "url"),
        ({"ldap": {"url": "ldap://x", "base": "nonsense"}}, "expected a DN"),
        ({"dns": {}}, "dns"),
    ],
)
def test_settings_that_are_wrong(tmp_path, publish, reason):
    """Each fault is told with the key that it is at."""
    with pytest.raises(SettingsError, match=r"site\.toml: driver") as caught:
        make(tmp_path, publish)
    assert reason in str(caught.value)
