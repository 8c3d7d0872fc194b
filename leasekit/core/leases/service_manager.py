"""The guest's side of a lease: the largest machine, because tickets and leases are tracked apart.

Theory of operation. A lease begins as a request (*nascent*). The service manager asks a broker for a ticket; with the
ticket in hand (*ticketed*) it waits for the term to come near, and for the redeem predecessor if there is one, and
redeems the ticket at the site. Before that it may be changed (*ticketed*/*modifying*): the broker is asked for another
ticket, and the one in hand stays until that is there, then goes back; its site must have it back before the other is
redeemed. A close that comes then is told to the site at once, for its teardown ends the set-up;
the site's last word closes the lease (*ticketed*/*close_wait*), also where the redeem has never arrived. When the site
says that the units are there the lease is *active*, and its units are joined to the guest's application. Before the
term ends the mapper may extend: a ticket for the next term makes the lease *active_ticketed*, redeeming that makes it
active again; where a term goes on over several tickets, each of them does so (*in_hand*). At any time it may be
extended further, from the end of the last ticket on, also while the first is redeemed (*extending_further*). In
mid-term it may be modified, which changes the running term only: tickets in hand stand. So does one that the site has
accepted: it is in hand again meanwhile, and is redeemed anew, under another number, when the modify is settled or its
time is up; the site goes on by it in any case. An active lease that its site ends early, for its broker or for itself,
is under notice (*noticed*) until then: its units leave in time, or it is closed before. An extension that has not begun
can be taken back: one that is only asked for is withdrawn (*withdrawing*; if its ticket comes all the same it goes
back), one in hand goes back as it is, and of one that was redeemed the site is told first (*undoing*), whose answer
says whether it had begun. At the end, or when it is closed early, the units leave the application first (*closing*),
then the site is told (*close_wait*), and its last word closes the lease. What is left of a ticket's term goes back to
the broker by way of the site (:mod:`.returns`).

What is due follows from the record: ``ask`` is the request that the broker has not settled, ``claim_op`` that
at the site; each is sent now, and again with backoff, until it is answered or useless. A reply to any other number
changes nothing. A refused extend or modify never harms the lease.

Events: *ask* (the mapper wants it), *ticket*, *ticket_refused* (from the broker), *redeem* (due), *lease*,
*lease_refused* (the site settled what was asked of it), *changed* (the site changed something by itself), *notice* (the
site will end it early), *lost* (the site or broker ended it), *extend*, *modify*, *replace* (a ticket
that was not redeemed), *undo* (the last extension is taken
back), *let_go* (the same, of one in hand, or only asked for, while another is redeemed), *undone* (the site does not go
on), *close* (the mapper or operator), *left* (every unit has left, or its time is up), *closed* (the site's last word),
*expire* (too late to be useful).
"""

from __future__ import annotations

from typing import Final

from leasekit.core.leases.machine import NONE, Machine

NASCENT: Final = "nascent"
TICKETED: Final = "ticketed"
ACTIVE: Final = "active"
ACTIVE_TICKETED: Final = "active_ticketed"
CLOSED: Final = "closed"
FAILED: Final = "failed"

TICKETING: Final = "ticketing"
REDEEMING: Final = "redeeming"
EXTENDING_TICKET: Final = "extending_ticket"
EXTENDING_LEASE: Final = "extending_lease"
EXTENDING_FURTHER: Final = "extending_further"
MODIFYING: Final = "modifying"
NOTICED: Final = "noticed"
WITHDRAWING: Final = "withdrawing"
UNDOING: Final = "undoing"
CLOSING: Final = "closing"
CLOSE_WAIT: Final = "close_wait"

_ENDS: Final = {"close": (ACTIVE, CLOSING), "lost": (CLOSED, NONE)}
"""What may end an active lease, whatever else goes on."""

