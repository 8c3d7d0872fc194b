"""The xen driver in a played control domain: what it asks of `xl`, keeps in files, adopts, and says when it fails."""

from __future__ import annotations

import json
import os
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio
from polling import poll
from xen_control import HOST_KEY, KERNEL, XenHarness

from leasekit.cli import main
from leasekit.core.drivers import DriverError, Orphan
from leasekit.core.settings import SettingsError
from leasekit.drivers.registry import action_timeout, examine
from leasekit.drivers.unit_books import AddressBook, CpuSamples, UnitLocks
from leasekit.drivers.xen.listing import read_names, read_table

U1 = "contract-u1"
BLOCKS = {"bridge": "br0", "subnets": ["192.0.2.0/24"]}


@pytest.fixture
def far(tmp_path: Path) -> XenHarness:
    return XenHarness(tmp_path)


def faults(far: XenHarness, **changes: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        action_timeout("xen", far.settings(**changes), None, "site.driver")
    return str(caught.value)


def artifact(far: XenHarness, name: str, content: bytes) -> dict[str, str]:
    path = far.directory / name
    path.write_bytes(content)
    return {"file": str(path), "sha256": sha256(content).hexdigest()}


async def test_properties_tell_a_guest_what_it_needs(far, make_unit):
    """A unit's properties are its name, addresses, port, console and image, and no secret or path of the host."""
    driver = far.make(domain="site.example")
    assert await driver.setup(make_unit("vm-1")) == {
        "name": "vm-1",
        "hostname": "vm-1.site.example",
        "host": "192.0.2.11",
        "port": "22",
        "addresses": "192.0.2.11 2001:db8::b",
        "console": "here/contract-vm-1",
        "image": "tiny",
    }
    assert driver.capabilities == {"cap", "resize", "suspend", "image"}


async def test_modify_reaches_xl(far, make_unit):
    """Sizes that a lease chose are set on the running domain, and are what it is made from when its guest reboots."""
    driver = far.make(choices={"vcpus": [1, 2], "cap": [0, 200], "shares": [0, 999], "memory_mb": [64, 512]})
    await driver.setup(make_unit("u1"))
    wanted = {"vcpus": "2", "cap": "30", "shares": "512", "memory_mb": "128"}
    await driver.modify(make_unit("u1", "modify", 2, properties=wanted))
    calls = far.calls()
    assert ["vcpu-set", U1, "2"] in calls
    assert ["mem-set", U1, "128m"] in calls
    assert ["sched-credit2", "-d", U1, "-c", "30", "-w", "512"] in calls
    assert calls[-1][0] == "config-update"
    config = (far.folder / "units" / U1 / "domain.cfg").read_text().splitlines()
    assert {"vcpus = 2", "cap = 30", "cpu_weight = 512", "memory = 128", "maxmem = 512"} <= set(config)
    assert (await driver.probe(make_unit("u1", "probe"))).measured["vcpus"] == 2
    await driver.modify(make_unit("u1", "modify", 3, properties={**wanted, "cap": "0", "shares": "0"}))
    assert [call for call in far.calls() if call[0] == "sched-credit2"][-1][3:] == ["-c", "0", "-w", "256"]
    assert "cpu_weight" not in (far.folder / "units" / U1 / "domain.cfg").read_text()


async def test_a_lease_chooses_nothing_else(far, make_unit):
    """Properties that the site does not let a lease choose change nothing; what it lets it choose has bounds."""
    driver = far.make(choices={"cap": [0, 50]})
    await driver.setup(make_unit("u1", properties={"memory_mb": "9999", "disk": "/dev/sda", "kernel": "/evil"}))
    assert far.domains()[U1]["memory"] == 512
    with pytest.raises(DriverError, match="property cap: found '51'"):
        await driver.modify(make_unit("u1", "modify", 2, properties={"cap": "51"}))


async def test_suspended_units_are_up_and_resume(far, make_unit):
    """A saved unit has no domain and is up; it resumes once, from a file that is gone then, and goes with teardown."""
    await far.driver.setup(make_unit("u1"))
    await far.driver.operate(make_unit("u1"), "suspend", {})
    await far.reopen().operate(make_unit("u1"), "suspend", {})
    assert far.domains() == {}
    probed = await far.reopen().probe(make_unit("u1", "probe"))
    assert (probed.state, "suspended" in probed.detail) == ("up", True)
    await far.reopen().operate(make_unit("u1"), "resume", {})
    await far.driver.operate(make_unit("u1"), "resume", {})
    assert [call[0] for call in far.calls()].count("restore") == 1
    assert sorted(path.name for path in (far.folder / "units" / U1).iterdir()) == ["domain.cfg", "record.json"]
    await far.driver.operate(make_unit("u1"), "suspend", {})
    await far.driver.teardown(make_unit("u1", "teardown", 2))
    assert far.leftovers() == []


async def test_restart_is_a_fresh_start(far, make_unit):
    """A restart ends the domain, forgets what was saved of it, and has the same properties."""
    told = await far.driver.setup(make_unit("u1"))
    was = far.domains()[U1]["id"]
    await far.driver.operate(make_unit("u1"), "suspend", {})
    assert await far.driver.operate(make_unit("u1"), "restart", {}) == told
    assert far.domains()[U1]["id"] > was
    assert not (far.folder / "units" / U1 / "saved").exists()


async def test_another_action_makes_the_unit_anew(far, make_unit):
    """What is left of an earlier action goes before the unit is made for the next one."""
    await far.driver.setup(make_unit("u1"))
    was = far.domains()[U1]["id"]
    await far.reopen().setup(make_unit("u1", number=2, lease="lease-2"))
    assert far.domains()[U1]["id"] > was
    record = json.loads((far.folder / "units" / U1 / "record.json").read_text())
    assert (record["lease"], record["number"], record["ready"]) == ("lease-2", 2, True)


async def test_orphans_are_found_and_removed(far, make_unit):
    """Domains and folders of units that nobody knows are told, other prefixes' are not; teardown removes them."""
    await far.driver.setup(make_unit("u1"))
    await far.driver.setup(make_unit("u2"))
    await far.make(prefix="other-").setup(make_unit("u3"))
    found = await far.reopen().orphans({"u2"})
    assert found == [Orphan("here", "u1", "domain", U1), Orphan("here", "u1", "folder", U1)]
    await far.reopen().teardown(make_unit("u1", "teardown", 2))
    assert await far.reopen().orphans({"u2"}) == []


async def test_a_unit_moves_to_a_host_that_sees_the_same_files(far, make_unit):
    """A unit that was moved is found where it is."""
    hosts = {"here": far.host(), "there": far.host(units=[], migration="root@127.0.0.1")}
    driver = far.make(of={"type": "pvh"}, hosts=hosts, shared=True)
    assert "migrate" in driver.capabilities
    await driver.setup(make_unit("u1"))
    moved = await driver.operate(make_unit("u1"), "migrate", {"host": "there"})
    assert moved["console"] == f"there/{U1}"
    record = json.loads((far.folder / "units" / U1 / "record.json").read_text())
    assert record["hosts"] == ["there"]
    await driver.teardown(make_unit("u1", "teardown", 2))
    assert far.leftovers() == []


async def test_a_unit_that_can_not_move_stays(far, make_unit):
    """What `xl` refuses to move stays as it was; hosts that share no files, and unknown ones, are refused at once."""
    hosts = {"here": far.host(), "there": far.host(units=[], migration="root@192.0.2.2")}
    driver = far.make(hosts=hosts, shared=True)
    told = await driver.setup(make_unit("u1"))
    with pytest.raises(DriverError, match="can't move domain contract-u1 to host there"):
        await driver.operate(make_unit("u1"), "migrate", {"host": "there"})
    record = json.loads((far.folder / "units" / U1 / "record.json").read_text())
    assert record["hosts"] == ["here", "there"]
    assert await driver.setup(make_unit("u1")) == told
    with pytest.raises(DriverError, match="host: found 'nowhere'"):
        await driver.operate(make_unit("u1"), "migrate", {"host": "nowhere"})
    with pytest.raises(DriverError, match="shared = true"):
        await far.driver.operate(make_unit("u1"), "migrate", {"host": "here"})


def of_its_own(far: XenHarness, name: str) -> str:
    """The `xl` of a second host, which sees the same files and has domains of its own."""
    (far.directory / name).mkdir()
    there = Path(far.xl).read_text().replace(f"{far.directory} ", f"{far.directory / name} ")
    return far.program(f"xl-{name}", there)


def away(far: XenHarness, address: str) -> str:
    """An `ssh` that comes through to every host but one."""
    lost = f'case "$*" in *" {address} sh -c "*) echo "no route to host" >&2; exit 255;; esac'
    return far.program("ssh-but-one", Path(far.ssh).read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{lost}\n", 1))


async def test_a_host_that_is_away_holds_up_only_its_own_units(far, make_unit):
    """Hosts that see the same files need each other for no setup and no teardown."""
    hosts = {"here": far.host(), "there": far.host(units=[], address="192.0.2.9", xl=of_its_own(far, "there"))}
    driver = far.make(hosts=hosts, shared=True, ssh=away(far, "192.0.2.9"))
    await driver.setup(make_unit("u1"))
    await driver.teardown(make_unit("u1", "teardown", 2))
    assert far.leftovers() == []


async def test_a_unit_outlives_the_host_that_it_was_moved_from(far, make_unit):
    """While the host that a unit has left is away, the unit is up, is restarted where it is, and is removed."""
    there = of_its_own(far, "there")
    moves = f"{far.directory}/xl-here destroy {U1}; exec {there} create -q {far.folder}/units/{U1}/domain.cfg"
    here = Path(far.xl).read_text()
    far.program("xl-here", here)
    far.program("xl", here.replace("exec", f'[ "$1" = migrate ] && {{ {moves}; }}\nexec', 1))
    hosts = {
        "here": far.host(address="192.0.2.9"),
        "there": far.host(units=[], console=str(far.directory / "log"), xl=there, migration="root@192.0.2.2"),
    }
    await far.make(hosts=hosts, shared=True).setup(make_unit("u1"))
    (far.console / f"guest-{U1}.log").write_text("what its guest said here\n")
    await far.make(hosts=hosts, shared=True).operate(make_unit("u1"), "migrate", {"host": "there"})
    assert not list(far.console.iterdir()), "the host that it has left keeps something of it"
    driver = far.make(hosts=hosts, shared=True, ssh=away(far, "192.0.2.9"))
    assert (await driver.probe(make_unit("u1", "probe"))).detail == "running on host there"
    assert (await driver.operate(make_unit("u1"), "restart", {}))["console"] == f"there/{U1}"
    await driver.teardown(make_unit("u1", "teardown", 2))
    assert far.leftovers() == []
    assert json.loads((far.directory / "there/state.json").read_text())["domains"] == {}


async def test_a_move_that_nobody_waited_for_is_seen(far, make_unit):
    """A unit is found where an earlier move has brought it, although the next one fails because of that."""
    here, there = Path(far.xl).read_text().splitlines()[1], of_its_own(far, "there")
    moves = f"{far.directory}/xl-here destroy {U1}; {there} create -q {far.folder}/units/{U1}/domain.cfg"
    far.program("xl-here", f"#!/bin/sh\n{here}\n")
    far.program("xl", f'#!/bin/sh\n[ "$1" = migrate ] && {{ {moves}; echo "{U1} is gone" >&2; exit 2; }}\n{here}\n')
    hosts = {"here": far.host(), "there": far.host(units=[], xl=there, migration="root@192.0.2.2")}
    await far.make(hosts=hosts, shared=True).setup(make_unit("u1"))
    with pytest.raises(DriverError, match=f"{U1} is gone"):
        await far.make(hosts=hosts, shared=True).operate(make_unit("u1"), "migrate", {"host": "there"})
    driver = far.make(hosts=hosts, shared=True)
    assert (await driver.probe(make_unit("u1", "probe"))).detail == "running on host there"
    await driver.teardown(make_unit("u1", "teardown", 2))
    assert await driver.orphans(()) == []


async def test_the_disk_is_a_copy_that_has_grown(far, make_unit):
    """The disk has what the image has, and the size that the site says; the image stays as it is, and is sent once."""
    image = {"disk": artifact(far, "disk", b"pristine"), "disk_mb": 2}
    driver = far.make(image)
    for number, unit in enumerate(("u1", "u2"), 1):
        await driver.setup(make_unit(unit, number=number))
        disk = far.folder / "units" / f"contract-{unit}" / "disk"
        assert disk.read_bytes() == b"pristine".ljust(2 * 2**20, b"\0")
    names = sorted(path.name for path in (far.folder / "images").iterdir())
    assert names == sorted(sha256(content).hexdigest() for content in (b"pristine", KERNEL))
    assert (far.directory / "ssh.log").read_text().count("sha256sum") == 2
    for unit in ("u1", "u2"):
        await driver.teardown(make_unit(unit, "teardown", 9))
    assert far.leftovers() == []


async def test_the_seed_stands_behind_the_initrd(far, make_unit):
    """A unit's initrd is the image's, filled up to four bytes, and who the guest is behind it; nobody else reads it."""
    image = {"initrd": artifact(far, "initrd", b"early"), "seed": "initramfs"}
    told = await far.make(image).setup(make_unit("u1"))
    initrd = far.folder / "units" / U1 / "initrd"
    content = initrd.read_bytes()
    assert content.startswith(b"early" + bytes(3) + b"070701")
    assert b"BEGIN OPENSSH PRIVATE KEY" in content
    assert told["host_key"].encode() in content
    assert told["user"] == "root"
    assert initrd.stat().st_mode & 0o77 == 0
    assert "PRIVATE" not in (far.directory / "ssh.log").read_text()


async def test_an_image_with_another_checksum_is_not_kept(far, make_unit):
    """A file that is not the one that the site means is refused for good, and nothing of it stays at the host."""
    (far.directory / "kernel").write_bytes(b"another")
    with pytest.raises(DriverError, match=f"has the SHA-256 {sha256(b'another').hexdigest()}") as caught:
        await far.driver.setup(make_unit("u1"))
    assert not caught.value.retry
    assert list((far.folder / "images").iterdir()) == []
    assert far.leftovers() == []


async def test_a_guest_that_is_not_up_in_time_is_told_with_its_last_words(far, make_unit):
    """Waiting for a marker ends when it comes; without it, with what is missing and the console's last line."""
    image = {"ready": "console", "marker": "I am up"}

    async def writes(unit: str, text: str) -> None:
        await poll(lambda: f"contract-{unit}" in far.domains())
        (far.console / f"guest-contract-{unit}.log").write_text(text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writes, "u1", "Kernel panic \x1b[31m!\n")
        with pytest.raises(DriverError, match=r"not up within 3s: 'I am up' .* its console: Kernel panic \[31m!$"):
            await far.make(image, start_timeout="3s").setup(make_unit("u1"))
    assert far.domains() == {}
    driver = far.make(image)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writes, "u2", "now I am up\n")
        await driver.setup(make_unit("u2"))
    assert (await driver.probe(make_unit("u2", "probe"))).state == "up"
    assert (await driver.operate(make_unit("u2"), "console", {}))["console"] == "now I am up"


async def test_a_guest_that_is_not_up_yet_is_not_ready(far, make_unit):
    """While setup waits for its guest the unit is not up; setup by a restarted daemon goes on waiting."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(far.slow().setup, make_unit("u1"))
        await poll(lambda: U1 in far.domains())
        assert (await far.driver.probe(make_unit("u1", "probe"))).detail == "not ready yet"
        was = far.domains()[U1]["id"]
        await far.reopen().setup(make_unit("u1"))
        assert far.domains()[U1]["id"] == was
        nursery.cancel_scope.cancel()


async def test_a_guest_that_ends_is_down_with_the_reason(far, make_unit):
    """A domain that is gone is down, and can't be modified or suspended; setup makes it anew."""
    await far.driver.setup(make_unit("u1"))
    subprocess.run([far.xl, "destroy", U1], check=True, capture_output=True)
    probed = await far.driver.probe(make_unit("u1", "probe"))
    assert (probed.state, probed.detail) == ("down", "its domain is gone: its guest ended it, or somebody else")
    with pytest.raises(DriverError, match=r"unit u1 is gone: .*, so it can't be modified"):
        await far.driver.modify(make_unit("u1", "modify", 2))
    await far.driver.setup(make_unit("u1"))
    assert U1 in far.domains()


async def test_what_xl_says_is_the_reason(far, make_unit):
    """Where `xl` refuses, the unit's reason names the host, what was to be done, and what `xl` said, in one line."""
    far.program(
        "xl", '#!/bin/sh\ncase "$*" in *list*) echo Name ID;; *) echo "libxl: error: no memory" >&2; exit 1;; esac\n'
    )
    with pytest.raises(DriverError) as caught:
        await far.driver.setup(make_unit("u1"))
    assert str(caught.value) == f"host here: can't start domain {U1}: libxl: error: no memory"
    assert caught.value.retry


async def test_caps_need_a_scheduler_that_has_them(far, make_unit):
    """Where the host's scheduler has no caps a unit with one is refused, and one without is set up and resized."""
    played = Path(far.xl).read_text().splitlines()[1]
    far.program("xl", f'#!/bin/sh\n[ "$1" = info ] && echo "xen_scheduler : null" && exit 0\n{played}\n')
    driver = far.make(choices={"cap": [0, 50]})
    with pytest.raises(
        DriverError, match=r"found scheduler 'null', expected one with caps: credit or credit2"
    ) as caught:
        await driver.setup(make_unit("u1", properties={"cap": "30"}))
    assert not caught.value.retry
    await driver.setup(make_unit("u1"))
    await driver.modify(make_unit("u1", "modify", 2))


@pytest.mark.parametrize("broken", ["exit 255", "exec sleep 3600"])
async def test_a_host_that_is_lost_is_left_as_it_is(far, make_unit, broken):
    """Where ssh breaks or hangs the action fails and may be tried again; what runs is not taken for gone."""
    await far.driver.setup(make_unit("u1"))
    far.program("ssh", f"#!/bin/sh\necho 'Connection refused' >&2\n{broken}\n")
    driver = far.make(reply_timeout="200ms")
    for act in (driver.setup, driver.probe):
        with pytest.raises(DriverError, match=r"host here: (can't log in to root@192|.*no answer within)") as caught:
            await act(make_unit("u1"))
        assert caught.value.retry
    assert U1 in far.domains()


async def test_teardown_does_not_trust_a_list_that_failed(far, make_unit):
    """When `xl list` fails, teardown fails too, and removes no disk under a guest that may run."""
    await far.driver.setup(make_unit("u1"))
    played = Path(far.xl).read_text()
    far.program("xl", "#!/bin/sh\nexit 1\n")
    with pytest.raises(DriverError, match="can't"):
        await far.driver.teardown(make_unit("u1", "teardown", 2))
    assert (far.folder / "units" / U1 / "domain.cfg").exists()
    far.program("xl", played)
    await far.driver.teardown(make_unit("u1", "teardown", 2))
    assert far.leftovers() == []


async def test_a_start_that_comes_late_starts_nothing(far, make_unit):
    """A start that a killed daemon sent, and that runs after the unit was removed, finds nothing to start."""
    await far.driver.setup(make_unit("u1"))
    line = next(line for line in (far.directory / "ssh.log").read_text().splitlines() if " create -q" in line)
    await far.driver.teardown(make_unit("u1", "teardown", 2))
    done = subprocess.run([far.ssh, line[line.index("sh -c") :]], capture_output=True, check=False)
    assert done.returncode != 0
    assert far.leftovers() == []


async def test_ssh_is_told_what_to_trust(far, make_unit):
    """ssh reads no files of the user's, asks nobody, and trusts the host key of the settings alone."""
    await far.driver.probe(make_unit("u1", "probe"))
    words = (far.directory / "ssh.log").read_text()
    for word in ("-F /dev/null", "BatchMode=yes", "StrictHostKeyChecking=yes", "IdentitiesOnly=yes", "ForwardAgent=no"):
        assert word in words
    assert f'IdentityFile="{far.directory}/identity"' in words


async def test_two_units_never_have_one_address(far, make_unit):
    """Names with like numbers are refused, until the address is free again."""
    await far.driver.setup(make_unit("a1"))
    with pytest.raises(DriverError, match="is the address of unit a1"):
        await far.driver.setup(make_unit("b1"))
    await far.driver.teardown(make_unit("a1", "teardown", 2))
    await far.driver.setup(make_unit("b1"))


async def test_guests_have_no_use_for_it(far, make_unit):
    """The driver is for sites: a guest that names it is told so."""
    for act in (far.driver.join, far.driver.leave):
        with pytest.raises(DriverError, match="the xen driver is for sites"):
            await act(make_unit("u1"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hosts": {}}, "hosts"),
        ({"image": "huge"}, "image: found 'huge', expected one of: tiny"),
        ({"prefix": "$(id)"}, "prefix"),
        ({"network": {"network": "default"}}, "expected a bridge"),
        ({"network": {**BLOCKS, "block": 4, "book": "book"}}, "network: found block and book, expected none"),
        ({"size": {"cap": 80}, "choices": {"cap": [0, 50]}}, "size.cap: found 80"),
        ({"images": {"a b": {}}}, "images"),
    ],
    ids=lambda found: found if isinstance(found, str) else "-".join(found),
)
def test_settings_that_are_wrong_are_named(far, changes, said):
    """Each fault is told with its key, what was found and what is allowed."""
    assert said in faults(far, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"address": "-oProxyCommand=x"}, "address"),
        ({"host_key": "ssh-ed25519"}, "host_key"),
        ({"folder": "units"}, "expected an absolute path"),
        ({"folder": "/var/../etc"}, "expected an absolute path"),
        ({"xl": "-x"}, "expected a program"),
        ({"user": "Root; id"}, "user"),
        ({"port": 0}, "port"),
        ({"migration": "-x@host"}, "migration: found '-x@host'"),
    ],
    ids=lambda found: found if isinstance(found, str) else next(iter(found)),
)
def test_hosts_that_are_wrong_are_named(far, changes, said):
    """Nothing of a host's settings can become an option of ssh or a path somewhere else."""
    assert said in faults(far, hosts={"here": far.host(**changes)})


