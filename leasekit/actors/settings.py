"""Settings of the three actors, with their defaults. All times are milliseconds on the actor's (virtual) clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import attrs

from leasekit.core.drivers import OnlyUnits
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.requests import NOTICE
from leasekit.core.settings import DurationSetting
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Duration, Instant

REQUEST: Final = "request"
REDEEM: Final = "redeem"
DELEGATE: Final = "delegate"
ENDORSE: Final = "endorse"
ADMINISTER: Final = "administer"
PERMISSIONS: Final = (REQUEST, REDEEM, DELEGATE, ENDORSE, ADMINISTER)
"""What a peer may do here: ask a broker for tickets; redeem and give back at a site; delegate to a broker, and take
back; make other peers known; command this actor as its operator does."""
MAY: Final[Mapping[str, frozenset[str]]] = {
    "guest": frozenset({REQUEST, REDEEM}),
    "broker": frozenset({DELEGATE, ENDORSE}),
    "authority": frozenset({DELEGATE}),
}
"""What a peer may do if nothing else is said, by its role."""
OPEN_REQUESTS_MAX: Final = 10_000
"""How many requests of one peer a server works on at once, if nothing else is said."""


@attrs.frozen(kw_only=True)
class Peer:
    """Another actor: its name, its public key (32 bytes), its role (``guest``, ``broker`` or ``authority``).

    ``may`` holds what it is allowed (:data:`PERMISSIONS`), ``open_requests`` how many of its requests may be
    unanswered at once, ``priority_max`` the highest priority that counts of what they ask for. ``address`` is where it
    is dialled (empty: it dials us), ``origin`` who made it known: empty for the deploy file, ``operator``, or the
    broker that endorsed it.
    """

    name: str
    key: bytes
    role: str
    may: frozenset[str] = attrs.field(default=attrs.Factory(lambda self: MAY[self.role], takes_self=True))
    open_requests: int = OPEN_REQUESTS_MAX
    priority_max: int = 0
    address: str = ""
    origin: str = ""
    former: tuple[tuple[bytes, Instant], ...] = ()
    """Keys that it had before, and until when what they signed, or hold, is honoured."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The key that it has, and those that it had before."""
        return (self.key, *(key for key, _ in self.former))


Surplus = Literal["refuse", "honour"]


@attrs.frozen(kw_only=True)
class ActorSettings:
    """What every role has."""

    clock_skew: Duration = 2 * SECOND
    """How far a peer's clock may be off before it is not obeyed, and by how much this machine's may be set at once
    before an operator must accept it."""
    retry_first: Duration = 1 * SECOND
    """When an unanswered message is sent again for the first time; the wait doubles from there."""
    retry_max: Duration = 60 * SECOND
    """The longest wait between two sendings of an unanswered message; of a request that was accepted, 64 times that."""
    retention: Duration = 10 * MINUTE
    """How long a closed lease is kept in memory to answer repeats; its row stays in the store."""
    keep_closed: bool = True
    """Whether closed leases stay in the store as history."""
    history_kept: Duration = 365 * DAY
    """How long: leases that ended before, their claims and what the log says of them, go a few at a time."""
    history_max: int = 500_000
    """How many leases of one peer stay as history; the oldest go first."""
    kept_bytes: int = 64 * 2**20
    """How many bytes a broker or a site keeps of the leases of each peer, besides those that are history: 4,096 of each
    lease, and what the peer has said of it, as what that takes in memory. Further requests are refused until leases
    are over, and ``retention`` has passed. The default is enough for about 16,000 leases of a few words."""
    introductions_max: int = 100
    """How many guests (at a guest: sites) each broker may have made known here at once; more are refused."""
    introductions_kept: Duration = 30 * DAY
    """How long one that a broker made known is kept without a connection and without a lease. Brokers say again whom
    they grant something to, once a day at most: no less than a few days."""


@attrs.frozen(kw_only=True)
class GuestSettings(ActorSettings):
    """What a service manager has on top."""

    redeem_lead: Duration = 5 * SECOND
    """How long before its term starts a new ticket is redeemed."""
    extend_lead: Duration = 60 * SECOND
    """How long before the old term ends a renewal in hand is redeemed."""
    leave_time: Duration = 0
    """How long units need to leave the guest's application before the term ends."""
    request_timeout: Duration = 60 * SECOND
    """How long an answer to a request that can't be deferred is waited for."""
    defer_max: Duration = 7 * DAY
    """How long an answer to a deferrable request that doesn't say itself is waited for; the broker's should be less."""
    close_timeout: Duration = 1 * HOUR
    """How long after the term's end the site's last word is waited for."""
    default_broker: str = ""
    """The broker to ask when a request names none; empty: the first peer of that role."""
    drives: bool = True
    """Whether anything is done to units that join and leave; if not, they have joined, or left, at once."""


@attrs.frozen(kw_only=True)
class UnitGroup:
    """Units of one resource type at a site: ``names`` of the units, and the resource properties that all of the type
    share. ``own`` are those of this group alone, which tickets don't speak of. ``power``: a driver can switch them on
    and off.
    """

    type: str
    names: tuple[str, ...]
    properties: Properties = EMPTY
    own: Properties = EMPTY
    power: bool = False


