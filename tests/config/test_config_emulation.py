"""What [emulation] says: runs, sweeps over values, pictures, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy_texts import SMALL, faults, write
from hypothesis import given
from hypothesis import strategies as st

from leasekit.config.deployment import Deployment
from leasekit.config.emulation import EmulationSpec, apply_changes, lookup, x_value
from leasekit.config.load import load
from leasekit.core.settings import SettingsError
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND

EMULATION = '[emulation]\nhorizon = "1d"\n'


def emulated(folder: Path, more: str) -> tuple[Deployment, EmulationSpec]:
    """The small deployment with an [emulation] table and what follows it."""
    deployment = load(write(folder, SMALL + EMULATION + more))
    assert deployment.emulation is not None
    return deployment, deployment.emulation


def test_defaults(tmp_path: Path) -> None:
    """Only the horizon must be given; without runs there is one, the file as it is."""
    deployment, emulation = emulated(tmp_path, "")
    assert (emulation.horizon, emulation.start, emulation.seed) == (DAY, 0, 0)
    assert (emulation.tick, emulation.ticks, emulation.message_latency) == (SECOND, "due", 0)
    assert (emulation.sample, emulation.warmup, emulation.plots) == (5 * MINUTE, 0, ())
    assert [(run.name, run.changes) for run in emulation.runs] == [("", {})]
    assert deployment.with_run(emulation.runs[0]) is deployment


def test_a_run_is_the_file_with_keys_replaced(tmp_path: Path) -> None:
    """Its deployment has the new values, and is otherwise the same."""
    more = (
        '[[emulation.run]]\nname = "slow"\nset = { "actor.guest.settings.redeem_lead" = "9s", "emulation.seed" = 5 }\n'
    )
    deployment, emulation = emulated(tmp_path, more)
    varied = deployment.with_run(emulation.runs[0])
    assert varied.actors["guest"].settings.redeem_lead == 9 * SECOND  # type: ignore[attr-defined]
    assert varied.emulation is not None
    assert varied.emulation.seed == 5
    assert varied.actors["site"].settings == deployment.actors["site"].settings


def test_sweeps(tmp_path: Path) -> None:
    """``each`` makes a run for each combination; keys with spaces between them share a value; the name says the
    values.
    """
    more = """
    [[emulation.run]]
    name = "n"
    set = { "emulation.ticks" = "every" }
    [emulation.run.each]
    "actor.site.inventory.0.units actor.site.delegation.0.units" = [4, 8]
    "emulation.tick" = ["1s", "2s"]
    [[emulation.run]]
    name = "alone"
    series = "s"
    """
    deployment, emulation = emulated(tmp_path, more)
    names = [("n 4 1s", "n"), ("n 4 2s", "n"), ("n 8 1s", "n"), ("n 8 2s", "n"), ("alone", "s")]
    assert [(run.name, run.series) for run in emulation.runs] == names
    varied = deployment.with_run(emulation.runs[3])
    site, spec = varied.actors["site"].settings, varied.emulation
    assert spec is not None
    assert (spec.tick, spec.ticks) == (2 * SECOND, "every")
    assert (len(site.inventory[0].names), site.delegations[0].units) == (8, 8)  # type: ignore[attr-defined]


def test_what_is_wrong_with_a_run_is_found_at_once(tmp_path: Path) -> None:
    """A run whose values don't fit is a fault of the file, and the run is named."""
    more = '[[emulation.run]]\nname = "r"\neach = { "actor.site.delegation.0.units" = [4, 5, "x"] }\n'
    found = faults(write(tmp_path, SMALL + EMULATION + more))
    assert set(found) == {"run 'r 5': actor.site.delegation", "run 'r x': actor.site.delegation[0].units"}


def test_seeds(tmp_path: Path) -> None:
    """Another seed is another seed for every driver; an explicit one stays."""
    more = '[actor.site.driver.a]\nkind = "null"\ntypes = ["vm"]\n[actor.site.driver.b]\nkind = "null"\nseed = 3\n'
    deployment, _ = emulated(tmp_path, more)
    other = deployment.with_overrides({"emulation.seed": 1})
    here, there = deployment.actors["site"].drivers, other.actors["site"].drivers
    assert here["a"].emulated.seed != there["a"].emulated.seed
    assert here["b"].emulated.seed == there["b"].emulated.seed == 3


def test_a_process_driver_has_latencies_in_virtual_time(tmp_path: Path) -> None:
    """``emulated`` says them; without it actions take no time."""
    more = '[actor.site.driver.p]\nkind = "process"\ndirectory = "d"\nemulated = { latency = { setup = "2s" } }\n'
    deployment, _ = emulated(tmp_path, more)
    spec = deployment.actors["site"].drivers["p"]
    assert list(spec.emulated.latency) == ["setup"]
    assert "emulated" not in spec.settings


