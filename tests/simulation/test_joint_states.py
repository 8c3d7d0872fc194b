"""Every joint state of a lease that the three actors can be in, with faults: none is there that is not declared legal,
and bugs that are put in on purpose show.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.claims import ReturnedTickets
from leasekit.actors.guest.answers import LeaseTimeouts
from leasekit.actors.guest.leases import GuestOperations
from leasekit.actors.guest.returns import Returns
from leasekit.actors.kernel import Kernel
from leasekit.actors.served import Served
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.failures import Replacements
from leasekit.actors.site.leases import SiteLeases
from leasekit.actors.site.units import Units
from leasekit.core.leases import authority, broker
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.protocol.messages import Accepted
from leasekit_simulation.explore import FLOWS, explore
from leasekit_simulation.explore.legal import LEGAL
from leasekit_simulation.explore.pieces import read_parcel

PAGE = Path(__file__).resolve().parents[2] / "docs" / "states.md"
TWICE = "plain"
"""The flow that is gone through with two faults here; ``python -m leasekit_simulation.explore`` does it with all."""
LONG = (
    "extend", "shrink", "undo", "further", "extend_and_modify", "redeem_predecessor", "join_predecessor", "grow",
    "modify", "configure",
)  # fmt: skip
"""Flows with many states: `make test` goes through them without a fault, `make soak` with one."""
ONCE = [(name, 0 if name in LONG else 1) for name in FLOWS if name != TWICE]


@pytest.mark.parametrize(("flow", "faults"), [*ONCE, *(pytest.param(name, 1, marks=pytest.mark.soak) for name in LONG)])
def test_one_fault_leads_nowhere_else(flow: str, faults: int) -> None:
    """With one fault outstanding each flow stays in declared states, keeps every invariant, and comes to its end."""
    report = explore(flow, faults, audit=100 if faults else 5)
    assert report.fine, report.text()
    assert report.audited, "some joint states were compared with those they count as"


@pytest.mark.soak
def test_two_faults_lead_nowhere_else() -> None:
    """With two faults outstanding the plain lease stays in declared states, and comes to its end."""
    report = explore(TWICE, 2, audit=1000)
    assert report.fine, report.text()
    assert report.joint_states[2] > report.joint_states[1] > report.joint_states[0]


def test_an_answer_to_another_request_is_another_message() -> None:
    """Nothing that a message has is left out because a class above the message's has it."""
    one, other = (read_parcel("site", "guest", [Accepted("l-1", number)]) for number in (1, 2))
    assert one != other


def test_page_has_every_declared_state() -> None:
    """docs/states.md, of two faults, lists what is declared: all of it was reached, and nothing else."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (.+?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \| .*\|$", text, re.MULTILINE)
    assert {(guest, broker, site): why for guest, broker, site, _, why in rows} == {k: v.why for k, v in LEGAL.items()}
    assert "Reached, but not declared: 0." in text
    assert "Declared, but never reached: 0." in text
    assert not re.search(r"\| never \|", text)
    assert "At no time more than 2 are outstanding" in " ".join(text.split())
    assert "## Wrong" not in text
    tables = [len(table) for table in (sm.TABLE, broker.TABLE, authority.TABLE)]
    told = re.search(r"(\d+) states at the guest .*, (\d+) at the broker and (\d+) at the site", text)
    assert told is not None
    assert [*map(int, told.groups())] == tables, "as many states as the tables have"


def test_declared_states_are_in_the_tables() -> None:
    """A declared state is one of each machine's; each has its own reason in words."""
    combinations = len(sm.TABLE) * (len(broker.TABLE) + 1) * (len(authority.TABLE) + 1)
    assert len(LEGAL) < combinations / 10, "few of all are legal"
    for line in LEGAL.values():
        state, _, rest = line.guest.partition(", ")
        pending = rest.split(", ")[0] if rest else NONE
        joins = ("joining", "joined", "leaving", "blocked_join", "blocked_redeem")
        assert (state, NONE if pending in joins else pending) in sm.TABLE, line
        assert line.why and line.why[-1] != "."


def nothing(*args: Any, **kwargs: Any) -> None:
    """What a forgotten step does."""


PLANTED: dict[str, tuple[type[Any], str, Callable[..., Any]]] = {
    "actions are not done again after a restart": (Units, "resume", nothing),
    "counters are not kept": (Kernel, "_save_counters", nothing),
    "units are not torn down": (Units, "take", nothing),
    "a request that is unanswered is not sent again": (GuestOperations, "due", nothing),
    "acknowledgements are ignored": (Served, "_on_ack", nothing),
    "tickets are not given back": (Returns, "give_back", nothing),
    "what is given back is not taken back": (ReturnedTickets, "_take_back", nothing),
    "a broker forgets at a restart what it has booked": (Book, "reserve_again", nothing),
    "a site forgets at a restart what it has booked": (Calendars, "restore", nothing),
    "a unit that failed stays in its lease": (Replacements, "replace", nothing),
    "a lease that is torn down is not over": (SiteLeases, "check_down", nothing),
    "deadlines are not kept": (LeaseTimeouts, "check", nothing),
}


LATER = {
    "tickets are not given back", "what is given back is not taken back",
    "a broker forgets at a restart what it has booked", "a site forgets at a restart what it has booked",
    "a unit that failed stays in its lease",
}  # fmt: skip
"""Bugs that only a fault shows, at three seconds each: `make test` has two of these, and `make soak` all."""


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=pytest.mark.soak if bug in LATER else ()) for bug in PLANTED])
def test_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bug in, at most one fault in the plain flow is enough to find it, and the report tells the way there."""
    where, name, instead = PLANTED[bug]
    assert hasattr(where, name), f"{where.__name__} has no {name}: plant the bug elsewhere"
    monkeypatch.setattr(where, name, instead)
    report = explore("plain", 0)
    if report.fine:
        report = explore("plain", 1)
    assert not report.fine
    assert "WRONG" in report.text() and "wrong" in report.text().splitlines()[-1]
