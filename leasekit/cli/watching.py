"""Following a lease on its daemon's control socket until what was asked for has come to an end.

A :class:`Following` is opened before the command is sent, so that no transition can be missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from leasekit.cli.output import console
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE

if TYPE_CHECKING:
    from leasekit.runtime.client import ControlClient

JOIN_POLL_S: Final = 0.1
"""How often a lease is looked at while its units join: joining is no transition of the lease."""
_OVER: Final = (sm.CLOSED, sm.FAILED)
_REFUSALS: Final = frozenset({"ticket_refused", "lease_refused"})


@attrs.frozen
class Outcome:
    """How it ended: ``ok``, or why not."""

    ok: bool
    reason: str = ""


class Following:
    """Follows one lease over two connections: one hears of transitions, one asks."""

    def __init__(self, socket: Path) -> None:
        """Raises ``ControlError``."""
        from leasekit.runtime.client import ControlClient

        self._client: ControlClient = ControlClient(socket)
        self._watcher: ControlClient = ControlClient(socket)
        self._events = self._watcher.watch("")

    def close(self) -> None:
        """Hang up."""
        self._watcher.close()
        self._client.close()

    def until_active(self, lease: str) -> Outcome:
        """Wait until a request, extend or modify is in force and the units have joined, or until it has failed."""
        with _spinner(lease) as show:
            outcome = self._until(lease, show, closing=False)
            if outcome.ok:
                self._until_joined(lease, show)
        return outcome

    def until_closed(self, lease: str) -> Outcome:
        """Wait until the lease is closed."""
        with _spinner(lease) as show:
            return self._until(lease, show, closing=True)

    def _until(self, lease: str, show: Callable[[str], None], *, closing: bool) -> Outcome:
        for event in self._events:
            if "missed" in event:
                outcome = _judge_state(self._client.query("lease", lease=lease), closing)
            elif event["lease"] != lease:
                continue
            else:
                show(f"{event['event']}: {event['to_state']}" + (f": {event['why']}" if event["why"] else ""))
                outcome = _judge_event(event, closing)
            if outcome is not None:
                return outcome
        raise AssertionError("a watch ends with an error only")

    def _until_joined(self, lease: str, show: Callable[[str], None]) -> None:
        while True:
            now: Mapping[str, Any] = self._client.query("lease", lease=lease)
            if now["state"] in _OVER or now["join"] not in (sm.JOINING, sm.BLOCKED_JOIN):
                return
            joined = sum(unit["state"] == sm.JOINED for unit in now["units"])
            show(f"{now['join']}: {joined} of {len(now['units'])} units")
            time.sleep(JOIN_POLL_S)


def _judge_event(event: Mapping[str, Any], closing: bool) -> Outcome | None:
    state, _, pending = event["to_state"].partition("/")
    if state == sm.CLOSED:
        return Outcome(closing, event["why"] or "it was closed")
    if state == sm.FAILED:
        return Outcome(closing, event["why"] or "it has failed")
    if closing:
        return None
    if event["event"] in _REFUSALS:
        return Outcome(False, event["why"])
    if event["event"] == "lease" and (state, pending) == (sm.ACTIVE, NONE):
        return Outcome(True)
    return None


def _judge_state(lease: Mapping[str, Any], closing: bool) -> Outcome | None:
    """The same from the lease itself, where transitions came too fast to be heard."""
    if lease["state"] in _OVER:
        return Outcome(closing, lease["reason"])
    if not closing and (lease["state"], lease["pending"]) == (sm.ACTIVE, NONE):
        return Outcome(True)
    return None


@contextmanager
def _spinner(lease: str) -> Iterator[Callable[[str], None]]:
    """Shows the last transition on standard error, where that is a terminal."""
    where = console(stderr=True)
    if not where.is_terminal:
        yield lambda text: None
        return
    with where.status(f"{lease}: waiting") as status:
        yield lambda text: status.update(f"{lease}: {text}")
