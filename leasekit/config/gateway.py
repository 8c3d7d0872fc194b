"""``[actor.NAME]`` with ``role = "gateway"``: the HTTP door of a deployment, which is no actor.

A gateway has no key, and nothing of leases: it talks to the control sockets of the actors of its file.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import attrs

from leasekit.config.errors import Faults
from leasekit.config.sockets import resolve_address, socket_path
from leasekit.config.tables import LogFormat, LogLevel, check_metrics
from leasekit.core.settings import expecting

GATEWAY: Final = "gateway"
LISTEN: Final = "http://127.0.0.1:8770"
"""Where a gateway listens whose file doesn't say."""
LISTEN_ALLOWED: Final = "http://HOST:PORT (an IPv6 host in brackets) or unix:PATH"
ADDRESS: Final = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}")
"""An address of mail, without all that only parsers like."""
_HTTP: Final = re.compile(r"http://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")
_HOST: Final = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]")
_BASE: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")


_base: Final = expecting("nothing, or a path such as /leasekit without a slash at its end", _BASE)


def _hosts(_: object, __: object, value: tuple[str, ...]) -> None:
    for one in value:
        if not _HOST.fullmatch(one):
            raise ValueError(f"expected names of hosts in small letters, without a port, instead of {one!r}")


def _networks(_: object, __: object, value: tuple[str, ...]) -> None:
    for one in value:
        ipaddress.ip_network(one)


_sender: Final = expecting("an address such as leasekit@lab.example", ADDRESS)


def _between(least: int, most: int) -> Callable[[object, object, int], None]:
    return expecting(f"{least:,} to {most:,}", lambda value: least <= value <= most)


@attrs.frozen(kw_only=True)
class MailTable:
    """``mail``: by which server messages are sent, and from whom. ``domains``: messages go to addresses there alone
    (none: to all). ``password_file`` has what the ``user`` shows.
    """

    server: str = attrs.field(validator=attrs.validators.matches_re(r"[A-Za-z0-9._-]+:\d{1,5}"))
    sender: str = attrs.field(validator=_sender)
    tls: Literal["none", "starttls", "tls"] = "starttls"
    user: str = ""
    password_file: str = ""
    domains: tuple[str, ...] = ()


_SECURE: Final = re.compile(r"https://[^\s?#]+|http://(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?(?:/[^\s?#]*)?")
_RIGHT: Final = re.compile(r"operator|auditor|[^:\s]+:(?:viewer|user|manager)")


_issuer: Final = expecting("https://..., or http:// on this machine", _SECURE)


def _groups(_: object, __: object, value: Mapping[str, tuple[str, ...]]) -> None:
    for group, allowed in value.items():
        for right in allowed:
            if not _RIGHT.fullmatch(right):
                raise ValueError(f"{group}: expected operator, auditor or PROJECT:ROLE instead of {right!r}")


@attrs.frozen(kw_only=True)
class OidcTable:
    """``[actor.NAME.oidc]``: the gateway believes the JWTs of an OpenID Connect provider that are for ``audience``
    (else ``client_id``). Callers are called by their ``name`` there; ``groups`` says what the groups of
    ``groups_claim`` may do: ``PROJECT:ROLE``, ``operator``, ``auditor``.
    """

    issuer: str = attrs.field(validator=_issuer)
    client_id: str
    audience: str = ""
    name: Literal["sub", "email"] = "sub"
    scopes: str = "openid"
    groups_claim: str = "groups"
    groups: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, validator=_groups)
    algorithms: tuple[Literal["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"], ...] = (
        "RS256", "ES256",
    )  # fmt: skip


@attrs.frozen(kw_only=True)
class BlazarTable:
    """``[actor.NAME.blazar]``: the gateway serves Blazar's API; hosts are the units of a ``type`` of a ``site``."""

    site: str
    type: str


@attrs.frozen(kw_only=True)
class GatewayTable:
    """The table. ``without_login`` lets anybody do everything who reaches an address of it: of this machine only, by
    its own names or one of ``hosts``, by which a reverse proxy asks for it.
    ``base`` is the path before all others where a reverse proxy passes one on; ``proxies`` is how many of these a
    request comes through, each of which adds to ``X-Forwarded-For`` from where it came. Webhooks go to addresses that
    all the world can reach, and to ``webhook_networks``. ``runs`` is where folders of emulated runs are.
    """

    role: Literal["gateway"]
    listen: tuple[str, ...] = (LISTEN,)
    control: str = ""
    store: str = ""
    log: LogFormat = "human"
    log_level: LogLevel = "info"
    metrics: str = attrs.field(default="", validator=check_metrics)
    without_login: bool = False
    hosts: tuple[str, ...] = attrs.field(default=(), validator=_hosts)
    base: str = attrs.field(default="", validator=_base)
    blazar: BlazarTable | None = None
    oidc: OidcTable | None = None
    webhook_networks: tuple[str, ...] = attrs.field(default=(), validator=_networks)
    mail: MailTable | None = None
    runs: str = ""
    proxies: int = attrs.field(default=0, validator=_between(0, 9))
    logins_per_minute: int = attrs.field(default=10, validator=_between(1, 1_000))
    calls_per_minute: int = attrs.field(default=60_000, validator=_between(1, 10_000_000))


@attrs.frozen(kw_only=True)
class GatewaySpec:
    """One gateway. ``listen`` holds ``HOST:PORT`` and ``unix:/PATH``; ``store`` is its SQLite file, or None. The rest
    is as its ``table`` has it, where the ``password_file`` of ``mail`` is absolute.
    """

    name: str
    role: Literal["gateway"] = "gateway"
    listen: tuple[str, ...]
    control: Path
    store: Path | None
    runs: Path | None = None
    table: GatewayTable


def resolve_listen(where: str, table: GatewayTable, state: Path, faults: Faults) -> tuple[str, ...]:
    """Where a gateway listens: as Hypercorn has it. What is wrong goes to ``faults``."""
    made = []
    for index, text in enumerate(table.listen):
        key = f"{where}.listen[{index}]"
        if text.startswith("unix:"):
            try:
                made.append(f"unix:{socket_path(resolve_address(text, state))}")
            except ValueError:
                faults.add(key, repr(text), LISTEN_ALLOWED)
            continue
        match = _HTTP.fullmatch(text)
        if match is None or int(match[2]) > 65_535:
            faults.add(key, repr(text), LISTEN_ALLOWED)
        elif table.without_login and not is_loopback(match[1]):
            found = f"{text!r}, which others can reach"
            faults.add(key, found, "a loopback address or unix:PATH where without_login is true")
        else:
            made.append(text.removeprefix("http://"))
    if not table.listen:
        faults.add(f"{where}.listen", "nothing", LISTEN_ALLOWED)
    return tuple(made)


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own, which nobody else can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
