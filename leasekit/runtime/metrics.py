"""Numbers for Prometheus: what the actors of a process answer anyway, and what is measured of it, on a page.

Actors know nothing of it. What is to be said of one is asked of it when somebody looks, but for requests and their
outcomes: these are counted as the shell publishes the lines of the actor's log that say them.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import trio

from leasekit.core.accounts import NOT_TAKEN
from leasekit.core.answers import ShellDetails
from leasekit.core.errors import LeasekitError
from leasekit.core.measures import Histogram, Measuring
from leasekit.core.reasons import Code, Reason, read
from leasekit.core.schema import LogRow
from leasekit.core.time import SECOND, Instant
from leasekit.runtime.clock import HELD
from leasekit.runtime.shell import RUNNING, ActorShell
from leasekit.runtime.sockets import Endpoint, Sockets
from leasekit.runtime.transport import Transport

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LAG_EVERY: Final = 0.25
"""How often it is measured how late the loop is, in seconds."""
ASKED_MAX: Final = 100_000
"""How many requests whose outcome is to come are remembered; the oldest is forgotten first."""
GRANTED, REFUSED, OTHER = "granted", "refused", "other"
BEGINS: Final = {
    "guest": frozenset({"ask", "extend", "modify"}),
    "broker": frozenset({"request", "extend", "modify"}),
    "authority": frozenset({"redeem"}),
}
"""The events by which a request begins at an actor of a role."""
ENDS: Final = {
    "guest": {"ticket": GRANTED, "ticket_refused": REFUSED},
    "broker": {"grant": GRANTED, "refuse": REFUSED, "expire": REFUSED, "withdraw": "withdrawn"},
    "authority": {"assign": GRANTED, "refuse": REFUSED},
}
"""And those by which it is decided."""
_CODES: Final = frozenset(Code)

logger = logging.getLogger(__name__)
Measure = Callable[[Measuring], Awaitable[None]]
"""Tells the numbers of somebody."""


class MetricsError(LeasekitError):
    """Metrics can't be served; the text says why."""


