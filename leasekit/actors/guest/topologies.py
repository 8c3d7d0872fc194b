"""A guest's topologies: sites and links that it leases at once, or not at all.

Theory of operation. The broker plans, and holds its plan for a while. The guest then decides, and writes that down
together with one lease for each part: from then on the tickets are asked for like any others, and no crash makes the
guest forget what it began. No ticket is redeemed before all are there. If one is refused, or time is up, the others are
given back, and another plan is tried if any is left to be tried. What brokers hold for a plan that came to nothing is
released, and would expire by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import attrs
from msgspec import UNSET
from msgspec.structs import replace

from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.lifecycle import Endings
from leasekit.actors.guest.requests import LeaseRequests
from leasekit.actors.kernel import Kernel, command, deferred, earliest, keeps, named, query, takes
from leasekit.actors.peering import Calls, Keyring
from leasekit.core.answers import LeasedPartDetails, PlannedTopology, PlanPartDetails, TopologyDetails, plain
from leasekit.core.commands import CloseTopology, LeaseTopology, ListTopologies, PlanTopology, ShowTopology
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.leases.plans import CLOSED, FAILED, HOLD, Topology
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import RequestLease, RequestTopology, TopologyView
from leasekit.core.properties import PROPERTIES_MAX
from leasekit.core.protocol.messages import ErrorReply, Plan, Planned, PlanPart, ReleaseParts
from leasekit.core.reasons import Code, Reason, mark, marked, said, view, words
from leasekit.core.requests import TRUE, parse_options
from leasekit.core.schema import Row
from leasekit.core.steps import Command, Reply
from leasekit.core.time import SECOND, Duration, Instant
from leasekit.core.topology import (
    REQUEST_BYTES_MAX,
    RequestedLink,
    RequestedSite,
    TopologyRequest,
    decode_topology,
    in_order,
    read_topology,
)

PLAN_TIMEOUT: Final[Duration] = 30 * SECOND
"""How long an answer is waited for where the broker is only asked what it would plan."""
TRIES_MAX: Final = 100
OVER: Final = (FAILED, CLOSED)
OWN: Final = frozenset({"group_id", "lease_count", HOLD})
"""Request properties that hold the leases of a topology together."""


@keeps(rows="by_id")
class LeasedTopologies:
    """The topologies of a guest."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, records: Leases, requests: LeaseRequests, endings: Endings
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._records = records
        self._requests = requests
        self._close_if_open = endings.close_if_open
        self.by_id: dict[str, Topology] = {}
        self._of_lease = records.part_of
        self.committed: list[Callable[[GuestLease], None]] = []
        """Who is told, in order, of each lease that may be redeemed from now on."""
        records.part_settled.append(self.settle)
        kernel.register(Topology, due_at=self._due_at, on_due=self._due)

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept."""
        for topology in map(Topology.from_row, rows):
            self.by_id[topology.id] = topology
            for id_ in topology.leases.values() if topology.has_leases else ():
                self._of_lease[id_] = topology
            self._kernel.schedule(topology, self._kernel.now)

    # -- asking ------------------------------------------------------------------------------------------------

    def request(self, decision: RequestTopology) -> Topology:
        """Lease a topology. Raises ``CommandError`` or ``SettingsError`` that name the field."""
        check_topology(decision.request, self._kernel.now)
        if not 1 <= decision.tries <= TRIES_MAX:
            raise ArgumentError(f"tries: found {decision.tries}, expected 1 to {TRIES_MAX}")
        topology = Topology(
            f"{self._keyring.tag}-topology-{self._kernel.next('serial')}", self._requests.broker(decision.broker),
            decision.request.to_bytes(), decision.tries - 1,
        )  # fmt: skip
        self.by_id[topology.id] = topology
        members = ", ".join(member.id for member in decision.request.members)
        self._kernel.note(
            topology.id, "plan", "", f"{topology.state}/{topology.pending}", said(f"{members}, of {topology.broker}")
        )
        self._ask_plan(topology)
        return topology

    def _ask_plan(self, topology: Topology) -> None:
        """Have the broker plan, under a new query."""
        number = self._kernel.next("serial")
        topology.query, topology.number = f"{topology.id}.{number}", number
        topology.deadline, topology.tries = self._kernel.now + self._requests.timeout, 0
        self._send_plan(topology)

    def _send_plan(self, topology: Topology) -> None:
        request = _request(topology).for_broker()
        self._kernel.send(topology.broker, Plan(topology.query, topology.number, "hold", request.to_bytes()))
        topology.send_at = self._kernel.again_at(topology.tries)
        topology.tries += 1
        self._kernel.touch(topology)

    def connected(self, peer: str) -> None:
        """A connection to ``peer`` has come up: what it has not answered is asked again at once."""
        for topology in self.by_id.values():
            if topology.awaits_plan and topology.broker == peer:
                topology.tries = 0
                self._send_plan(topology)

    # -- the broker's answer -----------------------------------------------------------------------------------

    def planned(self, peer: str, message: Planned) -> None:
        """A broker has planned, or says why not."""
        topology = self.by_id.get(message.query.rpartition(".")[0])
        if topology is None or topology.broker != peer or topology.query != message.query:
            self._release(message.plan, (peer,))
        elif not topology.awaits_plan:
            if message.plan != topology.plan or topology.is_over:
                self._release(message.plan, (peer,))
        elif message.status != "held":
            topology.earliest = message.earliest
            self._end(topology, "refuse", Reason(Code.SAYS, peer).because(message.reason))
        else:
            wrong = self._why_not(topology, message)
            if wrong:
                self._release(message.plan, self._brokers(message.parts))
                self._end(topology, "refuse", Reason(Code.PLAN_UNUSABLE, peer).because(wrong))
            else:
                self._decide_on(topology, message)

    def refused(self, peer: str, message: ErrorReply) -> bool:
        """Whether an error answers a request for a plan, which may be refused by one, too."""
        topology = self.by_id.get(message.lease.rpartition(".")[0])
        if topology is not None and topology.broker == peer and topology.query == message.lease:
            if topology.awaits_plan and message.number == topology.number:
                self._end(topology, "refuse", Reason(Code.SAYS, peer).because(message.reason))
            return True
        return False

    def _why_not(self, topology: Topology, message: Planned) -> Reason | None:
        """What is wrong with a plan, so that it is not leased."""
        request = _request(topology)
        parts = {member.id: [p for p in message.parts if p.member == member.id] for member in request.members}
        if message.term != request.term(message.term.start) or not request.est <= message.term.start <= request.lst:
            return said(f"its term is {marked(message.term)}")
        if message.term.end <= self._kernel.now:
            return Reason(Code.TERM_OVER)
        if len({part.part for part in message.parts}) < len(message.parts) or not message.plan:
            return said("its parts have no names of their own")
        for site in request.sites:
            found = [(part.type, part.units) for part in parts[site.id]]
            if found != [(site.type, site.units)]:
                return said(f"for {site.id} it has {found}")
            at = parts[site.id][0].site
            if site.pin not in ("", at) or at in (*site.exclude, *request.avoid):
                return said(f"it has {site.id} at {at}")
        hosts = {site.id: parts[site.id][0].site for site in request.sites}
        if request.options.distinct_sites and len({*hosts.values()}) < len(hosts):
            return said("it has two requested sites at one site")
        for link in request.links:
            if not parts[link.id] and hosts[link.from_] != hosts[link.to]:
                return said(f"it has nothing for {link.id}")
        if sum(len(found) for found in parts.values()) < len(message.parts):
            return said("it has parts that were not asked for")
        for name in self._brokers(message.parts):
            if getattr(self._keyring.peers.get(name), "role", "") != "broker":
                return said(f"broker {name!r} is no peer here")
        return None

    @staticmethod
    def _brokers(parts: Sequence[PlanPart]) -> tuple[str, ...]:
        return tuple(sorted({part.broker for part in parts}))

    def _release(self, plan: str, brokers: Iterable[str]) -> None:
        """What is held under a plan is not wanted: a broker that doesn't hear of it frees it when it expires."""
        for broker in brokers if plan else ():
            if broker in self._keyring.peers:
                self._kernel.send(broker, ReleaseParts(plan, self._kernel.next("serial")))

    # -- deciding ----------------------------------------------------------------------------------------------

    def _decide_on(self, topology: Topology, message: Planned) -> None:
        """The decision is written down with a lease for each part."""
        settings = self._kernel.settings
        topology.plan, topology.term, topology.parts = message.plan, message.term, message.parts
        topology.objective, topology.gap, topology.expires = message.objective, message.gap, message.expires
        topology.reason, topology.earliest = None, -1
        # A broker may hold its plan for a year: what it has granted of it does not wait for the rest as long.
        heard = min(message.expires, self._kernel.now + self._requests.timeout)
        topology.deadline = heard + settings.clock_skew + 2 * settings.retry_first
        topology.leases = {}
        self._kernel.fire(topology, "decide", said(f"{message.plan}: {len(message.parts)} parts"))
        request = _request(topology)
        awaited = {name for member in request.members for name in _predecessors(member)}
        counts = {name: sum(part.broker == name for part in message.parts) for name in self._brokers(message.parts)}
        last: dict[str, str] = {}
        for member in in_order(request):
            for part in (one for one in message.parts if one.member == member.id):
                before = last.get(member.id, "") if member.id in awaited else ""
                lease = self._lease_part(topology, request, member, part, counts.pop(part.broker, 0), last, before)
                last[member.id] = topology.leases[part.part] = lease.id
                self._of_lease[lease.id] = topology
        self._kernel.touch(topology)

    def _lease_part(
        self,
        topology: Topology,
        request: TopologyRequest,
        member: RequestedSite | RequestedLink,
        part: PlanPart,
        count: int,
        last: Mapping[str, str],
        before: str,
    ) -> GuestLease:
        """The lease of one part, after the ``last`` ones of its predecessors or, where others wait for all parts of
        its member, after the one ``before`` it.
        """
        assert topology.term is not None, "it was decided"
        leader = {"lease_count": str(count)} if count else {}
        decision = RequestLease(
            type=part.type,
            units=part.units,
            term=topology.term,
            slice=request.slice,
            name=self._requests.free_name(request.slice, part.part),
            broker=part.broker,
            site=part.site,
            properties={
                **member.properties,
                "group_id": f"{topology.plan}@{part.broker}",
                HOLD: f"{topology.plan}/{part.part}",
                **leader,
            },
            configuration=member.configuration,
            redeem_predecessor=before or last.get(member.redeem_predecessor, ""),
            join_predecessor=last.get(member.join_predecessor, ""),
        )  # fmt: skip
        lease = self._requests.begin(decision, topology.deadline)
        self._kernel.note(lease.id, "part", "", "", Reason(Code.PART_OF, topology.id, what=part.part))
        return lease

    def is_undecided(self, lease: GuestLease) -> bool:
        """Whether not all parts of a lease's topology have their tickets: it must not be redeemed."""
        return self._of_lease[lease.id].awaits_tickets

    def settle(self, lease: GuestLease) -> None:
        """A part has its ticket, or is over: its topology goes on when all have, and comes to nothing when one is."""
        topology = self._of_lease[lease.id]
        members = [self._records.by_id.get(id_) for id_ in topology.leases.values()]
        if topology.awaits_tickets:
            gone = [one for one in members if one is None or one.is_over]
            if gone:
                lost = gone[0]
                why = Reason(Code.LEASE_LOST, what="over")
                if lost is not None:
                    why = Reason(Code.LEASE_LOST, lost.name, lost.state).because(lost.reason)
                self._abandon(topology, why)
            elif all(one is not None and one.approved is not None for one in members):
                self._kernel.fire(topology, "commit", said("all tickets are there"))
                for other in members:
                    if other is not None and other is not lease:
                        for tell in self.committed:
                            tell(other)
        elif topology.is_leased and all(one is None or one.ended >= 0 for one in members):
            topology.ended, topology.reason = self._kernel.now, topology.reason or lease.reason
            self._kernel.fire(topology, "over", topology.reason)

    def _abandon(self, topology: Topology, why: Reason, *, again: bool = True) -> None:
        """A decision comes to nothing: what it got goes back; another plan is tried if there is a try left."""
        plan, brokers, leases = topology.plan, self._brokers(topology.parts), list(topology.leases.values())
        for id_ in leases:
            self._of_lease.pop(id_, None)
        if again and topology.left and _request(topology).lst >= self._kernel.now:
            self._kernel.fire(topology, "plan_again", why)
            topology.left -= 1
            topology.reason = why
            self._ask_plan(topology)
        else:
            self._end(topology, "abandon" if again else "give_up", why)
        for id_ in leases:
            self._close_if_open(self._records.by_id.get(id_), Reason(Code.TOPOLOGY_FAILED).because(why))
        self._release(plan, brokers)

    def _end(self, topology: Topology, event: str, why: Reason) -> None:
        self._kernel.fire(topology, event, why)
        topology.reason, topology.ended = why, self._kernel.now

    # -- time and state ----------------------------------------------------------------------------------------

    def _due_at(self, record: Topology) -> Instant | None:
        if record.is_over:
            return record.ended + self._kernel.settings.retention
        if record.is_leased:
            return None
        return earliest(record.deadline, record.send_at if record.awaits_plan else None)

    def _due(self, record: Topology) -> None:
        if record.awaits_plan:
            if record.deadline <= self._kernel.now:
                self._end(record, "refuse", Reason(Code.NO_TICKET, record.broker))
            elif record.send_at <= self._kernel.now:
                self._send_plan(record)
        elif record.awaits_tickets and record.deadline <= self._kernel.now:
            self._abandon(record, Reason(Code.TICKETS_LATE))
        elif record.is_over and record.ended + self._kernel.settings.retention <= self._kernel.now:
            self._forget(record)

    def _forget(self, topology: Topology) -> None:
        del self.by_id[topology.id]
        for id_ in topology.leases.values():
            if self._of_lease.get(id_) is topology:
                del self._of_lease[id_]
        self._kernel.erase(topology)

    # -- commands and queries ----------------------------------------------------------------------------------

    @command("topology.request")
    def _on_request(self, asked: LeaseTopology) -> TopologyDetails:
        return self._describe(self.request(RequestTopology(read_topology(asked.request), asked.broker, asked.tries)))

    @command("topology.close")
    def _close(self, asked: CloseTopology) -> TopologyDetails:
        topology = named("topology", asked.topology, self.by_id)
        reason = said(asked.reason) if asked.reason else Reason(Code.CLOSED_BY_GUEST)
        if topology.is_over:
            raise CommandError(f"topology {topology.id} is {topology.state} already: {words(topology.reason)}")
        if topology.is_leased:
            topology.reason = reason
            self._kernel.touch(topology)
            for id_ in topology.leases.values():
                self._close_if_open(self._records.by_id.get(id_), reason)
        else:
            self._give_up(topology, reason)
        return self._describe(topology)

    def _give_up(self, topology: Topology, reason: Reason) -> None:
        """No tickets of it are to be redeemed."""
        if topology.awaits_plan:
            self._end(topology, "give_up", reason)
        else:
            self._abandon(topology, reason, again=False)

    def slice_closing(self, name: str, reason: Reason) -> None:
        """What is still planned for a slice that is closed is given up first, or it would be leased all the same."""
        for topology in list(self.by_id.values()):
            if topology.is_under_way and _request(topology).slice == name:
                self._give_up(topology, reason)

    @query("topology")
    def _query(self, asked: ShowTopology) -> TopologyDetails:
        topology = named("topology", asked.topology, self.by_id)
        return replace(self._describe(topology), request=_request(topology).to_dict())

    @query("topologies")
    def _query_all(self, asked: ListTopologies) -> list[TopologyDetails]:
        return [
            replace(self._describe(topology), parts=UNSET)
            for topology in self.by_id.values()
            if asked.all or not topology.is_over
        ]

    def _describe(self, topology: Topology) -> TopologyDetails:
        parts = [self._describe_part(topology, part) for part in topology.parts]
        return TopologyDetails.of(
            topology, topology=topology.id, slice=_request(topology).slice, **_planned(topology), parts=parts
        )

    def _describe_part(self, topology: Topology, part: PlanPart) -> LeasedPartDetails:
        id_ = topology.leases.get(part.part, "")
        lease = self._records.by_id.get(id_)
        state, pending = (lease.state, lease.pending) if lease is not None else ("", "")
        return LeasedPartDetails.of(part, lease=id_, state=state, pending=pending)

    def views(self) -> Iterator[TopologyView]:
        """The topologies as mappers see them, those that are over for a while included."""
        for topology in self.by_id.values():
            leases = tuple(topology.leases.values())
            yield TopologyView(
                topology.id, topology.state, topology.term, leases, words(topology.reason), topology.earliest
            )


