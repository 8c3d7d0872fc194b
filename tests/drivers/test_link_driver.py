"""The link driver on real interfaces in network namespaces: real TCP transfers, flexed, restarted, taken away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from link_lab import LinkLab

from leasekit.core.drivers import Driver, DriverError, UnitContext
from leasekit.core.settings import SettingsError
from leasekit.drivers.registry import examine, make_driver

GRANULE = {"link.granule_mbps": "5"}

# What passes above a rate shows a fault of shaping; below it, a busy machine may be all that there is to see.
ABOVE, BELOW = 1.05, 0.5


@pytest.fixture
def lab() -> Iterator[LinkLab]:
    made = LinkLab()
    yield made
    made.close()


class Wire:
    """A driver of the link ``wire`` between a and b, with shorter words for what it is asked for."""

    def __init__(self, lab: LinkLab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder / "links"
        self.lines: list[str] = []
        self.driver = self.make()

    def make(self, **link: Any) -> Driver:
        return make_driver("link", self.lab.settings(self.folder, "wire", link=link), "link")

    def unit(self, unit: str, lease: str = "one", op: str = "setup", **properties: str) -> UnitContext:
        given = GRANULE | properties
        log = self.lines.append
        return UnitContext(unit=unit, type="wire", lease=lease, op=op, number=1, properties=given, log=log)

    async def up(self, lease: str, *units: int, **properties: str) -> dict[str, str]:
        found = {}
        async with trio.open_nursery() as nursery:

            async def one(number: int) -> None:
                found[number] = await self.driver.setup(self.unit(f"g{number}", lease, **properties))

            for number in units:
                nursery.start_soon(one, number)
        return dict(found[units[-1]])

    async def down(self, *units: int) -> None:
        for number in units:
            await self.driver.teardown(self.unit(f"g{number}", op="teardown"))

    async def state(self, number: int) -> str:
        return (await self.driver.probe(self.unit(f"g{number}", op="probe"))).state

    def flow(self, properties: dict[str, str], seconds: float, *, back: bool = False) -> Any:
        ends = [("a", properties["address.a"]), ("b", properties["address.b"])]
        (here, source), (there, target) = reversed(ends) if back else ends
        return self.lab.flow(here, source, there, target, seconds)


@pytest.fixture
def wire(lab: LinkLab, tmp_path: Path) -> Wire:
    return Wire(lab, tmp_path)


async def _finished(flow: Any) -> Any:
    return await trio.to_thread.run_sync(flow.finish)


async def test_two_leases_each_get_their_rate(wire):
    """Two transfers at once, one in each direction, get what their leases have: never more, and about that."""
    small = await wire.up("small", 1, 2)
    large = await wire.up("large", 3, 4, 5, 6, 7, 8, 9, 10)
    assert small["subnet"] != large["subnet"]
    flows = [wire.flow(small, 2.5), wire.flow(large, 2.5, back=True)]
    rates = [(await _finished(flow)).mbps(0.5, 2.5) for flow in flows]
    print(f"leased 10 and 40 Mbit/s, measured {rates[0]:.1f} and {rates[1]:.1f}")
    assert 10 * BELOW <= rates[0] <= 10 * ABOVE
    assert 40 * BELOW <= rates[1] <= 40 * ABOVE
    measured = (await wire.driver.probe(wire.unit("g3", "large", "probe"))).measured
    assert measured["rate_mbps"] == 40
    assert measured["b_sent_bytes"] > 40e6 / 8 > measured["a_sent_bytes"]
    await wire.down(*range(1, 11))
    assert wire.lab.leftovers() == []
    assert list(wire.folder.iterdir()) == []


async def test_a_lease_that_grows_and_shrinks_in_mid_transfer(wire):
    """Units that come while data flows raise its rate at once, and units that go lower it; the stream goes on."""
    properties = await wire.up("one", 1, 2)
    flow = wire.flow(properties, 4)
    await trio.to_thread.run_sync(flow.wait_half)
    await wire.up("one", 3, 4, 5, 6, 7, 8)
    transfer = await _finished(flow)
    before, after = transfer.mbps(0.5, 2), transfer.mbps(3, 4)
    print(f"leased 10 then 40 Mbit/s, measured {before:.1f} then {after:.1f}")
    assert before <= 10 * ABOVE
    assert max(10 * ABOVE, 40 * BELOW) < after <= 40 * ABOVE
    await wire.down(8, 3, 1, 7, 5, 6)
    flow = wire.flow(properties, 1.5)
    assert (await _finished(flow)).mbps(0.5, 1.5) <= 10 * ABOVE
    await wire.down(2, 4)
    assert wire.lab.leftovers() == []


async def test_other_traffic_gets_what_is_left_or_nothing(wire):
    """Traffic of no lease gives way to leases (``share``), or does not pass (``none``), where leased traffic does."""
    for here, address in (("a", "10.9.9.1"), ("b", "10.9.9.2")):
        wire.lab.inside(here, "ip", "address", "add", f"{address}/24", "dev", "to-b" if here == "a" else "to-a")
    wire.driver = wire.make(capacity_mbps=40)
    leased = await wire.up("one", 1, 2, 3, 4, 5, 6)
    flows = [wire.lab.flow("a", "10.9.9.1", "b", "10.9.9.2", 2), wire.flow(leased, 2)]
    rest, mine = [(await _finished(flow)).mbps(0.5, 1.9) for flow in flows]
    print(f"leased 30 of 40 Mbit/s, measured {mine:.1f}, others {rest:.1f}")
    assert mine >= 30 * BELOW
    assert mine + rest <= 40 * ABOVE
    assert rest < 30
    await wire.down(*range(1, 7))
    wire.driver = wire.make(rest="none")
    leased = await wire.up("one", 1)
    assert (await _finished(wire.flow(leased, 1))).mbps(0.2, 1) > 0
    pinged = ["ip", "netns", "exec", wire.lab.namespace("a"), sys.executable, "-c", CONNECT, "10.9.9.2"]
    assert subprocess.run(pinged, check=False).returncode == 7
    await wire.down(1)
    assert subprocess.run(pinged, check=False).returncode == 0


CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=1)
except ConnectionRefusedError:
    sys.exit(0)
except TimeoutError:
    sys.exit(7)
"""


