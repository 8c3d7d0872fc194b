"""A control socket that is reached through a gateway: what :class:`~.client.ControlClient` takes for its socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from http.client import INTERNAL_SERVER_ERROR, TOO_MANY_REQUESTS, UNAUTHORIZED
from io import BytesIO
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from leasekit.config.sockets import RemoteDoor
from leasekit.core.errors import LeasekitError
from leasekit.core.frames import LENGTH, MEDIA_TYPE, pack, unpack
from leasekit.runtime.client import ControlError, RequestError

API: Final = "/api/v1"


class GatewayAnswer(NamedTuple):
    """What a gateway answers, and the socket that it comes on, if it is still to come."""

    response: http.client.HTTPResponse | BytesIO
    sock: socket.socket | None


def call(
    url: str, token: str, method: str, path: str, body: bytes | None, timeout: float | None, *, kind: str = MEDIA_TYPE
) -> GatewayAnswer:
    """The answer of a gateway, whose body is still to be read; ``kind`` is the type of what is sent.

    Raises :class:`~.client.ControlError` where none answers, or none now, :class:`~.client.RequestError` where it
    refuses, ``LeasekitError`` for a URL or a token that none can have.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise LeasekitError(f"--url: found {url!r:.80}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LeasekitError(f"--url: found {url!r:.80}, expected http://HOST:PORT or https://HOST")
    if not (token.isascii() and token.isprintable()):
        raise LeasekitError(f"{url}: the token has other than printable ASCII characters (LEASEKIT_TOKEN)")
    connect: Callable[..., http.client.HTTPConnection] = (
        http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    )
    try:
        connection = connect(parts.hostname, port, timeout=timeout)
    except http.client.InvalidURL as error:
        raise LeasekitError(f"--url: found {url!r:.80}: {error}") from None
    headers = {"authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["content-type"] = kind
    try:
        connection.request(method, f"{parts.path.rstrip('/')}{API}{path}", body, headers)
        sock = connection.sock
        response = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        why = getattr(error, "strerror", None) or error or type(error).__name__
        raise ControlError(f"{url}: no gateway answers there: {why}") from None
    if response.status >= 400:
        text = response.read()
        connection.close()
        hint = f" (LEASEKIT_TOKEN, or leasekit login --url {url})" if response.status == UNAUTHORIZED else ""
        is_away = response.status >= INTERNAL_SERVER_ERROR or response.status == TOO_MANY_REQUESTS
        raise (ControlError if is_away else RequestError)(f"{url}: {_detail(response, text)}{hint}")
    return GatewayAnswer(response, sock)


def _detail(response: http.client.HTTPResponse, text: bytes) -> str:
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, LookupError, TypeError):
        return f"found status {response.status} {response.reason}, which no gateway of leasekit answers"


def ask(url: str, token: str, method: str, path: str, body: Any, timeout: float) -> Any:
    """What a gateway answers, of JSON; None is no body. Raises as :func:`call` does."""
    sent = None if body is None else json.dumps(body).encode()
    return json.loads(call(url, token, method, path, sent, timeout, kind="application/json").response.read())


def daemons(url: str, token: str, timeout: float) -> list[dict[str, str]]:
    """The daemons behind a gateway, itself as well: ``name``, ``role``, ``state``, ``problem``. Raises as :func:`call`
    does.
    """
    found: list[dict[str, str]] = ask(url, token, "GET", "/actors", None, timeout)["items"]
    return found


class GatewayTunnel:
    """A socket, as far as a client of one needs it: each frame that is sent is a request of its own."""

    def __init__(self, door: RemoteDoor, timeout: float | None) -> None:
        self._door, self._timeout = door, timeout
        self._answers: list[GatewayAnswer] = []

    def settimeout(self, timeout: float | None) -> None:
        """How long is waited from now on, in seconds."""
        self._timeout = timeout
        for answer in self._answers:
            if answer.sock is not None:
                answer.sock.settimeout(timeout)

    def sendall(self, frame: bytes) -> None:
        """Send a frame. Raises as :func:`call` does, but where the gateway refuses: that is answered, as a refusal of
        the actor is.
        """
        path = f"/control/{quote(self._door.actor, safe='')}"
        try:
            self._answers.append(call(self._door.url, self._door.token, "POST", path, frame, self._timeout))
        except RequestError as error:
            refusal = pack({"id": unpack(frame[LENGTH.size :])["id"], "ok": False, "error": str(error)})
            self._answers.append(GatewayAnswer(BytesIO(refusal), None))

    def recv(self, count: int) -> bytes:
        """Bytes of what was answered, in the order of what was asked; empty at the end."""
        while self._answers:
            try:
                data = self._answers[0].response.read1(count)
            except http.client.IncompleteRead as error:  # the gateway has gone in the middle
                data = error.partial
            if data:
                return data
            self._answers.pop(0).response.close()
        return b""

    def close(self) -> None:
        """Hang up."""
        for answer in self._answers:
            answer.response.close()
            if answer.sock is not None:
                answer.sock.close()