@attrs.define(eq=False)
class PlanTrials:
    """Dry runs of topologies: a command's reply is what the broker said that it would plan."""

    _kernel: Kernel
    _keyring: Keyring
    _calls: Calls
    _requests: LeaseRequests
    _topologies: LeasedTopologies

    @deferred("topology.plan")
    def _try(self, command: Command, asked: PlanTopology) -> None:
        request = read_topology(asked.request)
        check_topology(request, self._kernel.now)
        broker = self._requests.broker(asked.broker)
        subject = f"{self._keyring.tag}-try-{self._calls.next_number}"
        unheard = f"{broker} did not answer within {PLAN_TIMEOUT // SECOND} s; nothing was asked for"
        call = self._calls.begin(command, broker, subject, PLAN_TIMEOUT, unheard)
        message = call.repeat = Plan(subject, call.number, "try", request.for_broker().to_bytes())
        self._kernel.send(broker, message)

    @takes(Planned)
    def _on_planned(self, peer: str, message: Planned) -> None:
        call = self._calls.answered(peer, message.query, message.number)
        if call is None:
            self._topologies.planned(peer, message)
        else:
            parts = [PlanPartDetails.of(part) for part in message.parts]
            planned = PlannedTopology.of(message, broker=peer, **_planned(message), parts=parts)
            self._calls.end(call, Reply(call.command, plain(planned)))


