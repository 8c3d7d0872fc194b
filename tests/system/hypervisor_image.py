"""What makes a hypervisor of a node that starts over the network: libvirtd and QEMU in an initramfs, and an ssh server.

All of it is this machine's own, as Debian has it: the programs, the libraries that they name, libvirt's and QEMU's
modules. The node's card is on a bridge, where its guests are as well.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

from system.tiny_guest import libraries, module_files, newest_kernel

from leasekit.drivers.libvirt.cpio import CpioEntry, archive, directory, file, link

BRIDGE = "br0"
POOL = "/var/lib/libvirt/images"
MODULES = ("virtio_pci", "virtio_net", "virtio_blk", "virtio_rng", "bridge", "tun")
PROGRAMS = (
    "/usr/sbin/libvirtd", "/usr/sbin/virtlogd", "/usr/bin/virt-ssh-helper", "/usr/lib/libvirt/libvirt_iohelper",
    "/usr/bin/qemu-system-x86_64", "/usr/bin/qemu-img", "/usr/sbin/dropbear", "/usr/bin/dropbearconvert",
)  # fmt: skip
LIBVIRT = Path("/usr/lib/x86_64-linux-gnu/libvirt")
PLUGINS = (
    LIBVIRT / "connection-driver/libvirt_driver_qemu.so",
    LIBVIRT / "connection-driver/libvirt_driver_storage.so",
    LIBVIRT / "storage-backend/libvirt_storage_backend_fs.so",
    LIBVIRT / "storage-file/libvirt_storage_file_fs.so",
    Path("/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so"),
)
DATA = ("/usr/share/libvirt/cpu_map", "/usr/share/seabios", "/usr/share/qemu", "/usr/lib/ipxe/qemu")
WANTED = frozenset({
    "bios-256k.bin", "kvmvapic.bin", "linuxboot_dma.bin", "vgabios-stdvga.bin", "vgabios-cirrus.bin", "efi-virtio.rom",
})  # fmt: skip
"""Of the firmware; the processors that libvirt knows are all there."""

INIT = f"""\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/sbin:/usr/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/net /run /tmp /var/log/libvirt /var/cache/libvirt /root/.ssh /etc/dropbear {POOL}
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=0711 pool {POOL}
exec >/dev/console 2>&1
for module in $(cat /modules); do insmod "/lib/$module"; done
[ -c /dev/net/tun ] || mknod /dev/net/tun c 10 200
hostname "$(cat /leasekit/hostname)"
ip link set lo up
ip link add {BRIDGE} type bridge
echo 0 >/proc/sys/net/ipv6/conf/{BRIDGE}/accept_dad
ip link set {BRIDGE} address "$(cat /sys/class/net/eth0/address)"
ip link set eth0 master {BRIDGE}
ip link set eth0 up
ip link set {BRIDGE} up
while read -r address; do ip addr add "$address" dev {BRIDGE}; done </leasekit/addresses
cp /leasekit/authorized_keys /root/.ssh/authorized_keys
chmod -R go= /root /leasekit
printf 'host_uuid = "%s"\\n' "$(cat /proc/sys/kernel/random/uuid)" >>/etc/libvirt/libvirtd.conf
export HOME=/root
virtlogd -d
libvirtd -d
until [ -S /run/libvirt/libvirt-sock ]; do sleep 0.2; done
dropbearconvert openssh dropbear /leasekit/ssh_host_ed25519_key /etc/dropbear/key
dropbear -s -r /etc/dropbear/key
echo "hypervisor is up"
while :; do sleep 1000; done
"""

FILES = {
    # libvirt looks for the user and group that Debian runs QEMU as before it reads who is to run it here.
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nlibvirt-qemu:x:64055:64055::/:/bin/false\n",
    "etc/group": "root:x:0:\nlibvirt-qemu:x:64055:\nkvm:x:64056:\n",
    "etc/libvirt/libvirtd.conf": 'auth_unix_rw = "none"\nunix_sock_group = "root"\n',
    "etc/libvirt/qemu.conf": (
        'user = "root"\ngroup = "root"\nsecurity_driver = "none"\nnamespaces = []\ncgroup_controllers = []\n'
    ),
}


def make_hypervisor(path: Path) -> Path:
    """The initramfs, for the newest kernel."""
    entries: dict[str, CpioEntry] = {}
    for entry in _contents(newest_kernel().name.removeprefix("vmlinuz-")):
        for parent in reversed(Path(entry.name).parents[:-1]):
            entries.setdefault(str(parent), directory(str(parent)))
        entries.setdefault(entry.name, entry)
    path.write_bytes(gzip.compress(archive(entries.values()), 1))
    return path


def _contents(release: str) -> Iterator[CpioEntry]:
    names = []
    for module in module_files(release, MODULES):
        yield file(f"lib/{module.name}", module.read_bytes())
        names.append(module.name)
    yield file("modules", "".join(f"{name}\n" for name in names).encode())
    yield file("bin/busybox", Path("/bin/busybox").read_bytes(), 0o755)
    yield link("bin/sh", "busybox")
    yield link("var/run", "/run")
    for program in (*PROGRAMS, *map(str, PLUGINS)):
        yield file(program[1:], Path(program).read_bytes(), 0o755)
        for library in libraries(program):
            yield file(str(library)[1:], library.read_bytes(), 0o755)
    for folder in map(Path, DATA):
        for each in folder.rglob("*"):
            if each.is_file() and (each.name in WANTED or each.suffix == ".xml"):
                yield file(str(each)[1:], each.read_bytes())
    for name, text in FILES.items():
        yield file(name, text.encode())
    for name in ("proc", "sys", "dev", "root"):
        yield directory(name, 0o700 if name == "root" else 0o755)
    yield file("init", INIT.encode(), 0o755)
