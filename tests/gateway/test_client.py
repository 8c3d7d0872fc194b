"""The Python clients, against a gateway that runs."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from cli_daemons import running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest
from msgspec import structs

from leasekit.client import ApiError, AsyncClient, Client, LeaseFailed
from leasekit.client.asking import Asks, settings
from leasekit.client.shapes import LeaseRequest, SeriesHours, SeriesRequest, SlotSearch, Transition
from leasekit.config.load import load


def transport(gateway: GatewayUnderTest) -> httpx.HTTPTransport:
    """The way to the gateway's Unix socket."""
    return httpx.HTTPTransport(uds=str(gateway.folder / "web.http"), verify=False)


def client(gateway: GatewayUnderTest, token: str) -> Client:
    """A client of the project alpha."""
    return Client("http://gateway", token, project="alpha", transport=transport(gateway))


@pytest.mark.parametrize("url", ["http://lab.example/leasekit", "https://lab.example", "HTTPS://lab.example"])
def test_certificates_are_read_for_https_alone(url: str) -> None:
    """They take long to read. Where none is read nobody is believed, rather than everybody."""
    believed = settings(url, "lk_token")["verify"]
    assert believed.verify_mode is ssl.CERT_REQUIRED
    assert bool(believed.cert_store_stats()["x509_ca"]) == url.lower().startswith("https")


def test_a_lease_lasts_as_long_as_its_block(gateway: GatewayUnderTest) -> None:
    """It is active in the block, with its units, and closed after it, also where the block fails."""
    with client(gateway, gateway.token("clara", alpha="user")) as api:
        with api.lease("vm", 2, hours=1, name="block") as lease:
            assert [unit.unit for unit in lease.members] == ["vm-0", "vm-1"]
            assert lease.keepalive == "1m"
            assert api.get("block").state == "active"
        assert api.wait(lease, "closed").reason == "its block has ended"
        with pytest.raises(ZeroDivisionError), api.lease("vm", length="1h") as other:
            raise ZeroDivisionError
        assert api.wait(other, "closed").state == "closed"


def test_what_can_be_done_with_a_lease(gateway: GatewayUnderTest) -> None:
    """Each method of the client."""
    with client(gateway, gateway.token("cora", alpha="user")) as api:
        assert api.me().projects == {"alpha": "user"}
        assert api.dry_run("vm", 7, hours=1).code == "too_large"
        lease = api.request("vm", 2, hours=1, configuration={"a": "b"})
        assert api.wait(lease).configuration == {"a": "b"}
        api.modify(lease, units=1)
        api.keep_alive(api.request("vm", length="1h", keepalive="1m", start=datetime(2030, 1, 1, tzinfo=UTC)))
        assert {one.id for one in api.leases()} >= {lease.id}
        assert api.history(lease)[0].event == "ask"
        api.wait(lease)
        api.extend(lease, hours=0.5)
        wait = api.wait_for(SlotSearch(type="vm", length="1h", units=7))
        assert [one.state for one in api.waits()] == ["waiting"]
        assert api.wait_no_more(wait).id == wait.id
        assert api.waits() == []
        for one in list(api.leases()):
            api.close(one, "over")
            assert api.wait(one, "closed").reason == "over"
        with pytest.raises(ApiError, match="units: found 0") as caught:
            api.request("vm", 0, hours=1)
        assert (caught.value.code, caught.value.problem.status) == ("bad_argument", 422)
        with pytest.raises(LeaseFailed, match="no site here has more than 6"):
            api.wait(api.request("vm", 7, hours=1))


def test_calls_are_described_once() -> None:
    """Both clients have the same, with what each takes and returns."""
    calls = {name for name, one in vars(Asks).items() if name[0] != "_" and callable(one)}
    calls -= {"of_project", "page", "heard_since"}
    for kind in (Client, AsyncClient):
        assert {getattr(kind, name).__doc__ for name in calls} == {getattr(Asks, name).__doc__ for name in calls}
        assert str(signature(kind.get)) == "(self, lease: 'Lease | str') -> 'Lease'"
        assert str(signature(kind.approvals)) == "(self, state: 'str' = '') -> 'list[Approval]'"
    assert iscoroutinefunction(AsyncClient.get)


