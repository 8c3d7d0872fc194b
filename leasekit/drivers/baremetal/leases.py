"""DHCP leases that are over: dnsmasq is told so, as the node would (RFC 2131), for it goes on to serve their names."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from leasekit.core.drivers import SiteFaultError

PORT: Final = 67
RELEASE: Final = 7
_MAGIC: Final = bytes([99, 130, 83, 99])
_OCTETS: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2})*")


@attrs.frozen
class DhcpLease:
    """A line of dnsmasq's file: the client's identifier is empty where it gave none."""

    mac: str
    address: ipaddress.IPv4Address
    client: bytes


def leases_of(path: Path, mac: str) -> Iterator[DhcpLease]:
    """The leases of a card. Raises ``DriverError`` if the file can't be read."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SiteFaultError(f"can't read {path}: {error.strerror}") from error
    for line in lines:
        words = line.split()
        if len(words) == 5 and words[1].lower() == mac.lower() and re.fullmatch(r"\d+(\.\d+){3}", words[2]):
            client = bytes.fromhex(words[4].replace(":", "")) if _OCTETS.fullmatch(words[4]) else b""
            yield DhcpLease(mac.lower(), ipaddress.IPv4Address(words[2]), client)


def release(lease: DhcpLease, server: str, interface: str) -> None:
    """Sends DHCPRELEASE for it to the server at that address of this machine's. Raises ``DriverError``."""
    own = ipaddress.IPv4Address(server)
    head = bytes([1, 1, 6, 0]) + bytes(8) + lease.address.packed + bytes(12)
    options = bytes([53, 1, RELEASE, 54, 4]) + own.packed
    if lease.client:
        options += bytes([61, len(lease.client)]) + lease.client
    card = bytes.fromhex(lease.mac.replace(":", "")).ljust(16, b"\0")
    packet = head + card + bytes(192) + _MAGIC + options + b"\xff"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
            sender.sendto(packet, (server, PORT))
    except OSError as error:
        raise SiteFaultError(f"can't tell dnsmasq that {lease.address} is free: {error.strerror}") from error