def test_images_are_checked_before_anything_runs(far):
    """An image that is nothing, a volume of libvirt's, and a guest that can't be waited for are refused."""
    kernel = {"file": "kernel", "sha256": "0" * 64}
    assert "expected a disk, a kernel or both" in faults(far, images={"x": {}})
    assert "expected a file or a url" in faults(far, images={"x": {"disk": {"volume": "v"}}})
    assert "needs a network with subnets" in faults(far, images={"x": {"kernel": kernel}}, network={"bridge": "br0"})


async def test_the_doctor_looks_at_each_host(far):
    """The doctor tells the hypervisor's version, scheduler, memory and room, and what is missing, with advice."""
    found = {finding.what: finding for finding in await examine("xen", far.settings(), "xen")}
    assert found["host here"].found == "root@192.0.2.1, Xen 4.17.7"
    assert found["host here: scheduler"].verdict == "ok"
    assert found["image tiny: kernel"].verdict == "ok"
    assert found["host here: bridge br0"].verdict == ("ok" if Path("/sys/class/net/br0/bridge").exists() else "missing")
    far.program("xl", "#!/bin/sh\necho 'xl: command not found' >&2; exit 127\n")
    (missing,) = [each for each in await examine("xen", far.settings(), "xen") if each.verdict == "missing"]
    assert "says nothing of Xen" in missing.found
    far.program("ssh", "#!/bin/sh\necho 'Host key verification failed.' >&2; exit 255\n")
    (missing,) = [each for each in await examine("xen", far.settings(), "xen") if each.verdict == "missing"]
    assert "Host key verification failed" in missing.found
    hosts = {"here": far.host(identity="/nowhere/key")}
    (missing,) = [each for each in await examine("xen", far.settings(hosts=hosts), "xen") if each.verdict == "missing"]
    assert (missing.found, "ssh-keygen" in missing.advice) == ("can't read the private key /nowhere/key", True)
    (missing,) = await examine("xen", far.settings(ssh="no-such-ssh"), "xen")
    assert missing.advice == "apt-get install openssh-client"


