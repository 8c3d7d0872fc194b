"""Metrics with a real Prometheus, which scrapes three daemons; promtool checks pages and rules."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from packages import PROMETHEUS, require
from polling import PATIENCE
from runtime.runtime_processes import DaemonProcess, Daemons
from runtime.runtime_world import request

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "observability"
DEPLOYMENT = """
[deployment]
name = "watched"
create_keys = true
[actor.site]
role = "authority"
listen = ["unix:site.sock"]
metrics = "127.0.0.1:{site}"
inventory = [{{ type = "vm", units = 4 }}]
delegation = [{{ broker = "broker", type = "vm" }}]
[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
metrics = "127.0.0.1:{broker}"
mapper = {{ name = "reporting.py" }}
[actor.guest]
role = "guest"
metrics = "127.0.0.1:{guest}"
"""

MAPPER = """
from leasekit.core.fitting import fit
from leasekit.core.mappers import ReportNumber


class Reporting:
    def allocate(self, cycle):
        yield ReportNumber("asked", sum(request.units for request in cycle.requests))
        yield from (fit(cycle, request) for request in cycle.requests)
"""


@pytest.fixture(autouse=True)
def _tools() -> None:
    require(PROMETHEUS)


def free_ports(*names: str) -> dict[str, int]:
    """A port for each name that nobody has."""
    probes = [socket.socket() for _ in names]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    found = {name: probe.getsockname()[1] for name, probe in zip(names, probes, strict=True)}
    for probe in probes:
        probe.close()
    return found


def write_deployment(file: Path, **ports: int) -> None:
    """The deploy file, with the broker's mapper beside it."""
    file.write_text(DEPLOYMENT.format(**ports))
    file.with_name("reporting.py").write_text(MAPPER)


def lease_of(daemons: Daemons, units: int) -> None:
    """Have the guest ask for units, and wait until that is decided."""
    id_ = daemons.command("guest", "lease.request", **request(units, 3_600, properties={"deferrable": "true"}))["id"]
    with daemons.client("guest") as watcher, daemons.client("guest") as guest:
        events = watcher.watch(id_, patience=PATIENCE)
        while guest.query("lease", lease=id_)["state"] not in ("active", "failed"):
            next(events)


def until(true: Callable[[], Any]) -> Any:
    """What it returns, once that is true: Prometheus tells nobody when it has scraped."""
    end = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def promtool(*words: str, page: str | None = None) -> str:
    """What promtool says; it must be content."""
    done = subprocess.run(["promtool", *words], input=page, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_prometheus_scrapes_three_daemons(tmp_path: Path) -> None:
    """What it has after a lease and a request that is too large is what they have done."""
    ports = free_ports("site", "broker", "guest", "prometheus")
    config = tmp_path / "prometheus.yml"
    text = (RULES / "prometheus.yml").read_text().replace("15s", "1s").replace("alerts.yml", str(RULES / "alerts.yml"))
    targets = ", ".join(f'"127.0.0.1:{ports[name]}"' for name in ("site", "broker", "guest"))
    config.write_text(text.replace('"127.0.0.1:9464"', targets))
    file, state = tmp_path / "deploy.toml", tmp_path / "s"
    write_deployment(file, **ports)
    with Daemons(file, state) as daemons:
        daemons.start_all()
        lease_of(daemons, 3)
        lease_of(daemons, 400)
        for name in ("site", "broker", "guest"):
            page = httpx.get(f"http://127.0.0.1:{ports[name]}/metrics").text
            assert promtool("check", "metrics", page=page) == ""
        address = f"127.0.0.1:{ports['prometheus']}"
        with (tmp_path / "prometheus.log").open("wb") as log:
            prometheus = subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                 f"--web.listen-address={address}"], stdout=log, stderr=log,
            )  # fmt: skip
        try:
            asked = _Asked(f"http://{address}/api/v1/query")
            until(lambda: asked('count(up{job="leasekit"} == 1)') == [3.0])
            assert asked('leasekit_units{type="vm",state="active"}') == [3.0]
            assert asked('leasekit_units{type="vm",state="free"}') == [1.0]
            assert asked('leasekit_mapper_reported{actor="broker",number="asked"}') == [3.0]
            assert asked('leasekit_leases{actor="guest",state="active"}') == [1.0]
            assert asked('leasekit_requests_total{actor="broker",outcome="granted"}') == [1.0]
            assert asked('leasekit_requests_total{actor="broker",outcome="not_taken",code="too_large"}') == [1.0]
            assert asked('leasekit_requests_total{actor="guest",outcome="refused",code="too_large"}') == [1.0]
            assert asked("sum(leasekit_peer_connected)") == [6.0]
            assert asked("leasekit_deficit_units") == [0.0]
            for name in ("commit", "mapper_turn", "decision"):
                assert min(asked(f"leasekit_{name}_seconds_count")) >= 1, name
            assert min(asked("leasekit_store_bytes")) > 4096
            assert len(asked("leasekit_event_loop_lag_seconds_count")) == 3
            assert sorted(_asked_by_the_dashboard() - _names(asked)) == _OF_A_GATEWAY
            rules = httpx.get(f"http://{address}/api/v1/rules").json()["data"]["groups"][0]["rules"]
            assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
        finally:
            prometheus.terminate()
            prometheus.wait(timeout=PATIENCE)


_OF_A_GATEWAY = ["leasekit_http_request_seconds_bucket", "leasekit_http_requests_total"]


class _Asked:
    """Asks Prometheus."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, query: str) -> list[float]:
        """The values of what is asked for; nothing while Prometheus does not answer yet."""
        return [float(one["value"][1]) for one in self.rows(query)]

    def rows(self, query: str) -> list[Any]:
        """The same with labels."""
        try:
            answer = httpx.get(self._address, params={"query": query})
        except httpx.ConnectError:
            return []
        return list(answer.json()["data"]["result"]) if answer.status_code == 200 else []


def _names(asked: _Asked) -> set[str]:
    return {one["metric"]["__name__"] for one in asked.rows('{job="leasekit"}')}


def _asked_by_the_dashboard() -> set[str]:
    panels = json.loads((RULES / "dashboard.json").read_text())["panels"]
    return {name for panel in panels for one in panel["targets"] for name in re.findall(r"leasekit_\w+", one["expr"])}


def test_the_rules_hold(tmp_path: Path) -> None:
    """promtool finds nothing wrong with configuration and rules, and the rules' tests pass."""
    promtool("check", "config", str(RULES / "prometheus.yml"))
    promtool("test", "rules", str(RULES / "alerts_test.yml"))
    words = (ROOT / "docs" / "observability.md").read_text()
    for name in set(re.findall(r"leasekit_\w+", (RULES / "alerts.yml").read_text())):
        assert name.removesuffix("_bucket") in words, name
    for file in (ROOT / "leasekit").rglob("*.py"):
        for name in re.findall(r'(?:counter|gauge|histogram)\(\s*"(leasekit_\w+)"', file.read_text()):
            assert name in words, name


def test_an_address_that_is_taken_is_told(tmp_path: Path) -> None:
    """The daemon does not start, and says which setting that is."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file, state = tmp_path / "deploy.toml", tmp_path / "s"
        write_deployment(file, site=port, broker=port, guest=port)
        process = DaemonProcess(file, state, "guest")
        assert process.wait() == 1
        assert f"actor.guest.metrics: can't listen on tcp://127.0.0.1:{port}" in process.said()
        assert "Traceback" not in process.said()