async def test_ipv6(wire):
    """A link whose subnets are of IPv6 shapes the same way."""
    wire.driver = wire.make(subnets="fd00:77::/112", prefix=120)
    properties = await wire.up("one", 1, 2)
    assert properties["subnet"] == "fd00:77::/120"
    rate = (await _finished(wire.flow(properties, 1.5))).mbps(0.5, 1.5)
    assert 10 * BELOW <= rate <= 10 * ABOVE
    await wire.down(1, 2)
    assert wire.lab.leftovers() == []


async def test_a_reboot_loses_nothing(wire):
    """What the kernel forgot is there again once a new daemon looks at a unit; its address is the one it had."""
    first = await wire.up("one", 1)
    second = await wire.up("two", 2)
    before = wire.lab.shaped("a", "b").splitlines()
    for here, there in (("a", "b"), ("b", "a")):
        wire.lab.inside(here, "tc", "qdisc", "del", "dev", f"to-{there}", "root")
        wire.lab.inside(here, "ip", "address", "flush", "dev", f"to-{there}", "scope", "global")
    assert [await wire.state(n) for n in (1, 2)] == ["down", "down"]
    wire.driver = wire.make()
    assert [await wire.state(n) for n in (1, 2)] == ["up", "up"]
    assert await wire.up("two", 2) == second
    assert await wire.up("one", 1) == first
    assert len(wire.lab.shaped("a", "b").splitlines()) == len(before)
    await wire.down(1, 2)
    assert wire.lab.leftovers() == []


async def test_a_daemon_killed_between_record_and_kernel(wire):
    """What a record no longer has is taken from the kernel at the next action, and what only it has is given."""
    await wire.up("one", 1)
    await wire.up("two", 2)
    (file,) = wire.folder.iterdir()
    with_both = file.read_text()
    await wire.down(1)
    with_second = file.read_text()
    await wire.up("one", 1)
    file.write_text(with_second)
    wire.driver = wire.make()
    assert await wire.state(1) == "down"
    await wire.up("two", 2)
    assert len(wire.lab.addresses("a", "b")) == 1
    file.write_text(with_both)
    wire.driver = wire.make()
    await wire.up("two", 2)
    assert [await wire.state(n) for n in (1, 2)] == ["up", "up"]
    await wire.down(2, 1)
    assert wire.lab.leftovers() == []


CHILD = """
import json, sys, trio
from leasekit.core.drivers import UnitContext
from leasekit.drivers.registry import make_driver
given = json.load(sys.stdin)
driver = make_driver("link", given["settings"], "link")
for op in given["ops"]:
    unit = UnitContext(
        unit="g2", type="wire", lease="two", op=op, number=1, properties={}, log=lambda line: None
    )
    trio.run(getattr(driver, op), unit)
"""


