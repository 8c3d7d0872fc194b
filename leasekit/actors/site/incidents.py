"""Evidence against issuers that gave away more than they had, and holders that redeemed what they had given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from leasekit.actors.dispatch import query
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.reports import Reports
from leasekit.actors.settings import AuthoritySettings
from leasekit.actors.site.claims import describe_key
from leasekit.core.claims.evidence import (
    Evidence,
    encode_evidence,
)
from leasekit.core.claims.keys import fingerprint
from leasekit.core.claims.ticket import Ticket
from leasekit.core.errors import TicketError
from leasekit.core.leases.relations import Incident
from leasekit.core.reasons import Code, Reason
from leasekit.core.schema import Row


class Incidents:
    """The evidence that a site keeps."""

    def __init__(self, kernel: Kernel, keyring: Keyring, reports: Reports, settings: AuthoritySettings) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._reports = reports
        self._settings = settings
        self.evidence: dict[str, Incident] = {}
        self._guilty: Counter[str] = Counter()
        kernel.register(Incident)

    def check_issuers(self, ticket: Ticket) -> None:
        """Where the settings say so, raises ``TicketError`` if there is evidence against an issuer in the chain."""
        if self._guilty and self._settings.refuse_guilty:
            banned = next((claim.issuer for claim in ticket.chain if self._guilty[claim.issuer.hex()] > 0), None)
            if banned is not None:
                who = self._keyring.called(banned)
                raise TicketError(
                    Code.GUILTY_ISSUER, f"{who} has given away more than it had: {self._keyring.name} keeps evidence"
                )

    def keep(self, id_: str, guilty: bytes, evidence: Evidence, words: str, root: bytes = b"") -> None:
        """Keep evidence in the store, under ``id_``: the latest of each.

        ``root`` is whom the site gave what it is about. Keys are made up easily: where there is too much evidence, that
        below the ``root`` that has most gives way, so that nobody can hide what others do behind its own.
        """
        if id_ not in self.evidence and not self._make_room(root.hex()):
            self._kernel.complain(f"evidence against {fingerprint(guilty)} is not kept: there are {len(self.evidence)}")
            return
        body = encode_evidence(evidence, words).encode()
        incident = Incident(id_, self._kernel.now, evidence.kind, guilty.hex(), words, body, root.hex())
        if id_ not in self.evidence:
            self._guilty[incident.guilty] += 1  # guilty is who there is evidence against: no more than that is kept
        self.evidence[id_] = incident
        self._kernel.touch(incident)
        self._reports.keep(id_, Reason(evidence.kind, detail=words), event=evidence.kind)

    def _make_room(self, root: str) -> bool:
        if len(self.evidence) < self._settings.evidence_max:
            return True
        ((most, count),) = Counter(one.root for one in self.evidence.values()).most_common(1)
        if count <= 1 + sum(one.root == root for one in self.evidence.values()):
            return False
        latest = [one for one in self.evidence.values() if one.root == most][-1]
        del self.evidence[latest.id]
        self._guilty -= Counter({latest.guilty: 1})
        self._kernel.erase(latest)
        return True

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept."""
        for incident in map(Incident.from_row, rows):
            self.evidence[incident.id] = incident
            self._guilty[incident.guilty] += 1

    @query("evidence")
    def _query_evidence(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        wanted, names = str(arguments.get("id", "")), self._keyring.names()
        return [
            {
                "id": one.id,
                "at": one.at,
                "kind": one.kind,
                **describe_key("guilty", one.guilty, names),
                "words": one.words,
                **({"file": one.body.decode()} if wanted else {}),
            }
            for one in self.evidence.values()
            if wanted in ("", one.id)
        ]
