"""An actor's clock: Unix milliseconds at the pace of this machine, whatever becomes of its time of day.

The pace is that of ``CLOCK_BOOTTIME``, which nobody can set, and which goes on while a machine sleeps. What is added to
it follows the system's time of day while that is stepped by no more than ``clock_skew``: ahead at once, back by going
at half the pace until the difference is gone, so that time neither runs backwards nor stands still. Small steps may not
add up to a large one: what is followed is compared with the last look, and with an anchor, which moves towards the
system's time by a thousandth of what passes (twice what a clock may be off by that NTP can hold).

A larger step is a jump. Nothing follows it: time goes on at the old pace until the system's clock is back, or an
operator accepts it. The anchor is kept in the store with the number of the machine's boot, so that a restart of the
daemon is no way around that, and the daemons of one machine agree. After a reboot of the machine nothing is known but
the last instant in the store. What is behind can't be accepted while time is later: it can't go back, and daemons that
each waited in their own way for the clock to catch up would not agree.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from leasekit.core.answers import ClockDetails
from leasekit.core.errors import CommandError
from leasekit.core.reasons import mark
from leasekit.core.time import SECOND, Duration, Instant, format_duration

LAST_KEY: Final = "clock"
"""In the table ``meta``: the actor's time at the last commit."""
ANCHOR_KEY: Final = "clock_anchor"
"""There: what was to be added to the time since the boot, in milliseconds."""
BOOT_KEY: Final = "clock_boot"
"""There: which boot that was."""
SKEW: Final[Duration] = 2 * SECOND
AGREES, HELD = "agrees", "held"
LEAST_JUMP: Final[Duration] = 100
"""What is less is no jump, however little ``clock_skew`` allows: clocks can't be read at the same instant."""

_NANOSECONDS: Final = 1_000_000
_SLIDE: Final = 1_000
_READ_WITHIN: Final = 1_000_000
_TRIES: Final = 5

logger = logging.getLogger(__name__)


def since_boot() -> int:
    """Nanoseconds since the machine's start, those in which it slept included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def boot_number() -> int:
    """Tells starts of the machine apart, and time namespaces, which count from other instants; 0: it is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = Path("/proc/self/ns/time").stat().st_ino
    except OSError:
        return 0
    return int.from_bytes(sha256(f"{boot} {namespace}".encode()).digest()[:6])


