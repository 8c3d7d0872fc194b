"""leasekit's API from Python::

    from leasekit.client import Client

    with Client("http://127.0.0.1:8770") as client, client.lease("vm", 4, hours=2) as lease:
        print([unit.properties["host"] for unit in lease.members])

:class:`Client` blocks, :class:`AsyncClient` runs on asyncio and trio.
"""

import leasekit.client._httpx  # noqa: F401 - before what imports httpx
from leasekit.client.asking import ApiError, LeaseFailed
from leasekit.client.client import AsyncClient, Client
from leasekit.client.shapes import DryRunResult, Lease, LeaseRequest, LeaseUnit, ProblemDetails, Transition

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "DryRunResult",
    "Lease",
    "LeaseFailed",
    "LeaseRequest",
    "LeaseUnit",
    "ProblemDetails",
    "Transition",
]
