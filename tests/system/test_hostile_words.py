"""What a guest may put into ids, slices and properties, redeemed at a live site by one who keeps to no rule of its own:
real scripts, a real dnsmasq and a real slapd hear of it.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from system.directory_world import Slapd, running_slapd
from system.libvirt_world import as_toml, open_world
from system.live_peers import LiveDaemon, LivePeer
from system.packages import DIRECTORY, require, require_root
from system.system_waits import wait_until
from system.test_directory import free_port, look_up

from leasekit.core.claims.claim import Ticket, decode_ticket, delegate
from leasekit.core.claims.signed import key_tag
from leasekit.core.protocol.messages import NEW, CloseLease, ErrorReply, LeaseUpdate, Offer, Redeem
from leasekit.core.reasons import words
from leasekit.core.time import MINUTE, SECOND, Term
from leasekit.runtime.client import RequestError

HEAD = """
[deployment]
name = "words"
[actor.site]
role = "authority"
listen = ["tcp://127.0.0.1:0"]
transport.connections_per_minute = 1000
"""
TYPE = """
[[actor.site.inventory]]
type = "{type}"
units = 100
prefix = "{type}-"
driver = "{type}"
[[actor.site.delegation]]
broker = "broker"
type = "{type}"
"""
SETUP = """
env -0 > "$OUT/heard.env"; cat > "$OUT/heard.json"
echo '{"hostname": "run-1.vms.example", "addresses": "10.7.0.1"}'
"""
ODD = [
    "'\"`$(touch owned)`\"'", "</name><x>&amp;<!--]]>", "../../../owned", "*)(uid=*))(|(uid=*", "a,ou=hosts,dc=example",
    "x=y;#\\", "10.9.9.9 bank.example", "-rf", " ", "é\u202e名\U0001f600", "%s{0}${HOME}", "x" * 60,
]  # fmt: skip
"""What a site takes: it is only text, wherever it comes to be."""
CONTROLS = ["a\nb", "a\0b", "\x1b[2J", "\x9b2J", "a\r10.9.9.9 bank.example"]


class LiveSite(LiveDaemon):
    """A site's daemon with a unit of each type; the test plays the broker that it delegates to, and a guest."""

    def __init__(self, folder: Path, drivers: dict[str, dict[str, Any]]) -> None:
        parts = [HEAD]
        for type_, table in drivers.items():
            parts += [TYPE.format(type=type_), as_toml(table, f"actor.site.driver.{type_}")]
        super().__init__(folder, "site", "\n".join(parts), {"broker": "broker", "mallory": "guest"})
        self.types = tuple(drivers)
        self.tickets: dict[str, Ticket] = {}
        self.numbers = itertools.count(1)

    async def take_offers(self) -> None:
        """Be the broker until the site has offered its units."""
        broker = await LivePeer.connect(self, "broker")
        while len(self.tickets) < len(self.types):
            ticket = decode_ticket((await broker.until(Offer)).ticket)
            self.tickets[ticket.leaf.type] = ticket
        await broker.stream.aclose()

    async def begin(self) -> HostileGuest:
        """The guest, connected."""
        if not self.tickets:
            await self.take_offers()
        return HostileGuest(self, await LivePeer.connect(self, "mallory"))

    def lease(self, id_: str) -> dict[str, Any]:
        """A lease as the site sees it; empty if it knows none."""
        with self.client() as client, suppress(RequestError):
            found: dict[str, Any] = client.query("lease", lease=id_)
            return found
        return {}

    def is_free(self) -> bool:
        """Whether no unit is anybody's."""
        with self.client() as client:
            return {unit["state"] for unit in client.query("units")} == {"free"}


class HostileGuest:
    """Says what it wants."""

    def __init__(self, site: LiveSite, peer: LivePeer) -> None:
        self.site, self.peer = site, peer
        self.tag = key_tag(site.keys["mallory"].public)

    def ticket(self, type_: str) -> bytes:
        """The site's unit of that type for a minute, as an honest broker grants it."""
        site, whole = self.site, self.site.tickets[type_]
        start = max(whole.leaf.term.start, int(time.time() * SECOND))
        return delegate(
            whole, site.keys["broker"], holder=site.keys["mallory"].public, units=1,
            term=Term(start, start + MINUTE), serial=next(site.numbers),
        ).encode()  # fmt: skip

    async def redeem(self, type_: str, word: str, places: Sequence[str]) -> tuple[str, str]:
        """Redeem a ticket, with ``word`` in those places; its id, and why it is refused (empty: it is active)."""
        id_ = f"{self.tag}-{next(self.site.numbers)}{word if 'id' in places else ''}"
        slice_ = word if "slice" in places else "s"
        properties = {(word if "key" in places else "key"): (word if "value" in places else "value")}
        if "image" in places:
            properties["image"] = word
        await self.peer.say(Redeem(id_, 1, NEW, slice_, self.ticket(type_), {}, properties, (), b""))
        while True:
            message = await self.peer.until(ErrorReply | LeaseUpdate)
            if isinstance(message, ErrorReply):
                return id_, words(message.reason)
            if isinstance(message, LeaseUpdate) and message.lease == id_ and message.state in ("active", "failed"):
                return id_, words(message.reason) if message.state == "failed" else ""

    async def close(self, id_: str) -> None:
        """End a lease, and wait until its unit is free."""
        await self.peer.say(CloseLease(id_, 2, b""))
        wait_until("a free unit", lambda: None if self.site.is_free() else self.site.lease(id_))


PLACES = ("id", "slice", "key", "value")


