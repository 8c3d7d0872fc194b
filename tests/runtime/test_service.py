"""Daemon processes: how they start, what keeps them from starting, how they end, and that they live on."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from polling import PATIENCE, poll
from runtime_processes import DaemonProcess, Daemons
from runtime_world import request

from leasekit.config.keys import new_key
from leasekit.runtime.client import ControlClient, ControlError, RequestError
from leasekit.stores.sqlite import SqliteStore

DEPLOYMENT = """
[deployment]
name = "test"
create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
[[actor.site.inventory]]
type = "vm"
units = 4
prefix = "vm-"
driver = "null"
[[actor.site.delegation]]
broker = "broker"
type = "vm"
units = 4
[actor.site.driver.null]
kind = "null"

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
[actor.broker.mapper]
name = "fcfs"

[actor.guest]
role = "guest"
[actor.guest.mapper]
name = "manual"
"""


def deploy(folder: Path, text: str = DEPLOYMENT) -> tuple[Path, Path]:
    """A deploy file and its state folder."""
    file = folder / "deploy.toml"
    file.write_text(text)
    return file, folder / "s"


def wait_delegated(state: Path) -> None:
    """Until the broker has taken what the site delegates."""
    with ControlClient(state / "site.control.sock") as watcher, ControlClient(state / "site.control.sock") as client:
        events = watcher.watch(patience=10)
        while [row["state"] for row in client.query("delegations")] != ["held"]:
            next(events)


def start_error(file: Path, state: Path, *names: str) -> str:
    """What a daemon that can't start says; it must end with status 1, in lines of its own and without a traceback."""
    process = DaemonProcess(file, state, *names)
    assert process.wait() == 1, process.said()
    said = process.said()
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("leasekit:")]
    return line


def test_three_actors_in_one_process(tmp_path: Path) -> None:
    """`up FILE` runs all actors of a file; a lease goes through; SIGTERM ends it well, within the grace time."""
    file, state = deploy(tmp_path)
    process = DaemonProcess(file, state)
    process.wait_ready()
    wait_delegated(state)
    with ControlClient(state / "guest.control.sock") as client:
        lease = client.command("lease.request", **request(2, properties={"deferrable": "true"}))["id"]
        with ControlClient(state / "guest.control.sock") as watcher:
            events = watcher.watch(lease)
            while client.query("lease", lease=lease)["join"] != "joined":
                next(events)
        status = client.query("status")
    assert status["pid"] == process.process.pid
    assert {peer["peer"]: peer["connected"] for peer in status["peers"]} == {"site": True, "broker": True}
    assert status["shell"]["state"] == "running"
    assert process.end() == 0
    assert not list(state.glob("*.sock")), "sockets are removed at the end"
    ready = [line.split()[:2] for line in process.said().splitlines() if line.startswith("ready ")]
    assert ready == [["ready", "site"], ["ready", "broker"], ["ready", "guest"]]


def test_daemons_of_two_versions(tmp_path: Path) -> None:
    """A daemon that speaks a later version as well speaks the other's with it. One that speaks nothing but the later
    version is refused, in words that say what each speaks; what it has with the other lasts until it can be spoken to.
    """
    file, state = deploy(tmp_path)
    with Daemons(file, state) as daemons:
        daemons.start("site", versions=(1, 2))
        daemons.start("broker", "guest")
        wait_delegated(state)
        lease = daemons.command("guest", "lease.request", **request(1, properties={"deferrable": "true"}))["id"]
        daemons.wait_for("guest", lease, join="joined")
        daemons.stop("site")
        assert "connected to broker (version 1, " in (state / "logs" / "site.log").read_text()

        daemons.start("site", versions=(2,))

        def problems() -> str:
            return " ".join(
                peer["problem"] for name in ("site", "broker") for peer in daemons.query(name, "status")["peers"]
            )

        trio.run(poll, lambda: "none in common" in problems())
        assert "'site' speaks versions [2], 'broker' speaks [1]: none in common" in problems()
        daemons.stop("site")
        daemons.start("site")
        daemons.command("guest", "lease.close", lease=lease)
        daemons.wait_for("guest", lease, state="closed")


def test_what_is_made_is_its_owners_only(tmp_path: Path) -> None:
    """State folder, control socket and logs can't be used by other users."""
    file, state = deploy(tmp_path)
    with Daemons(file, state) as daemons:
        daemons.start()
        for path, mode in [(state, 0o700), (state / "site.control.sock", 0o600), (state / "logs", 0o700)]:
            assert stat.S_IMODE(path.stat().st_mode) == mode, path


