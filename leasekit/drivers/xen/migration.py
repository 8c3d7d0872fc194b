"""Moving a running unit from host to host, which see the same files.

Before anything moves, the unit's record says which hosts may have something of it, so that a daemon which was killed in
between finds it, and a teardown leaves nothing on either. A host that has handed a unit over, and keeps nothing of it,
is asked no more: it may be away for maintenance, which is what units are moved for.
"""

from __future__ import annotations

import attrs

from leasekit.core.drivers import DriverError
from leasekit.drivers.libvirt.settings import Size
from leasekit.drivers.xen.place import XenPlace
from leasekit.drivers.xen.record import XenRecord
from leasekit.drivers.xen.remote import XenHostLostError


async def migrate(source: XenPlace, target: XenPlace, record: XenRecord, size: Size) -> XenRecord:
    """Moves a unit's domain, which goes on running, and returns its record. The source's control domain has to be able
    to log in to the target's, by keys of its own. Raises ``DriverError``.
    """
    if not target.host.migration:
        raise DriverError(f"host {target.name} takes over no units (hosts.{target.name}.migration)", retry=False)
    unit = record.unit
    await source.write_record(attrs.evolve(record, hosts=(target.name, source.name)))
    try:
        await source.migrate(unit, target.name, target.host.migration)
    except XenHostLostError:
        # Which of the two has it is seen when they are back. The same where nobody waits any more: `xl` goes on.
        raise
    except DriverError:
        # Not if an earlier move, which nobody waited for, has brought it there.
        if (await source.find(unit)).running:
            await source.write_record(attrs.evolve(record, hosts=(source.name, target.name)))
        raise
    await target.set_cpu(unit, size)
    await source.forget_logs(unit)
    moved = attrs.evolve(record, hosts=(target.name,))
    await target.write_record(moved)
    return moved
