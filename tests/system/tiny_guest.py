"""A guest that boots in seconds without KVM: Debian's kernel, an initramfs of busybox, dropbear and the guest agent.

It reads its name, addresses and keys from ``/leasekit`` in its initramfs or from a NoCloud disk, as real images do.
What else it is to do, its command line says: ``tiny.hang`` (never gets ready), ``tiny.off`` (powers off at once).
There is a guest that only says a word, too.
"""

from __future__ import annotations

import re
import subprocess
from hashlib import sha256
from pathlib import Path

from leasekit.drivers.libvirt.cpio import CpioEntry, archive, directory, file, link
from leasekit.drivers.libvirt.place import WORD, boot_sector

MODULES = (
    "virtio_pci", "virtio_net", "virtio_blk", "virtio_console", "virtio_balloon", "virtio_rng", "isofs",
)  # fmt: skip
PROGRAMS = ("/usr/sbin/dropbear", "/usr/bin/dropbearconvert", "/usr/sbin/qemu-ga")
SIGNED = b"~Module signature appended~\n"
"""What ends a module that is signed: a signature, 12 bytes of what made it, and their length come before."""
MARKER = "tiny guest is up"
COMMAND_LINE = (
    "console=ttyS0 quiet loglevel=3 panic=-1 random.trust_cpu=on "
    "mitigations=off nokaslr tsc=reliable cryptomgr.notests init_on_alloc=0 no_timer_check noreplace-smp"
)
"""What a guest is not to do at its start is a third of it, where its instructions are translated. Nor is it to panic
because a busy host brings it no tick of its timer in time.
"""

INIT = f"""\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/sbin:/usr/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts /run /tmp /mnt /var/run /var/log /root/.ssh /etc/dropbear
mount -t devpts devpts /dev/pts
exec >/dev/console 2>&1
for module in $(cat /modules); do insmod "/lib/$module"; done
case " $(cat /proc/cmdline) " in *" tiny.hang "*) echo "tiny guest hangs"; sleep 100000;; esac
case " $(cat /proc/cmdline) " in *" tiny.off "*) echo "tiny guest goes"; poweroff -f;; esac
if [ ! -d /leasekit ]; then
    mount -t iso9660 -o ro "$(findfs LABEL=cidata)" /mnt
    mkdir -m 700 /leasekit
    cd /leasekit
    sed -n 's/.*"local-hostname": "\\(.*\\)".*/\\1/p' /mnt/meta-data >hostname
    sed -n '/"addresses"/,/]/s/^ *"\\([0-9a-f.:]*\\/[0-9]*\\)",*$/\\1/p' /mnt/network-config >addresses
    sed -n '/"ssh_authorized_keys"/,/]/s/^ *"\\(.* .*\\)",*$/\\1/p' /mnt/user-data >authorized_keys
    printf '%b' "$(sed -n 's/.*"ed25519_private": "\\(.*\\)",*$/\\1/p' /mnt/user-data)" >ssh_host_ed25519_key
    cd /
fi
hostname "$(cat /leasekit/hostname)"
ip link set lo up
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set eth0 up
while read -r address; do ip addr add "$address" dev eth0; done </leasekit/addresses
cp /leasekit/authorized_keys /root/.ssh/authorized_keys
chmod -R go= /root /leasekit
dropbearconvert openssh dropbear /leasekit/ssh_host_ed25519_key /etc/dropbear/key
dropbear -s -r /etc/dropbear/key
for port in /dev/vport*; do [ -c "$port" ] && qemu-ga -d -p "$port" -f /run/qemu-ga.pid -t /run; done
for cpu in /sys/devices/system/cpu/cpu*/online; do [ -f "$cpu" ] && echo 1 >"$cpu"; done
echo "{MARKER}"
while :; do sleep 1000; done
"""


