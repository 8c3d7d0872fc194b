"""Users of a chaos run: they ask for leases, change and close them all the time, and write down what they were told.

``told``: a request was acknowledged. ``may_close``: somebody is about to close a lease, or lets it depend on another.
``closed``: a close was acknowledged. ``seen``: a state that a guest has shown of a lease.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any, Final

from system.chaos_world import BROKERS, SITES, World

from leasekit.core.time import MINUTE
from leasekit.runtime.client import ControlClient, ControlError, RequestError

OPEN_MAX: Final = 9
"""How many leases of a guest are open at a time."""
ORDER: Final = ("nascent", "ticketed", "active", "active_ticketed")
OVER: Final = ("closed", "failed")


class User(threading.Thread):
    """Who uses one guest."""

    def __init__(self, world: World, guest: str, seed: int) -> None:
        super().__init__(name=f"user-{guest}", daemon=True)
        self._world, self.guest = world, guest
        self._random = random.Random(f"{seed} {guest}")
        self._over = threading.Event()
        self._groups = 0
        self.asked: list[str] = []
        self.closed: set[str] = set()
        self.seen: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.problem: BaseException | None = None

    def run(self) -> None:
        """Until :meth:`finish`; a guest that is gone is tried again."""
        while not self._over.is_set():
            try:
                with self._world.client(self.guest, timeout=5) as client:
                    while not self._over.wait(self._random.uniform(0.005, 0.05)):
                        self._once(client)
            except ControlError:
                self.counts["cut off"] += 1
                self._over.wait(0.02)
            except BaseException as error:  # noqa: BLE001 - the test's own thread looks at it
                self.problem = error
                return

    def finish(self) -> None:
        """Do nothing more. Raises what went wrong."""
        self._over.set()
        self.join()
        if self.problem is not None:
            raise self.problem

    def ask_for_long(self) -> None:
        """Ask for a unit for ten minutes, as soon as there is one."""
        start = int(time.time() * 1000)
        wish = {
            "type": "vm", "units": 1, "properties": {"deferrable": "true", "request_timeout": "2m"},
            "broker": BROKERS[0], "term": [start, start + 10 * MINUTE],
        }  # fmt: skip
        with self._world.client(self.guest) as client:
            self._request(client, wish)

    def look(self, client: ControlClient) -> list[dict[str, Any]]:
        """All leases that the guest knows; none goes back from what it was seen to be."""
        leases: list[dict[str, Any]] = client.query("leases", all=True)
        for lease in leases:
            self.note(lease["id"], lease["state"], lease["reason"])
        return leases

    def note(self, lease: str, state: str, reason: str) -> None:
        """A lease was shown in a state: what was shown before must allow that."""
        before = self.seen.get(lease, "")
        if before == state:
            return
        self.seen[lease] = state
        self._world.journal.write("seen", (self.guest, lease, state))
        back = before in ORDER[2:] and state in (*ORDER[:2], "failed")
        assert not back and before not in OVER, f"{self.guest} showed {lease} as {before}, now {state} ({reason})"

    def _once(self, client: ControlClient) -> None:
        leases = [lease for lease in self.look(client) if lease["state"] not in OVER]
        if len(leases) < OPEN_MAX:
            self._ask(client, leases)
            return
        rng = self._random
        ready = [lease for lease in leases if lease["state"] == "active" and lease["pending"] == "-"]
        if rng.random() < 0.1:
            lease, kind = rng.choice(leases), rng.choice(("close", "extend", "modify"))
        elif ready:
            lease, kind = rng.choice(ready), rng.choice(("close", "extend", "flex", "modify", "modify"))
        else:
            return
        arguments: dict[str, Any] = {"lease": lease["id"]}
        if kind in ("extend", "flex"):
            arguments["end"] = lease["end"] + rng.choice((1000, 4000, 60_000))
            arguments["units"] = lease["units"] if kind == "extend" else rng.randint(1, 4)
            kind = "extend"
        elif kind == "modify":
            arguments |= self._change(lease)
        else:
            self._world.journal.write("may_close", lease["id"])
        try:
            client.command(f"lease.{kind}", **arguments)
        except RequestError:
            self.counts[f"{kind} refused"] += 1  # it is in no state for that, or over by now
            return
        self.counts[f"{kind} acknowledged"] += 1
        if kind == "close":
            self.closed.add(lease["id"])
            self._world.journal.write("closed", (self.guest, lease["id"]))

    def _change(self, lease: dict[str, Any]) -> dict[str, Any]:
        change: dict[str, Any] = {}
        if self._random.random() < 0.6:
            change["units"] = self._random.randint(1, 4)
        if self._random.random() < 0.4:
            change["end"] = lease["end"] + self._random.choice((-1000, 3000))
        if self._random.random() < 0.4 or not change:
            change["configuration"] = {"size": str(self._random.randint(1, 9))}
        return change

    def _ask(self, client: ControlClient, leases: list[dict[str, Any]]) -> None:
        rng = self._random
        properties: dict[str, str] = {}
        if rng.random() < 0.6:
            properties |= {"deferrable": "true", "request_timeout": "10s"}
        if rng.random() < 0.3:
            properties |= {"elastic": "true", "min_units": "1"}
        start = int(time.time() * 1000) + rng.choice((0, 0, 300, 1500))
        wish: dict[str, Any] = {
            "type": "vm", "units": rng.randint(1, 3), "properties": properties, "broker": rng.choice(BROKERS),
            "term": [start, start + rng.choice((1500, 3000, 5000, 600_000))],
        }  # fmt: skip
        if rng.random() < 0.2:
            wish["site"] = rng.choice(SITES)
        if rng.random() < 0.1:
            self._ask_for_group(client, wish)
            return
        if leases and rng.random() < 0.1:
            wish[rng.choice(("redeem_predecessor", "join_predecessor"))] = rng.choice(leases)["id"]
        self._request(client, wish)

    def _ask_for_group(self, client: ControlClient, wish: dict[str, Any]) -> None:
        """Two requests that are granted together, or not at all."""
        self._groups += 1
        name = f"{self.guest}-{self._groups}"
        wish.pop("site", None)
        for properties in ({"group_id": name, "lease_count": "2"}, {"group_id": name}):
            self._request(client, {**wish, "units": self._random.randint(1, 2), "properties": properties})

    def _request(self, client: ControlClient, wish: dict[str, Any]) -> None:
        try:
            lease = str(client.command("lease.request", **wish)["id"])
        except RequestError:
            self.counts["request refused"] += 1
            return
        self.counts["request acknowledged"] += 1
        self.asked.append(lease)
        if "redeem_predecessor" in wish or "join_predecessor" in wish:
            self._world.journal.write("may_close", lease)
        self._world.journal.write("told", (self.guest, lease))