@attrs.define(eq=False)
class PageOfMetrics:
    """The numbers of all in a process that are served at one address, each asked for when somebody looks."""

    _lag: Histogram = attrs.field(init=False, factory=Histogram)
    _sources: list[Measure] = attrs.field(init=False, factory=list)
    _client: Any = attrs.field(init=False, factory=lambda: _library())

    @asynccontextmanager
    async def showing(self, source: Measure) -> AsyncIterator[None]:
        """With the numbers of ``source`` on the page."""
        self._sources.append(source)
        try:
            yield
        finally:
            self._sources.remove(source)

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve until cancelled."""
        # Most daemons serve no page, and start a fifth sooner without these.
        from hypercorn.config import Config
        from hypercorn.trio import serve as serve_http
        from starlette.applications import Starlette
        from starlette.routing import Route

        config = Config()
        # Hypercorn closes what it is given; the listeners are somebody else's.
        config.bind = [f"fd://{os.dup(listener.socket.fileno())}" for listener in listeners]
        config.include_server_header = False
        config.accesslog, config.errorlog = None, logger
        page = Starlette(routes=[Route("/metrics", self._show)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._measure_lag)
            await serve_http(cast(Any, page), config, shutdown_trigger=trio.sleep_forever)

    async def _measure_lag(self) -> None:
        while True:
            due = trio.current_time() + LAG_EVERY
            await trio.sleep_until(due)
            self._lag.note(trio.current_time() - due)

    async def _show(self, request: Request) -> Response:
        from starlette.responses import Response

        families = Families(self._client)
        for process in self._client.ProcessCollector(registry=None).collect():
            families.add(process)
        families.histogram("leasekit_event_loop_lag_seconds", "How late the loop of the process is.", self._lag)
        for source in list(self._sources):
            await source(families)
        encode, kind = self._client.exposition.choose_encoder(request.headers.get("accept", ""))
        return Response(encode(families), headers={"content-type": kind})


@attrs.define(eq=False)
class Families:
    """Metrics by name, as prometheus-client has them."""

    _client: Any
    _made: dict[str, Any] = attrs.field(init=False, factory=dict)

    def collect(self) -> Iterable[Any]:
        """All of them."""
        return self._made.values()

    def add(self, family: Any) -> None:
        """One that is made."""
        self._made[family.name] = family

    def gauge(self, name: str, words: str, value: float, **labels: str) -> None:
        """As :class:`~leasekit.core.measures.Measuring` has it."""
        self._of("GaugeMetricFamily", name, words, labels).add_metric([*labels.values()], value)

    def counter(self, name: str, words: str, value: float, **labels: str) -> None:
        """The same."""
        self._of("CounterMetricFamily", name, words, labels).add_metric([*labels.values()], value)

    def histogram(self, name: str, words: str, value: Histogram, **labels: str) -> None:
        """The same."""
        found = self._of("HistogramMetricFamily", name, words, labels)
        found.add_metric([*labels.values()], value.cumulative(), value.total)

    def _of(self, kind: str, name: str, words: str, labels: Mapping[str, str]) -> Any:
        family = self._made.get(name)
        if family is None:
            made = getattr(self._client.metrics_core, kind)
            family = self._made[name] = made(name, words, labels=list(labels))
        return family


def _library() -> Any:
    try:
        client = importlib.import_module("prometheus_client")
    except ImportError:
        raise MetricsError(
            "metrics: the package prometheus-client is needed: pip install 'leasekit[metrics]'"
        ) from None
    return client


@attrs.define(eq=False)
class Pages:
    """The pages of a process, by address; they are served in ``nursery``, on listeners of ``sockets``."""

    _nursery: trio.Nursery
    _sockets: Sockets
    _pages: dict[str, PageOfMetrics] = attrs.field(init=False, factory=dict)

    @asynccontextmanager
    async def showing(self, where: str, key: str, source: Measure) -> AsyncIterator[None]:
        """With the numbers of ``source`` at the address ``where`` (empty: at none), which the setting ``key`` names.
        Raises ``LeasekitError`` if it can't be listened on.
        """
        if not where:
            yield
            return
        page = self._pages.get(where)
        if page is None:
            page = PageOfMetrics()
            host, _, port = where.rpartition(":")
            endpoint = Endpoint(host=host.strip("[]"), port=int(port), tls=False)
            self._nursery.start_soon(page.serve, await self._sockets.listen(endpoint, key))
            self._pages[where] = page
        async with page.showing(source):
            yield


@attrs.define(eq=False)
class Outcomes:
    """Requests at an actor of a ``role``: how many had which outcome, and how long they took."""

    role: str
    decided: Histogram = attrs.field(init=False, factory=Histogram)
    counts: dict[tuple[str, str], int] = attrs.field(init=False, factory=dict)
    """How many had an outcome for the reason with a code."""
    _asked: dict[str, Instant] = attrs.field(init=False, factory=dict)

    def see(self, row: LogRow) -> None:
        """Take in a line of the actor's log."""
        if row.event in BEGINS[self.role]:
            if len(self._asked) >= ASKED_MAX:
                del self._asked[next(iter(self._asked))]
            self._asked[row.lease] = row.at
        elif row.event in ENDS[self.role] and row.lease in self._asked:
            self.decided.note((row.at - self._asked.pop(row.lease)) / SECOND)
            self._count(ENDS[self.role][row.event], read(row.why), 1)
        elif row.event == NOT_TAKEN:
            why = read(row.why)
            self._count("not_taken", why, 1 if why is None else max(1, why.units))

    def _count(self, outcome: str, why: Reason | None, more: int) -> None:
        which = outcome, "" if outcome == GRANTED else _code(why)
        self.counts[which] = self.counts.get(which, 0) + more


def _code(why: Reason | None) -> str:
    """The code of what is behind all. Peers can't make codes of their own here."""
    if why is None:
        return ""
    known = why.root.code.partition(":")[0]  # a mapper's own code stands behind it
    return known if known in _CODES else OTHER


