"""The process driver: units that outlive their daemon, ports, limits, readiness, members, and what ends with a unit."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import trio
from driver_harnesses import FIRST_PORT, session_processes
from polling import PATIENCE

from leasekit.core.drivers import DriverError
from leasekit.core.settings import SettingsError
from leasekit.drivers.members import ask
from leasekit.drivers.processes import process_state, wait_end

DAEMON = """
import sys, trio
from leasekit.core.drivers import UnitContext
from leasekit.drivers.registry import make_driver

async def main():
    first = int(sys.argv[2])
    driver = make_driver("process", {"directory": sys.argv[1], "ports": [first, first + 399]}, "process")
    unit = UnitContext(unit="u1", type="vm", lease="l", op="setup", number=1, properties={}, log=lambda line: None)
    print("begin", flush=True)
    print(dict(await driver.setup(unit)), flush=True)
    await trio.sleep_forever()

trio.run(main)
"""

CHILD = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(3600)"
# Starts a child that heeds no SIGTERM, then becomes ready.
FAMILY = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE).stdout.readline()
os.write(int(os.environ["LEASEKIT_READY_FD"]), b"ready\\n")
time.sleep(3600)
"""

PORT_SERVER = """
import os, socket, time
time.sleep(0.2)
server = socket.create_server((os.environ["LEASEKIT_HOST"], int(os.environ["LEASEKIT_PORT"])))
while True:
    server.accept()[0].close()
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def pid_of(harness, unit: str = "u1") -> int:
    return int(json.loads((harness.directory / "units" / unit / "pid.json").read_text())["pid"])


def address(properties) -> tuple[str, int]:
    return properties["host"], int(properties["port"])


async def kill(pid: int) -> None:
    """SIGKILL from outside; returns when the process has ended."""
    state = process_state(pid)
    assert state is not None
    os.kill(pid, signal.SIGKILL)
    with trio.fail_after(PATIENCE):
        await wait_end(state)


def gone(pid: int) -> bool:
    state = process_state(pid)
    return state is None or not state.alive


@pytest.fixture(autouse=True)
def nothing_left(tmp_path):
    """Every test ends without a process of its own."""
    yield
    left = session_processes(str(tmp_path))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


async def test_a_unit_knows_who_it_is(process_harness, make_unit):
    """The default unit serves its identity and its properties, whatever is in them, on its port."""
    nasty = {"quote": "\"'", "newline": "a\nb", "dots": "../../x", "shell": "$(touch pwned)", "unicode": "é𝄞\ud800"}
    unit = make_unit("u1", number=4, lease="l $(id) '\"\n", properties=nasty)
    found = await process_harness.driver.setup(unit)
    assert found["name"] == "u1"
    identity = await ask(address(found), "identity", 5000)
    assert identity == {"unit": "u1", "lease": unit.lease, "type": "vm", "pid": pid_of(process_harness)}
    assert await ask(address(found), "config", 5000) == {"number": 4, "properties": nasty}
    with pytest.raises(DriverError, match="expected identity, config or config NUMBER"):
        await ask(address(found), "rm -rf", 5000)
    assert not list(process_harness.directory.rglob("pwned"))
    await process_harness.driver.teardown(make_unit("u1", "teardown", 5))


async def test_units_do_not_see_the_daemons_environment(process_harness, make_unit, monkeypatch):
    """A unit has a small environment of its own, runs in its own directory, and belongs to no terminal or daemon."""
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    await process_harness.driver.setup(make_unit("u1"))
    process = Path("/proc") / str(pid_of(process_harness))
    assert b"hush" not in (process / "environ").read_bytes()
    assert (process / "cwd").readlink() == process_harness.directory / "units/u1/work"
    state = process_state(pid_of(process_harness))
    assert state is not None
    assert state.session == state.pid
    assert int((process / "stat").read_text().rpartition(")")[2].split()[1]) != os.getpid()
    descriptors = {str(path.readlink()) for path in (process / "fd").iterdir()}
    assert not any("lock" in name or ".db" in name for name in descriptors)
    await process_harness.driver.teardown(make_unit("u1", "teardown", 2))


async def test_a_unit_survives_its_daemon_and_is_adopted(process_harness, make_unit):
    """After SIGKILL of the daemon the unit runs on; a new daemon's setup of the same number finds it as it is."""
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(process_harness.directory), str(FIRST_PORT)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert daemon.stdout is not None
    daemon.stdout.readline()
    first = daemon.stdout.readline()
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()
    pid = pid_of(process_harness)
    assert not gone(pid)
    adopted = await process_harness.reopen().setup(make_unit("u1"))
    assert str(dict(adopted)).encode() == first.strip()
    assert pid_of(process_harness) == pid
    assert (await process_harness.reopen().probe(make_unit("u1"))).state == "up"
    await process_harness.reopen().teardown(make_unit("u1", "teardown", 2))
    assert gone(pid)
    assert process_harness.leftovers() == []


async def test_a_daemon_killed_at_any_moment_of_setup(process_harness, make_unit):
    """Wherever SIGKILL meets a setup, the next one makes exactly one unit, and a teardown leaves nothing."""
    random = Random(3)
    for number in range(10):
        daemon = subprocess.Popen(
            [sys.executable, "-c", DAEMON, str(process_harness.directory), str(FIRST_PORT)], stdout=subprocess.PIPE
        )
        assert daemon.stdout is not None
        daemon.stdout.readline()
        await trio.sleep(random.uniform(0, 0.15))
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()
        driver = process_harness.reopen()
        if number % 2:
            await driver.setup(make_unit("u1"))
            assert session_processes(str(process_harness.directory)) == [pid_of(process_harness)]
        await driver.teardown(make_unit("u1", "teardown", 2))
        assert process_harness.leftovers() == []


async def test_what_is_left_of_units_that_nobody_has(process_harness, make_unit):
    """The site lost its store: a later daemon lists what runs, and a teardown ends it."""
    for name in ("u1", "u2"):
        await process_harness.driver.setup(make_unit(name))
    pid, driver = pid_of(process_harness, "u2"), process_harness.reopen()
    (left,) = await driver.orphans({"u1"})
    assert (left.unit, left.kind, left.name) == ("u2", "directory", str(process_harness.directory / "units" / "u2"))
    await driver.teardown(make_unit("u2", "teardown"))
    assert gone(pid)
    assert await driver.orphans({"u1"}) == []
    await driver.teardown(make_unit("u1", "teardown"))


async def test_another_number_makes_the_unit_anew(process_harness, make_unit):
    """Setup for a new action does not hand on what another lease left: process, files and lease are new."""
    await process_harness.driver.setup(make_unit("u1", number=1, lease="one"))
    first = pid_of(process_harness)
    (process_harness.directory / "units/u1/work/secret").write_text("of lease one")
    found = await process_harness.driver.setup(make_unit("u1", number=2, lease="two"))
    assert gone(first)
    assert (await ask(address(found), "identity", 5000))["lease"] == "two"
    assert list((process_harness.directory / "units/u1/work").iterdir()) == []
    await process_harness.driver.teardown(make_unit("u1", "teardown", 3))


async def test_a_recycled_process_id_is_left_alone(process_harness, make_unit):
    """When the noted id means another process by now, or another boot's, that process is not touched."""
    stranger = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    try:
        await process_harness.driver.setup(make_unit("u1"))
        path = process_harness.directory / "units/u1/pid.json"
        noted = json.loads(path.read_text())
        for change in ({"pid": stranger.pid}, {"boot": "another"}):
            await kill(noted["pid"])
            path.write_text(json.dumps({**noted, **change}))
            assert (await process_harness.driver.probe(make_unit("u1"))).state == "down"
            await process_harness.driver.teardown(make_unit("u1", "teardown", 2))
            assert stranger.poll() is None
            await process_harness.driver.setup(make_unit("u1"))
            noted = json.loads(path.read_text())
        await process_harness.driver.teardown(make_unit("u1", "teardown", 2))
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("leader_dies", [False, True])
async def test_teardown_ends_the_whole_group(process_harness, make_unit, leader_dies):
    """Children go with the unit, those that ignore SIGTERM and those whose parent is gone too."""
    driver = process_harness.make(command=python(FAMILY), grace=200, identify=False)
    await driver.setup(make_unit("u1"))
    assert len(session_processes(str(process_harness.directory))) == 2
    assert (await driver.probe(make_unit("u1"))).measured["processes"] == 2
    if leader_dies:
        await kill(pid_of(process_harness))
    await driver.teardown(make_unit("u1", "teardown", 2))
    assert process_harness.leftovers() == []