@pytest.mark.parametrize("op", ["setup", "teardown"])
async def test_a_daemon_killed_at_each_change(wire, op, tmp_path):
    """Killed at any of its commands, a daemon leaves what the next one finishes: set up again a unit is up with the
    same addresses, torn down it leaves nothing, and the lease beside it is never touched.
    """
    beside = await wire.up("one", 1)
    counter, fatal = tmp_path / "count", tmp_path / "tc"
    died = 0
    for step in range(1, 20):
        wire.driver = wire.make()
        if op == "teardown":
            await wire.up("two", 2)
        counter.write_text("")
        fatal.write_text(FATAL.format(counter=counter, step=step))
        fatal.chmod(0o755)
        settings = wire.lab.settings(wire.folder, "wire", tc=str(fatal))
        given = json.dumps({"settings": settings, "ops": [op]})
        done = await trio.run_process([sys.executable, "-c", CHILD], stdin=given.encode(), check=False)
        wire.driver = wire.make()
        assert await wire.up("one", 1) == beside
        if op == "setup":
            assert (await wire.up("two", 2))["subnet"] == "10.201.0.4/30"
            assert await wire.state(2) == "up"
        await wire.down(2)
        assert wire.lab.addresses("a", "b") == {beside["address.a"]}
        assert "1ea5:12" not in wire.lab.shaped("a", "b") + wire.lab.shaped("b", "a")
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        died += 1
    assert died >= 2
    assert await wire.state(1) == "up"
    await wire.down(1)
    assert wire.lab.leftovers() == []


# Looking is as ever; at the change of that number its caller dies, with the change done at every other one.
FATAL = """#!/bin/sh
case "$*" in *-batch*) ;; *) exec tc "$@";; esac
echo x >> {counter}
if [ "$(wc -l < {counter})" -ne {step} ]; then exec tc "$@"; fi
if [ $(({step} % 2)) -eq 0 ]; then tc "$@"; fi
kill -9 $PPID
"""


async def test_a_class_that_was_changed_by_hand_is_seen_and_mended(wire):
    """A probe says down of a class whose rate or filters are not the lease's; a setup again mends it."""
    await wire.up("one", 1)
    for words in (
        ("class", "change", "dev", "to-b", "parent", "1ea5:1", "classid", "1ea5:11", "htb", "rate", "1mbit"),
        ("filter", "del", "dev", "to-b", "parent", "1ea5:", "prio", "11"),
    ):
        wire.lab.inside("a", "tc", *words)
        assert await wire.state(1) == "down"
        await wire.up("one", 1)
        assert await wire.state(1) == "up"


async def test_a_unit_of_another_granule_and_a_unit_that_changes_hands(wire):
    """A modify brings a unit to another granule; a unit that is set up for another lease is only that one's."""
    await wire.up("one", 1, 2)
    await wire.driver.modify(wire.unit("g1", op="modify", **{"link.granule_mbps": "7.5"}))
    probe = await wire.driver.probe(wire.unit("g2", op="probe"))
    assert probe.measured["rate_mbps"] == 12.5
    await wire.up("two", 1)
    rates = [(await wire.driver.probe(wire.unit(unit, op="probe"))).measured["rate_mbps"] for unit in ("g1", "g2")]
    assert rates == [5, 5]
    with pytest.raises(DriverError, match="g1 is not set up for this lease"):
        await wire.driver.modify(wire.unit("g1", op="modify"))


async def test_what_a_link_has_not_is_refused(wire):
    """More than the capacity, more leases than subnets, another link, a granule that is none: each is one clear
    message, and leaves what there is as it was.
    """
    await wire.up("one", 1, 2)
    wire.driver = wire.make(capacity_mbps=8, subnets="10.201.0.0/30")
    await wire.up("one", 1, 2)
    wire.driver = wire.make(capacity_mbps=12, subnets="10.201.0.0/30")
    with pytest.raises(DriverError, match=r"link wire: its leases would have 15 Mbit/s of 12 Mbit/s"):
        await wire.driver.setup(wire.unit("g3"))
    with pytest.raises(DriverError, match=r"all 1 subnets of 10\.201\.0\.0/30 are taken"):
        await wire.driver.setup(wire.unit("g3", "two", **{"link.granule_mbps": "1"}))
    for text in ("0", "-1", "much", "0.0001", "1e99", "$(id)"):
        with pytest.raises(DriverError, match=r"link\.granule_mbps: found"):
            await wire.driver.setup(wire.unit("g3", **{"link.granule_mbps": text}))
    other = UnitContext(unit="u", type="wired", lease="l", op="setup", number=1, properties={}, log=wire.lines.append)
    with pytest.raises(DriverError, match=r"no link for the type 'wired', .*did you mean wire\?"):
        await wire.driver.setup(other)
    for refused in (wire.driver.join, wire.driver.leave):
        with pytest.raises(DriverError, match=r"for sites: it can't (join|leave) units"):
            await refused(wire.unit("g1"))
    assert [await wire.state(n) for n in (1, 2, 3)] == ["up", "up", "down"]