async def test_the_doctor_looks_whether_units_can_move(far, monkeypatch):
    """Where units are to move the doctor says which types can't, and which control domain can't log in to which."""
    (far.directory / "far/bin").mkdir()
    far.program("far/bin/ssh", "#!/bin/sh\ncase \"$*\" in *good@*) exit 0;; esac; echo 'no route' >&2; exit 255\n")
    monkeypatch.setenv("PATH", f"{far.directory}/far/bin:{os.environ['PATH']}")
    hosts = {"here": far.host(migration="good@192.0.2.1"), "there": far.host(units=[], migration="bad@192.0.2.2")}
    settings = far.settings(hosts=hosts, shared=True)
    settings["images"] |= {"other": {**settings["images"]["tiny"], "type": "pvh"}}
    found = {finding.what: finding for finding in await examine("xen", {**settings, "image": "tiny"}, "xen")}
    assert found["host here: moving pvh guests"].verdict == "ok"
    pv = found["host here: moving pv guests"]
    assert (pv.verdict, pv.advice) == ("doubtful", 'give images type = "pvh"')
    assert found["host there: handing over to host here"].verdict == "ok"
    there = found["host here: handing over to host there"]
    assert (there.verdict, "no route" in there.found) == ("missing", True)
    assert "ssh bad@192.0.2.2 xl info" in there.advice


