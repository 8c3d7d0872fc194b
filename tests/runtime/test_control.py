"""The control socket and its client: every kind of request, hostile bytes, watchers, and errors that say what to do."""

from __future__ import annotations

import os
import pwd
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from polling import PATIENCE, poll
from runtime_world import make_actor, make_shell, request, running

from leasekit.core.drivers import UnitContext
from leasekit.core.frames import ANSWER_MAX, REQUEST_MAX, FrameError, length, pack, unpack
from leasekit.core.properties import Properties
from leasekit.drivers.null import NullDriver, NullSettings
from leasekit.runtime import control as control_module
from leasekit.runtime.client import ControlClient, ControlError, RequestError
from leasekit.runtime.control import ActorDoor, Control
from leasekit.runtime.shell import ActorShell
from leasekit.runtime.sockets import Endpoint, Sockets
from leasekit.stores.memory import MemoryStore

T = TypeVar("T")
REQUEST = "lease.request"


@asynccontextmanager
async def served(shell: ActorShell, path: Path) -> AsyncIterator[Path]:
    """A running shell with a control socket at ``path``."""
    with Sockets() as sockets:
        (listener,) = await sockets.listen(Endpoint(path=str(path)), "control")
        async with running(shell), trio.open_nursery() as nursery:
            door = ActorDoor(shell, stop=shell.stop)
            nursery.start_soon(Control(door.kinds, streams=door.streams).serve, listener)
            yield path
            nursery.cancel_scope.cancel()


async def ask(path: Path, call: Callable[[ControlClient], T]) -> T:
    """Call a blocking client in a thread."""

    def run() -> T:
        with ControlClient(path, timeout=PATIENCE) as client:
            return call(client)

    return await trio.to_thread.run_sync(run)


async def test_commands_queries_and_history(tmp_path: Path) -> None:
    """A command's result, what it changed, and its transitions come back as plain data."""
    async with served(make_shell("guest", tmp_path), tmp_path / "c") as path:
        wish = request(2, properties={"deferrable": "true"})
        lease = (await ask(path, lambda client: client.command("lease.request", **wish)))["id"]
        assert [row["id"] for row in await ask(path, lambda client: client.query("leases"))] == [lease]
        history = await ask(path, lambda client: client.history(lease))
        assert [(row["event"], row["to_state"]) for row in history] == [("ask", "nascent/ticketing"), (REQUEST, "")]
        me = pwd.getpwuid(os.getuid()).pw_name
        assert history[-1]["why"] == f"commanded by {me} (control socket)"
        assert await ask(path, lambda client: client.log(limit=10)) == history
        assert await ask(path, lambda client: client.log(after=history[-1]["seq"])) == []
        status = await ask(path, lambda client: client.query("status"))
        assert status["shell"]["state"] == "running"
        assert status["leases"] == {"nascent": 1}


async def test_the_past_is_in_the_archive(tmp_path: Path) -> None:
    """A lease that is over is found in the archive, also by a daemon that has been started since."""
    store = MemoryStore()

    def guest() -> ActorShell:
        hasty = partial(make_actor, "guest", clock_skew=20, retry_first=20)
        return make_shell("guest", tmp_path, store=store, make=hasty)

    async with served(guest(), tmp_path / "c") as path:
        wish = request(1, properties={"request_timeout": "1ms"})
        lease = (await ask(path, lambda client: client.command("lease.request", **wish)))["id"]
        with trio.fail_after(PATIENCE):
            while not (rows := await ask(path, lambda client: client.archived())):
                await trio.sleep(0.005)
    assert [(row["id"], row["state"]) for row in rows] == [(lease, "failed")]
    async with served(guest(), tmp_path / "c") as path:
        assert await ask(path, lambda client: client.query("leases")) == []
        assert [one["id"] for one in await ask(path, lambda client: client.query("leases", all=True))] == [lease]
        assert await ask(path, lambda client: client.archived()) == rows


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.command("lease.request", type="vm"), "term: found none"),
        (lambda c: c.command("fly"), "a guest has no command 'fly'"),
        (lambda c: c.query("fly"), "a guest has no query 'fly'"),
        (lambda c: c.query("lease", lease="x"), "no lease 'x' here"),
        (lambda c: c.request("fly", ""), "kind: found 'fly', allowed are command, query, history"),
        (lambda c: c.log(after=-1), "after: found -1, expected >= 0"),
        (lambda c: c.log(limit=10**9), "limit: found 1000000000"),
        (lambda c: c.archived("units"), "table 'units' keeps no past rows"),
        (lambda c: list(c.unit_log("vm-0", lines=10**9)), "lines: found 1000000000"),
        (lambda c: c.command("x", value=2**70), "can't be sent"),
        (lambda c: c.command("x", value="\udc80"), "can't be sent"),
    ],
)
async def test_what_is_refused_is_refused_in_words(
    tmp_path: Path, call: Callable[[ControlClient], Any], error: str
) -> None:
    """A request that makes no sense gets one clear line, and the daemon goes on."""
    async with served(make_shell("guest", tmp_path), tmp_path / "c") as path:
        with pytest.raises(RequestError, match=error):
            await ask(path, call)
        assert await ask(path, lambda client: client.query("leases")) == []


