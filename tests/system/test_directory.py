"""Names by a real dnsmasq, hosts, users and slices in a real slapd."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from system.directory_world import ADMIN, BASE, PASSWORD, READER, WRITER, Slapd, certificate, running_slapd
from system.packages import DIRECTORY, require, require_root
from system.system_waits import wait_until

from leasekit.core.drivers import Driver, DriverError, UnitContext
from leasekit.core.settings import SettingsError
from leasekit.drivers.directory.entry import DirectoryEntry
from leasekit.drivers.directory.ldap import LdapExport
from leasekit.drivers.directory.publishing import PublishingDriver
from leasekit.drivers.registry import examine, make_driver


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    require_root()
    require(DIRECTORY)


def free_port() -> int:
    """A port that nobody has, neither of TCP nor of UDP: a server of names has both."""
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        stream.bind(("127.0.0.1", 0))
        port: int = stream.getsockname()[1]
        try:
            datagrams.bind(("127.0.0.1", port))
        except OSError:
            return free_port()
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
    settings = {"folder": "names", "listen": "127.0.0.1", "port": free_port(), "domain": "vms.example"}
    yield {"dnsmasq": settings}
    pid_file = tmp_path / "names.pid"
    if pid_file.exists():
        os.kill(int(pid_file.read_text()), signal.SIGTERM)


async def test_names_come_and_go_with_units(tmp_path, dns):
    """A unit's names lead to its addresses from the end of its setup to its teardown; what a killed
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


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that dnsmasq's user can get into, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="leasekit-names-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def test_a_dnsmasq_of_the_sites_own(open_folder):
    """Where the site runs dnsmasq, as a user of its own, the driver writes files and tells it; one that does not run is
    told as such.
    """
    tmp_path, port = open_folder, free_port()
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
    command += ["--listen-address=127.0.0.1", "--bind-interfaces", f"--hostsdir={tmp_path}/names"]
    with subprocess.Popen([*command, f"--pid-file={tmp_path}/pid"]) as process:
        try:
            wait_until("dnsmasq", lambda: None if (tmp_path / "pid").exists() else "no pid file")
            publish = {"dnsmasq": {"folder": "names", "pid_file": "pid"}}
            driver = make(tmp_path, publish, hostname="vm-3", addresses="10.7.0.9")
            found = {one.what: one.verdict for one in await examine("null", {"publish": publish}, "", base=tmp_path)}
            assert found == {"publish: dnsmasq": "ok", "publish: names": "ok"}
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


@pytest.fixture
def slapd(tmp_path: Path) -> Iterator[Slapd]:
    with running_slapd(tmp_path) as found:
        yield found


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


async def test_the_doctor_looks_where_units_are_told_of(tmp_path, slapd):
    """Before any lease comes it is said whether the directory answers, lets the site in, and its password is kept from
    others, and whether the site's own dnsmasq runs; with a directory that is down each comes with what to do.
    """

    async def look(**more: Any) -> dict[str, str]:
        settings = {**slapd.settings, **more}
        found = await examine("null", {"publish": settings}, "driver", base=tmp_path)
        assert all(one.advice for one in found if one.verdict != "ok")
        return {one.what: f"{one.verdict}: {one.found}" for one in found}

    assert await look() == {
        "publish: directory": f"ok: {slapd.settings['ldap']['url']} answers; it has 0 units",
    }
    assert slapd.all() == [{}, {}, {}], "nothing is left"
    base = "ou=none,dc=example,dc=org"
    nowhere = (await look(ldap={**slapd.settings["ldap"], "base": base}))["publish: directory"]
    assert f"found no entry {base} (base), or none that {WRITER} may see" in nowhere
    reader = {**slapd.settings["ldap"], "bind": READER}
    barred = (await look(ldap=reader))["publish: directory"]
    assert barred.startswith("missing: ") and "insufficientAccessRights" in barred
    assert f"({READER} writes ou=leasekit-trial,{BASE})" in barred
    slapd.add("ou=hosts", ["organizationalUnit"])
    assert f"({READER} writes ou=leasekit-trial,ou=hosts,{BASE})" in (await look(ldap=reader))["publish: directory"]
    (tmp_path / "password").chmod(0o644)
    assert "mode 0644" in (await look())["publish: directory"]
    (tmp_path / "password").write_text("another")
    (tmp_path / "password").chmod(0o600)
    assert (await look())["publish: directory"].startswith("missing: ")
    down = {**slapd.settings["ldap"], "url": f"ldap://127.0.0.1:{free_port()}"}
    assert (await look(ldap=down))["publish: directory"].startswith(f"missing: LDAP at {down['url']}")
    (tmp_path / "password").unlink()
    found = await look(dnsmasq={"folder": "names", "pid_file": "dnsmasq.pid"})
    assert found["publish: directory"].startswith("missing: ") and "password" in found["publish: directory"]
    assert found["publish: dnsmasq"] == f"missing: does not run, as {tmp_path}/dnsmasq.pid says"


