"""Readers of traces, the generator of load, and the demand of an emulation."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TextIO

import attrs
import pytest
from datafiles import data_file
from hypothesis import given
from hypothesis import strategies as st

from leasekit.config import traces
from leasekit.config.instants import format_instant, parse_instant
from leasekit.config.traces import (
    BATCH,
    WEB,
    JobLoad,
    SignalSpec,
    SwfJob,
    SyntheticSettings,
    TraceError,
    TraceMissing,
    data_dir,
    missing_traces,
    open_signal,
    read_csv,
    swf_jobs,
    swf_signal,
    synthetic,
)
from leasekit.core.settings import SettingsError, structure
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Term

Written = Callable[[str], Path]


@pytest.fixture
def csv_file(tmp_path: Path) -> Written:
    """Writes a CSV file and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "load.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def swf_line(number: int, submit: int, wait: int, run: object, procs: int, requested: int = -1) -> str:
    """A job's line as the archive writes it."""
    return f"  {number} {submit} {wait} {run} {procs} -1 -1 {requested} -1 -1 1 4 1 -1 -1 1 -1 -1\n"


SWF = "; Version: 2.2\n; UnixStartTime: 1000000\n;\n" + swf_line(1, 0, 100, 600, 2) + swf_line(2, 450, -1, 300, -1, 4)


@pytest.fixture
def swf_file(tmp_path: Path) -> Written:
    """Writes an SWF file and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "log.swf"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# --- CSV ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("timestamp_s,requests\n100,3\n400,4.5\n", {}),
        ("100,3\n400,4.5\n", {}),
        ("at_ms,requests\n100000,3\n400000,4.5\n", {}),
        ("100000,3\n400000,4.5\n", {"unit": "ms"}),
        ("100.0,3\n4e2,4.5\n", {"unit": "s"}),
        ("period,count\n1970-01-01 00:01:40,3\n1970-01-01T00:06:40Z,4.5\n", {}),
        ("1970-01-01T01:01:40+01:00,3\n1970-01-01T00:06:40,4.5\n", {"unit": "iso"}),
        ("value,other,when\n3,x,100\n4.5,y,400\n", {"time": "when", "value": "value"}),
        ("3,x,100\n4.5,y,400\n", {"time": 2, "value": 0}),
        ("# made by hand\n\n100,3\n\n400,4.5\n", {}),
        ("\ufefftimestamp_s,requests\r\n100,3\r\n400,4.5\r\n", {}),
    ],
)
def test_csv_dialects_read_the_same(csv_file: Written, text: str, options: dict[str, Any]) -> None:
    """Header or none, seconds, ms or ISO 8601, columns by name or index: the same signal."""
    signal = read_csv(csv_file(text), **options)
    assert list(signal) == [(100_000, 3.0), (400_000, 4.5)]
    assert signal.end == 700_000


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    """A gzip file is read whatever its name is, and so is a plain one named .gz."""
    text = b"timestamp_s,requests\n100,3\n"
    packed, plain = tmp_path / "packed.csv", tmp_path / "plain.csv.gz"
    packed.write_bytes(gzip.compress(text))
    plain.write_bytes(text)
    assert read_csv(packed) == read_csv(plain)


def test_gaps_hold_or_count_as_zero(csv_file: Written) -> None:
    """Missing rows: the last value holds, or 0 does from one interval after it."""
    path = csv_file("0,5\n60,6\n240,7\n")
    assert list(read_csv(path)) == [(0, 5.0), (60_000, 6.0), (240_000, 7.0)]
    assert list(read_csv(path, gaps="zero")) == [(0, 5.0), (60_000, 6.0), (120_000, 0.0), (240_000, 7.0)]


@pytest.mark.parametrize(
    ("text", "options", "line", "found", "allowed"),
    [
        ("t,v\n1,2\nx,3\n", {}, 3, "'x'", "a timestamp in seconds or ISO 8601"),
        ("t,v\n1,2\n2,many\n", {}, 3, "'many'", "a number of at least 0"),
        ("t,v\n1,2\n2,-1\n", {}, 3, "'-1'", "a number of at least 0"),
        ("t,v\n1,nan\n", {}, 2, "'nan'", "a number of at least 0"),
        ("t,v\n1,inf\n", {}, 2, "'inf'", "a number of at least 0"),
        ("t,v\n5,1\n5,1\n", {}, 3, "'5'", "later than the one before it"),
        ("t,v\n5,1\n4,1\n", {}, 3, "'4'", "later than the one before it"),
        ("t,v\n5\n", {}, 2, "'5'", "at least 2 columns"),
        ("t,v\n-5,1\n", {}, 2, "'-5'", "not before 1970"),
        ("t,v\n1e300,1\n", {}, 2, "'1e300'", "a timestamp in"),
        ("t,v\n1,2\n", {"unit": "iso"}, 2, "'1'", "ISO 8601"),
        ("t,v\n1,2\n", {"value": "w"}, 1, "'t,v'", "the column 'w'"),
        ("1,2\n", {"value": "v"}, 1, "'1,2'", "a header line with the column 'v'"),
        ("1,2\n", {"value": 2}, 1, "'1,2'", "column 2, counted from 0"),
        ("x,2\n1,2\n", {}, 1, "'x'", "a timestamp"),
    ],
)
def test_malformed_csv_lines_are_named(
    csv_file: Written, text: str, options: dict[str, Any], line: int, found: str, allowed: str
) -> None:
    """One error with file, line, what was found and what is allowed."""
    path = csv_file(text)
    with pytest.raises(TraceError) as caught:
        read_csv(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}: found ")
    assert found in message.split("allowed")[0]
    assert allowed in message.split("allowed is", 1)[1]


def test_long_garbage_is_cut(csv_file: Written) -> None:
    """A huge cell doesn't fill the screen."""
    with pytest.raises(TraceError) as caught:
        read_csv(csv_file("t,v\n1," + "9x" * 5000 + "\n"))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["", "\n\n", "timestamp_s,requests\n"])
