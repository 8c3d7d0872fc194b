"""What a user gets wrong, and what a mapper does wrong, at the command line: one clear message, nothing changed, and
everybody goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_daemons import running
from system.system_waits import wait_until

from leasekit.cli import main

pytestmark = pytest.mark.xdist_group("bad_input")

DEPLOY = """
[deployment]
name = "bad"
state = "run"
create_keys = true

[actor.east]
role = "authority"
listen = ["unix:east.sock"]
driver.none.kind = "null"
inventory = [{ type = "vm", units = 6, driver = "none", properties = { memory_mb = "1024", os = "debian" } }]
delegation = [{ broker = "broker", type = "vm" }]

[actor.west]
role = "authority"
listen = ["unix:west.sock"]
driver.none.kind = "null"
inventory = [{ type = "vm", units = 4, prefix = "w-", driver = "none", properties = { memory_mb = "4096" } }]
delegation = [{ broker = "broker", type = "vm" }]

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
shell = { mapper_timeout = "200ms" }
settings = { request_timeout = "2s" }
mapper = { name = "naughty.py:Naughty" }

[actor.guest]
role = "guest"
settings = { request_timeout = "20s" }
"""

ALL = 10
"""Units of both sites."""

NAUGHTY = '''
from leasekit.core.mappers import Grant
from leasekit.core.time import HOUR, Term
from leasekit.policies.broker.fcfs import Fcfs


class Naughty:
    """Does as fcfs does, but for requests that ask for something else."""

    def allocate(self, cycle):
        for request in cycle.requests:
            bad = request.properties.get("bad", "")
            source = cycle.sources(request.type)[0]
            good = Grant(request.lease, source.id, request.units, request.term)
            if bad == "raises":
                raise ZeroDivisionError("division by zero")
            while bad == "loops":
                pass
            if bad == "twice":
                yield good
                yield good
            if bad == "past":
                yield good._replace(term=Term(request.term.start - HOUR, request.term.end - HOUR))
            if bad == "nobody":
                yield good._replace(lease="nobody-1")
            if bad == "more":
                yield good._replace(units=request.units + 1)
            if bad == "nonsense":
                yield {"grant": request.lease}
        plain = [request for request in cycle.requests if "bad" not in request.properties]
        yield from Fcfs().allocate(cycle._replace(requests=plain))
'''


class Cli:
    """Runs commands in this process against the daemons of one deploy file."""

    def __init__(self, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.file = file
        self._capfd = capfd

    def __call__(self, *words: str, status: int = 0) -> tuple[str, str]:
        """Standard output and error of a command that must end with ``status``."""
        found = main.run([*words, "--file", str(self.file)])
        out, err = self._capfd.readouterr()
        assert found == status, err
        assert "Traceback" not in err
        return out, err

    def json(self, *words: str) -> Any:
        """The JSON document that it prints."""
        return json.loads(self(*words, "--json")[0])

    def free(self) -> list[int]:
        """What the broker has left at each site, for now and for a day."""
        return [s[key] for s in self.json("broker", "sources") for key in ("free_now", "free_for_a_day")]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deploy file whose daemons run, and stop without an error in the end."""
    path = tmp_path_factory.mktemp("bad") / "leasekit.toml"
    path.write_text(DEPLOY)
    path.with_name("naughty.py").write_text(NAUGHTY)
    with running(path):
        yield path


@pytest.fixture
def cli(file: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(file, capfd)


def ask(*more: str, units: int = 1) -> tuple[str, ...]:
    return "lease", "request", "vm", str(units), "--for", "1h", *more


# -- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["--wait", "--dry-run"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (ask(units=11), "units: found 11, no site here has more than 6 of 'vm'"),
        (ask(units=7), "units: found 7, no site here has more than 6 of 'vm'"),
        (ask("--property", "filter=disk_gb > 3"), "unknown attribute 'disk_gb', known are: memory_mb, os, site, type"),
        (ask("--property", "filter=memory > 3"), "(did you mean memory_mb?)"),
        (ask("--property", "filter=memory_mb >= 2048 and or os"), "filter: character 23: "),
        (ask("--property", "filter=(os == debian"), "filter: character 14: "),
        (ask("--property", 'filter=[">=", "$memory_mb"]'), "filter: character "),
        (ask("--property", "filter=memory_mb > 9000"), "memory_mb is 4096, wanted > 9000"),
        (ask("--site", "north"), "known sites are east, west"),
        (ask("--property", "prepare=soon"), "properties.prepare: "),
        (ask("--property", "min_units=3"), "properties.min_units: goes with elastic"),
        (("lease", "request", "tape", "1", "--for", "1h"), "type: found 'tape', broker has vm"),
    ],
)
def test_requests_that_can_not_be(cli: Cli, words: tuple[str, ...], said: str, way: str) -> None:
    """Each is told with the field, what was found and what is allowed, in one line, in earnest and when tried."""
    before = cli.free()
    _, err = cli(*words, way, status=1)
    assert said in err and len(err.splitlines()) == 1 and err.startswith("leasekit: ")
    assert cli.free() == before
    assert cli.json("lease", "list") == []