async def test_holders_and_slices_of_any_name(tmp_path, slapd):
    """Names of holders and slices that are no names of users and groups get one that is, each its own; nothing in them
    is taken as part of a DN or a filter.
    """
    odd = [
        "rehto:tikesael",
        "a,ou=hosts",
        "*)(objectClass=*",
        "ü \u202e",
        "x" * 200,
        "Alice",
        "alice",
        "$(id)",
        "a\nb",
        "a\\2cb",
        "",
    ]
    for number, text in enumerate(odd):
        driver = make(tmp_path, slapd.settings, hostname=f"vm-{number}", addresses="10.7.0.1")
        await driver.setup(make_unit(f"vm-{number}", **{"lease.holder": text, "slice.name": text[::-1]}))
    assert len(slapd.entries("hosts")) == len(slapd.entries("users")) == len(slapd.entries("slices")) == len(odd)
    assert f"uid=alice,ou=users,{BASE}" in slapd.entries("users")
    for number in range(len(odd)):
        await driver.teardown(make_unit(f"vm-{number}", "teardown"))
    assert slapd.entries("hosts") == slapd.entries("users") == slapd.entries("slices") == {}


def others(slapd: Slapd) -> None:
    """A directory that has people, groups and machines of the site's own, in the same folders."""
    for folder in ("hosts", "users", "slices"):
        slapd.add(f"ou={folder}", ["organizationalUnit"], ou=folder)
    person = {"uid": "carol", "cn": "Carol", "gidNumber": 100, "homeDirectory": "/people/carol"}
    slapd.add("uid=carol,ou=users", ["account", "posixAccount"], **person, uidNumber=20_000)
    slapd.add("cn=staff,ou=slices", ["posixGroup"], cn="staff", gidNumber=20_000, description="all who work here")
    slapd.add("cn=printer,ou=hosts", ["device", "ipHost"], cn="printer", ipHostNumber="10.7.0.200")
    slapd.add("cn=camera,ou=hosts", ["device", "ipHost"], cn="camera", ipHostNumber="10.7.0.201", description="vm-1")
    slapd.add("cn=odd,ou=hosts", ["device", "ipHost"], cn="odd", ipHostNumber="::1", description="leasekit:one", ou="x")


async def test_what_is_not_leasekits_stays(tmp_path, slapd):
    """A directory's own people, groups and machines are as they were after setup, modify, orphans and teardown, with
    whatever attributes; their numbers are nobody else's.
    """
    others(slapd)
    before = slapd.all()
    driver = make(tmp_path, slapd.settings, hostname="vm-1", addresses="10.7.0.1")
    await driver.setup(make_unit("vm-1"))
    await driver.modify(make_unit("vm-1", "modify"))
    assert slapd.entries("users")[f"uid=alice,ou=users,{BASE}"]["uidNumber"] == ["20001"]
    assert slapd.entries("slices")[f"cn=alice.web,ou=slices,{BASE}"]["gidNumber"] == ["20001"]
    assert isinstance(driver, PublishingDriver)
    assert {one.unit for one in await driver.orphans(())} == {"vm-1"}
    await driver.teardown(make_unit("vm-1", "teardown"))
    assert slapd.all() == before


TAKEN = [
    ("ou=users", "uid=alice", ["account", "posixAccount"], {"uidNumber": 7, "gidNumber": 7, "homeDirectory": "/x"}),
    ("ou=slices", "cn=alice.web", ["posixGroup"], {"gidNumber": 7, "description": "of another time"}),
    ("ou=hosts", "cn=vm-1", ["device", "ipHost"], {"ipHostNumber": "10.7.0.9", "description": "vm-1"}),
    ("ou=hosts", "cn=vm-1", ["device", "ipHost"], {"ipHostNumber": "10.7.0.9", "description": "leasekit:two:vm-1"}),
]


