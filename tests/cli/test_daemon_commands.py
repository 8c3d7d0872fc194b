"""Every command that talks to daemons, against real ones: site, broker and guest in one process, with null drivers."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from cli_daemons import Cli, running
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from system.system_waits import wait_until

from leasekit.cli import main
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.claims.evidence import Evidence, decode_evidence, encode_evidence
from leasekit.core.time import HOUR

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
units = 8
prefix = "vm-"
driver = "none"
properties = { memory_mb = "512" }
[[actor.site.delegation]]
broker = "broker"
type = "vm"
units = 8
[actor.site.driver.none]
kind = "null"

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
mapper = { name = "fcfs" }

[actor.guest]
role = "guest"
mapper = { name = "manual" }
[actor.guest.settings]
extend_lead = "60s"
"""


@pytest.fixture
def cli(file: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    """The command line, with no lease open that a test before has left."""
    made = Cli(file, capfd)
    for lease in made.json("lease list"):
        made(f"lease close {lease['id']} --wait")
    return made


def test_request_is_followed_until_its_units_have_joined(cli: Cli) -> None:
    """With --wait a request comes back active, with its units joined and its properties passed on."""
    lease = cli.json("lease request vm 3 --for 1h --slice s --name joins --config role=web --wait")
    assert (lease["state"], lease["join"], lease["site"], lease["slice"]) == ("active", "joined", "site", "s")
    assert lease["configuration"] == {"role": "web"}
    assert [unit["state"] for unit in lease["units"]] == ["joined"] * 3
    assert lease["requested"]["properties"]["deferrable"] == "true"


def test_request_that_fails_says_why(cli: Cli) -> None:
    """With --wait a refused request is shown, ends with 1 and its reason."""
    out, err = cli("lease request vm 9 --for 1h --wait", 1)
    assert "failed" in out
    assert "no site here has more than 8 of 'vm'" in err


def test_names_of_a_lease(cli: Cli) -> None:
    """A lease is found by id, name and slice/name; an unknown one is an error that says where to look."""
    lease = cli.json("lease request vm 1 --for 1h --slice s --name one --wait")
    for name in (lease["id"], "one", "s/one"):
        assert cli.json(f"lease show {name}")["id"] == lease["id"]
    _, err = cli("lease show two", 1)
    assert err == "leasekit: no lease 'two' here; `leasekit lease list` shows those there are\n"


def test_start_in_the_future(cli: Cli) -> None:
    """A start that is given is kept, and the request is not deferrable then."""
    cli("lease request vm 2 --for 30m --start +2h --name later")
    lease = cli.json("lease show later")
    assert lease["requested"]["term"][1] - lease["requested"]["term"][0] == 30 * 60_000
    assert "deferrable" not in lease["requested"]["properties"]


def test_options_become_request_properties(cli: Cli) -> None:
    """Elastic and deferrable requests, time-outs and groups are told to the broker as its properties."""
    line = "lease request vm 8 --for 1h --elastic 2 --deferrable-until +3h --timeout 90s --property priority=7 --name e"
    properties = cli.json(line)["requested"]["properties"]
    assert properties.pop("latest_start")
    assert properties == {
        "deferrable": "true", "elastic": "true", "min_units": "2", "request_timeout": "1m30s", "priority": "7"
    }  # fmt: skip
    properties = cli.json("lease request vm 1 --for 1h --group g --group-size 2")["requested"]["properties"]
    assert (properties["group_id"], properties["lease_count"]) == ("g", "2")
    line = "lease request vm 1 --for 1h --start +1h --preemptible --notice 0s --min-run 10m"
    properties = cli.json(line)["requested"]["properties"]
    assert properties == {"preemptible": "true", "notice": "0s", "min_run": "10m"}
    _, err = cli("lease request vm 1 --for 1h --min-run 10m", 2)
    assert "--min-run goes with --preemptible" in err


def test_dry_run(cli: Cli) -> None:
    """A dry run tells what would be granted, or why not and when; it leaves no lease behind."""
    cli("lease request vm 6 --for 2h --start +1h --name held")
    out, _ = cli("lease request vm 8 --for 30m --dry-run")
    assert out.startswith("broker would grant 8 units at site over 20")
    _, err = cli("lease request vm 3 --for 1h --start +90m --dry-run", 1)
    assert (
        err.startswith("leasekit: broker would refuse it: insufficient resources: ") and "earliest fit is at 20" in err
    )
    assert re.search(r"\d{13}", err) is None
    told = cli.json("lease request vm 3 --for 1h --start +90m --dry-run", 1)
    assert (told["status"], told["units"]) == ("refused", 0)
    assert told["earliest"] == cli.json("lease show held")["requested"]["term"][1]
    assert cli.json("lease request vm 3 --for 1h --start +90m --elastic 1 --dry-run")["units"] == 2
    out, _ = cli("lease request vm 3 --for 2h --dry-run")
    assert re.match(r"broker would let it wait until 20\S+Z, and refuse it if it can't start by then: ", out)
    assert re.search(
        r"2 free at site; nothing up to its latest start, 20\S+Z; the earliest fit is at 20\S+ at site$", out
    )
    assert cli("lease request tape 1 --for 1h --dry-run", 1)[1].endswith("type: found 'tape', broker has vm\n")
    assert "without --wait" in cli("lease request vm 1 --for 1h --dry-run --wait", 2)[1]
    assert [lease["name"] for lease in cli.json("lease list")] == ["held"]


def test_dry_run_of_a_change(cli: Cli) -> None:
    """An extend or modify is tried as a request is: what it would get, or why not, and the lease stays as it was."""
    before = cli.json("lease request vm 2 --for 1h --name web --wait")
    cli("lease request vm 4 --for 1h --start +2h --name later")
    told = cli.json("lease extend web --for 30m --units 6 --dry-run")
    assert (told["status"], told["units"], told["term"][0]) == ("granted", 6, before["end"])
    out, _ = cli("lease modify web --units 8 --dry-run")
    assert out.startswith("broker would grant 8 units at site over 20")
    _, err = cli("lease extend web --for 2h --units 6 --dry-run", 1)
    assert err.startswith("leasekit: broker would refuse it: insufficient resources: 6 units of 'vm' wanted")
    assert "the broker has nothing to decide" in cli("lease modify web --config a=b --dry-run", 1)[1]
    assert "without --wait" in cli("lease extend web --for 1h --dry-run --wait", 2)[1]
    after = cli.json("lease show web")
    assert (after["end"], after["pending"], after["requested"]) == (before["end"], "-", before["requested"])


def test_extend_grows_and_shrinks(cli: Cli) -> None:
    """An extend is counted from the lease's end, with other units if wanted."""
    before = cli.json("lease request vm 2 --for 20m --name web --wait")
    lease = cli.json("lease extend web --for 10m --units 4")
    assert lease["requested"]["term"] == [before["end"], before["end"] + 10 * 60_000]
    assert lease["requested"]["units"] == 4


def test_extend_further_modify_and_undo(cli: Cli) -> None:
    """A lease that was extended is modified, extended further from there, and goes back step by step to its old end."""

    def granted(extensions: int) -> dict[str, Any]:
        wait_until("the ticket", lambda: None if goes_on(cli.json("lease show web")) == extensions else "not yet")
        found: dict[str, Any] = cli.json("lease show web")
        return found

    def goes_on(lease: dict[str, Any]) -> int:
        return (
            -1
            if lease["pending"] != "-"
            else len([lease["renewal"], *lease["continuations"]] if lease["renewal"] else [])
        )

    before = cli.json("lease request vm 2 --for 20m --name web --wait")
    _, err = cli("lease extend web --undo", 1)
    assert "has no extension that could be undone" in err
    cli("lease extend web --for 10m")
    assert granted(1)["renewal"]["term"] == [before["end"], before["end"] + 10 * 60_000]
    assert len(cli.json("lease modify web --units 3 --config size=big --wait")["units"]) == 3
    _, err = cli("lease modify web --until +5m", 1)
    assert "`leasekit lease extend web --undo` takes an extension back first" in err
    assert cli.json("lease extend web --for 10m --units 1 --dry-run")["term"][0] == before["end"] + 10 * 60_000
    cli("lease extend web --for 10m --units 1")
    lease = granted(2)
    assert [one["units"] for one in (lease["renewal"], *lease["continuations"])] == [2, 1]
    assert lease["last_end"] == lease["continuations"][-1]["term"][1] > lease["end"]
    assert lease["end"] == before["end"]
    out, _ = cli("lease show web")
    (line,) = [line for line in out.splitlines() if "--undo" in line]
    assert "1 unit over" in line
    assert "--for goes without --undo" in cli("lease extend web --undo --for 1h", 2)[1]
    cli("lease extend web --undo --wait")
    assert granted(1)["renewal"]["units"] == 2
    cli("lease extend web --undo")
    lease = granted(0)
    assert (lease["state"], lease["end"], len(lease["units"])) == ("active", before["end"], 3)
    wait_until("the claims", lambda: [c for c in claims(cli, lease) if c["term"][1] > before["end"]])
    assert claims(cli, lease)[-1]["units"] == 3


def test_changes_when_the_site_goes_on_by_an_extension_already(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An extension that is redeemed at once can be followed, as can what comes after it: a modify until it is in force
    or refused, the undo of an extension in hand, and of the one that was redeemed.
    """
    path = tmp_path / "leasekit.toml"
    path.write_text(DEPLOY.replace('extend_lead = "60s"', 'extend_lead = "30m"'))
    with running(path):
        cli = Cli(path, capfd)

        def redeemed(extensions: int) -> dict[str, Any]:
            def found() -> tuple[int, str, str]:
                lease = cli.json("lease show web")
                there = cli.json(f"lease show {lease['id']} --actor site")
                tickets = [one for one in (lease["renewal"], *lease["continuations"]) if one]
                return len(tickets), lease["pending"], there["pending"]

            wanted = (extensions, "extending_lease", "extending")
            wait_until(f"{wanted}", lambda: None if found() == wanted else found())
            lease: dict[str, Any] = cli.json("lease show web")
            return lease

        before = cli.json("lease request vm 2 --for 20m --name web --wait")
        cli("lease extend web --for 10m")
        redeemed(1)
        lease = cli.json("lease modify web --units 3 --config size=big --wait")
        assert (len(lease["units"]), lease["configuration"], lease["end"]) == (3, {"size": "big"}, before["end"])
        assert redeemed(1)["renewal"]["term"] == [before["end"], before["end"] + 10 * 60_000]
        assert "are more than site 'site' has" in cli("lease modify web --units 9 --wait", 1)[1]
        assert cli.json("lease extend web --for 10m --units 1 --dry-run")["term"][0] == before["end"] + 10 * 60_000
        cli("lease extend web --for 10m --units 1")
        redeemed(2)
        cli("lease extend web --undo --wait")
        assert len(redeemed(1)["units"]) == 3
        lease = cli.json("lease extend web --undo --wait")
        assert (lease["state"], lease["renewal"], lease["end"]) == ("active", None, before["end"])
        cli("lease close web --wait")


def claims(cli: Cli, lease: dict[str, Any]) -> list[dict[str, Any]]:
    """What its broker has given to a lease."""
    found: list[dict[str, Any]] = cli.json(f"lease show {lease['id']} --actor broker")["claims"]
    return found


def test_extend_in_force(cli: Cli) -> None:
    """With --wait an extend comes back when the new term has begun, with its units."""
    before = cli.json("lease request vm 2 --for 2s --name web --wait")
    lease = cli.json("lease extend web --for 1h --units 4 --wait")
    assert len(lease["units"]) == 4
    assert lease["end"] - before["end"] == 3_600_000


def test_modify(cli: Cli) -> None:
    """A modify changes units (with victims by name), end and configuration in mid-term."""
    cli("lease request vm 4 --for 1h --name web --wait")
    names = [unit["unit"] for unit in cli.json("lease show web")["units"]]
    lease = cli.json(f"lease modify web --units 3 --victim {names[1]} --wait")
    assert [unit["unit"] for unit in lease["units"]] == [names[0], *names[2:]]
    lease = cli.json("lease modify web --config colour=blue --wait")
    assert lease["configuration"] == {"colour": "blue"}
    end = lease["end"]
    assert cli.json("lease modify web --until +10m --wait")["end"] < end
    _, err = cli("lease modify web --units 1 --victim nobody", 1)
    assert "'nobody' is no unit of lease" in err


def test_failed_change_exits_with_one(cli: Cli) -> None:
    """With --wait a modify that the broker refuses is an error, and the lease goes on as it was."""
    cli("lease request vm 4 --for 1h --name web --wait")
    _, err = cli("lease modify web --units 100 --wait", 1)
    assert "100" in err
    assert len(cli.json("lease show web")["units"]) == 4


def test_close(cli: Cli) -> None:
    """With --wait a close comes back when the site has confirmed it; a second one says that it was closed."""
    cli("lease request vm 4 --for 1h --name web --wait")
    assert cli.json("lease close web --reason done --wait")["state"] == "closed"
    _, err = cli("lease close web", 1)
    assert "is closed already" in err


def test_list(cli: Cli) -> None:
    """Open leases are listed, those of one slice, and with --all those that are over; site and broker list theirs."""
    cli("lease request vm 1 --for 1h --slice a --name x --wait")
    cli("lease request vm 1 --for 1h --slice b --name y --wait")
    cli("lease close y --wait")
    assert [lease["name"] for lease in cli.json("lease list")] == ["x"]
    assert cli.json("lease list --slice b") == []
    assert "y" in [lease["name"] for lease in cli.json("lease list --slice b --all")]
    for actor in ("site", "broker"):
        (lease,) = cli.json(f"lease list --actor {actor}")
        assert (lease["holder"], lease["slice"]) == ("guest", "a")
        out, _ = cli(f"lease list --actor {actor}")
        assert out.splitlines()[0].split()[:3] == ["id", "holder", "slice"]
        out, _ = cli(f"lease show {lease['id']} --actor {actor}")
        assert "guest" in out
    ends = {lease["slice"]: lease["end"] - lease["term"][1] for lease in cli.json("lease list --actor site --all")}
    assert ends["a"] == 0 > ends["b"]


def test_history(cli: Cli) -> None:
    """The history tells every transition in order, of guest and site, also when the lease is over."""
    cli("lease request vm 1 --for 1h --name web --wait")
    id_ = cli.json("lease close web --wait")["id"]
    rows = cli.json("lease history web")
    assert [row["event"] for row in rows][:4] == ["ask", "lease.request", "ticket", "redeem"]
    assert ("closed", "closed/-") in [(row["event"], row["to_state"]) for row in rows]
    assert cli.json(f"lease history {id_} --actor site")[0]["event"] == "redeem"
    out, _ = cli(f"lease history {id_}")
    assert len(out.splitlines()) == len(rows) + 1
    _, err = cli("lease history nobody", 1)
    assert "no lease 'nobody' here, nor among those that are over and still kept" in err


def test_watch_streams_transitions(cli: Cli, file: Path) -> None:
    """Watch prints each transition as a line of JSON when it happens, and ends with 130 on Ctrl-C."""
    line = [sys.executable, "-m", "leasekit.cli.main", "lease", "watch", "--json", "--file", str(file)]
    id_ = cli.json("lease request vm 1 --for 1h --name seen --wait")["id"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        events: list[Any] = []
        while not events and watch.poll() is None:
            # Until the watcher has started, what changes can't be seen by it.
            cli("lease modify seen --config a=b --wait")
            if select.select([watch.stdout], [], [], 0.5)[0]:
                events.append(json.loads(watch.stdout.readline()))
        assert events[0]["lease"] == id_
        watch.send_signal(signal.SIGINT)
        _, err = watch.communicate(timeout=20)
    assert watch.returncode == 130
    assert "Traceback" not in err


def test_watch_of_what_will_never_happen(cli: Cli) -> None:
    """There is nothing to wait for of a lease that is not there, or is over."""
    assert "no lease 'nobody' here" in cli("lease watch nobody", 1)[1]
    cli("lease request vm 1 --for 1h --name brief --wait")
    cli("lease close brief --wait")
    assert "is closed: `leasekit lease history` tells how it went" in cli("lease watch brief", 1)[1]


def test_reasons_are_read_by_people(cli: Cli) -> None:
    """Instants in reasons are dates, in tables, fields and JSON; what is for programs has them in milliseconds."""
    cli("lease request vm 8 --for 2h --name all --wait")
    id_ = cli.json("lease request vm 3 --for 1h --start +1h --name more --wait", 1)["id"]
    because = cli.json(f"lease show {id_}")["because"]
    assert (because["code"], len(str(because["at"]))) == ("mapper:insufficient", 13)
    for line in (f"lease show {id_}", "lease show all", "lease list --all", "lease history all", "broker requests"):
        out, err = cli(line)
        assert re.search(r"(?<![\w-])\d{13}(?![\w-])", out + err) is None, line
        assert all(row == row.rstrip() for row in out.splitlines())


def test_logs_of_guest_and_site(cli: Cli) -> None:
    """The logs of a lease's units are those of both sides; one unit can be asked for."""
    lease = cli.json("lease request vm 2 --for 1h --name web --wait")
    names = [unit["unit"] for unit in lease["units"]]
    logs = cli.json("lease logs web")
    assert list(logs) == ["guest", "site"]
    assert [list(of_side) for of_side in logs.values()] == [names, names]
    assert any("setup" in line for line in logs["site"][names[0]])
    assert any("join" in line for line in logs["guest"][names[0]])
    out, _ = cli(f"lease logs web {names[0]}")
    assert names[1] not in out
    _, err = cli("lease logs web nobody", 1)
    assert f"has no unit 'nobody'; it has {', '.join(names)}" in err


def test_slices(cli: Cli) -> None:
    """A slice can be made, holds its redeems until it has all its tickets, is listed, and closes as a whole."""
    assert cli.json("slice create held --hold 2") == {"slice": "held", "hold": 2}
    cli("lease request vm 1 --for 1h --slice held --name h1")
    (row,) = [row for row in cli.json("slice list") if row["slice"] == "held"]
    assert (row["hold"], row["released"], row["open"]) == (2, False, 1)
    cli("lease request vm 1 --for 1h --slice held --name h2 --wait")
    assert len(cli.json("slice close held --wait")["closed"]) == 2
    assert cli.json("lease list --slice held") == []
    assert cli.json("slice close held --wait")["closed"] == []
    _, err = cli("slice create held", 1)
    assert "expected a name that no slice has yet" in err
    out, _ = cli("slice list")
    assert "held" in out


def test_keys_of_a_slice(cli: Cli, tmp_path: Path) -> None:
    """A slice's login keys are public keys of OpenSSH; a private key, or any other file, is sent to nobody."""
    secret = Ed25519PrivateKey.generate()
    public = secret.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    cli("slice create lab")
    for name, data in {
        "id": secret.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), "hosts": b"127.0.0.1 me\n",
        "none": b"\n", "picture": b"\xff\xd8",
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
        assert f"{name}: " in cli(f"slice key lab {tmp_path / name}", 1)[1]
    (tmp_path / "id.pub").write_bytes(public + b" me@here\n")
    assert cli.json(f"slice key lab {tmp_path / 'id.pub'}")["leases"] == []


def test_predecessors(cli: Cli) -> None:
    """--after and --join-after name the leases that a request waits for; they must be there."""
    cli("lease request vm 1 --for 1h --name first --wait")
    second = cli.json("lease request vm 1 --for 1h --name second --after first --join-after first --wait")
    assert second["join"] == "joined"
    _, err = cli("lease request vm 1 --for 1h --after nobody", 1)
    assert "redeem_predecessor: found 'nobody'" in err


def test_site_commands(cli: Cli) -> None:
    """Units can be listed and filtered, taken out of service and brought back; delegations are listed."""
    assert len(cli.json("site units")) == 8
    assert cli.json("site units --in out") == []
    assert cli.json("site saved") == []
    assert cli("site saved") == ("", "nothing is kept of any unit\n")
    assert cli.json("site disable vm-3")["state"] == "out"
    assert [unit["unit"] for unit in cli.json("site units --in out --type vm")] == ["vm-3"]
    out, _ = cli("site units --in out")
    assert "vm-3" in out
    assert cli.json("site enable vm-3")["state"] == "free"
    _, err = cli("site disable vm-99", 1)
    assert "vm-99" in err
    (delegation,) = cli.json("site delegations")
    assert (delegation["broker"], delegation["units"], delegation["state"]) == ("broker", 8, "held")
    out, _ = cli("site delegations")
    assert "held" in out


def test_usage(cli: Cli) -> None:
    """What was used is what the site's log says of each unit, in all forms; a guest's socket has no accounts."""
    cli("lease request vm 2 --for 30m --name counted --wait")
    cli("lease close counted --wait")
    used = 0
    for lease in cli.json("lease list --all --actor site"):
        for row in cli.json(f"lease history {lease['id']} --actor site"):
            if row["event"].startswith("unit "):
                up = ("active", "modify")  # a unit that is being changed is in use
                used += row["at"] * ((row["from_state"] in up) - (row["to_state"] in up))
    (row,) = cli.json("usage --by type --actor site")
    assert row["type"] == "vm" and row["used_unit_ms"] == used > 0
    titles, line = cli("usage --by type --actor site --csv")[0].splitlines()
    assert dict(zip(titles.split(","), line.split(","), strict=True))["used_unit_hours"] == f"{used / HOUR:.3f}"
    assert {row["actor"] for row in cli.json("usage")} == {"site", "broker"}
    with sqlite3.connect(cli.file.parent / "run/site.db") as store:  # as where nobody noted how many units there were
        store.execute("DELETE FROM log WHERE event = 'inventory'")
    titles, line = cli("usage --by type --actor site --csv")[0].splitlines()
    told = dict(zip(titles.split(","), line.split(","), strict=True))
    assert told["used_unit_hours"] == f"{used / HOUR:.3f}" and told["requests"] == told["utilisation"] == ""
    for name, status in (("site", 0), ("guest", 1)):
        _, err = cli(f"usage --control {cli.file.parent}/run/{name}.control.sock", status)
        assert ("guests keep no accounts" in err) == bool(status)
    assert "not after --since" in cli("usage --since now --until -1h", 2)[1]
    assert "--csv goes without --json" in cli("usage --csv --json", 2)[1]


def test_broker_commands(cli: Cli) -> None:
    """Sources tell what is free, requests who waits, and the calendar when units are taken."""
    cli("lease request vm 6 --for 30m --name web --wait")
    (source,) = cli.json("broker sources")
    assert (source["units"], source["free_now"]) == (8, 2)
    out, _ = cli("broker sources")
    assert "memory_mb=512" in out
    cli("lease request vm 8 --for 30m --deferrable-until +20m --name waits")
    (calendar,) = cli.json("broker calendar --for 1h")
    assert [step["taken"] for step in calendar["steps"]] == [6, 0]
    out, _ = cli("broker calendar --for 1h")
    assert "8 units, at most 6 taken at once" in out
    assert [(r["holder"], r["units"]) for r in calendar["reservations"]] == [("guest", 6)]
    picture = cli.file.parent / "week.svg"
    cli(f"broker calendar --for 1w --out {picture}")
    assert "guest" in picture.read_text()
    assert "expected a name that ends in .png or .svg" in cli("broker calendar --out week.gif", 2)[1]
    window = cli.json("site maintenance add --from +10m --until +20m --type vm --reason disks")["window"]
    wait_until("the broker hears of it", lambda: "8 units over" not in cli("broker calendar --for 1h")[0])
    cli(f"site maintenance remove {window}")
    cli("site drain vm-0 --reason fans")
    wait_until("the broker hears of it", lambda: "1 unit from 20" not in cli("broker calendar --for 1h")[0])
    cli("site undrain vm-0")
    (waiting,) = cli.json("broker requests")
    assert waiting["requested"]["units"] == 8
    out, _ = cli("broker requests")
    assert "guest" in out
    _, err = cli("broker calendar --source none", 1)
    assert "no source 'none'" in err


def test_ticket_of_a_lease(cli: Cli, tmp_path: Path) -> None:
    """The ticket of a lease is read from the guest's store, verified, and can be saved and shown from the file."""
    cli("lease request vm 2 --for 1h --name web --wait")
    saved = tmp_path / "web.ticket"
    shown = cli.json(f"ticket show --lease web --save {saved}")
    assert shown["ok"]
    assert [(claim["issuer_name"], claim["holder_name"]) for claim in shown["chain"]] == [
        ("site", "broker"),
        ("broker", "guest"),
    ]
    assert cli.json(f"ticket show {saved}")["chain"] == shown["chain"]
    _, err = cli("ticket show --lease nobody", 1)
    assert "no lease 'nobody' in the store of guest" in err


def test_receipts_and_the_sites_word(cli: Cli, tmp_path: Path) -> None:
    """What was given back and granted again proves nothing: the site does not say that the first claim stands, and the
    broker has its receipt. Of claims that stand the site says so.
    """
    evidence, receipts, word = (tmp_path / name for name in ("e.json", "receipts.txt", "proven.json"))
    cli("lease request vm 8 --for 1h --name first --wait")
    cli(f"ticket show --lease first --save {tmp_path / 'first'}")
    cli("lease close first --wait")
    first = cli.json("lease show first")["id"]
    cli("lease request vm 8 --for 1h --name second --wait")
    cli(f"ticket show --lease second --save {tmp_path / 'second'}")
    assert [row["lease"] for row in cli.json("broker receipts")][:1] == [first]
    chains = [decode_ticket((tmp_path / name).read_bytes()).chain for name in ("first", "second")]
    instant = chains[1][-1].term.start
    framed = Evidence("overdelegation", instant, (chains[0][0], chains[0][-1], chains[1][-1]))
    evidence.write_text(encode_evidence(framed))
    assert cli.json(f"evidence verify {evidence}", 3)["open"]
    assert "ended at" in cli(f"site word {evidence} --out {word}", 1)[1] and not word.exists()
    assert "receipt" in cli(f"broker receipts --lease {first} --out {receipts}")[1]
    assert cli.json(f"evidence verify {evidence} --against {receipts}", 1)["reason"] == "refuted"
    evidence.write_text(encode_evidence(attrs.evolve(framed, claims=(chains[0][0], chains[1][-1]))))
    assert "stand as of" in cli(f"site word {evidence} --out {word}")[1]
    (said,) = decode_evidence(word.read_text()).statements
    assert said.kind == "standing" and said.signer == chains[0][0].issuer
    (tmp_path / "bad.json").write_text("{}")
    assert "leasekit_evidence" in cli(f"site word {tmp_path / 'bad.json'} --out {word}", 1)[1]
    assert "only brokers keep receipts" in cli("broker receipts --actor site", 1)[1]


def test_status(cli: Cli) -> None:
    """Status shows all daemons of the file or one, with what they hold; one that is named must be there."""
    answers = cli.json("status")
    assert [(a["name"], a["shell"]["state"]) for a in answers] == [
        ("site", "running"),
        ("broker", "running"),
        ("guest", "running"),
    ]
    out, _ = cli("status site")
    assert len(out.splitlines()) == 2
    _, err = cli("status nobody", 1)
    assert "no actor 'nobody'" in err


def test_keys_of_the_deployment(cli: Cli, file: Path) -> None:
    """The public keys of all actors are shown, and no secret one."""
    rows = cli.json("keys show")
    assert [row["name"] for row in rows] == ["site", "broker", "guest"]
    secrets = [(file.parent / "run" / "keys" / f"{row['name']}.key").read_text().split()[1] for row in rows]
    out, _ = cli("keys show")
    assert all(row["public"] in out for row in rows)
    assert not any(secret in out for secret in secrets)


def test_control_socket_without_a_file(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--control finds a daemon by its socket alone, which only its user may open."""
    socket = file.parent / "run" / "guest.control.sock"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert main.run(["lease", "list", "--json", "--all", "--control", str(socket)]) == 0
    assert isinstance(json.loads(capfd.readouterr().out), list)