async def test_ports_depend_on_the_unit_and_are_never_shared(process_harness, make_unit):
    """A unit has the same port each time, unless that is taken; a range that is full is a reason."""
    first, last = FIRST_PORT + 400, FIRST_PORT + 402
    driver = process_harness.make(ports=[first, last])
    found = {}
    for unit in ("a", "b", "c"):
        found[unit] = (await driver.setup(make_unit(unit)))["port"]
    assert sorted(found.values()) == [str(first), str(first + 1), str(last)]
    with pytest.raises(DriverError, match=f"no port from {first} to {last} is free") as caught:
        await driver.setup(make_unit("d"))
    assert caught.value.retry
    await driver.teardown(make_unit("a", "teardown", 2))
    # A new daemon knows the ports of units that run.
    assert (await process_harness.make(ports=[first, last]).setup(make_unit("d")))["port"] == found["a"]
    for unit in ("b", "c", "d"):
        await driver.teardown(make_unit(unit, "teardown", 2))
    alone = (await driver.setup(make_unit("a")))["port"]
    await driver.teardown(make_unit("a", "teardown", 2))
    with socket.create_server(("127.0.0.1", int(alone))):
        assert (await driver.setup(make_unit("a")))["port"] != alone
    await driver.teardown(make_unit("a", "teardown", 2))


async def test_limits_are_the_processes_own(process_harness, make_unit):
    """Limits from the settings are those of the unit's process."""
    limits = {"cpu": "90s", "memory_mb": 512, "processes": 5000, "open_files": 128, "file_size_mb": 2}
    driver = process_harness.make(limits=limits)
    await driver.setup(make_unit("u1"))
    text = Path(f"/proc/{pid_of(process_harness)}/limits").read_text()
    found = {line[:26].strip(): line[26:].split()[:2] for line in text.splitlines()}
    assert found["Max cpu time"] == ["90", "90"]
    assert found["Max address space"] == [str(512 * 2**20)] * 2
    assert found["Max processes"] == ["5000", "5000"]
    assert found["Max open files"] == ["128", "128"]
    assert found["Max file size"] == [str(2 * 2**20)] * 2
    assert found["Max core file size"] == ["0", "0"]
    await driver.teardown(make_unit("u1", "teardown", 2))


async def test_a_unit_beyond_its_limit_is_down_with_a_reason(process_harness, make_unit):
    """A process that uses up its processor time ends, and probe says that it is down."""
    ready = "import os; os.write(int(os.environ['LEASEKIT_READY_FD']), b'ready\\n')\nprint('spinning', flush=True)\n"
    driver = process_harness.make(command=python(ready + "while True: pass"), limits={"cpu": "1s"}, identify=False)
    await driver.setup(make_unit("u1"))
    state = process_state(pid_of(process_harness))
    assert state is not None
    with trio.fail_after(PATIENCE):
        await wait_end(state)
    found = await driver.probe(make_unit("u1"))
    assert (found.state, found.detail) == ("down", "its process has ended: spinning")
    await driver.teardown(make_unit("u1", "teardown", 2))


@pytest.mark.parametrize(("ready", "command"), [("port", python(PORT_SERVER)), ("start", ["sleep", "3600"])])
async def test_other_ways_to_be_ready(process_harness, make_unit, ready, command):
    """A command that knows nothing of leasekit is ready when its port accepts connections, or when it has started."""
    driver = process_harness.make(command=command, ready=ready, identify=False)
    found = await driver.setup(make_unit("u1"))
    if ready == "port":
        await (await trio.open_tcp_stream(*address(found))).aclose()
    assert await driver.setup(make_unit("u1")) == found
    await driver.teardown(make_unit("u1", "teardown", 2))