def test_a_csv_without_rows_is_an_error(csv_file: Written, text: str) -> None:
    """No rows: the file is named and so is what is allowed."""
    with pytest.raises(TraceError, match=r"load\.csv: found no rows, allowed is"):
        read_csv(csv_file(text))


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    """A file that was cut off, or whose bytes changed, says so instead of showing a traceback of zlib."""
    whole = gzip.compress(b"".join(b"%d,%d\n" % (at, at * at % 977) for at in range(5000)))
    cut, wrong_sum, wrong_block = whole[: len(whole) // 2], whole[:-8] + bytes(8), whole[:10] + b"\xff" * 20
    for damaged in (cut, wrong_sum, wrong_block):
        path = tmp_path / "damaged.csv.gz"
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match=r"damaged\.csv\.gz: its gzip data is damaged or cut off"):
            read_csv(path)


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    """A binary file is an error about the file, never a UnicodeDecodeError."""
    path = tmp_path / "binary.csv"
    path.write_bytes(bytes(range(256)) * 4)
    with pytest.raises(TraceError, match=r"binary\.csv"):
        read_csv(path)


def test_a_folder_can_not_be_read(tmp_path: Path) -> None:
    """A folder in the place of a file is named, with the system's reason."""
    with pytest.raises(TraceError, match="can't be read"):
        read_csv(tmp_path)


# --- the Standard Workload Format -----------------------------------------------------------------------------


def test_swf_jobs_are_read_in_ms(swf_file: Written) -> None:
    """Header comments give the origin; times are ms; -1 is unknown."""
    one, two = swf_jobs(swf_file(SWF))
    assert (one.id, one.submit, one.wait, one.run, one.procs) == (1, 1_000_000_000, 100_000, 600_000, 2)
    assert (one.start, one.width, one.usable, one.procs_requested) == (1_000_100_000, 2, True, None)
    assert (two.submit, two.wait, two.start, two.procs, two.width) == (1_000_450_000, None, 1_000_450_000, None, 4)
    assert (one.user, one.time_requested, two.procs_requested) == (4, None, 4)


