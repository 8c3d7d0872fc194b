"""Volumes in a host's pool: everything about files goes through libvirt, for a host near by as for one far away.

All functions but the class block; they run in :class:`HostConnection`'s threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Final
from xml.etree import ElementTree

from leasekit.core.drivers import DriverError, SiteFaultError
from leasekit.drivers.libvirt.calls import check_stopped
from leasekit.drivers.libvirt.connection import HostConnection
from leasekit.drivers.libvirt.documents import volume_xml
from leasekit.drivers.names import FULL

PIECE: Final = 256 * 1024
"""How much goes into one message of libvirt's, in bytes."""


class Volumes:
    """The volumes of one host's pool."""

    def __init__(self, host: HostConnection) -> None:
        self.host = self._host = host
        self._libvirt = host.libvirt
        self.host_name = host.name

    async def folder(self) -> str:
        """Where the pool keeps its volumes on the host. Raises ``DriverError``."""

        def folder(connection: Any) -> str:
            found = ElementTree.fromstring(self._pool(connection).XMLDesc(0)).findtext("target/path")
            return found or ""

        return await self._host.look(f"can't look at pool {self._host.host.pool}", folder)

    async def free(self) -> int:
        """How many bytes the pool has free. Raises ``DriverError``."""
        return await self._host.look(
            f"can't look at pool {self._host.host.pool}", lambda connection: int(self._pool(connection).info()[3])
        )

    async def path(self, name: str) -> str | None:
        """Where a volume is on the host; none where there is no such volume. Raises ``DriverError``."""

        def path(connection: Any) -> str | None:
            volume = self._lookup(connection, name)
            return None if volume is None else str(volume.path())

        return await self._host.look(f"can't look for volume {name}", path)

    async def capacity(self, name: str) -> int:
        """A volume's size as those see it who open it, in bytes. Raises ``DriverError``."""
        return await self._host.look(f"volume {name}", lambda connection: int(self._get(connection, name).info()[1]))

    async def names(self) -> list[str]:
        """All volumes of the pool. Raises ``DriverError``."""
        return await self._host.look(
            f"can't list pool {self._host.host.pool}",
            lambda connection: [volume.name() for volume in self._pool(connection).listAllVolumes()],
        )

    async def create(self, name: str, size: int, *, format: str = "raw", backing: tuple[str, str] | None = None) -> str:
        """Makes a volume of ``size`` bytes and returns its path. Raises ``DriverError``."""
        xml = volume_xml(name, size, format=format, backing=backing)
        return await self._host.call(
            f"can't make volume {name}", lambda connection: str(self._pool(connection).createXML(xml, 0).path())
        )

    async def clone(self, name: str, new: str) -> str:
        """Makes a copy of a volume, which leans on no other, and returns its path. Raises ``DriverError``."""

        def clone(connection: Any) -> str:
            pool, volume = self._pool(connection), self._get(connection, name)
            format = ElementTree.fromstring(volume.XMLDesc(0)).find("target/format")
            kind = "raw" if format is None else format.get("type", "raw")
            return str(pool.createXMLFrom(volume_xml(new, volume.info()[1], format=kind), volume, 0).path())

        return await self._host.work(f"can't copy volume {name}", clone)

    async def leans(self, name: str) -> bool:
        """Whether a volume is laid over another. Raises ``DriverError``."""

        def leans(connection: Any) -> bool:
            described = ElementTree.fromstring(self._get(connection, name).XMLDesc(0))
            return bool(described.findtext("backingStore/path"))

        return await self._host.look(f"can't look at volume {name}", leans)

    async def write(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> str:
        """Makes a volume of what ``pieces()`` yields in the calling thread, and returns the SHA-256 of that.

        If that fails, or is cancelled, there is no volume. Raises ``DriverError``.
        """
        return await self._host.work(
            f"can't write volume {name}", lambda connection: self._write(connection, name, pieces)
        )

    async def read(self, name: str, offset: int = 0, length: int = 0) -> bytes:
        """What a volume holds from ``offset`` on, at most ``length`` bytes (0: to its end). Raises ``DriverError``."""
        return await self._host.work(
            f"can't read volume {name}", lambda connection: self._read(connection, name, offset, length)
        )

    async def remove(self, name: str, *, wipe: bool) -> None:
        """Removes a volume, if it is there, overwritten first with ``wipe``. Raises ``DriverError``."""
        what = f"can't remove volume {name}"
        if wipe:
            await self._host.work(what, lambda connection: self._remove(connection, name, wipe))
        else:
            await self._host.call(what, self._remove, name, wipe)

    async def remove_console(self, name: str, *, wipe: bool) -> None:
        """The same for what a console is written to, and for what virtlogd has put beside it: ``NAME.0``, ``NAME.1``
        and so on, older ones with higher numbers. Its domain must have ended.
        """
        await self._host.work(
            f"can't remove volume {name}", lambda connection: self._remove_console(connection, name, wipe)
        )

    # In threads

    def _pool(self, connection: Any) -> Any:
        return connection.storagePoolLookupByName(self._host.host.pool)

    def _get(self, connection: Any, name: str) -> Any:
        """A volume that must be there. A pool that was refreshed while virtlogd changed one file for another, which any
        upload to the pool has libvirt do, does not know it until it is refreshed again.
        """
        volume = self._lookup(connection, name)
        if volume is None:
            pool = self._pool(connection)
            self._quietly(pool.refresh, 0)  # a pool that is busy can't be
            volume = pool.storageVolLookupByName(name)
        return volume

    def _lookup(self, connection: Any, name: str) -> Any:
        try:
            return self._pool(connection).storageVolLookupByName(name)
        except self._libvirt.libvirtError as error:
            if error.get_error_code() == self._libvirt.VIR_ERR_NO_STORAGE_VOL:
                return None
            raise

    def _write(self, connection: Any, name: str, pieces: Callable[[], Iterable[bytes]]) -> str:
        volume = self._pool(connection).createXML(volume_xml(name, 0), 0)
        digest, sent = sha256(), 0
        try:
            stream = connection.newStream(0)
            volume.upload(stream, 0, 0, 0)
            try:
                for piece in pieces():
                    check_stopped()
                    digest.update(piece)
                    sent += len(piece)
                    _send(stream, piece)
                stream.finish()
                self._check_written(volume, name, sent)
            except BaseException:
                self._quietly(stream.abort)
                raise
        except BaseException:
            self._quietly(volume.delete, 0)
            raise
        return digest.hexdigest()

    def _check_written(self, volume: Any, name: str, sent: int) -> None:
        """A pool that gets full may end a stream without a word: libvirt 9.0 loses one error in ten."""
        held = volume.infoFlags(self._libvirt.VIR_STORAGE_VOL_GET_PHYSICAL)[2]
        if held != sent:
            text = f"can't write volume {name}: its pool took {held} of {sent} bytes, most likely because: {FULL}"
            raise SiteFaultError(f"host {self.host_name}: {text}")

    def _read(self, connection: Any, name: str, offset: int, length: int) -> bytes:
        return b"".join(self.pieces(connection, name, offset, length))

    def pieces(self, connection: Any, name: str, offset: int = 0, length: int = 0) -> Iterator[bytes]:
        """The same in pieces; blocks, and is for threads of :meth:`HostConnection.work`. Raises libvirt's errors."""
        volume = self._get(connection, name)
        stream = connection.newStream(0)
        volume.download(stream, offset, length, 0)
        try:
            while piece := stream.recv(PIECE):
                yield piece
                check_stopped()
            stream.finish()
        except BaseException:
            self._quietly(stream.abort)
            raise

    def _remove(self, connection: Any, name: str, wipe: bool) -> None:
        volume = self._lookup(connection, name)
        if volume is None:
            return
        libvirt = self._libvirt
        # Libvirt overwrites no more of a file than it knows of: it is to look how long the file is by now.
        if wipe and self._has_file(volume):
            try:
                volume.wipe(0)
            except libvirt.libvirtError as error:
                # Volumes that exist in name only can't be wiped, and need not be.
                if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT and self._has_file(volume):
                    raise
        self._delete(volume)

    def _remove_console(self, connection: Any, name: str, wipe: bool) -> None:
        for _look in range(2):  # virtlogd may have gone on for a moment after the domain's end
            older = 0
            while self._is_there(connection, f"{name}.{older}"):
                older += 1
            # The oldest first: who goes on with this later finds those that are left.
            for number in reversed(range(older)):
                self._remove(connection, f"{name}.{number}", wipe)
            if self._is_there(connection, name):
                self._remove(connection, name, wipe)

    def _is_there(self, connection: Any, name: str) -> bool:
        """Whether the pool's folder has a file of that name, whatever the pool knows; it knows of it afterwards."""
        libvirt, volume = self._libvirt, self._lookup(connection, name)
        if volume is None:
            pool = self._pool(connection)
            try:
                # Of all that can be asked only this looks for a file; what it makes where there is none goes below.
                volume = pool.createXML(volume_xml(name, 0), 0)
            except libvirt.libvirtError as error:
                # It is there; or the pool has come to know it in this moment.
                if error.get_error_code() == libvirt.VIR_ERR_OPERATION_INVALID:
                    pool.refresh(0)
                elif error.get_error_code() != libvirt.VIR_ERR_STORAGE_VOL_EXIST:
                    raise
                return self._lookup(connection, name) is not None
        elif self._has_file(volume):
            return True
        self._delete(volume)
        return False

    def _delete(self, volume: Any) -> None:
        """Removes a volume, also one without a file, which its pool knows until then."""
        try:
            volume.delete(0)
        except self._libvirt.libvirtError as error:
            if error.get_error_code() != self._libvirt.VIR_ERR_NO_STORAGE_VOL:
                raise

    def _has_file(self, volume: Any) -> bool:
        """Whether there is something of a volume beside its name, which its pool may have kept for longer."""
        try:
            volume.info()
        except self._libvirt.libvirtError as error:
            if error.get_error_code() != self._libvirt.VIR_ERR_NO_STORAGE_VOL:
                raise
            return False
        return True

    def _quietly(self, function: Callable[..., Any], *args: Any) -> None:
        """Takes back what failed anyway: why it failed is the reason to tell."""
        try:
            function(*args)
        except self._libvirt.libvirtError:
            return


def _send(stream: Any, piece: bytes) -> None:
    sent = 0
    while sent < len(piece):
        done = stream.send(piece[sent : sent + PIECE])
        if done < 0:
            raise DriverError("the host takes no more of a volume")
        sent += done