class RealClock:
    """The clock of one actor. ``skew`` is by how much the system's time of day may be stepped, milliseconds.

    ``system`` gives nanoseconds since 1970, ``elapsed`` those since the boot number ``boot``.
    """

    def __init__(
        self,
        skew: Duration = SKEW,
        *,
        system: Callable[[], int] = time.time_ns,
        elapsed: Callable[[], int] = since_boot,
        boot: int | None = None,
    ) -> None:
        self.skew = skew
        self._jump = max(skew, LEAST_JUMP) * _NANOSECONDS
        self._system, self._elapsed = system, elapsed
        self._boot = boot_number() if boot is None else boot
        self._last: Instant = 0
        self._held_since: Instant | None = None
        self._kept: dict[str, int] = {}
        self._looked, self._found = self._read()
        # All in nanoseconds, to be added to the time since the boot: for the system's time as it was believed last, for
        # what that is compared with, and for the actor's time.
        self._seen = self._anchor = self._offset = self._found

    def now(self) -> Instant:
        """Milliseconds since 1970, at least as many as the last time."""
        elapsed, self._found = self._read()
        passed = max(0, elapsed - self._looked)
        self._looked += passed
        apart = self._found - self._anchor
        if max(abs(apart), abs(self._found - self._seen)) > self._jump:
            self._hold(elapsed)
        else:
            self._release()
            self._seen = self._found
            self._slide(apart, passed)
            self._offset = max(self._found, self._offset - passed // 2)
        self._last = max(self._last, (elapsed + self._offset) // _NANOSECONDS)
        return self._last

    def resume(self, kept: Mapping[str, int]) -> Duration:
        """Go on from what a store has ``kept`` in its table ``meta``; by how much its last instant is ahead of this
        machine's clock where nothing is known of why (then nothing may be done before that).
        """
        self._kept = {key: kept[key] for key in (BOOT_KEY, ANCHOR_KEY) if key in kept}
        last = kept.get(LAST_KEY, 0)
        self._looked, self._found = self._read()
        least = last * _NANOSECONDS - self._looked
        ahead = (least - self._found) // _NANOSECONDS
        self._anchor = self._found
        if self._boot and self._kept.get(BOOT_KEY) == self._boot:
            self._anchor, ahead = self._kept[ANCHOR_KEY] * _NANOSECONDS, 0
            apart, passed = self._found - self._anchor, max(0, self._anchor - least)
            if abs(apart) <= self._jump + passed // _SLIDE:
                # Small steps may have added up while the daemon was not there.
                self._slide(apart, passed)
        self._seen = self._anchor
        self._offset, self._last, self._held_since = self._anchor, last, None
        self.now()
        return max(0, ahead)

    def unkept(self) -> dict[str, int]:
        """What a store must hold for :meth:`resume`, beside :data:`LAST_KEY`, if it holds something else. It is taken
        to be written when this returns.
        """
        new = {BOOT_KEY: self._boot, ANCHOR_KEY: self._anchor // _NANOSECONDS}
        old = self._kept
        same = old.get(BOOT_KEY) == self._boot and abs(old[ANCHOR_KEY] - new[ANCHOR_KEY]) < LEAST_JUMP
        if same or not self._boot:
            return {}
        self._kept = new
        return new

    def accept(self) -> Duration:
        """Believe the system's clock from now on; by how much it was ahead, or 0 if there is nothing to accept.

        Raises ``CommandError`` if it is behind.
        """
        self.now()
        if self._held_since is None:
            return 0
        ahead = self._ahead
        if ahead < 0:
            raise CommandError(self._words())
        self._anchor = self._seen = self._found
        self._held_since = None
        self.now()
        return ahead

    def describe(self) -> ClockDetails:
        """How the clock is."""
        now, since = self.now(), self._held_since
        return ClockDetails(AGREES if since is None else HELD, now, self._ahead, since)

    def trouble(self) -> str:
        """What an operator has to know, in words; empty if there is nothing."""
        self.now()
        return self._words() if self._held_since is not None else ""

    @property
    def _ahead(self) -> Duration:
        return (self._found - self._offset) // _NANOSECONDS

    def _words(self) -> str:
        ahead = self._ahead
        apart = format_duration(abs(round(ahead, -3) if abs(ahead) >= 10 * SECOND else ahead))
        if ahead > 0:
            how, remedy = f"{apart} ahead", "`leasekit clock accept` has its time taken over"
        else:
            how = f"back by {apart}"
            remedy = (
                "stop the daemon, whose time can't go back, and start it with `leasekit up FILE --accept-clock` when "
                "the clock is where its time was"
            )
        return (
            f"this machine's clock was set {how} at {mark(self._held_since or 0)}: time goes on at the old pace, and "
            f"nothing ends "
            f"by it. Set the clock right; if it is right now, {remedy}"
        )

    def _hold(self, elapsed: int) -> None:
        if self._held_since is None:
            self._held_since = (elapsed + self._offset) // _NANOSECONDS
            logger.error("%s", self._words())

    def _release(self) -> None:
        if self._held_since is not None:
            self._held_since = None
            logger.warning("this machine's clock is right again: time follows it as before")

    def _slide(self, apart: int, passed: int) -> None:
        most = passed // _SLIDE
        self._anchor += max(-most, min(most, apart))

    def _read(self) -> tuple[int, int]:
        """The time since the boot, and what the system's time of day is beyond it.

        A process that is stopped between the two would take its own sleep for a jump: the reading is done again.
        """
        for _ in range(_TRIES):
            before = self._elapsed()
            system = self._system()
            if self._elapsed() - before <= _READ_WITHIN:
                break
        return before, system - before
