"""What went wrong with claims, for the operator: found by this actor as a site, or told by one.

The latest are kept in the store. Each is a line in the transition log as well, of which daemons make a warning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from leasekit.actors.kernel import Kernel
from leasekit.core.leases.relations import Report
from leasekit.core.reasons import Code, Reason
from leasekit.core.schema import Row
from leasekit.core.words import words

REPORTS_KEPT: Final = 20
REPORTS_SHOWN: Final = 5
"""How many of them an actor tells with its status."""
REPORT: Final = "report"


class Reports:
    """The reports that the actor called ``name`` keeps."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self._kernel = kernel
        self._name = name
        self._reports: dict[str, Report] = {}
        kernel.register(Report)

    def keep(self, subject: str, reason: Reason, peer: str = "", *, event: str = REPORT) -> None:
        """Keep what was found about ``subject``, a claim or evidence, here or by ``peer``; what says the same as before
        changes nothing. ``event`` is what the log calls it.
        """
        id_ = f"{reason.code}:{subject}@{peer}"
        known = self._reports.pop(id_, None)
        if known is not None and known.reason == reason:
            self._reports[id_] = known
            return
        while len(self._reports) >= REPORTS_KEPT:
            self._forget(next(iter(self._reports.values())))
        report = self._reports[id_] = Report(id_, self._kernel.now, peer, subject, reason)
        self._kernel.touch(report)
        self._kernel.note("", event, "", "", Reason(Code.REPORTED, peer).because(reason) if peer else reason)

    def _forget(self, report: Report) -> None:
        del self._reports[report.id]
        self._kernel.erase(report)

    def latest(self) -> list[dict[str, Any]]:
        """The latest as plain data, the last one at the end."""
        latest = [*self._reports.values()][-REPORTS_SHOWN:]
        return [
            {
                "at": one.at,
                "from": one.peer or self._name,
                "code": one.reason.code,
                "about": one.subject,
                "words": words(one.reason),
            }
            for one in latest
        ]

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept."""
        found = map(Report.from_row, rows)
        self._reports = {one.id: one for one in sorted(found, key=lambda one: (one.at, one.id))}
