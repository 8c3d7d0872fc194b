"""What holds for all tests: Hypothesis repeats itself, with 50 examples where a test says no number (``make quick`` has
100, ``make soak`` 1,000); what takes longest goes first, and Python keeps what it has compiled, since tests start it
some hundred times.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "leasekit",
    max_examples=int(os.environ.get("LEASEKIT_EXAMPLES", "50")),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("leasekit")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background deaf to Ctrl-C, and commands under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

NAMED_BY = 60
"""How much of a long text or of many bytes is part of a test's name."""
SYSTEM = Path(__file__).parent / "system"
LONGEST = ("web", "libvirt", "libvirt_saving", "libvirt_leases")
"""The groups that take longest, the longest first: whoever is left with one at the end waits for it alone."""


def pytest_make_parametrize_id(val: object) -> str | None:
    """What is long is called by its beginning: workers tell each other all names, which were 12 MB."""
    if isinstance(val, str | bytes) and len(val) > 4 * NAMED_BY:
        return f"{val[:NAMED_BY]!a} and {len(val) - NAMED_BY} more"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in tests/system go first, as they take longest, then what takes a processor for long. Of those that name no
    group, the tests of a file in tests/system are one, and share a worker; so are those of any file that share what it
    makes once, as each worker would make it again.
    """

    def place(item: pytest.Item) -> tuple[int, bool, bool]:
        group = item.get_closest_marker("xdist_group")
        name = group.args[0] if group else ""
        rank = LONGEST.index(name) if name in LONGEST else len(LONGEST)
        return rank, SYSTEM not in item.path.parents, not (group or item.get_closest_marker("long"))

    for item in items:
        if (SYSTEM in item.path.parents or _shares(item)) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What is imported and collected stays: Python need not look through all of it for garbage again and again."""
    gc.collect()
    gc.freeze()


def _shares(item: pytest.Item) -> bool:
    """Whether a test uses what our tests make once for a module."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(one.scope == "module" and one.baseid for found in known.values() for one in found)