async def test_a_bug_in_a_query_is_told_and_survived(tmp_path: Path) -> None:
    """A query that fails for a reason of ours is answered, and the next one works."""
    shell = make_shell("guest", tmp_path)
    shell.actor.dispatch.queries["broken"] = lambda arguments: 1 // 0
    async with served(shell, tmp_path / "c") as path:
        with pytest.raises(RequestError, match="internal error: ZeroDivisionError"):
            await ask(path, lambda client: client.query("broken"))
        shell.actor.dispatch.queries["strange"] = lambda arguments: object()
        with pytest.raises(RequestError, match="internal error: TypeError"):
            await ask(path, lambda client: client.query("strange"))
        assert await ask(path, lambda client: client.query("leases")) == []


async def test_many_requests_are_on_their_way_at_once(tmp_path: Path) -> None:
    """A batch is worked on together, and its results come in the order of its requests, refusals among them."""
    shell = make_shell("guest", tmp_path)
    async with served(shell, tmp_path / "c") as path:
        wishes: list[tuple[str, str, dict[str, Any]]] = [
            ("command", "lease.request", request(n % 3, properties={"deferrable": "true"})) for n in range(1_200)
        ]
        results = await ask(path, lambda client: list(client.batch(wishes)))
        assert len(results) == 1_200
        for number, result in enumerate(results):
            assert isinstance(result, RequestError) == (number % 3 == 0)
        ids = [int(result["id"].rpartition("-")[2]) for result in results if not isinstance(result, RequestError)]
        assert ids == sorted(ids)
        assert shell.counts.commits < 400, "requests that wait together are committed together"


async def test_watching_begins_before_the_answer(tmp_path: Path) -> None:
    """Nothing after `watch` returned is missed; where a lease is named, others' transitions are left out."""
    async with served(make_shell("guest", tmp_path), tmp_path / "c") as path:
        wish = request(1, properties={"deferrable": "true"})

        def run() -> tuple[list[str], list[str]]:
            with ControlClient(path) as watch_all, ControlClient(path) as watch_one, ControlClient(path) as client:
                everything, one = watch_all.watch(), None
                first = client.command("lease.request", **wish)["id"]
                one = watch_one.watch(first)
                client.command("lease.request", **wish)
                client.command("lease.close", lease=first)
                heard = [next(everything) for _ in range(6)]
                return [f"{row['lease'][-1]} {row['event']}" for row in heard], [next(one)["event"]]

        everything, one = await trio.to_thread.run_sync(run)
        assert everything == ["1 ask", f"1 {REQUEST}", "2 ask", f"2 {REQUEST}", "1 close", "1 lease.close"]
        assert one == ["close"]


