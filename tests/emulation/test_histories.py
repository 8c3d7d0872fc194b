"""Histories of daemons beside an emulation: what is the same, the first difference, and what can't be read.

The daemons' side is production actors over SQLite stores, whose clock ticks more often than the emulation's and
began at no round instant.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekit.cli.main import run
from leasekit.config.build import build
from leasekit.config.load import load
from leasekit.core.errors import LeasekitError
from leasekit.core.time import HOUR, MINUTE, SECOND
from leasekit.emulation.emulated import action_model
from leasekit.emulation.histories import (
    LEASES,
    TRANSITIONS,
    LeaseHistory,
    LoggedStep,
    compare,
    compare_with_daemons,
    export,
)
from leasekit.emulation.world import World
from leasekit.stores.sqlite import SqliteStore

START = 1_790_000_000_137
DEPLOY = """
[deployment]
name = "small"
state = "run"
create_keys = true

[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "vm"
units = 6
driver = "slow"
[[actor.site.delegation]]
broker = "broker"
type = "vm"
[actor.site.driver.slow]
kind = "null"
latency = { setup = "2s", teardown = "1s" }

[actor.broker]
role = "broker"

[actor.guest]
role = "guest"
[actor.guest.mapper]
name = "static"
[[actor.guest.mapper.demands]]
type = "vm"
name = "web"
units = 2
term = "2m"
renew = "anew"
[[actor.guest.mapper.demands]]
type = "vm"
name = "batch"
units = 3
count = 2
term = "90s"
start = "30s"
renew = false
"""


@pytest.fixture
def deploy_file(tmp_path: Path) -> Path:
    """A deploy file whose daemons have run for ten minutes."""
    return _run_daemons(tmp_path)


def _run_daemons(tmp_path: Path, *, by_hand: str = "") -> Path:
    """Their stores are where daemons keep them. An operator asks for a lease of this name."""
    file = tmp_path / "leasekit.toml"
    file.write_text(DEPLOY)
    deployment = load(file)
    deployment.state.mkdir()
    world = World(tick=SECOND // 4, start=START)
    stores = []
    for name, spec in deployment.actors.items():
        built = build(deployment, name, virtual=True)
        assert spec.store is not None
        stores.append(SqliteStore(spec.store))
        world.add(built.actor, stores[-1], action_model(built))
    world.run_until(START + 4 * MINUTE)
    if by_hand:
        term = [world.now, world.now + MINUTE]
        reply = world.command("guest", "lease.request", type="vm", units=1, term=term, name=by_hand)
        assert not reply.error
    world.run_until(START + 10 * MINUTE)
    for store in stores:
        store.close()
    return file


def test_an_emulation_agrees_with_its_daemons(deploy_file: Path) -> None:
    """Refused requests that are tried again, and leases that follow each other, included."""
    found = compare_with_daemons(deploy_file, [deploy_file.parent / "run"])
    assert found["differences"] == [] == found["only_transitions"]
    assert found["leases"] == found["same"] >= 7
    assert found["transitions"] >= 40
    assert found["from"] == START + 113, "the first tick"


def test_the_first_difference_is_named(deploy_file: Path) -> None:
    """The file has more units than the daemons had: a request that they refused is granted."""
    deploy_file.write_text(DEPLOY.replace("units = 6", "units = 8"))
    found = compare_with_daemons(deploy_file, [deploy_file.parent / "run" / "guest.db"])
    first = found["differences"][0]
    assert (first["lease"], first["what"]) == ("guest: static/batch-2", "transition")
    assert first["daemons"] == "ticket_refused to failed/-"
    assert first["emulated"] == "ticket to ticketed/-"
    assert found["same"] < found["leases"]


def test_what_a_lease_has_is_compared_as_of_what_both_have_reached() -> None:
    """Though the last that has happened to it is too late to be compared, and the emulation has gone on since; where
    the emulation has not come as far it is told that only transitions were compared.
    """
    steps = (LoggedStep(0, "ask", "nascent/ticketing"), LoggedStep(58 * SECOND, "extend", "active/extending_ticket"))
    on = LoggedStep(59 * SECOND, "close", "closed/-")
    daemons = LeaseHistory("guest", "l-1", "static", "", "vm", "site", 2, 0, MINUTE, "active", "", steps)
    same, other = daemons._replace(transitions=()), daemons._replace(transitions=(), units=3)
    ahead = daemons._replace(
        state="closed", transitions=(*steps, on), after={2: same, 3: same._replace(state="closed")}
    )
    until, within = 55 * SECOND, 5 * SECOND
    assert compare([daemons], [ahead], until, within) == ([], 1, 1, [])
    found = compare([daemons], [ahead._replace(after={2: other})], until, within)
    ((_, lease, *differs),) = found.differences
    assert (lease, differs, found.same) == ("guest: static/vm", ["units", "2", "3"], 0)
    behind = ahead._replace(transitions=steps[:1], after={1: other})
    assert compare([daemons], [behind], until, within) == ([], 1, 1, ["guest: static/vm"])


def test_instants_are_the_same_within_a_span(deploy_file: Path) -> None:
    """The emulation ticks each second, the daemons did each quarter of one."""
    found = compare_with_daemons(deploy_file, [deploy_file.parent / "run"], within=1)
    assert found["differences"][0]["what"] == "time of ask"


def test_a_short_history_is_no_agreement(deploy_file: Path) -> None:
    """Where the span that is left out at its end is all of it, it is told that nothing was compared."""
    with pytest.raises(LeasekitError, match=r"nothing was compared: the history goes from .*last 12h \(--within\)"):
        compare_with_daemons(deploy_file, [deploy_file.parent / "run"], within=12 * HOUR)


def test_what_an_operator_asked_for_is_of_the_daemons_only(tmp_path: Path) -> None:
    """No mapper asks for it in the emulation."""
    found = compare_with_daemons(_run_daemons(tmp_path, by_hand="by-hand"), [tmp_path / "run"])
    (lease,) = (one for one in found["differences"] if "by-hand" in one["lease"])
    assert (lease["what"], lease["emulated"]) == ("lease", "none")
    assert lease["daemons"].startswith("1 vm of site")


def test_an_exported_history_is_as_good_as_stores(deploy_file: Path, tmp_path: Path) -> None:
    """It has all that is compared."""
    made = export(list(load(deploy_file).actors.values()), tmp_path / "out")
    assert made["actors"] == ["site", "broker", "guest"]
    assert (tmp_path / "out" / TRANSITIONS).read_text().count("\n") == made["transitions"] + 1
    assert (tmp_path / "out" / LEASES).read_text().count("\n") == made["leases"] + 1
    by_file = compare_with_daemons(deploy_file, [tmp_path / "out"])
    assert by_file == compare_with_daemons(deploy_file, [deploy_file.parent / "run"])


def test_what_is_no_history_is_named(deploy_file: Path, tmp_path: Path) -> None:
    """A folder with none, and a file of other columns."""
    with pytest.raises(
        LeasekitError, match=r"found no history of a guest of leasekit.toml, expected a store \(guest.db"
    ):
        compare_with_daemons(deploy_file, [tmp_path])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LEASES).write_text("a,b\n")
    (tmp_path / "out" / TRANSITIONS).write_text("a,b\n")
    with pytest.raises(LeasekitError, match="found columns a, b, expected at, actor"):
        compare_with_daemons(deploy_file, [tmp_path / "out"])


def test_the_command_line_tells_the_first_difference(deploy_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With status 0 where there is none, with 1 where there is."""
    command = ["emulate", str(deploy_file), "--against", str(deploy_file.parent / "run")]
    assert run(command) == 0
    said = capsys.readouterr().err
    assert "leases are the same" in said and "of the last 5s were not" in said
    deploy_file.write_text(DEPLOY.replace("units = 6", "units = 8"))
    assert run(command) == 1
    error = capsys.readouterr().err
    assert "the first difference is at 2026-" in error
    assert "guest: static/batch-2: transition is ticket_refused to failed/- of the daemons" in error
