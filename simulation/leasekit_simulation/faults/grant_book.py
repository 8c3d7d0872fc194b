"""The book of grants: what a claim says beside its units and term is what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from leasekit.core.claims.claim import READY_AT, REPLACES, SAVING, Claim, begin_of
from leasekit.core.claims.statements import decode_statement
from leasekit.core.errors import CommandError
from leasekit.core.protocol.messages import MODIFY, NEW, RequestTicket, TicketUpdate, Truncated
from leasekit.core.requests import Options, parse_options
from leasekit.core.schema import Row
from leasekit.core.time import INSTANT_MAX, Duration, Instant
from leasekit_simulation.faults.checkers import Listening, must
from leasekit_simulation.faults.claim_book import ClaimChecker, chains_of

PREEMPTIBLE: Final = "preemptible"
KNOWN: Final = frozenset({PREEMPTIBLE, READY_AT, REPLACES, SAVING})


class GrantChecker(Listening):
    """A claim may be ended early only if its guest agreed to that, and no other is; it is of the site that the broker
    names, which the guest did not exclude; and it begins no later than is of use.
    """

    def __init__(
        self,
        claims: ClaimChecker,
        sites: Iterable[str],
        clock: Callable[[str], Instant],
        key: Callable[[str], bytes],
        defer_max: Duration = INSTANT_MAX,
    ) -> None:
        """``claims`` hears everything before this one does; ``defer_max`` is how long brokers may put off what does not
        say how long.
        """
        super().__init__()
        self._claims, self._clock, self._key, self._defer_max = claims, clock, key, defer_max
        self._sites = {key(name): name for name in sites}
        self.sends = {TicketUpdate: self._ticket_update, Truncated: self._truncated}
        self.receives = {RequestTicket: self._request}
        self._seen: set[bytes] = set()
        self._arrived: dict[tuple[str, str, int], Instant] = {}
        self._latest: dict[str, Instant] = {}
        self.stepped: set[str] = set()
        """Whose clocks went wrong: until when something is of use they may see otherwise."""

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """A broker's time never goes back, whatever its clock does."""
        self._latest[actor] = max(self._latest.get(actor, 0), rows[-1][0])

    def _now(self, broker: str) -> Instant:
        return max(self._clock(broker), self._latest.get(broker, 0))

    def _request(self, at: Instant, sender: str, receiver: str, message: RequestTicket) -> None:
        # The last time counts: a broker that lost a request in a crash, or has forgotten its lease, hears it anew.
        self._arrived[receiver, message.lease, message.number] = self._now(receiver)

    def _truncated(self, at: Instant, sender: str, receiver: str, message: Truncated) -> None:
        given = self._claims.issued.get(decode_statement(message.truncation).subject)
        firm = given is not None and not given.delegated and not _is_preemptible(given.claim)
        must(not firm, f"{sender} ends a claim of {message.lease} early, which is firm")

    def _ticket_update(self, at: Instant, sender: str, receiver: str, message: TicketUpdate) -> None:
        request = self._claims.requests.get((message.lease, message.number))
        if not message.ticket or message.ticket in self._seen or request is None:
            return
        self._seen.add(message.ticket)
        chains = chains_of(message)
        what = f"{sender} grants {message.lease} {chains[0][-1].units} {chains[0][-1].type}"
        try:
            options = parse_options(request.properties, request.term)
        except CommandError as error:
            must(False, f"{what}, and the request is wrong: {error}")
            raise
        cut = decode_statement(message.truncation).subject.hex() if message.truncation else None
        replaced = [chain[-1].constraints.get(REPLACES) for chain in chains]
        must(replaced == [cut, *[None] * (len(chains) - 1)], f"{what}: it cuts off {cut}, and replaces {replaced}")
        for chain in chains:
            self._check_site(chain[0].issuer, options, message, what)
            self._check_said(chain[-1], options, request, what)
        if request.op == NEW and options.deferrable:
            start, latest = begin_of(chains[0][-1]), self._latest_start(sender, request, options)
            must(start <= latest, f"{what} from {start} on, which is of use up to {latest}")

    def _check_site(self, root: bytes, options: Options, message: TicketUpdate, what: str) -> None:
        site = self._sites.get(root, "")
        must(site == message.site, f"{what} at {message.site}, and the ticket is of {site or 'no site'}")
        must(site not in options.exclude_sites, f"{what} at {site}, which its guest has excluded")

    def _check_said(self, leaf: Claim, options: Options, request: RequestTicket, what: str) -> None:
        other = sorted(leaf.constraints.keys() - KNOWN)
        must(not other, f"{what}, and the claim says {other}, which nobody knows")
        before = self._claims.issued.get(request.claim) if request.op != NEW else None
        stays = before is not None and (request.op == MODIFY or PREEMPTIBLE not in request.properties)
        agreed = options.preemptible or (stays and before is not None and _is_preemptible(before.claim))
        found = _is_preemptible(leaf)
        must(
            found == agreed,
            f"{what}, {PREEMPTIBLE if found else 'firm'}: it was asked for {PREEMPTIBLE if agreed else 'firm'}",
        )
        must(SAVING not in leaf.constraints or found, f"{what}: it is to be suspended, and can't be preempted")

    def _latest_start(self, broker: str, request: RequestTicket, options: Options) -> Instant:
        """The latest start that is of use. Without one in the request it is the end of its broker's patience."""
        if options.latest_start:
            return options.latest_start
        if broker in self.stepped:
            return INSTANT_MAX
        now = self._now(broker)
        begun = now if options.group else self._arrived.get((broker, request.lease, request.number), now)
        patience = min(self._defer_max, options.request_timeout or INSTANT_MAX)
        return max(request.term.start, now, begun + patience)


def _is_preemptible(claim: Claim) -> bool:
    return claim.constraints.get(PREEMPTIBLE) == "true"
