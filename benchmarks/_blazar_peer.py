"""Real Blazar in one process: its manager and its host plugin over SQLite, for benchmarks/blazar_api.py.

Its HTTP, RPC and tokens are left out, in its favour. Stubs stand for Nova's client, the placement client, trusts of
Keystone and notifications; its own code, SQL and file are as they are.
"""

import contextlib
import datetime
import json
import sys
import time
import uuid
from unittest import mock

from oslo_config import cfg

hosts, leases, asked, path = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

from blazar.db.sqlalchemy import api as sql  # noqa: E402
from blazar.db.sqlalchemy import facade_wrapper, models  # noqa: E402
from blazar.manager import service  # noqa: E402
from blazar.plugins.oshosts import host_plugin  # noqa: E402

CONF = cfg.CONF
CONF([], project="blazar")
CONF.set_override("connection", f"sqlite:///{path}", group="database")
CONF.set_override("plugins", ["physical.host.plugin"], group="manager")
CONF.set_override("enabled_filters", [], group="enforcement")
sql.setup_db()
BEGIN = datetime.datetime.utcnow().replace(second=0, microsecond=0) + datetime.timedelta(days=1)
HOUR = datetime.timedelta(hours=1)


def stored():
    """Hosts, and leases of an hour each, spread over all hosts."""
    rows = {"hosts": [], "leases": [], "reservations": [], "wanted": [], "allocations": [], "events": []}
    for number in range(hosts):
        rows["hosts"].append(
            {
                "id": str(number + 1),
                "vcpus": 16,
                "cpu_info": "",
                "hypervisor_type": "QEMU",
                "hypervisor_version": 1,
                "hypervisor_hostname": f"compute-{number}",
                "service_name": f"compute-{number}",
                "memory_mb": 65536,
                "local_gb": 0,
                "availability_zone": "",
                "trust_id": "trust",
                "reservable": True,
            }
        )
    for number in range(leases):
        lease, reservation = str(uuid.uuid4()), str(uuid.uuid4())
        start = BEGIN + 2 * HOUR * (number // hosts)
        rows["leases"].append(
            {
                "id": lease,
                "name": f"lease-{number}",
                "project_id": "p",
                "user_id": "u",
                "start_date": start,
                "end_date": start + HOUR,
                "trust_id": "trust",
                "status": "PENDING",
            }
        )
        rows["reservations"].append(
            {
                "id": reservation,
                "lease_id": lease,
                "resource_id": str(number),
                "resource_type": "physical:host",
                "status": "pending",
            }
        )
        rows["wanted"].append(
            {
                "id": str(number),
                "reservation_id": reservation,
                "aggregate_id": 1,
                "resource_properties": "",
                "hypervisor_properties": "",
                "count_range": "1-1",
                "before_end": "default",
            }
        )
        rows["allocations"].append(
            {
                "id": str(uuid.uuid4()),
                "compute_host_id": str(number % hosts + 1),
                "reservation_id": reservation,
            }
        )
        for kind, at in (("start_lease", start), ("end_lease", start + HOUR)):
            rows["events"].append(
                {
                    "id": str(uuid.uuid4()),
                    "lease_id": lease,
                    "event_type": kind,
                    "time": at,
                    "status": "UNDONE",
                }
            )
    kinds = {
        "hosts": models.ComputeHost,
        "leases": models.Lease,
        "reservations": models.Reservation,
        "wanted": models.ComputeHostReservation,
        "allocations": models.ComputeHostAllocation,
        "events": models.Event,
    }
    with facade_wrapper.session_for_write() as session:
        for name, kind in kinds.items():
            session.execute(kind.__table__.insert(), rows[name])


def create(manager, number):
    """How long one lease takes, in milliseconds, of one host over a term in which nobody has any."""
    start = BEGIN + HOUR + 2 * HOUR * (number % 4)
    wish = {
        "name": f"asked-{number}",
        "start_date": start.strftime("%Y-%m-%d %H:%M"),
        "user_id": "u",
        "trust_id": "trust",
        "end_date": (start + HOUR / 2).strftime("%Y-%m-%d %H:%M"),
        "events": [],
        "reservations": [
            {
                "resource_type": "physical:host",
                "min": 1,
                "max": 1,
                "hypervisor_properties": "",
                "resource_properties": "",
                "before_end": "default",
            }
        ],
    }
    begin = time.perf_counter()
    made = manager.create_lease(wish)
    took = 1000 * (time.perf_counter() - begin)
    assert made["status"] == "PENDING" and made["reservations"]
    return took


@contextlib.contextmanager
def trusted(trust_id):
    yield mock.Mock(project_id="p", user_id="u")


stored()
with contextlib.ExitStack() as stack:
    for target, name in (
        (service.trusts, "create_ctx_from_trust"),
        (host_plugin.trusts, "create_ctx_from_trust"),
    ):
        stack.enter_context(mock.patch.object(target, name, trusted))
    stack.enter_context(mock.patch.object(service.service_utils.RPCServer, "__init__", lambda self, target: None))
    stack.enter_context(mock.patch.object(service.context, "current", lambda: mock.Mock(project_id="p", user_id="u")))
    stack.enter_context(mock.patch.object(service.enforcement, "UsageEnforcement"))
    stack.enter_context(mock.patch.object(service.ManagerService, "_send_notification", lambda *_, **__: None))
    stack.enter_context(mock.patch.object(host_plugin.nova, "ReservationPool"))
    host_plugin.nova.ReservationPool.return_value.create.return_value.id = 1
    stack.enter_context(mock.patch.object(host_plugin.nova.NovaClientWrapper, "__init__", lambda *_, **__: None))
    stack.enter_context(mock.patch.object(host_plugin.placement, "BlazarPlacementClient"))
    manager = service.ManagerService()
    print(json.dumps([create(manager, number) for number in range(asked)]))
