"""Mappers that break the rules, each in one way: what ``leasekit mapper check`` must find."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

from leasekit.core.mappers import (
    Assign,
    AuthorityCycle,
    BrokerCycle,
    Defer,
    Grant,
    GrantGroup,
    GuestCycle,
    Refuse,
    Reject,
    RequestLease,
    Wake,
)
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs


class _Fcfs:
    """Does as fcfs does; what is wrong comes on top."""

    inline = True

    def usual(self, cycle: BrokerCycle) -> list[Any]:
        """What fcfs would decide."""
        return list(Fcfs().allocate(cycle))


class Overbooks(_Fcfs):
    """Grants everybody the first source, whatever is free."""

    def allocate(self, cycle: BrokerCycle) -> Iterator[Any]:
        """Never looks at what is left."""
        for request in cycle.requests:
            for source in cycle.sources(request.type)[:1]:
                yield Grant(request.lease, source.id, request.units, request.term)


class Twice(_Fcfs):
    """Says everything twice."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """The same decisions again."""
        return [each for each in self.usual(cycle) for _ in range(2)]


class Nobody(_Fcfs):
    """Grants what nobody asked for as well."""

    def allocate(self, cycle: BrokerCycle) -> Iterator[Any]:
        """A gift."""
        yield from self.usual(cycle)
        for request in cycle.requests:
            for source in cycle.sources(request.type)[:1]:
                yield Grant("gift-1", source.id, 1, request.term)


class InThePast(_Fcfs):
    """Grants terms that began a second ago."""

    def allocate(self, cycle: BrokerCycle) -> Iterator[Any]:
        """A little late."""
        for each in self.usual(cycle):
            early = isinstance(each, Grant) and each.term.start == cycle.now
            yield each._replace(term=Term(each.term.start - SECOND, each.term.end - SECOND)) if early else each


class Early(_Fcfs):
    """Grants terms a second before their window."""

    def allocate(self, cycle: BrokerCycle) -> Iterator[Any]:
        """Not when it was asked for."""
        for each in self.usual(cycle):
            ahead = isinstance(each, Grant) and each.term.start > cycle.now + MINUTE
            yield each._replace(term=Term(each.term.start - SECOND, each.term.end - SECOND)) if ahead else each


class PartOfGroup(_Fcfs):
    """Leaves the last member of a group out."""

    def allocate(self, cycle: BrokerCycle) -> Iterator[Any]:
        """All but one."""
        for each in self.usual(cycle):
            yield each._replace(grants=each.grants[:-1]) if isinstance(each, GrantGroup) else each


class Lazy(_Fcfs):
    """Decides nothing."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Some other time."""
        return []


class Waits(_Fcfs):
    """Puts everything off for ever."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """In a minute."""
        return [*(Defer(request.lease, "later") for request in cycle.requests), Wake(cycle.now + MINUTE)]


class Refuses(_Fcfs):
    """Refuses everything."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """No."""
        return [Reject(request.lease, "no") for request in cycle.requests]


class Raises(_Fcfs):
    """Can't divide by what is free."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Fails in a full world."""
        for request in cycle.requests:
            for source in cycle.sources(request.type):
                _ = 1 // source.free.available(request.term)
        return self.usual(cycle)


class Leaves(_Fcfs):
    """Calls sys.exit()."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Good bye."""
        sys.exit("bye")


class Dies(_Fcfs):
    """Takes its process along."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """At the first request."""
        if cycle.requests:
            os._exit(3)
        return []


class TiresOfMany(_Fcfs):
    """Does what it must as long as few ask."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Raises where many wait at once."""
        if len(cycle.requests) > 300:
            raise OverflowError("too many wait")
        return self.usual(cycle)


class GivesWhatIsNot(_Fcfs):
    """Grants from a site that it remembers, where it is shown none."""

    def allocate(self, cycle: BrokerCycle) -> Iterator[Any]:
        """As always, and what is nowhere."""
        yield from self.usual(cycle)
        for request in cycle.requests:
            if request.lease == "l-0" and not cycle.sources(request.type):
                yield Grant(request.lease, "site0/vm", request.units, request.term)


class Loops(_Fcfs):
    """Never ends a turn, and won't be told."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Round and round."""
        while cycle.requests:
            pass
        return []


class Hangs(_Fcfs):
    """Waits in its turn for what never comes."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Nobody sets it."""
        if cycle.requests:
            threading.Event().wait()
        return []


class HangsInC(_Fcfs):
    """Is in C for ever, where no signal is heard, and takes no processor for it."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """A lock that is taken twice, by who holds Python's own."""
        lock = ctypes.create_string_buffer(64)  # of zeros, which is a mutex that nobody has
        c = ctypes.PyDLL(None)
        return [c.pthread_mutex_lock(lock) for _ in range(2)] if cycle.requests else []


class Endless(_Fcfs):
    """Decides without end."""

    def allocate(self, cycle: BrokerCycle) -> Iterator[Any]:
        """On and on."""
        while True:
            yield Wake(cycle.now + HOUR)


class Nothing(_Fcfs):
    """Returns None."""

    def allocate(self, cycle: BrokerCycle) -> None:
        """As functions do that forget to return."""


class Chance(_Fcfs):
    """Decides in an order that no seed fixes."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Shuffled."""
        requests = list(cycle.requests)
        random.SystemRandom().shuffle(requests)
        made = [request._replace(arrived=place) for place, request in enumerate(requests)]
        at = cycle.now + 1 + random.SystemRandom().randrange(10**9)
        return [*self.usual(cycle._replace(requests=made)), Wake(at)]


class HashOrder(_Fcfs):
    """Decides in the order of a set of text, which differs from process to process."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """As the hashes have it."""
        order = list({request.lease for request in cycle.requests})
        made = [request._replace(arrived=order.index(request.lease)) for request in cycle.requests]
        return self.usual(cycle._replace(requests=made))


class SameUnit:
    """Gives the first lease's unit to the last as well."""

    inline = True

    def assign(self, cycle: AuthorityCycle) -> list[Any]:
        """As first_fit, but for the last."""
        usual = FirstFit().assign(cycle)
        given = [each for each in usual if isinstance(each, Assign)]
        if len(given) < 2:
            return usual
        wrong = given[-1]._replace(units=(given[0].units[0], *given[-1].units[1:]))
        return [wrong if each is given[-1] else each for each in usual]


class KeepsUnits:
    """Gives nothing away."""

    inline = True

    def assign(self, cycle: AuthorityCycle) -> Iterator[Any]:
        """No unit for anybody."""
        for demand in cycle.demands:
            yield Refuse(demand.lease, "no")


class Spins:
    """A guest's mapper that wants every tick."""

    inline = True

    def plan(self, cycle: GuestCycle) -> list[Any]:
        """Again."""
        return [Wake(cycle.now)]


class Greedy:
    """A guest's mapper that asks for ever more."""

    inline = True

    def plan(self, cycle: GuestCycle) -> list[Any]:
        """A hundred more each minute."""
        term = Term(cycle.now + SECOND, cycle.now + HOUR)
        return [*(RequestLease("vm", 1, term) for _ in range(100)), Wake(cycle.now + MINUTE)]


class Both(Greedy, KeepsUnits):
    """Has the methods of two roles."""
