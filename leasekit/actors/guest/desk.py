"""What a service manager is told to do, by its operator's commands and by its mapper's decisions: both take the same
way.

A decision is checked before anything happens; one that can't be carried out changes nothing and says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from leasekit.actors.dispatch import command, deferred, takes
from leasekit.actors.guest.groups import GuestGroups
from leasekit.actors.settings import GuestSettings, Peer
from leasekit.actors.turns import FAILED, check_decision, is_inline, run_turn
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import Asked, GuestLease, Slice
from leasekit.core.mappers import (
    CloseLeaseEarly,
    ExtendLease,
    Go,
    GuestCycle,
    GuestDecision,
    GuestMapper,
    Hold,
    ModifyLease,
    RequestLease,
    RequestTopology,
    TopologyView,
)
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, Probe, ProbeAnswer
from leasekit.core.requests import Options, parse_options
from leasekit.core.steps import Command, Reply, Turn
from leasekit.core.time import SECOND, Duration, Instant, Term

NAME_MAX = 128
KEY_MAX = 4096
PROBE_TIMEOUT: Final[Duration] = 20 * SECOND
"""How long a broker's answer is waited for where it is only asked what it would say."""
SLICE_KEY = "slice.key"
"""The configuration property that holds a slice's login keys."""
T = TypeVar("T")


