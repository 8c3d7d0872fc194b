"""A deployment with a gateway: one site, one broker, two projects, as real daemons in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from cli_daemons import running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest

from leasekit.config.load import load


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayUnderTest]:
    """The deployment, once for the tests of a module."""
    folder = tmp_path_factory.mktemp("gateway")
    file = folder / "leasekit.toml"
    file.write_text(site_and_broker(INVENTORY, "alpha", "beta") + 'settings.redeem_lead = "30d"\n')  # beta's
    with running(file):
        yield GatewayUnderTest(file, load(file).state)


@pytest.fixture(scope="module")
def operator(gateway: GatewayUnderTest) -> Iterator[httpx.Client]:
    """Who may do everything."""
    with gateway.client(gateway.token("olga", "operator")) as client:
        yield client


@pytest.fixture(scope="module")
def user(gateway: GatewayUnderTest) -> Iterator[httpx.Client]:
    """A user of the project alpha."""
    with gateway.client(gateway.token("ursula", alpha="user")) as client:
        yield client


@pytest.fixture(scope="module")
def viewer(gateway: GatewayUnderTest) -> Iterator[httpx.Client]:
    """Who may look into the project alpha."""
    with gateway.client(gateway.token("viktor", alpha="viewer")) as client:
        yield client


@pytest.fixture(scope="module")
def stranger(gateway: GatewayUnderTest) -> Iterator[httpx.Client]:
    """A user of another project."""
    with gateway.client(gateway.token("stefan", beta="user")) as client:
        yield client


@pytest.fixture
def leased(user: httpx.Client) -> Iterator[Callable[..., dict[str, Any]]]:
    """Asks for a lease, which is closed after the test."""
    made: list[str] = []

    def lease(**wish: Any) -> dict[str, Any]:
        answer = user.post("/leases", json={"type": "vm", "units": 1, "length": "1h", **wish})
        assert answer.status_code == 201, answer.text
        made.append(answer.json()["id"])
        return dict(answer.json())

    yield lease
    for id_ in made:
        user.post(f"/leases/{id_}/close", json={})
