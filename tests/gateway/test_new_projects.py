"""Projects, brokers and sites that a deploy file gets, or loses, while its daemons run."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_daemons import Cli, running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest, until
from system.system_waits import wait_until

from leasekit.config.load import load
from leasekit.gateway.events import ENDED

NEW = '[actor.lab]\nrole = "guest"\n'
SECOND = """
[actor.second]
role = "broker"
listen = ["unix:second.sock"]

[actor.east]
role = "authority"
listen = ["unix:east.sock"]

[[actor.east.inventory]]
type = "board"
units = 2
driver = "null"

[[actor.east.delegation]]
broker = "second"
type = "board"

[actor.east.driver.null]
kind = "null"
"""


@pytest.mark.parametrize("by", ["reload", "signal", "process"])
def test_a_project_is_added_without_a_restart(by: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its key is made, brokers and sites believe it, the gateway serves it, and others' leases go on: whether the
    process of all is told to, or another one runs it.
    """
    file = tmp_path / "leasekit.toml"
    file.write_text(site_and_broker(INVENTORY, "alpha"))
    with running(file) as process:
        gateway, cli = GatewayUnderTest(file, load(file).state), Cli(file, capfd)
        with gateway.client(gateway.token("olga", "operator")) as client:
            before = until(client, _ask(client, "alpha")["id"], "active")
            file.write_text(site_and_broker(INVENTORY, "alpha") + NEW)
            if by == "process":
                with running(file, only=["lab"]):
                    assert _added(cli) == {("web", "actor.lab.role"), *_of_others()}
                    _check(client, before)
                return
            if by == "signal":
                process.send_signal(signal.SIGHUP)
            else:
                assert _added(cli) == {("web", "actor.lab.role"), *_of_others()}
                assert _added(cli) == set()
            wait_until("lab is served", lambda: client.get("/projects").json()["items"] != ["alpha", "lab"])
            _check(client, before)


def _of_others() -> set[tuple[str, str]]:
    return {(actor, "actor.lab.role") for actor in ("broker", "site", "alpha")}


def _added(cli: Cli) -> set[tuple[str, str]]:
    """What daemons have taken when they were asked to."""
    rows = cli.json("reload")
    assert not any(row["restart"] for row in rows)
    return {(row["actor"], row["key"]) for row in rows}


def _ask(client: httpx.Client, project: str) -> dict[str, Any]:
    made = client.post("/leases", params={"project": project}, json={"type": "vm", "length": "1h"})
    assert made.status_code == 201, made.text
    return dict(made.json())


def _check(client: httpx.Client, before: dict[str, Any]) -> None:
    """The new project has a lease, and events of it; the lease of the other is as it was."""
    assert until(client, _ask(client, "lab")["id"], "active")["project"] == "lab"
    now = client.get(f"/leases/{before['id']}").json()
    assert (now["state"], *(one["unit"] for one in now["members"])) == ("active", before["members"][0]["unit"])


def test_a_project_that_can_t_be_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file that is wrong changes nothing; a guest that is gone is no project, and who listens to it is told."""
    file = tmp_path / "leasekit.toml"
    text = site_and_broker(INVENTORY, "alpha", "beta")
    file.write_text(text)
    with running(file):
        gateway, cli = GatewayUnderTest(file, load(file).state), Cli(file, capfd)
        file.write_text(text + NEW.replace("guest", "gust"))
        assert "actor.lab.role: found 'gust'" in cli("reload", 1)[1]
        with gateway.client(gateway.token("berta", beta="user")) as member, member.stream("GET", "/events") as heard:
            made = _ask(member, "beta")
            feed = member.post("/feeds", json={}).json()["path"]
            file.write_text(site_and_broker(INVENTORY, "alpha"))
            rows = [(row["key"], row["restart"]) for row in cli.json("reload") if row["actor"] == "web"]
            assert rows == [("actor.beta.role", False)]
            assert ENDED.decode().strip() in list(heard.iter_lines())
            assert member.get(f"/leases/{made['id']}").status_code == 404
            assert member.get(feed.removeprefix("/api/v1")).status_code == 404
        with gateway.client(gateway.token("olga", "operator")) as client:
            assert client.get("/projects").json()["items"] == ["alpha"]
            assert client.post("/leases", params={"project": "beta"}, json={"type": "vm"}).status_code == 404


def test_a_broker_and_a_site_come_and_go(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The gateway sees them after a reload, leases can be had of them, and who hears all is told to come back; after
    another reload they are nobody's any more.
    """
    file = tmp_path / "leasekit.toml"
    text = site_and_broker(INVENTORY, "alpha")
    file.write_text(text)
    with running(file):
        gateway, cli = GatewayUnderTest(file, load(file).state), Cli(file, capfd)
        with gateway.client(gateway.token("olga", "operator")) as client:
            file.write_text(text + SECOND)
            with running(file, only=["second", "east"]):
                told = _reloaded(cli, client)
                assert {row["key"] for row in told} == {"actor.second.role", "actor.east.role"}
                found = {one["name"]: one["state"] for one in client.get("/actors").json()["items"]}
                assert found == dict.fromkeys(("broker", "site", "alpha", "second", "east", "web"), "running")
                wish = {"type": "board", "length": "1h", "broker": "second"}
                made = client.post("/leases", json=wish).json()
                assert until(client, made["id"], "active")["site"] == "east"
                assert {row["site"] for row in client.get("/calendar").json()["rows"]} == {"site", "east"}
            file.write_text(text)
            told = _reloaded(cli, client)
            assert {row["key"] for row in told} == {"actor.second.role", "actor.east.role"}
            assert [one["name"] for one in client.get("/actors").json()["items"]] == ["broker", "site", "alpha", "web"]
            assert client.get("/brokers/status", params={"broker": "second"}).status_code == 404
            assert client.get("/calendar").json()["away"] == []


def _reloaded(cli: Cli, client: httpx.Client) -> list[dict[str, Any]]:
    """What a gateway has taken, of which all who hear everything are told."""
    with client.stream("GET", "/events?all=true") as heard:
        lines = heard.iter_lines()
        next(line for line in lines if line.startswith(": connected"))
        rows = [row for row in cli.json("reload") if row["actor"] == "web"]
        assert ENDED.decode().strip() in list(lines)
    assert not any(row["restart"] for row in rows)
    return rows