async def test_the_same_without_blocking(gateway: GatewayUnderTest) -> None:
    """On trio here; on asyncio the same."""
    way = httpx.AsyncHTTPTransport(uds=str(gateway.folder / "web.http"), verify=False)
    token = gateway.token("conny", alpha="user")
    async with AsyncClient("http://gateway", token, project="alpha", transport=way) as api:
        async with api.lease("vm", hours=1) as lease:
            assert lease.state == "active"
            assert [one.id async for one in api.leases()] == [lease.id]
            await api.modify(lease, configuration={"a": "b"})
            await api.wait(lease)
            await api.extend(lease, hours=1)
        with pytest.raises(ZeroDivisionError):
            async with api.lease("vm", hours=1):
                raise ZeroDivisionError
        assert (await api.wait(lease, "closed")).reason == "its block has ended"
        assert "closed/-" in [one.after for one in await api.history(lease)]
        assert (await api.me()).caller == "conny"
        assert (await api.dry_run("vm", hours=1)).status == "granted"
        with pytest.raises(ApiError):
            await api.request("vm", hours=1, start=datetime(2000, 1, 1, tzinfo=UTC))


async def test_events_without_blocking(gateway: GatewayUnderTest) -> None:
    """As of the client that blocks: who gives the id of the last that they heard goes on from there."""
    way = httpx.AsyncHTTPTransport(uds=str(gateway.folder / "web.http"), verify=False)
    token = gateway.token("edda", alpha="user")
    async with AsyncClient("http://gateway", token, project="alpha", transport=way) as api:
        async with contextlib.aclosing(api.events()) as events:
            at, told = await anext(events)
            assert (at != "", told) == (True, None)
        async with api.lease("vm", hours=1) as lease:
            pass
        heard: list[str] = []
        async with contextlib.aclosing(api.events(at)) as events:
            async for _, told in events:
                heard += [told.event] if told is not None and told.lease == lease.id else []
                if heard[-1:] == ["closed"]:
                    break
        assert heard == [one.event for one in await api.history(lease)][: len(heard)]
        assert heard[0] == "ask"
        with pytest.raises(ApiError, match="nowhere"):
            await anext(AsyncClient("http://gateway", token, project="nowhere", transport=way).events())


@pytest.mark.parametrize("hours", [float("nan"), float("inf"), 1e12])
def test_hours_that_are_none_are_told(hours: float) -> None:
    """By the name of the argument."""
    with pytest.raises(ValueError, match=f"hours: found {re.escape(str(hours))}"):
        Asks().request("vm", hours=hours)


@pytest.mark.parametrize("keepalive", ["soon", "", 5, None])
def test_silences_that_are_none_are_told(keepalive: Any) -> None:
    """Before anything is asked for."""
    told = re.escape(f"keepalive: found {keepalive!r}, expected a timedelta, or text such as 90s")
    with pytest.raises(ValueError, match=told), Client("http://127.0.0.1:9", "lk_one").lease("vm", keepalive=keepalive):
        raise AssertionError("there is none")


@pytest.mark.parametrize("token", ["l\u00e4k", "lk_one\n", "lk_one\r\nx: y"])
def test_a_token_that_is_none_is_told(token: str) -> None:
    """Without what it is."""
    with pytest.raises(ValueError, match="token: found other than printable ASCII characters") as told:
        settings("http://gateway", token)
    assert token not in str(told.value)


def test_what_happens_besides_is_no_transition(gateway: GatewayUnderTest) -> None:
    """Who listens to what happens to leases is not disturbed by announcements, and hears of none."""
    with (
        client(gateway, gateway.token("cleo", alpha="user")) as api,
        client(gateway, gateway.token("opal", "operator")) as boss,
        contextlib.closing(api.events()) as events,
    ):
        at, told = next(events)
        assert (at != "", told) == (True, None)
        outage = boss.announce("no power", datetime(2031, 1, 1, tzinfo=UTC))
        assert next(events) == (at, None)
        boss.announce_no_more(outage)
        with api.lease("vm", hours=1) as lease:
            assert next(told.event for _, told in events if told is not None and told.lease == lease.id) == "ask"


def test_what_is_approved_and_announced(gateway: GatewayUnderTest) -> None:
    """Asked for, seen, approved, refused and withdrawn; told to all, and no more."""
    hours, until = SeriesHours(every="mon", begin="9:00", finish="10:00"), date(2031, 1, 13)
    wish = LeaseRequest(type="vm", units=2, start=datetime(2031, 1, 5, tzinfo=UTC))
    with (
        client(gateway, gateway.token("carla", alpha="user")) as api,
        client(gateway, gateway.token("olga", "operator")) as boss,
    ):
        ids = [api.ask_approval("a demo", request=LeaseRequest(type="vm", length="1h")).id for _ in range(3)]
        many = api.ask_approval(series=SeriesRequest(request=wish, until=until, **structs.asdict(hours)))
        assert [one.id for one in api.approvals("pending")] == [*ids, many.id]
        assert boss.approve(ids[0], "fine").state == "approved"
        assert (boss.refuse(ids[1], "no").reason, api.withdraw(ids[2]).state) == ("no", "withdrawn")
        series = boss.approve(many).series
        assert series is not None
        assert [day.status for day in series.days] == ["granted", "granted"]
        assert api.approval(many.id).series == series
        for lease in (api.approval(ids[0]).lease, *(day.lease for day in series.days)):
            api.close(lease)
        end = datetime(2031, 1, 1, tzinfo=UTC)
        outage = boss.announce("no power", end)
        assert [(one.text, one.end) for one in api.announcements()] == [("no power", end)]
        with pytest.raises(ApiError, match="is no operator"):
            api.announce_no_more(outage)
        assert boss.announce_no_more(outage) == outage
        assert api.announcements() == []