@pytest.mark.parametrize(
    ("command", "settings", "words"),
    [
        (["sh", "-c", "echo no license; exit 1"], {}, "ended before it was ready; it wrote: no license"),
        (["sh", "-c", "echo no license; exit 1"], {"ready": "port"}, "ended before it was ready; it wrote: no license"),
        (["sleep", "3600"], {"start_timeout": 100}, "within 100ms: it wrote no line to LEASEKIT_READY_FD"),
        (["sleep", "3600"], {"start_timeout": 100, "ready": "port"}, "within 100ms: it did not answer at 127.0.0.1:"),
        (
            python("import os, time; os.close(int(os.environ['LEASEKIT_READY_FD'])); time.sleep(3600)"),
            {},
            "closed its ready descriptor before it said that it is ready",
        ),
        (["true"], {"limits": {"open_files": 2**40}}, "can't be started"),
    ],
)
async def test_a_unit_that_does_not_come_up(process_harness, make_unit, command, settings, words):
    """A unit that ends, hangs, or can't be started at all is a reason, and nothing is left of it."""
    driver = process_harness.make(command=command, **settings)
    with trio.fail_after(PATIENCE), pytest.raises(DriverError) as caught:
        await driver.setup(make_unit("u1"))
    assert words in str(caught.value)
    assert process_harness.leftovers() == []


@pytest.mark.parametrize("ready", ["pipe", "port", "start"])
async def test_a_command_that_can_not_be_executed(process_harness, make_unit, ready):
    """A program that vanished, or has no interpreter, is named by the system's reason."""
    program = process_harness.directory / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    driver = process_harness.make(command=["./program"], ready=ready)
    with pytest.raises(DriverError, match=r"can't be started: .*No such file"):
        await driver.setup(make_unit("u1"))
    program.unlink()
    with pytest.raises(SettingsError, match=r"process.command: found './program', there is no file"):
        process_harness.make(command=["./program"])


async def test_what_a_unit_writes_is_logged(process_harness, make_unit):
    """What a unit writes while it starts goes to its log, and on into its file."""
    await process_harness.driver.setup(make_unit("u1", number=7))
    assert "configuration 7 read" in make_unit.lines
    text = (process_harness.directory / "units/u1/output.log").read_text()
    assert "configuration 7 read" in text
    await process_harness.driver.teardown(make_unit("u1", "teardown", 8))


async def test_modify_returns_when_the_unit_has_read_it(process_harness, make_unit):
    """After modify the unit serves the new properties; its process and port stay."""
    found = await process_harness.driver.setup(make_unit("u1"))
    pid = pid_of(process_harness)
    for number in range(2, 12):
        changed = make_unit("u1", "modify", number, properties={"cap": str(number)})
        assert await process_harness.driver.modify(changed) == found
        assert await ask(address(found), "config", 5000) == {"number": number, "properties": {"cap": str(number)}}
    assert pid_of(process_harness) == pid
    # Setup, done again after a restart, does not undo it.
    assert await process_harness.reopen().setup(make_unit("u1")) == found
    assert (await ask(address(found), "config", 5000))["number"] == 11
    await process_harness.driver.teardown(make_unit("u1", "teardown", 12))


async def test_modify_needs_a_running_unit(process_harness, make_unit):
    """A unit that is not there, or has ended, can't be modified, and trying again will not help."""
    with pytest.raises(DriverError, match="unit u1 is not running") as caught:
        await process_harness.driver.modify(make_unit("u1", "modify"))
    assert not caught.value.retry
    await process_harness.driver.setup(make_unit("u1"))
    await kill(pid_of(process_harness))
    with pytest.raises(DriverError, match="unit u1 is not running"):
        await process_harness.driver.modify(make_unit("u1", "modify", 2))
    await process_harness.driver.teardown(make_unit("u1", "teardown", 3))


