"""The image cache: each host's pool keeps one volume for each checksum, uploaded once and checked on the way.

A volume counts as whole only with a second one beside it, which is made when the checksum has been found right: a
daemon that is killed in the middle leaves a volume that the next one throws away.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Generator, Iterable
from hashlib import sha256
from typing import Final

import attrs
import trio

from leasekit.core.drivers import DriverError, SiteFaultError
from leasekit.drivers.libvirt.settings import ImageArtifact
from leasekit.drivers.libvirt.volumes import PIECE, Volumes
from leasekit.drivers.names import one_line

QCOW2_MAGIC: Final = b"QFI\xfb"
QCOW2_HEAD: Final = 32
FETCH_TIMEOUT: Final = 60
"""Seconds without a byte after which a download is given up."""


@attrs.frozen(kw_only=True)
class CachedImage:
    """An image on a host: where it is, and the size of the disk that a guest sees, in bytes."""

    path: str
    size: int


class ImageCache:
    """The images in one host's pool, under names that begin with ``prefix``."""

    def __init__(self, host_name: str, volumes: Volumes, prefix: str) -> None:
        self._host_name = host_name
        self._volumes = volumes
        self._prefix = prefix
        self._locks: dict[str, trio.Lock] = {}

    async def path(self, image: str, artifact: ImageArtifact) -> str:
        """Where the file is on the host; brings it there first where it is not. Raises ``DriverError``."""
        if artifact.volume:
            found = await self._volumes.path(artifact.volume)
            if found is None:
                text = f"image {image}: host {self._host_name} has no volume {artifact.volume!r} in its pool"
                raise SiteFaultError(text, retry=False)
            return found
        name, mark = self._names(artifact)
        # Twenty units that start at once bring the image once.
        async with self._locks.setdefault(name, trio.Lock()):
            found = await self._volumes.path(name)
            if found is not None and await self._volumes.path(mark) is not None:
                return found
            # An operator may have removed the image alone: its mark must not stand for what is uploaded now.
            await self._volumes.remove(mark, wipe=False)
            await self._volumes.remove(name, wipe=False)
            await self._bring(image, artifact, name)
            await self._volumes.create(mark, 0)
            found = await self._volumes.path(name)
            assert found is not None
            return found

    async def has(self, artifact: ImageArtifact) -> bool:
        """Whether a file or URL has been brought to the host. Raises ``DriverError``."""
        name, mark = self._names(artifact)
        return await self._volumes.path(name) is not None and await self._volumes.path(mark) is not None

    def _names(self, artifact: ImageArtifact) -> tuple[str, str]:
        return f"{self._prefix}{artifact.sha256}.image", f"{self._prefix}{artifact.sha256}.whole"

    async def disk(self, image: str, artifact: ImageArtifact, format: str) -> CachedImage:
        """The same for a disk, whose ``format`` must be what the site says. Raises ``DriverError``."""
        path = await self.path(image, artifact)
        name = artifact.volume or f"{self._prefix}{artifact.sha256}.image"
        size = await self._volumes.capacity(name)
        if format == "qcow2" and not artifact.volume:
            size = qcow2_size(image, await self._volumes.read(name, 0, QCOW2_HEAD))
        return CachedImage(path=path, size=size)

    async def _bring(self, image: str, artifact: ImageArtifact, name: str) -> None:
        found = await self._volumes.write(name, lambda: read_artifact(image, artifact))
        if found != artifact.sha256:
            await self._volumes.remove(name, wipe=False)
            raise wrong_checksum(image, artifact, found)


def wrong_checksum(image: str, artifact: ImageArtifact, found: str) -> DriverError:
    """The error for a file that is not the one that the site means."""
    text = f"image {image}: {artifact.source} has the SHA-256 {found}, expected {artifact.sha256}"
    return SiteFaultError(text, retry=False)


def read_artifact(image: str, artifact: ImageArtifact) -> Generator[bytes, None, None]:
    """The bytes of a file or URL, in pieces; blocks. Raises ``DriverError`` naming it."""
    try:
        if artifact.file is not None:
            with artifact.file.open("rb") as file:
                yield from iter(lambda: file.read(PIECE), b"")
            return
        with urllib.request.urlopen(artifact.url, timeout=FETCH_TIMEOUT) as answer:
            yield from iter(lambda: answer.read(PIECE), b"")
    except urllib.error.HTTPError as error:
        raise _unreadable(image, artifact, f"HTTP status {error.code}", retry=error.code >= 500) from error
    except OSError as error:
        reason = error.strerror or one_line(str(error))
        raise _unreadable(image, artifact, reason, retry=artifact.file is None) from error


def _unreadable(image: str, artifact: ImageArtifact, reason: str, *, retry: bool) -> DriverError:
    return SiteFaultError(f"image {image}: can't read {artifact.source}: {reason}", retry=retry)


def checked_with(image: str, artifact: ImageArtifact, more: bytes) -> Iterable[bytes]:
    """The bytes of an artifact, then ``more``; blocks. Raises ``DriverError`` at its end if the checksum is wrong."""
    digest = sha256()
    length = 0
    for piece in read_artifact(image, artifact):
        digest.update(piece)
        length += len(piece)
        yield piece
    if digest.hexdigest() != artifact.sha256:
        raise wrong_checksum(image, artifact, digest.hexdigest())
    yield bytes(-length % 4) + more


def qcow2_size(image: str, head: bytes) -> int:
    """The size of the disk in a qcow2 file (docs/interop/qcow2.txt in QEMU: offset 24), which must stand alone."""
    if not head.startswith(QCOW2_MAGIC) or len(head) < QCOW2_HEAD:
        raise SiteFaultError(f"image {image}: found no qcow2 file, expected one (format)", retry=False)
    if int.from_bytes(head[8:16], "big"):
        text = f"image {image}: found a qcow2 file that is laid over another, expected one that stands alone"
        raise SiteFaultError(text, retry=False)
    return int.from_bytes(head[24:32], "big")