class TinyGuest:
    """The files of the guest, made in ``folder``."""

    def __init__(self, folder: Path) -> None:
        kernel = newest_kernel()
        self.kernel = folder / "kernel"
        self.kernel.write_bytes(kernel.read_bytes())
        self.initrd = folder / "initrd"
        self.initrd.write_bytes(make_initramfs(kernel.name.removeprefix("vmlinuz-")))
        self.disk = folder / "disk.raw"
        self.disk.write_bytes(b"pristine".ljust(4 * 2**20, b"\0"))
        self.sector = folder / "sector.raw"
        self.sector.write_bytes(boot_sector().ljust(2**20, b"\0"))
        self.qcow2 = folder / "disk.qcow2"
        subprocess.run(
            ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", self.disk, self.qcow2], check=True, capture_output=True
        )

    def artifact(self, path: Path) -> dict[str, str]:
        """A file of this guest's as a deploy file names it."""
        return {"file": str(path), "sha256": sha256(path.read_bytes()).hexdigest()}

    def image(self, more: str = "", **changes: object) -> dict[str, object]:
        """An image for a driver's settings; ``more`` goes to the kernel's command line."""
        return {
            "kernel": self.artifact(self.kernel),
            "initrd": self.artifact(self.initrd),
            "command_line": f"{COMMAND_LINE} {more}".strip(),
            "seed": "initramfs",
            "ready": "ssh",
            "marker": MARKER,
            **changes,
        }

    def sector_image(self, **changes: object) -> dict[str, object]:
        """An image whose guests say a word and halt: they are up at once, and cost next to nothing."""
        disk = {"disk": self.artifact(self.sector), "format": "raw"}
        return {**disk, "ready": "console", "marker": WORD.decode(), **changes}


def newest_kernel() -> Path:
    """Debian's kernel for virtual machines."""
    found = sorted(Path("/boot").glob("vmlinuz-*-cloud-amd64"), key=lambda path: path.stat().st_mtime)
    assert found, "there is no /boot/vmlinuz-*-cloud-amd64"
    return found[-1]


def make_initramfs(release: str) -> bytes:
    """The initramfs, for the modules of the kernel ``release``."""
    entries: dict[str, CpioEntry] = {}

    def add(entry: CpioEntry) -> None:
        for parent in reversed(Path(entry.name).parents[:-1]):
            entries.setdefault(str(parent), directory(str(parent)))
        entries.setdefault(entry.name, entry)

    names = []
    for path in module_files(release, MODULES):
        add(file(f"lib/{path.name}", unsigned(path.read_bytes())))
        names.append(path.name)
    add(file("modules", "".join(f"{name}\n" for name in names).encode()))
    add(file("bin/busybox", Path("/bin/busybox").read_bytes(), 0o755))
    for program in PROGRAMS:
        add(file(program[1:], Path(program).read_bytes(), 0o755))
        for library in libraries(program):
            add(file(str(library)[1:], library.read_bytes(), 0o755))
    add(file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"))
    add(file("etc/group", b"root:x:0:\n"))
    add(link("bin/sh", "busybox"))
    # The guest agent sets the clock only where it finds this.
    add(link("sbin/hwclock", "../bin/busybox"))
    for folder in ("proc", "sys", "dev", "root"):
        add(directory(folder, 0o700 if folder == "root" else 0o755))
    add(file("init", INIT.encode(), 0o755))
    return archive(entries.values())


def module_files(release: str, wanted: tuple[str, ...]) -> list[Path]:
    """The files of modules and of what they need, in an order in which they can be loaded."""
    folder = Path("/lib/modules") / release
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[Path(path).stem.replace("-", "_")] = (path, rest.split())
    found: dict[Path, None] = {}

    def take(name: str) -> None:
        path, others = needs[name]
        for other in reversed(others):
            found.setdefault(folder / other)
        found.setdefault(folder / path)

    for name in wanted:
        if name in needs:  # the others are part of this kernel
            take(name)
    return list(found)


def unsigned(module: bytes) -> bytes:
    """A module without its signature, which takes a guest a fifteenth of its start to verify, and no kernel needs."""
    if not module.endswith(SIGNED):
        return module
    rest = module[: -len(SIGNED)]
    return rest[: -12 - int.from_bytes(rest[-4:], "big")]


def libraries(program: str) -> list[Path]:
    """The shared libraries of a program, with the loader."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]