async def test_the_same_of_what_a_gateway_keeps(gateway: GatewayUnderTest) -> None:
    """Without blocking."""
    way = httpx.AsyncHTTPTransport(uds=str(gateway.folder / "web.http"), verify=False)
    wish = LeaseRequest(type="vm", length="1h")
    async with AsyncClient("http://gateway", gateway.token("otto", "operator"), project="alpha", transport=way) as api:
        made = await api.keep_template("plain", wish, shared=True)
        assert await api.templates() == [await api.template("plain")] == [made]
        lease = await api.ask_for(made, units=2)
        assert (await api.close(lease)).units == 2
        assert await api.remove_template(made) == made
        asked = [await api.ask_approval(request=wish) for _ in range(3)]
        assert (await api.approve(asked[0])).state == "approved"
        assert (await api.refuse(asked[1])).state == "refused"
        assert (await api.withdraw(asked[2])).state == "withdrawn"
        done = await api.approval(asked[0])
        assert done in await api.approvals("approved")
        await api.close(done.lease)
        outage = await api.announce("no power", datetime(2031, 1, 1, tzinfo=UTC))
        assert await api.announcements() == [outage]
        assert await api.announce_no_more(outage) == outage


SCRIPT = """
import asyncio, sys, httpx
from leasekit.client import AsyncClient
async def main():
    way = httpx.AsyncHTTPTransport(uds=sys.argv[1])
    async with AsyncClient("http://gateway", sys.argv[2], project="alpha", transport=way) as api:
        async with api.lease("vm", hours=1) as lease:
            print(lease.state, len(lease.members))
asyncio.run(main())
"""


def test_the_same_on_asyncio(gateway: GatewayUnderTest) -> None:
    """In a process of its own."""
    words = [str(gateway.folder / "web.http"), gateway.token("cid", alpha="user")]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "active 1\n"


@attrs.define
class Listener:
    """Hears what happens until a lease is closed."""

    gateway: GatewayUnderTest
    token: str
    heard: list[str] = attrs.field(factory=list)
    more: threading.Condition = attrs.field(factory=threading.Condition)

    def blocking(self) -> None:
        """By the client that blocks."""
        with client(self.gateway, self.token) as api, contextlib.closing(api.events()) as events:
            all(self._hears(told) for _, told in events)

    async def awaiting(self) -> None:
        """By the other one."""
        way = httpx.AsyncHTTPTransport(uds=str(self.gateway.folder / "web.http"), verify=False)
        async with (
            AsyncClient("http://gateway", self.token, project="alpha", transport=way) as api,
            contextlib.aclosing(api.events()) as events,
        ):
            async for _, told in events:
                if not self._hears(told):
                    return

    def until_it_hears(self) -> None:
        """Wait until it does."""
        with self.more:
            assert self.more.wait_for(lambda: self.heard, timeout=60)

    def _hears(self, told: Transition | None) -> bool:
        with self.more:
            self.heard.append("" if told is None else told.event)
            self.more.notify()
        return self.heard[-1] != "close"


def test_a_request_outlives_its_gateway(tmp_path: Path) -> None:
    """What comes to no answer is sent again, and done once; who waits goes on waiting with the next gateway."""
    actors, whole = tmp_path / "actors.toml", tmp_path / "whole.toml"
    actors.write_text(site_and_broker(INVENTORY.partition("[actor.web]")[0], "alpha"))
    whole.write_text(site_and_broker(INVENTORY, "alpha"))
    gateway = GatewayUnderTest(whole, load(whole).state)
    with running(actors):
        first = started(whole)
        token = gateway.token("carl", alpha="user")
        with client(gateway, token) as api, client(gateway, token) as other:
            before = api.request("vm", hours=1)
            api.wait(before)
            closed: list[str] = []
            waiting = threading.Thread(target=lambda: closed.append(other.wait(before, "closed").reason))
            waiting.start()
            listeners = [Listener(gateway, token), Listener(gateway, token)]
            hearing = [
                threading.Thread(target=listeners[0].blocking),
                threading.Thread(target=trio.run, args=(listeners[1].awaiting,)),
            ]
            for thread, listener in zip(hearing, listeners, strict=True):
                thread.start()
                listener.until_it_hears()
            first.kill()
            first.wait()
            found: list[str] = []
            thread = threading.Thread(target=lambda: found.append(api.request("vm", hours=1).id))
            thread.start()
            second = started(whole)
            thread.join(timeout=60)
            assert [one.id for one in api.leases()] == [before.id, *found]
            api.close(before, "seen by who waits")
            waiting.join(timeout=60)
            assert closed == ["seen by who waits"]
            for thread in hearing:
                thread.join(timeout=60)
            assert [(one.heard.count("ask"), one.heard[-1]) for one in listeners] == [(1, "close")] * 2
        second.terminate()
        assert second.wait(timeout=30) == 0


