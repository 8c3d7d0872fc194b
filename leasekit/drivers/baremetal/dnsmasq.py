"""DHCP, TFTP and names for nodes by dnsmasq: one of the driver's own, or one that runs anyway.

Either reads a file for each node in a folder for DHCP and in one for names, written beside and renamed. It sees what is
new by itself; what is gone it must be told of. That a DHCP lease is over it is told as the node would do it (RFC 2131),
for it goes on to serve the lease's name.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import attrs

from leasekit.core.drivers import DriverError, SiteFaultError
from leasekit.core.time import SECOND
from leasekit.drivers.baremetal.settings import BootNetwork, External, Owned
from leasekit.drivers.dnsmasq import dnsmasq_of, own_dnsmasq, own_user, start_dnsmasq
from leasekit.drivers.names import one_line
from leasekit.drivers.processes import ProcessState, open_process, process_state, send_signals

PORT: Final = 67
RELEASE: Final = 7
_MAGIC: Final = bytes([99, 130, 83, 99])
_OCTETS: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2})*")


@attrs.frozen
class DhcpLease:
    """A line of dnsmasq's file: the client's identifier is empty where it gave none."""

    mac: str
    address: ipaddress.IPv4Address
    client: bytes


def leases_of(path: Path, mac: str) -> Iterator[DhcpLease]:
    """The leases of a card. Raises ``DriverError`` if the file can't be read."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SiteFaultError(f"can't read {path}: {error.strerror}") from error
    for line in lines:
        words = line.split()
        if len(words) == 5 and words[1].lower() == mac.lower() and re.fullmatch(r"\d+(\.\d+){3}", words[2]):
            client = bytes.fromhex(words[4].replace(":", "")) if _OCTETS.fullmatch(words[4]) else b""
            yield DhcpLease(mac.lower(), ipaddress.IPv4Address(words[2]), client)


def release(lease: DhcpLease, server: str, interface: str) -> None:
    """Sends DHCPRELEASE for it to the server at that address of this machine's. Raises ``DriverError``."""
    own = ipaddress.IPv4Address(server)
    head = bytes([1, 1, 6, 0]) + bytes(8) + lease.address.packed + bytes(12)
    options = bytes([53, 1, RELEASE, 54, 4]) + own.packed
    if lease.client:
        options += bytes([61, len(lease.client)]) + lease.client
    card = bytes.fromhex(lease.mac.replace(":", "")).ljust(16, b"\0")
    packet = head + card + bytes(192) + _MAGIC + options + b"\xff"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
            sender.sendto(packet, (server, PORT))
    except OSError as error:
        raise SiteFaultError(f"can't tell dnsmasq that {lease.address} is free: {error.strerror}") from error


BOOT_SCRIPT: Final = "boot.ipxe"
FIRMWARE: Final = {"0": "undionly.kpxe", "6": "ipxe.efi", "7": "ipxe.efi", "9": "ipxe.efi"}
"""iPXE by the client's architecture (RFC 4578): of PCs with a BIOS, and with UEFI."""
AGAIN_FIRST: Final = 1.0
AGAIN_LONGEST: Final = 30.0
"""Seconds until a dnsmasq that ended is started again: doubled each time that it ends at once."""
LOG_MAX: Final = 8 * 2**20
"""A log that is longer begins anew when dnsmasq is started, in bytes."""
TAIL: Final = 256 * 1024
"""How much of the log's end is looked through, in bytes."""

logger = logging.getLogger(__name__)


class NameServer(Protocol):
    """What the driver wants of dnsmasq. All methods block, and raise ``DriverError``."""

    def ensure(self) -> None:
        """Makes sure that it runs."""
        ...

    def publish(self, node: str, mac: str, hostname: str, addresses: tuple[str, ...]) -> None:
        """From now on the node gets these addresses (without prefixes), and the name leads to them."""
        ...

    def withdraw(self, node: str, mac: str) -> None:
        """From now on the node gets no answer, and no name leads to it."""
        ...

    def seen(self, mac: str) -> str:
        """What is known of the node's last question, in words; nothing where there was none, or nobody knows."""
        ...

    def close(self) -> None:
        """Leaves it running, and looks after it no more."""
        ...


class Folders:
    """The two folders."""

    def __init__(self, hosts: Path, names: Path | None, lease_time: str) -> None:
        self.hosts = hosts
        self.names = names
        self._lease_time = lease_time

    def publish(self, node: str, mac: str, hostname: str, addresses: tuple[str, ...]) -> bool:
        """Writes a node's files; whether names that it had are gone."""
        label = hostname.partition(".")[0]
        words = [mac.lower(), addresses[0], label, self._lease_time]
        _write(self.hosts, node, ",".join(filter(None, words)) + "\n")
        if self.names is None:
            return False
        before = _read(self.names / node)
        spoken = f"{hostname} {label}" if hostname != label else label
        content = "".join(f"{address} {spoken}\n" for address in addresses)
        _write(self.names, node, content)
        return before not in ("", content)

    def withdraw(self, node: str) -> bool:
        """Removes a node's files; whether there were any."""
        gone = False
        for folder in filter(None, (self.hosts, self.names)):
            try:
                (folder / node).unlink()
                gone = True
            except FileNotFoundError:
                pass
            except OSError as error:
                raise DriverError(f"can't remove {folder / node}: {error.strerror}") from error
        return gone


