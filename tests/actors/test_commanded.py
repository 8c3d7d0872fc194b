"""Commands with callers and keys, of the part alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from leasekit.actors.kernel import Dispatch, Kernel, command
from leasekit.actors.peering import ANSWER_KEPT, Calls, Commanded, Keyring
from leasekit.actors.settings import ActorSettings
from leasekit.core.claims.signed import ED25519, Keypair
from leasekit.core.commands import ShowLease
from leasekit.core.errors import CommandError
from leasekit.core.reasons import Code, Reason, read
from leasekit.core.schema import LOG, Row
from leasekit.core.steps import Command, Ready
from leasekit.core.time import HOUR

ME = Keypair(b"m" * 32)


@attrs.define
class CountingDesk:
    """Counts what it was commanded."""

    open: bool = True
    calls: int = 0

    @command("desk.count")
    def count(self, asked: ShowLease) -> dict[str, Any]:
        """One more."""
        if not self.open:
            raise CommandError("not now")
        self.calls += 1
        return {"id": f"lease-{self.calls}"}


def made(desk: CountingDesk, answers: Sequence[Row] = ()) -> tuple[Kernel, Commanded]:
    """The part, and the kernel that it writes to."""
    kernel, dispatch = Kernel(ActorSettings()), Dispatch("guest")
    dispatch.add(desk)
    commanded = Commanded(kernel, dispatch, Calls(kernel, Keyring("me", ME, ED25519, [], kernel), dispatch))
    commanded.restore(answers)
    return kernel, commanded


def asked(lease: str = "a", *, caller: str = "alice", key: str = "k") -> Command:
    """A command of the caller's."""
    return Command(1, "desk.count", {"lease": lease}, caller, "token", key)


def taken(kernel: Kernel, commanded: Commanded, *commands: Command) -> Ready:
    """What comes of the commands."""
    for one in commands:
        commanded.take(one)
    ready = kernel.take()
    assert ready is not None
    return ready


def test_a_repeat_is_answered_and_nothing_is_done() -> None:
    """The first answer is given again, to its caller, for a day, also after a restart; each command has its line."""
    desk = CountingDesk()
    kernel, commanded = made(desk)
    ready = taken(
        kernel, commanded, asked(), asked(), asked(caller="bob"), asked(key=""), asked("b"),
    )  # fmt: skip
    assert [reply.result and reply.result["id"] for reply in ready.replies] == [
        "lease-1", "lease-1", "lease-2", "lease-3", None
    ]  # fmt: skip
    assert ready.replies[-1].reason == Reason(Code.KEY_USED, what="desk.count")
    lines = [change.row for change in ready.changes if change.table == LOG and change.row]
    assert [(line[1], line[2]) for line in lines] == [(f"lease-{n}", "desk.count") for n in (1, 2, 3)]
    assert read(lines[0][5]) == Reason(Code.COMMANDED, who="alice", what="token")

    rows = [change.row for change in ready.changes if change.table == "answers" and change.row]
    kernel, commanded = made(desk, rows)
    assert taken(kernel, commanded, asked()).replies[0].result == {"id": "lease-1"}
    kernel.tick(ANSWER_KEPT + HOUR)
    ready = taken(kernel, commanded, asked())
    assert ready.replies[0].result == {"id": "lease-4"}
    assert sum(change.table == "answers" and change.row is None for change in ready.changes) == 2


def test_what_is_refused_has_no_answer() -> None:
    """A command that was refused may be tried again with its key."""
    desk = CountingDesk(open=False)
    kernel, commanded = made(desk)
    assert taken(kernel, commanded, asked()).replies[0].error == "not now"
    desk.open = True
    assert taken(kernel, commanded, asked()).replies[0].result == {"id": "lease-1"}


def test_nobody_is_noted_where_nobody_is_named() -> None:
    """Commands of emulations have no caller, and leave no line."""
    kernel, commanded = made(CountingDesk())
    assert taken(kernel, commanded, asked(caller="", key="")).changes == []
