"""Actors, stores and drivers as both shells get them from a deploy file."""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy_texts import SMALL, changed, write

from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.site.authority import Authority
from leasekit.config.build import build, make_drivers, open_store
from leasekit.config.deployment import Deployment
from leasekit.config.errors import ConfigErrors
from leasekit.config.identities import prepare
from leasekit.config.load import load
from leasekit.config.traces import TraceMissing
from leasekit.core.claims.signed import ED25519, UNSIGNED
from leasekit.core.time import HOUR, SECOND
from leasekit.drivers.null import NullDriver
from leasekit.drivers.process.driver import ProcessDriver
from leasekit.emulation.world import World
from leasekit.stores.memory import MemoryStore
from leasekit.stores.sqlite import SqliteStore

EMULATION = '[emulation]\nhorizon = "1d"\n'
TRACE = """
[actor.guest.mapper]
name = "load_following"
type = "vm"
term = "1h"
smooth = false
signal = { file = "load/trace.csv", column = "load", interval = "30m", horizon = "1h" }
"""


def test_actors_of_their_roles_with_real_keys(tmp_path: Path) -> None:
    """Each is built with its key, its settings and the others as peers; guests don't know guests."""
    text = SMALL + '[actor.other]\nrole = "guest"\n'
    deployment = load(write(tmp_path, text))
    keys = prepare(deployment)
    built = {name: build(deployment, name, keys=keys) for name in deployment.actors}
    assert [type(b.actor) for b in built.values()] == [Authority, Broker, ServiceManager, ServiceManager]
    assert built["site"].scheme is ED25519
    assert {name: [peer.name for peer in b.peers] for name, b in built.items()} == {
        "site": ["broker", "guest", "other"],
        "broker": ["site", "guest", "other"],
        "guest": ["site", "broker"],
        "other": ["site", "broker"],
    }
    site = next(peer for peer in built["guest"].peers if peer.name == "site")
    assert (site.role, site.key) == ("authority", keys.public("site"))
    assert site.address == f"unix:{tmp_path}/state/site.sock"
    assert [peer.address for peer in built["site"].peers if peer.role == "guest"] == ["", ""]
    assert built["guest"].actor.peers["site"].key == keys.public("site")


def test_any_free_port_cannot_be_dialled(tmp_path: Path) -> None:
    """Port 0 is known to who listens only: others wait to be dialled."""
    deployment = load(write(tmp_path, changed(('listen = ["unix:broker.sock"]', 'listen = ["tcp://127.0.0.1:0"]'))))
    peers = build(deployment, "site", keys=prepare(deployment)).peers
    assert [peer.address for peer in peers] == ["", ""]


def test_a_daemon_needs_keys(tmp_path: Path) -> None:
    """It can't be built by mistake with those of an emulation."""
    with pytest.raises(ValueError, match="needs keys"):
        build(load(write(tmp_path)), "site")


@pytest.mark.parametrize("signatures", [True, False])
def test_a_built_deployment_runs_in_virtual_time(tmp_path: Path, signatures: bool) -> None:
    """A lease from one end to the other, with actors as built, signed or not."""
    deployment = load(write(tmp_path, SMALL + EMULATION), overrides={"deployment.signatures": signatures})
    world = World()
    for name in deployment.actors:
        built = build(deployment, name, virtual=True)
        assert built.scheme is (ED25519 if signatures else UNSIGNED)
        world.add(built.actor, MemoryStore())
    world.run_until(10 * SECOND)
    reply = world.command("guest", "lease.request", type="vm", units=3, term=[20 * SECOND, HOUR])
    assert not reply.error
    world.run_until(60 * SECOND)
    leases = world.query("guest", "leases")
    assert [(lease["state"], lease["units"]) for lease in leases] == [("active", 3)]
    assert not (tmp_path / "state").exists()


