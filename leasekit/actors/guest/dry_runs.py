"""What a guest's broker would answer: requests, extends and modifies that are tried."""

from __future__ import annotations

from typing import Any, Final

from leasekit.actors.calls import Calls
from leasekit.actors.dispatch import deferred, takes
from leasekit.actors.guest.changes import LeaseChanges
from leasekit.actors.guest.decisions import structure
from leasekit.actors.guest.requests import LeaseRequests
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import Asked
from leasekit.core.mappers import ExtendLease, ModifyLease, RequestLease
from leasekit.core.protocol.messages import NEW, Probe, ProbeAnswer
from leasekit.core.requests import parse_options
from leasekit.core.steps import Command, Reply
from leasekit.core.time import SECOND, Duration
from leasekit.core.words import view

PROBE_TIMEOUT: Final[Duration] = 20 * SECOND
"""How long a broker's answer is waited for where it is only asked what it would say."""


class Probes:
    """Dry runs of requests: a command's reply is what the broker said."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, calls: Calls, requests: LeaseRequests, changes: LeaseChanges
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._calls = calls
        self._requests = requests
        self._changes = changes

    @deferred("lease.probe")
    def _probe(self, command: Command) -> None:
        wish = structure(RequestLease, command.arguments, term=True)
        self._requests.check(wish)
        broker = self._requests.broker(wish.broker)
        if parse_options(wish.properties, wish.term).group:
            raise CommandError("properties.group_id: a group is answered whole, one request of it can't be tried")
        self._send(command, broker, wish.type, Asked(NEW, wish.units, wish.term, wish.site, wish.properties))

    @deferred("lease.probe_extend")
    def _probe_extend(self, command: Command) -> None:
        lease, asked, _ = self._changes.extension(structure(ExtendLease, command.arguments))
        self._send(command, lease.broker, lease.type, asked, lease.id)

    @deferred("lease.probe_modify")
    def _probe_modify(self, command: Command) -> None:
        """Of units or end: a configuration is the site's to decide."""
        lease, asked = self._changes.modification(structure(ModifyLease, command.arguments))
        if asked is None:
            raise CommandError("units and end stay as they are: the broker has nothing to decide")
        self._send(command, lease.broker, lease.type, asked, lease.id)

    def _send(self, command: Command, broker: str, type_: str, asked: Asked, of: str = "") -> None:
        subject = f"{self._keyring.tag}-probe"
        unheard = f"{broker} did not answer within {PROBE_TIMEOUT // SECOND} s; nothing was asked for"
        call = self._calls.begin(command, broker, subject, PROBE_TIMEOUT, unheard)
        probe = call.repeat = Probe(
            subject, call.number, type_, asked.units, asked.term, asked.site, dict(asked.properties), asked.op, of
        )
        self._kernel.send(broker, probe)

    @takes(ProbeAnswer)
    def _answered(self, peer: str, message: ProbeAnswer) -> None:
        call = self._calls.answered(peer, message.lease, message.number)
        if call is not None:
            answer: dict[str, Any] = {
                "broker": peer,
                "status": message.status,
                "site": message.site,
                "units": message.units,
                "term": list(message.term),
                **view(message.reason),
                "earliest": message.earliest if message.earliest >= 0 else None,
            }
            self._calls.end(call, Reply(call.command, answer))
