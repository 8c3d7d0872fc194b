"""The deployment that the tests of the gateway have: one site, one broker, two projects, and the door."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import attrs
import httpx
from system.system_waits import wait_until

from leasekit.runtime.client import ControlClient

INVENTORY = """
[[actor.site.inventory]]
type = "vm"
units = 6
prefix = "vm-"
driver = "null"

[[actor.site.delegation]]
broker = "broker"
type = "vm"

[actor.site.driver.null]
kind = "null"

[actor.web]
role = "gateway"
listen = ["unix:web.http"]
"""


@attrs.frozen
class GatewayUnderTest:
    """A gateway that runs, at a Unix socket."""

    file: Path
    folder: Path

    def client(self, token: str = "", **more: Any) -> httpx.Client:
        """A client of its API, with a token."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # There is no TLS, and to read the certificates of authorities takes a hundred times as long as all the rest.
        transport = httpx.HTTPTransport(uds=str(self.folder / "web.http"), verify=False)
        return httpx.Client(transport=transport, base_url="http://gateway/api/v1", headers=headers, timeout=30, **more)

    def token(self, name: str, *offices: str, length: str | None = None, **projects: str) -> str:
        """A new token, made on the gateway's control socket."""
        asked = {"name": name, "caller": name, "offices": list(offices), "projects": projects, "length": length}
        with ControlClient(self.folder / "web.control.sock") as control:
            return str(control.command("api", method="POST", path="/tokens", body=asked)["secret"])


JOINS: Final = {("active", "-"), ("active", "joining")}
"""What becomes another state by itself soon."""


def until(client: httpx.Client, lease: str, state: str) -> dict[str, Any]:
    """The lease, once it is in a state, nothing is pending, and its units have joined. Each event that is heard is a
    reason to look again.
    """
    with client.stream("GET", "/events") as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith(": connected"))  # what happens from here on is heard
        while True:
            found = dict(client.get(f"/leases/{lease}").json())
            if found["state"] == state and not found["pending"] and (state, found["join"]) not in JOINS:
                return found
            assert found["state"] not in {"closed", "failed"} - {state} or found["pending"], found
            next(line for line in lines if line.startswith("data: "))


def give_back(client: httpx.Client, start: str) -> None:
    """Close all leases of a project, until all units of the site are free at the broker too, for half a day
    from ``start`` on: what is asked for next is refused for nothing that was there before.
    """
    for one in client.get("/leases").json()["items"]:
        client.post(f"/leases/{one['id']}/close", json={})
        until(client, one["id"], "closed")
    whole = {"type": "vm", "units": 6, "start": start, "length": "12h"}
    wait_until("free units", lambda: client.post("/leases/dry-run", json=whole).json()["status"] != "granted")
