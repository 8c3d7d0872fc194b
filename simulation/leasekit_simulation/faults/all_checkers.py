"""All checkers of a run, wired to each other: the same for simulated worlds and for what real daemons did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from leasekit.core.mappers import EMPTY_CLASSES
from leasekit.core.properties import Properties
from leasekit.core.protocol.messages import LeaseUpdate, TicketUpdate
from leasekit.core.time import INSTANT_MAX, Duration, Instant
from leasekit_simulation.faults.checkers import Listening, MapperChecker, MemoryChecker, StateChecker
from leasekit_simulation.faults.claim_book import ClaimChecker, GrantChecker, HonourChecker
from leasekit_simulation.faults.end_book import CloseChecker, EndChecker
from leasekit_simulation.faults.host_book import HostChecker
from leasekit_simulation.faults.message_book import GuestChecker, MessageChecker, OrderChecker
from leasekit_simulation.faults.notice_book import NoticeChecker
from leasekit_simulation.faults.odd_words import WordChecker
from leasekit_simulation.faults.plan_book import PlanChecker
from leasekit_simulation.faults.reason_book import ReasonChecker
from leasekit_simulation.faults.refusals import BrokerRefusals, SiteRefusals
from leasekit_simulation.faults.unit_book import BlameChecker, KeptChecker, PowerChecker, UnitChecker

AGAIN: Final = "again"
WAITED: Final = "waited"


class Checkers:
    """All checkers of a run, and what they are told of an operator's hand."""

    def __init__(
        self,
        role: Callable[[str], str],
        clock: Callable[[str], Instant],
        keys: Callable[[str], Sequence[bytes]],
        *,
        now: Callable[[], Instant],
        comes_late: Callable[[str, str], str],
        sites: Mapping[str, Mapping[str, int]],
        guests: frozenset[str],
        fcfs: frozenset[str],
        first_fit: frozenset[str],
        retention: Duration,
        leave_time: Duration = 0,
        defer_max: Duration = INSTANT_MAX,
        rogue: bytes = b"",
        is_rogue: bool = False,
        has_liars: bool = False,
        hostile_tag: str = "-",
        wilful: frozenset[str] = frozenset(),
        planning: frozenset[str] = frozenset(),
        class_of: Callable[[str, str], bytes] = lambda site, unit: b"",
        attributes: Mapping[bytes, Properties] = EMPTY_CLASSES,
    ) -> None:
        """``role``, ``clock`` and ``keys``, all that it has had, of an actor by its name; ``now`` is everybody's time.

        ``comes_late(sender, lease)`` says of an update that is sent long after it was decided: :data:`AGAIN`, it was
        lost with the actor and is made again, so that what was free then is no news any more; :data:`WAITED`, it waited
        for the disk while the actor's drivers went on. Else ''. ``sites`` have so many units of each type; ``fcfs`` are
        brokers, ``first_fit`` sites that refuse nobody but for want of units. ``rogue`` is the key of a broker that
        gives away more than it has, if it ``is_rogue``; ``has_liars``: others may do worse;
        ``hostile_tag`` begins the ids of a hostile guest's leases;
        ``class_of`` a site's unit is its class, whose units have ``attributes``;
        the mappers of ``wilful`` actors do wrong on purpose, ``planning`` sites do by their plans; brokers put a
        request off by up to ``defer_max``.
        """
        self._sites = tuple(sites)
        self.states = StateChecker(role, rogue=is_rogue or has_liars)
        self.memory = MemoryChecker()
        self.units = UnitChecker(tuple(sites), clock)
        self.ends = EndChecker(self.units, tuple(sites), clock)
        self.closing = CloseChecker(tuple(sites))
        self.kept = KeptChecker(tuple(sites))
        self.blames = BlameChecker(tuple(sites))
        self.power = PowerChecker(tuple(sites))
        self.claims = ClaimChecker()
        self.grants = GrantChecker(self.claims, tuple(sites), clock, keys, defer_max)
        self.honour = HonourChecker(self.claims, keys, rogue)
        self.messages = MessageChecker(self._announced, clock, retention, hostile_tag)
        self.guests = GuestChecker(guests, clock, leave_time)
        self.reasons = ReasonChecker(self.claims, tuple(sites), guests, clock, rogue=is_rogue)
        self.orders = OrderChecker(guests)
        self.brokers = BrokerRefusals(self.claims, fcfs, tuple(sites), clock, keys, attributes)
        self.sites = SiteRefusals(self.units, sites, first_fit, clock, class_of)
        self.words = WordChecker(tuple(sites), guests)
        self.hosts = HostChecker()
        self.notices = NoticeChecker(clock)
        self.plans = PlanChecker(planning, clock, class_of)
        self.all: list[Listening] = [
            self.states, self.memory, self.units, self.claims, self.grants, self.honour, self.messages, self.guests,
            self.orders, self.brokers, self.sites, self.reasons, self.ends, self.kept, self.power, self.blames,
            self.closing, self.words, self.notices, self.hosts, self.plans, MapperChecker(wilful),
        ]  # fmt: skip
        self.closes: dict[str, str] = {}
        self._now, self._comes_late = now, comes_late

    def _announced(self, sender: str, receiver: str, message: TicketUpdate | LeaseUpdate) -> None:
        late = self._comes_late(sender, message.lease)
        if isinstance(message, TicketUpdate):
            self.claims.announced(self._now(), receiver, message)
            if not late:
                self.claims.check_withheld(message)
                self.brokers.announced(sender, message)
            return
        self.kept.announced(sender, receiver, message)
        self.reasons.announced(sender, receiver, message)
        if message.state == "terminating":
            self.units.terminating(sender, message.lease)
        if late != WAITED:
            self.units.announced(sender, message)
        if late:
            self.sites.unsure(sender, message.lease)
        else:
            self.sites.announced(self._now(), sender, message)

    def told(self, guest: str, lease: str) -> None:
        """A request was acknowledged."""
        self.memory.told(guest, lease)
        self.guests.watched.add(lease)

    def follows(self, lease: str, *, redeem: str, join: str, proceeds: bool) -> None:
        """The lease was requested after others: that after which it is redeemed, and that after which it joins."""
        self.orders.follows(lease, redeem=redeem, join=join, proceeds=proceeds)

    def holds(self, guest: str, name: str, hold: int) -> None:
        """A slice was acknowledged whose leases are redeemed when ``hold`` of them have tickets."""
        self.orders.holds(guest, name, hold)

    def may_close(self, lease: str) -> None:
        """Somebody wants the lease closed, or it may have to close because of another."""
        self.guests.free_to_close.add(lease)

    def evicted(self, lease: str) -> None:
        """An operator ends the lease early, of a site or a broker."""
        self.may_close(lease)
        for site in self._sites:
            self.units.terminating(site, lease)

    def closed(self, guest: str, lease: str) -> None:
        """A close was acknowledged."""
        self.closes[lease] = guest
        self.closing.closed(guest, lease)

    def disabled(self, site: str, unit: str) -> None:
        """A unit was taken out of service."""
        self.sites.disabled(site, unit)

    def broke(self, site: str, unit: str) -> None:
        """A unit that was up is found to be down."""
        self.units.broke(site, unit)
        self.sites.disabled(site, unit)  # one that fails again and again goes out of service

    def mended(self, site: str, unit: str) -> None:
        """A unit was put into service again."""
        self.sites.mended(site, unit)

    def windowed(self, site: str, window: Mapping[str, Any], ends: Instant = 0) -> None:
        """A maintenance window was acknowledged: its ``window``, ``units``, ``start``, ``end``, and whether leases
        ``close`` for it, at ``ends`` (0: when it begins).
        """
        self.sites.windowed(site, window)
        self.ends.windowed(site, window, ends or window["start"])
        self.plans.windowed(site, window)

    def unwindowed(self, site: str, window: str) -> None:
        """A window is called off, if its site hears that."""
        self.sites.unwindowed(site, window)
        self.plans.unwindowed(site, window)

    def stepped(self, actor: str) -> None:
        """An actor's clock goes wrong by more than is allowed."""
        self.sites.stepped(actor)
        self.grants.stepped.add(actor)
        self.reasons.stepped.add(actor)
