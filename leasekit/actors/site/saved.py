"""What drivers are told to do with a site's units, and what is kept of suspended leases: their units are saved as they
are torn down, and others of the same holder go on from that (:mod:`leasekit.core.leases.saved`).

A broker says that a lease is suspended when it ends it early, or beforehand by its claim. The last of the lease's time
is for saving. What can't be saved is torn down as ever, and the lease says so; what is saved is kept for a while, and
survives a restart. A lease whose configuration says ``resume`` and names the suspended one has its units set up from
what is kept of that one's, each from one; where nothing is kept any more a unit is set up anew, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from leasekit.actors.kernel import Kernel, keeps, query
from leasekit.actors.peering import Keyring
from leasekit.actors.settings import AuthoritySettings
from leasekit.actors.site.inventory import Inventory
from leasekit.core.answers import SavedUnitDetails
from leasekit.core.drivers import DROP, NOT_RESUMED, NOT_SAVED, RESUME, SAVE, UNIT, UNIT_CAP, UNIT_HOST, UNIT_LEAVES
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.leases.saved import RESUMES, SavedUnit, saved_key
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.reasons import Code, Reason, all_of, said
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import HOUR, Duration
from leasekit.core.vectors import NEEDS, as_properties

TRIES_MAX: Final = 2
"""How many setups may fail that went on from the same saved unit."""
DROP_AGAIN: Final[Duration] = HOUR
"""When it is tried again to throw away what could not be."""


@keeps(rows="units", derived="_busy")
@attrs.define(eq=False, slots=False)
class SiteSaved:
    """What drivers are told to do with a site's units, and what the site has saved of them."""

    _kernel: Kernel
    _keyring: Keyring
    _leases: Mapping[str, SiteLease]
    _inventory: Inventory
    _settings: AuthoritySettings
    units: dict[str, SavedUnit] = attrs.field(factory=dict, init=False)
    """What is kept, by key."""
    _busy: dict[str, SavedUnit] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(SavedUnit, due_at=lambda kept: kept.until if kept.is_saved else None, on_due=self._due)

    # -- suspending --------------------------------------------------------------------------------------------

    def count(self, lease: SiteLease) -> int:
        """How many units of a lease are saved, if it is suspended; else -1."""
        if not lease.saves:
            return -1
        return sum(kept.lease == lease.id and kept.is_saved for kept in self.units.values())

    def save(self, lease: SiteLease, unit: SiteUnit) -> None:
        """A lease that is suspended is about to give up a unit: what is up is saved as it is torn down."""
        if unit.lease != lease.id or not unit.is_in_use:
            return
        claimed = self._busy.get(unit.id)
        if claimed is not None:
            claimed.lease = lease.id  # it isn't up yet: what it was to go on from is kept for the next
            self._kernel.touch(claimed)
        elif unit.is_set_up:
            self._say(lease, unit, Reason(Code.NOT_UP))
        elif sum(kept.holder == lease.holder for kept in self.units.values()) >= self._settings.saved_max:
            self._say(lease, unit, Reason(Code.SAVED_MAX, of=self._settings.saved_max))
        else:
            key = saved_key(lease.id, unit.id)
            until = self._kernel.now + self._settings.keep_saved
            kept = SavedUnit(key, lease.id, unit.id, lease.holder, lease.type, until, holder_key=lease.key)
            self.units[key] = self._busy[unit.id] = kept
            self._kernel.note(lease.id, "save", "", "", said(f"{unit.id} as {key}"))
            self._kernel.touch(kept)

    def _say(self, lease: SiteLease, unit: SiteUnit, why: Reason) -> None:
        lease.notice = all_of(lease.notice, Reason(Code.NOT_SAVED, unit.id).because(why))
        if lease.is_torn_down:
            lease.reason = lease.notice
        self._kernel.touch(lease)

    # -- what drivers are told ---------------------------------------------------------------------------------

    def begin(self, unit: SiteUnit, op: str, number: int) -> None:
        """Have ``op`` done to a unit, under a number of its own; or again, under the number that it has."""
        lease = self._leases.get(unit.lease)
        if op == "setup" and not number and lease is not None and lease.properties.get(RESUMES):
            self._claim(lease, unit)
        unit.action = number or self._kernel.next("action")
        # What a guest has said keeps nothing from being torn down: no driver hears of it then.
        configuration = EMPTY if lease is None or op == "teardown" else lease.properties
        self._kernel.actions.append(
            Action(unit.action, op, unit.id, unit.type, unit.lease, self.context(unit, lease), configuration)
        )
        self._kernel.touch(unit)

    def context(self, unit: SiteUnit, lease: SiteLease | None) -> Properties:
        """What the site says of a unit: nothing of it is a guest's, which has a place of its own. With the key under
        which a unit is saved, or from which it goes on: that is the site's to give, and no guest names one.
        """
        properties = self._inventory.properties_of(unit.host or unit.id, unit.type)
        context = {**properties, **unit.given}
        context.pop(SAVE, None)
        context.pop(RESUME, None)
        context["unit.name"], context["site.name"] = unit.id, self._keyring.name
        if unit.host:
            context |= {UNIT_HOST: unit.host, **as_properties(unit.needs, NEEDS)}
            if unit.cap >= 0:
                context[UNIT_CAP] = str(unit.cap)
            if unit.leaves:
                context[UNIT_LEAVES] = unit.leaves
        if lease is not None:
            context["lease.id"] = lease.id
            context["lease.holder"] = lease.holder
            context["lease.end"] = str(lease.term.end)
            context["slice.name"] = lease.slice
        kept = self._busy.get(unit.id)
        if kept is not None and kept.is_being_saved and unit.is_torn_down:
            context[SAVE] = kept.id
        elif kept is not None and kept.is_claimed and unit.is_set_up:
            context[RESUME] = kept.id
        return context

    def _claim(self, lease: SiteLease, unit: SiteUnit) -> None:
        """The unit goes on from its own state, if that is there, or from another's of the suspended lease."""
        wanted = (lease.properties[RESUMES], lease.holder, lease.type)
        keys = (b"", *self._keyring.keys_of(lease.holder))  # one that has only the name of a former peer is another
        able = [
            one
            for one in self.units.values()
            if one.is_saved and (one.lease, one.holder, one.type) == wanted and one.holder_key in keys
        ]
        chosen = min(able, key=lambda one: (one.unit != unit.id, one.unit), default=None)
        if chosen is not None:
            chosen.by = unit.id
            self._busy[unit.id] = chosen
            self._kernel.fire(chosen, "claim", said(f"{unit.id} of {lease.id}"))

    # -- what becomes of it ------------------------------------------------------------------------------------

    def done(self, done: ActionDone) -> bool:
        """An action has ended: whether it threw away what was kept."""
        kept = self.units.get(done.unit)
        if kept is None or kept.action != done.number:
            return False
        self._dropped(kept, done)
        return True

    def unit_moved(self, unit: SiteUnit, event: str, before: str, why: Reason | None, done: ActionDone | None) -> None:
        """Something happens to a unit: what it was to be saved as, or to go on from, goes on with it."""
        if event and before == au.SETUP:
            self._after_setup(unit, event, done)
        elif event and before == au.TEARDOWN and unit.id in self._busy:
            self._after_teardown(unit, self._busy.pop(unit.id), done)

    def _after_setup(self, unit: SiteUnit, event: str, done: ActionDone | None) -> None:
        kept, lease = self._busy.get(unit.id), self._leases.get(unit.lease)
        if event == "up":
            text = unit.given.get(NOT_RESUMED, "")
            if text:
                unit.given = {name: value for name, value in unit.given.items() if name != NOT_RESUMED}
            why = said(text) if text else None
            if kept is not None:
                del self._busy[unit.id]
                self._end(kept, "used", why)
            elif lease is not None and lease.properties.get(RESUMES):
                why = Reason(Code.NOTHING_SAVED, lease.properties[RESUMES])
            unit.reason = why and Reason(Code.SET_UP_ANEW).because(why)
        elif event == "failed" and kept is not None:
            del self._busy[unit.id]
            kept.tries += done is None or done.blame == UNIT
            if kept.tries >= TRIES_MAX:
                self._drop(kept, "spoilt")
            else:
                self._kernel.fire(kept, "release", unit.reason)

    def _after_teardown(self, unit: SiteUnit, kept: SavedUnit, done: ActionDone | None) -> None:
        if kept.is_claimed:
            self._kernel.fire(kept, "release", Reason(Code.SETUP_STOPPED))
            return
        assert done is not None, "a teardown ends by an action's end"
        text = done.properties.get(NOT_SAVED, "") if done.ok else done.reason
        if done.ok and not text:
            self._kernel.fire(kept, "saved")
            return
        why = said(text) if done.ok else Reason(Code.TEARDOWN_FAILED, detail=text)
        lease = self._leases.get(kept.lease)
        if lease is not None:
            self._say(lease, unit, why)
        self._end(kept, "failed", why)

    def _end(self, kept: SavedUnit, event: str, why: Reason | None) -> None:
        """Nothing is left of it."""
        self._kernel.fire(kept, event, why)
        del self.units[kept.id]
        self._kernel.erase(kept)

    # -- throwing away -----------------------------------------------------------------------------------------

    def _drop(self, kept: SavedUnit, event: str) -> None:
        self._kernel.fire(kept, event)
        kept.action = self._kernel.next("action")
        self._send_drop(kept)

    def _send_drop(self, kept: SavedUnit) -> None:
        context = {**self._inventory.properties(kept.type), "unit.name": kept.unit, "site.name": self._keyring.name}
        self._kernel.actions.append(Action(kept.action, DROP, kept.id, kept.type, "", context))

    def _dropped(self, kept: SavedUnit, done: ActionDone) -> None:
        if done.ok:
            self._end(kept, "dropped", None)
            return
        self._kernel.complain(f"what is kept of unit {kept.unit} of {kept.lease} can't be thrown away: {done.reason}")
        kept.action, kept.until, kept.tries = 0, self._kernel.now + DROP_AGAIN, TRIES_MAX
        kept.lease = ""  # nobody goes on from what may be half gone
        self._kernel.fire(kept, "failed", said(done.reason))

    # -- time and state ----------------------------------------------------------------------------------------

    def _due(self, kept: SavedUnit) -> None:
        if kept.is_saved:
            self._drop(kept, "expire")

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept, before units: it says what is done again with them."""
        self.units, self._busy = {}, {}
        for kept in map(SavedUnit.from_row, rows):
            self.units[kept.id] = kept
            self._kernel.schedule(kept, self._kernel.due_at(kept))
            if kept.is_busy:
                self._busy[kept.by or kept.unit] = kept
            if kept.is_dropped:
                self._send_drop(kept)

    @query("saved")
    def _query_saved(self) -> list[SavedUnitDetails]:
        return [SavedUnitDetails.of(one, key=one.id) for one in self.units.values()]
