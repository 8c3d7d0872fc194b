"""What `leasekit site doctor` finds on a host without what nodes need."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from test_baremetal_settings import table

from leasekit.core.drivers import DriverError, Finding
from leasekit.drivers import examining
from leasekit.drivers.baremetal import environment
from leasekit.drivers.baremetal.settings import MODULES, Environment
from leasekit.drivers.registry import examine


async def found(**changes: Any) -> dict[str, Finding]:
    return {finding.what: finding for finding in await examine("baremetal", table(**changes), "driver")}


def network(**changes: Any) -> dict[str, Any]:
    """Of this machine itself."""
    own = {"interface": "lo", "address": "127.0.0.1", "subnets": ["127.0.0.0/24"]}
    return {**own, **changes}


async def test_the_address_that_nodes_start_from():
    """An address that this machine does not have is missing, and how it gets it is said."""
    here = await found(network=network())
    assert here["address 127.0.0.1 of the boot network"].verdict == "ok"
    there = await found(network=network(address="192.0.2.1", subnets=["192.0.2.0/24"]))
    finding = there["address 192.0.2.1 of the boot network"]
    assert (finding.verdict, finding.found) == ("missing", "this machine does not have it")
    assert finding.advice.startswith("ip addr add 192.0.2.1/24 dev lo")


async def test_what_makes_seeds(monkeypatch: pytest.MonkeyPatch):
    """A program for CD-ROM images is needed where an image is told by one, and nowhere else."""
    monkeypatch.setattr(examining, "ISO_MAKERS", ("no-such-program",))
    finding = (await found())["program for CD-ROM images"]
    assert (finding.verdict, finding.advice) == ("missing", "apt-get install genisoimage")
    images = {"one": {"kind": "disk", "seed": "none", "disk": {"file": "image", "sha256": "0" * 64}}}
    assert "program for CD-ROM images" not in await found(images=images)


KERNEL = "kernel of the imaging environment"


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Kernels of a version, with modules beside them and built in; the last that is made is the newest file."""
    monkeypatch.setattr(environment, "KERNELS", tmp_path / "boot")
    monkeypatch.setattr(environment, "MODULES", tmp_path / "modules")
    (tmp_path / "boot").mkdir()

    def make(version: str, modules: Iterable[str], built_in: Iterable[str] = ()) -> Path:
        folder = tmp_path / "modules" / version
        folder.mkdir(parents=True)
        (folder / "modules.dep").write_text("".join(f"kernel/{name}.ko.xz: kernel/crc16.ko.xz\n" for name in modules))
        (folder / "modules.builtin").write_text("".join(f"kernel/{name}.ko\n" for name in built_in))
        kernel = tmp_path / "boot" / f"vmlinuz-{version}"
        kernel.touch()
        return kernel

    return make


async def test_the_kernel_with_the_drivers_is_chosen(kernels: Any):
    """Of the kernels that are installed it is the one that has most of the modules, compressed or built in, whichever
    is the newest; among equals the one with the highest version.
    """
    kernels("6.1.0-9-amd64", MODULES)
    full = kernels("6.1.0-10-amd64", MODULES[2:], ["virtio-pci", "virtio_net"])
    kernels("6.1.0-11-cloud-amd64", ["virtio_net"], ["virtio_pci"])
    assert environment.find_kernel(Environment()) == full
    assert (await found())[KERNEL] == Finding(KERNEL, "ok", f"{full} has all usual network cards and disks")