def test_models_take_the_place_of_drivers(tmp_path: Path) -> None:
    """In virtual time a type's actions take as long as its driver's settings say; a site has none for other types."""
    text = SMALL + '[actor.site.driver.d]\nkind = "null"\nlatency = { setup = "7s" }\n' + EMULATION
    deployment = load(write(tmp_path, text))
    site, guest = (build(deployment, name, virtual=True) for name in ("site", "guest"))
    model, other = site.model("vm"), guest.model("vm")
    assert model is not None
    assert other is not None
    assert (model.latency("setup", "vm-0", 1), other.latency("join", "x/vm-0", 1)) == (7 * SECOND, 0)
    assert site.model("x") is None


def test_signals_from_traces(tmp_path: Path) -> None:
    """A trace is read from the data folder and put on the actor's clock; a missing one is named, or replaced if
    asked.
    """
    (tmp_path / "data" / "load").mkdir(parents=True)
    trace = tmp_path / "data" / "load" / "trace.csv"
    trace.write_text("time,load\n1000000800,3\n1000002600,4\n", encoding="utf-8")
    deployment = load(write(tmp_path, SMALL + TRACE + EMULATION))
    signal = build(deployment, "guest", data=tmp_path / "data", virtual=True).signal
    assert signal is not None
    assert [signal.value(at) for at in (0, HOUR // 2, HOUR - 1)] == [3, 4, 4]
    shifted = build(deployment, "guest", data=tmp_path / "data", virtual=True, origin=HOUR).signal
    assert shifted is not None
    assert [shifted.value(at) for at in (0, HOUR, HOUR + HOUR // 2)] == [0, 3, 4]
    started = deployment.with_overrides({"emulation.start": "2001-01-01T00:00Z"})
    later = build(started, "guest", data=tmp_path / "data", virtual=True).signal
    assert later is not None
    assert later.first == 978_307_200_000
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceMissing, match=r"load/trace.csv.*--synthetic"):
        build(deployment, "guest", data=tmp_path / "empty", virtual=True)
    generated = build(deployment, "guest", data=tmp_path / "empty", virtual=True, synthetic=True).signal
    assert generated is not None
    assert generated.peak() == 100
    assert build(deployment, "site", virtual=True).signal is None


def test_stores(tmp_path: Path) -> None:
    """An actor's store is SQLite at its path, or memory."""
    deployment = load(write(tmp_path, changed(('role = "guest"', 'role = "guest"\nstore = "memory"'))))
    prepare(deployment)
    store = open_store(deployment.actors["site"])
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path / "state" / "site.db"
    store.close()
    assert isinstance(open_store(deployment.actors["guest"]), MemoryStore)


def driven(folder: Path, command: str) -> Deployment:
    """A deployment whose site has a process driver with this command."""
    text = SMALL + '[actor.site.driver.p]\nkind = "process"\ndirectory = "units"\ntimeout = "30s"\nretries = 1\n'
    return load(write(folder, text + f'command = {command}\nconcurrency = 4\nteardown_for = "2h"\n'))


def test_drivers_with_their_limits(tmp_path: Path) -> None:
    """Real drivers are made with paths below the state folder; guests have one for all types."""
    deployment = driven(tmp_path, '["/bin/sh"]')
    prepare(deployment)
    site, guest = deployment.actors["site"], deployment.actors["guest"]
    entry = make_drivers(deployment, "site")[site.driver_for("vm")]
    assert isinstance(entry.driver, ProcessDriver)
    assert (entry.spec.timeout, entry.spec.retries, entry.spec.concurrency) == (30 * SECOND, 1, 4)
    assert entry.spec.teardown_for == 2 * HOUR
    assert (tmp_path / "state" / "units").is_dir()
    assert site.driver_for("x") == ""
    assert isinstance(make_drivers(deployment, "guest")[guest.driver_for("x")].driver, NullDriver)


def test_what_the_world_says_is_wrong_with_a_driver(tmp_path: Path) -> None:
    """A command that isn't there is found when the drivers are made, not when the file is loaded, and its key is
    named.
    """
    deployment = driven(tmp_path, '["/no/such/program"]')
    with pytest.raises(ConfigErrors) as raised:
        make_drivers(deployment, "site")
    assert raised.value.errors[0].key == "actor.site.driver.p.command"
    assert "/no/such/program" in str(raised.value)
