"""What `leasekit site doctor` finds on a host without what nodes need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_baremetal_settings import table

from leasekit.core.drivers import Finding
from leasekit.drivers.baremetal import examining
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


async def test_firmware(tmp_path: Path):
    """Each file that cards without iPXE get is looked for."""
    (tmp_path / "ipxe.efi").touch()
    told = await found(network=network(dnsmasq={"kind": "owned", "firmware": str(tmp_path)}))
    assert told["firmware ipxe.efi"].verdict == "ok"
    assert told["firmware undionly.kpxe"].found == f"can't read {tmp_path}/undionly.kpxe"


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
