"""The HTTP server on the boot network: what guests there can keep it from."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Network

import pytest

from leasekit.drivers.baremetal import services
from leasekit.drivers.baremetal.services import EACH_MAX, UNKNOWN_MAX, BootServer, ServedFile, Site

NODE = "127.0.7.7"
WITHIN = 30


@contextmanager
def serving(network: str = "127.0.0.0/8") -> Iterator[int]:
    """The port of a server for that network, in which one node is."""
    site = Site(
        network=IPv4Network(network),
        is_node=lambda address: address == NODE,
        fetch=lambda path, client: ServedFile(200, path.encode()),
        report=lambda token, client, text: 200,
    )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    made = BootServer("127.0.0.1", port, site)
    try:
        yield port
    finally:
        made.close()


def connected(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), WITHIN, (source, 0))


def is_let_in(port: int, source: str) -> bool:
    """Whether a client at an address gets an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, WITHIN, (source, 0))
    try:
        connection.request("GET", "/x")
        return connection.getresponse().read() == b"/x"
    except (http.client.RemoteDisconnected, ConnectionError):
        return False
    finally:
        connection.close()


def test_an_address_has_so_many_connections():
    """One more than an address may have is closed at once; another address is served, and the first one later."""
    with serving() as port:
        with ExitStack() as held:
            for _ in range(EACH_MAX):
                held.enter_context(connected(port, NODE))
            assert not is_let_in(port, NODE)
            assert is_let_in(port, "127.0.0.9")
        while not is_let_in(port, NODE):
            pass


def test_strangers_leave_room_for_nodes():
    """However many addresses a guest has: all that are no node's have so many connections, and nodes are served."""
    with serving() as port, ExitStack() as held:
        for number in range(UNKNOWN_MAX):
            held.enter_context(connected(port, f"127.0.1.{number + 1}"))
        assert not is_let_in(port, "127.0.2.1")
        assert is_let_in(port, NODE)


def test_who_is_not_on_the_network():
    """A client with an address of another network gets no answer."""
    with serving("127.0.7.0/24") as port:
        assert not is_let_in(port, "127.0.8.1")
        assert is_let_in(port, NODE)


@pytest.mark.parametrize("said", [b"", b"GET /x HT", b"GET /x HTTP/1.1\r\n\r\n"])
def test_who_says_nothing_is_sent_away(monkeypatch, said):
    """A client that does not say what it wants is not waited for as long as one that takes its file."""
    monkeypatch.setattr(services, "HEAD_TIMEOUT", 0.1)
    with serving() as port, connected(port, NODE) as client:
        client.sendall(said)
        with client.makefile("rb") as answer:
            assert answer.read().endswith(b"/x" if said.endswith(b"\n") else b"")