def test_swf_decimals_are_kept_to_the_ms(swf_file: Written) -> None:
    """Times may have decimals."""
    (job,) = swf_jobs(swf_file(swf_line(1, 0, 0, "1.5", 1)))
    assert job.run == 1500


@pytest.mark.parametrize(
    ("line", "found", "allowed"),
    [
        ("1 2 3\n", "'1 2 3'", "18 fields, of which it has 3"),
        (swf_line(1, 0, 0, 5, 1).rstrip() + " 7\n", "'1 0 0 5", "18 fields, of which it has 19"),
        (swf_line(1, 0, 0, "long", 1), "'long'", "as run time (field 4) a number, or -1 if unknown"),
        (swf_line(1, 0, 0, "nan", 1), "'nan'", "as run time (field 4) a number"),
        (swf_line(1, 0, 0, -7, 1), "'-7'", "as run time (field 4) a number, or -1"),
        (swf_line(1, 0, 0, 5, 1).replace(" 5 1 ", " 5 1.5 ", 1), "'1.5'", "as allocated processors (field 5) a whole"),
        (swf_line(1, -1, 0, 5, 1), "'1 -1'", "a submit time of at least 0"),
        ("; UnixStartTime: soon\n", "'soon'", "whole Unix seconds"),
    ],
)
def test_malformed_swf_lines_are_named(swf_file: Written, line: str, found: str, allowed: str) -> None:
    """One error with file, line, what was found and what is allowed."""
    path = swf_file(swf_line(1, 0, 0, 5, 1) + line)
    with pytest.raises(TraceError) as caught:
        list(swf_jobs(path))
    message = str(caught.value)
    assert message.startswith(f"{path}, line 2: found {found}")
    assert allowed in message.split("allowed is", 1)[1]


def test_swf_signal_by_hand(swf_file: Written) -> None:
    """Bins of five minutes from the first submission's to the last's; unknown waits count as none."""
    jobs = list(swf_jobs(swf_file(SWF)))
    low = 1_000_000_000 // 300_000 * 300_000
    assert jobs[0].submit - low == 100_000
    wanted = swf_signal(jobs, "wanted_procs")
    # Job 1 wants 2 processors in [100 s, 700 s) of the bins' time, job 2 wants 4 in [550 s, 850 s).
    assert [at for at, _ in wanted] == [low, low + 300_000]
    assert [value for _, value in wanted] == [pytest.approx(2 * 200 / 300), pytest.approx(2 + 4 * 50 / 300)]
    running = swf_signal(jobs, "running_procs")
    assert [value for _, value in running] == [pytest.approx(2 * 100 / 300), pytest.approx(2 + 4 * 50 / 300)]
    assert wanted.end == low + 600_000


def job(submit: int, wait: int, run: int, procs: int) -> SwfJob:
    """A job of these times (ms) and width."""
    values: dict[str, Any] = {field.name: None for field in attrs.fields(SwfJob)}
    return SwfJob(**(values | {"id": 1, "submit": submit, "wait": wait, "run": run, "procs": procs}))


@given(
    st.lists(
        st.builds(job, st.integers(0, 90), st.integers(0, 40), st.integers(0, 80), st.integers(0, 5)),
        min_size=1,
        max_size=15,
    ),
    st.integers(1, 30),
    st.sampled_from(["wanted_procs", "running_procs"]),
)
def test_swf_bins_are_their_definition(jobs: list[SwfJob], interval: int, load: JobLoad) -> None:
    """Each bin is the mean over its milliseconds of the processors of the jobs that run then."""
    usable = [one for one in jobs if one.usable]
    if not usable:
        with pytest.raises(TraceError, match="no job that took any processor"):
            swf_signal(jobs, load, interval=interval)
        return
    starts = [one.submit if load == "wanted_procs" else one.start for one in usable]
    signal = swf_signal(jobs, load, interval=interval)
    assert signal.first == min(one.submit for one in usable) // interval * interval
    assert signal.end == max(one.submit for one in usable) // interval * interval + interval
    for low, value in signal:
        area = sum(
            one.width
            for start, one in zip(starts, usable, strict=True)
            for at in range(low, low + interval)
            if start <= at < start + (one.run or 0)
        )
        assert value == pytest.approx(area / interval)