def test_each_actor_has_its_log(tmp_path: Path) -> None:
    """What concerns an actor is in its own log file; units have theirs."""
    file, state = deploy(tmp_path)
    process = DaemonProcess(file, state)
    process.wait_ready()
    wait_delegated(state)
    with ControlClient(state / "guest.control.sock") as client:
        client.command("lease.request", **request(1, properties={"deferrable": "true"}))
    with ControlClient(state / "site.control.sock") as client:
        units = client.unit_log("vm-0", follow=True, patience=10)
        assert "setup takes 0 ms" in next(units)
    process.end()
    logs = {name: (state / "logs" / f"{name}.log").read_text() for name in ("site", "broker", "guest")}
    assert "authority: listens on" in logs["site"]
    assert "guest: listens on" in logs["guest"]
    assert "authority" not in logs["broker"]


def test_stop_by_control_socket(tmp_path: Path) -> None:
    """The request `stop` ends a daemon like SIGTERM does."""
    file, state = deploy(tmp_path)
    process = DaemonProcess(file, state, "site")
    process.wait_ready()
    with ControlClient(state / "site.control.sock") as client:
        client.stop()
    assert process.wait() == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """While a driver's action holds up a graceful end, a second signal ends the daemon, with a status that says so."""
    slow = DEPLOYMENT.replace('kind = "null"', 'kind = "null"\nlatency = { setup = "1h" }')
    file, state = deploy(tmp_path, slow)
    with Daemons(file, state) as daemons:
        daemons.start_all()
        daemons.command("guest", "lease.request", **request(1, properties={"deferrable": "true"}))
        with daemons.client("site") as client, daemons.client("site") as follower:
            assert "setup takes" in next(follower.unit_log("vm-0", follow=True, patience=10))
            site = daemons.running.pop("site")
            site.process.terminate()
            deadline = time.monotonic() + 10
            while client.query("status")["shell"]["state"] != "stopping":
                assert time.monotonic() < deadline
        os.kill(site.process.pid or 0, signal.SIGINT)
        assert site.wait() == 128 + signal.SIGINT
        daemons.start("site")
        units = {unit["unit"]: unit["state"] for unit in daemons.query("site", "units")}
        assert units["vm-0"] == "setup", "what was cancelled is under way again"
        daemons.kill("site")


def test_killed_and_started_again(tmp_path: Path) -> None:
    """After SIGKILL the sockets that are left over don't keep the next daemon from starting, and state is as it was."""
    file, state = deploy(tmp_path)
    with Daemons(file, state) as daemons:
        daemons.start_all()
        lease = daemons.command("guest", "lease.request", **request(1, properties={"deferrable": "true"}))["id"]
        daemons.wait_for("guest", lease, join="joined")
        for name in ("site", "broker", "guest"):
            daemons.kill(name)
        assert (state / "guest.control.sock").exists()
        daemons.start()
        assert daemons.query("guest", "lease", lease=lease)["state"] == "active"
        daemons.command("guest", "lease.close", lease=lease)
        daemons.wait_for("guest", lease, state="closed")


def test_the_same_actor_twice(tmp_path: Path) -> None:
    """A second daemon of one actor says which process is the first; the first goes on."""
    file, state = deploy(tmp_path)
    with Daemons(file, state) as daemons:
        daemons.start("site")
        pid = daemons.running["site"].process.pid
        error = start_error(file, state, "site")
        assert f"site: is run by another daemon already (process {pid}" in error
        assert daemons.query("site", "status")["pid"] == pid


def test_port_in_use(tmp_path: Path) -> None:
    """The message names the address and the key of the file."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = DEPLOYMENT.replace('"unix:site.sock"', f'"tcp://127.0.0.1:{port}"')
        error = start_error(*deploy(tmp_path, text), "site")
    assert f"actor.site.listen: can't listen on tcp://127.0.0.1:{port}: it is in use by another daemon" in error


def test_one_that_fails_to_start_stops_the_others(tmp_path: Path) -> None:
    """Where several actors share a process all or none are there; those that had started end in good order."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = DEPLOYMENT.replace('"unix:broker.sock"', f'"tcp://127.0.0.1:{taken.getsockname()[1]}"')
        file, state = deploy(tmp_path, text)
        assert "broker: actor.broker.listen" in start_error(file, state)
    assert not (state / "site.control.sock").exists()


def test_missing_key(tmp_path: Path) -> None:
    """Without `create_keys` a missing key is an error that says how to make one; other's public keys too."""
    file, state = deploy(tmp_path, DEPLOYMENT.replace("create_keys = true", "create_keys = false"))
    for name in ("broker", "guest"):
        new_key(state / "keys" / f"{name}.key")
    error = start_error(file, state, "site")
    assert "actor.site.key" in error
    assert "leasekit keys new" in error


def test_corrupt_database(tmp_path: Path) -> None:
    """A database that is none is named, with what to do."""
    file, state = deploy(tmp_path)
    state.mkdir(mode=0o700)
    (state / "site.db").write_bytes(b"no database " * 1000)
    error = start_error(file, state, "site")
    assert f"{state}/site.db" in error
    assert "move this one away" in error


def test_newer_database(tmp_path: Path) -> None:
    """A database of a newer leasekit is left alone, and said to be one."""
    file, state = deploy(tmp_path)
    state.mkdir(mode=0o700)
    store = SqliteStore(state / "site.db")
    store._connection().execute("PRAGMA user_version = 99")
    store.close()
    assert "found schema version 99" in start_error(file, state, "site")


