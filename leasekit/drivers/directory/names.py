"""Host names by dnsmasq: a file for each unit in a folder that it reads (``hostsdir``).

Files are written beside and renamed. dnsmasq sees at once what is new; what is gone, or has changed, it is told by
SIGHUP. It is either the site's, or started by the driver, which it outlives: the next daemon finds it again.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from leasekit.core.drivers import SiteFaultError
from leasekit.drivers.directory.entry import DirectoryEntry
from leasekit.drivers.dnsmasq import dnsmasq_of, own_dnsmasq, own_user, start_dnsmasq
from leasekit.drivers.processes import ProcessState, send_signals

_DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")

logger = logging.getLogger(__name__)


def _plain_path(_: object, __: attrs.Attribute[Path], value: Path) -> None:
    if any(c.isspace() or c in "\"'#,\\" for c in str(value)):
        raise ValueError(f"found {str(value)!r}, expected a path without blanks, quotes, commas, backslashes and #")


@attrs.frozen(kw_only=True)
class DnsmasqSettings:
    """``folder`` is read by a dnsmasq with ``hostsdir``, whose process ``pid_file`` names.

    With ``listen``, an address and a ``port`` of this machine's, the driver starts one itself, with its files beside
    the folder; it answers for ``domain`` and asks ``forward`` for all else (nobody, where that is empty).
    """

    folder: Path = attrs.field(validator=_plain_path)
    pid_file: Path | None = None
    listen: str = ""
    port: int = attrs.field(default=53, validator=[attrs.validators.ge(1), attrs.validators.le(65535)])
    domain: str = ""
    forward: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if bool(self.listen) == (self.pid_file is not None):
            raise ValueError("expected pid_file, of a dnsmasq that runs, or listen, for one that the driver starts")
        for text in (*filter(None, [self.listen]), *self.forward):
            ipaddress.ip_address(text)
        if self.domain and _DOMAIN.fullmatch(self.domain) is None:
            raise ValueError(f"domain: found {self.domain[:60]!r}, expected small letters, digits, dashes and dots")


class HostNames:
    """The names of units. Its methods block, and raise ``DriverError``."""

    def __init__(self, settings: DnsmasqSettings) -> None:
        self._settings = settings
        self._folder = settings.folder.absolute()
        self._pid_file = settings.pid_file or self._folder.with_name(f"{self._folder.name}.pid")

    def publish(self, entry: DirectoryEntry) -> None:
        """From now on the unit's names lead to its addresses."""
        content = "".join(f"{address} {' '.join(entry.names)}\n" for address in entry.addresses)
        path = self._folder / entry.unit
        before = _read(path)
        self.ensure()
        if before == content:
            return
        # What begins with a dot dnsmasq does not read.
        beside = self._folder / f".{entry.unit}.new"

        def write() -> None:
            beside.write_text(content)
            beside.chmod(0o644)
            beside.replace(path)

        _attempt(path, write)
        if before:
            self._tell()

    def withdraw(self, unit: str) -> None:
        """No name leads to the unit any more."""
        path = self._folder / unit
        if _read(path):
            _attempt(path, lambda: path.unlink(missing_ok=True))
            self.ensure()
            self._tell()

    def units(self) -> set[str]:
        """The units that have names."""
        try:
            return {path.name for path in self._folder.iterdir() if not path.name.startswith(".")}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise SiteFaultError(f"can't read {self._folder}: {error.strerror}") from error

    def runs(self) -> bool:
        """Whether the dnsmasq does."""
        return self._running() is not None

    def stop(self) -> None:
        """End the dnsmasq that the driver has started, if it runs."""
        running = self._running()
        if self._settings.listen and running is not None:
            send_signals([running], signal.SIGTERM)

    def _tell(self) -> None:
        running = self._running()
        if running is None:
            raise SiteFaultError(f"dnsmasq does not run, as its pid_file {self._pid_file} says")
        send_signals([running], signal.SIGHUP)

    def _running(self) -> ProcessState | None:
        if not self._settings.listen:
            return dnsmasq_of(self._pid_file)
        return own_dnsmasq(self._pid_file, f"--hostsdir={self._folder}")

    def ensure(self) -> None:
        """The dnsmasq that is the driver's own runs."""
        _attempt(self._folder, lambda: self._folder.mkdir(parents=True, exist_ok=True))
        if not self._settings.listen or self._running() is not None:
            return
        settings = self._settings
        user, group = own_user()
        start_dnsmasq([
            "--conf-file=/dev/null", "--no-hosts", "--no-resolv", "--bind-interfaces",
            f"--listen-address={settings.listen}", f"--port={settings.port}", f"--hostsdir={self._folder}",
            f"--pid-file={self._pid_file}", f"--user={user}", f"--group={group}", "--log-facility=/dev/null",
            *(f"--server={address}" for address in settings.forward),
            *([f"--local=/{settings.domain}/"] if settings.domain else []),
        ])  # fmt: skip
        logger.info("dnsmasq answers on %s port %d", settings.listen, settings.port)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SiteFaultError(f"can't read {path}: {error.strerror}") from error


def _attempt(path: Path, do: Callable[[], object]) -> None:
    try:
        do()
    except OSError as error:
        raise SiteFaultError(f"can't write {path}: {error.strerror}") from error
