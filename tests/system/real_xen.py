"""A real Xen on this machine: hypervisor and control domain of Debian under QEMU, with guests that boot in seconds.

The control domain's file system is made once, by mmdebstrap, and kept in ``$XDG_CACHE_HOME/leasekit`` (``~/.cache``);
each run writes to a copy of its own that goes with it. A bridge of this machine leads to the control domain and its
guests.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
from system.libvirt_host import bridge
from system.networks import free_number
from system.packages import require, require_root
from system.tiny_guest import INIT, MARKER, libraries

from leasekit.drivers.libvirt.cpio import CpioEntry, archive, directory, file, link

PACKAGES = (
    "qemu-system-x86", "qemu-utils", "seabios", "ipxe-qemu", "mmdebstrap", "busybox-static", "dropbear-bin",
    "openssh-client", "iproute2", "e2fsprogs", "kmod", "genisoimage",
)  # fmt: skip
"""What this machine needs."""
INSIDE = (
    "linux-image-amd64", "xen-hypervisor-4.17-amd64", "xen-utils-4.17", "qemu-system-xen", "qemu-utils",
    "openssh-server", "iproute2", "kmod", "mount",
)  # fmt: skip
"""What the control domain has; the kernel for virtual machines can't be one."""
LEFT_OUT = ("doc", "man", "locale", "info")
DISK_MB = 6144
MEMORY_MB, CONTROL_MB = 2560, 768
BOOTED_WITHIN = 300.0
FOLDER, CONSOLES = "/var/lib/leasekit/xen", "/var/log/xen/console"
COMMAND_LINE = "console=hvc0 quiet loglevel=3 panic=-1"

NET = free_number("lx")
V4, V6 = f"10.214.{NET}", f"fd00:214:{NET:x}:"

EARLY = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in $(cat /modules); do insmod "/lib/$module"; done
mount -t ext4 -o noatime /dev/vda /system
cp -a /given /system/
cp /control-domain /system/control-domain
umount /proc /sys
mount --move /dev /system/dev
exec switch_root /system /control-domain
"""
"""The first program of the control domain, from its initramfs."""

INIT_CONTROL = """\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
mount -t proc proc /proc; mount -t sysfs sys /sys; mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts; mount -t tmpfs run /run; mount -t tmpfs shm /dev/shm
# As udev has them; without /dev/stdin Xen's hotplug scripts try for their lock until they are killed.
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin; ln -s /proc/self/fd/1 /dev/stdout; ln -s /proc/self/fd/2 /dev/stderr
for module in xen-evtchn xen-gntdev xen-gntalloc xen-privcmd xenfs xen-blkback xen-netback loop bridge tun; do
    modprobe "$module"
done
mount -t xenfs xenfs /proc/xen
mkdir -p /run/xen /run/lock /run/sshd /var/log/xen/console /var/lib/xen /var/run/xen /root/.ssh
hostname control
ip link set lo up
ip link add br0 type bridge
ip link set eth0 master br0 up
ip addr add "$(cat /given/address)" dev br0
ip link set br0 up
cp /given/authorized_keys /root/.ssh/authorized_keys
rm -f /etc/ssh/ssh_host_*
cp /given/ssh_host_ed25519_key /etc/ssh/ssh_host_ed25519_key
# It can log in to itself, as hosts that hand over guests log in to each other.
ssh-keygen -q -t ed25519 -N "" -f /root/.ssh/id_ed25519
cat /root/.ssh/id_ed25519.pub >>/root/.ssh/authorized_keys
chmod -R go= /root/.ssh /etc/ssh/ssh_host_ed25519_key
echo "127.0.0.1 $(ssh-keygen -y -f /etc/ssh/ssh_host_ed25519_key)" >/root/.ssh/known_hosts
bin=/usr/lib/xen-4.17/bin
"$bin/xenstored" --pid-file /run/xen/xenstored.pid
"$bin/xen-init-dom0"
"$bin/xenconsoled" --log=guest --log-dir=/var/log/xen/console
for qemu in /usr/libexec/xen-qemu-system-i386 "$bin/qemu-system-i386"; do
    [ -x "$qemu" ] && "$qemu" -xen-domid 0 -xen-attach -name dom0 -nographic -M xenpv -daemonize -monitor /dev/null \\
        -serial null -parallel null -nodefaults -no-user-config -pidfile /run/xen/qemu-dom0.pid && break
done
/usr/sbin/sshd
echo "control domain is up"
while :; do sleep 1000; done
"""


@attrs.frozen
class Parts:
    """What is kept between runs: a folder with ``disk``, ``xen``, ``kernel`` and ``modules``."""

    folder: Path

    @property
    def release(self) -> str:
        """The kernel's."""
        return next((self.folder / "lib/modules").iterdir()).name

    def modules(self, wanted: Iterable[str]) -> list[Path]:
        """The files of modules and of what they need, in an order in which they can be loaded."""
        found: dict[Path, None] = {}
        for name in wanted:
            command = ["modprobe", "-S", self.release, "-d", str(self.folder), "--show-depends", name]
            for line in _run(*command).splitlines():
                if line.startswith("insmod "):
                    found.setdefault(Path(line.split()[1]))
        return list(found)


