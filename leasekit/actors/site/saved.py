"""Suspended leases at a site: their units are saved as they are torn down, and others of the same holder go on from
that (:mod:`leasekit.core.leases.saved`).

A broker says that a lease is suspended when it ends it early, or beforehand by its claim. The last of the lease's time
is for saving. What can't be saved is torn down as ever, and the lease says so; what is saved is kept for a while, and
survives a restart. A lease whose configuration says ``resume`` and names the suspended one has its units set up from
what is kept of that one's, each from one; where nothing is kept any more a unit is set up anew, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from leasekit.actors.dispatch import query
from leasekit.actors.site.power import SitePower
from leasekit.actors.site.units import REASON_MAX
from leasekit.core.drivers import DROP, NOT_RESUMED, NOT_SAVED, RESUME, SAVE, UNIT, saves
from leasekit.core.leases import authority as au
from leasekit.core.leases import saved as sv
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.leases.saved import RESUMES, SavedUnit, saved_key
from leasekit.core.properties import Properties
from leasekit.core.protocol.codec import clip
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import HOUR, Duration, Instant

TRIES_MAX: Final = 2
"""How many setups may fail that went on from the same saved unit."""
DROP_AGAIN: Final[Duration] = HOUR
"""When it is tried again to throw away what could not be."""


class SiteSaved(SitePower):
    """What a site has saved."""

    def __init__(self, *arguments: Any) -> None:
        self.saved: dict[str, SavedUnit] = {}
        self._busy: dict[str, SavedUnit] = {}
        super().__init__(*arguments)
        self.kernel.register(
            SavedUnit, due_at=lambda kept: kept.until if kept.state == sv.SAVED else None, on_due=self._saved_due
        )
        self.units.moved.append(self._unit_moved)

    # -- suspending --------------------------------------------------------------------------------------------

    def suspend_lease(self, lease: SiteLease, at: Instant, saving: Duration, by: str) -> None:
        """Have the lease end so early that its units are saved by ``at``, in ``saving`` ms; tell its guest now."""
        if not saves(self.inventory.properties(lease.type)):
            self.notice_lease(lease, at, f"{by} ends it early")
            return
        if lease.ended >= 0 or lease.pending == au.CLOSING:
            return  # its guest has closed it, and may have said that nothing is to be kept
        before, begin = lease.saves, max(at - saving, self.kernel.now)
        lease.saves = True
        self.notice_lease(lease, begin, f"{by} suspends it")
        lease.saves = before if lease.noticed != begin else lease.ended < 0
        self.kernel.touch(lease)

    def saved_of(self, lease: SiteLease) -> int:
        """How many units of a lease are saved, if it is suspended; else -1."""
        if not lease.saves:
            return -1
        return sum(kept.lease == lease.id and kept.state == sv.SAVED for kept in self.saved.values())

    def publish(self, lease: SiteLease, word: str, number: int, reason: str = "") -> None:
        """As the layer below; a lease that goes on from another says which of its units do not."""
        if word == "active" and lease.properties.get(RESUMES):
            anew = [f"unit {name} was {self.units[name].reason}" for name in lease.units if self.units[name].reason]
            reason = "; ".join(filter(None, (reason or lease.reason, *anew)))
        super().publish(lease, word, number, reason)

    def close_lease(self, lease: SiteLease, event: str, reason: str) -> None:
        """As the layer below; what is up of a lease that is suspended is saved."""
        if lease.saves:
            plain = reason == lease.notice
            for name in lease.units:
                self._begin_saving(lease, self.units[name])
            reason = lease.notice if plain else reason
        super().close_lease(lease, event, reason)

    def _begin_saving(self, lease: SiteLease, unit: SiteUnit) -> None:
        if unit.lease != lease.id or unit.state not in (au.SETUP, au.UP, au.CHANGE):
            return
        claimed = self._busy.get(unit.id)
        if claimed is not None:
            claimed.lease = lease.id  # it isn't up yet: what it was to go on from is kept for the next
            self.kernel.touch(claimed)
        elif unit.state == au.SETUP:
            self._say(lease, f"unit {unit.id} was not saved: it was not up yet")
        elif sum(kept.holder == lease.holder for kept in self.saved.values()) >= self.settings.saved_max:
            self._say(
                lease, f"unit {unit.id} was not saved: {self.settings.saved_max} of its holder's are kept already"
            )
        else:
            key = saved_key(lease.id, unit.id)
            until = self.kernel.now + self.settings.keep_saved
            kept = SavedUnit(key, lease.id, unit.id, lease.holder, lease.type, until, holder_key=lease.key)
            self.saved[key] = self._busy[unit.id] = kept
            self.kernel.note(lease.id, "save", "", "", f"{unit.id} as {key}")
            self.kernel.touch(kept)

    def _say(self, lease: SiteLease, words: str) -> None:
        lease.notice = clip(f"{lease.notice}; {words}" if lease.notice else words, REASON_MAX)
        if lease.pending == au.CLOSING:
            lease.reason = lease.notice
        self.kernel.touch(lease)

    # -- what drivers are told ---------------------------------------------------------------------------------

    def _act(self, unit: SiteUnit, op: str, number: int) -> None:
        if op == "setup" and not number:
            lease = self.leases.get(unit.lease)
            if lease is not None and lease.properties.get(RESUMES):
                self._claim(lease, unit)
        super()._act(unit, op, number)

    def _claim(self, lease: SiteLease, unit: SiteUnit) -> None:
        """The unit goes on from its own state, if that is there, or from another's of the suspended lease."""
        wanted = (lease.properties[RESUMES], lease.holder, lease.type, sv.SAVED)
        keys = (b"", *self.keyring.keys_of(lease.holder))  # one that has only the name of a former peer is another
        able = [
            one
            for one in self.saved.values()
            if (one.lease, one.holder, one.type, one.state) == wanted and one.holder_key in keys
        ]
        chosen = min(able, key=lambda one: (one.unit != unit.id, one.unit), default=None)
        if chosen is not None:
            chosen.by = unit.id
            self._busy[unit.id] = chosen
            self.kernel.fire(sv.MACHINE, chosen, "claim", f"{unit.id} of {lease.id}")

    def _context(self, unit: SiteUnit, lease: SiteLease | None) -> Properties:
        """As the layer below. Keys are the site's to give: no guest names one."""
        context = dict(super()._context(unit, lease))
        for name in (SAVE, RESUME):
            context.pop(name, None)
        kept = self._busy.get(unit.id)
        if kept is not None and kept.state == sv.SAVING and unit.state == au.TEARDOWN:
            context[SAVE] = kept.id
        elif kept is not None and kept.state == sv.CLAIMED and unit.state == au.SETUP:
            context[RESUME] = kept.id
        return context

    # -- what becomes of it ------------------------------------------------------------------------------------

    def _action_done(self, done: ActionDone) -> None:
        kept = self.saved.get(done.unit)
        if kept is not None and kept.action == done.number:
            self._dropped(kept, done)
            return
        super()._action_done(done)

    def _unit_moved(self, unit: SiteUnit, event: str, before: str, why: str, done: ActionDone | None) -> None:
        if event and before == au.SETUP:
            self._after_setup(unit, event, done)
        elif event and before == au.TEARDOWN and unit.id in self._busy:
            self._after_teardown(unit, self._busy.pop(unit.id), done)

    def _after_setup(self, unit: SiteUnit, event: str, done: ActionDone | None) -> None:
        kept, lease = self._busy.get(unit.id), self.leases.get(unit.lease)
        if event == "up":
            given = dict(unit.given)
            why = given.pop(NOT_RESUMED, "")
            unit.given = given if why else unit.given
            if kept is not None:
                del self._busy[unit.id]
                self._end_saved(kept, "used", why)
            elif lease is not None and lease.properties.get(RESUMES):
                why = f"nothing of {lease.properties[RESUMES]} is kept for it (any more)"
            unit.reason = clip(f"set up anew: {why}", REASON_MAX) if why else ""
        elif event == "failed" and kept is not None:
            del self._busy[unit.id]
            kept.tries += done is None or done.blame == UNIT
            if kept.tries >= TRIES_MAX:
                self._drop_saved(kept, "spoilt")
            else:
                self.kernel.fire(sv.MACHINE, kept, "release", unit.reason)

    def _after_teardown(self, unit: SiteUnit, kept: SavedUnit, done: ActionDone | None) -> None:
        if kept.state == sv.CLAIMED:
            self.kernel.fire(sv.MACHINE, kept, "release", "its setup was stopped")
            return
        assert done is not None, "a teardown ends by an action's end"
        why = done.properties.get(NOT_SAVED, "") if done.ok else f"teardown failed: {done.reason}"
        if not why:
            self.kernel.fire(sv.MACHINE, kept, "saved")
            return
        lease = self.leases.get(kept.lease)
        if lease is not None:
            self._say(lease, f"unit {unit.id} was not saved: {why}")
        self._end_saved(kept, "failed", why)

    def _end_saved(self, kept: SavedUnit, event: str, why: str) -> None:
        """Nothing is left of it."""
        self.kernel.fire(sv.MACHINE, kept, event, why)
        del self.saved[kept.id]
        self.kernel.erase(kept)

    # -- throwing away -----------------------------------------------------------------------------------------

    def _drop_saved(self, kept: SavedUnit, event: str) -> None:
        self.kernel.fire(sv.MACHINE, kept, event)
        kept.action = self.kernel.next("action")
        self._send_drop(kept)

    def _send_drop(self, kept: SavedUnit) -> None:
        context = {**self.inventory.properties(kept.type), "unit.name": kept.unit, "site.name": self.name}
        self.kernel.actions.append(Action(kept.action, DROP, kept.id, kept.type, "", context))

    def _dropped(self, kept: SavedUnit, done: ActionDone) -> None:
        if done.ok:
            self._end_saved(kept, "dropped", "")
            return
        self.kernel.complain(f"what is kept of unit {kept.unit} of {kept.lease} can't be thrown away: {done.reason}")
        kept.action, kept.until, kept.tries = 0, self.kernel.now + DROP_AGAIN, TRIES_MAX
        kept.lease = ""  # nobody goes on from what may be half gone
        self.kernel.fire(sv.MACHINE, kept, "failed", clip(done.reason, REASON_MAX))

    # -- time and state ----------------------------------------------------------------------------------------

    def _saved_due(self, kept: SavedUnit) -> None:
        if kept.state == sv.SAVED:
            self._drop_saved(kept, "expire")

    def restore_leases(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """As the layer below, with what is kept: it says what is done again with units."""
        self.saved, self._busy = {}, {}
        for row in tables.get(SavedUnit.table, ()):
            kept = SavedUnit.from_row(row)
            self.saved[kept.id] = kept
            self.kernel.schedule(kept, self.kernel.due_at(kept))
            if kept.state in (sv.SAVING, sv.CLAIMED):
                self._busy[kept.by or kept.unit] = kept
            if kept.state == sv.DROPPING:
                self._send_drop(kept)
        super().restore_leases(tables)

    @query("saved")
    def _query_saved(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "key": one.id,
                "lease": one.lease,
                "unit": one.unit,
                "holder": one.holder,
                "type": one.type,
                "state": one.state,
                "until": one.until,
            }
            for one in self.saved.values()
        ]
