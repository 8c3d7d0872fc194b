"""What brokers and sites are asked that can't be: redeems, requests and holds of production actors, changed a little on
their way. Each is refused with its reason, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld
from msgspec.structs import replace
from test_review_topologies import TWO
from topology_worlds import STAR, ask, held, pair, show, world

from leasekit.core.claims.claim import REPLACES, decode_ticket, delegate, delegate_root
from leasekit.core.claims.signed import TRUNCATION, state
from leasekit.core.protocol.messages import (
    LIST_MAX,
    DryRun,
    ErrorReply,
    HoldParts,
    LeaseUpdate,
    PartsHeld,
    Planned,
    PlanPart,
    Redeem,
    ReleaseParts,
    RequestTicket,
)
from leasekit.core.reasons import Code, words
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Term


class Asking(DeployedWorld):
    """A guest has an active lease of two units until an hour; what it says then is the test's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(CHAIN, folder)
        self.id = self.request("batch", 2, 10 * SECOND, HOUR)
        self.pass_time(MINUTE)
        self.redeem = self.letters(Redeem, "batch")[-1]
        self.asked = self.letters(RequestTicket, "batch")[-1]

    def ticket(self, term: Term, units: int = 2, **constraints: str) -> bytes:
        """A ticket of the guest's broker."""
        (source,) = self.broker("upper").book.of_type("vm")
        mine, holder = self.broker("upper").signer, self.guest("batch").signer.public
        made = delegate(
            decode_ticket(source.ticket), mine, holder=holder, units=units, term=term, serial=77,
            constraints=constraints,
        )  # fmt: skip
        return made.encode()

    def root(self, **other: Any) -> bytes:
        """A ticket of the site's own."""
        fields = {"type": "vm", "units": 1, "term": Term(MINUTE, HOUR), **other}
        return delegate_root(self.site().signer, holder=self.guest("batch").signer.public, serial=9, **fields).encode()

    def modified(self, term: Term, cut: int) -> Any:
        """What the site says to a modify: a claim over ``term`` replaces the lease's, which is cut off at ``cut``."""
        claim = self.site().leases[self.id].claim
        note = state(self.broker("upper").signer, TRUNCATION, claim, cut, self.id).encode()
        ticket = self.ticket(term, 1, **{REPLACES: claim.hex()})
        return self.answered("modify", ticket=ticket, truncation=note)

    def answered(self, op: str, **changes: Any) -> Any:
        """Why the site refuses a redeem."""
        self.receive("site", "batch", replace(self.redeem, number=50, op=op, **changes))
        self.pass_time(SECOND)
        return self.letters(LeaseUpdate, "site", "batch")[-1].reason.code

    def error(self, actor: str, message: Any) -> Any:
        """Why an actor does not take a message at all."""
        self.receive(actor, "batch", message)
        self.pass_time(SECOND)
        return self.letters(ErrorReply, actor, "batch")[-1].reason.code


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path)


def test_a_modify_that_cuts_nothing_off(asking: Asking) -> None:
    """The old claim is cut off within the lease's term: what comes after the lease is no modify of it."""
    assert asking.modified(Term(HOUR, 2 * HOUR), HOUR) == Code.WRONG_TERM
    assert asking.lease("site", asking.id)["pending"] == "-"


def test_a_modify_leaves_no_gap_before_the_extension(asking: Asking) -> None:
    """Where the lease goes on, what modifies the term before ends where that begins."""
    further = asking.ticket(Term(HOUR, 2 * HOUR))
    asking.receive("site", "batch", replace(asking.redeem, number=40, op="extend", ticket=further))
    start = asking.now + SECOND
    assert asking.modified(Term(start, HOUR - MINUTE), start) == Code.WRONG_TERM


def test_a_modify_says_what_it_replaces(asking: Asking) -> None:
    """A claim that does not say so would be counted beside the lease's."""
    assert asking.answered("modify", ticket=asking.ticket(Term(2 * MINUTE, HOUR))) == Code.REPLACES


def test_an_extend_goes_on_from_the_end(asking: Asking) -> None:
    """A claim that begins later, or earlier, does not extend the lease."""
    assert asking.answered("extend", ticket=asking.ticket(Term(HOUR + 1, 2 * HOUR))) == Code.WRONG_TERM


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"units": LIST_MAX + 1}, Code.TOO_LARGE),
        ({"type": "gpu"}, Code.UNKNOWN_TYPE),
        ({"term": Term(500 * DAY, 501 * DAY)}, Code.FUTURE),
    ],
)
def test_what_no_lease_is_made_of(asking: Asking, other: dict[str, Any], code: Code) -> None:
    """A site redeems no ticket, its own neither, for more units than a message names, of what it has not, or for
    years ahead.
    """
    new = replace(asking.redeem, lease=f"{asking.id}0", number=1, ticket=asking.root(**other))
    assert asking.error("site", new) == code
    assert len(asking.site().leases) == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"op": "new"}, Code.EXISTS),
        ({"op": "extend", "term": Term(HOUR + 1, 2 * HOUR)}, Code.WRONG_TERM),
        ({"op": "modify", "term": Term(SECOND, HOUR)}, Code.WRONG_TERM),
    ],
)
def test_a_broker_is_asked_for_what_does_not_go_on(asking: Asking, changes: dict[str, Any], code: Code) -> None:
    """What is asked of a lease goes on from what was granted."""
    held = asking.site().leases[asking.id].claim
    assert asking.error("upper", replace(asking.asked, number=50, claim=held, **changes)) == code
    assert asking.lease("upper", asking.id)["pending"] == "-"