async def test_a_watcher_that_is_slow_is_told_what_it_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that does not keep up costs a bounded queue; the gap is told, and what comes later arrives."""
    shell = make_shell("guest", tmp_path)
    async with running(shell):
        with shell.transitions.watch(limit=2) as watcher:
            for _ in range(5):
                await shell.command("lease.request", request(1, properties={"deferrable": "true"}))
            items, missed = await watcher.take()
            assert (len(items), missed) == (2, 3)
            await shell.command("lease.request", request(1, properties={"deferrable": "true"}))
            items, missed = await watcher.take()
            assert (len(items), missed) == (1, 0)


class Talking(NullDriver):
    """A driver that writes a line when it may."""

    def __init__(self) -> None:
        super().__init__(NullSettings())
        self.go = trio.Event()

    async def join(self, unit: UnitContext) -> Properties:
        unit.log("first")
        await self.go.wait()
        unit.log("second")
        return {}


async def test_a_units_log_is_shown_and_followed(tmp_path: Path) -> None:
    """The last lines come at once, later ones as they are written."""
    shell = make_shell("guest", tmp_path, driver=Talking())
    log = shell.unit_logs.open("lease-1/vm-0", "")
    log("first")
    async with served(shell, tmp_path / "c") as path:
        assert [line.split()[-1] for line in await ask(path, lambda c: list(c.unit_log("vm-0")))] == ["first"]
        assert await ask(path, lambda c: list(c.unit_log("vm-9"))) == []
        lines: list[str] = []

        def follow() -> None:
            with ControlClient(path) as client:
                for line in client.unit_log("vm-0", follow=True):
                    lines.append(line.split()[-1])
                    trio.from_thread.run_sync(came.set)
                    if len(lines) == 2:
                        return

        came = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, follow)
            with trio.fail_after(PATIENCE):
                await came.wait()
            log("second")
        assert lines == ["first", "second"]


async def test_who_hangs_up_stops_nothing(tmp_path: Path) -> None:
    """A client that goes away in the middle of a request, an answer or a watch leaves no trace but its work."""
    shell = make_shell("guest", tmp_path)
    async with served(shell, tmp_path / "c") as path:

        def rude() -> None:
            for kind, name in (("query", "leases"), ("watch", ""), ("unit_log", "vm-0")):
                client = ControlClient(path)
                client.send(kind, name, {"follow": True} if kind == "unit_log" else {})
                client.close()
            client = ControlClient(path)
            client.send("command", "lease.request", request(1, properties={"deferrable": "true"}))
            client.receive(1)
            client._socket.sendall(b"\x00\x00")
            client.close()

        await trio.to_thread.run_sync(rude)
        assert len(await ask(path, lambda client: client.query("leases"))) == 1
        await poll(lambda: not shell.transitions)


def raw(path: Path, data: bytes) -> bytes:
    """What comes back for bytes that no client would send, until the daemon hangs up or is silent for a moment."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(0.5)
        sock.connect(str(path))
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has hung up on us already
        answer = b""
        try:
            while piece := sock.recv(65536):
                answer += piece
        except OSError:
            return answer
        return answer


GARBAGE = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack(">I", REQUEST_MAX + 1),
    struct.pack(">I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
    struct.pack(">I", 1) + b"\x01",
    pack({"id": "x", "kind": "query", "name": "leases"}),
    pack({"kind": "query"}),
    pack({"id": 1, "kind": "query", "name": 5}),
    pack({"id": 1, "kind": "query", "name": "leases", "arguments": [1]}),
    pack({"id": 1, "kind": "command", "name": "lease.close", "arguments": {"lease": {"a": [1]}}}),
    pack({"id": 1, "kind": "command", "name": "lease.request", "arguments": {"term": "x", "victims": 5}}),
    struct.pack(">I", 3000) + b"\x91" * 3000,
    struct.pack(">I", 1000) + b"half of it",
]


async def test_garbage_is_answered_or_hung_up_on(tmp_path: Path) -> None:
    """Bytes that are no request never stop the daemon; where it can it says what is wrong."""
    shell = make_shell("guest", tmp_path)
    async with served(shell, tmp_path / "c") as path:
        answers = []
        for data in GARBAGE:
            answers.append(await trio.to_thread.run_sync(raw, path, data))
            assert await ask(path, lambda client: client.query("leases")) == []
        errors = [unpack(answer[4:])["error"] for answer in answers if answer]
        assert any("found a frame of 1195725856 bytes" in error for error in errors)
        assert any("allowed are at most" in error for error in errors)
        assert len(errors) == len(GARBAGE) - 2
        assert shell.describe().bugs == 0


@given(st.binary(max_size=200))
def test_any_body_is_a_map_or_an_error(data: bytes) -> None:
    """Whatever a frame holds, it is a map or one kind of error."""
    try:
        assert isinstance(unpack(data), dict)
    except FrameError as error:
        assert str(error)


@given(st.dictionaries(st.text(max_size=10), st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(), st.binary())))
def test_frames_come_back_as_they_were(value: dict[str, Any]) -> None:
    """Packing and unpacking are inverse, and the length is the body's."""
    frame = pack(value)
    assert length(frame[:4], ANSWER_MAX) == len(frame) - 4
    assert unpack(frame[4:]) == value
    assert msgpack.unpackb(frame[4:]) == value


