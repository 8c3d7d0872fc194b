"""Logging in to a unit by ssh, as its properties say: with the host key that its site told, and no other.

Properties come from sites, which a guest need not trust: what becomes a word of a command, or a line of a file, is
checked for what it may be first.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from leasekit.core.drivers import DriverError
from leasekit.drivers.members import unit_address
from leasekit.drivers.names import refused_property

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_HOST_KEY: Final = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]{40,2000}={0,2}")
ALIAS: Final = "unit"
"""What the unit is called in its file of host keys, whatever its address is."""
CONNECT_TIMEOUT: Final = 20
"""Seconds."""
EXIT_SSH: Final = 255
"""The exit status of ssh where it did not get as far as the command."""


@attrs.frozen(kw_only=True)
class Login:
    """Where a unit's ssh server is, which ``host_key`` it has (type and key; empty: nobody told), and who logs in."""

    host: str
    port: int
    user: str
    host_key: str

    def known_hosts(self) -> str:
        """The content of a file of host keys that holds this unit's alone."""
        return f"{ALIAS} {self.host_key}\n" if self.host_key else ""

    def options(self, known_hosts: Path, identity: Path | None = None) -> list[str]:
        """What ssh, scp and Ansible are to be told; ``known_hosts`` is where :meth:`known_hosts` was written."""
        options = {
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": _quoted(known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": ALIAS,
            "CheckHostIP": "no",
            "UpdateHostKeys": "no",
            "ConnectTimeout": str(CONNECT_TIMEOUT),
            "ServerAliveInterval": "10",
            "Port": str(self.port),
            "User": self.user,
        }
        if identity is not None:
            options |= {"IdentityFile": _quoted(identity), "IdentitiesOnly": "yes"}
        return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]


def login_of(properties: Mapping[str, str], user: str = "", *, strict: bool = True) -> Login:
    """How to log in to the unit with these properties: ``host``, ``port`` (22), ``host_key``, ``user`` (root).

    ``user`` goes before the property. Unless ``strict`` is off a unit without a host key is refused. Raises
    ``DriverError``, not worth a retry.
    """
    host, port = unit_address({"port": "22", **properties})
    if _HOST.fullmatch(host) is None and not _is_address(host):
        raise refused_property("host", host, "expected an address or a host name")
    name = user or properties.get("user", "root")
    if _USER.fullmatch(name) is None:
        raise refused_property("user", name, "expected a login name: small letters, digits, dashes and underscores")
    key = " ".join(properties.get("host_key", "").split(" ")[:2])
    if (strict or key) and _HOST_KEY.fullmatch(key) is None:
        raise refused_property(
            "host_key", key, "expected the type and the key of an ssh server, as in ssh-ed25519 AAAA..."
        )
    return Login(host=host, port=port, user=name, host_key=key)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _quoted(path: Path) -> str:
    """A path as ssh's options take it: they are split at blanks, and have tokens that begin with a percent sign."""
    text = os.fspath(path.absolute())
    if '"' in text or "\n" in text:
        raise DriverError(f"path {text!a}: ssh can't be told of a path with quotes or line ends", retry=False)
    return '"' + text.replace("%", "%%") + '"'