@pytest.mark.long
def test_swf_agrees_with_the_derived_trace() -> None:
    """Our bins of the LPC-EGEE log are those of the published derivation, to its two decimals, in every bin."""
    csv = data_file("lpc-egee/LPC-EGEE-2004-1.2-cln-5min.csv.gz")
    jobs = list(swf_jobs(data_file("lpc-egee/LPC-EGEE-2004-1.2-cln.swf.gz")))
    assert len(jobs) == 234_889
    loads: tuple[JobLoad, ...] = ("wanted_procs", "running_procs")
    for load in loads:
        ours, derived = swf_signal(jobs, load), read_csv(csv, value=load)
        assert (ours.first, ours.end, len(ours)) == (derived.first, derived.end, len(derived))
        differing = [format_instant(at) for at, value in ours if round(value, 2) != derived.value(at)]
        assert differing == []


def test_minutes_agree_with_five_minutes() -> None:
    """The World Cup's requests a minute, where missing rows are 0, add up to the five-minute file exactly."""
    minutes = read_csv(data_file("worldcup98/invocation_count.csv.gz"), gaps="zero")
    five = read_csv(data_file("worldcup98/worldcup98-5min.csv.gz"))
    sums = [(at, 5 * mean) for at, mean in minutes.resampled(5 * MINUTE)]
    assert sums == list(five)
    assert sum(value for _, value in five) == 1_352_804_107


# --- generated load -------------------------------------------------------------------------------------------


def test_synthetic_is_a_function_of_its_seed() -> None:
    """The same seed gives the same signal, another seed another; length and peak are as asked."""
    one = synthetic(7, 7 * DAY, peak=140)
    assert one == synthetic(7, 7 * DAY, peak=140)
    assert one != synthetic(8, 7 * DAY, peak=140)
    assert (len(one), one.first, one.end, one.peak()) == (7 * 288, 0, 7 * DAY, 140.0)
    assert min(value for _, value in one) >= 0


def test_synthetic_is_what_its_definition_gives() -> None:
    """Sample by sample, to the last digit: a daily and weekly cycle, noise that fades within an hour, and bursts."""
    draw, noise, burst, levels = random.Random(9).random, 0.0, 0.0, []
    memory, decay = math.exp(-HOUR / HOUR), math.exp(-HOUR / BATCH.burst_length)
    for at in range(0, 14 * DAY, HOUR):
        normal = math.sqrt(-2 * math.log(1 - draw())) * math.cos(2 * math.pi * draw())
        arrives, height = draw(), -math.log(1 - draw())
        noise = memory * noise + math.sqrt(1 - memory * memory) * BATCH.noise * normal
        rise = BATCH.burst_height * height if arrives < 1 - math.exp(-BATCH.bursts_per_day * HOUR / DAY) else 0.0
        burst = burst * decay + rise
        day = 1 + BATCH.daily * math.cos(2 * math.pi * (at - 20 * HOUR) / DAY)
        levels.append(max(0.0, (day * (1 - BATCH.weekly) if at % (7 * DAY) >= 5 * DAY else day) + noise + burst))
    assert [value for _, value in synthetic(9, 14 * DAY, interval=HOUR, peak=8, settings=BATCH)] == [
        level / max(levels) * 8 for level in levels
    ]


def test_synthetic_has_its_days_and_weeks() -> None:
    """Without noise and bursts: highest at 20:00, lowest at 08:00, and days 6 and 7 lower by the weekly share."""
    calm = SyntheticSettings(daily=0.5, weekly=0.25, noise=0, bursts_per_day=0)
    signal = synthetic(1, 7 * DAY, peak=150, settings=calm)
    assert signal.value(20 * HOUR) == pytest.approx(150)
    assert signal.value(8 * HOUR) == pytest.approx(50)
    assert signal.value(5 * DAY + 20 * HOUR) == pytest.approx(112.5)