async def test_too_many_clients_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit a client gets a reason; when another leaves there is room."""
    monkeypatch.setattr(control_module, "CONNECTIONS_MAX", 2)
    async with served(make_shell("guest", tmp_path), tmp_path / "c") as path:

        def run() -> str:
            with ControlClient(path) as one, ControlClient(path) as two:
                one.query("leases")
                two.query("leases")
                with ControlClient(path) as three, pytest.raises(RequestError) as caught:
                    three.query("leases")
                return str(caught.value)

        assert "2 clients" in await trio.to_thread.run_sync(run)
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    assert await ask(path, lambda client: client.query("leases")) == []
                    break
                except RequestError:
                    await trio.sleep(0.005)


async def test_a_command_with_a_key_is_done_once(tmp_path: Path) -> None:
    """A repeat gets the first answer, also from a daemon that has been started since; another command does not."""
    store, asked = MemoryStore(), {"caller": "alice", "way": "page", "key": "k-1"}
    wish = request(1, properties={"deferrable": "true"})

    def ask_with(**others: Any) -> Callable[[ControlClient], Any]:
        return lambda client: client.request("command", REQUEST, {**wish, **others}, **asked)

    async with served(make_shell("guest", tmp_path, store=store), tmp_path / "c") as path:
        first = await ask(path, ask_with())
        assert await ask(path, ask_with()) == first
        with pytest.raises(RequestError, match="its key was given before, with another") as caught:
            await ask(path, ask_with(units=2))
        assert caught.value.because == {"code": "key_used", "what": REQUEST}
        asked["caller"] = "bob"
        assert await ask(path, ask_with()) != first
        asked["caller"] = "alice"
    async with served(make_shell("guest", tmp_path, store=store), tmp_path / "c") as path:
        assert await ask(path, ask_with()) == first
        assert len(await ask(path, lambda client: client.query("leases"))) == 2
        history = await ask(path, lambda client: client.history(first["id"]))
        assert [row["why"] for row in history if row["event"] == REQUEST] == ["commanded by alice (page)"]


def test_no_daemon_is_said_so(tmp_path: Path) -> None:
    """Where no daemon answers, the error says how to start one; so it does for a socket left over."""
    with pytest.raises(ControlError, match=r"no daemon answers at .*/c: start it with leasekit up FILE"):
        ControlClient(tmp_path / "c")
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(tmp_path / "d"))
    with pytest.raises(ControlError, match="no daemon answers"):
        ControlClient(tmp_path / "d")
    with pytest.raises(ControlError, match="AF_UNIX path too long"):
        ControlClient(tmp_path / ("x" * 200))


def test_a_silent_daemon_times_out(tmp_path: Path) -> None:
    """A daemon that takes the connection but never answers does not hang the command line."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "c"))
        listener.listen()
        client = ControlClient(tmp_path / "c", timeout=0.05)
        with pytest.raises(ControlError, match=r"gave no answer within 0\.05 s"):
            client.query("status")
        peer, _ = listener.accept()
        peer.close()
        with pytest.raises(ControlError, match="hung up"):
            client.query("status")
        client.close()


def test_the_reason_of_a_daemon_that_has_hung_up_is_read(tmp_path: Path) -> None:
    """A daemon that refuses and hangs up before the request was sent has its reason heard."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "c"))
        listener.listen()
        with ControlClient(tmp_path / "c", timeout=PATIENCE) as client:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(pack({"id": 0, "ok": False, "error": "the daemon serves 256 clients already"}))
            with pytest.raises(RequestError, match="256 clients"):
                client.query("status")
            with pytest.raises(ControlError, match="hung up"):
                client.query("status")


def test_another_users_socket_is_said_so(tmp_path: Path) -> None:
    """Without permission the error says whose commands a daemon takes (a child gives root's rights up)."""
    tmp_path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "c"))
        listener.listen()
        (tmp_path / "c").chmod(0)
        code = (
            "import os, sys\nfrom leasekit.runtime.client import ControlClient, ControlError\n"
            "os.chdir(sys.argv[1])\n"
            "if os.geteuid() == 0: os.setuid(65534)\n"
            "try:\n    ControlClient('c')\nexcept ControlError as error:\n    print(error)"
        )
        found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert found.stdout == "permission denied at c: a daemon takes commands from the user it runs as only\n"
