"""The tables of a deploy file, as attrs classes that :func:`leasekit.core.settings.structure` fills and checks key by
key.

What depends on more than one key is checked in :mod:`.resolve`, which makes a :class:`~.deployment.Deployment` of
them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from inspect import get_annotations
from typing import Any, Final, Literal

import attrs

from leasekit.actors.settings import PERMISSIONS, ActorSettings, AuthoritySettings, BrokerSettings, GuestSettings
from leasekit.config.instants import parse_instant
from leasekit.config.shell import ShellSettings
from leasekit.config.traces import SyntheticSettings
from leasekit.config.transport import TransportSettings
from leasekit.core.claims.claim import TYPE_MAX
from leasekit.core.properties import check_plain, check_properties
from leasekit.core.settings import DurationSetting, resolved
from leasekit.core.time import DAY, HOUR, INSTANT_MAX, MINUTE, SECOND, Instant
from leasekit.drivers.null import NullSettings
from leasekit.drivers.registry import TIMEOUT

Role = Literal["guest", "broker", "authority"]
LogFormat = Literal["human", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NAME_ALLOWED: Final = "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
UNITS_MAX: Final = 1_000_000
"""The most units in one inventory table."""

HORIZON_MAX: Final = 36_525 * DAY
"""A hundred years: the longest emulation."""


def _type(_: object, __: object, text: str) -> None:
    if not 0 < len(text) <= TYPE_MAX or not text.isprintable():
        raise ValueError(f"expected 1 to {TYPE_MAX} printable characters")


def _properties(_: object, __: object, properties: Mapping[str, str]) -> None:
    check_plain(check_properties(properties, "properties"), "properties")


def _instant(value: Any) -> Instant:
    """An instant as a file may have it. Raises ``ValueError``."""
    allowed = "expected an instant not before 1970, such as 1998-06-11T22:00Z, or whole milliseconds"
    if isinstance(value, bool) or not isinstance(value, str | int | datetime):
        raise ValueError(allowed)
    try:
        instant = parse_instant(value)
    except ValueError:
        raise ValueError(allowed) from None
    if not 0 <= instant <= INSTANT_MAX:
        raise ValueError(allowed)
    return instant


def _share(_: object, __: object, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError("expected a share from 0 to 1")


def _amount(_: object, __: object, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError("expected a number of at least 0")


def _permissions(_: object, __: object, value: frozenset[str] | None) -> None:
    unknown = [word for word in sorted(value or ()) if word not in PERMISSIONS]
    if unknown:
        raise ValueError(f"expected some of {', '.join(PERMISSIONS)}, found {unknown[0]!r}")


def _at_least(least: int) -> Any:
    return attrs.validators.ge(least)


@attrs.frozen(kw_only=True)
class DeploymentTable:
    """``[deployment]``."""

    name: str = ""
    state: str = ""
    create_keys: bool = False
    signatures: bool = True


# -- actors ------------------------------------------------------------------------------------------------------


def _settings_table(settings: type[ActorSettings], *left_out: str) -> type[Any]:
    """The settings class of a role as a table: durations may be text, and what has tables of its own is left out."""
    # As written in the module: once resolved, a Duration is an int like any other.
    annotations = {key: kind for cls in reversed(settings.__mro__) for key, kind in get_annotations(cls).items()}
    fields = {
        field.name: attrs.field(
            default=field.default,
            type=DurationSetting if annotations[field.name] in ("Duration", "DurationSetting") else field.type,
        )
        for field in attrs.fields(attrs.resolve_types(settings, include_extras=True))
        if field.name not in left_out
    }
    return attrs.make_class(f"{settings.__name__}Table", fields, frozen=True, kw_only=True)


SETTINGS: Final[Mapping[str, type[Any]]] = {
    "guest": _settings_table(GuestSettings),
    "broker": _settings_table(BrokerSettings, "priorities", "delegations"),
    "authority": _settings_table(AuthoritySettings, "inventory", "delegations"),
}
"""``[actor.NAME.settings]`` by role."""


@attrs.frozen(kw_only=True)
class KeyTable:
    """``key`` of an actor where more is to be said than the path of its file: ``after`` are the files of the keys that
    it had before, the latest first, each with its succession beside it.
    """

    file: str = ""
    after: tuple[str, ...] = ()
    passphrase_file: str = ""


@attrs.frozen(kw_only=True)
class ListenTable:
    """One of ``listen`` where more is to be said than the address: ``tls = false`` switches TLS off on TCP."""

    address: str
    tls: bool | None = None


@attrs.frozen(kw_only=True)
class Permission:
    """``[actor.NAME.permissions.PEER]``: what a peer may do here (None: what its role may), and how many of its
    requests may be unanswered at once (None: as many as anybody's).
    """

    may: frozenset[str] | None = attrs.field(default=None, validator=_permissions)
    open_requests: int | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least(1)))


@attrs.frozen(kw_only=True)
class ActorTable:
    """``[actor.NAME]``: what all roles have. Who knows ``settings``, ``mapper`` and ``driver`` looks at them."""

    role: Role
    key: str | KeyTable = ""
    listen: tuple[str | ListenTable, ...] = ()
    control: str = ""
    store: str = ""
    log: LogFormat = "human"
    log_level: LogLevel = "info"
    settings: Mapping[str, Any] = attrs.Factory(dict)
    mapper: Mapping[str, Any] = attrs.Factory(dict)
    shell: ShellSettings = attrs.Factory(ShellSettings)
    transport: TransportSettings = attrs.Factory(TransportSettings)
    permissions: Mapping[str, Permission] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class InventoryTable:
    """``[[actor.SITE.inventory]]``: units of one type, counted or named.

    All units of a type have the same ``properties``, which brokers and tickets speak of; ``unit_properties`` are those
    of these units alone: the site's mapper may choose by them, and drivers are told.
    """

    type: str = attrs.field(validator=_type)
    units: int | None = attrs.field(
        default=None,
        validator=attrs.validators.optional([_at_least(0), attrs.validators.le(UNITS_MAX)]),
    )
    prefix: str = ""
    names: tuple[str, ...] = ()
    properties: Mapping[str, str] = attrs.field(factory=dict, validator=_properties)
    unit_properties: Mapping[str, str] = attrs.field(factory=dict, validator=_properties)
    driver: str = ""


@attrs.frozen(kw_only=True)
class DelegationTable:
    """``[[actor.NAME.delegation]]``: what a site gives to a broker, without ``units`` all of the type that it has; or a
    broker to another broker, of what it has of ``site`` (not said: of the first that has enough).

    ``degree`` 1.5 lets the taker promise half as much again. With ``renew`` the next stretch of time, as long as
    ``renew_for`` (not said: ``length``) is offered so long before the end of each.
    """

    broker: str
    type: str
    units: int | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least(1)))
    length: DurationSetting = attrs.field(default=3650 * DAY, validator=_at_least(1))
    degree: float = attrs.field(default=1.0, validator=[attrs.validators.ge(1.0), attrs.validators.le(100.0)])
    site: str = ""
    renew: DurationSetting | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least(1)))
    renew_for: DurationSetting | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least(1)))


@attrs.frozen(kw_only=True)
class DriverSpec:
    """``[actor.NAME.driver.DRIVER]``: a driver and the limits of its actions. ``settings`` are the driver's own, which
    stand in the same table.

    ``timeout`` is of one try of an action (not said: what the driver takes for usual, 10 minutes with most).
    A teardown that may yet succeed is tried for ``teardown_for`` at least, however often that is: what it leaves
    behind is somebody's unit that goes on after its lease.

    ``probe_every`` says how often units that are up are looked at (0: never): one that is down is replaced.

    ``powers`` are types whose units it switches on and off for the site's mapper, whoever sets them up. ``emulated``
    are the settings of a null driver: how long its actions take, and how often they fail, in virtual time. ``save``:
    the units of its types are saved when a lease is suspended, and kept for the one that resumes it.
    """

    kind: str
    types: tuple[str, ...] = ()
    powers: tuple[str, ...] = ()
    timeout: DurationSetting = attrs.field(default=TIMEOUT, validator=_at_least(1))
    retries: int = attrs.field(default=3, validator=_at_least(0))
    teardown_for: DurationSetting = attrs.field(default=1 * HOUR, validator=_at_least(0))
    concurrency: int = attrs.field(default=16, validator=_at_least(1))
    probe_every: DurationSetting = attrs.field(default=0, validator=_at_least(0))
    emulated: NullSettings = attrs.Factory(NullSettings)
    save: bool = False
    name: str = resolved("driver")
    settings: Mapping[str, Any] = resolved(attrs.Factory(dict))
    where: str = resolved("")
    """What errors call the table."""


@attrs.frozen(kw_only=True)
class AuthorityTable(ActorTable):
    """An actor whose role is ``authority``."""

    inventory: tuple[InventoryTable, ...] = ()
    delegation: tuple[DelegationTable, ...] = ()
    driver: Mapping[str, Mapping[str, Any]] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class BrokerTable(ActorTable):
    """An actor whose role is ``broker``."""

    priorities: Mapping[str, int] = attrs.Factory(dict)
    delegation: tuple[DelegationTable, ...] = ()


@attrs.frozen(kw_only=True)
class GuestTable(ActorTable):
    """An actor whose role is ``guest``."""

    driver: Mapping[str, Mapping[str, Any]] = attrs.Factory(dict)


ACTORS: Final[Mapping[str, type[ActorTable]]] = {
    "authority": AuthorityTable,
    "broker": BrokerTable,
    "guest": GuestTable,
}


@attrs.frozen(kw_only=True)
class PeerSpec:
    """``[peer.NAME]``: an actor of another file. ``key`` is 64 hex digits or the path of a .pub file. Without an
    ``address`` it dials us; ``tls = false`` is for a TCP address where TLS is not spoken, and stands at the address's
    end then.
    """

    role: Role
    key: str
    address: str = ""
    tls: bool | None = None
    name: str = resolved("")


# -- load signals ------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SyntheticTable:
    """``signal.synthetic``: the shape of generated load, as :class:`~leasekit.config.traces.SyntheticSettings` has
    it.
    """

    daily: float = attrs.field(default=0.6, validator=_share)
    weekly: float = attrs.field(default=0.3, validator=_share)
    noise: float = attrs.field(default=0.1, validator=_amount)
    bursts_per_day: float = attrs.field(default=1.0, validator=_amount)
    burst_height: float = attrs.field(default=2.0, validator=_amount)
    burst_length: DurationSetting = attrs.field(default=2 * HOUR, validator=_at_least(1))

    def shape(self) -> SyntheticSettings:
        """The same for the generator."""
        return SyntheticSettings(**attrs.asdict(self))


@attrs.frozen(kw_only=True)
class SignalTable:
    """``signal`` of a guest's mapper: a trace (``file``) or generated load (``synthetic``)."""

    file: str = ""
    synthetic: SyntheticTable | None = None
    column: str | int | None = None
    time_column: str | int = 0
    time_unit: Literal["auto", "s", "ms", "iso"] = "auto"
    gaps: Literal["hold", "zero"] = "hold"
    start: Any = attrs.field(default=None, converter=attrs.converters.optional(_instant))
    origin: Any = attrs.field(default=None, converter=attrs.converters.optional(_instant))
    horizon: DurationSetting | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least(1)))
    interval: DurationSetting = attrs.field(default=5 * MINUTE, validator=_at_least(1))
    peak: float | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.gt(0)))
    whole_units: bool = True
    seed: int | None = None


