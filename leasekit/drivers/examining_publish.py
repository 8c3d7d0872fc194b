"""What `leasekit site doctor` looks at for a driver's ``publish`` table: the dnsmasq and the directory that it names.

Nothing is written there, and no dnsmasq is started.
"""

from __future__ import annotations

import trio

from leasekit.core.drivers import DriverError, Finding
from leasekit.core.settings import SettingsError
from leasekit.drivers.directory.ldap import LdapExport, LdapSettings
from leasekit.drivers.directory.names import DnsmasqSettings
from leasekit.drivers.directory.publishing import PublishSettings
from leasekit.drivers.dnsmasq import dnsmasq_of
from leasekit.drivers.examining import program
from leasekit.drivers.names import one_line

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def examine_publishing(settings: PublishSettings) -> list[Finding]:
    """How the directory and dnsmasq are that these settings name."""
    found: list[Finding] = []
    if settings.dnsmasq is not None:
        found.append(_dnsmasq(settings.dnsmasq))
    if settings.ldap is not None:
        found.append(await trio.to_thread.run_sync(_directory, settings.ldap))
    return found


def _dnsmasq(settings: DnsmasqSettings) -> Finding:
    if settings.pid_file is None:
        return program("dnsmasq", "dnsmasq-base", SEARCH)
    what, advice = "publish: dnsmasq", "start that dnsmasq, and let the authority's user read its pid file"
    try:
        state = dnsmasq_of(settings.pid_file)
    except DriverError as error:
        return Finding(what, "missing", str(error), advice)
    if state is None:
        return Finding(what, "missing", f"does not run, as {settings.pid_file} says", advice)
    return Finding(what, "ok", f"runs with the process id {state.pid}")


def _directory(settings: LdapSettings) -> Finding:
    what = "publish: directory"
    try:
        units = LdapExport(settings).units()
    except DriverError as error:
        return Finding(what, "missing", str(error), "start the server, or correct publish.ldap")
    except SettingsError as error:
        return Finding(what, "missing", "; ".join(error.errors), "see the key that it names")
    return Finding(what, "ok", f"{one_line(settings.url)} answers; it has {len(units)} units")
