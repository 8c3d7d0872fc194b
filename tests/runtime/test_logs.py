"""Logs: fields, formats, files per actor, and transitions only where someone looks on."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasekit.core.reasons import marked, said
from leasekit.runtime.logs import (
    ACTOR,
    SELDOM_EVERY,
    SELDOM_LINES,
    SUBJECTS_MAX,
    TRANSITIONS_PER_SECOND,
    Seldom,
    TransitionLog,
    log_to_file,
    log_to_stream,
)

ROW = (1, "lease-1", "ticket", "nascent/ticketing", "ticketed/-", said("2 units at site").text())
FAILED = (1, "lease-1", "ticket_refused", "nascent/ticketing", "failed/-", said("no room").text())
REPORT = (1, "", "report", "", "", said("site reports: low (6517b379) held 4 units").text())
RETURNED = (1, "lease-1", "returned", "ticketed/-", "closed/-", said("4 units from 5 on").text())
GUILT = (1, "", "returned", "", "", said("web (6517b379) gave back 4 units").text())
MAPPER = (1, "", "mapper", "", "", said("broker mapper: KeyError: 'x'").text())


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of leasekit's, whose level is as it was afterwards."""
    yield logging.getLogger("leasekit.test")


def test_json_has_the_fields(logger: logging.Logger) -> None:
    """Each record is one line of JSON with the fields that are set, the actor among them, and a bug's traceback."""
    out = io.StringIO()
    end = log_to_stream("json", "info", stream=out)
    token = ACTOR.set("site")
    try:
        logger.info("two\nlines", extra={"lease": "lease-1", "peer": "guest"})
        try:
            raise ValueError("oops")
        except ValueError as error:
            logger.error("bug", exc_info=error)
        logger.debug("not this one")
    finally:
        ACTOR.reset(token)
        end()
    first, second = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {key: first[key] for key in first if key != "at"} == {
        "level": "info", "logger": "leasekit.test", "message": "two\nlines",
        "actor": "site", "lease": "lease-1", "peer": "guest",
    }  # fmt: skip
    assert first["at"].endswith("Z")
    assert "ValueError: oops" in second["traceback"]


def test_human_lines_cannot_be_forged(logger: logging.Logger) -> None:
    """Line breaks and control characters in a message (a peer's words, say) are shown, not obeyed."""
    out = io.StringIO()
    end = log_to_stream("human", "info", stream=out)
    try:
        logger.info("hello\n2026-01-01 00:00:00.000 INFO forged\x1b[2J", extra={"unit": "vm-0"})
    finally:
        end()
    (line,) = out.getvalue().splitlines()
    assert line.endswith("hello\\n2026-01-01 00:00:00.000 INFO forged\\x1b[2J (unit=vm-0)")
    assert " INFO " in line


def test_instants_are_dates_for_people(logger: logging.Logger) -> None:
    """What actors say of instants, which are milliseconds, is logged as dates."""
    out = io.StringIO()
    end = log_to_stream("human", "info", stream=out)
    try:
        logger.info("grant: 2 units of site over %s", marked((1763776098000, 1763779698500)))
    finally:
        end()
    assert "of site over [2025-11-22T01:48:18Z, 2025-11-22T02:48:18.500Z)" in out.getvalue()


def test_a_file_holds_its_actors_records(tmp_path: Path, logger: logging.Logger) -> None:
    """Where several actors share a process each has a file of its own, at a level of its own."""
    ends = [
        log_to_file(tmp_path / "logs" / f"{name}.log", name, "human", level)
        for name, level in (("a", "info"), ("b", "error"))
    ]
    try:
        for name in ("a", "b"):
            token = ACTOR.set(name)
            logger.info("info of %s", name)
            logger.error("error of %s", name)
            ACTOR.reset(token)
    finally:
        for end in ends:
            end()
    texts = {name: (tmp_path / "logs" / f"{name}.log").read_text() for name in ("a", "b")}
    assert [line.split(": ")[1] for line in texts["a"].splitlines()] == ["info of a", "error of a"]
    assert [line.split(": ")[1] for line in texts["b"].splitlines()] == ["error of b"]


