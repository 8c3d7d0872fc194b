"""Amounts of resources as people write them: what is meant, and what is said of what can't be meant."""

from __future__ import annotations

import pytest

from leasekit.core.properties import read_amount


@pytest.mark.parametrize(
    ("resource", "text", "meant"),
    [("cpu", "0.5", 500), ("core", 2, 2000), ("memory", "4GiB", 4096), ("memory", "1t", 1024**2), ("gpu", "3", 3)],
)
def test_what_is_meant(resource: str, text: object, meant: int) -> None:
    """Cores in thousandths, memory in MiB, others as they are."""
    assert read_amount(resource, text) == meant


@pytest.mark.parametrize(
    ("resource", "text", "allowed"),
    [
        ("memory", "9TiB", "at most 4194303 MiB"), ("cpu", "5000", "at most 4194.303"),
        ("gpu", "1e7", "at most 4194303"), ("gpu", "1.5", "a whole number above 0"),
        ("memory", "4GB", "MiB, or GiB or TiB behind it, such as 4GiB"), ("cpu", "2GiB", "cores, such as 0.5"),
        ("cpu", "nan", "cores, such as 0.5"), ("cpu", "-1", "cores, such as 0.5"),
    ],
)  # fmt: skip
def test_what_is_not_allowed(resource: str, text: str, allowed: str) -> None:
    """One message: which resource, what was found, and what is allowed; the most, where it is too much."""
    with pytest.raises(ValueError, match=f"^{resource}: found '{text}', expected {allowed}$"):
        read_amount(resource, text)