# -- emulation ---------------------------------------------------------------------------------------------------

PlotKind = Literal["demand_holdings", "guests", "site_usage", "rmse", "alpha", "fidelity"]


@attrs.frozen(kw_only=True)
class RunTable:
    """``[[emulation.run]]``: the file with the keys of ``set`` replaced; with ``each``, once for each of its values.

    ``set`` and ``each`` map dotted keys to values and to lists of values; keys with spaces between them get the same.
    """

    name: str = ""
    series: str = ""
    set: Mapping[str, Any] = attrs.Factory(dict)
    each: Mapping[str, tuple[Any, ...]] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class PlotTable:
    """``[[emulation.plot]]``: one picture. ``x`` is the dotted key whose values the horizontal axis shows."""

    kind: PlotKind
    title: str = ""
    x: str = ""
    x_label: str = ""
    x_unit: DurationSetting | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least(1)))
    guests: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    file: str = ""


@attrs.frozen(kw_only=True)
class EmulationTable:
    """``[emulation]``."""

    horizon: DurationSetting = attrs.field(
        validator=attrs.validators.and_(_at_least(1), attrs.validators.le(HORIZON_MAX))
    )
    start: Any = attrs.field(default=0, converter=_instant)
    seed: int = 0
    tick: DurationSetting = attrs.field(default=SECOND, validator=_at_least(1))
    ticks: Literal["due", "every"] = "due"
    message_latency: DurationSetting = 0
    warmup: DurationSetting = 0
    sample: DurationSetting = attrs.field(default=5 * MINUTE, validator=_at_least(1))
    units: str = ""
    turn_limit: DurationSetting = attrs.field(default=MINUTE, validator=_at_least(SECOND))
    mapper_errors: Literal["fail", "allow"] = "fail"
    repair: DurationSetting | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least(1)))
    run: tuple[RunTable, ...] = ()
    plot: tuple[PlotTable, ...] = ()
