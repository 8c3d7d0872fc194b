"""An authority that is killed while it has guests of a real Xen, by ``make test-xen``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from system.libvirt_site import Site, open_site
from system.real_xen import RealXen
from system.system_waits import soon, wait_until
from system.xen_world import Watch, left, settings

pytest_plugins = ("system.xen_fixtures",)

UNIT = "xk-10"


@pytest.fixture
def site(xen: RealXen, tmp_path: Path) -> Iterator[Site]:
    with open_site(xen, tmp_path, {"xk-1": (1, {"kind": "xen", **settings(xen)})}) as made:
        yield made


def number(xen: RealXen) -> str:
    """The number of the unit's domain, while there is one: another start has another."""
    return xen.run(f"xl domid leasekit-{UNIT} 2>/dev/null || true").strip()


@pytest.mark.parametrize("moment", ["setup", "between", "teardown"])
def test_a_site_that_is_killed(site, xen, moment):
    """kill -9 during setup, in between or during teardown: the unit gets where it should, and is set up once."""
    lease = site.ask("xk-1", 1)
    if moment == "setup":
        soon(lambda: number(xen))
        seen = number(xen)
        site.restart()
        with Watch(xen, "joined after a kill during setup"):
            (unit,) = site.joined(lease, 1)
        assert number(xen) == seen
    else:
        (unit,) = site.joined(lease, 1)
    running = number(xen)
    if moment == "between":
        site.restart()
        assert site.joined(lease, 1) == [unit]
    assert xen.inside(unit["properties"], "hostname").strip() == UNIT
    assert number(xen) == running
    site.close(lease)
    if moment == "teardown":
        wait_until("the domain's end", lambda: number(xen))
        site.restart()
    site.over(lease)
    site.until_free()
    assert left(xen) == []