def test_pictures(tmp_path: Path) -> None:
    """A picture has all guests unless it names some, its kind's name as its file, and knows its runs and its axis."""
    more = """
    [[emulation.run]]
    name = "t"
    each = { "actor.guest.settings.redeem_lead" = ["1s", "1m"] }
    [[emulation.plot]]
    kind = "rmse"
    x = "actor.guest.settings.redeem_lead"
    x_unit = "1s"
    [[emulation.plot]]
    kind = "guests"
    guests = ["guest"]
    series = ["t"]
    file = "both"
    """
    deployment, emulation = emulated(tmp_path, more)
    rmse, guests = emulation.plots
    assert (rmse.file, rmse.guests, guests.file, guests.guests) == ("rmse", ("guest",), "both", ("guest",))
    documents = [deployment.with_run(run).document for run in emulation.runs]
    assert [rmse.x_of(document) for document in documents] == [1.0, 60.0]
    assert all(plot.wants(emulation.runs[0]) for plot in emulation.plots)


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        ('warmup = "1d"', "emulation.warmup", "less than the horizon"),
        ('tick = "2d"', "emulation.horizon", "at least a tick, 2d"),
        ('tick = "0s"', "emulation.tick", ">= 1"),
        ('ticks = "all"', "emulation.ticks", "'due', 'every'"),
        ("start = true", "emulation.start", "an instant"),
        ("sede = 1", "emulation.sede", "did you mean seed?"),
        ('[[emulation.run]]\nset = { "emulation.seed" = 1 }', "emulation.run[0].name", "a name"),
        ('[[emulation.run]]\nname = "a"\n[[emulation.run]]\nname = "a"', "emulation.run", "two runs named 'a'"),
        ('[[emulation.run]]\nname = "a"\nset = { "peer.x" = 1 }', "emulation.run[0].set", "under actor, deployment"),
        ('[[emulation.run]]\nname = "a"\nset = { "emulation.run" = [] }', "emulation.run[0].set", "excepted"),
        ('[[emulation.run]]\nname = "a"\neach = { "emulation.seed" = [] }', 'emulation.run[0].each."emulation.seed"',
         "at least one value"),
        ('[[emulation.run]]\nname = "a"\nset = { "emulation.seed" = 1 }\neach = { "emulation.seed" = [1] }',
         "emulation.run[0]", "each key once"),
        ('[[emulation.plot]]\nkind = "pie"', "emulation.plot[0].kind", "'rmse'"),
        ('[[emulation.plot]]\nkind = "rmse"', "emulation.plot[0].x", "is drawn against"),
        ('[[emulation.plot]]\nkind = "rmse"\nx = "actor.guest.trem"', "emulation.plot[0].x", "a key of this file"),
        ('[[emulation.plot]]\nkind = "guests"\nguests = ["web"]', "emulation.plot[0].guests",
         "guests of this file: guest"),
        ('[[emulation.plot]]\nkind = "alpha"\nx = "emulation.tick"\nseries = ["q"]\n'
         '[[emulation.run]]\nname = "a"\nseries = "s"',
         "emulation.plot[0].series", "one of: s"),
        ('[[emulation.plot]]\nkind = "guests"\n[[emulation.plot]]\nkind = "guests"', "emulation.plot[1].file",
         "of its own"),
        ('[[emulation.plot]]\nkind = "guests"\nfile = "../x"', "emulation.plot[0].file", "without a slash"),
    ],
)  # fmt: skip
def test_faults(tmp_path: Path, more: str, key: str, words: str) -> None:
    """Each is found under its key, in words that say what is allowed."""
    found = faults(write(tmp_path, f"{SMALL}{EMULATION}{more}\n"))
    assert key in found, found
    assert words in found[key]


def test_signatures_may_be_off_in_an_emulation_only(tmp_path: Path) -> None:
    """With an [emulation] table the file may say so; without it is a fault."""
    text = SMALL.replace("create_keys = true", "signatures = false")
    assert "deployment.signatures" in faults(write(tmp_path, text))
    assert not load(write(tmp_path, text + EMULATION)).signatures


def test_values_on_an_axis() -> None:
    """Numbers are themselves, durations are ms or in a unit; anything else names its key."""
    document = {"a": {"b": ["2h", 7, 0.5, True]}}
    assert x_value(document, "a.b.0") == 2 * HOUR
    assert x_value(document, "a.b.0", MINUTE) == 120
    assert (x_value(document, "a.b.1"), x_value(document, "a.b.2")) == (7, 0.5)
    for key in ("a.b.3", "a.b.4", "a.c", "a.b.x"):
        with pytest.raises(ValueError, match=key):
            x_value(document, key)


TREES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
)
PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(".".join)


@given(st.dictionaries(st.sampled_from("abc"), TREES), PATHS, st.integers())
def test_a_change_is_found_where_it_was_made(document: dict[str, object], key: str, value: int) -> None:
    """After a change lookup finds it, all that is not on its path is the same, and the original is untouched."""
    before = repr(document)
    try:
        changed = apply_changes(document, {key: value})
    except SettingsError:
        parents = [".".join(key.split(".")[:length]) for length in range(1, key.count(".") + 1)]
        assert any(isinstance(lookup(document, parent), int) for parent in parents)
    else:
        assert lookup(changed, key) == value
        top = key.split(".")[0]
        assert {k: v for k, v in changed.items() if k != top} == {k: v for k, v in document.items() if k != top}
    assert repr(document) == before
