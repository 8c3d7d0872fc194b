"""Settings: what is accepted, and how every fault is named."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.settings import DurationSetting, SettingsError, expect_one_of, structure
from leasekit.core.time import HOUR, format_duration


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen(kw_only=True)
class Fixed:
    kind: ClassVar[str] = "fixed"
    shorthand: ClassVar[str] = "latency"
    latency: DurationSetting


@attrs.frozen(kw_only=True)
class Normal:
    kind: ClassVar[str] = "normal"
    mean: DurationSetting
    stddev: DurationSetting = 0


@attrs.frozen(kw_only=True)
class Inner:
    port: int = attrs.field(validator=attrs.validators.in_([80, 443]))
    weight: float = 1.0


def _split(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    if isinstance(value, tuple):
        return value
    raise ValueError("a command is text")


@attrs.frozen(kw_only=True)
class Settings:
    name: str
    count: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    share: float = 0.5
    on: bool = False
    patience: DurationSetting = 0
    rest: DurationSetting = attrs.field(default=HOUR, validator=attrs.validators.ge(HOUR))
    file: Path = Path("default")
    mode: Literal["a", "b", 3] = "a"
    colour: Colour = Colour.RED
    limit: int | None = None
    either: int | str = 0
    names: Sequence[str] = attrs.field(default=(), validator=attrs.validators.max_len(3))
    pair: tuple[int, str] = (0, "")
    tags: frozenset[str] = frozenset()
    weights: Mapping[str, float] = attrs.Factory(dict)
    latency: Fixed | Normal = Fixed(latency=0)
    latencies: Sequence[Fixed | Normal] = ()
    several: int | tuple[int, ...] = 0
    counts: Sequence[Annotated[int, "a note"]] = ()
    inner: Inner | None = None
    inners: list[Inner] = attrs.Factory(list)
    command: tuple[str, ...] = attrs.field(default=(), converter=_split)
    noted: Annotated[int, "a note"] = 0
    anything: Any = None

    def __attrs_post_init__(self) -> None:
        if self.limit is not None and self.limit < self.count:
            raise ValueError(f"limit {self.limit} must not be below count {self.count}")


FULL = {
    "name": "web",
    "count": 3,
    "share": 1,
    "on": True,
    "patience": "1h30m",
    "file": "a/b",
    "mode": 3,
    "colour": "blue",
    "limit": 5,
    "either": "text",
    "names": ["x", "y"],
    "pair": [1, "one"],
    "tags": ["t", "t"],
    "weights": {"a": 0.5, "b": 2},
    "latency": {"kind": "normal", "mean": "90s", "stddev": 10},
    "inner": {"port": 443, "weight": 2},
    "inners": [{"port": 80}],
    "command": "run me",
    "noted": 7,
    "anything": [1, {"two": 3}],
}


def errors(mapping: Mapping[str, Any], where: str = "site") -> list[str]:
    with pytest.raises(SettingsError) as caught:
        structure(Settings, mapping, where)
    assert str(caught.value) == "\n".join(caught.value.errors)
    return caught.value.errors


def test_every_kind_of_value_is_taken():
    """Each supported type is filled from what TOML gives for it."""
    made = structure(Settings, FULL, "site")
    assert made == Settings(
        name="web", count=3, share=1.0, on=True, patience=5_400_000, file=Path("a/b"), mode=3, colour=Colour.BLUE,
        limit=5, either="text", names=("x", "y"), pair=(1, "one"), tags=frozenset("t"), weights={"a": 0.5, "b": 2.0},
        latency=Normal(mean=90_000, stddev=10), inner=Inner(port=443, weight=2.0), inners=[Inner(port=80)],
        command=("run", "me"), noted=7, anything=[1, {"two": 3}],
    )  # fmt: skip
    assert type(made.share) is float


def test_what_is_made_already_is_taken():
    """Beside what TOML gives, a path or a member of an enumeration stands for itself."""
    made = structure(Settings, {"name": "x", "file": Path("a"), "colour": Colour.BLUE}, "s", base=Path("/etc"))
    assert (made.file, made.colour) == (Path("a"), Colour.BLUE)


def test_defaults_fill_what_is_left_out():
    """Only what has no default must be given."""
    assert structure(Settings, {"name": "x"}, "site") == Settings(name="x")


def test_a_shorthand_stands_for_its_table():
    """A plain value where a table may stand fills the class's shorthand field."""
    assert structure(Settings, {"name": "x", "latency": "2s"}, "s").latency == Fixed(latency=2000)
    assert structure(Settings, {"name": "x", "latency": 5}, "s").latency == Fixed(latency=5)