@attrs.frozen(kw_only=True)
class DelegationSpec:
    """What a site or a broker gives to a broker: ``units`` of ``type`` (0: all that a site has) for ``length``, as
    soon as it can.

    A broker gives from what it holds of ``site`` (empty: of the first site that has enough). ``degree`` is what the
    holder's children may add up to, in thousandths of ``units``. ``renew`` before its end the next period is offered,
    of ``renew_for`` (0: of ``length`` again), and so on; with 0 it ends with its term.
    """

    broker: str
    type: str
    units: int
    length: Duration = 3650 * DAY
    degree: int = 1000
    site: str = ""
    renew: Duration = 0
    renew_for: Duration = 0
    until: Instant = -1
    """Until when, instead of for ``length`` (-1: for that)."""
    anew: bool = False
    """Whether what is held is to last for ``length`` from now on."""

    @property
    def period(self) -> Duration:
        """For how long it is renewed, milliseconds."""
        return self.renew_for or self.length


@attrs.frozen(kw_only=True)
class PreemptibleLimits:
    """What preemptible leases may want of a broker."""

    max_run: DurationSetting = 0
    """How long one runs at most, extensions included (0: as long as it says itself); a day is common practice."""
    notice_max: DurationSetting = attrs.field(default=DAY, validator=attrs.validators.ge(NOTICE))
    """How long before its end one may want to hear of it at most, or take to be saved; no less than `"30s"`, the notice
    of one that doesn't say. More is refused."""
    min_run_max: DurationSetting = 7 * DAY
    """The longest least run that one may want; more is refused."""


@attrs.frozen(kw_only=True)
class BrokerSettings(ActorSettings):
    """What a broker has on top."""

    request_timeout: Duration = 10 * SECOND
    """How long a request that can't be deferred waits for its mapper (a group: for its members)."""
    group_timeout: Duration = 60 * SECOND
    """How long a request group waits for its members."""
    defer_max: Duration = 7 * DAY
    """How long a deferrable request may wait if it does not say itself."""
    pending_max: int = 100_000
    """How many requests may wait for the mapper at once; more are refused. Half of that is kept for all peers in equal
    shares.
    """
    priorities: Mapping[str, int] = attrs.Factory(dict)
    """Priority class of each guest by name (higher goes first; 0 for those not named)."""
    delegations: tuple[DelegationSpec, ...] = ()
    """What this broker gives to other brokers."""
    endorse: bool = False
    """Make guests and sites known to each other when a ticket is granted, with a signed endorsement."""
    redeem_within: Duration = 1 * HOUR
    """How long after its start a ticket can be redeemed (0: until its end); the units of one that was not are granted
    anew."""
    preemptible: PreemptibleLimits = attrs.Factory(PreemptibleLimits)
    """What preemptible leases may want."""
    booked_hours: int = 48
    """How much a guest may book ahead, where no quota of the mapper says otherwise: so many hours of all units of a
    type, over terms that have not begun (0: as much as there is). What begins within an hour is free of it."""
    hold_for: Duration = 60 * SECOND
    """How long a planned topology is held for the guest that asked for it."""
    holds_max: int = 16
    """How many planned topologies are held for one peer at once."""
    planners: tuple[str, ...] = ()
    """Other brokers that are asked what they have free when a topology is planned, and to hold their parts of it; each
    must permit this one to ``request``."""
    quote_timeout: Duration = 2 * SECOND
    """How long their answers are waited for; who doesn't answer is left out."""
    disclose: int = 1000
    """The share of what is free that other brokers are shown, in thousandths; rounded down to whole units."""


@attrs.frozen(kw_only=True)
class AuthoritySettings(ActorSettings):
    """What a site authority has on top."""

    inventory: tuple[UnitGroup, ...] = ()
    serves: Mapping[str, tuple[OnlyUnits, ...]] = attrs.Factory(dict)
    """Which units alone the drivers of a type can serve, where these say that."""
    delegations: tuple[DelegationSpec, ...] = ()
    failures_max: int = 3
    """How often in a row a unit may fail before it goes out of service."""
    replacements_max: int = 3
    """How many units that fail are replaced for a lease in each of its terms, beside `replacements_share`."""
    replacements_share: int = 100
    """How many more, in thousandths of its units; rounded down to whole units."""
    redeem_ahead_max: Duration = 400 * DAY
    """How far ahead a ticket's term may start."""
    surplus: Surplus = "refuse"
    """What becomes of tickets when an issuer in their chain has given out more than it had. ``refuse``: each claim that
    it signed counts whole, used or not, and those beyond what it had are refused. ``honour``: only what is redeemed
    counts, in order of arrival, until what it had is used up. Units beyond that are others', free or not. Evidence is
    kept either way."""
    refuse_guilty: bool = False
    """Whether later tickets of an issuer that has over-delegated are refused altogether."""
    depth_max: int = 8
    """How many claims a ticket's chain may have, the root included."""
    evidence_max: int = 1000
    """How many pieces of evidence are kept; of one issuer and parent claim one is."""
    keep_saved: Duration = 7 * DAY
    """How long the saved units of a suspended lease are kept for the one that resumes it."""
    saved_max: int = 1000
    """How many saved units are kept for one holder at once; more are torn down unsaved."""
