"""One Xen host as the driver sees it: what there is of units, and what is done to them. All is safe to do twice.

Its images are a cache in the control domain: one file for each checksum, sent once and checked when it has arrived.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import IO, Final

import trio

from leasekit.core.drivers import DriverError, SiteFaultError
from leasekit.drivers.examining import MEBI
from leasekit.drivers.libvirt.images import read_artifact, wrong_checksum
from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.libvirt.seed import HostKey, initramfs_seed, make_iso, nocloud_files
from leasekit.drivers.libvirt.settings import ImageArtifact, Size
from leasekit.drivers.xen import scripts
from leasekit.drivers.xen.document import Files, document
from leasekit.drivers.xen.listing import RECORD, ListedState, XenRecord, read_facts, read_names, read_record, read_table
from leasekit.drivers.xen.remote import ControlDomain
from leasekit.drivers.xen.settings import XenHost, XenSettings


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


CONFIG: Final = "domain.cfg"
SCHEDULERS: Final = {"credit": "sched-credit", "credit2": "sched-credit2"}
"""The commands of the schedulers that know caps and weights, by what `xl info` calls them."""
WEIGHT: Final = 256
"""What both give a domain that says nothing."""


class XenPlace:
    """One host."""

    def __init__(self, name: str, host: XenHost, settings: XenSettings) -> None:
        self.name = name
        self.host = host
        self.control = ControlDomain(name, host, settings)
        self._images = ImageStore(self.control)
        self._settings = settings
        self._scheduler: str | None = None

    def name_of(self, unit: str) -> str:
        """What a unit's domain and folder are called."""
        return f"{self._settings.prefix}{unit}"

    async def _on(self, what: str, script: str, unit: str, *words: str, given: bytes = b"", long: bool = False) -> str:
        """What a script says that is run for a unit: its first words are the host's folder and the unit's name, which
        ``what`` has in the place of ``{}``. Raises ``DriverError``.
        """
        name = self.name_of(unit)
        return await self.control.call(
            what.format(name), script, self.host.folder, name, *words, given=given, long=long
        )

    # What there is

    async def find(self, unit: str) -> ListedState:
        """What there is of a unit. Raises ``DriverError``, and
        :class:`~leasekit.drivers.xen.listing.DamagedRecordError` for a record that can't be read.
        """
        name = self.name_of(unit)
        said = await self._on("can't look for domain {}", scripts.READ, unit, self.host.xl)
        record, _, rest = said.partition("\n")
        saved, _, table = rest.partition("\n")
        where = f"host {self.name}: {self.host.folder}/units/{name}"
        return ListedState(
            record=read_record(record, where), row=read_table(table).get(name), saved=saved.strip() == "saved"
        )

    async def belongings(self) -> list[tuple[str, str, str]]:
        """What there is of units here: (unit, ``domain`` or ``folder``, its name). Raises ``DriverError``."""
        said = await self.control.call("can't list domains", scripts.LIST, self.host.folder, self.host.xl)
        folders, _, listed = said.partition("\n\n") if not said.startswith("\n") else ("", "", said)
        found = []
        for kind, names in (("domain", read_names(listed)), ("folder", folders.split("\n"))):
            for name in sorted(names):
                unit = name.removeprefix(self._settings.prefix).removesuffix("--incoming")
                if name.startswith(self._settings.prefix) and unit:
                    found.append((unit, kind, name))
        return found

    async def facts(self) -> dict[str, str]:
        """What `xl info` says of the host. Raises ``DriverError``."""
        return read_facts(await self.xl("can't ask for the host's facts", "info"))

    async def console(self, unit: str, most: int) -> bytes:
        """At most so many bytes of the end of what a unit's guest wrote to its console. Raises ``DriverError``."""
        name = self.name_of(unit)
        said = await self.control.call(
            f"can't read the console of {name}", scripts.TAIL, self.host.console, name, str(most)
        )
        return said.encode()

    # What is done

    async def xl(self, what: str, *words: str, long: bool = False) -> str:
        """What `xl` says. Raises ``DriverError``."""
        return await self.control.call(what, scripts.XL, self.host.xl, *words, long=long)

    async def write_record(self, record: XenRecord) -> None:
        """Writes whose a unit's folder is. Raises ``DriverError``."""
        await self._write(record.unit, RECORD, record.line())

    async def make(self, plan: UnitPlan, record: XenRecord, key: HostKey | None) -> None:
        """The folder of a unit with all its files. Raises ``DriverError``."""
        if plan.size.cap or plan.size.shares:
            await self._scheduling(plan.size)
        await self._on("can't make the folder of {}", scripts.MAKE, plan.unit)
        await self.write_record(record)
        await self._write(plan.unit, CONFIG, self._config(plan, await self._files(plan, key)))

    async def start(self, unit: str) -> None:
        """Starts a unit's domain. Raises ``DriverError``."""
        # `xl` starts nothing while it restores another domain's memory, and waits.
        await self._on("can't start domain {}", scripts.CREATE, unit, self.host.xl, long=True)

    async def save(self, unit: str) -> None:
        """Puts a domain's memory on disk and ends it. Raises ``DriverError``."""
        await self._on("can't save domain {}", scripts.SAVE, unit, self.name_of(unit), self.host.xl, long=True)

    async def restore(self, unit: str) -> None:
        """Has a domain go on from where it was saved. Raises ``DriverError``."""
        await self._on("can't restore domain {}", scripts.RESTORE, unit, self.host.xl, long=True)

    async def migrate(self, unit: str, host: str, login: str) -> None:
        """Has a running domain go on at another host, which ``login`` leads to from here. Raises ``DriverError``."""
        words = (self.name_of(unit), self.host.xl, login)
        await self._on(f"can't move domain {{}} to host {host}", scripts.MIGRATE, unit, *words, long=True)

    async def stop(self, unit: str) -> None:
        """Ends a domain at once, if it is there, and keeps nothing that could start it. Raises ``DriverError``."""
        await self._on("can't end domain {}", scripts.REMOVE, unit, self.host.xl, self.name_of(unit))

    async def forget(self, unit: str) -> None:
        """Throws away what was saved of a unit: its next start is a fresh one. Raises ``DriverError``."""
        await self._on("can't forget what was saved of {}", scripts.FORGET, unit)

    async def forget_logs(self, unit: str) -> None:
        """Removes what was logged here of a unit, which this host has no more. Raises ``DriverError``."""
        name = self.name_of(unit)
        await self.control.call(f"can't remove the logs of {name}", scripts.FORGET_LOGS, self.host.console, name)

    async def remove(self, unit: str) -> None:
        """Ends a domain and removes all files of the unit's, overwritten first. Raises ``DriverError``."""
        await self.stop(unit)
        words = ("yes" if self._settings.wipe else "no", self.host.console, self.name_of(unit))
        await self._on("can't remove the files of {}", scripts.WIPE, unit, *words, long=True)

    async def write_config(self, plan: UnitPlan) -> None:
        """Writes what the unit's next start begins from: its files are those that are there. Raises ``DriverError``."""
        await self._write(plan.unit, CONFIG, self._config(plan, self._paths(plan)))

    async def resize(self, plan: UnitPlan, was: int) -> None:
        """Gives a running domain its vCPUs, of which it has ``was``, memory, cap and weight. Raises ``DriverError``."""
        name = self.name_of(plan.unit)
        what = f"can't resize domain {name}"
        if was != plan.size.vcpus:
            await self.xl(what, "vcpu-set", name, str(plan.size.vcpus))
        await self.xl(what, "mem-set", name, f"{plan.size.memory_mb}m")
        await self.set_cpu(plan.unit, plan.size)
        await self.write_config(plan)
        # What the domain is made from again when its guest reboots.
        await self.xl(what, "config-update", name, self._path(plan.unit, CONFIG))

    async def set_cpu(self, unit: str, size: Size) -> None:
        """Sets cap (percent of one CPU for the whole domain) and weight of a running domain. Raises ``DriverError``."""
        command = await self._scheduling(size)
        if not command:
            return
        name = self.name_of(unit)
        words = [command, "-d", name, "-c", str(size.cap), "-w", str(size.shares or WEIGHT)]
        await self.xl(f"can't set the CPU share of domain {name}", *words)

    async def _scheduling(self, size: Size) -> str:
        """The command that sets caps and weights, or none where none can be set nor is asked for. Raises
        ``DriverError``.
        """
        if self._scheduler is None:
            self._scheduler = (await self.facts()).get("xen_scheduler", "")
        if self._scheduler not in SCHEDULERS and (size.cap or size.shares):
            text = f"host {self.name}: found scheduler {self._scheduler[:40]!a}, expected one with caps"
            raise DriverError(f"{text}: {' or '.join(SCHEDULERS)}", retry=False)
        return SCHEDULERS.get(self._scheduler, "")

    # Files

    def _path(self, unit: str, file: str) -> str:
        return f"{self.host.folder}/units/{self.name_of(unit)}/{file}"

    async def _write(self, unit: str, file: str, content: bytes) -> None:
        await self._on(f"can't write {file} of {{}}", scripts.WRITE, unit, file, str(len(content)), given=content)

    def _config(self, plan: UnitPlan, files: Files) -> bytes:
        network = self._settings.network
        bridge = network.bridge if network is not None else ""
        type_ = self._settings.images[plan.image_name].type
        return document(self.name_of(plan.unit), plan, type_, files, bridge).encode()

    def _paths(self, plan: UnitPlan) -> Files:
        """Where everything of a unit's is, once it is there."""
        image = self._settings.images[plan.image_name]
        kernel = f"{self.host.folder}/images/{image.kernel.sha256}" if image.kernel is not None else ""
        initrd = f"{self.host.folder}/images/{image.initrd.sha256}" if image.initrd is not None else ""
        return Files(
            disk=self._path(plan.unit, "disk") if image.disk is not None else "",
            disk_format="qcow2" if image.clone == "overlay" else "raw",
            seed=self._path(plan.unit, "seed") if image.seed == "nocloud" else "",
            kernel=kernel,
            initrd=self._path(plan.unit, "initrd") if image.seed == "initramfs" else initrd,
        )

    async def _files(self, plan: UnitPlan, key: HostKey | None) -> Files:
        image, network = self._settings.images[plan.image_name], self._settings.network
        for artifact in image.artifacts().values():
            await self._images.bring(plan.image_name, artifact)
        if image.disk is not None:
            script = scripts.OVERLAY_DISK if image.clone == "overlay" else scripts.COPY_DISK
            words = (image.disk.sha256, image.format, str(image.disk_mb * MEBI))
            await self._on("can't make the disk of {}", script, plan.unit, *words, long=True)
        if image.seed == "initramfs" and image.initrd is not None and key is not None:
            seed = initramfs_seed(plan, key, network)
            given = ("initrd", str(len(seed)), image.initrd.sha256)
            await self._on("can't write the initrd of {}", scripts.WRITE_INITRD, plan.unit, *given, given=seed)
        if image.seed == "nocloud" and key is not None:
            await self._write(plan.unit, "seed", await make_iso(nocloud_files(plan, key, network)))
        return self._paths(plan)