def test_listings_are_read_as_they_are():
    """Rows of domains with any flags are read, domains that lost their name too; other text is refused in words."""
    table = read_table(
        "Name  ID Mem VCPUs\tState\tTime(s)\nDomain-0  0 768 1     r-----      23.5\n(null)  3 0 1     --p--d   0.1\n"
    )
    assert (table["Domain-0"].cpu, table["(null)"].flags) == (23.5, "--p--d")
    assert read_names('[{"domid": 1, "config": {"c_info": {"name": "x"}}}]') == ["x"]
    for read, text in ((read_table, "libxl: error"), (read_names, "[{}]"), (read_names, "not JSON")):
        with pytest.raises(DriverError, match="expected"):
            read(text)


@pytest.mark.parametrize("content", ['{"unit": 1}\n', "not\nJSON", "\n\n", "", "\xff"])
async def test_a_record_that_is_damaged_keeps_no_unit(far, make_unit, content):
    """A record that is none is told of, and not guessed; setup makes the unit anew, and teardown removes it."""
    await far.driver.setup(make_unit("u1"))
    record = far.folder / "units" / U1 / "record.json"
    whole, was = record.read_text(), far.domains()[U1]["id"]
    record.write_text(content, encoding="latin-1")
    if content.strip():
        with pytest.raises(DriverError, match=f"units/{U1}: found no record") as caught:
            await far.driver.probe(make_unit("u1", "probe"))
        assert not caught.value.retry
        assert HOST_KEY not in str(caught.value)
    else:
        assert (await far.driver.probe(make_unit("u1", "probe"))).detail == "not set up"
    await far.driver.setup(make_unit("u1"))
    assert record.read_text() == whole
    assert far.domains()[U1]["id"] > was
    record.write_text(content, encoding="latin-1")
    await far.reopen().teardown(make_unit("u1", "teardown", 2))
    assert far.leftovers() == []