def test_synthetic_bursts_raise_the_load() -> None:
    """Bursts come at about the rate that was asked for, and die away."""
    flat = SyntheticSettings(daily=0, weekly=0, noise=0, bursts_per_day=2, burst_height=3, burst_length=HOUR)
    values = [value for _, value in synthetic(3, 100 * DAY, peak=1, settings=flat)]
    base = min(values)
    rises = sum(two > one + base * 1e-9 for one, two in itertools.pairwise(values))
    assert 150 <= rises <= 250
    assert sum(value < base * 1.05 for value in values) > len(values) / 2


@pytest.mark.parametrize("settings", [WEB, BATCH])
def test_synthetic_presets_vary(settings: SyntheticSettings) -> None:
    """Both presets are uneven enough to be worth following: they vary by at least a third of their mean."""
    values = [value for _, value in synthetic(1, 28 * DAY, peak=140, settings=settings)]
    mean = sum(values) / len(values)
    assert math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) > mean / 3


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("daily", 1.5, "daily: found 1.5, but expected a share from 0 to 1"),
        ("weekly", -0.1, "weekly: found -0.1"),
        ("noise", -1, "noise: found -1, but expected a number of at least 0"),
        ("bursts_per_day", math.inf, "bursts_per_day: found inf"),
        ("burst_length", 0, "burst_length: found 0, expected >= 1"),
    ],
)
def test_synthetic_settings_say_what_is_allowed(setting: str, value: Any, message: str) -> None:
    """A wrong setting is named with what was found and what is allowed."""
    with pytest.raises(SettingsError, match=message):
        structure(SyntheticSettings, {setting: value}, "synthetic")


def test_synthetic_refuses_no_time() -> None:
    """A horizon of nothing is an error."""
    with pytest.raises(TraceError, match="found horizon 0 ms"):
        synthetic(1, 0, peak=1)


# --- where traces are -----------------------------------------------------------------------------------------


def test_data_dir_takes_the_first_that_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--data wins over the environment, that over ../shared/data, that over a folder beside the config file."""
    explicit, named, work = tmp_path / "a", tmp_path / "b", tmp_path / "work"
    near, far = tmp_path / "shared" / "data", tmp_path / "far" / "shared" / "data"
    for folder in (explicit, named, work, near, far):
        folder.mkdir(parents=True)
    config = tmp_path / "far" / "main" / "deploy" / "emulation" / "terms.toml"
    monkeypatch.chdir(work)
    environ = {"LEASEKIT_DATA": str(named)}
    assert data_dir(explicit, config=config, environ=environ) == explicit
    assert data_dir(config=config, environ=environ) == named
    assert data_dir(config=config, environ={}) == Path("../shared/data")
    near.rmdir()
    assert data_dir(config=config, environ={}) == far
    assert data_dir(environ={}) is None


def test_data_dir_looks_four_levels_up_and_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the fourth ancestor of the config's folder is found, beside the fifth is not."""
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "1" / "2" / "3" / "4" / "5" / "6").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "1" / "2")
    found = data_dir(config=tmp_path / "1" / "2" / "3" / "4" / "5" / "c.toml", environ={})
    assert found == tmp_path / "shared" / "data"
    assert data_dir(config=tmp_path / "1" / "2" / "3" / "4" / "5" / "6" / "c.toml", environ={}) is None


def test_data_dir_must_exist_where_it_is_named(tmp_path: Path) -> None:
    """A folder that was named and isn't there is an error that says where it was named."""
    with pytest.raises(TraceError, match=r"--data: found .*nowhere, which is not a folder"):
        data_dir(tmp_path / "nowhere", environ={})
    with pytest.raises(TraceError, match=r"LEASEKIT_DATA: found .*nowhere"):
        data_dir(environ={"LEASEKIT_DATA": str(tmp_path / "nowhere")})


