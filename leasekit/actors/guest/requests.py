"""New leases that a guest asks for, by its operator's commands and its mapper's decisions: both take the same way.

A request is checked before anything happens; one that can't be carried out changes nothing and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leasekit.actors.dispatch import command
from leasekit.actors.guest.decisions import NAME_MAX, check_name, check_units, structure
from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.operations import GuestOperations
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.settings import GuestSettings
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import After, Asked, GuestLease, Slice
from leasekit.core.mappers import RequestLease
from leasekit.core.protocol.messages import NEW
from leasekit.core.reasons import mark
from leasekit.core.requests import Options, parse_options
from leasekit.core.time import Instant, Term


class LeaseRequests:
    """A guest's requests for leases."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, settings: GuestSettings, records: Leases, operations: GuestOperations
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._settings = settings
        self._records = records
        self._operations = operations
        self.timeout = settings.request_timeout
        """How long an answer to a request that can't be deferred is waited for."""

    @command("lease.request")
    def _request(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self._records.describe(self.request(structure(RequestLease, arguments, term=True)))

    def request(self, wish: RequestLease) -> GuestLease:
        """Ask for a new lease. Raises ``CommandError`` that names the field."""
        self.check(wish)
        options = parse_options(wish.properties, wish.term)
        slice_ = wish.slice or "default"
        if wish.name and (slice_, wish.name) in self._records.named:
            other = self._records.by_id[self._records.named[slice_, wish.name]]
            if other.state not in (sm.CLOSED, sm.FAILED):
                raise CommandError(
                    f"name: slice {slice_!r} has a lease {wish.name!r} already ({other.id}, {other.state})"
                )
        return self.begin(wish, self._wait_until(options, wish.term))

    def begin(self, wish: RequestLease, deadline: Instant) -> GuestLease:
        """Ask for a lease that was checked, and wait for the answer until ``deadline``."""
        slice_ = wish.slice or "default"
        if slice_ not in self._records.slices:
            self._records.slices[slice_] = Slice(slice_)
            self._kernel.touch(self._records.slices[slice_])
        lease = GuestLease(
            id=f"{self._keyring.tag}-{self._kernel.next('lease')}",
            name=wish.name,
            slice=slice_,
            type=wish.type,
            broker=self.broker(wish.broker),
            asked=Asked(NEW, wish.units, wish.term, wish.site, dict(wish.properties)),
            configuration=dict(wish.configuration),
            after=After(
                self._known_lease("redeem_predecessor", wish.redeem_predecessor, slice_),
                self._known_lease("join_predecessor", wish.join_predecessor, slice_),
                wish.if_predecessor_fails == "proceed",
            ),
        )
        if "suspend" in wish.properties:
            lease.first_asked = lease.asked
        self._records.adopt(lease)
        self._operations.ask(lease, "ask", deadline)
        return lease

    def free_name(self, slice_: str, name: str) -> str:
        """This name, or one like it that no open lease of the slice has."""
        taken, number, named = name, 1, self._records.named
        while (slice_, taken) in named and named[slice_, taken] in self._records.open:
            number += 1
            taken = f"{name}-{number}"
        return taken

    def _wait_until(self, options: Options, term: Term) -> Instant:
        """When the broker's answer comes too late: a little after the broker itself gives up, so that its reason is
        heard.
        """
        now, settings = self._kernel.now, self._settings
        if options.deferrable:
            last = options.latest_start or now + settings.defer_max
        else:
            last = min(now + settings.request_timeout, term.end)
        if options.request_timeout:
            last = min(last, now + options.request_timeout)
        return max(last, now) + settings.clock_skew + 2 * settings.retry_first

    def check(self, wish: RequestLease) -> None:
        """Raises ``CommandError`` for what :func:`check_decision`, which every wish has passed, does not know."""
        check_name("slice", wish.slice)
        check_name("name", wish.name)
        if not wish.type or len(wish.type) > NAME_MAX:
            raise CommandError(f"type: found {wish.type!r}, expected the name of a resource type")
        check_units(wish.units)
        if wish.term.end <= self._kernel.now:
            raise CommandError(
                f"term: it ends at {mark(wish.term.end)}, which is past: it is {mark(self._kernel.now)} here"
            )
        if wish.if_predecessor_fails not in ("fail", "proceed"):
            raise CommandError(
                f"if_predecessor_fails: found {wish.if_predecessor_fails!r}, allowed are 'fail' and 'proceed'"
            )
        if wish.site and getattr(self._keyring.peers.get(wish.site), "role", "") != "authority":
            known = sorted(peer.name for peer in self._keyring.peers.values() if peer.role == "authority")
            raise CommandError(f"site: found {wish.site!r}, known sites are {', '.join(known) or '(none)'}")

    def broker(self, name: str) -> str:
        """The broker of this name, or the one to ask if it is empty. Raises ``CommandError``."""
        known = [peer.name for peer in self._keyring.peers.values() if peer.role == "broker"]
        name = name or self._settings.default_broker or (known[0] if known else "")
        if name not in known:
            raise CommandError(f"broker: found {name!r}, known brokers are {', '.join(sorted(known)) or '(none)'}")
        return name

    def _known_lease(self, field: str, name: str, slice_: str) -> str:
        """The id of a predecessor. It must be there already, so that there can't be a cycle (paper section 3.5)."""
        if not name:
            return ""
        known = self._records.named.get((slice_, name), name)
        if known not in self._records.by_id:
            raise CommandError(f"{field}: found {name!r}, expected a lease that was requested before this one")
        return known