def parts() -> Parts:
    """What is kept, made if it is not there: that takes minutes, and a mirror of Debian's."""
    require_root()
    require(PACKAGES)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leasekit"
    cache.mkdir(parents=True, exist_ok=True)
    key = sha256(repr((INSIDE, LEFT_OUT, DISK_MB)).encode()).hexdigest()[:12]
    folder = cache / f"xen-{key}"
    with (cache / f"xen-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            beside = Path(tempfile.mkdtemp(prefix=".xen-", dir=cache))
            try:
                _make(beside)
                beside.rename(folder)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
    return Parts(folder)


def _make(folder: Path) -> None:
    tree = folder / "tree"
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    _run("mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(INSIDE)}", *left_out, "bookworm", str(tree))
    (kernel,) = (tree / "boot").glob("vmlinuz-*")
    shutil.copy(kernel, folder / "kernel")
    (xen,) = (tree / "boot").glob("xen-*.gz")
    (folder / "xen").write_bytes(gzip.decompress(xen.read_bytes()))
    shutil.copytree(tree / "lib/modules", folder / "lib/modules", symlinks=True)
    disk = folder / "disk"
    _run("truncate", "-s", f"{DISK_MB}M", str(disk))
    _run("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", str(tree), str(disk))
    shutil.rmtree(tree)


def _initramfs(modules: list[Path], more: Iterable[CpioEntry]) -> bytes:
    entries = [
        *map(directory, ("bin", "lib", "proc", "sys", "dev", "root", "system")),
        file("bin/busybox", Path("/bin/busybox").read_bytes(), 0o755),
        link("bin/sh", "busybox"),
        *(file(f"lib/{path.name}", path.read_bytes()) for path in modules),
        file("modules", "".join(f"{path.name}\n" for path in modules).encode()),
        *more,
    ]
    return archive(entries)


def guest_initramfs(made: Parts) -> bytes:
    """A guest of busybox and dropbear that reads who it is from ``/leasekit`` or from a NoCloud disk."""
    more: dict[str, CpioEntry] = {}
    for program in ("/usr/sbin/dropbear", "/usr/bin/dropbearconvert"):
        for path in (Path(program), *libraries(program)):
            more[str(path)[1:]] = file(str(path)[1:], path.read_bytes(), 0o755)
    folders = {str(parent): directory(str(parent)) for name in more for parent in Path(name).parents[:-1]}
    etc = [file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"), file("etc/group", b"root:x:0:\n")]
    init = [directory("etc"), *etc, file("init", INIT.encode(), 0o755)]
    kept = [folders[name] for name in sorted(folders) if name != "lib"]
    return _initramfs(made.modules(("xen-netfront", "xen-blkfront", "isofs")), [*kept, *more.values(), *init])


@attrs.define
class RealXen:
    """The running machine, and what a driver needs to know of it."""

    folder: Path
    parts: Parts
    bridge: str
    seconds: dict[str, float] = attrs.Factory(dict)
    address: str = f"{V4}.2"
    process: subprocess.Popen[bytes] | None = None

    @property
    def identity(self) -> Path:
        """The private key that logs in to the control domain, and to guests."""
        return self.folder / "id"

    @property
    def public(self) -> str:
        return (self.folder / "id.pub").read_text()

    @property
    def host_key(self) -> str:
        return " ".join((self.folder / "host.pub").read_text().split()[:2])

    def start(self) -> None:
        """Boots it, and waits for its ssh server."""
        began = time.monotonic()
        given = {
            "address": f"{self.address}/24\n",
            "authorized_keys": self.public,
            "ssh_host_ed25519_key": (self.folder / "host").read_text(),
        }
        more = [
            directory("given", 0o700),
            *(file(f"given/{name}", text.encode(), 0o600) for name, text in given.items()),
            file("control-domain", INIT_CONTROL.encode(), 0o755),
            file("init", EARLY.encode(), 0o755),
        ]
        modules = self.parts.modules(("virtio_pci", "virtio_blk", "virtio_net", "ext4"))
        (self.folder / "initrd").write_bytes(_initramfs(modules, more))
        disk = self.folder / "disk.qcow2"
        backing = ["-F", "raw", "-b", str(self.parts.folder / "disk")]
        _run("qemu-img", "create", "-q", "-f", "qcow2", *backing, str(disk))
        tap = f"{self.bridge}t"
        _run("ip", "tuntap", "add", "dev", tap, "mode", "tap")
        _run("ip", "link", "set", tap, "master", self.bridge, "up")
        command = [
            # With nested page tables Xen can log what guests write to, without which none moves while it runs.
            "qemu-system-x86_64", "-accel", "tcg", "-cpu", "qemu64,+npt", "-smp", "2", "-m", str(MEMORY_MB),
            "-nodefaults", "-display", "none", "-no-reboot",
            "-serial", f"file:{self.folder}/console", "-kernel", str(self.parts.folder / "xen"),
            "-append",
            f"dom0_mem={CONTROL_MB}M,max:{CONTROL_MB}M dom0_max_vcpus=1 com1=115200,8n1 console=com1 sched=credit2",
            "-initrd", f"{self.parts.folder}/kernel console=hvc0 loglevel=4,{self.folder}/initrd",
            "-drive", f"file={disk},format=qcow2,if=virtio,cache=unsafe",
            "-netdev", f"tap,id=n,ifname={tap},script=no,downscript=no", "-device", "virtio-net-pci,netdev=n",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(self.folder / "qemu.err").open("wb")
        )
        until = began + BOOTED_WITHIN
        while self._answer() != "up\n":
            assert self.process.poll() is None, (self.folder / "qemu.err").read_text()
            assert time.monotonic() < until, f"the control domain did not come up: {self.console()[-2000:]}"
            time.sleep(0.2)
        self.seconds["control domain"] = time.monotonic() - began

    def stop(self) -> None:
        """Ends it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        _run("ip", "link", "del", f"{self.bridge}t")

    def console(self) -> str:
        """What the hypervisor and the control domain wrote."""
        return (self.folder / "console").read_text(errors="replace")

    def run(self, command: str) -> str:
        """What a command in the control domain says, for the test's own looks."""
        done = self.ssh(self.address, self.host_key, command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def inside(self, properties: dict[str, str], command: str) -> str:
        """What a command in a guest says, logged in with the host key that the unit's properties tell."""
        done = self.ssh(properties["host"], properties["host_key"], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def send(self, command: str, content: bytes) -> None:
        """Runs a command in the control domain with ``content`` as its standard input."""
        done = self.ssh(self.address, self.host_key, command, content)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def _answer(self) -> str:
        return self.ssh(self.address, self.host_key, "echo up").stdout

    def ssh(self, address: str, host_key: str, command: str, given: bytes = b"") -> subprocess.CompletedProcess[str]:
        """A command at ``address``, however it ends."""
        words = self.login(address, host_key)
        done = subprocess.run([*words, command], input=given, capture_output=True, timeout=180, check=False)
        out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def login(self, address: str, host_key: str) -> list[str]:
        """What logs in to ``address``, as words before a command."""
        known = self.folder / f"known-{address}"
        known.write_text(f"it {host_key}\n")
        options = ["StrictHostKeyChecking=yes", f"UserKnownHostsFile={known}", "HostKeyAlias=it", "BatchMode=yes"]
        options += ["IdentitiesOnly=yes", "IdentityAgent=none", "ConnectTimeout=20"]
        words = [word for option in options for word in ("-o", option)]
        return ["ssh", "-F", "/dev/null", "-i", str(self.identity), *words, f"root@{address}"]

    def host(self, **changes: Any) -> dict[str, Any]:
        """Its table in a driver's settings."""
        given = {"address": self.address, "identity": str(self.identity), "host_key": self.host_key}
        return {**given, "folder": FOLDER, "console": CONSOLES, **changes}

    def artifact(self, name: str, content: bytes) -> dict[str, str]:
        """A file of that content, as a deploy file names it."""
        path = self.folder / name
        if not path.exists():
            path.write_bytes(content)
        return {"file": str(path), "sha256": sha256(content).hexdigest()}

    def image(self, more: str = "", **changes: Any) -> dict[str, Any]:
        """A guest for a driver's settings; ``more`` goes to the kernel's command line."""
        return {
            "kernel": self.artifact("guest-kernel", (self.parts.folder / "kernel").read_bytes()),
            "initrd": self.artifact("guest-initrd", guest_initramfs(self.parts)),
            "command_line": f"{COMMAND_LINE} {more}".strip(),
            "seed": "initramfs",
            "ready": "ssh",
            "marker": MARKER,
            **changes,
        }


@contextmanager
def real_xen() -> Iterator[RealXen]:
    """A Xen of the test's own."""
    began = time.monotonic()
    made = parts()
    seconds = {"image": time.monotonic() - began}
    with (
        tempfile.TemporaryDirectory(prefix="leasekit-xen-test-") as name,
        bridge(f"lx{NET}", f"{V4}.1/24", f"{V6}:1/64") as net,
    ):
        folder = Path(name)
        for key in ("id", "host"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
        xen = RealXen(folder, made, net, seconds)
        try:
            xen.start()
            yield xen
        finally:
            xen.stop()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