def _request(topology: Topology) -> TopologyRequest:
    return _decoded(topology.request)


@lru_cache(maxsize=256)
def _decoded(request: bytes) -> TopologyRequest:
    return decode_topology(request, REQUEST_BYTES_MAX * 4)


def check_topology(request: TopologyRequest, now: Instant) -> None:
    """Raises ``CommandError`` that names the fields, for a topology that can't be leased any more, or is none."""
    faults = request.check()
    for member in request.members:
        faults += [f"{member.id}: properties.{name}: a topology says it itself" for name in OWN & {*member.properties}]
        if member.properties.get("elastic") == TRUE:
            faults.append(f"{member.id}: properties.elastic: a part of a topology is never elastic")
        if len(member.properties) + len(OWN) > PROPERTIES_MAX:
            most = PROPERTIES_MAX - len(OWN)
            faults.append(f"{member.id}: properties: found {len(member.properties)}, at most {most} are allowed")
        try:
            parse_options({**member.properties, "group_id": "plan", "lease_count": "1"}, request.term(request.est))
        except CommandError as error:
            faults.append(f"{member.id}: {error}")
    if request.lst + request.duration <= now:
        faults.append(f"lst: found {mark(request.lst)}, such a term would be over: it is {mark(now)} here")
    if len(request.to_bytes()) > REQUEST_BYTES_MAX * 4 or len(request.for_broker().to_bytes()) > REQUEST_BYTES_MAX:
        faults.append(f"the request is too long, at most {REQUEST_BYTES_MAX} bytes are sent")
    if faults:
        raise CommandError("\n".join(faults))


def _predecessors(member: RequestedSite | RequestedLink) -> set[str]:
    return {member.redeem_predecessor, member.join_predecessor} - {""}


def _planned(of: Topology | Planned) -> dict[str, Any]:
    """What is shown of what was planned under another form than it has."""
    return {
        "expires": of.expires if of.expires >= 0 else None,
        **view(of.reason),
        "earliest": of.earliest if of.earliest >= 0 else None,
    }
