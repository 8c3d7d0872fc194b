"""What ``tc`` and ``ip`` are to be told so that an end of a link has the classes that it should have, and no others.

At each end stands an HTB with the handle 1ea5. Its class 1 has the link's capacity; below are the class of all
traffic that is no lease's (2), that of ARP (3), and one for each lease, from 11 (hexadecimal) on. A lease's traffic is
that from or to its subnet. What is there already is left as it is, so that nothing is lost when another lease comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Literal

import attrs

from leasekit.core.time import SECOND, Duration
from leasekit.drivers.names import Network

HANDLE: Final = "1ea5:"
ROOT, REST, CONTROL, LEASES = 1, 2, 3, 0x10
"""Minor numbers of classes; a lease's is ``LEASES`` plus its slot."""
ARP_PRIORITY, PRIORITIES = 1, 10
"""Priorities of filters; a lease's is ``PRIORITIES`` plus its slot."""
CONTROL_KBIT: Final = 256
REST_KBIT: Final = 8
"""What is sure for traffic of no lease, without which HTB has no class."""
QUEUE_BYTES_MIN: Final = 131_072
"""Two of the largest packets that an interface hands over for later segmentation."""
PACKET: Final = 1514

Kind = Literal["fq_codel", "bfifo", "netem"]


@attrs.frozen(kw_only=True)
class Lane:
    """A lease at one end: its slot, rate (kbit/s), subnet, and the end's own address in it."""

    slot: int
    rate: int
    subnet: Network
    address: str

    @property
    def minor(self) -> int:
        """Its class."""
        return LEASES + self.slot

    @property
    def priority(self) -> int:
        """Of its filters."""
        return PRIORITIES + self.slot


@attrs.frozen(kw_only=True)
class LinkShape:
    """What an end should have. ``queue_time`` and ``delay`` in ms; ``addresses`` are all that the driver may remove."""

    interface: str
    capacity: int
    rest: Literal["share", "none"]
    queue_time: Duration
    delay: Duration
    lanes: Sequence[Lane]

    def leaf(self, lane: Lane, kind: Kind) -> str:
        """The command that has the queue of a lease's class."""
        # Without a handle of its own a queue of the same kind is changed in place, and one of another kind replaced.
        head = f"qdisc replace dev {self.interface} parent {HANDLE}{lane.minor:x} {kind}"
        queued = lane.rate * self.queue_time // 8
        if kind == "bfifo":
            return f"{head} limit {max(QUEUE_BYTES_MIN, queued)}"
        if kind == "netem":
            under_way = lane.rate * self.delay // 8
            return f"{head} delay {self.delay}ms limit {max(1000, (queued + under_way) // 500)}"
        return head


@attrs.frozen(kw_only=True)
class SeenShape:
    """What an end has: ``up`` is whether its interface is, ``ours`` whether the HTB is there.

    ``classes`` are rates (kbit/s) by minor number, ``leaves`` the kind of queue below each, ``filters`` the minors to
    which the filters of each priority lead, ``addresses`` those of the interface, with prefix lengths.
    """

    up: bool = True
    ours: bool = False
    classes: Mapping[int, int] = attrs.Factory(dict)
    leaves: Mapping[int, str] = attrs.Factory(dict)
    filters: Mapping[int, Sequence[int]] = attrs.Factory(dict)
    addresses: Collection[str] = ()

    def has(self, lane: Lane) -> bool:
        """Whether a lease's class, filters and address are as they should be."""
        return (
            self.classes.get(lane.minor) == lane.rate
            and lane.minor in self.leaves
            and self.filters.get(lane.priority) == [lane.minor, lane.minor]
            and lane.address in self.addresses
        )


def removals(shape: LinkShape, seen: SeenShape) -> Iterator[str]:
    """``tc`` commands that remove what should not be there."""
    if not seen.ours:
        return
    if not shape.lanes:
        yield f"qdisc del dev {shape.interface} root handle {HANDLE}"
        return
    wanted = {lane.minor: lane for lane in shape.lanes}
    for priority, minors in seen.filters.items():
        lane = wanted.get(priority - PRIORITIES + LEASES)
        if priority > PRIORITIES and (lane is None or minors != [lane.minor, lane.minor]):
            yield f"filter del dev {shape.interface} parent {HANDLE} prio {priority}"
    for minor in seen.classes:
        if minor > LEASES and minor not in wanted:
            yield f"class del dev {shape.interface} classid {HANDLE}{minor:x}"