def test_no_member_of_a_group_is_tried(asking: Asking) -> None:
    """A question about one request of a group can't be answered."""
    question = DryRun("q", 3, "vm", 1, Term(HOUR, 2 * HOUR), "", {"group_id": "g", "group_count": "2"})
    assert asking.error("upper", question) == Code.BAD_PROPERTIES


# -- topologies --------------------------------------------------------------------------------------------------------


def changed(first: dict[str, Any], *others: PlanPart) -> Callable[[Planned], Planned]:
    """A plan of which the first part is another; ``others`` come in addition."""
    return lambda plan: replace(plan, parts=(replace(plan.parts[0], **first), *plan.parts[1:], *others))


WRONG: dict[str, Callable[[Planned], Planned]] = {
    "its term is": lambda plan: replace(plan, term=Term(plan.term.start + 1, plan.term.end + 1)),
    "no names of their own": lambda plan: changed({"part": plan.parts[1].part})(plan),
    "for r0 it has": changed({"units": 2}),
    "two requested sites at one site": changed({"site": "N1"}),
    "nothing for l": lambda plan: replace(plan, parts=plan.parts[:2]),
    "not asked for": changed({}, PlanPart("z", "z", 0, "b", "N0/vm@b", "N0", "vm", 1)),
    "broker 'nobody' is no peer": changed({"broker": "nobody"}),
}


def test_a_guest_leases_only_what_it_asked_for(tmp_path: Path) -> None:
    """Whatever a broker has planned in place of that is not leased, and what it holds is let go of."""
    made = world(STAR, tmp_path)
    for words_, change in WRONG.items():
        made.alter = lambda sender, receiver, message, change=change: (
            change(message) if isinstance(message, Planned) and message.parts else message
        )
        topology = ask(made, pair(units=1), "g", tries=1)
        made.pass_time(5 * SECOND)
        shown = show(made, topology, "g")
        assert shown["state"] == "failed" and words_ in shown["reason"]
        assert held(made) == [] and made.letters(ReleaseParts)
    assert not made.query("g", "leases", all=True)


def test_what_a_broker_can_not_hold_for_another(tmp_path: Path) -> None:
    """Parts of one name, other parts than before, and what is not there, or not free, are refused; nothing of them
    stays booked.
    """
    made = world(TWO, tmp_path)
    made.lost.add(("g", "c", "RequestTicket"))
    ask(made, pair(), "g")
    made.pass_time(5 * SECOND)
    letter, before = made.letters(HoldParts)[0], held(made, "c")
    part = letter.parts[0]
    other = {"plan": f"{letter.plan}9"}
    late = Term(400 * DAY, 401 * DAY)
    free = made.broker("c").book.table_of(part.source).free_at(HOUR)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"term": Term(HOUR, HOUR + 1)}, "holds something else"),
        ({**other, "parts": (part, part)}, "one name"),
        ({**other, "parts": (replace(part, source="nowhere"),)}, "no delegation 'nowhere'"),
        ({**other, "term": late, "expires": late.end}, "does not cover"),
        ({**other, "parts": (part, replace(part, part="more", units=part.units + 1000))}, "free"),
    ]
    for changes, text in refused:
        made.receive("c", "b", replace(letter, **changes))
        made.pass_time(SECOND)
        assert text in words(made.letters(PartsHeld, "c", "b")[-1].reason)
        assert held(made, "c") == before
        assert made.broker("c").book.table_of(part.source).free_at(HOUR) == free


MAPPER = """
from leasekit.core.mappers import PlannedPart, TopologyPlan


class Wrong:
    inline = True

    def allocate(self, cycle):
        return []

    def plan(self, cycle):
        part = PlannedPart("r0", "r0", 0, cycle.sources[0].id, 0)
        start = cycle.request.est
        what = {"number": 7, "start": TopologyPlan(start + 1, ()), "units": TopologyPlan(start, (part,))}
        yield what[cycle.request.slice]
"""


def test_what_a_mapper_may_not_plan(tmp_path: Path) -> None:
    """Another start, parts of nothing, and what is no plan at all: nothing of it is held."""
    (tmp_path / "wrong.py").write_text(MAPPER)
    made = world(STAR.replace('"coallocation"', f'"{tmp_path}/wrong.py:Wrong"'), tmp_path)
    for slice_, text in (("number", "no plan"), ("start", "asked for was"), ("units", "has 0 units")):
        topology = ask(made, pair(units=1, slice=slice_), "g", tries=1)
        made.pass_time(5 * SECOND)
        assert text in show(made, topology, "g")["reason"]
        assert held(made) == []