async def test_a_crashed_unit_is_down_and_set_up_anew(process_harness, make_unit):
    """A unit killed from outside is down with a reason; the same setup brings it back on its port."""
    found = await process_harness.driver.setup(make_unit("u1"))
    pid = pid_of(process_harness)
    await kill(pid)
    probe = await process_harness.driver.probe(make_unit("u1"))
    assert probe.state == "down"
    assert "its process has ended" in probe.detail
    assert await process_harness.driver.setup(make_unit("u1")) == found
    assert pid_of(process_harness) != pid
    await process_harness.driver.teardown(make_unit("u1", "teardown", 2))


async def test_probe_measures(process_harness, make_unit):
    """Probe counts processes, memory and processor time of the unit."""
    await process_harness.driver.setup(make_unit("u1"))
    measured = (await process_harness.driver.probe(make_unit("u1"))).measured
    assert measured["processes"] == 1
    assert 2**20 < measured["rss_bytes"] < 2**30
    assert 0 <= measured["cpu_seconds"] < 10
    await process_harness.driver.teardown(make_unit("u1", "teardown", 2))


async def test_operator_actions(process_harness, make_unit):
    """Restart keeps port and files and changes the process; suspend and resume stop it; signals reach it."""
    driver, operate = process_harness.driver, make_unit("u1", "operate", 2)
    found = await driver.setup(make_unit("u1"))
    pid = pid_of(process_harness)
    kept = process_harness.directory / "units/u1/work/kept"
    kept.touch()
    assert await driver.operate(operate, "restart", {}) == found
    assert gone(pid)
    assert pid_of(process_harness) != pid
    assert kept.exists()
    assert (await ask(address(found), "identity", 5000))["unit"] == "u1"
    await driver.operate(operate, "suspend", {})
    assert (await driver.probe(make_unit("u1"))).detail == "suspended"
    await driver.operate(operate, "resume", {})
    assert (await ask(address(found), "identity", 5000))["unit"] == "u1"
    with pytest.raises(DriverError, match="signal: found 'NUKE', expected one of: HUP"):
        await driver.operate(operate, "signal", {"signal": "NUKE"})
    state = process_state(pid_of(process_harness))
    assert state is not None
    await driver.operate(operate, "signal", {"signal": "KILL"})
    with trio.fail_after(PATIENCE):
        await wait_end(state)
    with pytest.raises(DriverError, match="not running: no suspend"):
        await driver.operate(operate, "suspend", {})
    assert await driver.operate(operate, "restart", {}) == found
    await driver.operate(operate, "suspend", {})
    await driver.teardown(make_unit("u1", "teardown", 3))
    with pytest.raises(DriverError, match="not running: no restart"):
        await driver.operate(operate, "restart", {})


async def test_members_join_and_leave(process_harness, make_unit):
    """Join makes sure of a unit's identity and notes it; leave takes it out; both as often as you like."""
    driver = process_harness.driver
    units = {name: await driver.setup(make_unit(name)) for name in ("u1", "u2")}
    path = process_harness.directory / "members.json"
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for name, properties in units.items():
                nursery.start_soon(driver.join, make_unit(f"lease-1/{name}", "join", properties=properties))
    members = json.loads(path.read_text())
    assert sorted(members) == ["lease-1/u1", "lease-1/u2"]
    host, port = address(units["u1"])
    assert members["lease-1/u1"] == {"name": "u1", "host": host, "port": port, "lease": "lease-1", "type": "vm"}
    for _ in range(2):
        await driver.leave(make_unit("lease-1/u1", "leave"))
    assert list(json.loads(path.read_text())) == ["lease-1/u2"]
    for name in units:
        await driver.teardown(make_unit(name, "teardown", 2))