async def test_a_record_of_which_nothing_came_is_not_kept(far, make_unit):
    """When ssh is cut off before the record that says "ready" has come, the one that was there stays, and the next try
    goes on with the same domain.
    """
    cut = (
        Path(far.ssh)
        .read_text()
        .replace("exec setsid", 'case "$last" in *record.json*) exec </dev/null;; esac\nexec setsid')
    )
    driver = far.make({"ready": "console", "marker": "up"})

    async def breaks() -> None:
        await poll(lambda: U1 in far.domains())
        far.program("ssh", cut)
        (far.console / f"guest-{U1}.log").write_text("up\n")

    driver._take_back = nothing_back
    async with trio.open_nursery() as nursery:
        nursery.start_soon(breaks)
        with pytest.raises(DriverError, match=r"can't write record.json of contract-u1: 0 of \d+ bytes came"):
            await driver.setup(make_unit("u1"))
    was = far.domains()[U1]["id"]
    far.program("ssh", cut.replace("</dev/null", ""))
    again = far.make({"ready": "console", "marker": "up"})
    assert (await again.probe(make_unit("u1", "probe"))).detail == "not ready yet"
    await again.setup(make_unit("u1"))
    assert far.domains()[U1]["id"] == was
    assert (await again.probe(make_unit("u1", "probe"))).state == "up"


