"""docs/mappers.md says of the broker's mappers what their code says, and shows what they decide."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import attrs
import pytest

from leasekit.policies.broker.fair_share import FairShareSettings
from leasekit.policies.broker.fcfs import FcfsSettings
from leasekit.policies.broker.preemption import PreemptionSettings
from leasekit.policies.broker.quotas import QuotaSettings
from leasekit.policies.broker.turn import StandardSettings
from leasekit.policies.broker.waiting import PrioritySettings, WaitingSettings
from leasekit.policies.registry import BUILT_IN

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "mappers.md").read_text(encoding="utf-8")


def load(path: Path, name: str) -> ModuleType:
    """A program of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PICTURES = load(DOCS / "pictures" / "mappers.py", "mapper_pictures")


@pytest.mark.parametrize(
    "settings",
    [
        StandardSettings,
        QuotaSettings,
        FcfsSettings,
        WaitingSettings,
        PrioritySettings,
        PreemptionSettings,
        FairShareSettings,
    ],
)
def test_every_setting_is_explained(settings: type) -> None:
    """Each field is a row of a table, with its docstring's first words; inherited ones stand in their own table."""
    own = {field.name for field in attrs.fields(settings) if not field.inherited}
    assert own
    for name in own:
        assert f"\n| `{name}` | " in PAGE


@pytest.mark.parametrize("name", sorted(BUILT_IN["broker"]))
def test_every_mapper_has_its_place(name: str) -> None:
    """Each name that a deploy file can give is on the page."""
    assert f"`{name}`" in PAGE


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(PICTURES.PICTURES))
def test_each_picture_is_there_and_is_what_is_decided(name: str) -> None:
    """It is on the page and in the folder, draws the same each time, and no two mappers in it decide alike."""
    picture = PICTURES.PICTURES[name]
    assert f"](pictures/{name}.svg)" in PAGE
    shown = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    made = PICTURES.drawn(picture)
    assert made == PICTURES.drawn(picture)
    for panel in picture.panels:
        assert panel.title in shown
    decided = [frozenset(PICTURES.decided(picture, panel)) for panel in picture.panels]
    assert len(set(decided)) == len(decided)


def test_the_picture_of_co_allocation_is_what_is_planned() -> None:
    """It is on the page and is drawn from plans: the direct link where it is free, the exchange point's otherwise."""
    picture = load(DOCS / "pictures" / "coallocation.py", "coallocation_picture")
    assert "](pictures/coallocation.svg)" in PAGE
    assert (DOCS / "pictures" / "coallocation.svg").read_text(encoding="utf-8") == picture.drawn()
    free, taken = (picture.planned(reserved)["paths"][0] for reserved in picture.PANELS.values())
    assert sorted(free) == ["A", "B"]
    assert sorted(taken) == ["A", "B", "X"]