@attrs.define(eq=False)
class ActorMetrics:
    """The numbers of one actor."""

    name: str
    role: str
    _shell: ActorShell
    _transport: Transport
    _store: Path | None
    _outcomes: Outcomes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._outcomes = Outcomes(self.role)

    async def count_outcomes(self) -> None:
        """Follow the actor's log until cancelled."""
        with self._shell.transitions.watch() as watcher:
            while True:
                for row in (await watcher.take())[0]:
                    self._outcomes.see(row)

    async def measure(self, into: Measuring) -> None:
        """Tell all."""
        labels = {"actor": self.name, "role": self.role}
        shell = self._shell.describe()
        into.gauge("leasekit_actor_running", "Whether the actor runs (1), or why not is told.", float(
            shell.state == RUNNING), **labels)  # fmt: skip
        into.gauge("leasekit_clock_held", "Whether this machine's clock is not believed (1).", float(
            self._shell.clock.describe().state == HELD), **labels)  # fmt: skip
        self._measure_work(into, shell, labels)
        self._measure_requests(into, labels)
        self._measure_peers(into, labels)
        if self._store is not None:
            size = sum(map(_size, (self._store, Path(f"{self._store}-wal"))))
            into.gauge("leasekit_store_bytes", "The size of the actor's store, with its journal.", size, **labels)
        if shell.state == RUNNING:
            await self._measure_state(into, labels)

    def _measure_work(self, into: Measuring, shell: ShellDetails, labels: Mapping[str, str]) -> None:
        into.gauge("leasekit_inbox_inputs", "Inputs that wait for the actor.", shell.inbox, **labels)
        for state, count in shell.actions.items():
            into.gauge("leasekit_actions", "Actions of drivers that run, or wait.", count, **labels, state=state)
        into.gauge("leasekit_runaway_turns", "Turns that were given up and still run.", shell.runaway_turns, **labels)
        for key, name, words in (
            ("inputs", "inputs", "Inputs that the actor has taken."),
            ("commits", "commits", "Commits of the store."),
            ("changes", "changed_rows", "Rows that were committed."),
            ("messages", "sent_messages", "Messages that the actor has sent."),
            ("actions_started", "started_actions", "Actions of drivers that were started."),
            ("bugs", "bugs", "Internal errors, after which the actor went on from its last commit."),
            ("unit_log_lines_dropped", "dropped_unit_log_lines", "Lines of drivers that were too many."),
        ):
            into.counter(f"leasekit_{name}", words, getattr(shell, key), **labels)
        times = self._shell.times
        into.histogram("leasekit_commit_seconds", "How long a commit takes.", times.commits, **labels)
        into.histogram("leasekit_mapper_turn_seconds", "How long a turn of the mapper takes.", times.turns, **labels)

    def _measure_requests(self, into: Measuring, labels: Mapping[str, str]) -> None:
        words = "Requests for units that were decided, by outcome and the code of the reason."
        for (outcome, code), count in self._outcomes.counts.items():
            into.counter("leasekit_requests", words, count, **labels, outcome=outcome, code=code)
        words = "How long it took until a request for units was decided."
        into.histogram("leasekit_decision_seconds", words, self._outcomes.decided, **labels)

    def _measure_peers(self, into: Measuring, labels: Mapping[str, str]) -> None:
        for peer in self._transport.status():
            of = {**labels, "peer": peer.peer}
            into.gauge("leasekit_peer_connected", "Whether the peer is connected (1).", float(peer.connected), **of)
            into.gauge("leasekit_peer_queued_bytes", "What waits to be sent to the peer.", peer.queued_bytes, **of)
            ahead = peer.clock_ahead / SECOND
            into.gauge(
                "leasekit_peer_clock_offset_seconds", "By how much its clock is ahead at least (< 0: behind).", ahead,
                **of,
            )  # fmt: skip
            for way, count in (("sent", peer.sent), ("received", peer.received), ("dropped", peer.dropped)):
                into.counter("leasekit_peer_messages", "Messages to and from the peer.", count, **of, way=way)

    async def _measure_state(self, into: Measuring, labels: Mapping[str, str]) -> None:
        try:
            status = await self._shell.query("status", {})
            leases = await self._shell.query("leases", {}) if self.role == "authority" else ()
        except LeasekitError:
            return  # it ended meanwhile
        for state, count in status["leases"].items():
            into.gauge("leasekit_leases", "Leases that are not over, by state.", count, **labels, state=state)
        for name, value in status["reported"].items():
            words = "Numbers that the mapper reports of itself."
            into.gauge("leasekit_mapper_reported", words, value, **labels, number=name)
        if "waiting" in status:
            into.gauge("leasekit_waiting_leases", "Leases that wait for units.", status["waiting"], **labels)
        if self.role == "guest":
            into.gauge("leasekit_leased_units", "Units that the guest has.", status["units"], **labels)
            return
        if self.role == "broker":
            into.gauge("leasekit_sources", "Delegations that the broker holds.", status["sources"], **labels)
        else:
            for type_, states in status["units"].items():
                for state, count in states.items():
                    words = "Units of the site, by type and state."
                    into.gauge("leasekit_units", words, count, **labels, type=type_, state=state)
            for type_ in dict.fromkeys([*status["units"], *(one["type"] for one in leases)]):
                lacks = sum(max(0, one["wanted"] - len(one["units"])) for one in leases if one["type"] == type_)
                words = "Units that leases have too few of."
                into.gauge("leasekit_deficit_units", words, lacks, **labels, type=type_)
            words = "Types whose units can't be set up, by the site's fault."
            into.gauge("leasekit_outages", words, len(status["outages"]), **labels)
        into.gauge(
            "leasekit_delegation_differences", "Delegations that differ from the settings.",
            len(status["delegations"]), **labels,
        )  # fmt: skip
        into.gauge("leasekit_reports", "Reports of claims that went wrong.", len(status["reports"]), **labels)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