@pytest.mark.parametrize(
    ("change", "words", "retry"),
    [
        ({"name": "other"}, "says it is unit 'u1', expected 'other'", False),
        ({"port": "0"}, "port: found '0', expected a number from 1 to 65535", False),
        ({"port": "1; rm"}, "port: found '1; rm'", False),
        ({"port": "²"}, "port: found '²'", False),
        ({"host": ""}, "host: found '', expected a host name or address", False),
        ({"host": "a\nb"}, r"host: found 'a\nb'", False),
        ({"port": "1"}, "can't reach the unit at 127.0.0.1:1: ", True),
    ],
)
async def test_members_that_are_not_what_they_say(process_harness, make_unit, change, words, retry):
    """A unit that can't be reached, or is another one, does not join; what a site sent is checked first."""
    found = await process_harness.driver.setup(make_unit("u1"))
    with pytest.raises(DriverError) as caught:
        await process_harness.driver.join(make_unit("l/u1", "join", properties={**found, **change}))
    assert words in str(caught.value)
    assert caught.value.retry is retry
    assert not (process_harness.directory / "members.json").exists()
    await process_harness.driver.teardown(make_unit("u1", "teardown", 2))


async def test_member_names_are_text_and_nothing_else(process_harness, make_unit):
    """A member's name, whatever is in it, is a key in a JSON file and never a file."""
    found = await process_harness.driver.setup(make_unit("u1"))
    before = set(process_harness.directory.parent.rglob("*"))
    name = "../../$(touch pwned)'\"\n\0é"
    await process_harness.driver.join(make_unit(name, "join", properties=found))
    assert list(json.loads((process_harness.directory / "members.json").read_text())) == [name]
    after = set(process_harness.directory.parent.rglob("*"))
    assert after - before == {process_harness.directory / "members.json"}
    await process_harness.driver.teardown(make_unit("u1", "teardown", 2))


@pytest.mark.parametrize("name", ["unit.json", "pid.json"])
@pytest.mark.parametrize("content", ["", "[]", "{", '{"pid": "x"}', "[" * 100_000])
async def test_damaged_files_are_named(process_harness, make_unit, name, content):
    """A file of a unit that is damaged is named with what to do; another unit is not concerned."""
    directory = process_harness.directory / "units/u1"
    directory.mkdir(parents=True)
    (directory / name).write_text(content)
    driver = process_harness.reopen()
    with pytest.raises(DriverError, match=rf"{re.escape(name)}: found .*remove the file") as caught:
        await driver.setup(make_unit("u1"))
    assert str(caught.value).isprintable()
    await driver.setup(make_unit("u2"))
    await driver.teardown(make_unit("u2", "teardown", 2))
    (directory / name).unlink()
    await driver.teardown(make_unit("u1", "teardown", 2))
    assert process_harness.leftovers() == []


async def test_a_directory_is_wiped_whatever_it_holds(process_harness, make_unit, tmp_path):
    """Links, locked directories and odd names go with the unit; what links point to stays."""
    await process_harness.driver.setup(make_unit("u1"))
    work, kept = process_harness.directory / "units/u1/work", tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (work / "link").symlink_to(kept)
    (work / "locked").mkdir()
    (work / "locked/file\n\udcff").touch()
    (work / "locked").chmod(0)
    await process_harness.driver.teardown(make_unit("u1", "teardown", 2))
    assert process_harness.leftovers() == []
    assert (kept / "file").exists()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"ports": [5, 4]}, "process.ports: found a list, but expected the first and the last of a range of ports"),
        ({"command": []}, "process.command: found an empty list, "),
        ({"command": ["no-such-program"]}, "process.command: found 'no-such-program', there is no such program"),
        ({"limits": {"memory_mb": 0}}, "process.limits.memory_mb: found 0, expected >= 1"),
        ({"limits": {"memroy_mb": 1}}, "process.limits.memroy_mb: found an unknown key, expected one of: "),
        ({"ready": "soon"}, "process.ready: found 'soon', expected one of: 'pipe', 'port', 'start'"),
        ({"directory": "/proc/units"}, "process.directory: found '/proc/units', can't make /proc/units"),
    ],
)
def test_bad_settings_are_named(process_harness, settings, error):
    """Every fault of the settings is named with its key, what was found and what is allowed."""
    with pytest.raises(SettingsError) as caught:
        process_harness.make(**settings)
    assert [line[: len(error)] for line in caught.value.errors] == [error]
