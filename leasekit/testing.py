"""A plugin of pytest: tests that need units say so by a marker, and have a lease of them (docs/ci.md)::

    @pytest.mark.lease("board", units=1, filter="soc == imx8")
    def test_boots(lease):
        assert lease.members[0].properties["host"]

Where no test asks for a lease nothing but this module is imported. What a failed test's units have said on their
consoles is in its report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

if TYPE_CHECKING:
    from leasekit.client import Client, Lease, LeaseUnit

T = TypeVar("T")

MARKER: Final = (
    "lease(type, units=1, *, scope='test', hours=1, filter='', ...): have a lease of units; scope='session' shares one "
    "among all tests that want the same; what else is named is asked for as leasekit.client has it"
)
SCOPES: Final = ("test", "session")
LINES_MAX: Final = 200
"""How many lines of a unit are in a report."""
_SAID: Final = pytest.StashKey[Callable[[], list[tuple[str, str]]]]()


class SessionLeases:
    """The gateway's client of a test session, and the leases that its tests share."""

    def __init__(self, config: pytest.Config) -> None:
        from leasekit.client import Client
        from leasekit.client.shapes import LeaseRequest

        self.wishes: Final = LeaseRequest.__struct_fields__
        self._stack = ExitStack()
        url = os.environ.get("LEASEKIT_URL") or config.getini("leasekit_url")
        if not url:
            raise pytest.UsageError("lease: found no gateway: set LEASEKIT_URL, or leasekit_url in pytest's settings")
        self.client: Client = self._stack.enter_context(Client(url, project=config.getini("leasekit_project")))
        self._shared: dict[str, Lease] = {}
        _or_fail(url, self.client.me)

    def shared(self, wish: dict[str, Any]) -> Lease:
        """The lease of all tests that want the same."""
        key = repr(sorted(wish.items()))
        if key not in self._shared:
            self._shared[key] = self._stack.enter_context(self.client.lease(**wish))
        return self._shared[key]

    def close(self) -> None:
        """Close what is shared."""
        self._stack.close()

    def said(self, lease: Lease) -> list[tuple[str, str]]:
        """What the units of a lease have said: on their consoles, or else what drivers say of them."""
        return [self._said_by(lease, unit) for unit in self.client.get(lease).members]

    def _said_by(self, lease: Lease, unit: LeaseUnit) -> tuple[str, str]:
        from leasekit.client import ApiError

        try:
            what, lines = "console", self.client.console(lease, unit.unit)
        except ApiError as error:
            what, lines = "log", [f"(no console: {error})", *self.client.log(lease, unit.unit)]
        return f"{what} of {unit.unit}", "\n".join(map(_printable, lines[-LINES_MAX:]))


def _or_fail(what: str, do: Callable[[], T]) -> T:
    """What a gateway gives. A test that can't have it is told why, in one line."""
    import httpx

    from leasekit.client import ApiError, LeaseFailed

    try:
        return do()
    except httpx.TransportError as error:
        problem = f"no gateway answers there: {error}"
    except (ApiError, LeaseFailed, TypeError, ValueError) as error:
        problem = str(error)
    pytest.fail(f"{what}: {problem}", pytrace=False)


def _printable(line: str) -> str:
    """Without what a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Settings of pytest."""
    parser.addini("leasekit_url", "the gateway that leases are asked from, where LEASEKIT_URL does not say", default="")
    parser.addini("leasekit_project", "the project whose leases they are", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What units have said goes with the report of a test that failed."""
    report = yield
    said = item.stash.get(_SAID, None)
    if said is not None and report.failed:
        try:
            report.sections += said()
        except Exception as error:  # noqa: BLE001 - whatever keeps it from being read, the test's own failure is told
            report.sections.append(("consoles", f"can't be read: {error}"))
    return report


@pytest.fixture(scope="session")
def session_leases(pytestconfig: pytest.Config) -> Iterator[SessionLeases]:
    """What leases are made with: once a session, when the first test asks for one."""
    made = SessionLeases(pytestconfig)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def lease(request: pytest.FixtureRequest, session_leases: SessionLeases) -> Iterator[Lease]:
    """The lease that the test's marker asks for: kept alive while it is used, and closed then."""
    marker = request.node.get_closest_marker("lease")
    if marker is None or len(marker.args) not in (1, 2):
        pytest.fail("the fixture lease needs a marker: @pytest.mark.lease(TYPE, units=1, ...)", pytrace=False)
    wish = {**dict(zip(("type", "units"), marker.args, strict=False)), **marker.kwargs}
    scope = wish.pop("scope", "test")
    if scope not in SCOPES:
        pytest.fail(f"lease: scope: found {scope!r}, expected one of {', '.join(SCOPES)}", pytrace=False)
    if unknown := sorted(wish.keys() - (known := {"hours", *session_leases.wishes})):
        pytest.fail(f"lease: found {unknown[0]!r}, expected one of {', '.join(sorted(known))}, scope", pytrace=False)
    if "length" not in wish:
        wish.setdefault("hours", 1)
    with ExitStack() as stack:
        shared = scope == "session"
        own = session_leases.client.lease
        found = _or_fail("lease", lambda: session_leases.shared(wish) if shared else stack.enter_context(own(**wish)))
        request.node.stash[_SAID] = lambda: session_leases.said(found)
        yield found
