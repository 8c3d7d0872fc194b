"""DHCP leases as dnsmasq keeps them: only those of the card that is asked for, whatever else is in the file."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address

import pytest

from leasekit.core.drivers import DriverError
from leasekit.drivers.baremetal.dnsmasq import DhcpLease, leases_of, release

MAC = "02:00:00:00:00:0a"


def test_leases_of_a_card(tmp_path):
    """Each lease of the card is found, with or without an identifier of the client's; lines that are none are not."""
    path = tmp_path / "leases"
    assert list(leases_of(path, MAC)) == []
    path.write_text(
        f"1700000000 {MAC} 10.0.0.5 node-1 01:02:00:00:00:00:0a\n"
        f"1700000000 {MAC.upper()} 10.0.0.6 * *\n"
        "1700000000 02:00:00:00:00:0b 10.0.0.7 node-2 *\n"
        f"1700000000 {MAC} fd00::5 * *\n"
        "duid 00:01:00\n"
        f"{MAC}\n"
    )
    found = list(leases_of(path, MAC))
    assert [(str(lease.address), lease.client) for lease in found] == [
        ("10.0.0.5", bytes.fromhex("0102000000000a")),
        ("10.0.0.6", b""),
    ]


def test_a_release_names_the_lease(monkeypatch):
    """What is sent is a DHCPRELEASE (RFC 2131, table 5) with the client's address, card and identifier."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(20)
        monkeypatch.setattr("leasekit.drivers.baremetal.dnsmasq.PORT", server.getsockname()[1])
        release(DhcpLease(MAC, IPv4Address("10.0.0.5"), b"\x01me"), "127.0.0.1", "lo")
        packet = server.recv(2000)
    assert packet[:4] == bytes([1, 1, 6, 0])
    assert packet[12:16] == bytes([10, 0, 0, 5])
    assert packet[28:34].hex(":") == MAC
    assert packet[236:240] == bytes([99, 130, 83, 99])
    assert packet[240:] == bytes([53, 1, 7, 54, 4, 127, 0, 0, 1, 61, 3]) + b"\x01me\xff"


def test_a_release_that_can_not_be_sent():
    """An interface that is not there is an error that may pass."""
    lease = DhcpLease(MAC, IPv4Address("10.0.0.5"), b"")
    with pytest.raises(DriverError, match=r"can't tell dnsmasq that 10\.0\.0\.5 is free"):
        release(lease, "127.0.0.1", "nosuchcard")
