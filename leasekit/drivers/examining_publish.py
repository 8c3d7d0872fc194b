"""What `leasekit site doctor` looks at for a driver's ``publish`` table: the dnsmasq and the directory that it names.

No dnsmasq is started. In the directory an entry is made and removed at once where units' entries would go.
"""

from __future__ import annotations

from collections.abc import Iterator

import trio

from leasekit.core.drivers import DriverError, Finding
from leasekit.core.settings import SettingsError
from leasekit.drivers.directory.ldap import LdapExport, LdapSettings
from leasekit.drivers.directory.names import DnsmasqSettings, HostNames
from leasekit.drivers.directory.publishing import PublishSettings
from leasekit.drivers.dnsmasq import dnsmasq_of
from leasekit.drivers.examining import free_port, may_signal, program, shared_folder, writable
from leasekit.drivers.names import one_line

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def examine_publishing(settings: PublishSettings) -> list[Finding]:
    """How the directory and dnsmasq are that these settings name."""
    found: list[Finding] = []
    if settings.dnsmasq is not None:
        found += _dnsmasq(settings.dnsmasq)
    if settings.ldap is not None:
        found.append(await trio.to_thread.run_sync(_directory, settings.ldap))
    return found


def _dnsmasq(settings: DnsmasqSettings) -> Iterator[Finding]:
    if settings.pid_file is None:
        found = program("dnsmasq", "dnsmasq-base", SEARCH)
        yield found
        try:
            if found.verdict == "ok" and not HostNames(settings).runs():
                yield free_port("publish: port for names", settings.listen, settings.port, udp=True)
        except DriverError as error:
            yield Finding("publish: dnsmasq", "missing", str(error), "let the authority's user read it")
        yield writable("publish: names", settings.folder.absolute(), make=True)
        return
    what, advice = "publish: dnsmasq", "start that dnsmasq, and let the authority's user read its pid file"
    try:
        state = dnsmasq_of(settings.pid_file)
    except DriverError as error:
        yield Finding(what, "missing", str(error), advice)
        return
    if state is None:
        yield Finding(what, "missing", f"does not run, as {settings.pid_file} says", advice)
        return
    yield may_signal(what, state.pid)
    yield shared_folder("publish: names", settings.folder.absolute(), state.pid, make=True)


def _directory(settings: LdapSettings) -> Finding:
    what = "publish: directory"
    try:
        export = LdapExport(settings)
        export.check()
        units = export.units()
    except DriverError as error:
        advice = "start the server, make its base, let bind write there, or correct publish.ldap"
        return Finding(what, "missing", str(error), advice)
    except SettingsError as error:
        return Finding(what, "missing", "; ".join(error.errors), "see the key that it names")
    return Finding(what, "ok", f"{one_line(settings.url)} answers; it has {len(units)} units")
