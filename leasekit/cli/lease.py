"""``leasekit lease``: ask for leases, change them, follow them, end them."""

from __future__ import annotations

import click

from leasekit.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    later={
        "request": "leasekit.cli.lease_changes:request",
        "extend": "leasekit.cli.lease_changes:extend",
        "modify": "leasekit.cli.lease_changes:modify",
        "close": "leasekit.cli.lease_changes:close",
        "list": "leasekit.cli.lease_looks:list_",
        "show": "leasekit.cli.lease_looks:show",
        "history": "leasekit.cli.lease_looks:history",
        "watch": "leasekit.cli.lease_looks:watch",
        "logs": "leasekit.cli.lease_looks:logs",
        "topologies": "leasekit.cli.topology:topologies",
        "topology": "leasekit.cli.topology:topology",
        "close-topology": "leasekit.cli.topology:close_topology",
        "ssh": "leasekit.cli.lease_units:ssh",
        "console": "leasekit.cli.lease_units:console",
    },
)
def lease() -> None:
    """Lease units: ask, list, change, follow, end.

    LEASE is a lease's id, its name, or SLICE/NAME.
    """