@pytest.mark.parametrize(
    ("watched", "level", "shown"),
    [
        (False, "info", ["ticket_refused", "broker mapper", "site reports: low", "web (6517b379)"]),
        (
            True,
            "info",
            ["ticket:", "ticket_refused", "broker mapper", "site reports: low", "web (6517b379)", "returned:"],
        ),
        (False, "debug", ["ticket:", "ticket_refused", "broker mapper", "site reports: low", "web (65", "returned:"]),
    ],
)
def test_transitions_are_logged_for_those_who_look(
    logger: logging.Logger, watched: bool, level: str, shown: list[str]
) -> None:
    """Trouble is always logged, what was reported of claims as well; the rest on a terminal, or at debug."""
    out = io.StringIO()
    end = log_to_stream("human", level, stream=out)
    try:
        TransitionLog(logger, watched).write([ROW, FAILED, MAPPER, REPORT, GUILT, RETURNED])
    finally:
        end()
    lines = out.getvalue().splitlines()
    assert len(lines) == len(shown)
    assert all(word in line for word, line in zip(shown, lines, strict=True))
    assert sum("WARNING" in line for line in lines) == 4


def test_a_terminal_is_not_flooded(logger: logging.Logger) -> None:
    """Beyond so many in a second transitions are only counted; the number is told in the next second."""
    now = [0.0]
    out = io.StringIO()
    end = log_to_stream("human", "info", stream=out)
    try:
        log = TransitionLog(logger, True, lambda: now[0])
        now[0] = 10.0
        log.write([ROW] * 500)
        now[0] = 11.0
        log.write([ROW])
    finally:
        end()
    lines = out.getvalue().splitlines()
    assert len(lines) == TRANSITIONS_PER_SECOND + 2
    assert lines[-2].endswith(f"... and {500 - TRANSITIONS_PER_SECOND} further transitions")


def test_levels_are_given_back(logger: logging.Logger) -> None:
    """When a log ends nothing of it stays."""
    root = logging.getLogger("leasekit")
    before: tuple[Any, ...] = (root.level, tuple(root.handlers))
    log_to_stream("json", "debug", stream=io.StringIO())()
    assert (root.level, tuple(root.handlers)) == before


def test_a_flood_of_one_subject_leaves_the_log_to_others() -> None:
    """A few lines of a subject in a minute, then one that says how many were left out; others have their own."""
    now = [0.0]
    seldom = Seldom(lambda: now[0])
    assert [seldom.note("mallory") for _ in range(1000)] == [""] * SELDOM_LINES + [None] * (1000 - SELDOM_LINES)
    assert seldom.note("alice") == ""
    now[0] = SELDOM_EVERY
    assert seldom.note("mallory") == f" (and {1000 - SELDOM_LINES} more like it, which were not logged)"
    now[0] = 2 * SELDOM_EVERY
    assert seldom.note("mallory") == ""


def test_a_flood_of_subjects_is_a_flood_too() -> None:
    """More subjects than are known at once share their lines, until some are over."""
    now = [0.0]
    seldom = Seldom(lambda: now[0])
    said = [seldom.note(str(number)) for number in range(2 * SUBJECTS_MAX)]
    assert said.count("") == SUBJECTS_MAX + SELDOM_LINES
    now[0] = SELDOM_EVERY
    assert [seldom.note("new") for _ in range(SELDOM_LINES + 1)] == [""] * SELDOM_LINES + [None]


def test_refusals_of_one_holder_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Of a holder's leases that fail without end some are logged, and those of another holder as ever."""
    log = TransitionLog(logging.getLogger("leasekit.transitions"))
    log.write([(1, f"aaaa-{number}", "refuse", "nascent/ticketing", "failed/-", "") for number in range(500)])
    log.write([(1, "bbbb-1", "refuse", "nascent/ticketing", "failed/-", "")])
    leases = [record.lease for record in caplog.records]  # type: ignore[attr-defined]
    assert leases == [*(f"aaaa-{number}" for number in range(SELDOM_LINES)), "bbbb-1"]