@pytest.mark.parametrize("lease", ["$(touch x)", "a\nqdisc del", "../../x", "x" * 500, "é; reboot"])
async def test_hostile_lease_ids_go_nowhere(wire, lease):
    """The id of a lease is in the driver's record and nowhere else: not in a command, not in a file's name."""
    await wire.up(lease, 1)
    assert [file.name for file in wire.folder.iterdir()] == ["wire.json"]
    assert "x" * 50 not in wire.lab.shaped("a", "b")
    wire.driver = wire.make()
    assert await wire.state(1) == "up"
    await wire.down(1)
    assert wire.lab.leftovers() == []


async def test_ends_that_are_not_there(wire):
    """A missing namespace, a missing interface, one that is down and one with a queue of somebody else's are named;
    a teardown of what an interface took with it is done.
    """
    for table, words in (
        ({"namespace": "no-such-place", "interface": "x"}, "end no-such-place/x is not there"),
        ({"namespace": wire.lab.namespace("a"), "interface": "nowhere"}, "a/nowhere is not there"),
    ):
        with pytest.raises(DriverError, match=words) as caught:
            await wire.make(a=table).setup(wire.unit("g1"))
        assert caught.value.retry
    where = ("-n", wire.lab.namespace("b"))
    wire.lab.run("ip", *where, "link", "set", "to-a", "down")
    with pytest.raises(DriverError, match=r"b/to-a is down: `ip link set to-a up`"):
        await wire.driver.setup(wire.unit("g1"))
    wire.lab.run("ip", *where, "link", "set", "to-a", "up")
    assert wire.lab.leftovers() == []
    wire.lab.run("tc", *where, "qdisc", "add", "dev", "to-a", "root", "handle", "7:", "bfifo")
    with pytest.raises(DriverError, match=r"has a queue bfifo 7: that is not leasekit's"):
        await wire.driver.setup(wire.unit("g1"))
    wire.lab.run("tc", *where, "qdisc", "del", "dev", "to-a", "root")
    await wire.up("one", 1)
    await wire.up("two", 2)
    wire.lab.run("ip", *where, "link", "set", "to-a", "down")
    assert await wire.state(1) == "down"
    await wire.down(1)
    assert "1ea5:11" not in wire.lab.shaped("b", "a")
    wire.lab.run("ip", *where, "link", "del", "to-a")
    with pytest.raises(DriverError, match=r"to-[ab] is not there"):
        await wire.driver.setup(wire.unit("g3"))
    assert await wire.state(2) == "down"
    await wire.down(2)
    assert list(wire.folder.iterdir()) == []


async def test_a_delay_is_there_or_refused(wire):
    """``delay`` makes a connection take at least twice as long; where the kernel has no netem it is refused by name."""
    wire.driver = wire.make(delay="40ms")
    try:
        properties = await wire.driver.setup(wire.unit("g1"))
    except DriverError as error:
        assert str(error) == "link wire: delay needs netem, which this kernel has not (module sch_netem)"
        assert wire.lab.leftovers() == []
    else:
        words = [sys.executable, "-c", MEASURE, properties["address.b"]]
        assert float(wire.lab.inside("a", *words)) >= 0.08


MEASURE = """
import socket, sys, time
begin = time.monotonic()
socket.socket().connect_ex((sys.argv[1], 9))
print(time.monotonic() - begin)
"""


async def test_a_damaged_record_is_named(wire):
    """A record that the driver has not written is an error with the file's name; nothing is shaped by it."""
    wire.folder.mkdir()
    file = wire.folder / "wire.json"
    for text in ("[]", "{", "{}", '{"leases": {"x": {"slot": 0, "units": {"u": 1}}}}', '{"leases": {"x": 1}}'):
        file.write_text(text)
        with pytest.raises(DriverError, match=r"wire\.json: found"):
            await wire.make().setup(wire.unit("g1"))
    assert wire.lab.leftovers() == []


