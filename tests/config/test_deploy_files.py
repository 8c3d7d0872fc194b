"""The files in deploy/: each is right as it stands, and does what it says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from datafiles import data_file

from leasekit.actors.settings import AuthoritySettings
from leasekit.config.build import build
from leasekit.config.identities import prepare
from leasekit.config.keys import new_key
from leasekit.config.load import check, load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILES = sorted(DEPLOY.rglob("*.toml"))
EMULATIONS = [path for path in FILES if "emulation" in tomllib.loads(path.read_text(encoding="utf-8"))]


def name_of(path: Path) -> str:
    """How a test names a file."""
    return str(path.relative_to(DEPLOY))


def test_the_files_are_there() -> None:
    """None that others rely on is missing."""
    expected = {f"quickstart/{name}.toml" for name in ("all", "site", "broker", "guest")} | {"two-sites/two-sites.toml"}
    expected |= {f"emulation/{name}.toml" for name in ("terms", "compete", "scaling", "fidelity", "month")}
    assert expected <= {name_of(path) for path in FILES}
    assert all((path.parent / "README.md").is_file() for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_is_right(path: Path) -> None:
    """It loads without a fault, all of its runs included."""
    assert [str(error) for error in check(path)[0]] == []


@pytest.mark.parametrize("path", EMULATIONS, ids=name_of)
def test_every_run_builds_without_data(path: Path) -> None:
    """With generated load every actor of every run can be built on a machine that has no traces."""
    deployment = load(path)
    assert deployment.emulation is not None
    for run in deployment.emulation.runs:
        varied = deployment.with_run(run)
        for name in varied.actors:
            assert build(varied, name, synthetic=True, virtual=True).actor.name == name


@pytest.mark.parametrize("name", ["month", "scaling", "fidelity"])
def test_some_emulations_need_no_data(name: str, tmp_path: Path) -> None:
    """Their actors can be built where the data folder is empty, without --synthetic."""
    deployment = load(DEPLOY / "emulation" / f"{name}.toml")
    for actor in deployment.actors:
        build(deployment, actor, data=tmp_path, virtual=True)


@pytest.mark.parametrize(("name", "guests"), [("terms", ["web"]), ("compete", ["web", "batch"])])
def test_traces_reach_the_peak_and_cover_the_month(name: str, guests: list[str]) -> None:
    """From the published traces: demand peaks at all 140 nodes, and there is some in the last day."""
    deployment = load(DEPLOY / "emulation" / f"{name}.toml")
    assert deployment.emulation is not None
    for guest in guests:
        use = deployment.actors[guest].mapper.signal
        assert use is not None
        assert use.file
        data_file(use.file)
        signal = build(deployment, guest, virtual=True).signal
        assert signal is not None
        assert signal.peak() == 140
        assert signal.value(deployment.emulation.horizon - 1) > 0


def test_the_quickstart_in_one_file_and_in_three_is_the_same() -> None:
    """Roles, settings, addresses, keys, limits and stores agree."""
    whole = load(DEPLOY / "quickstart" / "all.toml")
    for name, actor in whole.actors.items():
        alone = load(DEPLOY / "quickstart" / f"{name}.toml")
        other = alone.actors[name]
        assert (alone.state, other.role, other.settings) == (whole.state, actor.role, actor.settings)
        assert (other.key, other.listen, other.control, other.store) == (
            actor.key,
            actor.listen,
            actor.control,
            actor.store,
        )
        # Only the seeds may differ: they are derived from the emulation's, which the three files lack.
        drivers, others = (
            {driver: {**spec.settings, "seed": 0} for driver, spec in found.drivers.items()} for found in (actor, other)
        )
        assert drivers == others
        addresses = {n: spec.listen[0] if spec.listen else "" for n, spec in whole.actors.items() if n != name}
        assert {n: peer.address for n, peer in alone.peers.items()} == addresses


def test_the_quickstart_starts_once_its_keys_are_made(tmp_path: Path) -> None:
    """As README.md tells: with the three keys in the shared folder each file has all that its daemon needs."""
    for name in ("site", "broker", "guest"):
        new_key(tmp_path / "keys" / f"{name}.key")
    for name in ("site", "broker", "guest"):
        deployment = load(DEPLOY / "quickstart" / f"{name}.toml", tmp_path)
        built = build(deployment, name, keys=prepare(deployment))
        assert {peer.name for peer in built.peers} == {"site", "broker", "guest"} - {name}
    settings = load(DEPLOY / "quickstart" / "site.toml").actors["site"].settings
    assert isinstance(settings, AuthoritySettings)
    assert [(group.type, len(group.names)) for group in settings.inventory] == [("vm", 12)]
