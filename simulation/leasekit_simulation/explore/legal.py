"""The joint states of a lease that are legal, each with the reason why: what the exploration is held against.

Declared by hand, from what the three machines are for (:mod:`leasekit.core.leases`), for actors whose clocks agree: a
lag of one actor behind another is by a message that has not arrived, an actor that crashed, or an outage, not by skew.
So there is no line for what only skew could bring about: a site or broker that ends a term before its guest gives it
up, a modify that waits at the site for its instant. Nor is there one for what takes three faults at once: a request
that was late, withdrawn, and arrives after all when the broker's mapper wants time.

What is not here is a bug in an actor, or a line that is missing; what is here and never reached is a line too many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple


class Legal(NamedTuple):
    """One joint state, by what it is at guest, broker and site, and why it is legal."""

    guest: str
    broker: str
    site: str
    why: str


_Lines = tuple[tuple[str, str, str], ...]

GROUPS: Final[Mapping[str, Mapping[str, _Lines]]] = {
    "Asking for a ticket: no site has heard of the lease": {
        "nascent, ticketing": (
            ("-", "-", "the request is on its way, or lost and due again"),
            ("nascent, ticketing", "-", "the broker's mapper has not decided yet"),
            ("ticketed", "-", "it is granted, and the ticket is on its way or due again"),
            ("failed", "-", "it is refused or was too late, and the guest has not heard that yet"),
        ),
        "nascent, close_wait": (
            ("-", "-", "closed before the request arrived: the withdrawal finds nothing, and says so"),
            ("nascent, ticketing", "-", "the withdrawal is on its way to a request that still waits for the mapper"),
            ("ticketed", "-", "granted before the withdrawal came: the ticket will come, and go back"),
            ("failed", "-", "refused before the withdrawal came"),
            ("closed", "-", "withdrawn, and the guest has not heard that yet"),
        ),
    },
    "With a ticket in hand": {
        "ticketed": (("ticketed", "-", "the term is not near enough to redeem the ticket"),),
        "ticketed, blocked_redeem": (
            ("ticketed", "-", "it is time to redeem, but the redeem predecessor is not active yet"),
        ),
    },
    "Redeeming the ticket": {
        "ticketed, redeeming": (
            (
                "ticketed",
                "-",
                "the redeem is on its way, or was refused without a record and the refusal is on its way",
            ),
            ("ticketed", "ticketed, redeeming", "the site has accepted, and waits for the term's start or its mapper"),
            ("ticketed", "ticketed, priming", "units are being set up"),
            ("ticketed", "active", "units are up, and the guest has not heard that yet"),
            (
                "ticketed",
                "active, priming",
                "a unit of those that were up is replaced; the guest has heard of none yet",
            ),
            ("ticketed", "failed", "no unit came up, or the site refused, and the guest has not heard that yet"),
            ("closed", "-", "the term is over and the redeem never arrived; the guest gives it up a skew later"),
            ("closed", "ticketed, closing", "the term is over while units were still being set up: they are torn down"),
            ("closed", "active, closing", "the term is over and the guest never heard that it was active"),
            ("closed", "closed", "the same, and all units are torn down"),
            ("closed", "failed", "the term is over, and the site's refusal has not reached the guest"),
        ),
    },
    "Closing while the site sets up: it is told at once": {
        "ticketed, close_wait": (
            ("ticketed", "-", "the redeem has not arrived, or was refused without a record; the close is on its way"),
            ("ticketed", "ticketed, redeeming", "the close is on its way to a site that has begun nothing yet"),
            ("ticketed", "ticketed, priming", "the close is on its way, or lost and due again; units are being set up"),
            ("ticketed", "ticketed, closing", "what was being set up is torn down, as is what was ready"),
            ("ticketed", "active", "units came up before the close arrived: they are not joined any more"),
            ("ticketed", "active, priming", "the same, and a unit that failed is replaced until the close arrives"),
            ("ticketed", "active, closing", "units came up before the close arrived, and are torn down"),
            ("ticketed", "failed", "no unit came up, or the site refused, before the close arrived"),
            ("ticketed", "closed", "nothing was there, or it is torn down, and the site's last word is on its way"),
            ("closed", "-", "the term is over, and neither redeem nor close has arrived"),
            ("closed", "ticketed, closing", "the term is over, teardown is not"),
            ("closed", "active, closing", "the same, of units that had come up"),
            ("closed", "closed", "the term is over, and the site's last word has not arrived"),
        ),
    },
    "Running": {
        "active, blocked_join": (
            ("ticketed", "active", "units are up, and wait for the join predecessor's before they join"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
        ),
        "active, joining": (
            ("ticketed", "active", "units are up and join the guest's application"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
        ),
        "active, joined": (
            ("ticketed", "active", "the lease is as it was asked for"),
            ("ticketed", "active, priming", "a unit has failed, and is replaced"),
            ("ticketed, extending_ticket", "active", "an extend was taken back, which the broker has yet to hear of"),
        ),
    },
    "Asking for an extension: the lease goes on meanwhile": {
        "active, extending_ticket, joining": (
            ("ticketed", "active", "the request, the ticket or the refusal is on its way; units still join"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
            ("ticketed, extending_ticket", "active", "the broker's mapper has not decided yet; units still join"),
            ("ticketed, extending_ticket", "active, priming", "the same, while a unit that failed is replaced"),
        ),
        "active, extending_ticket, joined": (
            ("ticketed", "active", "the request, the ticket or the refusal is on its way"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
            ("ticketed, extending_ticket", "active", "the broker's mapper has not decided yet"),
            ("ticketed, extending_ticket", "active, priming", "the same, while a unit that failed is replaced"),
        ),
        "active_ticketed, joining": (
            ("ticketed", "active", "the ticket for the next term is in hand, to be redeemed later; units still join"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
        ),
        "active_ticketed, joined": (
            ("ticketed", "active", "the ticket for the next term is in hand, to be redeemed later"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
        ),
        "active_ticketed, extending_lease, joining": (
            (
                "ticketed",
                "active",
                "the redeem has not arrived, or is applied and the word is on its way; units still join",
            ),
            ("ticketed", "active, extending", "the site has accepted, and waits for the old end; units still join"),
            ("ticketed", "active, priming", "the old end has come and more units are set up; the first still join"),
        ),
        "active_ticketed, extending_lease, joined": (
            ("ticketed", "active", "the redeem has not arrived, or is applied, or refused, and the word is on its way"),
            ("ticketed", "active, extending", "the site has accepted, and waits for the old end"),
            ("ticketed", "active, priming", "the old end has come, and more units are being set up"),
            (
                "ticketed, extending_ticket",
                "active",
                "extended further, which is taken back: the broker has yet to hear",
            ),
            ("ticketed, extending_ticket", "active, extending", "the same, and the site has accepted the extend"),
        ),
    },
    "Extending further, or taking an extension back, before it begins": {
        "active_ticketed, extending_ticket, joining": (
            ("ticketed", "active", "the request, the ticket or the refusal is on its way; units still join"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
            ("ticketed, extending_ticket", "active", "the broker's mapper has not decided yet; units still join"),
        ),
        "active_ticketed, extending_ticket, joined": (
            ("ticketed", "active", "the request, the ticket or the refusal is on its way"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
            ("ticketed, extending_ticket", "active", "the broker's mapper has not decided yet"),
        ),
        "active_ticketed, extending_further, joining": (
            ("ticketed", "active", "redeem or request, or their answer, is on its way; units still join"),
            ("ticketed", "active, extending", "the site has accepted the extend; units still join"),
        ),
        "active_ticketed, extending_further, joined": (
            ("ticketed", "active", "redeem or request, or their answer, is on its way"),
            ("ticketed", "active, extending", "the site has accepted the extend; of the next one nothing is known"),
            ("ticketed, extending_ticket", "active", "the broker's mapper has not decided yet"),
            ("ticketed, extending_ticket", "active, extending", "the same, and the site has accepted the extend"),
            ("ticketed", "active, priming", "a unit that failed is replaced"),
        ),
        "active, withdrawing, joining": (
            ("ticketed", "active", "the withdrawal, or its answer, or the ticket is on its way; units still join"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
            ("ticketed, extending_ticket", "active", "the broker has yet to hear of it; units still join"),
        ),
        "active, withdrawing, joined": (
            ("ticketed", "active", "the withdrawal, or its answer, or the ticket is on its way"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
            ("ticketed, extending_ticket", "active", "the broker has yet to hear of it"),
        ),
        "active_ticketed, withdrawing, joining": (
            ("ticketed", "active", "the withdrawal, or its answer, or the ticket is on its way; units still join"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
            ("ticketed, extending_ticket", "active", "the broker has yet to hear of it; units still join"),
        ),
        "active_ticketed, withdrawing, joined": (
            ("ticketed", "active", "the withdrawal, or its answer, or the ticket is on its way"),
            ("ticketed", "active, priming", "the same, while a unit that failed is replaced"),
            ("ticketed, extending_ticket", "active", "the broker has yet to hear of it"),
        ),
        "active_ticketed, undoing, joining": (
            ("ticketed", "active", "the redeem, the undo or its answer is on its way; units still join"),
            ("ticketed", "active, extending", "the site has accepted the extend, and has yet to hear of the undo"),
        ),
        "active_ticketed, undoing, joined": (
            ("ticketed", "active", "the redeem, the undo or its answer is on its way"),
            ("ticketed", "active, extending", "the site has accepted the extend, and has yet to hear of the undo"),
            ("ticketed", "active, priming", "a unit that failed is replaced"),
        ),
        "active_ticketed, modifying, joining": (
            ("ticketed", "active", "request, ticket, redeem or answer is on its way; units still join"),
            ("ticketed", "active, priming", "the site carries the change out; units still join"),
            ("ticketed, modifying", "active", "the broker's mapper has not decided yet; units still join"),
            ("ticketed", "active, extending", "the site goes on by the extension; the rest is on its way"),
        ),
        "active_ticketed, modifying, joined": (
            ("ticketed", "active", "request, ticket, redeem or answer is on its way"),
            ("ticketed", "active, priming", "the site carries the change out"),
            ("ticketed, modifying", "active", "the broker's mapper has not decided yet"),
            ("ticketed", "active, extending", "the site goes on by the extension; the rest is on its way"),
            ("ticketed, modifying", "active, extending", "the same, and the broker's mapper has not decided yet"),
        ),
    },
    "Changing in mid-term": {
        "active, modifying, joining": (
            ("ticketed", "active", "request, ticket, redeem or answer is on its way; units still join"),
            ("ticketed, modifying", "active", "the broker's mapper has not decided yet; units still join"),
            ("ticketed, modifying", "active, priming", "the same, while a unit that failed is replaced"),
            ("ticketed", "active, priming", "the site carries the change out; units still join"),
        ),
        "active, modifying, joined": (
            ("ticketed", "active", "request, ticket, redeem or answer is on its way"),
            ("ticketed, modifying", "active", "the broker's mapper has not decided yet"),
            ("ticketed, modifying", "active, priming", "the same, while a unit that failed is replaced"),
            ("ticketed", "active, priming", "the site carries the change out"),
        ),
    },
    "Closing: units leave, and the site is told afterwards": {
        "active, closing, leaving": (
            ("ticketed", "active", "units leave the application; the site knows of nothing yet"),
            ("ticketed", "active, extending", "closed, or given up, when the site had accepted an extension already"),
            ("ticketed", "active, priming", "closed while the site was carrying out a change or an extension"),
            ("ticketed, extending_ticket", "active", "closed while the broker was deciding on an extension"),
            ("ticketed, modifying", "active", "closed while the broker was deciding on a change"),
        ),
        "active, close_wait": (
            ("ticketed", "active", "the close is on its way, or lost and due again"),
            ("ticketed", "active, extending", "the same, with an extension that the site had accepted"),
            ("ticketed", "active, priming", "the same, while the site carries out a change or an extension"),
            ("ticketed", "active, closing", "the site tears the units down"),
            ("ticketed", "closed", "units are down, and the site's last word is on its way"),
            ("ticketed, extending_ticket", "active", "the close is on its way; the broker is deciding on an extension"),
            ("ticketed, extending_ticket", "active, closing", "the broker is deciding on what nobody wants any more"),
            ("ticketed, extending_ticket", "closed", "the same, and units are down"),
            ("ticketed, modifying", "active", "the close is on its way; the broker is deciding on a change"),
            ("ticketed, modifying", "active, closing", "the broker is deciding on a change that nobody wants any more"),
            ("ticketed, modifying", "closed", "the same, and units are down"),
            (
                "closed",
                "active, closing",
                "the term is over, teardown is not; the guest waits for the site's last word",
            ),
            ("closed", "closed", "the term is over, and the site's last word has not arrived"),
        ),
    },
    "Closed: what is left of the ticket goes back": {
        "closed": (
            ("-", "-", "withdrawn before the broker ever heard of it"),
            ("failed", "-", "refused while it was being withdrawn"),
            ("closed", "-", "withdrawn, or its ticket went back or ended unused"),
            (
                "ticketed",
                "-",
                "the ticket was not used and is on its way back, or on its way to a guest that returns it",
            ),
            ("ticketed", "closed", "the rest of the claim is on its way back"),
            ("ticketed", "failed", "the site could not set it up before it was closed; the ticket is on its way back"),
            (
                "ticketed, extending_ticket",
                "closed",
                "the broker is still deciding on an extension; its ticket will come back",
            ),
            ("ticketed, modifying", "closed", "the broker is still deciding on a change; its ticket will come back"),
            ("closed", "closed", "over everywhere"),
            ("closed", "failed", "closed when the site could not set it up; the ticket is back or its term over"),
            ("closed", "ticketed, closing", "teardown takes longer than the guest waits to be told"),
            ("closed", "active, closing", "the same, of units that had come up"),
            ("ticketed", "active, closing", "the same, and an extension's ticket has yet to come, and to go back"),
        ),
    },
    "Failed: it never became active": {
        "failed": (
            ("-", "-", "no request ever reached the broker in time"),
            ("nascent, ticketing", "-", "the guest has given up; the broker's mapper still has a late request"),
            ("failed", "-", "refused"),
            ("ticketed", "-", "the ticket came too late or was refused at the site, and is on its way back"),
            ("closed", "-", "the same, and it is back, or its term is over"),
            ("ticketed", "failed", "the site could not set it up; the ticket is on its way back"),
            ("closed", "failed", "the same, and the ticket is back or its term over"),
            ("closed", "ticketed, closing", "the term was over before units were up; they are torn down"),
            ("closed", "active, closing", "the term was over before the guest heard of its units; they are torn down"),
            ("closed", "closed", "the same, and they are down"),
        ),
    },
}
"""By what a lease is about, and by its state at its guest: the states at broker and site (``-``: none), and why."""


def _all() -> Iterator[Legal]:
    for guests in GROUPS.values():
        for guest, lines in guests.items():
            for broker, site, why in lines:
                yield Legal(guest, broker, site, why)


LASTING: Final = frozenset(
    {
        ("ticketed", "ticketed", "-"),
        ("ticketed, blocked_redeem", "ticketed", "-"),
        ("ticketed, redeeming", "ticketed", "ticketed, redeeming"),
        ("active, blocked_join", "ticketed", "active"),
        ("active, joined", "ticketed", "active"),
        ("active_ticketed, joined", "ticketed", "active"),
        ("active_ticketed, extending_lease, joined", "ticketed", "active, extending"),
        ("closed", "-", "-"),
        ("closed", "failed", "-"),
        ("closed", "closed", "-"),
        ("closed", "closed", "closed"),
        ("closed", "closed", "failed"),
        ("failed", "-", "-"),
        ("failed", "failed", "-"),
        ("failed", "closed", "-"),
        ("failed", "closed", "failed"),
        ("failed", "closed", "closed"),
    }
)
"""States that wait for their time, for another lease, or for nothing: a lease may stay there. All others it leaves as
soon as messages arrive and drivers end: within three times the wait before something is sent again.
"""

LEGAL: Final[Mapping[tuple[str, str, str], Legal]] = {line[:3]: line for line in _all()}
"""Every legal joint state."""
