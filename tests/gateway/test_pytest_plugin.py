"""The plugin of pytest, by test suites of its own that have leases from a gateway."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cli_daemons import running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest

from leasekit.client import ApiError, Client
from leasekit.config.load import load

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of a gateway, and a token of a user."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    file = tmp_path_factory.mktemp("plugin") / "leasekit.toml"
    file.write_text(site_and_broker(INVENTORY.replace("unix:web.http", url), "alpha"))
    with running(file):
        yield url, GatewayUnderTest(file, load(file).state).token("ci", alpha="user")


@pytest.fixture
def suite(pytester: pytest.Pytester, address: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Where a suite is written and run, with a gateway."""
    monkeypatch.setenv("LEASEKIT_URL", address[0])
    monkeypatch.setenv("LEASEKIT_TOKEN", address[1])
    others = "-p no:schemathesis -p no:hypothesispytest -p no:trio -p no:xdist"  # to import them takes half of a suite
    monkeypatch.setenv("PYTEST_ADDOPTS", others)
    return pytester


def test_a_test_has_its_lease(suite: pytest.Pytester, address: tuple[str, str]) -> None:
    """One of its own, or one that all share who want the same; all are closed in the end."""
    suite.makepyfile("""
        import pytest
        seen = []

        @pytest.mark.lease("vm", 2, name="own")
        def test_own(lease):
            assert [unit.unit for unit in lease.members] == ["vm-0", "vm-1"]
            seen.append(lease.id)

        @pytest.mark.parametrize("number", [1, 2])
        @pytest.mark.lease("vm", scope="session", name="shared")
        def test_shared(lease, number):
            assert len(lease.members) == 1
            seen.append(lease.id)

        @pytest.mark.lease("vm", name="last")
        def test_each(lease):
            own, *shared, last = [*seen, lease.id]
            assert len(set(shared)) == 1
            assert len({own, last, *shared}) == 3
    """)
    suite.runpytest_subprocess("--strict-markers").assert_outcomes(passed=4)
    with Client(*address) as client:
        for name in ("own", "shared", "last"):
            assert client.get(name).state in ("closed", "active") and client.wait(name, "closed").state == "closed"


def test_a_report_has_what_units_said(suite: pytest.Pytester) -> None:
    """Of a test that failed, and of no other."""
    suite.makepyfile("""
        import pytest

        @pytest.mark.lease("vm")
        def test_fails(lease):
            assert not lease.members

        @pytest.mark.lease("vm")
        def test_passes(lease):
            assert lease.members
    """)
    done = suite.runpytest_subprocess("-rA")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*log of vm-*"])
    assert done.stdout.str().count("log of vm-") == 1


CAN_NOT_BE = {
    "": "*needs a marker: @pytest.mark.lease(TYPE, units=1, ...)*",
    '@pytest.mark.lease("vm", scope="module")': "*scope: found 'module', expected one of test, session*",
    '@pytest.mark.lease("vm", 40)': "lease: lease * is failed: broker: units: found 40, no site here has *",
    '@pytest.mark.lease("vm", colour="red")': "lease: found 'colour', expected one of *, filter, *, units, *",
    '@pytest.mark.lease("vm", length="long")': "lease: length: 'long' is not a duration: *",
    '@pytest.mark.lease("vm", length="1h", hours=1)': "lease: hours: goes without length",
}
"""Markers of a test, and what it is told."""


def test_leases_that_can_not_be(suite: pytest.Pytester) -> None:
    """Each test ends with an error that says why."""
    tests = [f"{marker}\ndef test_{number}(lease):\n    pass\n" for number, marker in enumerate(CAN_NOT_BE)]
    suite.makepyfile("\n\n".join(["import pytest", *tests]))
    done = suite.runpytest_subprocess()
    done.assert_outcomes(errors=len(CAN_NOT_BE))
    for number, told in enumerate(CAN_NOT_BE.values()):
        done.stdout.fnmatch_lines([f"*ERROR at setup of test_{number} *", told])
    done.stdout.no_fnmatch_line("*leasekit/testing.py*")


def test_a_gateway_that_is_not_there(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are told so, and it is asked for once."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        monkeypatch.setenv("LEASEKIT_URL", url := f"http://127.0.0.1:{probe.getsockname()[1]}")
    suite.makeconftest("from leasekit.client import asking\n\nasking.FIRST_WAIT = 0\n")
    suite.makepyfile("""
        import pytest

        @pytest.mark.lease("vm")
        @pytest.mark.parametrize("number", [1, 2])
        def test_it(lease, number):
            pass
    """)
    done = suite.runpytest_subprocess()
    done.assert_outcomes(errors=2)
    done.stdout.fnmatch_lines([f"{url}: no gateway answers there: *"])


def test_without_a_gateway_it_says_what_to_set(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name."""
    monkeypatch.delenv("LEASEKIT_URL", raising=False)
    pytester.makepyfile('import pytest\n\n@pytest.mark.lease("vm")\ndef test_it(lease):\n    pass\n')
    pytester.runpytest_subprocess().stdout.fnmatch_lines(["*set LEASEKIT_URL, or leasekit_url*"])


def test_a_console_is_its_lease_holders(address: tuple[str, str]) -> None:
    """A unit of another lease has none for this one; one whose driver has no consoles says so."""
    with Client(*address) as client, client.lease("vm", 1, hours=1) as lease, client.lease("vm", 1, hours=1) as other:
        with pytest.raises(ApiError, match="not up for the lease"):
            client.console(lease, other.members[0].unit)
        with pytest.raises(ApiError, match="console"):
            client.console(lease, lease.members[0].unit)


def test_where_it_is_not_used_it_costs_nothing() -> None:
    """The plugin alone imports nothing more of leasekit, and none of the libraries that clients need."""
    code = "import sys, leasekit.testing; print(sorted(m for m in sys.modules if m.split('.')[0] in sys.argv[1:]))"
    names = ("leasekit", "httpx", "anyio", "msgspec", "trio", "attrs")
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['leasekit', 'leasekit.testing']"
