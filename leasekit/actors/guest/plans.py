"""A guest's topologies: sites and links that it leases at once, or not at all.

Theory of operation. The broker plans, and holds its plan for a while. The guest then decides, and writes that down
together with one lease for each part: from then on the tickets are asked for like any others, and no crash makes the
guest forget what it began. No ticket is redeemed before all are there. If one is refused, or time is up, the others are
given back, and another plan is tried if any is left to be tried. What brokers hold for a plan that came to nothing is
released, and would expire by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import asdict

from leasekit.actors.dispatch import command, deferred, query, takes
from leasekit.actors.guest.desk import NAME_MAX, GuestDesk
from leasekit.actors.kernel import earliest
from leasekit.actors.settings import GuestSettings, Peer
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.plans import ASKING, CLOSED, COMMITTED, COMMITTING, FAILED, HOLD, TOPOLOGY_MACHINE, Topology
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import GuestMapper, RequestLease, RequestTopology, TopologyView
from leasekit.core.properties import PROPERTIES_MAX
from leasekit.core.protocol.messages import ErrorReply, Plan, Planned, PlanPart, ReleaseParts
from leasekit.core.requests import parse_options
from leasekit.core.schema import Row
from leasekit.core.steps import Command, Reply
from leasekit.core.time import SECOND, Duration, Instant
from leasekit.core.topology import (
    REQUEST_BYTES_MAX,
    LinkWish,
    SiteWish,
    TopologyRequest,
    decode_topology,
    in_order,
    read_topology,
)

PLAN_TIMEOUT: Final[Duration] = 30 * SECOND
"""How long an answer is waited for where the broker is only asked what it would plan."""
TRIES: Final = 3
TRIES_MAX: Final = 100
OVER: Final = (FAILED, CLOSED)
OWN: Final = frozenset({"group_id", "lease_count", HOLD})
"""Request properties that hold the leases of a topology together."""


class GuestPlans(GuestDesk):
    """The topologies of a guest."""

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: GuestMapper,
        settings: GuestSettings,
    ) -> None:
        super().__init__(name, signer, scheme, peers, mapper, settings)
        self.topologies: dict[str, Topology] = {}
        self._topology_of: dict[str, Topology] = {}
        self.connected.append(self._ask_again)
        self.refused.insert(0, self._plan_refused)
        self.kernel.register(Topology, due_at=self._topology_due_at, on_due=self._topology_due)

    # -- asking ------------------------------------------------------------------------------------------------

    def request_topology(self, wish: RequestTopology) -> Topology:
        """Lease a topology. Raises ``CommandError`` or ``SettingsError`` that name the field."""
        self._check_topology(wish.request)
        if not 1 <= wish.tries <= TRIES_MAX:
            raise CommandError(f"tries: found {wish.tries}, expected 1 to {TRIES_MAX}")
        topology = Topology(
            f"{self.keyring.tag}-topology-{self.kernel.next('serial')}", self._broker(wish.broker),
            wish.request.to_bytes(), wish.tries - 1,
        )  # fmt: skip
        self.topologies[topology.id] = topology
        members = ", ".join(member.id for member in wish.request.members)
        self.kernel.note(
            topology.id, "plan", "", f"{topology.state}/{topology.pending}", f"{members}, of {topology.broker}"
        )
        self._ask_plan(topology)
        return topology

    def _check_topology(self, request: TopologyRequest) -> None:
        faults = request.check()
        for member in request.members:
            faults += [
                f"{member.id}: properties.{name}: a topology says it itself" for name in OWN & {*member.properties}
            ]
            if len(member.properties) + len(OWN) > PROPERTIES_MAX:
                most = PROPERTIES_MAX - len(OWN)
                faults.append(f"{member.id}: properties: found {len(member.properties)}, at most {most} are allowed")
            try:
                parse_options({**member.properties, "group_id": "plan", "lease_count": "1"}, request.term(request.est))
            except CommandError as error:
                faults.append(f"{member.id}: {error}")
        if request.lst + request.duration <= self.kernel.now:
            faults.append(f"lst: found {request.lst}, such a term would be over: it is {self.kernel.now} here")
        if len(request.to_bytes()) > REQUEST_BYTES_MAX * 4 or len(request.for_broker().to_bytes()) > REQUEST_BYTES_MAX:
            faults.append(f"the request is too long, at most {REQUEST_BYTES_MAX} bytes are sent")
        if faults:
            raise CommandError("\n".join(faults))

    def _ask_plan(self, topology: Topology) -> None:
        """Have the broker plan, under a new query."""
        number = self.kernel.next("serial")
        topology.query, topology.number = f"{topology.id}.{number}", number
        topology.deadline, topology.tries = self.kernel.now + self.settings.request_timeout, 0
        self._send_plan(topology)

    def _send_plan(self, topology: Topology) -> None:
        request = decode_topology(topology.request, REQUEST_BYTES_MAX * 4).for_broker()
        self.kernel.send(topology.broker, Plan(topology.query, topology.number, "hold", request.to_bytes()))
        topology.send_at = self.kernel.now + self.kernel.backoff(topology.tries)
        topology.tries += 1
        self.kernel.touch(topology)

    def _ask_again(self, peer: str) -> None:
        for topology in self.topologies.values():
            if topology.state == ASKING and topology.broker == peer:
                topology.tries = 0
                self._send_plan(topology)

    @deferred("topology.plan")
    def _try_topology(self, command: Command) -> None:
        """Have the broker say what it would plan; the command's reply is what it said."""
        request = _request_of(command.arguments)
        self._check_topology(request)
        broker = self._broker(_text(command.arguments, "broker"))
        number = self.kernel.counters["serial"] + 1  # the one that the errand gets
        subject = f"{self.keyring.tag}-try-{number}"
        unheard = f"{broker} did not answer within {PLAN_TIMEOUT // SECOND} s; nothing was asked for"
        errand = self.calls.begin(command, broker, subject, PLAN_TIMEOUT, unheard)
        message = errand.repeat = Plan(subject, errand.number, "try", request.for_broker().to_bytes())
        self.kernel.send(broker, message)

    # -- the broker's answer -----------------------------------------------------------------------------------

    @takes(Planned)
    def _on_planned(self, peer: str, message: Planned) -> None:
        errand = self.calls.answered(peer, message.query, message.number)
        if errand is not None:
            self.calls.end(errand, Reply(errand.command, {"broker": peer, **_answer(message)}))
            return
        topology = self.topologies.get(message.query.rpartition(".")[0])
        if topology is None or topology.broker != peer or topology.query != message.query:
            self._release(message.plan, (peer,))
        elif topology.state != ASKING:
            if message.plan != topology.plan or topology.state in OVER:
                self._release(message.plan, (peer,))
        elif message.status != "held":
            topology.earliest = message.earliest
            self._end_topology(topology, "refuse", f"{peer}: {message.reason or 'it gave no reason'}")
        else:
            wrong = self._why_not(topology, message)
            if wrong:
                self._release(message.plan, self._brokers(message.parts))
                self._end_topology(topology, "refuse", f"{peer}'s plan can't be leased: {wrong}")
            else:
                self._decide_on(topology, message)

    def _plan_refused(self, peer: str, message: ErrorReply) -> bool:
        """a request for a plan may be refused by an error, too."""
        topology = self.topologies.get(message.lease.rpartition(".")[0])
        if topology is not None and topology.broker == peer and topology.query == message.lease:
            if topology.state == ASKING and message.number == topology.number:
                self._end_topology(topology, "refuse", f"{peer}: {message.text}")
            return True
        return False

    def _why_not(self, topology: Topology, message: Planned) -> str:
        """What is wrong with a plan, so that it is not leased."""
        request = decode_topology(topology.request, REQUEST_BYTES_MAX * 4)
        parts = {member.id: [p for p in message.parts if p.member == member.id] for member in request.members}
        if message.term != request.term(message.term.start) or not request.est <= message.term.start <= request.lst:
            return f"its term is {tuple(message.term)}"
        if message.term.end <= self.kernel.now:
            return "its term is over"
        if len({part.part for part in message.parts}) < len(message.parts) or not message.plan:
            return "its parts have no names of their own"
        for site in request.sites:
            found = [(part.type, part.units) for part in parts[site.id]]
            if found != [(site.type, site.units)]:
                return f"for {site.id} it has {found}"
            at = parts[site.id][0].site
            if site.pin not in ("", at) or at in (*site.exclude, *request.avoid):
                return f"it has {site.id} at {at}"
        hosts = {site.id: parts[site.id][0].site for site in request.sites}
        if request.options.distinct_sites and len({*hosts.values()}) < len(hosts):
            return "it has two requested sites at one site"
        for link in request.links:
            if not parts[link.id] and hosts[link.from_] != hosts[link.to]:
                return f"it has nothing for {link.id}"
        if sum(len(found) for found in parts.values()) < len(message.parts):
            return "it has parts that were not asked for"
        for name in self._brokers(message.parts):
            if getattr(self.keyring.peers.get(name), "role", "") != "broker":
                return f"broker {name!r} is no peer here"
        return ""

    @staticmethod
    def _brokers(parts: Sequence[PlanPart]) -> tuple[str, ...]:
        return tuple(sorted({part.broker for part in parts}))

    def _release(self, plan: str, brokers: Iterable[str]) -> None:
        """What is held under a plan is not wanted: a broker that doesn't hear of it frees it when it expires."""
        for broker in brokers if plan else ():
            if broker in self.keyring.peers:
                self.kernel.send(broker, ReleaseParts(plan, self.kernel.next("serial")))

    # -- deciding ----------------------------------------------------------------------------------------------

    def _decide_on(self, topology: Topology, message: Planned) -> None:
        """The decision is written down with a lease for each part."""
        settings = self.settings
        topology.plan, topology.term, topology.parts = message.plan, message.term, message.parts
        topology.objective, topology.gap, topology.expires = message.objective, message.gap, message.expires
        topology.reason, topology.earliest = "", -1
        # A broker may hold its plan for a year: what it has granted of it does not wait for the rest as long.
        heard = min(message.expires, self.kernel.now + settings.request_timeout)
        topology.deadline = heard + settings.clock_skew + 2 * settings.retry_first
        topology.leases = {}
        self.kernel.fire(TOPOLOGY_MACHINE, topology, "decide", f"{message.plan}: {len(message.parts)} parts")
        request = decode_topology(topology.request, REQUEST_BYTES_MAX * 4)
        awaited = {name for member in request.members for name in _predecessors(member)}
        counts = {name: sum(part.broker == name for part in message.parts) for name in self._brokers(message.parts)}
        last: dict[str, str] = {}
        for member in in_order(request):
            for part in (one for one in message.parts if one.member == member.id):
                before = last.get(member.id, "") if member.id in awaited else ""
                lease = self._lease_part(topology, request, member, part, counts.pop(part.broker, 0), last, before)
                last[member.id] = topology.leases[part.part] = lease.id
                self._topology_of[lease.id] = topology
        self.kernel.touch(topology)

    def _lease_part(
        self,
        topology: Topology,
        request: TopologyRequest,
        member: SiteWish | LinkWish,
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
        wish = RequestLease(
            type=part.type,
            units=part.units,
            term=topology.term,
            slice=request.slice,
            name=self._free_name(request.slice, part.part),
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
        return self.begin_lease(wish, topology.deadline)

    def _free_name(self, slice_: str, name: str) -> str:
        taken, number = name, 1
        while (slice_, taken) in self.records.named and self.records.named[slice_, taken] in self.records.open:
            number += 1
            taken = f"{name}-{number}"
        return taken

    def is_undecided(self, lease: GuestLease) -> bool:
        """Whether the lease is one of several of which not all have their tickets: it must not be redeemed."""
        topology = self._topology_of.get(lease.id)
        return topology is not None and topology.state == COMMITTING

    def _settle_hold(self, lease: GuestLease) -> None:
        super()._settle_hold(lease)
        topology = self._topology_of.get(lease.id)
        if topology is None:
            return
        members = [self.leases.get(id_) for id_ in topology.leases.values()]
        if topology.state == COMMITTING:
            gone = [one for one in members if one is None or one.state in (sm.FAILED, sm.CLOSED)]
            if gone:
                lost = gone[0]
                self._abandon(
                    topology, "a lease is gone" if lost is None else f"{lost.name}: {lost.reason or lost.state}"
                )
            elif all(one is not None and one.approved is not None for one in members):
                self.kernel.fire(TOPOLOGY_MACHINE, topology, "commit", "all tickets are there")
                for other in members:
                    if other is not None and other is not lease:
                        self.advance(other)
        elif topology.state == COMMITTED and all(one is None or one.ended >= 0 for one in members):
            topology.ended, topology.reason = self.kernel.now, topology.reason or lease.reason
            self.kernel.fire(TOPOLOGY_MACHINE, topology, "over", topology.reason)

    def _abandon(self, topology: Topology, why: str, *, again: bool = True) -> None:
        """A decision comes to nothing: what it got goes back; another plan is tried if there is a try left."""
        plan, brokers, leases = topology.plan, self._brokers(topology.parts), list(topology.leases.values())
        for id_ in leases:
            self._topology_of.pop(id_, None)
        if again and topology.left and decode_topology(topology.request, REQUEST_BYTES_MAX * 4).lst >= self.kernel.now:
            self.kernel.fire(TOPOLOGY_MACHINE, topology, "plan_again", why)
            topology.left -= 1
            topology.reason = why
            self._ask_plan(topology)
        else:
            self._end_topology(topology, "abandon" if again else "give_up", why)
        for id_ in leases:
            lease = self.leases.get(id_)
            if lease is not None and sm.MACHINE.allows((lease.state, lease.pending), "close"):
                self.close(lease, f"its topology came to nothing: {why}")
        self._release(plan, brokers)

    def _end_topology(self, topology: Topology, event: str, why: str) -> None:
        self.kernel.fire(TOPOLOGY_MACHINE, topology, event, why)
        topology.reason, topology.ended = why, self.kernel.now

    # -- time and state ----------------------------------------------------------------------------------------

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        for row in tables.get("plans", ()):
            topology = Topology.from_row(row)
            self.topologies[topology.id] = topology
            for id_ in topology.leases.values() if topology.state in (COMMITTING, COMMITTED) else ():
                self._topology_of[id_] = topology
            self.kernel.schedule(topology, self.kernel.now)

    def _topology_due_at(self, record: Topology) -> Instant | None:
        match record.state:
            case "asking":
                return earliest(record.send_at, record.deadline)
            case "committing":
                return record.deadline
            case "committed":
                return None
        return record.ended + self.settings.retention

    def _topology_due(self, record: Topology) -> None:
        if record.state == ASKING:
            if record.deadline <= self.kernel.now:
                self._end_topology(record, "refuse", f"no answer from broker {record.broker} in time")
            elif record.send_at <= self.kernel.now:
                self._send_plan(record)
        elif record.state == COMMITTING and record.deadline <= self.kernel.now:
            self._abandon(record, "not all of its tickets came in time")
        elif record.state in OVER and record.ended + self.settings.retention <= self.kernel.now:
            self._forget_topology(record)

    def _forget_topology(self, topology: Topology) -> None:
        del self.topologies[topology.id]
        for id_ in topology.leases.values():
            if self._topology_of.get(id_) is topology:
                del self._topology_of[id_]
        self.kernel.erase(topology)

    # -- commands and queries ----------------------------------------------------------------------------------

    @command("topology.request")
    def _ask_topology(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        tries = arguments.get("tries", TRIES)
        if type(tries) is not int:
            raise CommandError(f"tries: found {tries!r:.40}, expected 1 to {TRIES_MAX}")
        wish = RequestTopology(_request_of(arguments), _text(arguments, "broker"), tries)
        return self._describe_topology(self.request_topology(wish))

    @command("topology.close")
    def _close_topology(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        topology, reason = self._find_topology(arguments), _text(arguments, "reason") or "closed by its guest"
        if topology.state in OVER:
            raise CommandError(f"topology {topology.id} is {topology.state} already: {topology.reason}")
        if topology.state == ASKING:
            self._end_topology(topology, "give_up", reason)
        elif topology.state == COMMITTING:
            self._abandon(topology, reason, again=False)
        else:
            topology.reason = reason
            self.kernel.touch(topology)
            for id_ in topology.leases.values():
                lease = self.leases.get(id_)
                if lease is not None and sm.MACHINE.allows((lease.state, lease.pending), "close"):
                    self.close(lease, reason)
        return self._describe_topology(topology)

    def _close_slice(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """As the desk's; what is still planned for the slice is given up first, or it would be leased all the same."""
        name = arguments.get("name")
        for topology in list(self.topologies.values()) if isinstance(name, str) else ():
            open_ = topology.state in (ASKING, COMMITTING)
            if open_ and decode_topology(topology.request, REQUEST_BYTES_MAX * 4).slice == name:
                self._close_topology(
                    {"topology": topology.id, "reason": arguments.get("reason") or "its slice was closed"}
                )
        return super()._close_slice(arguments)

    def _find_topology(self, arguments: Mapping[str, Any]) -> Topology:
        name = arguments.get("topology")
        found = self.topologies.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(self.topologies) or "(none)"
            raise CommandError(f"topology: found {name!r:.80}, there are {known:.400}")
        return found

    @query("topology")
    def _query_topology(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        topology = self._find_topology(arguments)
        request = decode_topology(topology.request, REQUEST_BYTES_MAX * 4)
        return {**self._describe_topology(topology), "request": request.to_dict()}

    @query("topologies")
    def _query_topologies(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        every = arguments.get("all", False)
        return [
            {key: value for key, value in self._describe_topology(topology).items() if key != "parts"}
            for topology in self.topologies.values()
            if every or topology.state not in OVER
        ]

    def _describe_topology(self, topology: Topology) -> dict[str, Any]:
        return {
            "topology": topology.id,
            "slice": decode_topology(topology.request, REQUEST_BYTES_MAX * 4).slice,
            "broker": topology.broker,
            "state": topology.state,
            "left": topology.left,
            "plan": topology.plan,
            "term": None if topology.term is None else list(topology.term),
            "objective": topology.objective,
            "gap": topology.gap,
            "expires": topology.expires if topology.expires >= 0 else None,
            "reason": topology.reason,
            "earliest": topology.earliest if topology.earliest >= 0 else None,
            "parts": [self._describe_part(topology, part) for part in topology.parts],
        }

    def _describe_part(self, topology: Topology, part: PlanPart) -> dict[str, Any]:
        id_ = topology.leases.get(part.part, "")
        lease = self.leases.get(id_)
        state, pending = (lease.state, lease.pending) if lease is not None else ("", "")
        return {**asdict(part), "lease": id_, "state": state, "pending": pending}

    def topology_views(self) -> Iterator[TopologyView]:
        """The topologies as mappers see them, those that are over for a while included."""
        for topology in self.topologies.values():
            leases = tuple(topology.leases.values())
            yield TopologyView(topology.id, topology.state, topology.term, leases, topology.reason, topology.earliest)


def _predecessors(member: SiteWish | LinkWish) -> set[str]:
    return {member.redeem_predecessor, member.join_predecessor} - {""}


def _request_of(arguments: Mapping[str, Any]) -> TopologyRequest:
    content = arguments.get("request")
    if not isinstance(content, Mapping):
        raise CommandError("request: expected a table with sites, links, duration, and start or est and lst")
    return read_topology(content)


def _text(arguments: Mapping[str, Any], field: str) -> str:
    value = arguments.get(field) or ""
    if not isinstance(value, str) or len(value) > NAME_MAX * 8:
        raise CommandError(f"{field}: found {value!r:.80}, expected text")
    return value


def _answer(message: Planned) -> dict[str, Any]:
    return {
        "status": message.status,
        "plan": message.plan,
        "term": list(message.term),
        "objective": message.objective,
        "gap": message.gap,
        "expires": message.expires if message.expires >= 0 else None,
        "reason": message.reason,
        "earliest": message.earliest if message.earliest >= 0 else None,
        "parts": [asdict(part) for part in message.parts],
    }
