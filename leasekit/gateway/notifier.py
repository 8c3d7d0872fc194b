"""What runs while a gateway serves, so that those are told who want to be: logs are read, the time is looked at, and
what waits is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from leasekit.core.time import SECOND
from leasekit.gateway.actors import ActorAwayError, ActorConnection, RefusedError
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.events import DELIVERIES_CHANGED
from leasekit.gateway.notices import DeliveryRecord, ends_lease, notices_of, soon
from leasekit.gateway.policies import tell_end
from leasekit.gateway.sending import SendingError, send

LOOK_EVERY: Final = 30.0
"""How often it is looked which leases start or end soon, in seconds."""
RETRY: Final = 1.0
"""After how long an actor that is away is asked again, in seconds."""
LOG_PAGE: Final = 1_000
AT_ONCE: Final = 8
"""How many deliveries are under way at once."""

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Notifier:
    """Tells what happens at a ``door``."""

    _door: GatewayDoor
    _under_way: set[str] = attrs.field(init=False, factory=set)
    _nursery: trio.Nursery = attrs.field(init=False)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._send_all, nursery)
            task_status.started()

    async def follow(self, guest: ActorConnection) -> None:
        """Tell what happens to the leases of a guest, too, until cancelled; once it runs."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, guest)
            nursery.start_soon(self._look, guest)

    async def _follow(self, guest: ActorConnection) -> None:
        while True:
            try:
                async with guest.watching() as changes:
                    await self._catch_up(guest)
                    async for _ in changes:
                        await self._catch_up(guest)
                        await self._tell_of_time(guest)
            except (ActorAwayError, RefusedError) as error:
                logger.debug("nobody is told of %s: %s", guest.name, error)
            await trio.sleep(RETRY)

    async def _catch_up(self, guest: ActorConnection) -> None:
        notices = self._door.notices
        if guest.name not in notices.positions:  # what was before anybody could ask to be told is old
            seq = int((await guest.request("log_end", "", {}))["seq"])
            await self._door.commit(notices.read_until(guest.name, seq))
        while True:
            after = notices.positions[guest.name]
            rows = await guest.request("log", "", {"after": after, "limit": LOG_PAGE})
            if not rows:
                return
            await self._tell_ends(guest, rows)
            found, known = [], dict[str, dict[str, Any]]()
            for row in rows if notices.rules.of(guest.name) else ():
                if row["lease"] and row["lease"] not in known:
                    known[row["lease"]] = await _lease(guest, row["lease"])
                found += notices_of(guest.name, row, known.get(row["lease"], {}))
            now = self._door.clock()
            changes = [change for notice in found for change in notices.tell(notice, now)]
            await self._door.commit(*changes, notices.read_until(guest.name, rows[-1]["seq"]))
            self._door.told.set()
            if len(rows) < LOG_PAGE:
                return

    async def _tell_ends(self, guest: ActorConnection, rows: Sequence[Mapping[str, Any]]) -> None:
        """A service that is asked by Blazar's protocol hears which leases are over."""
        policy = self._door.policies.get(guest.name)
        if policy is None or not policy.ask or policy.asked_as != "blazar":
            return
        for lease in dict.fromkeys(row["lease"] for row in rows if ends_lease(row)):
            if shown := await _lease(guest, lease):
                self._nursery.start_soon(tell_end, policy, guest.name, shown)

    async def _look(self, guest: ActorConnection) -> None:
        while True:
            try:
                await self._tell_of_time(guest)
            except (ActorAwayError, RefusedError) as error:
                logger.debug("nobody is told of %s: %s", guest.name, error)
            await trio.sleep(LOOK_EVERY)

    async def _tell_of_time(self, guest: ActorConnection) -> None:
        notices = self._door.notices
        rules = [one for one in notices.rules.of(guest.name) if {"ends_soon", "starts_soon"} & set(one.events)]
        if not rules:
            return
        leases = await guest.query("leases")
        now = self._door.clock()
        changes = [
            change for rule in rules for lease in leases for one in soon(rule, lease, now)
            for change in notices.tell(one, now, rule)
        ]  # fmt: skip
        if changes := [*changes, *notices.forget(now)]:
            await self._door.commit(*changes)
            self._door.told.set()

    async def _send_all(self, nursery: trio.Nursery) -> None:
        notices, limit = self._door.notices, trio.CapacityLimiter(AT_ONCE)
        while True:
            self._door.told = trio.Event()
            for one in notices.due(self._door.clock()):
                if one.id not in self._under_way:
                    self._under_way.add(one.id)
                    nursery.start_soon(self._send, one, limit)
            at = notices.next_at()
            wait = LOOK_EVERY if at is None else min(LOOK_EVERY, max(0, at - self._door.clock()) / SECOND)
            with trio.move_on_after(wait or LOOK_EVERY):  # what is under way says when it has ended
                await self._door.told.wait()

    async def _send(self, one: DeliveryRecord, limit: trio.CapacityLimiter) -> None:
        notices, problem = self._door.notices, ""
        try:
            async with limit:
                rule = notices.rules.get(one.rule)
                if rule is not None:
                    await send(self._door.name, self._door.table, rule, one, self._door.clock())
        except SendingError as error:
            problem = str(error)
            logger.info("%s of rule %s is not delivered: %s", one.notice.kind, one.rule, problem)
        finally:
            self._under_way.discard(one.id)
        await self._door.commit(*notices.tried(one.id, problem, self._door.clock()))
        self._door.hub.hint(DELIVERIES_CHANGED, one.notice.project)
        self._door.told.set()


async def _lease(guest: ActorConnection, lease: str) -> dict[str, Any]:
    try:
        return dict(await guest.query("lease", lease=lease))
    except RefusedError:
        return {}  # its guest has forgotten it
