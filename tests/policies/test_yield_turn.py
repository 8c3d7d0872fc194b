"""One turn of the mapper of virtual clusters, on hosts that are made up."""

from __future__ import annotations

from leasekit.core.mappers import AuthorityCycle, Cap, HostView, MachineView, Migrate
from leasekit.policies.authority.yields import YieldMapper, YieldSettings

CLASS = b"class"


def machine(name: str, cpu: int, memory: int) -> MachineView:
    size = (("cpu", cpu // 4), ("memory", memory))
    needs = (("cpu", cpu), ("memory", memory))
    return MachineView(name, f"of {name}", "active", CLASS, size, needs, -1, -1, {})


def host(name: str, *machines: MachineView) -> HostView:
    has = (("cpu", 4000), ("memory", 8192))
    return HostView(name, "node", (CLASS,), "free", has, 0, 250, machines, frozenset({"cap", "migrate"}), {})


def test_machines_that_could_only_change_places_stay() -> None:
    """Two full hosts can't exchange machines, however good that would be: caps are those of where machines are."""
    full = host("a", machine("a.1", 3600, 4096), machine("a.2", 3600, 4096))
    idle = host("b", machine("b.1", 400, 4096), machine("b.2", 400, 4096))
    cycle = AuthorityCycle(
        0, (), lambda *_: iter(()), lambda name: (_ for _ in ()).throw(KeyError(name)),
        hosts=lambda _: [full, idle], room=lambda *_: 1,
    )  # fmt: skip
    mapper = YieldMapper(YieldSettings(algorithm="exact"))
    mapper._settled["node"] = None
    decided = mapper.assign(cycle)
    assert not any(isinstance(one, Migrate) for one in decided)
    assert {one.unit: one.cpu for one in decided if isinstance(one, Cap)} == {"a.1": 2000, "a.2": 2000}