def test_guests_that_follow_parts_of_a_trace_read_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the file is another one."""
    file = tmp_path / "load.csv"
    file.write_text("0,1\n3600,2\n7200,3\n")
    opened_at: list[Path] = []
    real = traces.opened

    def opened(path: Path) -> AbstractContextManager[TextIO]:
        opened_at.append(path)
        return real(path)

    monkeypatch.setattr(traces, "opened", opened)
    hours = [
        SignalSpec(file="load.csv", start=hour * HOUR, horizon=HOUR, interval=HOUR, time_column=0) for hour in (0, 1, 2)
    ]
    assert [open_signal(spec, tmp_path).value(0) for spec in hours] == [1, 2, 3]
    assert opened_at == [file]
    file.write_text("0,4\n3600,5\n7200,6\n10800,7\n")
    os.utime(file, (1, 1))
    assert [open_signal(spec, tmp_path).value(0) for spec in hours] == [4, 5, 6]
    assert opened_at == [file, file]


def test_missing_traces_are_told_at_once(tmp_path: Path) -> None:
    """One message: which traces, who publishes them, where it looked, and what --synthetic does."""
    names = ["worldcup98/worldcup98-5min.csv.gz", "lpc-egee/LPC-EGEE-2004-1.2-cln.swf.gz", "own/mine.csv"]
    for name in names:
        with pytest.raises(TraceMissing) as caught:
            open_signal(SignalSpec(file=name, horizon=DAY), tmp_path)
        assert caught.value.traces == (name,)
    message = str(missing_traces(names, tmp_path))
    for part in (
        "worldcup98/worldcup98-5min.csv.gz (published by the Internet Traffic Archive",
        "https://ita.ee.lbl.gov/html/contrib/WorldCup.html",
        "lpc-egee/LPC-EGEE-2004-1.2-cln.swf.gz (published by the Parallel Workloads Archive",
        "https://www.cs.huji.ac.il/labs/parallel/workload",
        "own/mine.csv;",
        f"looked in {tmp_path}",
        "--synthetic uses generated demand instead",
    ):
        assert part in message
    assert "\n" not in message


def test_missing_without_a_data_folder_says_how_to_name_one() -> None:
    """Without any data folder the message names the option and the environment variable."""
    with pytest.raises(TraceMissing, match="no data folder: give --data DIR or LEASEKIT_DATA"):
        open_signal(SignalSpec(file="kth-sp2/none.swf.gz", horizon=DAY), None)


def test_a_reader_tells_of_a_missing_file(tmp_path: Path) -> None:
    """A reader that is called by itself gives the same kind of error."""
    with pytest.raises(TraceMissing, match=r"nasa-http-5min\.csv \(published by the Internet Traffic Archive: NASA"):
        read_csv(tmp_path / "nasa-http-5min.csv")


# --- demand of an emulation -----------------------------------------------------------------------------------


def test_open_signal_puts_a_trace_on_the_emulations_clock(tmp_path: Path) -> None:
    """The window becomes [0, horizon), binned, scaled to its own peak, in whole units."""
    rows = "".join(f"{600 + 60 * minute},{minute}\n" for minute in range(30))
    (tmp_path / "load.csv").write_text(rows)
    spec = SignalSpec(
        file="load.csv", start=900_000, horizon=10 * MINUTE, interval=5 * MINUTE, peak=24, whole_units=False
    )
    signal = open_signal(spec, tmp_path)
    # Minutes 5 to 9 have mean 7, minutes 10 to 14 mean 12, which becomes 24.
    assert list(signal) == [(0, 14.0), (5 * MINUTE, 24.0)]
    assert signal.covers(Term(0, 10 * MINUTE))
    whole = open_signal(attrs.evolve(spec, peak=5, whole_units=True), tmp_path)
    assert [value for _, value in whole] == [3.0, 5.0]


def test_open_signal_refuses_a_window_outside_of_the_trace(tmp_path: Path) -> None:
    """The error names the trace, what it covers and what was asked for."""
    (tmp_path / "load.csv").write_text("0,1\n300,2\n")
    with pytest.raises(TraceError) as caught:
        open_signal(SignalSpec(file="load.csv", start=0, horizon=DAY), tmp_path)
    assert str(caught.value) == (
        "load.csv: found a trace from 1970-01-01T00:00:00Z to 1970-01-01T00:10:00Z; "
        "allowed is one that covers the 1d from 1970-01-01T00:00:00Z"
    )


def test_open_signal_reads_job_logs(tmp_path: Path) -> None:
    """An SWF file gives either of its loads; another column is refused with those that are allowed."""
    (tmp_path / "log.swf").write_text(SWF)
    spec = SignalSpec(file="log.swf", horizon=10 * MINUTE, whole_units=False)
    wanted = open_signal(spec, tmp_path)
    running = open_signal(attrs.evolve(spec, column="running_procs"), tmp_path)
    assert wanted.value(0) == pytest.approx(400 / 300)
    assert running.value(0) == pytest.approx(200 / 300)
    with pytest.raises(TraceError, match="found column 'cpu', allowed of an SWF file: wanted_procs, running_procs"):
        open_signal(attrs.evolve(spec, column="cpu"), tmp_path)


def test_a_trace_of_zeros_can_not_be_scaled(tmp_path: Path) -> None:
    """Scaling nothing to a peak is an error that names the trace."""
    (tmp_path / "load.csv").write_text("0,0\n300,0\n")
    with pytest.raises(TraceError, match=r"load\.csv: cannot scale to a peak of 5"):
        open_signal(SignalSpec(file="load.csv", horizon=5 * MINUTE, peak=5), tmp_path)


def test_synthetic_replaces_traces_there_or_not(tmp_path: Path) -> None:
    """With --synthetic the run is the same on any machine; job logs become batch load, others web load."""
    web = SignalSpec(file="worldcup98/load.csv", horizon=DAY, peak=40, seed=5, whole_units=False)
    batch = attrs.evolve(web, file="lpc-egee/log.swf")
    missing = {name: open_signal(spec, None, synthetic=True) for name, spec in (("web", web), ("batch", batch))}
    (tmp_path / "worldcup98").mkdir()
    (tmp_path / "worldcup98" / "load.csv").write_text("0,1\n300,2\n")
    assert open_signal(web, tmp_path, synthetic=True) == missing["web"]
    assert missing["web"] == synthetic(5, DAY, peak=40)
    assert missing["batch"] == synthetic(5, DAY, peak=40, settings=BATCH)
    shaped = open_signal(attrs.evolve(batch, synthetic=WEB), None, synthetic=True)
    assert shaped == missing["web"]


def test_the_papers_month_of_web_load() -> None:
    """The World Cup's month from 11 June: 8,640 bins, peak exactly 140 nodes, whole nodes."""
    name = "worldcup98/worldcup98-5min.csv.gz"
    folder = data_file(name).parents[1]
    start = parse_instant("1998-06-11T22:00Z")
    signal = open_signal(SignalSpec(file=name, start=start, horizon=30 * DAY, peak=140), folder)
    assert (len(signal), signal.peak()) == (8640, 140.0)
    assert signal.mean(Term(0, 30 * DAY)) == pytest.approx(15.416, abs=0.001)
    assert signal.value(parse_instant("1998-07-07T21:40Z") - start) == 140.0


# --- instants -------------------------------------------------------------------------------------------------


def test_instants_are_read_in_every_form() -> None:
    """Text with or without zone, a datetime, and ms as they are."""
    expected = 897_602_400_000
    zone = timezone(timedelta(hours=2))
    for given_form in ("1998-06-11T22:00Z", "1998-06-11 22:00", "1998-06-12T00:00+02:00", expected):
        assert parse_instant(given_form) == expected
    assert parse_instant(datetime(1998, 6, 12, tzinfo=zone)) == expected
    with pytest.raises(ValueError, match="'June' is not an instant: write ISO 8601"):
        parse_instant("June")


@given(st.integers(0, 4_000_000_000 * SECOND))
def test_instants_survive_being_written(instant: int) -> None:
    """What is written is read back to the millisecond."""
    assert parse_instant(format_instant(instant)) == instant