def _write(folder: Path, name: str, content: str) -> None:
    path = folder / name
    # What begins with a dot dnsmasq does not read.
    beside = folder / f".{name}.new"
    try:
        if _read(path) != content:
            beside.write_text(content)
            beside.chmod(0o644)
            beside.replace(path)
    except OSError as error:
        raise SiteFaultError(f"can't write {path}: {error.strerror}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


class ExternalDnsmasq:
    """A :class:`NameServer` that the site runs."""

    def __init__(self, settings: External, network: BootNetwork) -> None:
        self._pid_file = settings.pid_file
        self._leases = settings.leases
        self._network = network
        self._folders = Folders(settings.hosts, settings.names, "")

    def ensure(self) -> None:
        """Raises ``DriverError`` where it does not run."""
        self._process()

    def publish(self, node: str, mac: str, hostname: str, addresses: tuple[str, ...]) -> None:
        """Writes the files, and tells it of names that are gone. Raises ``DriverError``."""
        if self._folders.publish(node, mac, hostname, addresses):
            send_signals([self._process()], signal.SIGHUP)

    def withdraw(self, node: str, mac: str) -> None:
        """Removes the files, and tells it, of the node's DHCP lease too where those are known. Raises
        ``DriverError``.
        """
        if self._folders.withdraw(node):
            send_signals([self._process()], signal.SIGHUP)
        if self._leases is not None:
            _release(self._leases, mac, self._network)

    def seen(self, mac: str) -> str:
        """Nothing: its log is the site's."""
        return ""

    def close(self) -> None:
        """Nothing is to be closed."""

    def _process(self) -> ProcessState:
        state = dnsmasq_of(self._pid_file)
        if state is None:
            raise SiteFaultError(f"dnsmasq does not run, as its pid_file {self._pid_file} says")
        return state


class OwnedDnsmasq:
    """A :class:`NameServer` of the driver's own. It outlives the daemon, which finds it again."""

    def __init__(self, settings: Owned, network: BootNetwork, directory: Path) -> None:
        self._settings = settings
        self._network = network
        self._root = directory.absolute()
        self._pid_file = self._root / "pid"
        self._log = self._root / "log"
        self._configuration = self._root / "dnsmasq.conf"
        lease_time = f"{settings.lease_time // SECOND}s"
        self._folders = Folders(self._root / "hosts.d", self._root / "names.d", lease_time)
        self._lock = threading.Lock()
        self._watched: ProcessState | None = None
        self._wake = os.eventfd(0)
        self._closed = False

    def ensure(self) -> None:
        """Starts it, or finds the one that runs; one with other settings is replaced."""
        with self._lock:
            if self._watched is not None and _is_alive(self._watched):
                return
            wanted = self._configured()
            running = self._running()
            if running is not None and _read(self._configuration) != wanted:
                logger.info("dnsmasq %d has other settings, it is replaced", running.pid)
                _end(running)
                running = None
            if running is None:
                running = self._start(wanted)
            self._watched = running
            threading.Thread(target=self._watch, args=(running,), name="leasekit-dnsmasq", daemon=True).start()

    def publish(self, node: str, mac: str, hostname: str, addresses: tuple[str, ...]) -> None:
        """Writes the files; it is told where a name is gone. Raises ``DriverError``."""
        self._make_folders()
        if self._folders.publish(node, mac, hostname, addresses):
            self._tell()

    def withdraw(self, node: str, mac: str) -> None:
        """Removes the files, and tells it, of the node's DHCP lease too. Raises ``DriverError``."""
        if self._folders.withdraw(node):
            self._tell()
        if self._running() is not None:
            _release(self._root / "leases", mac, self._network)

    def seen(self, mac: str) -> str:
        """What its log has last of a card."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - TAIL))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        for line in reversed(lines):
            if mac.lower() in line.lower() and "DHCP" in line:
                return one_line(line[line.index("DHCP") :], 160)
        return ""

    def close(self) -> None:
        """Leaves it running, and looks after it no more."""
        with self._lock:
            self._closed = True
            os.eventfd_write(self._wake, 1)

    def runs(self) -> bool:
        """Whether it does."""
        return self._running() is not None

    def stop(self) -> None:
        """Ends it."""
        self.close()
        running = self._running()
        if running is not None:
            _end(running)

    # The process

    def _running(self) -> ProcessState | None:
        return own_dnsmasq(self._pid_file, f"--conf-file={self._configuration}")

    def _start(self, configuration: str) -> ProcessState:
        self._make_folders()
        _write(self._root, self._configuration.name, configuration)
        if self._log.exists() and self._log.stat().st_size > LOG_MAX:
            self._log.unlink()
        start_dnsmasq([f"--conf-file={self._configuration}"])
        state = self._running()
        if state is None:
            raise SiteFaultError(f"dnsmasq ended at once: {self._last_words()}")
        logger.info("dnsmasq %d answers on %s", state.pid, self._network.interface)
        return state

    def _last_words(self) -> str:
        lines = _read(self._log).splitlines()
        return one_line(lines[-1], 200) if lines else "it said nothing"

    def _watch(self, state: ProcessState) -> None:
        """In a thread of its own: starts it again when it has ended, until the driver is closed."""
        pause = AGAIN_FIRST
        while self._ended(state):
            logger.warning("dnsmasq %d on %s has ended, it is started again", state.pid, self._network.interface)
            while True:
                with self._lock:
                    if self._closed:
                        return
                    try:
                        state = self._running() or self._start(self._configured())
                        self._watched = state
                        break
                    except DriverError as error:
                        logger.error("%s; again in %.0f s", error, pause)
                if select.select([self._wake], [], [], pause)[0]:
                    return
                pause = min(2 * pause, AGAIN_LONGEST)

    def _ended(self, state: ProcessState) -> bool:
        """Returns when the process has ended, or false when the driver is closed."""
        descriptor = open_process(state)
        if descriptor is None:
            return not self._closed
        try:
            return self._wake not in select.select([descriptor, self._wake], [], [])[0]
        finally:
            os.close(descriptor)

    def _tell(self) -> None:
        running = self._running()
        if running is not None:
            send_signals([running], signal.SIGHUP)

    # What it is told

    def _make_folders(self) -> None:
        try:
            for folder in filter(None, (self._folders.hosts, self._folders.names, self._root / "tftp")):
                folder.mkdir(parents=True, exist_ok=True)
            _write(self._root / "tftp", BOOT_SCRIPT, boot_script(self._network.url))
            for name in set(FIRMWARE.values()) if self._settings.firmware is not None else ():
                assert self._settings.firmware is not None
                source, target = self._settings.firmware / name, self._root / "tftp" / name
                if not target.exists() or target.stat().st_mtime_ns < source.stat().st_mtime_ns:
                    target.write_bytes(source.read_bytes())
        except OSError as error:
            raise SiteFaultError(f"{error.filename}: {error.strerror}", retry=False) from error

    def _configured(self) -> str:
        network, settings = self._network, self._settings
        interface, root = network.interface, self._root
        user, group = own_user()
        lines = [
            "no-hosts", "no-resolv", "no-poll", "no-ping", "bind-interfaces", "except-interface=lo",
            f"interface={interface}", f"user={user}", f"group={group}",
            f"pid-file={self._pid_file}", f"log-facility={self._log}",
            "log-dhcp", "quiet-ra", "dhcp-authoritative", "dhcp-ignore=tag:!known",
            # Names are the site's: no guest takes one by asking for it.
            "dhcp-ignore-names", f"dhcp-leasefile={root / 'leases'}",
            f"dhcp-range={network.networks()[0].network_address},static,{settings.lease_time // SECOND}s",
            f"dhcp-hostsdir={self._folders.hosts}", "enable-tftp", f"tftp-root={root / 'tftp'}",
            # Without these iPXE waits for what this server never sends.
            "dhcp-option-force=encap:175,176,1b",
            "dhcp-match=set:ipxe,175", f"dhcp-boot=tag:ipxe,{BOOT_SCRIPT}",
        ]  # fmt: skip
        if settings.firmware is None:
            lines.append(f"dhcp-boot=tag:!ipxe,{BOOT_SCRIPT}")
        else:
            for number, name in FIRMWARE.items():
                lines += [f"dhcp-match=set:arch{number},option:client-arch,{number}"]
                lines += [f"dhcp-boot=tag:!ipxe,tag:arch{number},{name}"]
        if len(network.subnets) > 1:
            prefix = network.networks()[1].network_address
            lines += ["enable-ra", f"dhcp-range={prefix},ra-only", f"ra-param={interface},4,0"]
        gateways = [address for address in network.gateways if ":" not in address]
        lines.append(f"dhcp-option=option:router,{','.join(gateways)}" if gateways else "dhcp-option=option:router")
        lines += ["port=53", f"hostsdir={self._folders.names}"] if settings.names else ["port=0"]
        lines += [f"server={address}" for address in settings.forward]
        if network.domain:
            lines += [f"domain={network.domain}", f"local=/{network.domain}/"]
        return "".join(f"{line}\n" for line in lines)


def boot_script(url: str) -> str:
    """What every node starts with: it asks the driver what it is to start, again and again while nobody answers."""
    return f"""#!ipxe
set tries:int32 0
:again
chain --autofree {url}/mac-${{mac:hexhyp}}.ipxe && exit ||
inc tries
iseq ${{tries}} 30 && exit ||
sleep 2
goto again
"""


def _release(path: Path, mac: str, network: BootNetwork) -> None:
    for lease in leases_of(path, mac):
        release(lease, network.address, network.interface)


def _is_alive(state: ProcessState) -> bool:
    now = process_state(state.pid)
    return now is not None and now.alive and now.start == state.start


def _end(state: ProcessState) -> None:
    descriptor = open_process(state)
    if descriptor is None:
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(descriptor, number)
            if select.select([descriptor], [], [], 5)[0]:
                return
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)
