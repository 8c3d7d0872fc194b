"""Mappers by name, module and file."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from leasekit.core.mappers import BrokerCycle
from leasekit.core.settings import SettingsError
from leasekit.core.signals import Signal
from leasekit.core.time import HOUR
from leasekit.policies import registry
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fair_share import FairShare
from leasekit.policies.broker.fcfs import Fcfs, Random, TimetableMapper
from leasekit.policies.broker.preemption import PreemptionMapper
from leasekit.policies.broker.waiting import Backfill, Priority
from leasekit.policies.guest.load_following import LoadFollowing
from leasekit.policies.guest.manual import Manual
from leasekit.policies.guest.replaying import Replay, ThinkingUsers
from leasekit.policies.guest.static import StaticDemand
from leasekit.policies.registry import BUILT_IN, known_mappers, make_mapper

LOAD = Signal([(0, 1.0)])

OWN = '''
from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Settings:
    limit: int = attrs.field(default=3, validator=attrs.validators.ge(1))


class Mine:
    """A mapper of its own."""

    Settings = Settings

    def __init__(self, settings):
        self.settings = settings

    def allocate(self, cycle):
        return ()


class Plain:
    def allocate(self, cycle):
        return ()


class Broken:
    def __init__(self):
        raise RuntimeError("no\\nluck")

    def allocate(self, cycle):
        return ()


class Odd:
    Settings = dict

    def allocate(self, cycle):
        return ()


VALUE = 7
'''


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The path of a file with mappers in it."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return str(path)


def make(target: str, role: str = "broker", settings: Any = None, **extras: Any) -> Any:
    return make_mapper(target, role, settings or {}, "broker.mapper", extras)


def errors(target: str, role: str = "broker", settings: Any = None, **extras: Any) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        make(target, role, settings, **extras)
    return raised.value.errors


@pytest.mark.parametrize(
    ("target", "role", "settings", "extras", "cls"),
    [
        ("fcfs", "broker", {"balance": "best_fit"}, {}, Fcfs),
        ("backfill", "broker", {"mode": "conservative", "depth": 5}, {}, Backfill),
        ("priority", "broker", {"order": "shortest"}, {}, Priority),
        ("preemption", "broker", {"cost": "price", "period": "30m", "budget": 2}, {}, PreemptionMapper),
        ("timetable", "broker", {}, {}, TimetableMapper),
        ("fair_share", "broker", {"weights": {"web": 2.0}, "half_life": "1d"}, {}, FairShare),
        ("random", "broker", {"seed": 7}, {}, Random),
        ("first_fit", "authority", {}, {}, FirstFit),
        ("static", "guest", {"demands": [{"type": "vm", "term": "1h"}]}, {}, StaticDemand),
        ("load_following", "guest", {"type": "vm"}, {"signal": LOAD}, LoadFollowing),
        ("manual", "guest", {}, {}, Manual),
        ("replay", "guest", {"type": "vm"}, {"jobs": ()}, Replay),
        ("users", "guest", {"type": "vm", "users": 2}, {}, ThinkingUsers),
    ],
)
def test_built_in_mappers_are_made_by_name(target: str, role: str, settings: Any, extras: Any, cls: type[Any]) -> None:
    """Every built-in name makes its mapper, which is quick enough to be called in line."""
    made = make(target, role, settings, **extras)
    assert type(made) is cls
    assert cls.inline is True


def test_every_built_in_mapper_is_found() -> None:
    """Each entry of the table leads to a class with the method of its role."""
    for role, names in BUILT_IN.items():
        assert known_mappers(role) == sorted(names)
        for name in names:
            assert callable(getattr(registry.find_mapper(name, role, "x"), registry.METHODS[role]))


def test_settings_are_structured() -> None:
    """The mapper has its settings as an instance of its class, with durations read."""
    assert make("fcfs", settings={"balance": "best_fit"}).settings.balance == "best_fit"
    assert make("load_following", "guest", {"type": "vm", "term": "1h"}, signal=LOAD).settings.term == HOUR


def test_all_faults_are_told_at_once() -> None:
    """Wrong settings and a missing signal come together, each on its line with its key."""
    assert errors("load_following", "guest", {"trem": "1h"}) == [
        "broker.mapper.trem: found an unknown key, expected one of: broker, configuration, extend_ahead, filter, "
        "interval, maximum, minimum, properties, renew, scale, settle, slice, smooth, term, type (did you mean term?)",
        "broker.mapper.type: found nothing, expected text in quotes",
        "broker.mapper.signal: found nothing, expected a load signal: mapper 'load_following' follows one",
    ]


def test_a_signal_for_a_mapper_that_follows_none_is_an_error() -> None:
    """A signal that nobody would follow is a mistake in the file, not to be ignored."""
    assert errors("manual", "guest", signal=LOAD) == [
        "broker.mapper.signal: found a load signal, mapper 'manual' follows none"
    ]


def test_unknown_names_list_what_is_known() -> None:
    """The line says which names there are for the role, the nearest one, and the other forms."""
    assert errors("statik", "guest") == [
        "broker.mapper.name: found 'statik', expected one of: coallocating, load_following, manual, replay, static, "
        "users (did you mean static?), or module:Class, or path/to/file.py:Class"
    ]
    assert "expected one of: backfill, best_fit, coallocation, fair_share, fcfs," in errors("static", "broker")[0]


def test_modules_and_files(own: str) -> None:
    """``module:Class`` and ``path/to/file.py:Class`` make mappers, with settings if the class has any."""
    assert type(make("leasekit.policies.broker.fcfs:Fcfs")) is Fcfs
    mine = make(f"{own}:Mine", settings={"limit": 5})
    assert (type(mine).__name__, mine.settings.limit) == ("Mine", 5)
    assert list(make(f"{own}:Plain").allocate(BrokerCycle(0, (), (), lambda type_: ()))) == []
    assert errors(f"{own}:Mine", settings={"limit": 0}) == ["broker.mapper.limit: found 0, expected >= 1"]
    assert errors(f"{own}:Plain", settings={"limit": 0}) == [
        f"broker.mapper.limit: found an unknown key, mapper '{own}:Plain' has no settings"
    ]


def test_a_changed_file_is_read_again(own: str) -> None:
    """A mapper that was changed on disk is the new one the next time that it is made."""
    make(f"{own}:Plain")
    Path(own).write_text(OWN.replace("class Plain", "class Renamed"))
    assert type(make(f"{own}:Renamed")).__name__ == "Renamed"
    assert "has no such class" in errors(f"{own}:Plain")[0]


def test_what_is_not_a_mapper_of_the_role_is_refused(own: str) -> None:
    """A class without the role's method, or no class at all, is said to be that."""
    assert errors(f"{own}:Mine", "guest") == [
        f"broker.mapper.name: found '{own}:Mine', which has no method plan(): it is no mapper of role guest"
    ]
    assert "has no method allocate()" in errors(f"{own}:VALUE")[0]
    assert "expected an attrs class" in errors(f"{own}:Odd")[0]


