"""How the trio shell runs an actor, as ``[actor.NAME.shell]`` says. Durations are milliseconds of real time."""

from __future__ import annotations

import attrs

from leasekit.core.settings import DurationSetting
from leasekit.core.time import MINUTE, SECOND


@attrs.frozen(kw_only=True)
class ShellSettings:
    """How one actor is run. An emulation has no use for it."""

    inbox_max: int = attrs.field(default=20_000, validator=attrs.validators.ge(1))
    """How many inputs may wait; readers of sockets wait for room."""
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