class GuestDesk(GuestGroups):
    """Commands and mapper turns."""

    decisions = (RequestLease, RequestTopology, ExtendLease, ModifyLease, CloseLeaseEarly)

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: GuestMapper,
        settings: GuestSettings,
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self.inline = is_inline(mapper)
        self._mapper = mapper
        self.turns.wake = 0
        self._call_unblock: Callable[..., Go | Hold] | None = getattr(mapper, "unblock", None)

    # -- for the layer above -----------------------------------------------------------------------------------

    def ask(self, lease: GuestLease, event: str, deadline: Instant) -> None:
        """Have ``lease.asked`` sent to the broker; ``event`` is ``ask``, ``extend`` or ``modify``."""
        raise NotImplementedError

    def take_in_hand(self, lease: GuestLease) -> None:
        """Have the ticket that is being redeemed in hand again, if there is one."""
        raise NotImplementedError

    def _redeem(self, lease: GuestLease, op: str) -> None:
        raise NotImplementedError

    def request_topology(self, wish: RequestTopology) -> object:
        """Lease a topology."""
        raise NotImplementedError

    def topology_views(self) -> Iterable[TopologyView]:
        """The topologies as mappers see them."""
        raise NotImplementedError

    # -- the mapper's turns ------------------------------------------------------------------------------------

    def _turn_at(self) -> Instant | None:
        """When the mapper wants to be called next; None while it runs."""
        return None if self.turns.running else self.turns.wake

    def turn(self) -> Turn | None:
        """The mapper's turn, if it is due."""
        if self.turns.running or self.turns.wake is None or self.turns.wake > self.kernel.now:
            return None
        self.turns.wake = None
        views = [self.records.view(lease, snapshot=not self.inline) for lease in self.records.open.values()]
        cycle = GuestCycle(self.kernel.now, views, list(self.topology_views()))
        return self.turns.begin(lambda: self._mapper.plan(cycle))

    def _waits_for_mapper(self) -> Iterable[str]:
        return ()

    def _carry_out(self, decision: GuestDecision) -> None:
        if isinstance(decision, RequestLease):
            self.request_lease(decision)
        elif isinstance(decision, RequestTopology):
            self.request_topology(decision)
        elif isinstance(decision, ExtendLease):
            self.extend_lease(decision)
        elif isinstance(decision, ModifyLease):
            self.modify_lease(decision)
        elif isinstance(decision, CloseLeaseEarly):
            self.close_early(decision)

    def _upcall(self, lease: GuestLease, predecessor: GuestLease) -> Go | Hold:
        """Ask the mapper before a blocked lease goes on; a mapper that fails holds it for a minute, and says so."""
        if self._call_unblock is None:
            return Go()
        unblock = self._call_unblock
        done = run_turn(0, lambda: [unblock(self.records.view(lease), self.records.view(predecessor))])
        error = done.error
        if not error:
            try:
                return _answer(done.decisions[0])
            except CommandError as wrong:
                error = str(wrong)
        self.turns.wrong(FAILED, f"guest mapper's unblock for {lease.id}: {error}")
        return Hold(self.kernel.now + self.settings.retry_max)

    # -- decisions ---------------------------------------------------------------------------------------------

    def request_lease(self, wish: RequestLease) -> GuestLease:
        """Ask for a new lease. Raises ``CommandError`` that names the field."""
        self._check_wish(wish)
        options = parse_options(wish.properties, wish.term)
        slice_ = wish.slice or "default"
        if wish.name and (slice_, wish.name) in self.records.named:
            other = self.leases[self.records.named[slice_, wish.name]]
            if other.state not in (sm.CLOSED, sm.FAILED):
                raise CommandError(
                    f"name: slice {slice_!r} has a lease {wish.name!r} already ({other.id}, {other.state})"
                )
        return self.begin_lease(wish, self._wait_until(options, wish.term))

    def begin_lease(self, wish: RequestLease, deadline: Instant) -> GuestLease:
        """Ask for a lease that was checked, and wait for the answer until ``deadline``."""
        slice_ = wish.slice or "default"
        if slice_ not in self.records.slices:
            self.records.slices[slice_] = Slice(slice_)
            self.kernel.touch(self.records.slices[slice_])
        lease = GuestLease(
            id=f"{self.keyring.tag}-{self.kernel.next('lease')}",
            name=wish.name,
            slice=slice_,
            type=wish.type,
            broker=self._broker(wish.broker),
            asked=Asked(NEW, wish.units, wish.term, wish.site, dict(wish.properties)),
            configuration=dict(wish.configuration),
            redeem_predecessor=self._known_lease("redeem_predecessor", wish.redeem_predecessor, slice_),
            join_predecessor=self._known_lease("join_predecessor", wish.join_predecessor, slice_),
            proceed=wish.if_predecessor_fails == "proceed",
        )
        if "suspend" in wish.properties:
            lease.first_asked = lease.asked
        self.records.adopt(lease)
        self.ask(lease, "ask", deadline)
        return lease

    @deferred("lease.probe")
    def _probe(self, command: Command) -> None:
        """Have the broker say what it would answer a request; the command's reply is what it said."""
        wish = _structure(RequestLease, command.arguments, term=True)
        self._check_wish(wish)
        broker = self._broker(wish.broker)
        if parse_options(wish.properties, wish.term).group:
            raise CommandError("properties.group_id: a group is answered whole, one request of it can't be tried")
        self._send_probe(command, broker, wish.type, Asked(NEW, wish.units, wish.term, wish.site, wish.properties))

    @deferred("lease.probe_extend")
    def _probe_extend(self, command: Command) -> None:
        """The same for an extend."""
        lease, asked, _ = self._extension(_structure(ExtendLease, command.arguments))
        self._send_probe(command, lease.broker, lease.type, asked, lease.id)

    @deferred("lease.probe_modify")
    def _probe_modify(self, command: Command) -> None:
        """The same for a modify of units or end: a configuration is the site's to decide."""
        lease, asked = self._modification(_structure(ModifyLease, command.arguments))
        if asked is None:
            raise CommandError("units and end stay as they are: the broker has nothing to decide")
        self._send_probe(command, lease.broker, lease.type, asked, lease.id)

    def _send_probe(self, command: Command, broker: str, type_: str, asked: Asked, of: str = "") -> None:
        subject = f"{self.keyring.tag}-probe"
        unheard = f"{broker} did not answer within {PROBE_TIMEOUT // SECOND} s; nothing was asked for"
        errand = self.calls.begin(command, broker, subject, PROBE_TIMEOUT, unheard)
        probe = errand.repeat = Probe(
            subject, errand.number, type_, asked.units, asked.term, asked.site, dict(asked.properties), asked.op, of
        )
        self.kernel.send(broker, probe)

    @takes(ProbeAnswer)
    def _on_probe_answer(self, peer: str, message: ProbeAnswer) -> None:
        errand = self.calls.answered(peer, message.lease, message.number)
        if errand is not None:
            answer = {
                "broker": peer,
                "status": message.status,
                "site": message.site,
                "units": message.units,
                "term": list(message.term),
                "reason": message.reason,
                "earliest": message.earliest if message.earliest >= 0 else None,
            }
            self.calls.end(errand, Reply(errand.command, answer))

    def _wait_until(self, options: Options, term: Term) -> Instant:
        """When the broker's answer comes too late: a little after the broker itself gives up, so that its reason is
        heard.
        """
        now, settings = self.kernel.now, self.settings
        if options.deferrable:
            last = options.latest_start or now + settings.defer_max
        else:
            last = min(now + settings.request_timeout, term.end)
        if options.request_timeout:
            last = min(last, now + options.request_timeout)
        return max(last, now) + settings.clock_skew + 2 * settings.retry_first

    def _check_wish(self, wish: RequestLease) -> None:
        """What :func:`check_decision`, which every wish has passed, does not know."""
        _check_name("slice", wish.slice)
        _check_name("name", wish.name)
        if not wish.type or len(wish.type) > NAME_MAX:
            raise CommandError(f"type: found {wish.type!r}, expected the name of a resource type")
        _check_units(wish.units)
        if wish.term.end <= self.kernel.now:
            raise CommandError(f"term: it ends at {wish.term.end}, which is past: it is {self.kernel.now} here")
        if wish.if_predecessor_fails not in ("fail", "proceed"):
            raise CommandError(
                f"if_predecessor_fails: found {wish.if_predecessor_fails!r}, allowed are 'fail' and 'proceed'"
            )
        if wish.site and getattr(self.keyring.peers.get(wish.site), "role", "") != "authority":
            known = sorted(peer.name for peer in self.keyring.peers.values() if peer.role == "authority")
            raise CommandError(f"site: found {wish.site!r}, known sites are {', '.join(known) or '(none)'}")

    def _broker(self, name: str) -> str:
        known = [peer.name for peer in self.keyring.peers.values() if peer.role == "broker"]
        name = name or self.settings.default_broker or (known[0] if known else "")
        if name not in known:
            raise CommandError(f"broker: found {name!r}, known brokers are {', '.join(sorted(known)) or '(none)'}")
        return name

    def _known_lease(self, field: str, name: str, slice_: str) -> str:
        """The id of a predecessor. It must be there already, so that there can't be a cycle (paper section 3.5)."""
        if not name:
            return ""
        known = self.records.named.get((slice_, name), name)
        if known not in self.leases:
            raise CommandError(f"{field}: found {name!r}, expected a lease that was requested before this one")
        return known

    def extend_lease(self, wish: ExtendLease) -> GuestLease:
        """Renew a lease, growing or shrinking it. Raises ``CommandError``."""
        lease, asked, give_up = self._extension(wish)
        lease.asked, lease.victims = asked, wish.victims
        self.ask(lease, "extend", give_up)
        return lease

    def _extension(self, wish: ExtendLease) -> tuple[GuestLease, Asked, Instant]:
        """The lease, what its broker is asked, and when the answer comes too late."""
        lease = self.records.find(wish.lease)
        self._must_allow(lease, "extend")
        units = self._new_units(lease, wish.units, wish.victims, further=True)
        end = lease.following[-1].term.end if lease.following else lease.end
        if wish.end <= end:
            raise CommandError(f"end: found {wish.end}, it must be later than the lease's end, {end}")
        give_up = end - self.settings.leave_time
        if give_up <= self.kernel.now:
            raise CommandError(f"lease {lease.id} ends at {end}: too late to extend it")
        self.tickets.check_returned(lease)
        return lease, Asked(EXTEND, units, Term(end, wish.end), lease.site, dict(wish.properties)), give_up

    def modify_lease(self, wish: ModifyLease) -> GuestLease:
        """Change a lease in mid-term: by a replacement ticket if units or end change, at the site alone otherwise. What
        was granted to go on from its term stands.
        """
        lease, asked = self._modification(wish)
        self.take_in_hand(lease)
        lease.next_configuration = None if wish.configuration is None else {**lease.configuration, **wish.configuration}
        lease.victims = wish.victims
        if asked is None:
            self.kernel.fire(sm.MACHINE, lease, "modify", "configuration")
            self._redeem(lease, MODIFY)
        else:
            lease.asked = asked
            self.ask(
                lease, "modify", self.limits.redeem_by(lease) if lease.further else lease.end - self.settings.leave_time
            )
        return lease

    def _modification(self, wish: ModifyLease) -> tuple[GuestLease, Asked | None]:
        """The lease, and what its broker is asked, if anything."""
        lease = self.records.find(wish.lease)
        self._must_allow(lease, "modify")
        held = lease.approved
        assert held is not None, "an active lease has a ticket"
        units = self._new_units(lease, wish.units, wish.victims)
        end = wish.end if wish.end is not None else lease.end
        if end <= self.kernel.now:
            raise CommandError(f"end: found {end}, it is {self.kernel.now} here: close the lease instead")
        start = max(self.kernel.now, held.term.start)
        if end <= start:
            raise CommandError(f"end: found {end}, it must be later than the start of the lease's term, {start}")
        if end != lease.end and lease.following:
            raise CommandError(
                f"end: lease {lease.id} goes on from {lease.end} to {lease.following[-1].term.end}, so its end can't "
                f"be modified; `leasekit lease extend {lease.name or lease.id} --undo` takes an extension back first"
            )
        if end != lease.end:
            self.tickets.check_returned(lease)
        if wish.configuration is None and units == held.units and end == lease.end:
            raise CommandError("nothing to modify: give configuration, units or end")
        if units == held.units and end == lease.end:
            return lease, None
        return lease, Asked(MODIFY, units, Term(start, end), lease.site, {})

    def close_early(self, wish: CloseLeaseEarly) -> GuestLease:
        """End a lease early. Closing one that is over, or closing already, is an error that says so."""
        lease = self.records.find(wish.lease)
        if lease.state in (sm.CLOSED, sm.FAILED):
            raise CommandError(f"lease {lease.id} is {lease.state} already: {lease.reason or 'no reason recorded'}")
        if lease.closing or lease.pending in (sm.CLOSING, sm.CLOSE_WAIT):
            raise CommandError(f"lease {lease.id} is being closed already")
        self.close(lease, wish.reason or "closed by its guest")
        return lease

    def _must_allow(self, lease: GuestLease, event: str) -> None:
        if sm.MACHINE.allows((lease.state, lease.pending), event) and not lease.closing:
            return
        raise CommandError(f"lease {lease.id} is {joint(lease)}: only an active lease with nothing pending can {event}")

    def _new_units(
        self, lease: GuestLease, units: int | None, victims: tuple[str, ...], *, further: bool = False
    ) -> int:
        """How many units are wanted; ``further``: from the end of the tickets in hand on."""
        assert lease.approved is not None, "an active lease has a ticket"
        later = lease.following[-1] if further and lease.following else None
        held = (later or lease.approved).units
        have = len(lease.units) if later is None else later.units
        if units is None:
            units = held - len(victims) if victims else held
        _check_units(units)
        unknown = [name for name in victims if name not in lease.units]
        if unknown:
            raise CommandError(
                f"victims: {unknown[0]!r} is no unit of lease {lease.id}; it has {', '.join(lease.units)}"
            )
        if len(set(victims)) != len(victims) or len(victims) > max(0, have - units):
            raise CommandError(
                f"victims: {len(victims)} units are named, going from {have} to {units} units gives up "
                f"{max(0, have - units)}, each named once"
            )
        return units

    # -- commands ----------------------------------------------------------------------------------------------

    @command("lease.request")
    def _request(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.records.describe(self.request_lease(_structure(RequestLease, arguments, term=True)))

    @command("lease.extend")
    def _extend(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.records.describe(self.extend_lease(_structure(ExtendLease, arguments)))

    @command("lease.modify")
    def _modify(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.records.describe(self.modify_lease(_structure(ModifyLease, arguments)))

    @command("lease.close")
    def _close(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.records.describe(self.close_early(_structure(CloseLeaseEarly, arguments)))

    @command("slice.create")
    def _create_slice(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        name, hold = _string(arguments, "name"), arguments.get("hold", 0)
        _check_name("name", name)
        if not name or name in self.records.slices:
            raise CommandError(f"name: found {name!r}, expected a name that no slice has yet")
        if type(hold) is not int or not 0 <= hold <= 10_000:
            raise CommandError(f"hold: found {hold!r}, expected how many leases to wait for (0: none)")
        key = _key_text(arguments)
        record = Slice(name, hold, hold == 0, key=key)
        self.records.slices[name] = record
        self.kernel.touch(record)
        return {"slice": name, "hold": hold}

    @command("slice.key")
    def _set_key(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The slice's users log in with another key: units that are there are told, those to come get it."""
        name, key = _string(arguments, "name"), _key_text(arguments)
        record = self.records.slices.get(name)
        if record is None:
            raise CommandError(f"name: no slice {name!r} here; there are {', '.join(self.records.slices) or '(none)'}")
        record.key = key
        self.kernel.touch(record)
        leases = [lease for lease in self.records.open.values() if lease.slice == name]
        for lease in leases:
            self.advance(lease)
        return {"slice": name, "leases": [lease.id for lease in leases]}

    def roll_key(self, lease: GuestLease) -> None:
        """Have the site give the slice's key to units that have another one; it is asked once for each key."""
        record = self.records.slices.get(lease.slice)
        key = record.key if record is not None else ""
        if not key or lease.key_tried == key or lease.configuration.get(SLICE_KEY) == key:
            return
        if lease.state == sm.TICKETED:
            lease.configuration = {**lease.configuration, SLICE_KEY: key}
        elif (
            sm.MACHINE.allows((lease.state, lease.pending), "modify")
            and not lease.closing
            and lease.end > self.kernel.now
        ):
            lease.key_tried = key
            lease.next_configuration, lease.victims = {**lease.configuration, SLICE_KEY: key}, ()
            self.kernel.fire(sm.MACHINE, lease, "modify", "the slice's key")
            self._redeem(lease, MODIFY)
        self.kernel.touch(lease)

    @command("slice.close")
    def _close_slice(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        name, reason = _string(arguments, "name"), _string(arguments, "reason")
        if name not in self.records.slices:
            raise CommandError(f"name: no slice {name!r} here; there are {', '.join(self.records.slices) or '(none)'}")
        closed = []
        for lease in list(self.records.open.values()):
            if lease.slice == name and lease.suspends and lease.pending == sm.CLOSING:
                lease.closing = True  # its rest is not asked for
                self.kernel.touch(lease)
            elif lease.slice == name and not lease.closing and lease.pending not in (sm.CLOSING, sm.CLOSE_WAIT):
                self.close(lease, reason or "its slice was closed")
                closed.append(lease.id)
        return {"slice": name, "closed": closed}


def joint(lease: GuestLease) -> str:
    """Its state, and what is pending in it, for an operator."""
    return lease.state if lease.pending == NONE else f"{lease.state}, {lease.pending}"


def _key_text(arguments: Mapping[str, Any]) -> str:
    key = _string(arguments, "key").strip()
    if len(key) > KEY_MAX or any(not line.isprintable() for line in key.splitlines()):
        raise CommandError(f"key: expected OpenSSH public keys, a line each, at most {KEY_MAX} characters in all")
    return key


def _answer(decision: Any) -> Go | Hold:
    if not isinstance(decision, Go | Hold):
        raise CommandError("it returned neither Go nor Hold")
    check_decision(decision)
    return decision


def _structure(kind: Callable[..., T], arguments: Mapping[str, Any], *, term: bool = False) -> T:
    values = dict(arguments)
    if term and isinstance(values.get("term"), (list, tuple)) and len(values["term"]) == 2:
        values["term"] = Term(*values["term"])
    if "victims" in values and (values["victims"] is None or isinstance(values["victims"], list)):
        values["victims"] = tuple(values["victims"] or ())
    try:
        decision = kind(**values)
    except TypeError as error:
        raise CommandError(re.sub(r"\w+\.__new__\(\)", "arguments", str(error))) from error
    check_decision(decision)
    return decision


def _string(arguments: Mapping[str, Any], field: str) -> str:
    value = arguments.get(field) or ""
    if not isinstance(value, str):
        raise CommandError(f"{field}: found {value!r:.80}, expected text")
    return value


def _check_name(field: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > NAME_MAX or "/" in value or not value.isprintable():
        raise CommandError(
            f"{field}: found {value!r:.80}, expected up to {NAME_MAX} printable characters without a slash"
        )


def _check_units(units: Any) -> None:
    if type(units) is not int or not 0 < units < 2**31:
        raise CommandError(f"units: found {units!r}, expected a whole number of at least 1")
