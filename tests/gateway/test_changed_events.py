"""That something has changed, for those who may not see what."""

from __future__ import annotations

import httpx
import trio

from leasekit.gateway.events import CHANGED, EventHub, Listener


def test_who_looks_at_the_calendar_hears_that_others_changed_it(user: httpx.Client, stranger: httpx.Client) -> None:
    """But not what, who or when; a listener who did not ask for it hears nothing of it."""
    with user.stream("GET", "/events?calendar=true") as changes, user.stream("GET", "/events") as own:
        lines, own_lines = changes.iter_lines(), own.iter_lines()
        for each in (lines, own_lines):
            next(line for line in each if line.startswith(": connected"))
        made = stranger.post("/leases", json={"type": "vm", "length": "1h", "name": "secret"}).json()
        assert next(line for line in lines if line.startswith("event:")) == "event: changed"
        assert next(line for line in lines if line) == "data: {}"
        stranger.post(f"/leases/{made['id']}/close", json={})
        mine = user.post("/leases", json={"type": "vm", "length": "1h"}).json()
        user.post(f"/leases/{mine['id']}/close", json={})
        heard = next(line for line in own_lines if line.startswith("data:"))
        assert made["id"] not in heard
        assert mine["id"] in heard


async def test_many_changes_are_heard_once() -> None:
    """Until that was told: who listens is not behind by more than one."""
    send, receive = trio.open_memory_channel[tuple[str, int, bytes]](10)
    listener = Listener(frozenset({"alpha"}), frozenset({"broker"}), send)
    assert [listener.wants(name) for name in ("alpha", "other", "broker", "broker")] == [b"", None, CHANGED, None]
    listener.changed = False
    assert listener.wants("broker") == CHANGED
    hub = EventHub()
    hub._listeners[1] = listener
    for seq in range(100):
        hub._publish("broker", seq, b"secret")
    assert receive.statistics().current_buffer_used == 0