def test_what_is_not_there_is_one_clear_line(own: str) -> None:
    """No such file, module or class: each names what was found and what there is."""
    assert errors("nowhere.py:Mine") == [
        "broker.mapper.name: found 'nowhere.py:Mine' (there is no file nowhere.py), "
        "expected a file that is there: path/to/file.py:Class"
    ]
    assert errors("no_such_module.part:Mine") == [
        "broker.mapper.name: mapper 'no_such_module.part:Mine' can't be imported: "
        "there is no module 'no_such_module'; a file is named path/to/file.py:Class"
    ]
    assert errors(f"{own}:Mime") == [
        f"broker.mapper.name: found 'Mime' ({own} has no such class), "
        "expected one of: Broken, Mine, Odd, Plain (did you mean Mine?)"
    ]
    assert errors(f"{own}:Mime", "guest") == [
        f"broker.mapper.name: found 'Mime' ({own} has no such class), expected a class in it that has the method plan()"
    ]
    assert "can't be imported" in errors(":Mine")[0]


def test_half_a_name_is_told_what_is_missing(own: str) -> None:
    """A file with several classes, and a mapper's name in the place of a module, are told how it is written."""
    able = " or ".join(f"{own}:{name}" for name in ("Mine", "Plain", "Broken", "Odd"))
    assert errors(own) == [
        f"broker.mapper.name: found {own!r}, which has several mappers of role broker, expected {able}"
    ]
    (line,) = errors("fcfs:backfill")
    assert "'fcfs' is a mapper itself; settings behind a colon are written KEY=VALUE" in line


def test_whose_mappers_are_leasekits_own(own: str) -> None:
    """Those that come along, unless something that doesn't is plugged into them; nobody's who builds on them."""
    assert registry.is_own(make("fcfs"))
    assert not registry.is_own(make(f"{own}:Plain"))
    assert not registry.is_own(type("Mine", (Fcfs,), {"__module__": "mine"})())
    assert registry.is_own(make("energy", "authority", {"types": ["vm"], "forecast": "ewma"}))
    Path(own).write_text("class Oracle:\n    def forecast(self, now, used):\n        return used\n")
    assert not registry.is_own(make("energy", "authority", {"types": ["vm"], "forecast": f"{own}:Oracle"}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\nimport no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing' (bad.py, line 2)"),
        ("def broken(:\n", "SyntaxError: "),
        ("raise SystemExit('enough')\n", "SystemExit: enough (bad.py, line 1)"),
    ],
)
def test_a_file_that_fails_to_load_is_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    """Whatever a file raises becomes one line with its kind and place."""
    path = tmp_path / "bad.py"
    path.write_text(text)
    (line,) = errors(f"{path}:Mine")
    assert line.startswith(f"broker.mapper.name: mapper '{path}:Mine' can't be imported: {words}")
    assert "\n" not in line


def test_a_constructor_that_raises_is_one_clear_line(own: str) -> None:
    """A mapper that can't be made says what it raised and where."""
    (line,) = errors(f"{own}:Broken")
    number = next(number for number, text in enumerate(OWN.splitlines(), 1) if "raise RuntimeError" in text)
    assert line == (
        f"broker.mapper: mapper '{own}:Broken' can't be made: RuntimeError: no luck (own.py, line {number})"
    )


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, registry.GROUP)


def test_entry_points_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package's mapper is made by the name of its entry point, and listed among those that are known."""
    points = [entry("theirs", "leasekit.policies.broker.fcfs:Fcfs"), entry("lost", "no_such_package:X")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: points)
    assert type(make("theirs")) is Fcfs
    assert known_mappers("broker") == sorted([*BUILT_IN["broker"], "lost", "theirs"])
    assert "ModuleNotFoundError: No module named 'no_such_package'" in errors("lost")[0]
    points.append(entry("theirs", "elsewhere:Fcfs"))
    assert "which several packages bring" in errors("theirs")[0]