def test_relative_paths_start_at_the_base():
    """With a base folder a relative path is taken from there, an absolute one is left alone."""
    made = structure(Settings, {"name": "x", "file": "a"}, "s", base=Path("/etc/site"))
    assert made.file == Path("/etc/site/a")
    assert structure(Settings, {"name": "x", "file": "/b"}, "s", base=Path("/etc")).file == Path("/b")
    assert structure(Settings, {"name": "x"}, "s", base=Path("/etc")).file == Path("/etc/default")


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("name", 5, "site.name: found 5, expected text in quotes"),
        ("count", "5", "site.count: found '5', expected a whole number"),
        ("count", True, "site.count: found true, expected a whole number"),
        ("count", 1.0, "site.count: found 1.0, expected a whole number"),
        ("count", 0, "site.count: found 0, expected >= 1"),
        ("share", float("nan"), "site.share: found nan, expected a number"),
        ("share", False, "site.share: found false, expected a number"),
        ("on", 1, "site.on: found 1, expected true or false"),
        (
            "patience",
            "soon",
            "site.patience: found 'soon', expected a duration such as 90s or 1h30m, or a whole number of milliseconds",
        ),
        ("rest", "10m", "site.rest: found '10m', expected >= 1h"),
        ("rest", 600_000, "site.rest: found 600000, expected >= 3600000"),
        ("file", "", "site.file: found '', expected a path"),
        ("mode", "c", "site.mode: found 'c', expected one of: 'a', 'b', 3"),
        ("colour", "green", "site.colour: found 'green', expected one of: 'red', 'blue'"),
        ("limit", "no", "site.limit: found 'no', expected a whole number"),
        ("either", 1.5, "site.either: found 1.5, expected a whole number or text in quotes"),
        ("names", "x", "site.names: found 'x', expected a list of text in quotes"),
        ("names", ["x"] * 4, "site.names: found a list, expected a length <= 3"),
        ("names", ["x", 1], "site.names[1]: found 1, expected text in quotes"),
        ("pair", [1], "site.pair: found 1 items, expected 2"),
        ("weights", [1], "site.weights: found a list, expected a table"),
        ("weights", [], "site.weights: found an empty list, expected a table"),
        ("weights", {"a": "b"}, "site.weights.a: found 'b', expected a number"),
        ("latency", {"mean": 1}, "site.latency.kind: found nothing, expected one of: fixed, normal"),
        (
            "latency",
            {"kind": "nomal"},
            "site.latency.kind: found 'nomal', expected one of: fixed, normal (did you mean normal?)",
        ),
        (
            "latency",
            "soon",
            "site.latency: found 'soon', expected a duration such as 90s or 1h30m, or a whole number of milliseconds, "
            "or a table with kind = 'fixed' or 'normal'",
        ),
        (
            "latencies",
            7,
            "site.latencies: found 7, expected a list of a duration such as 90s or 1h30m, or a whole number of "
            "milliseconds, or a table with kind = 'fixed' or 'normal'",
        ),
        ("several", [1, "x"], "site.several[1]: found 'x', expected a whole number"),
        ("counts", "x", "site.counts: found 'x', expected a list of whole numbers"),
        ("inner", {"port": 81}, "site.inner.port: found 81, expected in [80, 443]"),
        ("inner", 4, "site.inner: found 4, expected a table"),
        ("inners", [{"port": 80}, {}], "site.inners[1].port: found nothing, expected a whole number"),
        ("command", 4, "site.command: found 4, but a command is text"),
    ],
)
def test_each_fault_names_key_found_and_expected(key, value, error):
    """One wrong value gives one line: key, what was found, what is allowed."""
    assert errors({"name": "x", key: value}) == [error]


