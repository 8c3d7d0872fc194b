"""How the trio shell runs an actor, and keeps its connections, as ``[actor.NAME.shell]`` and ``.transport`` say.

Durations are milliseconds of real time, sizes bytes.
"""

from __future__ import annotations

import attrs

from leasekit.core.protocol.channel import FRAME_MAX, HANDSHAKE_FRAME_MAX
from leasekit.core.settings import DurationSetting
from leasekit.core.time import MINUTE, SECOND


@attrs.frozen(kw_only=True)
class ShellSettings:
    """How one actor is run. An emulation has no use for it."""

    inbox_max: int = attrs.field(default=20_000, validator=attrs.validators.ge(1))
    """How many inputs may wait; readers of sockets wait for room."""
    inbox_bytes: int = attrs.field(default=64 * 2**20, validator=attrs.validators.ge(1))
    """How many bytes of messages may wait; readers of sockets wait for room."""
    batch_max: int = attrs.field(default=2_000, validator=attrs.validators.ge(1))
    """How many inputs are stepped before what follows from them is committed."""
    tick: DurationSetting = 1 * SECOND
    """How late a timer may go off at most when the system's clock is set, or the machine has slept; it is exact
    otherwise."""
    mapper_timeout: DurationSetting = 30 * SECOND
    """How long a mapper's turn in a thread may take."""
    runaways_max: int = attrs.field(default=3, validator=attrs.validators.ge(1))
    """How many turns that took too long may still be running before no new one is begun."""
    store_retry_first: DurationSetting = 100
    """The wait before a failed commit is tried again; it doubles from there."""
    store_retry_longest: DurationSetting = 5 * SECOND
    """The longest such wait."""
    store_retry_max: DurationSetting = 1 * MINUTE
    """How long a commit is tried before the actor is stopped."""
    grace: DurationSetting = 10 * SECOND
    """How long running driver actions may go on at a stop before they are cancelled."""


@attrs.frozen(slots=True, kw_only=True)
class TransportSettings:
    """Limits are for each peer by itself, unless they say otherwise. An emulation has no use for them."""

    heartbeat: DurationSetting = attrs.field(default=10 * SECOND, validator=attrs.validators.ge(1))
    """How long nothing is sent before a heartbeat is; much less than the peers' ``silence``."""
    silence: DurationSetting = attrs.field(default=30 * SECOND, validator=attrs.validators.ge(1))
    """A peer that completes no envelope, or takes none, for so long is hung up on."""
    handshake: DurationSetting = attrs.field(default=5 * SECOND, validator=attrs.validators.ge(1))
    """By when a new connection must have proven whose it is, TLS included."""
    backoff_min: DurationSetting = attrs.field(default=SECOND // 10, validator=attrs.validators.ge(1))
    """The first wait before a peer that can't be reached is dialled again; it doubles from there."""
    backoff_max: DurationSetting = attrs.field(default=30 * SECOND, validator=attrs.validators.ge(1))
    """The longest such wait."""
    unauthenticated_max: int = attrs.field(default=512, validator=attrs.validators.ge(2))
    """The most connections in all that have not proven whose they are, half of them answered already; beyond it those
    that get nowhere go first."""
    connections_per_minute: int = attrs.field(default=60, validator=attrs.validators.ge(1))
    """How often a peer may connect anew; so many also at once."""
    messages_per_second: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    """How many messages a peer may send on average; its socket is not read while it is ahead of that."""
    messages_burst: int = attrs.field(default=20_000, validator=attrs.validators.ge(1))
    """How many messages a peer may send at once after a pause."""
    bytes_per_second: int = attrs.field(default=16 * 2**20, validator=attrs.validators.ge(1))
    """How many bytes a peer may send on average."""
    bytes_burst: int = attrs.field(default=32 * 2**20, validator=attrs.validators.ge(1))
    """How many bytes a peer may send at once after a pause."""
    flood_after: DurationSetting = attrs.field(default=10 * SECOND, validator=attrs.validators.ge(0))
    """A peer that has been held back for so long without a break is reported."""
    queue_max: int = attrs.field(default=8 * 2**20, validator=attrs.validators.ge(1))
    """The most bytes that wait to be sent to a peer; further messages are dropped, and due again later."""
    frame_max: int = attrs.field(
        default=FRAME_MAX,
        validator=[attrs.validators.ge(HANDSHAKE_FRAME_MAX), attrs.validators.le(FRAME_MAX)],
    )
    """The longest frame that is taken from a peer, or sent to it."""