@pytest.fixture(scope="module")
def slapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    require_root()
    require(DIRECTORY)
    with running_slapd(tmp_path_factory.mktemp("slapd")) as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, slapd: Slapd) -> Iterator[LiveSite]:
    """A daemon with a unit whose setup is a script, and of which dnsmasq and slapd hear."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "out").mkdir()
    dns = {"folder": "names", "listen": "127.0.0.1", "port": free_port(), "domain": "vms.example"}
    site = LiveSite(folder, {"run": {
        "kind": "script", "setup": ["sh", "-c", SETUP], "teardown": ["true"],
        "environment": {"OUT": str(folder / "out")}, "publish": {"dnsmasq": dns, **slapd.settings},
    }})  # fmt: skip
    site.port_of_names = dns["port"]
    try:
        yield site
        with site.client() as client:
            assert client.query("status")["shell"]["bugs"] == 0
    finally:
        assert site.up.end() == 0
        with suppress(FileNotFoundError):
            os.kill(int((site.state / "names.pid").read_text()), signal.SIGTERM)


def files(folder: Path) -> set[str]:
    """All that lies below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("word", ODD)
async def test_odd_words_are_only_text(site: LiveSite, slapd: Slapd, word: str) -> None:
    """A script hears a guest's words as they were said, and nothing else of them; dnsmasq and slapd hear of the unit by
    plain names; nothing is left when the leases end, and no file is elsewhere.
    """
    out, guest = site.state.parent / "out", await site.begin()
    lease, problem = await guest.redeem("run", word, PLACES)
    assert problem == ""
    heard = json.loads((out / "heard.json").read_text())
    variables = dict(part.split("=", 1) for part in (out / "heard.env").read_text().split("\0") if part)
    assert (variables["LEASEKIT_LEASE"], heard["guest"]) == (lease, {word: word})
    assert {key: text for key, text in variables.items() if text == word and key != "LEASEKIT_SLICE_NAME"}.keys() <= {
        key for key in variables if key.startswith("LEASEKIT_GUEST_")
    }
    wait_until("the name", lambda: None if look_up("run-1", site.port_of_names) == {"10.7.0.1"} else "another")
    assert look_up("bank.example", site.port_of_names) == set()
    (unit,) = site.lease(lease)["units"]
    assert files(site.state / "names") == {unit if isinstance(unit, str) else unit["unit"]}
    hosts, users, slices = slapd.all()
    assert list(hosts) == ["cn=run-1.vms.example,ou=hosts,dc=example,dc=org"]
    assert list(users) == ["uid=mallory,ou=users,dc=example,dc=org"]
    assert len(slices) == 1
    await guest.close(lease)
    assert slapd.all() == [{}, {}, {}]
    assert files(site.state / "names") == set()
    assert files(out) == {"heard.env", "heard.json"}
    assert not [name for name in files(site.state.parent) if "owned" in name]
    await guest.peer.stream.aclose()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("word", CONTROLS)
async def test_control_characters_come_to_no_driver(site: LiveSite, word: str, place: str) -> None:
    """They are refused before anything is set up, but for newlines and tabs in values, which stay what they are."""
    guest = await site.begin()
    lease, problem = await guest.redeem("run", word, [place])
    if place == "value" and word == "a\nb":
        assert problem == ""
        assert json.loads((site.state.parent / "out" / "heard.json").read_text())["guest"] == {"key": word}
        await guest.close(lease)
    else:
        assert "control character" in problem and problem.isprintable()
        assert site.lease(lease) == {}
        assert site.is_free()
    await guest.peer.stream.aclose()


@pytest.mark.parametrize("place", PLACES)
async def test_words_that_are_too_long_are_refused(site: LiveSite, place: str) -> None:
    """By their lengths, before they are looked at."""
    guest = await site.begin()
    _, problem = await guest.redeem("run", "x" * 20_000, [place])
    assert problem and len(problem) < 2000
    assert site.is_free()
    await guest.peer.stream.aclose()


def shape(root: ElementTree.Element) -> list[str]:
    """The names of all elements of a document, in their order."""
    return [element.tag for element in root.iter()]


@pytest.mark.xdist_group("libvirt_leases")
@pytest.mark.parametrize("odd", [ODD[1::4], pytest.param(ODD, marks=pytest.mark.soak)], ids=len)
async def test_odd_words_are_only_text_for_libvirt(tmp_path: Path, odd: Sequence[str]) -> None:
    """libvirt's own document of a domain has the same elements whatever its guest has said, an image that is a path is
    refused, and nothing is left.
    """
    with open_world() as world:
        site = LiveSite(tmp_path, {"vm": {"kind": "libvirt", **world.settings(image="sector")}})
        try:
            guest, shapes = await site.begin(), list[list[str]]()
            for word in ("plain", *odd):
                lease, problem = await guest.redeem("vm", word, PLACES)
                if not word.isprintable():
                    assert "expected one line of printable text" in problem
                    continue
                assert problem == ""
                (name,) = world.host.domains()
                root = ElementTree.fromstring(world.host.connect().lookupByName(name).XMLDesc())
                shapes.append(shape(root))
                assert lease in {(element.text or "") for element in root.iter()} | {
                    value for element in root.iter() for value in element.attrib.values()
                }
                await guest.close(lease)
                assert world.host.domains() == []
            assert all(found == shapes[0] for found in shapes)
            for word in ("../../../etc/passwd", "</name><x>"):
                _, problem = await guest.redeem("vm", word, ["image"])
                assert "image" in problem and problem.isprintable()
            wait_until("a free unit", lambda: not site.is_free())
            await guest.peer.stream.aclose()
        finally:
            assert site.up.end() == 0
        assert world.left("leasekit-vm") == []
    assert not [name for name in files(tmp_path) if "owned" in name]