def test_a_window_that_can_not_hold_it(cli: Cli) -> None:
    """A lease that is longer than any delegation, or can't begin in its window, is refused with its reason."""
    before = cli.free()
    _, err = cli("lease", "request", "vm", "1", "--for", "5000d", "--wait", status=1)
    assert "no delegation of 'vm' covers" in err
    _, err = cli(*ask("--start", "2020-01-01T00:00Z", "--wait"), status=1)
    assert "is past" in err
    _, err = cli(*ask("--elastic", "9"), status=2)
    assert "--elastic: found 9, expected at most the 1 unit asked for" in err
    assert cli.free() == before


# -- the broker's mapper ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("raises", "broker mapper: naughty.py:Naughty: ZeroDivisionError: division by zero (naughty.py, line 16, at "),
        ("loops", "took longer than 200ms"),
        ("past", "is not what was asked for"),
        ("nobody", "no request of lease 'nobody-1' is waiting (any more)"),
        ("more", "2 units were granted, 1 to 1 were asked for"),
        ("nonsense", "is no decision of the broker mapper"),
    ],
)
def test_a_mapper_that_goes_wrong(cli: Cli, bad: str, said: str) -> None:
    """The operator is told, the request is refused in the end, nothing is booked, and the next one is granted."""
    before = cli.free()
    _, err = cli(*ask("--start", "+1h", "--property", f"bad={bad}", "--wait"), status=1)
    assert "not granted in time" in err and len(err.splitlines()) == 1
    assert cli.free() == before
    errors = _status(cli)["mapper_errors"]
    assert any(said in error for error in errors), errors
    _goes_on(cli)


def test_a_mapper_that_says_it_twice(cli: Cli) -> None:
    """One grant counts, the other is told."""
    lease = cli.json(*ask("--start", "+3h", "--property", "bad=twice", "--name", "twice"))["id"]
    wait_until("it is granted", lambda: cli.json("lease", "show", lease)["state"] == "nascent")
    assert cli.json("lease", "show", lease)["state"] == "ticketed"
    assert sum(cli.free()) == 2 * ALL - 1
    assert any("is not carried out" in error for error in _status(cli)["mapper_errors"])
    cli("lease", "close", lease, "--wait")
    _goes_on(cli)


@pytest.mark.parametrize("bad", ["raises", "loops", "past", "more", "nonsense", "nobody"])
def test_a_dry_run_with_a_mapper_that_goes_wrong(cli: Cli, bad: str) -> None:
    """It says so, or that the request would wait; in bounded time."""
    before = cli.free()
    words = ask("--start", "+1h", "--property", f"bad={bad}", "--dry-run")
    if bad in ("nobody", "nonsense"):
        assert "would let it wait" in cli(*words)[0]
    else:
        assert "the broker's mapper" in cli(*words, status=1)[1]
    assert cli.free() == before
    _goes_on(cli)


def _status(cli: Cli) -> dict[str, Any]:
    (row,) = [row for row in cli.json("status") if row["name"] == "broker"]
    found: dict[str, Any] = row
    return found


def _goes_on(cli: Cli) -> None:
    """A request that the mapper has nothing against is granted and given back."""
    lease = cli.json(*ask("--wait"))
    assert lease["state"] == "active"
    cli("lease", "close", lease["id"], "--wait")
    wait_until("all is free", lambda: sum(cli.free()) < 2 * ALL)


# -- its settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapper", "key", "said"),
    [
        ('{ name = "backfill", mode = 3 }', "mode", "3"),
        ('{ name = "backfill", mode = "lazy" }', "mode", "'easy'"),
        ('{ name = "backfill", suspension = "some" }', "suspension", "'none', 'serial', 'all'"),
        ('{ name = "priority", least_run = "0s" }', "least_run", "0"),
        ('{ name = "fcfs", backfill = "yes" }', "backfill", "'yes'"),
        ('{ name = "fcfs", gather = "soon" }', "gather", "'soon'"),
        ('{ name = "fair_share", half_life = -1 }', "half_life", "-1"),
        ('{ name = "fcfs", quotas = [{ units = "many" }] }', "quotas[0].units", "'many'"),
        ('{ name = "fcfs", quotas = [{ stacked = 3 }] }', "quotas[0]", "goes with longest"),
        ('{ name = "fcfs", quotas = [{ units = 1 }, { units = 2 }] }', "quotas", "two quotas of holder '*'"),
        ('{ name = "fcsf" }', "name", "one of: backfill"),
        ('{ name = "gone.py:Mapper" }', "name", "there is no file"),
        ('{ name = "naughty.py:Nice" }', "name", "has no such class"),
    ],
)
def test_settings_of_a_mapper(
    tmp_path: Path, mapper: str, key: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A deploy file with wrong settings is refused with its name and the key, before any daemon starts."""
    file = tmp_path / "wrong.toml"
    file.write_text(DEPLOY.replace('{ name = "naughty.py:Naughty" }', mapper))
    file.with_name("naughty.py").write_text(NAUGHTY)
    assert main.run(["config", "check", str(file), "--json"]) == 1
    faults = [fault for fault in json.loads(capfd.readouterr().out) if fault["key"] == f"actor.broker.mapper.{key}"]
    assert len(faults) == 1 and said in f"{faults[0]['found']} {faults[0]['allowed']}", faults
    assert main.run(["up", str(file)]) == 1
    out, err = capfd.readouterr()
    (line,) = [line for line in err.splitlines() if f"wrong.toml: actor.broker.mapper.{key}" in line]
    assert said in line and "Traceback" not in out + err