@pytest.mark.parametrize(("folder", "name", "classes", "values"), TAKEN, ids=["user", "slice", "host", "site"])
async def test_a_name_that_somebody_has(tmp_path, slapd, folder, name, classes, values):
    """Where an entry that is not the site's has the name of one, the setup fails for good, and the entry stays."""
    slapd.add(folder, ["organizationalUnit"])
    slapd.add(f"{name},{folder}", classes, cn=name.partition("=")[2], **values)
    before = slapd.entries(folder[3:])
    driver = make(tmp_path, slapd.settings, hostname="vm-1", addresses="10.7.0.1")
    why = "is marked as leasekit:two:vm-1" if "leasekit" in str(values) else "is not leasekit's"
    with pytest.raises(DriverError, match=f"{name},{folder},{BASE} is there, and {why}: it is left as it is") as caught:
        await driver.setup(make_unit("vm-1"))
    assert not caught.value.retry
    await driver.teardown(make_unit("vm-1", "teardown"))
    assert slapd.entries(folder[3:]) == before


async def test_two_sites_share_a_directory(tmp_path, slapd):
    """Sites don't see each other's hosts as orphans; a holder of both is one user, who goes with the last of them."""
    one = make(tmp_path, slapd.of("one"), hostname="vm-1", addresses="10.7.0.1")
    two = make(tmp_path, slapd.of("one.b"), hostname="vm-2", addresses="10.7.0.2")
    assert isinstance(one, PublishingDriver) and isinstance(two, PublishingDriver)
    await one.setup(make_unit("vm-1"))
    await two.setup(make_unit("vm-2"))
    (user,) = slapd.entries("users").values()
    assert sorted(user["description"]) == ["leasekit", "leasekit:one", "leasekit:one.b"]
    assert [found.unit for found in await one.orphans(())] == ["vm-1"]
    await one.teardown(make_unit("vm-2", "teardown"))
    assert len(slapd.entries("hosts")) == 2
    await one.teardown(make_unit("vm-1", "teardown"))
    (left,) = slapd.entries("users").values()
    assert left["uidNumber"] == user["uidNumber"]
    assert sorted(left["description"]) == ["leasekit", "leasekit:one.b"]
    assert [sorted(found) for found in slapd.all()] == [
        [f"cn=vm-2,ou=hosts,{BASE}"], [f"uid=alice,ou=users,{BASE}"], [f"cn=alice.web,ou=slices,{BASE}"]
    ]  # fmt: skip
    await two.teardown(make_unit("vm-2", "teardown"))
    assert slapd.all() == [{}, {}, {}]


async def test_a_site_that_needs_what_another_just_gives_up(slapd, monkeypatch):
    """A user whom one site is about to remove stays when another site needs it by then, and is made anew when it is
    gone by then.
    """
    one, two = slapd.export("one"), slapd.export("two", "localhost")
    first = DirectoryEntry(unit="vm-1", hostname="vm-1", addresses=("10.7.0.1",), holder="alice", slice="web")
    second = attrs.evolve(first, unit="vm-2", hostname="vm-2")
    one.publish(first)
    delete = LdapExport._delete

    def late(self, link, name, *controls):
        if self is one and name.startswith("uid="):
            two.publish(second)
        delete(self, link, name, *controls)

    monkeypatch.setattr(LdapExport, "_delete", late)
    one.withdraw("vm-1")
    monkeypatch.undo()
    assert [found["description"] for found in slapd.entries("users").values()] == [["leasekit", "leasekit:two"]]
    read = LdapExport._read

    def early(self, link, name):
        found = read(self, link, name)
        if self is one and found is not None and two.units():
            two.withdraw("vm-2")
        return found

    monkeypatch.setattr(LdapExport, "_read", early)
    one.publish(first)
    assert [found["description"] for found in slapd.entries("users").values()] == [["leasekit", "leasekit:one"]]
    assert one.units() == {"vm-1"}
    one.withdraw("vm-1")
    assert slapd.all() == [{}, {}, {}]


async def test_teardown_waits_for_no_directory(tmp_path, slapd):
    """A unit ends although the directory refuses the site, or does not answer; that is told, and the next try, when
    the directory is back, takes the unit out of it.
    """
    driver = make(tmp_path, slapd.settings, hostname="vm-1", addresses="10.7.0.1")
    await driver.setup(make_unit("vm-1"))
    assert isinstance(driver, PublishingDriver)
    (tmp_path / "password").write_text("wrong\n")
    with pytest.raises(
        DriverError, match=r"the unit has ended, and is still told of: LDAP at .* can't log in"
    ) as caught:
        await driver.teardown(make_unit("vm-1", "teardown"))
    assert caught.value.retry
    assert (await driver.inner.probe(make_unit("vm-1", "probe"))).state == "down"
    assert len(slapd.entries("hosts")) == 1
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    await driver.teardown(make_unit("vm-1", "teardown"))
    assert slapd.all() == [{}, {}, {}]


