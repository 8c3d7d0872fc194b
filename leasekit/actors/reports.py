"""What went wrong with claims, for the operator: found by this actor as a site, or told by one.

The latest are kept in the store. Each is a line in the transition log as well, of which daemons make a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from leasekit.actors.notices import Notices
from leasekit.actors.served import ServedLease
from leasekit.core.leases.relations import Report
from leasekit.core.schema import Row

L = TypeVar("L", bound=ServedLease)

REPORTS_KEPT: Final = 20
REPORTS_SHOWN: Final = 5
"""How many of them an actor tells with its status."""
REPORT: Final = "report"


class Reports(Notices[L], Generic[L]):
    """A server that keeps reports."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reports: dict[str, Report] = {}
        self.kernel.register(Report)

    def report(self, code: str, subject: str, words: str, peer: str = "", *, event: str = REPORT) -> None:
        """Keep that ``code`` was found about ``subject``, a claim or evidence, here or by ``peer``; what says the same
        as before changes nothing. ``event`` is what the log calls it.
        """
        id_ = f"{code}:{subject}@{peer}"
        known = self.reports.pop(id_, None)
        if known is not None and known.words == words:
            self.reports[id_] = known
            return
        while len(self.reports) >= REPORTS_KEPT:
            self._forget_report(next(iter(self.reports.values())))
        report = self.reports[id_] = Report(id_, self.kernel.now, peer, code, subject, words)
        self.kernel.touch(report)
        self.kernel.note("", event, "", "", f"{peer} reports: {words}" if peer else words)

    def _forget_report(self, report: Report) -> None:
        del self.reports[report.id]
        self.kernel.erase(report)

    def latest_reports(self) -> list[dict[str, Any]]:
        """The latest as plain data, the last one at the end."""
        latest = [*self.reports.values()][-REPORTS_SHOWN:]
        return [
            {"at": one.at, "from": one.peer or self.name, "code": one.code, "about": one.subject, "words": one.words}
            for one in latest
        ]

    # -- time and state ----------------------------------------------------------------------------------------

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        found = [Report.from_row(row) for row in tables.get("reports", ())]
        self.reports = {one.id: one for one in sorted(found, key=lambda one: (one.at, one.id))}
