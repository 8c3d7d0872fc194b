"""Fixtures for the tests of drivers."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_harnesses import HARNESSES, DriverHarness, ProcessHarness, ScriptHarness, Units


@pytest.fixture(params=sorted(HARNESSES))
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> DriverHarness:
    made = HARNESSES[request.param](tmp_path / "driver")
    request.addfinalizer(getattr(made, "close", lambda: None))
    return made


@pytest.fixture
def make_unit() -> Units:
    return Units()


@pytest.fixture
def process_harness(tmp_path: Path) -> ProcessHarness:
    return ProcessHarness(tmp_path / "driver")


@pytest.fixture
def script_harness(tmp_path: Path) -> ScriptHarness:
    return ScriptHarness(tmp_path / "driver")
