"""Images and their checksums: a file is read through before it is first used, and again when it has changed."""

from __future__ import annotations

import os
from hashlib import file_digest
from pathlib import Path
from typing import BinaryIO

import trio

from leasekit.core.drivers import SiteFaultError
from leasekit.drivers.baremetal.settings import BootArtifact
from leasekit.drivers.names import one_line


class CheckedFiles:
    """Files that are what the site means by them."""

    def __init__(self) -> None:
        self._right: dict[Path, tuple[object, ...]] = {}
        self._reading = trio.Lock()

    async def check(self, image: str, artifact: BootArtifact) -> int:
        """The size of the file in bytes. Raises ``DriverError``, not worth a retry, if it is missing or another."""
        # One at a time: ten nodes that start at once read an image once.
        async with self._reading:
            return await trio.to_thread.run_sync(self._check, image, artifact, abandon_on_cancel=True)

    def _check(self, image: str, artifact: BootArtifact) -> int:
        name = one_line(str(artifact.file))
        try:
            with artifact.file.open("rb") as file:
                mark = _mark(file, artifact.sha256)
                if self._right.get(artifact.file) != mark:
                    found = file_digest(file, "sha256").hexdigest()
                    if found != artifact.sha256:
                        text = f"image {image}: {name} has the SHA-256 {found}, expected {artifact.sha256}"
                        raise SiteFaultError(text, retry=False)
                    self._right[artifact.file] = mark
                return os.fstat(file.fileno()).st_size
        except OSError as error:
            raise SiteFaultError(f"image {image}: can't read {name}: {error.strerror}", retry=False) from error


def _mark(file: BinaryIO, sha256: str) -> tuple[object, ...]:
    """What changes when the file is written to or replaced."""
    status = os.fstat(file.fileno())
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, sha256)