def test_a_control_path_that_is_a_file(tmp_path: Path) -> None:
    """A file in the place of the control socket is not removed."""
    file, state = deploy(tmp_path)
    state.mkdir(mode=0o700)
    (state / "site.control.sock").write_text("precious")
    assert "actor.site.control" in start_error(file, state, "site")
    assert (state / "site.control.sock").read_text() == "precious"


def test_a_full_disk_and_then_room(tmp_path: Path) -> None:
    """On a file system that is full the daemon stands still and says so; when there is room it goes on."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    small = tmp_path / "s"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "none", str(small)], check=True)
    try:
        file, state = deploy(tmp_path)
        with Daemons(file, state) as daemons:
            daemons.start()
            ballast = state / "ballast"
            with ballast.open("wb", buffering=0) as out:
                while True:
                    try:
                        out.write(b"x" * 4096)
                    except OSError:
                        break
            wish = request(1, properties={"deferrable": "true"})
            with daemons.client("guest", timeout=30) as client, daemons.client("guest") as asker:
                for _ in range(50):
                    client.send("command", "lease.request", wish)
                deadline = time.monotonic() + PATIENCE
                while (shell := asker.query("status")["shell"])["state"] != "store trouble":
                    assert time.monotonic() < deadline
                assert "full" in shell["problem"] or "I/O" in shell["problem"], shell
                ballast.unlink()
                acknowledged = set()
                for number in range(50):
                    try:
                        acknowledged.add(client.receive(number + 1)["id"])
                    except RequestError as error:
                        # Those that came when the daemon knew already were refused at once.
                        assert "store trouble" in str(error)
                assert asker.query("status")["shell"]["state"] == "running"
                assert acknowledged
                assert {lease["id"] for lease in asker.query("leases", all=True)} == acknowledged
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_strangers_do_not_get_in(tmp_path: Path) -> None:
    """A guest whose key is not the one that the site knows can't connect; both say why; the site lives on."""
    file, state = deploy(tmp_path)
    with Daemons(file, state) as daemons:
        daemons.start("site", "broker")
        (tmp_path / "other").mkdir()
        other = tmp_path / "other" / "deploy.toml"
        keys = {name: (state / "keys" / f"{name}.pub").read_text().split()[1] for name in ("site", "broker")}
        other.write_text(
            "[deployment]\ncreate_keys = true\n[actor.guest]\nrole = 'guest'\n[actor.guest.mapper]\nname = 'manual'\n"
            + "".join(
                f"[peer.{name}]\nrole = '{role}'\nkey = '{keys[name]}'\naddress = 'unix:{state}/{name}.sock'\n"
                for name, role in (("site", "authority"), ("broker", "broker"))
            )
        )
        with Daemons(other, tmp_path / "t") as strangers:
            strangers.start("guest")
            deadline = time.monotonic() + 10
            while not all("not known" in p["problem"] for p in strangers.query("guest", "status")["peers"]):
                assert time.monotonic() < deadline, strangers.query("guest", "status")["peers"]
        assert not any(p["connected"] for p in daemons.query("site", "status")["peers"] if p["peer"] == "guest")
        assert "'guest' has key" in daemons.running["site"].said()


def test_garbage_on_its_sockets(tmp_path: Path) -> None:
    """Whatever is sent to a daemon's sockets, it lives on and still serves its peers and its operator."""
    file, state = deploy(tmp_path)
    with Daemons(file, state) as daemons:
        daemons.start_all()
        for name in ("site.sock", "site.control.sock"):
            for data in (b"\0" * 100, b"\xff" * 100_000, os.urandom(5_000), b"\0\0\0\x05\xc1\xc1\xc1\xc1\xc1"):
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.connect(str(state / name))
                    try:
                        sock.sendall(data)
                    except OSError:
                        continue  # it has hung up on us, as it may
        lease = daemons.command("guest", "lease.request", **request(1, properties={"deferrable": "true"}))["id"]
        daemons.wait_for("guest", lease, join="joined")


def test_a_broken_file_is_said_in_full(tmp_path: Path) -> None:
    """All that is wrong with a deploy file is said before anything starts."""
    file, state = deploy(tmp_path, DEPLOYMENT.replace("fcfs", "fcsf").replace('prefix = "vm-"', "prefix = 5"))
    found = subprocess.run(
        [sys.executable, "-m", "leasekit.cli.main", "up", str(file), "--state", str(state)],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    assert "prefix" in found.stderr


def test_no_daemon_no_answer(tmp_path: Path) -> None:
    """After the end of a daemon its control socket is gone, and the client says how to start one."""
    file, state = deploy(tmp_path)
    with Daemons(file, state) as daemons:
        daemons.start("site")
    with pytest.raises(ControlError, match="leasekit up FILE"):
        ControlClient(state / "site.control.sock")