TABLE: Final = {
    (NASCENT, NONE): {
        "ask": (NASCENT, TICKETING),
        "close": (CLOSED, NONE),
    },
    (NASCENT, TICKETING): {
        "ticket": (TICKETED, NONE),
        "ticket_refused": (FAILED, NONE),
        "expire": (FAILED, NONE),
        "close": (NASCENT, CLOSE_WAIT),
    },
    (NASCENT, CLOSE_WAIT): {
        "ticket": (CLOSED, NONE),
        "ticket_refused": (CLOSED, NONE),
        "closed": (CLOSED, NONE),
        "expire": (CLOSED, NONE),
    },
    (TICKETED, NONE): {
        "redeem": (TICKETED, REDEEMING),
        "replace": (TICKETED, MODIFYING),
        "close": (CLOSED, NONE),
        "lost": (FAILED, NONE),
        "expire": (FAILED, NONE),
    },
    (TICKETED, MODIFYING): {
        "ticket": (TICKETED, NONE),
        "ticket_refused": (TICKETED, NONE),
        "close": (CLOSED, NONE),
        "lost": (FAILED, NONE),
        "expire": (FAILED, NONE),
    },
    (TICKETED, REDEEMING): {
        "lease": (ACTIVE, NONE),
        "lease_refused": (FAILED, NONE),
        "close": (TICKETED, CLOSE_WAIT),
        "lost": (FAILED, NONE),
        "expire": (FAILED, NONE),
    },
    (TICKETED, CLOSE_WAIT): {
        "closed": (CLOSED, NONE),
        "lost": (CLOSED, NONE),
        "expire": (CLOSED, NONE),
    },
    (ACTIVE, NONE): {
        "changed": (ACTIVE, NONE),
        "extend": (ACTIVE, EXTENDING_TICKET),
        "in_hand": (ACTIVE_TICKETED, NONE),
        "modify": (ACTIVE, MODIFYING),
        "notice": (ACTIVE, NOTICED),
        **_ENDS,
        "expire": (ACTIVE, CLOSING),
    },
    (ACTIVE, NOTICED): {
        "changed": (ACTIVE, NOTICED),
        "modify": (ACTIVE, MODIFYING),
        **_ENDS,
        "expire": (ACTIVE, CLOSING),
    },
    (ACTIVE, EXTENDING_TICKET): {
        "changed": (ACTIVE, EXTENDING_TICKET),
        "in_hand": (ACTIVE_TICKETED, EXTENDING_TICKET),
        "ticket": (ACTIVE_TICKETED, NONE),
        "ticket_refused": (ACTIVE, NONE),
        "undo": (ACTIVE, WITHDRAWING),
        **_ENDS,
        "expire": (ACTIVE, CLOSING),
    },
    (ACTIVE, WITHDRAWING): {
        "changed": (ACTIVE, WITHDRAWING),
        "ticket": (ACTIVE, NONE),
        "ticket_refused": (ACTIVE, NONE),
        **_ENDS,
        "expire": (ACTIVE, CLOSING),
    },
    (ACTIVE_TICKETED, NONE): {
        "changed": (ACTIVE_TICKETED, NONE),
        "extend": (ACTIVE_TICKETED, EXTENDING_TICKET),
        "modify": (ACTIVE_TICKETED, MODIFYING),
        "undo": (ACTIVE, NONE),
        "redeem": (ACTIVE_TICKETED, EXTENDING_LEASE),
        **_ENDS,
    },
    (ACTIVE_TICKETED, EXTENDING_TICKET): {
        "changed": (ACTIVE_TICKETED, EXTENDING_TICKET),
        "ticket": (ACTIVE_TICKETED, NONE),
        "ticket_refused": (ACTIVE_TICKETED, NONE),
        "undo": (ACTIVE_TICKETED, WITHDRAWING),
        "redeem": (ACTIVE_TICKETED, EXTENDING_FURTHER),
        **_ENDS,
    },
    (ACTIVE_TICKETED, WITHDRAWING): {
        "changed": (ACTIVE_TICKETED, WITHDRAWING),
        "ticket": (ACTIVE_TICKETED, NONE),
        "ticket_refused": (ACTIVE_TICKETED, NONE),
        **_ENDS,
    },
    (ACTIVE_TICKETED, MODIFYING): {
        "changed": (ACTIVE_TICKETED, MODIFYING),
        "ticket": (ACTIVE_TICKETED, MODIFYING),
        "ticket_refused": (ACTIVE_TICKETED, NONE),
        "lease": (ACTIVE_TICKETED, NONE),
        "lease_refused": (ACTIVE_TICKETED, NONE),
        "redeem": (ACTIVE_TICKETED, EXTENDING_LEASE),
        **_ENDS,
        "expire": (ACTIVE, CLOSING),
    },
    (ACTIVE_TICKETED, EXTENDING_LEASE): {
        "changed": (ACTIVE_TICKETED, EXTENDING_LEASE),
        "lease": (ACTIVE, NONE),
        "lease_refused": (ACTIVE, NONE),
        "extend": (ACTIVE_TICKETED, EXTENDING_FURTHER),
        "modify": (ACTIVE_TICKETED, MODIFYING),
        "undo": (ACTIVE_TICKETED, UNDOING),
        "let_go": (ACTIVE_TICKETED, EXTENDING_LEASE),
        **_ENDS,
        "expire": (ACTIVE, CLOSING),
    },
    (ACTIVE_TICKETED, EXTENDING_FURTHER): {
        "changed": (ACTIVE_TICKETED, EXTENDING_FURTHER),
        "ticket": (ACTIVE_TICKETED, EXTENDING_LEASE),
        "ticket_refused": (ACTIVE_TICKETED, EXTENDING_LEASE),
        "lease": (ACTIVE, EXTENDING_TICKET),
        "lease_refused": (ACTIVE, WITHDRAWING),
        "let_go": (ACTIVE_TICKETED, EXTENDING_LEASE),
        **_ENDS,
        "expire": (ACTIVE, CLOSING),
    },
    (ACTIVE_TICKETED, UNDOING): {
        "changed": (ACTIVE_TICKETED, UNDOING),
        "undone": (ACTIVE, NONE),
        "lease": (ACTIVE, NONE),
        **_ENDS,
        "expire": (ACTIVE, CLOSING),
    },
    (ACTIVE, MODIFYING): {
        "changed": (ACTIVE, MODIFYING),
        "ticket": (ACTIVE, MODIFYING),
        "ticket_refused": (ACTIVE, NONE),
        "lease": (ACTIVE, NONE),
        "lease_refused": (ACTIVE, NONE),
        **_ENDS,
        "expire": (ACTIVE, CLOSING),
    },
    (ACTIVE, CLOSING): {
        "changed": (ACTIVE, CLOSING),
        "left": (ACTIVE, CLOSE_WAIT),
        "lost": (CLOSED, NONE),
    },
    (ACTIVE, CLOSE_WAIT): {
        "changed": (ACTIVE, CLOSE_WAIT),
        "closed": (CLOSED, NONE),
        "lost": (CLOSED, NONE),
        "expire": (CLOSED, NONE),
    },
    (CLOSED, NONE): {},
    (FAILED, NONE): {},
}

