"""What a guest is told at its first start: its name, addresses, login keys, and the host key of its ssh server."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import attrs
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from leasekit.core.drivers import SiteFaultError
from leasekit.drivers.examining import ISO_MAKERS
from leasekit.drivers.libvirt.cpio import archive, directory, file
from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.libvirt.settings import NetworkSettings
from leasekit.drivers.names import one_line


@attrs.frozen(kw_only=True)
class HostKey:
    """An Ed25519 key pair in OpenSSH's formats. The private part goes into the seed, and is forgotten here."""

    private: str = attrs.field(repr=False)
    public: str


def make_host_key() -> HostKey:
    """A new host key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return HostKey(private=private.decode(), public=public.decode())


def nocloud_files(plan: UnitPlan, key: HostKey, network: NetworkSettings | None) -> dict[str, str]:
    """The files of cloud-init's data source NoCloud. They are JSON, which is YAML as well."""
    user: dict[str, Any] = {
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": key.private, "ed25519_public": key.public},
        "disable_root": plan.image.user != "root",
        "final_message": plan.image.marker,
        # A host that can't resolve its own name makes sudo and others wait for DNS.
        "manage_etc_hosts": "localhost",
    }
    if plan.image.user == "root":
        user["users"] = [{"name": "root", "lock_passwd": True, "ssh_authorized_keys": list(plan.keys)}]
    else:
        login = {"name": plan.image.user, "shell": "/bin/bash", "sudo": "ALL=(ALL) NOPASSWD:ALL", "lock_passwd": True}
        user["users"] = [{**login, "ssh_authorized_keys": list(plan.keys)}]
    meta = {"instance-id": plan.instance, "local-hostname": plan.hostname}
    files = {"user-data": f"#cloud-config\n{_dump(user)}", "meta-data": _dump(meta)}
    if network is not None and plan.addresses:
        files["network-config"] = _dump(_network_config(plan, network))
    return files


def _dump(content: Any) -> str:
    return json.dumps(content, indent=1) + "\n"


def _network_config(plan: UnitPlan, network: NetworkSettings) -> dict[str, Any]:
    card = {
        "match": {"macaddress": plan.mac},
        "addresses": list(plan.addresses),
        "routes": [{"to": "::/0" if ":" in via else "0.0.0.0/0", "via": via} for via in network.gateways],
        "nameservers": {"addresses": list(network.nameservers)},
    }
    return {"version": 2, "ethernets": {"lease0": {key: value for key, value in card.items() if value}}}


def initramfs_seed(plan: UnitPlan, key: HostKey, network: NetworkSettings | None) -> bytes:
    """An archive to stand behind an initramfs: a file under ``/leasekit`` for each thing, a line for each value."""
    lines = {
        "hostname": [plan.hostname],
        "instance": [plan.instance],
        "mac": [plan.mac],
        "user": [plan.image.user],
        "addresses": plan.addresses,
        "gateways": network.gateways if network is not None else (),
        "nameservers": network.nameservers if network is not None else (),
        "authorized_keys": plan.keys,
        "ready_marker": [plan.image.marker],
        "ssh_host_ed25519_key.pub": [key.public],
        "ssh_host_ed25519_key": key.private.splitlines(),
    }
    files = [
        file(f"leasekit/{name}", "".join(f"{line}\n" for line in several).encode(), 0o600)
        for name, several in lines.items()
    ]
    return archive([directory("leasekit", 0o700), *files])


async def make_iso(files: dict[str, str]) -> bytes:
    """A CD-ROM image with the label that cloud-init looks for. Raises ``DriverError``."""
    program = next(filter(None, map(shutil.which, ISO_MAKERS)), None)
    if program is None:
        raise SiteFaultError(
            f"no program makes CD-ROM images here, install one of: {', '.join(ISO_MAKERS)}", retry=False
        )
    # Private to this user, for it holds a private key while it is there.
    with tempfile.TemporaryDirectory(prefix="leasekit-seed-") as folder:
        try:
            for name, text in files.items():
                (Path(folder) / name).write_text(text)
            command = [program, "-quiet", "-V", "cidata", "-J", "-r", "-o", f"{folder}/seed.iso"]
            done = await trio.run_process(
                [*command, *(f"{folder}/{name}" for name in files)], capture_stderr=True, check=False
            )
            if done.returncode:
                said = one_line(done.stderr.decode("utf-8", "replace"))
                raise SiteFaultError(f"{Path(program).name} ended with exit status {done.returncode}: {said}")
            return (Path(folder) / "seed.iso").read_bytes()
        except OSError as error:
            raise SiteFaultError(f"can't make a seed in {folder}: {error.strerror}") from error
