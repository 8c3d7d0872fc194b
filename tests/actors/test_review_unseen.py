"""What went wrong without any other test or simulated world noticing: each of these is about one line of code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld
from msgspec.structs import replace
from test_suspension import SAVING, TEXT, SavingWorld

from leasekit.core.claims.claim import decode_ticket
from leasekit.core.claims.signed import CONTRACT, RELINQUISHMENT, TRUNCATION, state
from leasekit.core.drivers import RESUME
from leasekit.core.protocol.messages import LeaseUpdate, Redeem, Relinquish, RequestTicket, TicketUpdate
from leasekit.core.reasons import Code
from leasekit.core.time import HOUR, MINUTE, SECOND


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    return DeployedWorld(CHAIN, tmp_path)


def active(world: DeployedWorld, units: int = 2) -> str:
    lease = world.request("batch", units, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "active"
    return lease


def test_a_unit_of_a_window_that_is_out_for_another_reason(world: DeployedWorld) -> None:
    """The end of a window brings back what the window took, and nothing else."""
    world.command("site", "unit.disable", unit="vm-0", reason="its fan is broken")
    world.command("site", "maintenance.add", start=10 * MINUTE, end=20 * MINUTE, units=["vm-0", "vm-1"])
    world.run_until(21 * MINUTE)
    out = {unit["unit"]: unit["reason"] for unit in world.query("site", "units") if unit["state"] == "out"}
    assert out == {"vm-0": "its fan is broken"}


@pytest.mark.parametrize("behind", [-SECOND, 0, SECOND])
def test_a_note_within_the_skew_is_no_guilt(world: DeployedWorld, behind: int) -> None:
    """A guest gives back what it has redeemed; its clock is a little behind that of the site, or ahead."""
    lease = active(world)
    held = world.guest("batch").leases[lease].approved
    assert held is not None
    taken = world.site().claims.by_digest[held.digest].at
    note = state(world.guest("batch").signer, RELINQUISHMENT, held.digest, taken - behind, lease).encode()
    world.receive("site", "upper", Relinquish(lease, 7, held.ticket, note))
    world.pass_time(MINUTE)
    assert world.lease("site", lease)["state"] == "closed"
    assert world.query("site", "evidence") == []


@pytest.mark.parametrize("off", [-SECOND, SECOND])
def test_the_old_claim_ends_where_the_new_one_starts(world: DeployedWorld, off: int) -> None:
    """A modify whose truncation leaves a gap, or an overlap, is refused."""
    lease = active(world)
    world.lost.add(("batch", "site", "Redeem"))
    assert not world.command("batch", "lease.modify", lease=lease, units=1).error
    world.pass_time(SECOND)
    redeem = world.letters(Redeem, "batch")[-1]
    old, new = world.site().leases[lease].claim, decode_ticket(redeem.ticket).leaf
    cut = state(world.broker("upper").signer, TRUNCATION, old, new.term.start + off, lease).encode()
    world.receive("site", "batch", replace(redeem, truncation=cut))
    world.pass_time(MINUTE)
    refused = world.letters(LeaseUpdate, "site", "batch")[-1]
    assert refused.state == "refused" and refused.reason is not None and refused.reason.code == Code.WRONG_TERM
    assert len(world.lease("site", lease)["units"]) == 2


@pytest.mark.parametrize("wrong", ["claim", "lease"])
def test_a_contract_for_another(world: DeployedWorld, wrong: str) -> None:
    """A guest takes no contract of its site that is for another claim, or for another lease."""
    world.lost.add(("site", "batch", "LeaseUpdate"))
    lease = world.request("batch", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    update = world.letters(LeaseUpdate, "site", "batch")[-1]
    record = world.site().leases[lease]
    claim, named = (bytes(32), lease) if wrong == "claim" else (record.claim, f"{lease}0")
    contract = state(world.site().signer, CONTRACT, claim, world.now, f"{named} 2 10000 {HOUR}").encode()
    world.receive("batch", "site", replace(update, contract=contract))
    assert world.lease("batch", lease)["state"] == "ticketed"
    world.receive("batch", "site", update)
    assert world.lease("batch", lease)["state"] == "active"


def test_an_extend_without_units_after_a_modify_that_was_refused(world: DeployedWorld) -> None:
    """It asks for the units that the lease has, not for those that the modify was to bring, and gives none up."""
    lease = active(world, 2)
    world.command("batch", "lease.modify", lease=lease, units=6)
    world.pass_time(MINUTE)
    assert world.letters(TicketUpdate, "upper", "batch")[-1].status == "refused"
    world.command("batch", "lease.extend", lease=lease, end=2 * HOUR)
    world.pass_time(MINUTE)
    assert world.letters(RequestTicket, "batch", "upper")[-1].units == 2
    world.run_until(HOUR + MINUTE)
    assert len(world.lease("site", lease)["units"]) == 2


def test_two_windows_of_one_delegation(world: DeployedWorld) -> None:
    """What a broker leaves out for windows stays left out when it gives a broker below more, or fewer."""

    def free() -> list[int]:
        (source,) = world.broker("upper").book.of_type("vm")
        table = world.broker("upper").book.table(source.id)
        return [table.free_at(at * MINUTE) for at in (9, 15, 25, 35)]

    for start, units in ((10, ["vm-0"]), (20, ["vm-1", "vm-2"])):
        window: dict[str, Any] = {"start": start * MINUTE, "end": (start + 10) * MINUTE, "units": units}
        assert not world.command("site", "maintenance.add", **window).error
    world.pass_time(MINUTE)
    assert free() == [2, 1, 0, 2]
    for units in (1, 3, 4):
        given = {"broker": "lower", "type": "vm", "site": "site", "units": units}
        assert not world.command("upper", "delegation.give", **given).error
        world.pass_time(MINUTE)
    whole = free()
    world.restart("upper")
    assert free() == whole


def test_a_restart_while_a_unit_goes_on_from_another(tmp_path: Path) -> None:
    """The setup that is done again goes on from what it went on from before."""
    world = SavingWorld(TEXT, tmp_path)
    lease = world.request("batch", 1, 2 * SECOND, HOUR, name="work", properties={**SAVING})
    world.pass_time(MINUTE)
    (unit,) = world.lease("site", lease)["units"]
    world.request("web", 4, 10 * MINUTE, 20 * MINUTE)
    world.run_until(11 * MINUTE)
    assert world.kept() == [(lease, "saved")]
    world.command("site", "unit.disable", unit=unit)
    told: list[Any] = []
    world.told = told
    while not any(RESUME in action.properties for action in told):
        world.pass_time(100)
        assert world.now < HOUR
    (first,) = [action for action in told if RESUME in action.properties]
    assert first.unit != unit
    world.restart("site")
    world.pass_time(100)
    again = [action for action in told if action.number == first.number]
    assert len(again) == 2 and again[1].properties[RESUME] == first.properties[RESUME]