MACHINE: Final = Machine("service manager", TABLE)
UNASKED: Final = "unasked"
FIRST_TICKET: Final = "first_ticket"
FIRST_REDEEM: Final = "first_redeem"
FIRST_CHANGE: Final = "first_change"
FIRST_LEASE: Final = "first_lease"
RUNS: Final = "runs"
CHANGES: Final = "changes"
IN_HAND: Final = "in_hand"
ASKS_FURTHER: Final = "asks_further"
WITHDRAWS_FURTHER: Final = "withdraws_further"
CHANGES_IN_HAND: Final = "changes_in_hand"
GOES_ON: Final = "goes_on"
TAKES_BACK: Final = "takes_back"
LEAVES: Final = "leaves"
LAST_WORD: Final = "last_word"
IS_OVER: Final = "over"

PHASES: Final = {
    (NASCENT, NONE): UNASKED,
    (NASCENT, TICKETING): FIRST_TICKET,
    (NASCENT, CLOSE_WAIT): FIRST_TICKET,
    (TICKETED, NONE): FIRST_REDEEM,
    (TICKETED, MODIFYING): FIRST_CHANGE,
    (TICKETED, REDEEMING): FIRST_LEASE,
    (TICKETED, CLOSE_WAIT): LAST_WORD,
    (ACTIVE, NONE): RUNS,
    (ACTIVE, EXTENDING_TICKET): RUNS,
    (ACTIVE, WITHDRAWING): RUNS,
    (ACTIVE, NOTICED): RUNS,
    (ACTIVE, MODIFYING): CHANGES,
    (ACTIVE_TICKETED, NONE): IN_HAND,
    (ACTIVE_TICKETED, EXTENDING_TICKET): ASKS_FURTHER,
    (ACTIVE_TICKETED, WITHDRAWING): WITHDRAWS_FURTHER,
    (ACTIVE_TICKETED, MODIFYING): CHANGES_IN_HAND,
    (ACTIVE_TICKETED, EXTENDING_LEASE): GOES_ON,
    (ACTIVE_TICKETED, EXTENDING_FURTHER): GOES_ON,
    (ACTIVE_TICKETED, UNDOING): TAKES_BACK,
    (ACTIVE, CLOSING): LEAVES,
    (ACTIVE, CLOSE_WAIT): LAST_WORD,
    (CLOSED, NONE): IS_OVER,
    (FAILED, NONE): IS_OVER,
}
"""What a lease waits for, which says until when, and what happens then."""

OPEN: Final = (NASCENT, TICKETED, ACTIVE, ACTIVE_TICKETED)
"""States in which something can happen still."""
OVER: Final = (CLOSED, FAILED)
"""States in which nothing can, though claims may be on their way back."""
RUNNING: Final = (ACTIVE, ACTIVE_TICKETED)
"""States of a lease whose site has given its units."""
UNREDEEMED: Final = (TICKETED, NONE)
"""With its first ticket in hand."""
REPLACED: Final = (TICKETED, MODIFYING)
"""The same, while another is asked for in its place."""
WITHDRAWN: Final = (NASCENT, CLOSE_WAIT)
"""Its first request is taken back."""
ENDING: Final = (CLOSING, CLOSE_WAIT)
"""What is pending of a lease whose units leave it, or which waits for its site's last word."""
