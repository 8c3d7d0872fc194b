"""Following a lease on its daemon's control socket until what was asked for has come to an end.

A :class:`Following` is opened before the command is sent, so that no transition can be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs

from leasekit.cli.output import console
from leasekit.config.instants import dated
from leasekit.core.leases import membership
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.reasons import counted

if TYPE_CHECKING:
    from leasekit.config.sockets import ControlAddress
    from leasekit.runtime.client import ControlClient

_OVER: Final = (sm.CLOSED, sm.FAILED)
_UNDONE: Final = frozenset({"undo", "let_go", "undone"})
_REFUSALS: Final = frozenset({"ticket_refused", "lease_refused"})


GRANTED: Final = "granted"
ACTIVE: Final = "active"


@attrs.frozen
class WatchOutcome:
    """How it ended: ``ok``, or why not."""

    ok: bool
    reason: str = ""


class Following:
    """Follows one lease over two connections: one hears of transitions, one asks."""

    def __init__(self, socket: ControlAddress) -> None:
        """Raises ``ControlError``."""
        from leasekit.runtime.client import ControlClient

        self._client: ControlClient = ControlClient(socket)
        self._watcher: ControlClient = ControlClient(socket)
        self._events = self._watcher.watch("")

    def close(self) -> None:
        """Hang up."""
        self._watcher.close()
        self._client.close()

    def until_active(self, lease: str, end: int = 0) -> WatchOutcome:
        """Wait until a request, modify, or extend to ``end`` is in force and the units have joined, or until it has
        failed.
        """
        in_force = False
        with _spinner(lease) as show:
            for event in self._concerning(lease, show):
                outcome = self._judge(lease, event, closing=False)
                if event.get("event") in _UNDONE and self._client.query("lease", lease=lease)["last_end"] < end:
                    return WatchOutcome(False, "the extension was taken back")
                if outcome is not None and not outcome.ok:
                    return outcome
                in_force = in_force or (outcome is not None and self._reaches(lease, end))
                if in_force and not self._is_joining(lease):
                    return WatchOutcome(True)
        raise AssertionError("a watch ends with an error only")

    def until_granted(self, leases: Collection[str], end: int = 0) -> dict[str, WatchOutcome]:
        """Wait until each of these leases has the ticket that was asked for, up to ``end``, or has been refused it."""
        found: dict[str, WatchOutcome] = {}
        with _spinner(counted(len(leases), "lease")) as show:
            for event in self._events if leases else ():
                concerned = leases if "missed" in event else [event["lease"]] if event["lease"] in leases else ()
                for lease in concerned:
                    outcome = self._judge_grant(lease, event, end) if lease not in found else None
                    if outcome is not None:
                        found[lease] = outcome
                show(f"{len(leases) - len(found)} are not answered")
                if len(found) == len(leases):
                    break
        return found

    def _judge_grant(self, lease: str, event: Mapping[str, Any], end: int) -> WatchOutcome | None:
        if event.get("event") == "ticket":
            return WatchOutcome(True)
        if "missed" not in event:
            return _judge_event(event, closing=False)
        now = self._client.query("lease", lease=lease)
        if now["state"] in (*_OVER, sm.NASCENT) or now["pending"] == sm.EXTENDING_TICKET:
            return WatchOutcome(False, now["reason"]) if now["state"] in _OVER else None
        return WatchOutcome(now["last_end"] >= end, now["reason"])

    def until_closed(self, lease: str) -> WatchOutcome:
        """Wait until the lease is closed."""
        with _spinner(lease) as show:
            for event in self._concerning(lease, show):
                outcome = self._judge(lease, event, closing=True)
                if outcome is not None:
                    return outcome
        raise AssertionError("a watch ends with an error only")

    def until_undone(self, lease: str) -> WatchOutcome:
        """Wait until the last extension of a lease is taken back, or has begun."""
        with _spinner(lease) as show:
            for event in self._concerning(lease, show):
                if event.get("event") == "let_go":
                    return WatchOutcome(True)
                if "missed" in event or event["to_state"].partition("/")[2] == NONE:
                    found = self._client.query("lease", lease=lease)
                    begun = event.get("event") == "lease" or found["state"] in _OVER
                    if begun or found["pending"] not in (sm.UNDOING, sm.WITHDRAWING):
                        return WatchOutcome(not begun, found["reason"])
        raise AssertionError("a watch ends with an error only")

    def _reaches(self, lease: str, end: int) -> bool:
        granted = self._client.query("lease", lease=lease)["granted"]
        return granted is not None and granted["term"][1] >= end

    def until_all_closed(self, leases: Iterable[str]) -> None:
        """Wait until all of these leases are closed."""
        left = set(leases)
        if not left:
            return
        with _spinner(f"{len(left)} leases") as show:
            for event in self._events:
                concerned = left if "missed" in event else left & {event["lease"]}
                left -= {lease for lease in concerned if self._judge(lease, event, closing=True) is not None}
                show(f"{len(left)} are still open")
                if not left:
                    return

    def _concerning(self, lease: str, show: Callable[[str], None]) -> Iterator[Mapping[str, Any]]:
        for event in self._events:
            if "missed" in event:
                yield event
            elif event["lease"] == lease:
                show(f"{event['event']}: {event['to_state']}" + (f": {dated(event['why'])}" if event["why"] else ""))
                yield event

    def _judge(self, lease: str, event: Mapping[str, Any], *, closing: bool) -> WatchOutcome | None:
        if "missed" in event:
            return _judge_state(self._client.query("lease", lease=lease), closing)
        return _judge_event(event, closing)

    def _is_joining(self, lease: str) -> bool:
        return self._client.query("lease", lease=lease)["join"] in (membership.JOINING, membership.BLOCKED_JOIN)


@contextmanager
def followed(socket: ControlAddress, wait: bool) -> Iterator[tuple[ControlClient, Following | None]]:
    """A connection to a daemon for a command, and with ``wait`` who follows what comes of it, connected before."""
    from leasekit.runtime.client import ControlClient

    with ExitStack() as stack:
        following = stack.enter_context(closing(Following(socket))) if wait else None
        yield stack.enter_context(ControlClient(socket)), following


def _judge_event(event: Mapping[str, Any], closing: bool) -> WatchOutcome | None:
    state = event["to_state"].partition("/")[0]
    if state == sm.CLOSED:
        return WatchOutcome(closing, event["why"] or "it was closed")
    if state == sm.FAILED:
        return WatchOutcome(closing, event["why"] or "it has failed")
    if closing:
        return None
    if event["event"] in _REFUSALS:
        return WatchOutcome(False, event["why"])
    if event["event"] == "lease":
        return WatchOutcome(True)
    return None


def _judge_state(lease: Mapping[str, Any], closing: bool) -> WatchOutcome | None:
    """The same from the lease itself, where transitions came too fast to be heard."""
    if lease["state"] in _OVER:
        return WatchOutcome(closing, lease["reason"])
    if not closing and lease["state"] in (sm.ACTIVE, sm.ACTIVE_TICKETED) and lease["pending"] in (NONE, sm.NOTICED):
        return WatchOutcome(True)
    return None


@contextmanager
def _spinner(what: str) -> Iterator[Callable[[str], None]]:
    """Shows the last transition on standard error, where that is a terminal."""
    where = console(stderr=True)
    if not where.is_terminal:
        yield lambda text: None
        return
    with where.status(f"{what}: waiting") as status:
        yield lambda text: status.update(f"{what}: {text}")