def test_without_rights_or_programs(lab, tmp_path):
    """Where iproute2 is missing or the process must not shape, the daemon does not start: one line says what to do."""
    with pytest.raises(SettingsError) as caught:
        make_driver("link", lab.settings(tmp_path, "wire", tc="no-such-tc", ip="no-such-ip"), "link")
    assert [line.partition(":")[0] for line in caught.value.errors] == ["link.tc", "link.ip"]
    assert "it comes with the package iproute2" in caught.value.errors[0]
    child = (
        "import sys\n"
        "from leasekit.drivers.link.driver import missing_rights\n"
        "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(missing_rights(namespaces=True)); print(missing_rights(namespaces=False))\n"
    )
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
    advice = "which shaping needs: start the daemon as root, or with just that"
    assert done.stdout.splitlines() == [
        f"this process lacks CAP_NET_ADMIN and CAP_SYS_ADMIN, {advice}",
        f"this process lacks CAP_NET_ADMIN, {advice}",
    ]


async def test_an_examination_says_what_is_missing(lab, tmp_path):
    """Before any lease comes, it is told whether programs, rights and interfaces are there, with what to do."""
    given = lab.settings(tmp_path, "wire")
    found = await examine("link", given, "link")
    assert [(finding.what, finding.verdict) for finding in found] == [
        ("iproute2", "ok"),
        ("rights", "ok"),
        ("link wire", "ok"),
        ("link wire", "ok"),
    ]
    given["links"]["wire"]["b"]["interface"] = "nowhere"
    *_, last = await examine("link", given, "link")
    assert last.verdict == "doubtful"
    assert "/nowhere is not there" in last.found
    (only,) = await examine("link", {**given, "tc": "no-such-tc"}, "link")
    assert (only.verdict, only.advice) == ("missing", "install the package iproute2")


SETTINGS = {
    "links.w.a.interface": "found 'to;rm -rf', but expected 1 to 15 letters",
    "links.w.capacity_mbps": "found 0, but expected Mbit/s, 0.001 to 1000000",
    "links.w.delay": "found '1h', but expected at most 1m",
    "queue_time": "found '0s', but expected 1 ms to 10s",
    "links.w.rest": "found 'some', expected one of: 'share', 'none'",
}


def test_settings_are_checked_all_at_once():
    """Every fault of the settings is named with its key, before the world is touched."""
    table = {
        "a": {"interface": "to;rm -rf"}, "b": {"interface": "y", "namespace": "ok"}, "capacity_mbps": 0,
        "subnets": "10.0.0.0/24", "delay": "1h", "rest": "some",
    }  # fmt: skip
    with pytest.raises(SettingsError) as caught:
        make_driver("link", {"directory": "x", "queue_time": "0s", "links": {"w": table}}, "link")
    found = dict(line.removeprefix("link.").split(": ", 1) for line in caught.value.errors)
    assert set(found) == set(SETTINGS)
    for key, text in SETTINGS.items():
        assert found[key].startswith(text), (key, found[key])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"subnets": "10.0.0.1/24"}, "subnets: found '10.0.0.1/24', expected a network"),
        ({"prefix": 31}, "prefix: found 31, expected 24 to 30"),
        ({"prefix": 8}, "prefix: found 8, expected 24 to 30"),
        ({"b": {"interface": "x"}}, "b: found x again"),
    ],
)
def test_settings_that_don_t_fit_together(changes, words):
    """A subnet that is none, a prefix outside it and an interface with itself are named."""
    table = {"a": {"interface": "x"}, "b": {"interface": "y"}, "capacity_mbps": 1, "subnets": "10.0.0.0/24"}
    with pytest.raises(SettingsError) as caught:
        make_driver("link", {"directory": "x", "links": {"w": table | changes}}, "link")
    assert words in str(caught.value)


def test_links_that_share_what_they_must_not():
    """Two links have no interface and no address in common, and names that may be those of files."""
    table = {"a": {"interface": "x"}, "b": {"interface": "y"}, "capacity_mbps": 1, "subnets": "10.0.0.0/24"}
    other = {**table, "a": {"interface": "v"}, "b": {"interface": "w"}, "subnets": "10.0.0.128/25"}
    for links, words in (
        ({"p": table, "q": table | {"subnets": "10.1.0.0/24"}}, "links.q: found x, which link p has"),
        ({"p": table, "q": other}, "links.q.subnets: found 10.0.0.128/25, which overlaps that of link p"),
        ({"../p": table}, "links: found '../p', expected letters"),
    ):
        with pytest.raises(SettingsError) as caught:
            make_driver("link", {"directory": "x", "links": links}, "link")
        assert words in str(caught.value)
