"""The tables of a deploy file, as attrs classes that :func:`leasekit.core.settings.structure` fills and checks key by
key.

What depends on more than one key is checked in :mod:`.load`, which makes a :class:`~.deployment.Deployment` of
them.

How the trio shell runs an actor, and keeps its connections, as ``[actor.NAME.shell]`` and ``.transport`` say.

Durations are milliseconds of real time, sizes bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from leasekit.actors.settings import PERMISSIONS, ActorSettings, AuthoritySettings, BrokerSettings, GuestSettings
from leasekit.core.claims.claim import TYPE_MAX
from leasekit.core.properties import check_plain, check_properties, host_attributes
from leasekit.core.protocol.channel import FRAME_MAX, HANDSHAKE_FRAME_MAX
from leasekit.core.settings import DurationSetting, expecting, resolved, written_types
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND
from leasekit.drivers.null import NullSettings
from leasekit.drivers.registry import TIMEOUT


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


Role = Literal["guest", "broker", "authority"]
AnyRole = Literal["guest", "broker", "authority", "gateway"]
LogFormat = Literal["human", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NAME_ALLOWED: Final = "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
UNITS_MAX: Final = 1_000_000
"""The most units in one inventory table."""


_type: Final = expecting(
    f"1 to {TYPE_MAX} printable characters", lambda text: 0 < len(text) <= TYPE_MAX and text.isprintable()
)


def _properties(_: object, __: object, properties: Mapping[str, str]) -> None:
    check_plain(check_properties(properties, "properties"), "properties")


def _permissions(_: object, __: object, value: frozenset[str] | None) -> None:
    unknown = [word for word in sorted(value or ()) if word not in PERMISSIONS]
    if unknown:
        raise ValueError(f"expected some of {', '.join(PERMISSIONS)}, found {unknown[0]!r}")


_HOST_AND_PORT: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


def check_metrics(_: object, __: object, value: str) -> None:
    """Where metrics are served. Raises ``ValueError``."""
    match = _HOST_AND_PORT.fullmatch(value)
    if value and (match is None or not 0 < int(match[1]) <= 65_535):
        raise ValueError("expected HOST:PORT (an IPv6 host in brackets), or nothing")


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
    written = written_types(settings)
    fields = {
        field.name: attrs.field(
            default=field.default,
            type=DurationSetting if written[field.name] in ("Duration", "DurationSetting") else field.type,
        )
        for field in attrs.fields(attrs.resolve_types(settings, include_extras=True))
        if field.name not in left_out
    }
    return attrs.make_class(f"{settings.__name__}Table", fields, frozen=True, kw_only=True)


SETTINGS: Final[Mapping[str, type[Any]]] = {
    "guest": _settings_table(GuestSettings),
    "broker": _settings_table(BrokerSettings, "priorities", "delegations"),
    "authority": _settings_table(AuthoritySettings, "inventory", "delegations", "serves"),
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
    """``[actor.NAME.permissions.PEER]``: what a peer may do here (None: what its role may), how many of its requests
    may be unanswered at once (None: as many as anybody's), and the highest priority that counts of what they ask for.
    """

    may: frozenset[str] | None = attrs.field(default=None, validator=_permissions)
    open_requests: int | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least(1)))
    priority_max: int = 0


@attrs.frozen(kw_only=True)
class ActorTable:
    """``[actor.NAME]``: what all actors have. Who knows ``settings``, ``mapper`` and ``driver`` looks at them."""

    role: AnyRole
    key: str | KeyTable = ""
    listen: tuple[str | ListenTable, ...] = ()
    control: str = ""
    store: str = ""
    log: LogFormat = "human"
    log_level: LogLevel = "info"
    metrics: str = attrs.field(default="", validator=check_metrics)
    settings: Mapping[str, Any] = attrs.Factory(dict)
    mapper: Mapping[str, Any] = attrs.Factory(dict)
    shell: ShellSettings = attrs.Factory(ShellSettings)
    transport: TransportSettings = attrs.Factory(TransportSettings)
    permissions: Mapping[str, Permission] = attrs.Factory(dict)


def _capacity(table: object, field: attrs.Attribute[Any], value: Mapping[str, Any]) -> None:
    """What a host has: each amount is as a person writes it. Raises ``ValueError``."""
    if value:
        host_attributes(value)


@attrs.frozen(kw_only=True)
class InventoryTable:
    """``[[actor.SITE.inventory]]``: units of one type, counted or named.

    All units of a type have the same ``properties``, which brokers and tickets speak of; ``unit_properties`` are those
    of these units alone: the site's mapper may choose by them, and drivers are told. Units with ``capacity`` are hosts,
    which are leased whole or by parts (:mod:`leasekit.core.properties`): ``cpu`` in cores, ``memory`` as ``64GiB``,
    ``core`` what one core gives, others by number. ``least_yield`` is which share of the CPU that machines need they
    get at least.
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
    capacity: Mapping[str, Any] = attrs.field(factory=dict, validator=_capacity)
    least_yield: float = attrs.field(default=1.0, validator=[attrs.validators.gt(0), attrs.validators.le(1)])
    driver: str = ""


@attrs.frozen(kw_only=True)
class DelegationTable:
    """``[[actor.NAME.delegation]]``: what a site gives to a broker, without ``units`` all of the type that it has; or a
    broker to another broker, of what it has of ``site`` (not said: of the first that has enough).

    ``degree`` 1.5 lets the holder promise half as much again. With ``renew`` the next period, as long as
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

MAPPERS: Final[Mapping[str, str]] = {"guest": "manual", "broker": "fcfs", "authority": "first_fit"}
"""The mapper of an actor whose file names none."""


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