async def test_teardown_waits_for_no_answer(tmp_path, slapd):
    """While a directory keeps the driver waiting the unit's end comes to pass."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        driver = make(tmp_path, slapd.of(url=f"ldap://127.0.0.1:{port}"), hostname="vm-1", addresses="10.7.0.1")
        assert isinstance(driver, PublishingDriver)
        await driver.inner.setup(make_unit("vm-1"))
        problems: list[DriverError] = []

        async def end() -> None:
            try:
                await driver.teardown(make_unit("vm-1", "teardown"))
            except DriverError as error:
                problems.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            with trio.fail_after(60):
                link, _ = await trio.to_thread.run_sync(silent.accept)
                while (await driver.inner.probe(make_unit("vm-1", "probe"))).state != "down":
                    await trio.sleep(0.01)
            assert not problems
            link.close()
    assert "still told of: LDAP at" in str(problems[0])


async def test_ldaps_is_for_the_server_that_is_meant(tmp_path, slapd):
    """The server's certificate must be of the file in the settings, or of an authority that the machine knows, and of
    the host's name.
    """
    url = f"ldaps://localhost:{slapd.tls}"
    trusted = {"url": url, "ca_file": str(tmp_path / "localhost.pem")}
    await make(tmp_path, slapd.of(**trusted), hostname="vm-1", addresses="10.7.0.1").setup(make_unit("vm-1"))
    assert len(slapd.entries("hosts")) == 1
    (tmp_path / "others").mkdir()
    for changes in (
        {"url": url},
        {"url": url, "ca_file": str(certificate(tmp_path / "others", "localhost"))},
        {**trusted, "url": f"ldaps://127.0.0.1:{slapd.tls}"},
    ):
        driver = make(tmp_path, slapd.of(**changes), hostname="vm-2", addresses="10.7.0.2")
        with pytest.raises(DriverError, match=r"LDAP at ldaps://.*(certificate|doesn't match)"):
            await driver.setup(make_unit("vm-2"))
    assert len(slapd.entries("hosts")) == 1


async def test_a_password_that_others_can_read(tmp_path, slapd):
    """It is not used."""
    (tmp_path / "password").chmod(0o640)
    driver = make(tmp_path, slapd.settings, hostname="vm-1", addresses="10.7.0.1")
    with pytest.raises(DriverError, match="password: found mode 0640, others must not read it") as caught:
        await driver.setup(make_unit("vm-1"))
    assert not caught.value.retry


def test_a_password_in_the_clear_is_allowed_by_name(tmp_path, slapd):
    """To another machine, where the site says so; on this machine anyway."""
    for changes in (
        {"url": "ldap://192.0.2.1", "plaintext": True}, {"url": "ldap://[::1]:1389"}, {"url": "ldap://localhost"},
        {"url": "ldapi://%2Frun%2Fslapd%2Fldapi"},
    ):  # fmt: skip
        make(tmp_path, slapd.of(**changes))


async def test_a_folder_of_names_that_can_not_be_read(tmp_path, dns):
    """It is told of as what a driver can't find out."""
    (tmp_path / "names").write_text("no folder")
    driver = make(tmp_path, dns)
    assert isinstance(driver, PublishingDriver)
    with pytest.raises(DriverError, match=r"can't read .*names: Not a directory"):
        await driver.orphans(())


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
        ({"ldap": {"url": "http://x", "base": BASE, "site": "one"}}, "url"),
        ({"ldap": {"url": "ldap://x", "base": "nonsense", "site": "one"}}, "expected a DN"),
        ({"ldap": {"url": "ldap://x", "base": BASE}}, "site"),
        ({"ldap": {"url": "ldap://x", "base": BASE, "site": "a:b"}}, "site"),
        ({"ldap": {"url": "ldaps://x", "base": BASE, "site": "one", "ca_file": "none.pem"}}, "ldap.ca_file: found"),
        ({"ldap": {"url": "ldap://192.0.2.1", "base": BASE, "site": "one", "bind": ADMIN}}, "plaintext = true"),
        ({"ldap": {"url": "ldap://directory.example", "base": BASE, "site": "one", "bind": ADMIN}}, "expected ldaps"),
        ({"dns": {}}, "dns"),
    ],
)
def test_settings_that_are_wrong(tmp_path, publish, reason):
    """Each fault is told with the key that it is at."""
    with pytest.raises(SettingsError, match=r"site\.toml: driver") as caught:
        make(tmp_path, publish)
    assert reason in str(caught.value)