@pytest.mark.parametrize("value", [-1, "-1s", "", True, 1.5, None, 2**60, "9" * 400 + "s", ["1s"]])
def test_what_is_no_duration_is_refused(value):
    """Negative, endless, fractional and other values are no durations."""
    [error] = errors({"name": "x", "patience": value})
    assert error.startswith("site.patience: found ")


def test_all_faults_are_reported_at_once():
    """Unknown keys, missing keys, wrong types and refused values at all levels come in one error."""
    found = errors(
        {"cuont": 1, "count": -1, "inner": {"port": 1, "wait": 2}, "weights": {"a": "", "b": ""}}, "f.toml: a"
    )
    assert [error.split(" expected")[0] for error in found] == [
        "f.toml: a.cuont: found an unknown key,",
        "f.toml: a.name: found nothing,",
        "f.toml: a.count: found -1,",
        "f.toml: a.weights.a: found '',",
        "f.toml: a.weights.b: found '',",
        "f.toml: a.inner.wait: found an unknown key,",
        "f.toml: a.inner.port: found 1,",
    ]
    assert "did you mean count?" in found[0]


def test_a_key_of_a_table_around_is_told_as_that():
    """Not as a slip of another key: who writes it has the wrong table."""
    [error] = errors({"name": "x", "inner": {"port": 80, "count": 2}})
    assert error == "site.inner.count: found 'count', a key of a table around this one, expected one of: port, weight"


def test_checks_over_several_fields_are_reported():
    """What an instance says of its fields together comes under the table's name."""
    assert errors({"name": "x", "count": 5, "limit": 2}) == ["site: limit 2 must not be below count 5"]


def test_something_else_than_a_table_is_refused():
    """Settings that are no table at all are one fault."""
    assert errors(["name"]) == ["site: found a list, expected a table"]  # type: ignore[arg-type]


def test_long_values_are_cut():
    """A huge value does not fill the screen."""
    [error] = errors({"name": "x", "count": "y" * 10_000})
    assert len(error) < 200


def test_errors_move_under_an_outer_name():
    """within() puts a table's name before every line."""
    assert SettingsError(["a: x", "b: y"]).within("site").errors == ["site.a: x", "site.b: y"]


def test_nearest_name_is_offered():
    """expect_one_of() lists what is allowed, and the nearest where one is near."""
    assert expect_one_of("scrpit", ["null", "script"]) == "expected one of: null, script (did you mean script?)"
    assert expect_one_of("zzz", ["null"]) == "expected one of: null"
    assert expect_one_of("zzz", []) == "none is expected here"


@given(st.integers(0, 10**12))
def test_durations_read_back_from_their_text(duration):
    """A duration may be written as text or as milliseconds, with the same result."""
    for written in (duration, format_duration(duration)):
        assert structure(Settings, {"name": "x", "patience": written}, "s").patience == duration


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([field.name for field in attrs.fields(Settings)]) | st.text(max_size=6), JSON))
def test_any_table_is_taken_or_refused_in_words(mapping):
    """Whatever a file holds, the outcome is an instance or a SettingsError whose every line starts with the table."""
    try:
        made = structure(Settings, mapping, "site")
    except SettingsError as error:
        assert error.errors
        assert all(line.startswith("site") and len(line) < 500 for line in error.errors)
    else:
        assert isinstance(made, Settings)
