"""SIGKILL at random moments: nothing that was acknowledged is lost, every lease settles, no process stays behind.

``LEASEKIT_KILLS`` says how many kills there are, those of test_chaos.py included, ``LEASEKIT_SEED`` which moments.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from runtime.runtime_processes import Daemons
from runtime.runtime_world import request
from system.chaos_rounds import PLAIN, SEED
from system.system_waits import no_units_left, unit_processes, wait_until

from leasekit.runtime.client import ControlError, RequestError

OPEN_MAX = 10
"""How many leases are open at a time."""
OVER = ("closed", "failed")

DEPLOYMENT = """
[deployment]
name = "kill"
create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
[actor.site.settings]
retry_first = "100ms"
retry_max = "1s"
[[actor.site.inventory]]
type = "vm"
units = 24
prefix = "vm-"
driver = "sleepers"
[[actor.site.delegation]]
broker = "broker"
type = "vm"
units = 24
[actor.site.driver.sleepers]
kind = "process"
directory = "units"
command = ["sleep", "1000000"]
ports = [PORTS]
ready = "start"
identify = false
grace = "2s"
timeout = "20s"

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
[actor.broker.settings]
retry_first = "100ms"
retry_max = "1s"
[actor.broker.mapper]
name = "fcfs"

[actor.guest]
role = "guest"
[actor.guest.settings]
retry_first = "100ms"
retry_max = "1s"
redeem_lead = "100ms"
extend_lead = "1s"
[actor.guest.mapper]
name = "manual"
"""


class Load(threading.Thread):
    """Asks the guest for leases, closes, extends and modifies some, and writes down what was acknowledged."""

    def __init__(self, daemons: Daemons, seed: int) -> None:
        super().__init__(name="load", daemon=True)
        self._daemons = daemons
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.asked: list[str] = []
        self.closed: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.problem: BaseException | None = None

    def run(self) -> None:
        """Until :meth:`finish`; a daemon that is gone is tried again."""
        while not self._over.is_set():
            try:
                with self._daemons.client("guest", timeout=5) as client:
                    while not self._over.wait(self._random.uniform(0.001, 0.02)):
                        self._once(client)
            except ControlError:
                self.counts["cut off"] += 1
                self._over.wait(0.01)
            except BaseException as error:  # noqa: BLE001 - the test's own thread looks at it
                self.problem = error
                return

    def finish(self) -> None:
        """Stop asking."""
        self._over.set()
        self.join()
        if self.problem is not None:
            raise self.problem

    def _once(self, client: Any) -> None:
        open_leases = client.query("leases")
        if len(open_leases) < OPEN_MAX:
            wish = request(
                self._random.randint(1, 3),
                self._random.choice([2, 5, 600]),
                properties={"deferrable": "true", "request_timeout": "20s"},
            )
            self.asked.append(client.command("lease.request", **wish)["id"])
            self.counts["requested"] += 1
            return
        lease = self._random.choice(open_leases)
        kind = self._random.choice(["close", "close", "extend", "modify"])
        arguments: dict[str, Any] = {"lease": lease["id"]}
        if kind == "extend":
            arguments |= {"end": lease["end"] + 5_000, "units": self._random.randint(1, 3)}
        elif kind == "modify":
            arguments |= {"units": self._random.randint(1, 3)}
        try:
            client.command(f"lease.{kind}", **arguments)
        except RequestError:
            self.counts[f"{kind} refused"] += 1  # it is in no state for that, or over by now
            return
        self.counts[f"{kind} acknowledged"] += 1
        if kind == "close":
            self.closed.add(lease["id"])


def test_nothing_is_lost_by_sigkill(tmp_path: Path) -> None:
    """Three daemons under load, one killed and started again at each turn; in the end every record fits every other."""
    state, moments = tmp_path / "s", random.Random(SEED)
    first = 30_000 + SEED % 20 * 500
    file = tmp_path / "kill.toml"
    file.write_text(DEPLOYMENT.replace("PORTS", f"{first}, {first + 499}"))
    with no_units_left(state), Daemons(file, state) as daemons:
        daemons.start_all()
        load = Load(daemons, SEED)
        load.start()
        began, kills = time.monotonic(), Counter[str]()
        for _ in range(PLAIN):
            time.sleep(moments.uniform(0.02, 0.4))
            victim = moments.choice(["guest", "broker", "site"])
            daemons.kill(victim)
            kills[victim] += 1
            daemons.start(victim)
        took = time.monotonic() - began
        load.finish()
        print(f"{PLAIN} kills in {took:.1f} s ({dict(kills)}), {dict(load.counts)}")
        assert took / PLAIN < 3, "a kill is cheap enough for many"
        check_all_settles(daemons, load)
        wait_until("units", lambda: [u for u in daemons.query("site", "units") if u["state"] != "free"])
        wait_until("processes", lambda: unit_processes(state))
        check_stores(daemons)


def check_all_settles(daemons: Daemons, load: Load) -> None:
    """What was acknowledged is there and ends as it was asked to."""

    def records() -> dict[str, dict[str, Any]]:
        with daemons.client("guest") as client:
            past = {row["id"]: row for row in client.archived("leases", 10_000)}
            return past | {lease["id"]: lease for lease in client.query("leases", all=True)}

    lost = set(load.asked) - set(records())
    assert not lost, f"{len(lost)} acknowledged requests are lost: {sorted(lost)[:5]}"
    assert load.asked, "there was some load"

    def unsettled() -> list[dict[str, Any]]:
        # With a renewal in hand (active_ticketed) a lease has nothing to do until its term comes near its end.
        settled = ("active", "active_ticketed", *OVER)
        return [r for r in records().values() if r["state"] not in settled or r["pending"] != "-"][:3]

    wait_until("unsettled leases", unsettled)
    not_closed = [lease for id_, lease in records().items() if id_ in load.closed and lease["state"] not in OVER]
    assert not not_closed, f"a close was acknowledged and forgotten: {not_closed[:3]}"
    states = Counter(lease["state"] for lease in records().values())
    assert states["closed"], f"some leases were got and ended: {states}"
    bugs = [lease for lease in records().values() if "driver failed" in lease["reason"]]
    assert not bugs, bugs[:3]
    for lease in records().values():
        if lease["state"] not in OVER:
            try:
                daemons.command("guest", "lease.close", lease=lease["id"])
            except RequestError:
                continue  # its term has just ended
    wait_until("leases to close", lambda: [r for r in records().values() if r["state"] not in OVER][:3])


def check_stores(daemons: Daemons) -> None:
    """All three agree that nothing is held any more."""
    for actor in ("broker", "site"):
        wait_until(
            f"leases at {actor}",
            lambda actor=actor: [r for r in daemons.query(actor, "leases", all=True) if r["state"] not in OVER][:3],
        )
    for actor in ("guest", "broker", "site"):
        shell = daemons.query(actor, "status")["shell"]
        assert shell["bugs"] == 0, daemons.running[actor].said()
        assert shell["actions"] == {"running": 0, "waiting": 0}