async def nothing_back(*_: object) -> None:
    """As when the daemon is killed before it can take anything back."""


def test_the_example_has_no_fault(tmp_path, capfd):
    """The deploy file of deploy/xen passes `leasekit config check`."""
    text = (Path(__file__).parents[2] / "deploy/xen/vms.toml").read_text()
    (tmp_path / "vms.toml").write_text(text)
    assert main.run(["config", "check", str(tmp_path / "vms.toml")]) == 0, capfd.readouterr().out


def test_locks_and_addresses_are_one_units_at_a_time():
    """A unit's lock is one while it is held, and its addresses are nobody else's until it gives them back."""
    locks, book = UnitLocks(), AddressBook()
    held = locks.of("a")
    assert locks.of("a") is held
    assert locks.of("b") is not held
    book.take("a", ["192.0.2.1/24"])
    book.take("a", ["192.0.2.1/24"])
    with pytest.raises(DriverError, match=r"192\.0\.2\.1 is the address of unit a"):
        book.take("b", ["192.0.2.2/24", "192.0.2.1/24"])
    book.give_back("a")
    book.take("b", ["192.0.2.2/24", "192.0.2.1/24"])


async def test_cpu_use_is_told_from_the_second_look_on(autojump_clock):
    """The share of a CPU is what was used between two looks; a domain that was started anew begins anew."""
    samples = CpuSamples()
    assert samples.percent("a", 5.0) is None
    await trio.sleep(10)
    assert samples.percent("a", 8.0) == pytest.approx(30)
    await trio.sleep(10)
    assert samples.percent("a", 1.0) is None
    samples.forget("a")
    assert samples.percent("a", 9.0) is None