async def test_a_kernel_without_the_nodes_drivers(kernels: Any):
    """A module that nodes need and no kernel has is missing, by name for each kernel, and no environment is made of
    these; of usual ones it is only told, for it is not known whether nodes need them.
    """
    cloud = kernels("6.1.0-11-cloud-amd64", ["virtio_net", "nvme"], ["virtio_pci"])
    other = kernels("6.1.0-10-cloud-amd64", ["virtio_net"], ["virtio_pci"])
    finding = (await found())[KERNEL]
    assert finding.verdict == "doubtful" and finding.found.startswith(f"{cloud} lacks virtio_blk, virtio_scsi, e1000,")
    assert "environment.modules" in finding.advice
    needs = {"modules": ["virtio-net", "nvme", "tg3"]}
    finding = (await found(environment=needs))[KERNEL]
    assert finding.verdict == "missing" and "linux-image-amd64" in finding.advice
    assert finding.found.endswith(f"environment.modules: {cloud} lacks tg3; {other} lacks nvme, tg3")
    with pytest.raises(DriverError, match=r"cloud-amd64 lacks tg3; "):
        environment.make_environment(Environment(modules=("virtio_net", "nvme", "tg3")), Path("/nowhere"))
    has = {"modules": ["virtio_net", "nvme"]}
    assert (await found(environment=has))[KERNEL].found == f"{cloud} has virtio_net, nvme"
    assert (await found(environment={**has, "kernel": str(other)}))[KERNEL].verdict == "missing"


async def test_a_kernel_that_nothing_is_known_of(kernels: Any, tmp_path: Path):
    """A kernel of the site's own, without modules beside it, may have all built in; one that is not there has not."""
    own = tmp_path / "vmlinuz-own"
    own.touch()
    assert (await found(environment={"kernel": str(own)}))[KERNEL].verdict == "doubtful"
    own.unlink()
    assert (await found(environment={"kernel": str(own)}))[KERNEL].found == f"there is no {own}"
    assert (await found())[KERNEL].found.startswith("the imaging environment needs a kernel: none in ")


async def test_firmware(tmp_path: Path):
    """Each file that cards without iPXE get is looked for."""
    (tmp_path / "ipxe.efi").touch()
    told = await found(network=network(dnsmasq={"kind": "owned", "firmware": str(tmp_path)}))
    assert told["firmware ipxe.efi"].verdict == "ok"
    assert told["firmware undionly.kpxe"].found == f"can't read {tmp_path}/undionly.kpxe"


async def test_ports_that_others_have(monkeypatch: pytest.MonkeyPatch):
    """A port for nodes, or for DHCP on the boot network's card, that another process has is found, though that process
    never answers.
    """
    monkeypatch.setattr("leasekit.drivers.baremetal.examining.SERVED_WITHIN", 0.1)
    with socket.socket() as http, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dhcp:
        http.bind(("127.0.0.1", 0))
        http.listen()
        port = http.getsockname()[1]
        told = await found(network=network(port=port))
        assert told["port for nodes"].found == "127.0.0.1: Address already in use"
        assert told["port for nodes"].advice == f"find who has it: ss -ltnp sport = :{port}"
        if os.geteuid() == 0:
            assert told["DHCP on lo"].verdict == "ok"
            dhcp.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
            dhcp.bind(("0.0.0.0", 67))
            assert (await found(network=network()))["DHCP on lo"].found == "0.0.0.0: Address already in use"


async def test_the_folder_of_the_driver(tmp_path: Path):
    """It need not be there, if it can be made."""
    assert (await found(directory=str(tmp_path / "a/b")))["directory"].verdict == "ok"
    (tmp_path / "file").touch()
    finding = (await found(directory=str(tmp_path / "file/metal")))["directory"]
    assert (finding.verdict, finding.found) == ("missing", f"{tmp_path}/file is no folder")


async def test_a_dnsmasq_of_the_site(tmp_path: Path):
    """Its folders are looked for, and that the process is a dnsmasq."""
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    (tmp_path / "hosts").mkdir()
    paths = {key: str(tmp_path / key) for key in ("hosts", "names", "leases")}
    dnsmasq = {"kind": "external", "pid_file": str(tmp_path / "pid"), **paths}
    told = await found(network=network(dnsmasq=dnsmasq))
    assert told["dnsmasq"].verdict == "missing"
    assert told["dnsmasq"].found.startswith(f"{tmp_path}/pid names the process {os.getpid()}, which is ")
    assert told["dnsmasq's hosts"].verdict == "ok"
    assert told["dnsmasq's names"].found == f"{tmp_path}/names is no folder"
    assert told["dnsmasq's leases"].found == f"can't read {tmp_path}/leases"
    (tmp_path / "pid").unlink()
    told = await found(network=network(dnsmasq=dnsmasq))
    assert told["dnsmasq"].found == f"it does not run, as {tmp_path}/pid says"
