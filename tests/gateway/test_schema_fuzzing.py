"""Schemathesis goes through every route of the OpenAPI document of a gateway that runs, with values that it allows and
others: no answer is a server error, and each is as the document says.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from cli_daemons import running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from leasekit.config.load import load

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = max(2, settings().max_examples // 200)
"""How many of each kind Schemathesis draws for a route: five in a soak. What it makes by plan comes to more."""
SHARE = 1 if EXAMPLES > 2 else 3
"""Of what the document does not allow, seven in ten of all, one in so many is sent; a soak sends all."""
STREAMS = "/events"
"""A stream that goes on without end, which other tests listen to."""


@pytest.fixture(scope="module")
def api_schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The document, as the gateway gives it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    folder = tmp_path_factory.mktemp("schema")
    file = folder / "leasekit.toml"
    file.write_text(site_and_broker(INVENTORY, "alpha", "beta").replace("unix:web.http", address))
    with running(file):
        token = GatewayUnderTest(file, load(file).state).token("olga", "operator")
        headers = {"authorization": f"Bearer {token}"}
        schema = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json", headers=headers)
        schema.config.update(base_url=address, headers=headers)
        yield schema


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """One connection for all requests: four thousand would cost more than what they ask."""
    with requests.Session() as made:
        made.trust_env = False
        yield made


forbidden = itertools.count()
schema = schemathesis.pytest.from_fixture("api_schema").exclude(path_regex=f"{STREAMS}$")


@schema.parametrize()
@settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, suppress_health_check=[*HealthCheck])
def test_every_answer_is_as_the_document_says(case: Any, session: requests.Session) -> None:
    """Whatever is sent."""
    if case.meta.generation.mode.is_negative and next(forbidden) % SHARE:
        return
    case.call_and_validate(checks=CHECKS, timeout=30, session=session)
