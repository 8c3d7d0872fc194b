"""Drivers as a deploy file would bind them, for tests that make the driver themselves."""

from __future__ import annotations

from typing import Any

from leasekit.config.build import BoundDriver
from leasekit.config.tables import DriverSpec
from leasekit.core.drivers import Driver


def limited(driver: Driver, **limits: Any) -> BoundDriver:
    """``driver`` under the usual limits of a deploy file, but for those that are given."""
    return BoundDriver(driver, DriverSpec(kind="null", **limits))
