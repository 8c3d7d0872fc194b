"""docs/operations.md: what an operator types does what the page says, on real daemons.

The lines of its ``console`` blocks that begin with ``$`` are run as they stand; ``systemctl`` starts and stops
the daemons of the test.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from runtime.runtime_processes import Daemons
from system.system_waits import no_units_left, unit_processes, wait_until

from leasekit.cli import main
from leasekit.core.time import HOUR

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)

DEPLOYMENT = """
[deployment]
name = "operations"
create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
inventory = [{ type = "vm", units = 8, prefix = "vm-", driver = "sleepers" }]
delegation = [{ broker = "broker", type = "vm" }]
settings = { retry_first = "100ms", retry_max = "1s" }
[actor.site.driver.sleepers]
kind = "process"
directory = "units"
command = ["sleep", "1000000"]
ports = [31000, 31499]
ready = "start"
identify = false

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
settings = { retry_first = "100ms", retry_max = "1s" }

[actor.guest]
role = "guest"
settings = { retry_first = "100ms", retry_max = "1s" }
"""


def typed(section: str) -> list[str]:
    """What the page's section has an operator type."""
    _, _, text = PAGE.partition(f"\n## {section}\n")
    text = text.partition("\n## ")[0]
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    found = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert found, section
    return found


class Operator:
    """Types commands on the machine where the three daemons run."""

    def __init__(self, daemons: Daemons, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.daemons, self.folder, self._capfd = daemons, folder, capfd

    def types(self, line: str, status: int = 0) -> str:
        """What the line prints, on both streams; it must end with ``status``."""
        words = shlex.split(line.replace("/var/backups/leasekit", str(self.folder / "copies")))
        if words[0] == "systemctl":
            for name in (word.removeprefix("leasekit@") for word in words[2:]):
                if words[1] != "start":
                    self.daemons.stop(name)
                if words[1] != "stop":
                    self.daemons.start(name)
            return ""
        assert words.pop(0) == "leasekit", line
        self._capfd.readouterr()
        found = main.run(words)
        printed = "".join(self._capfd.readouterr())
        assert found == status, f"{line}: {printed}"
        assert "Traceback" not in printed
        return printed

    def leases(self, name: str, units: int = 2) -> dict[str, Any]:
        """A lease of that name."""
        self.types(f"leasekit lease request vm {units} --for 1h --name {name} --wait")
        return self.lease(name)

    def lease(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.daemons.query("guest", "lease", lease=name)
        return found

    def at(self, actor: str, lease: dict[str, Any]) -> str:
        """The state of a guest's lease at a server; nothing if that has forgotten it."""
        known = {one["id"]: one["state"] for one in self.daemons.query(actor, "leases", all=True)}
        return str(known.get(lease["id"], ""))


@pytest.fixture
def operator(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    """Three daemons whose units are processes, and who operates them."""
    file, state = tmp_path / "leasekit.toml", tmp_path / "s"
    file.write_text(DEPLOYMENT)
    monkeypatch.setenv("LEASEKIT_FILE", str(file))
    monkeypatch.setenv("LEASEKIT_STATE", str(state))
    with no_units_left(state), Daemons(file, state) as daemons:
        daemons.start_all()
        yield Operator(daemons, tmp_path, capfd)


def after_the_copy(operator: Operator, actor: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """One lease that is in the copy that ``actor`` goes on from, after a SIGKILL, and one that is not."""
    backup, *restore = [line.replace("NAME", actor) for line in typed("Backup and restore")]
    web = operator.leases("web")
    assert actor in operator.types(backup)
    operator.types("leasekit lease extend web --for 1h --wait-for granted")
    for colour in ("red", "green", "blue"):  # the site's updates of it are ahead of those that are in the copy
        operator.types(f"leasekit lease modify web --config colour={colour} --wait")
    later = operator.leases("later", 3)
    operator.daemons.kill(actor)
    for line in restore[1:]:
        operator.types(line)
    (aside,) = operator.daemons.state.glob(f"{actor}.db.before-*[0-9]")
    with closing(sqlite3.connect(aside)) as store:
        assert later["id"] in {row[0] for row in store.execute("SELECT id FROM leases")}
    operator.daemons.kill(actor)  # which changes nothing: it goes on from a copy once
    operator.daemons.start(actor)
    with operator.daemons.client(actor) as client:
        assert [row["event"] for row in client.log(limit=10_000)].count("copied") == 1
    return web, later


def lose_store(operator: Operator, actor: str, section: str = "Lost store") -> list[str]:
    """SIGKILL, and no file of the store is left; what is typed next. The first daemon to start says what it finds."""
    operator.daemons.kill(actor)
    for file in operator.daemons.state.glob(f"{actor}.db*"):
        file.unlink()
    _, *lines = [line.replace("NAME", actor) for line in typed(section)]
    for line in lines[:2]:
        operator.types(line)
    return lines[2:]


def test_every_section_names_tests_that_exist() -> None:
    """Each procedure of the page has a test."""
    sections = PAGE.split("\n## ")[1:]
    there = "".join(file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py"))
    for section in sections:
        _, _, said = section.partition("\nTried by ")
        named = re.findall(r"`(test_\w+)`", said)
        assert named, section.partition("\n")[0]
        assert [name for name in named if f"def {name}(" not in there] == []


def test_install(operator: Operator) -> None:
    """What is typed before the first start finds nothing wrong with a file that is well."""
    check, doctor = typed("Install")
    assert "nothing wrong" in operator.types(check.replace("/etc/leasekit", str(operator.folder)))
    operator.daemons.stop("site")
    assert "0 missing" in operator.types(doctor)
    operator.daemons.start("site")


def test_a_guest_goes_on_from_a_copy(operator: Operator) -> None:
    """Its lease is closed, new ones have ids that no peer has seen; of what came later the site gets rid."""
    web, later = after_the_copy(operator, "guest")
    new = operator.leases("new")
    assert int(new["id"].rpartition("-")[2]) > 10**12
    assert "no lease 'later'" in operator.types("leasekit lease show later", status=1)
    operator.types("leasekit lease close web --wait")
    assert operator.at("site", web) == "closed"
    operator.types(f"leasekit site evict {later['id']}")
    wait_until("the eviction", lambda: operator.at("site", later) != "closed")
    operator.leases("rest", 1)


def test_a_broker_goes_on_from_a_copy(operator: Operator) -> None:
    """Its lease is closed; what it grants twice the site refuses, with evidence; it goes on to grant what is free."""
    web, later = after_the_copy(operator, "broker")
    operator.types("leasekit lease request vm 6 --for 1h --name many --wait", status=1)
    assert "3 of 8 units are left" in operator.lease("many")["reason"]
    assert "overdelegation" in operator.types("leasekit site evidence")
    operator.leases("new", 3)
    for name in ("later", "web"):
        operator.types(f"leasekit lease close {name} --wait")
    assert {operator.at("site", web), operator.at("site", later)} == {"closed"}
    wait_until("the claim's return", lambda: operator.at("broker", web) != "closed")


def test_a_site_goes_on_from_a_copy(operator: Operator) -> None:
    """Its lease goes on, and its end is heard; of the other one units are left over, and its close is answered."""
    web, later = after_the_copy(operator, "site")
    assert operator.at("site", web) == "active" and operator.at("site", later) == ""
    assert all(unit["unit"] in operator.types("leasekit site orphans") for unit in later["units"])
    operator.types("leasekit lease close later --wait")
    operator.types(f"leasekit site evict {web['id']}")
    wait_until("the word of it", lambda: operator.lease("web")["state"] != "closed")
    wait_until("the claims' return", lambda: {operator.at("broker", web), operator.at("broker", later)} ^ {"closed"})
    operator.types("leasekit site orphans --remove")
    wait_until("processes", lambda: unit_processes(operator.daemons.state))
    operator.leases("all", 8)


def test_what_can_not_be_restored(operator: Operator, tmp_path: Path) -> None:
    """A daemon that runs, a copy that is none, a damaged or missing one: the store stays as it is."""
    operator.leases("web")
    assert "is the store itself" in operator.types(f"leasekit backup --to {operator.daemons.state}", status=1)
    restore = "leasekit restore guest --from /var/backups/leasekit"
    (copies := tmp_path / "copies").mkdir()
    assert "in use by another daemon" in operator.types(restore, status=1)
    operator.daemons.stop("guest")
    assert "there is no store" in operator.types(restore, status=1)
    (copies / "guest.db").write_bytes(b"no database " * 1000)
    assert "can't copy the store" in operator.types(restore, status=1)
    operator.types("leasekit restore guest", status=2)
    assert {file.name for file in operator.daemons.state.glob("*guest.db*")} == {"guest.db", "guest.db.lock"}
    operator.daemons.start("guest")
    assert operator.lease("web")["state"] == "active"


def test_a_site_that_lost_its_store(operator: Operator) -> None:
    """What it left running is listed and removed; guests' closes are answered; all of it is leased again."""
    web = operator.leases("web", 5)
    look, remove, *_ = lose_store(operator, "site")
    assert all(unit["unit"] in operator.types(look) for unit in web["units"])
    operator.types(remove)
    wait_until("processes", lambda: unit_processes(operator.daemons.state))
    operator.types("leasekit lease close web --wait")
    wait_until("the claim's return", lambda: operator.at("broker", web) != "closed")
    operator.leases("all", 8)


def test_a_broker_that_lost_its_store(operator: Operator) -> None:
    """It grants again once its site has taken back and given anew; the lease of before goes on."""
    web = operator.leases("web")
    *_, reclaim, delegate = lose_store(operator, "broker")
    assert "broker: nobody has delegated units to it" in operator.types("leasekit status")
    said = "broker does not know of it: its store was lost, or is from before; `reclaim site/vm@broker`"
    wait_until("the word of it", lambda: said not in operator.types("leasekit status"))
    operator.types(reclaim)
    operator.types(delegate)
    operator.leases("new", 6)
    status = operator.types("leasekit status")
    assert "nobody has delegated" not in status and "does not know of it" not in status
    assert operator.lease("web")["state"] == operator.at("site", web) == "active"
    operator.types("leasekit lease close web --wait")


def test_a_guest_that_lost_its_store(operator: Operator) -> None:
    """Where the file alone is gone the daemon says so, and new leases are none that the broker knows."""
    old = operator.leases("web")
    operator.daemons.kill("guest")
    for file in operator.daemons.state.glob("guest.db*"):
        if file.suffix != ".lock":
            file.unlink()
    operator.daemons.start("guest")
    assert "guest.db is gone" in operator.daemons.running["guest"].said()
    assert operator.leases("web")["id"] != old["id"]
    operator.types(f"leasekit site evict {old['id']}")
    wait_until("the eviction", lambda: operator.at("site", old) != "closed")


def test_a_guest_that_lost_its_key(operator: Operator) -> None:
    """With another key, an empty store and a reload of its peers it leases again; the old lease is the site's."""
    old = operator.leases("web")
    operator.daemons.kill("guest")
    keys = operator.daemons.state / "keys"
    (keys / "guest.key").unlink()
    (keys / "guest.pub").unlink()
    _, *lines = typed("Lost key")
    for line in lines:
        operator.types(line.replace("/var/lib/leasekit", str(operator.daemons.state)))
    new = operator.leases("web")
    assert new["id"].partition("-")[0] != old["id"].partition("-")[0]
    operator.types(f"leasekit site evict {old['id']}")
    wait_until("the eviction", lambda: operator.at("site", old) != "closed")


def test_an_upgrade_and_the_way_back(operator: Operator) -> None:
    """The units of a lease outlive the restart. A store that a newer leasekit wrote is refused in words; the copy from
    before is not.
    """
    before = operator.leases("web")["units"]
    for line in typed("Upgrade"):
        operator.types(line.replace("NAME", "site").replace("/etc/leasekit", str(operator.folder)))
    assert operator.lease("web")["units"] == before
    operator.daemons.stop("site")
    with closing(sqlite3.connect(operator.daemons.state / "site.db")) as store:
        store.execute("PRAGMA user_version = 99")
    with pytest.raises(AssertionError, match=r"found schema version 99.*use the leasekit that wrote it"):
        operator.daemons.start("site")
    operator.daemons.running.pop("site")
    operator.types("leasekit restore site --from /var/backups/leasekit")
    operator.daemons.start("site")
    assert operator.at("site", operator.lease("web")) == "active"


def test_what_to_watch_is_there(operator: Operator) -> None:
    """Each field that the page says to watch is in what some daemon says."""
    (line,) = typed("What to watch")
    answers = json.loads(operator.types(line))
    _, _, section = PAGE.partition("\n## What to watch\n")
    cells = [row.split("|")[1] for row in section.partition("\n## ")[0].splitlines() if row.startswith("| `")]
    paths = [path for cell in cells for path in re.findall(r"`([^`]+)`", cell)]
    assert len(paths) > 10
    assert [path for path in paths if not any(_has(answer, path) for answer in answers)] == []
    operator.daemons.stop("guest")
    operator.types("leasekit status", status=1)


def _has(answer: Any, path: str) -> bool:
    """Whether a field is there; of lists, which may be empty, whether they are."""
    key, _, rest = path.partition(".")
    found = answer.get(key.removesuffix("[]"))
    if key.endswith("[]"):
        return isinstance(found, list) and all(_has(one, rest) for one in found if rest)
    return found is not None and (not rest or _has(found, rest))


def test_a_unit_is_drained_and_comes_back(operator: Operator) -> None:
    """Its lease has another unit, the drained one is out until it is back, windows are listed."""
    drain, look, undrain, announce, look_again = typed("Maintenance and draining")
    before = {unit["unit"] for unit in operator.leases("web")["units"]}
    assert "vm-0" in before
    assert operator.lease("web")["id"] in operator.types(drain)
    wait_until("the move", lambda: "vm-0" in {unit["unit"] for unit in operator.lease("web")["units"]})
    assert "new disks" in operator.types(look)
    operator.types(undrain)
    operator.types(announce)
    assert "new firmware" in operator.types(look_again)
    assert "new disks" not in operator.types(look_again)


def test_what_a_lease_costs_in_the_store(operator: Operator) -> None:
    """No more than the page says, at none of the three."""
    most = int(re.search(r"costs less than (\d+) KiB", PAGE)[1]) * 1024  # type: ignore[index]
    before, leases = sizes(operator), 30
    with operator.daemons.client("guest") as guest:
        for number in range(leases):
            wish = {"type": "vm", "units": 1, "term": hour(), "name": f"lease-{number}"}
            id_ = guest.command("lease.request", **wish, properties={"deferrable": "true"})["id"]
            operator.daemons.wait_for("guest", id_, join="joined")
            guest.command("lease.close", lease=id_)
            operator.daemons.wait_for("guest", id_, state="closed")
    for actor, size in sizes(operator).items():
        assert 0 < (size - before[actor]) / leases < most, actor


def hour() -> list[int]:
    """A term of an hour from now on."""
    now = time.time_ns() // 1_000_000
    return [now, now + HOUR]


def sizes(operator: Operator) -> dict[str, int]:
    """How large the stores are, by actor, once their write-ahead logs are in them."""
    found = {}
    for actor in operator.daemons.deployment.actors:
        with closing(sqlite3.connect(operator.daemons.state / f"{actor}.db")) as store:
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            found[actor] = (operator.daemons.state / f"{actor}.db").stat().st_size
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_stops_a_daemon(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It says why, and ends with a status of its own; with room it starts, and knows all that it acknowledged."""
    file, state = tmp_path / "leasekit.toml", tmp_path / "s"
    file.write_text(DEPLOYMENT + 'shell = { store_retry_max = "1s" }\n')
    state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "none", str(state)], check=True)
    try:
        with no_units_left(state), Daemons(file, state) as daemons:
            daemons.start_all()
            kept = daemons.command("guest", "lease.request", type="vm", units=2, term=hour(), name="web")["id"]
            daemons.wait_for("guest", kept, join="joined")
            guest = daemons.running["guest"]
            fill(state / "ballast")
            with daemons.client("guest", timeout=30) as client:
                for _ in range(100):
                    client.send("command", "lease.request", {"type": "vm", "units": 1, "term": hour()})
                assert guest.wait() == 4, guest.said()
            assert "nothing is done until the store can be written" in guest.said()
            assert "the store could not be written for " in guest.said()
            del daemons.running["guest"]
            operator = Operator(daemons, tmp_path, capfd)
            (state / "copies").mkdir()
            no_room = operator.types(f"leasekit backup {file} --state {state} --to {state}/copies", status=1)
            assert "is full" in no_room and f"the copy goes to {state}/copies" in no_room
            assert list((state / "copies").iterdir()) == []
            daemons.start("guest")  # which runs until it has something to commit
            daemons.kill("guest")
            (state / "ballast").unlink()
            (line,) = typed("Full disk")
            operator.types(line.replace("NAME", "guest"))
            assert daemons.query("guest", "lease", lease=kept)["state"] == "active"
            assert daemons.query("guest", "status")["shell"]["state"] == "running"
    finally:
        subprocess.run(["umount", "--lazy", str(state)], check=True)


def fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC
