"""Many want the same at once: real daemons, each a process of its own, over real sockets.

Requests of several guests are on their way together, each guest's by the hundred; what counts is who has what in the
end, by all three sides' records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from runtime.runtime_processes import Daemons
from system.system_waits import wait_until

from leasekit.core.time import HOUR
from leasekit.runtime.client import RequestError

pytestmark = pytest.mark.xdist_group("simultaneous")

GUESTS = ("ann", "bob", "cid", "dot")
HOST, FEW, MANY = "host", "few", "many"
UNITS = {HOST: 1, FEW: 4, MANY: 100}

DEPLOY = """
[deployment]
name = "rush"
create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
settings = { retry_first = "100ms", retry_max = "1s" }
[actor.site.driver.none]
kind = "null"

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
settings = { request_timeout = "5m", retry_first = "100ms", retry_max = "1s" }
mapper = { name = "fcfs" }
"""
INVENTORY = """
[[actor.site.inventory]]
type = "{type}"
units = {units}
driver = "none"
[[actor.site.delegation]]
broker = "broker"
type = "{type}"
"""
GUEST = """
[actor.{name}]
role = "guest"
mapper = {{ name = "manual" }}
settings = {{ request_timeout = "10m", retry_first = "100ms", retry_max = "1s" }}
transport = {{ backoff_max = "1s" }}
"""


class Rush(Daemons):
    """The daemons, and what several guests ask of them together."""

    def at_once(self, wishes: dict[str, Sequence[dict[str, Any]]]) -> dict[str, list[str]]:
        """Have each guest send all of its requests, none waiting for another; the ids by guest."""
        barrier = threading.Barrier(len(wishes))
        found: dict[str, list[Any]] = {}

        def ask(guest: str, theirs: Sequence[dict[str, Any]]) -> None:
            with self.client(guest) as client:
                barrier.wait()
                found[guest] = list(client.batch(("command", "lease.request", wish) for wish in theirs))

        threads = [threading.Thread(target=ask, args=item) for item in wishes.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {guest: [answer["id"] for answer in answers] for guest, answers in found.items()}

    def settled(self, asked: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
        """All leases that were asked for, by id, once no request waits any more."""

        every = {id_ for ids in asked.values() for id_ in ids}

        def waiting() -> int:
            known = [lease for guest in asked for lease in self.query(guest, "leases")]
            return sum(lease["state"] == "nascent" for lease in known if lease["id"] in every)

        wait_until("answers", waiting)
        found: dict[str, dict[str, Any]] = {}
        for guest, ids in asked.items():
            with self.client(guest) as client:
                found |= zip(ids, client.batch(("query", "lease", {"lease": id_}) for id_ in ids), strict=True)
        assert len(found) == sum(map(len, asked.values())), "every request made a lease of its own"
        return found

    def taken(self, type_: str, start: int, end: int) -> int:
        """How many units of a type the broker's records have as granted within a term."""
        (source,) = [source["source"] for source in self.query("broker", "sources") if source["type"] == type_]
        claims = [
            claim
            for lease in self.query("broker", "leases")
            for claim in lease["claims"]
            if claim["source"] == source and claim["term"][0] < end and claim["term"][1] > start
        ]
        return sum(claim["units"] for claim in claims)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deploy file."""
    made = tmp_path_factory.mktemp("rush") / "rush.toml"
    text = DEPLOY + "".join(INVENTORY.format(type=type_, units=units) for type_, units in UNITS.items())
    made.write_text(text + "".join(GUEST.format(name=name) for name in GUESTS))
    return made


@pytest.fixture(scope="module")
def rush(file: Path) -> Iterator[Rush]:
    """All daemons, running."""
    with Rush(file, file.parent / "s") as made:
        made.start_all()
        yield made


def wish(type_: str, start: int, end: int, units: int = 1, **more: Any) -> dict[str, Any]:
    return {"type": type_, "units": units, "term": [start, end], **more}


@pytest.fixture
def hour(days: Iterator[int]) -> int:
    """The start of a day that no other test uses."""
    return next(days)


@pytest.fixture(scope="module")
def days() -> Iterator[int]:
    """Days to come."""
    return count(int(time.time() * 1000) + 24 * HOUR, 24 * HOUR)


@pytest.mark.parametrize("requests", [8, 800])
def test_one_of_many_gets_the_host(rush: Rush, hour: int, requests: int) -> None:
    """Of simultaneous requests for one host exactly one is granted; every other is refused, with the earliest fit."""
    each = [wish(HOST, hour, hour + HOUR)] * (requests // len(GUESTS))
    leases = rush.settled(rush.at_once(dict.fromkeys(GUESTS, each))).values()
    assert sorted(lease["state"] for lease in leases) == ["failed"] * (requests - 1) + ["ticketed"]
    for lease in leases:
        if lease["state"] == "failed":
            assert lease["reason"].startswith("insufficient resources") and str(hour + HOUR) in lease["reason"]
    assert rush.taken(HOST, hour, hour + HOUR) == 1


def test_one_of_many_has_the_host(rush: Rush) -> None:
    """The same for a lease that begins now, up to the unit itself: one guest has it, and the site knows of it alone."""
    now = int(time.time() * 1000)
    asked = rush.at_once(dict.fromkeys(GUESTS, [wish(HOST, now, now + HOUR)] * 10))
    got = [lease for lease in rush.settled(asked).values() if lease["state"] != "failed"]
    assert len(got) == 1
    guest = next(guest for guest, ids in asked.items() if got[0]["id"] in ids)
    lease = rush.wait_for(guest, got[0]["id"], state="active", join="joined")
    assert len(lease["units"]) == 1
    (known,) = [unit for unit in rush.query("site", "units") if unit["type"] == HOST]
    assert known["lease"] == lease["id"]
    rush.command(guest, "lease.close", lease=lease["id"])
    wait_until("the host is free", lambda: [u for u in rush.query("site", "units") if u["state"] != "free"])


def test_no_more_than_there_are(rush: Rush, hour: int) -> None:
    """800 that want a unit each of a hundred: a hundred have one."""
    asked = rush.at_once(dict.fromkeys(GUESTS, [wish(MANY, hour, hour + HOUR)] * 200))
    states = [lease["state"] for lease in rush.settled(asked).values()]
    assert (states.count("ticketed"), states.count("failed")) == (UNITS[MANY], 800 - UNITS[MANY])
    assert rush.taken(MANY, hour, hour + HOUR) == UNITS[MANY]


def test_elastic_gets_what_is_free(rush: Rush, hour: int) -> None:
    """At least 1, at most 4, with four free: four. With one taken by then, three; with none free, a refusal."""
    elastic = {"elastic": "true", "min_units": "1"}
    for taken, units in ((0, 4), (1, 3), (4, 0)):
        hour += 2 * HOUR
        if taken:
            rush.settled({"ann": [rush.command("ann", "lease.request", **wish(FEW, hour, hour + HOUR, taken))["id"]]})
        asked = {
            "bob": [rush.command("bob", "lease.request", **wish(FEW, hour, hour + HOUR, 4, properties=elastic))["id"]]
        }
        (lease,) = rush.settled(asked).values()
        if units:
            assert (lease["state"], lease["approved"]["units"]) == ("ticketed", units)
        else:
            assert lease["state"] == "failed"
        assert rush.taken(FEW, hour, hour + HOUR) == 4


def test_elastic_requests_share_what_there_is(rush: Rush, hour: int) -> None:
    """Of simultaneous elastic requests all units are given out, and none twice."""
    elastic = {"elastic": "true", "min_units": "1"}
    each = [wish(FEW, hour, hour + HOUR, 4, properties=elastic)] * 5
    leases = rush.settled(rush.at_once(dict.fromkeys(GUESTS, each))).values()
    assert sum(lease["approved"]["units"] for lease in leases if lease["state"] == "ticketed") == 4
    assert rush.taken(FEW, hour, hour + HOUR) == 4


def test_touching_reservations(rush: Rush, hour: int) -> None:
    """Terms of one host that touch don't collide: each of four at once is granted; one millisecond more isn't."""
    terms = [(hour + n * HOUR, hour + (n + 1) * HOUR) for n in range(len(GUESTS))]
    asked = rush.at_once({guest: [wish(HOST, *term)] for guest, term in zip(GUESTS, terms, strict=True)})
    assert [lease["state"] for lease in rush.settled(asked).values()] == ["ticketed"] * len(GUESTS)
    for start, end in ((hour - HOUR, hour + 1), (hour + 4 * HOUR - 1, hour + 5 * HOUR)):
        over = {"ann": [rush.command("ann", "lease.request", **wish(HOST, start, end))["id"]]}
        assert [lease["state"] for lease in rush.settled(over).values()] == ["failed"]


def test_extending_into_a_reservation(rush: Rush) -> None:
    """An extend into another's reservation is refused and changes nothing: not the lease, not the reservation."""
    now = int(time.time() * 1000)
    end = now + HOUR
    mine = rush.command("ann", "lease.request", **wish(HOST, now, end))["id"]
    before = rush.wait_for("ann", mine, state="active", join="joined")
    theirs = rush.command("bob", "lease.request", **wish(HOST, end, end + HOUR))["id"]
    reservation = rush.wait_for("bob", theirs, state="ticketed", pending="-")
    claims = rush.query("broker", "lease", lease=mine)["claims"]
    with rush.client("ann") as watcher:
        events = watcher.watch(mine, patience=30)
        rush.command("ann", "lease.extend", lease=mine, end=end + 1)
        assert any(event["event"] == "ticket_refused" for event in events)
    after = rush.query("ann", "lease", lease=mine)
    same = ("state", "pending", "join", "end", "units", "approved", "granted", "renewal")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    assert "insufficient resources" in after["reason"]
    assert rush.query("broker", "lease", lease=mine)["claims"] == claims
    assert rush.query("bob", "lease", lease=theirs) == reservation
    for guest, lease in (("ann", mine), ("bob", theirs)):
        rush.command(guest, "lease.close", lease=lease)
    wait_until("the host is free", lambda: [u for u in rush.query("site", "units") if u["state"] != "free"])
    wait_until("the host can be had", lambda: rush.taken(HOST, now, end + HOUR))


@pytest.mark.parametrize("after", [1, 60, 400])
def test_a_broker_that_is_killed_amid_it(rush: Rush, hour: int, after: int) -> None:
    """SIGKILL after so many transitions, and a start: every request is answered, once, and nothing is overbooked."""
    with ExitStack() as stack:
        events = stack.enter_context(rush.client("broker")).watch(patience=60)
        asking = threading.Thread(
            target=lambda: found.update(rush.at_once(dict.fromkeys(GUESTS, [wish(MANY, hour, hour + HOUR)] * 200)))
        )
        found: dict[str, list[str]] = {}
        asking.start()
        seen = 0
        while seen < after:
            seen += next(events).get("missed", 1)
        rush.kill("broker")
    rush.start("broker")
    asking.join()
    leases = rush.settled(found)
    granted = {id_ for id_, lease in leases.items() if lease["state"] == "ticketed"}
    assert len(leases) == 800 and len(granted) == UNITS[MANY]
    assert rush.taken(MANY, hour, hour + HOUR) == UNITS[MANY]
    at_broker = {lease["id"]: lease for lease in rush.query("broker", "leases") if lease["id"] in leases}
    assert {id_ for id_, lease in at_broker.items() if lease["state"] == "ticketed"} == granted
    assert rush.query("broker", "status")["waiting"] == 0


def test_probing_takes_nothing_from_others(rush: Rush, hour: int) -> None:
    """What many are told that they would get at the same time is still to be had by who then asks in earnest."""
    with rush.client("ann") as one, rush.client("bob") as other:
        probe = ("command", "lease.dry_run", wish(FEW, hour, hour + HOUR, 3))
        answers = [*one.batch([probe] * 8), *other.batch([probe] * 8)]
        told = [answer["status"] for answer in answers if not isinstance(answer, RequestError)]
        assert told and set(told) == {"granted"}
        assert all("try again later" in str(answer) for answer in answers if isinstance(answer, RequestError))
    asked = {"cid": [rush.command("cid", "lease.request", **wish(FEW, hour, hour + HOUR, 4))["id"]]}
    assert [lease["state"] for lease in rush.settled(asked).values()] == ["ticketed"]