def test_a_run_outlives_its_gateway(tmp_path: Path) -> None:
    """Its lease is kept alive by the next one; nothing is said of it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    actors, whole, end = tmp_path / "actors.toml", tmp_path / "whole.toml", tmp_path / "end"
    actors.write_text(site_and_broker(INVENTORY.partition("[actor.web]")[0], "alpha"))
    whole.write_text(site_and_broker(INVENTORY.replace("unix:web.http", url), "alpha"))
    gateway = GatewayUnderTest(whole, load(whole).state)
    line = f"run vm 1 --for 1h --keepalive 9s --url {url} -- sh -c".split()
    script = f"echo begun; until test -e {end}; do sleep 0.05; done"
    with running(actors):
        first, token = started(whole), gateway.token("carl", alpha="user")
        run = subprocess.Popen(
            [sys.executable, "-m", "leasekit.cli.main", *line, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "LEASEKIT_TOKEN": token},
        )  # fmt: skip
        assert run.stdout is not None
        assert run.stdout.readline() == b"begun\n"
        first.kill()
        first.wait()
        with socket.create_server(("127.0.0.1", port)) as nobody:
            nobody.accept()[0].close()  # it has said that it is there, to no gateway
        second = started(whole)
        end.touch()
        _, told = run.communicate(timeout=60)
        assert run.returncode == 0
        assert told.decode().splitlines()[1:] == [], "no more than what it has"
        with Client(url, token) as api:
            (lease,) = api.leases(all=True)
            assert api.wait(lease, "closed").reason == "its command has ended"
        second.terminate()
        assert second.wait(timeout=30) == 0


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.soak)])
def test_a_gateway_that_is_killed_again_and_again(tmp_path: Path, kills: int) -> None:
    """Under load: what was answered holds, and what was asked for, however often it had to be sent, was done once."""
    actors, whole = tmp_path / "actors.toml", tmp_path / "whole.toml"
    actors.write_text(site_and_broker(INVENTORY.partition("[actor.web]")[0], "alpha"))
    whole.write_text(site_and_broker(INVENTORY, "alpha"))
    gateway = GatewayUnderTest(whole, load(whole).state)
    answered: dict[str, str] = {}
    wanted: list[str] = []
    served: set[int] = set()
    more, over = threading.Condition(), threading.Event()

    def ask(token: str, worker: int) -> None:
        with client(gateway, token) as api:
            for number in itertools.count():
                if over.is_set():
                    return
                name = f"w{worker}-{number}"
                wanted.append(name)
                lease = api.request("vm", hours=1, name=name)
                api.close(lease)
                with more:
                    answered[name] = lease.id
                    served.add(worker)
                    more.notify()

    with running(actors):
        process = started(whole)
        token = gateway.token("carl", alpha="user")
        with ThreadPoolExecutor() as pool:
            workers = [pool.submit(ask, token, worker) for worker in range(3)]
            for _ in range(kills):
                with more:  # each of them has got through, so that none runs out of tries
                    served.clear()
                    assert more.wait_for(lambda: len(served) == 3, timeout=60)
                process.kill()
                process.wait()
                process = started(whole)
            over.set()
            for worker in workers:
                worker.result(timeout=60)
        with client(gateway, token) as api:
            there = {one.id: one for one in api.leases(all=True)}  # one that ends between two pages is on both
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert sorted(one.name for one in there.values()) == sorted(wanted)
    assert {one.name: one.id for one in there.values()} == answered
    assert {one.pending or one.state for one in there.values()} <= {"closed", "closing", "close_wait"}


def started(file: Path) -> subprocess.Popen[bytes]:
    """The gateway of a file, in a process of its own, once it listens."""
    up = [sys.executable, "-m", "leasekit.cli.main", "up", str(file), "web"]
    process = subprocess.Popen(up, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready web")
    return process
