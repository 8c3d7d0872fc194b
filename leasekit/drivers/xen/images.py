"""The image cache in a control domain: one file for each checksum, sent once and checked when it has arrived."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import IO

import trio

from leasekit.core.drivers import SiteFaultError
from leasekit.drivers.libvirt.images import read_artifact, wrong_checksum
from leasekit.drivers.libvirt.settings import ImageArtifact
from leasekit.drivers.xen import scripts
from leasekit.drivers.xen.remote import ControlDomain


class ImageStore:
    """The images of one host."""

    def __init__(self, control: ControlDomain) -> None:
        self._control = control
        self._locks: dict[str, trio.Lock] = {}

    async def bring(self, image: str, artifact: ImageArtifact) -> None:
        """Has the file of an artifact at the host, whole. Raises ``DriverError``."""
        folder, name = self._control.host.folder, artifact.sha256
        # Twenty units that start at once bring the image once.
        async with self._locks.setdefault(name, trio.Lock()):
            what = f"can't look for image {image}"
            if await self._control.call(what, scripts.HAS_IMAGE, folder, name):
                return
            with await trio.to_thread.run_sync(_opened, image, artifact) as file:
                what = f"can't write image {image}"
                found = await self._control.send(what, scripts.PUT_IMAGE, folder, name, file=file)
        if found.strip():
            raise wrong_checksum(image, artifact, found.strip()[:64])


def _opened(image: str, artifact: ImageArtifact) -> IO[bytes]:
    """A file with what is to be sent, from its beginning."""
    if artifact.file is not None:
        try:
            return artifact.file.open("rb")
        except OSError as error:
            text = f"image {image}: can't read {artifact.source}: {error.strerror}"
            raise SiteFaultError(text, retry=False) from error
    with ExitStack() as closing:
        fetched = closing.enter_context(tempfile.TemporaryFile())
        for piece in read_artifact(image, artifact):
            fetched.write(piece)
        fetched.seek(0)
        closing.pop_all()
        return fetched
