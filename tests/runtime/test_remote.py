"""A control socket that is reached through a gateway: what becomes of answers that break off, and of refusals."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from leasekit.config.sockets import RemoteDoor
from leasekit.core.errors import LeasekitError
from leasekit.core.frames import pack
from leasekit.runtime.client import ControlClient, ControlError, RequestError


@contextmanager
def answering(*answers: bytes) -> Iterator[RemoteDoor]:
    """A peer that answers a request on each of some connections with these bytes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with ExitStack() as connections:
                for answer in answers:
                    connection = connections.enter_context(server.accept()[0])
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield RemoteDoor(f"http://127.0.0.1:{server.getsockname()[1]}", "", "guest")
        thread.join(timeout=30)


def chunk(data: bytes) -> bytes:
    """One of a stream."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(body: bytes, status: str = "200 OK") -> bytes:
    """An answer."""
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def refusal(status: str) -> bytes:
    """One that refuses."""
    return whole(b'{"detail": "no"}', status)


def test_a_stream_that_breaks_off_is_told() -> None:
    """What has come before is heard."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    heard = chunk(pack({"id": 1, "ok": True, "result": None})) + chunk(pack({"id": 1, "event": {"lease": "l1"}}))
    half = b"40\r\n" + pack({"id": 1, "event": {"lease": "l2"}})[:6]
    with answering(head + heard + half) as door, ControlClient(door) as client:
        events = client.watch("")
        assert next(events) == {"lease": "l1"}
        with pytest.raises(ControlError, match=r"^http://127.0.0.1:\d+ \(guest\): the daemon hung up"):
            next(events)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("404 Not Found", RequestError), ("401 Unauthorized", RequestError), ("422 Unprocessable", RequestError),
        ("503 Service Unavailable", ControlError), ("502 Bad Gateway", ControlError),
        ("429 Too Many Requests", ControlError),
    ],
)  # fmt: skip
def test_what_may_be_asked_again_is_no_refusal(status: str, error: type[LeasekitError]) -> None:
    """A daemon that is away, or a gateway that is, is as one whose control socket is not there."""
    with (
        answering(refusal(status)) as door,
        ControlClient(door) as client,
        pytest.raises(error, match=": no") as raised,
    ):
        client.query("status")
    assert type(raised.value) is error


def test_one_of_many_that_is_refused_is_one() -> None:
    """The others have their answers, in order."""
    made = [whole(pack({"id": id_, "ok": True, "result": id_})) for id_ in (1, 2, 3)]
    made[1] = refusal("403 Forbidden")
    with answering(*made) as door, ControlClient(door) as client:
        first, second, third = client.batch([("query", "status", {})] * 3)
    assert (first, third) == (1, 3)
    assert isinstance(second, RequestError)
