"""Mappers that others wrote are kept apart: whatever they do costs them their turn, and nobody else anything."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_daemons import running
from polling import poll

from leasekit.actors.base import run_turn
from leasekit.config.load import load
from leasekit.config.tables import ShellSettings
from leasekit.core.steps import Turn, TurnDone
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.runtime.client import ControlClient
from leasekit.runtime.mapper_turns import Apart, TurnAbandonedError, TurnRunner, apart

pytestmark = pytest.mark.xdist_group("cli_daemons")

ROGUES = """
class Loops:
    inline = True

    def allocate(self, cycle):
        while cycle.requests:
            pass
        return []


class Stubborn:
    inline = True

    def allocate(self, cycle):
        while cycle.requests:
            try:
                while True:
                    pass
            except BaseException:
                pass
        return []


class Exits:
    inline = True

    def allocate(self, cycle):
        raise SystemExit(3)


class Quits:
    inline = True

    def allocate(self, cycle):
        raise KeyboardInterrupt
"""

DEPLOYMENT = """
deployment.create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
inventory = [{ type = "vm", units = 4 }]
delegation = [{ broker = "broker", type = "vm" }]

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
mapper = { name = "rogues.py:NAME" }
shell = { mapper_timeout = "100ms", runaways_max = 1 }

[actor.guest]
role = "guest"
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Loops", "took longer than 100ms and was given up, in allocate(), rogues.py, line "),
        ("Stubborn", "took longer than 100ms and was given up, in allocate(), rogues.py, line "),
        ("Exits", "SystemExit: 3"),
        ("Quits", "KeyboardInterrupt: "),
    ],
)
def test_a_rogue_that_says_it_is_quick_harms_nobody(name: str, words: str, tmp_path: Path) -> None:
    """Its own actor and all others of the process answer, the log names actor, mapper and line, and SIGTERM ends the
    daemon in good order though the rogue's thread never ends.
    """
    (tmp_path / "rogues.py").write_text(ROGUES)
    file = tmp_path / "deploy.toml"
    file.write_text(DEPLOYMENT.replace("NAME", name))
    actors = load(file).actors
    with running(file):
        with ControlClient(actors["broker"].control) as watcher, ControlClient(actors["guest"].control) as guest:
            events = watcher.watch("", patience=30)
            now = guest.query("status")["now"]
            term = [now + 3_600_000, now + 7_200_000]
            lease = guest.command("lease.request", type="vm", units=1, term=term)["id"]
            error = next(event["why"] for event in events if event["event"] == "mapper")
        assert error.startswith(f"broker mapper: rogues.py:{name}: {words}"), error
        for actor in actors.values():
            with ControlClient(actor.control) as client:
                assert client.query("status")["shell"]["state"] == "running"
        with ControlClient(actors["broker"].control) as client:
            assert [one["id"] for one in client.query("leases")] == [lease]
    log = (load(file).state / "logs" / "broker.log").read_text()
    assert f"rogues.py:{name}: {words}" in log


@pytest.mark.parametrize("raised", [ZeroDivisionError, SystemExit, GeneratorExit])
def test_a_mapper_in_line_loses_its_turn_and_nothing_else(raised: type[BaseException]) -> None:
    """In an emulation as well; but who breaks a run off, by Ctrl-C or when a check's time is over, does so."""

    def call() -> list[Any]:
        raise raised("enough")

    done = run_turn(1, call)
    assert re.fullmatch(rf"{raised.__name__}: enough \(test_mapper_turns.py, line \d+\)", done.error)
    assert done == TurnDone(1, error=done.error)

    def broken_off() -> list[Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_turn(1, broken_off)


# -- turns in threads ------------------------------------------------------------------------------------------------


async def test_what_comes_after_the_time_limit_is_not_heard() -> None:
    """A turn that was given up and then decides something after all has lost; the next one has its own decisions."""
    go = threading.Event()

    def late() -> TurnDone:
        with pytest.raises(TurnAbandonedError):
            while True:
                pass
        go.wait(10)
        return TurnDone(1, ("too late",))

    runner = TurnRunner(50, 3)
    first = await runner.run(Turn(1, late))
    assert first.decisions == ()
    assert first.error.startswith("took longer than 50ms and was given up")
    second = await runner.run(Turn(2, lambda: TurnDone(2, ("in time",))))
    assert second == TurnDone(2, ("in time",))
    assert len(runner.runaways) == 1
    go.set()
    await poll(lambda: not runner.runaways)
    assert first.decisions == ()


async def test_with_too_many_runaways_none_is_begun() -> None:
    """Until one of them has ended."""
    go = threading.Event()
    calls: list[int] = []

    def deaf() -> TurnDone:
        calls.append(1)
        go.wait(10)
        return TurnDone(1)

    runner = TurnRunner(20, 1)
    assert "given up" in (await runner.run(Turn(1, deaf))).error
    assert "not called: 1 earlier turns took too long" in (await runner.run(Turn(2, deaf))).error
    assert len(calls) == 1
    go.set()
    await poll(lambda: not runner.runaways)
    assert (await runner.run(Turn(3, lambda: TurnDone(3)))).error == ""


# -- what an actor must know at once ---------------------------------------------------------------------------------


class Answers:
    """A guest's mapper whose ``unblock`` does what a function says."""

    inline = True
    wants = "something"

    def __init__(self, answer: Callable[[Any, Any], Any]) -> None:
        self.unblock = answer


def _apart(answer: Callable[[Any, Any], Any]) -> Any:
    return apart(Answers(answer), ShellSettings(mapper_timeout=50, runaways_max=1))


def test_a_mapper_apart_is_what_it_was_but_not_in_line() -> None:
    """What it has, its actor finds; what it lacks, it lacks; what it answers and raises comes through."""
    mapper = _apart(lambda lease, predecessor: (lease, predecessor))
    assert isinstance(mapper, Apart)
    assert mapper.inline is False
    assert mapper.wants == "something"
    assert not hasattr(mapper, "plan")
    assert mapper.unblock("a", "b") == ("a", "b")
    with pytest.raises(ZeroDivisionError):
        _apart(lambda lease, predecessor: 1 // 0).unblock("a", "b")


def test_leasekits_own_mappers_are_left_as_they_are() -> None:
    """They keep their promise, and are called on the actor's step."""
    mapper = Fcfs()
    assert apart(mapper, ShellSettings()) is mapper


def test_an_answer_that_takes_too_long_is_not_waited_for() -> None:
    """It is broken off, and while it runs on nevertheless, no other is begun."""
    go, ended = threading.Event(), threading.Event()

    def deaf(lease: Any, predecessor: Any) -> None:
        go.wait(10)
        ended.set()

    mapper = _apart(deaf)
    with pytest.raises(TimeoutError, match=r"took longer than 50ms and was given up, in wait\(\), threading.py"):
        mapper.unblock("a", "b")
    with pytest.raises(TimeoutError, match="not called: 1 earlier"):
        mapper.unblock("a", "b")
    go.set()


def test_an_answer_that_exits_is_an_error_like_others() -> None:
    """Not the process's end."""

    def leave(lease: Any, predecessor: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        _apart(leave).unblock("a", "b")
