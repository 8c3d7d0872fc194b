"""Settings of the three actors, with their defaults. All times are milliseconds on the actor's (virtual) clock."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from leasekit.core.properties import EMPTY, Properties
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Duration


@attrs.frozen(kw_only=True)
class Peer:
    """Another actor: its name, its public key (32 bytes), its role (``guest``, ``broker`` or ``authority``)."""

    name: str
    key: bytes
    role: str


@attrs.frozen(kw_only=True)
class ActorSettings:
    """What every role has."""

    clock_skew: Duration = 2 * SECOND
    """How far a peer's clock may be off before what it says of time is not obeyed."""
    retry_first: Duration = 1 * SECOND
    """When an unanswered message is sent again for the first time; the wait doubles from there."""
    retry_max: Duration = 60 * SECOND
    """The longest wait between two sendings of an unanswered message."""
    retention: Duration = 10 * MINUTE
    """How long a closed lease is kept in memory to answer repeats; its row stays in the store."""
    keep_closed: bool = True
    """Whether closed leases stay in the store as history."""


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
    """How many requests may wait for the mapper at once; more are refused."""
    priorities: Mapping[str, int] = attrs.Factory(dict)
    """Priority class of each guest by name (higher goes first; 0 for those not named)."""


@attrs.frozen(kw_only=True)
class UnitGroup:
    """Units of one resource type at a site: ``names`` of the units, and the resource properties that they share."""

    type: str
    names: tuple[str, ...]
    properties: Properties = EMPTY


@attrs.frozen(kw_only=True)
class DelegationSpec:
    """What a site gives to a broker: ``units`` of ``type`` for ``length`` from the first start on."""

    broker: str
    type: str
    units: int
    length: Duration = 3650 * DAY
    degree: int = 1000


@attrs.frozen(kw_only=True)
class AuthoritySettings(ActorSettings):
    """What a site authority has on top."""

    inventory: tuple[UnitGroup, ...] = ()
    delegations: tuple[DelegationSpec, ...] = ()
    failures_max: int = 3
    """How often in a row a unit may fail before it goes out of service."""
    redeem_ahead_max: Duration = 400 * DAY
    """How far ahead a ticket's term may start."""