def classes(shape: LinkShape, seen: SeenShape) -> Iterator[str]:
    """``tc`` commands that have the HTB and its classes, those of leases with their rates."""
    if not shape.lanes:
        return
    if not seen.ours:
        yield f"qdisc add dev {shape.interface} root handle {HANDLE} htb default {REST:x}"
    if seen.classes.get(ROOT) != shape.capacity:
        yield _class(shape, "", ROOT, shape.capacity, shape.capacity, 0)
    if REST not in seen.classes or (REST not in seen.leaves and shape.rest == "none"):
        yield _class(shape, f"{ROOT}", REST, min(REST_KBIT, shape.capacity), shape.capacity, 7)
        if shape.rest == "none":
            yield f"qdisc replace dev {shape.interface} parent {HANDLE}{REST:x} pfifo limit 0"
    if CONTROL not in seen.classes:
        kbit = min(CONTROL_KBIT, shape.capacity)
        yield _class(shape, f"{ROOT}", CONTROL, kbit, kbit, 0)
    for lane in shape.lanes:
        if seen.classes.get(lane.minor) != lane.rate:
            yield _class(shape, f"{ROOT}", lane.minor, lane.rate, lane.rate, 1)


def _class(shape: LinkShape, parent: str, minor: int, rate: int, ceil: int, priority: int) -> str:
    # Tokens for 10 ms, so that a late timer costs no rate; what a class may send before its neighbours have a turn
    # grows with its rate, within the bounds that HTB does not complain of.
    burst = max(2 * PACKET, ceil * 1000 // 8 * 10 // SECOND)
    quantum = min(60_000, max(PACKET, rate * 1000 // 8 // 100))
    return (
        f"class replace dev {shape.interface} parent {HANDLE}{parent} classid {HANDLE}{minor:x} htb "
        f"rate {rate}kbit ceil {ceil}kbit burst {burst} cburst {burst} quantum {quantum} prio {priority}"
    )


def leaves(shape: LinkShape, seen: SeenShape, kind: Kind) -> Iterator[str]:
    """``tc`` commands that have the queues of leases' classes, as long as their rates want them."""
    for lane in shape.lanes:
        same = seen.leaves.get(lane.minor) == kind
        if not same or (kind != "fq_codel" and seen.classes.get(lane.minor) != lane.rate):
            yield shape.leaf(lane, kind)


def filters(shape: LinkShape, seen: SeenShape) -> Iterator[str]:
    """``tc`` commands that lead traffic to the classes; they come after all others."""
    head = f"filter add dev {shape.interface} parent {HANDLE}"
    if shape.lanes and not seen.filters.get(ARP_PRIORITY):
        yield f"{head} protocol arp prio {ARP_PRIORITY} u32 match u32 0 0 flowid {HANDLE}{CONTROL:x}"
    for lane in shape.lanes:
        if seen.filters.get(lane.priority) == [lane.minor, lane.minor]:
            continue
        protocol, words = ("ip", "ip") if lane.subnet.version == 4 else ("ipv6", "ip6")
        for side in ("src", "dst"):
            yield (
                f"{head} protocol {protocol} prio {lane.priority} u32 match {words} {side} {lane.subnet} "
                f"flowid {HANDLE}{lane.minor:x}"
            )


def addresses(shape: LinkShape, seen: SeenShape, removable: Collection[str]) -> Iterator[str]:
    """``ip`` commands that give the end its address in each lease's subnet, and take away ``removable`` others."""
    wanted = {lane.address for lane in shape.lanes}
    for address in sorted(set(seen.addresses) & set(removable) - wanted):
        yield f"address del {address} dev {shape.interface}"
    for lane in shape.lanes:
        if lane.address not in seen.addresses:
            more = " nodad" if lane.subnet.version == 6 else ""
            yield f"address add {lane.address} dev {shape.interface}{more}"
