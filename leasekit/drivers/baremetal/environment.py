"""Putting the imaging environment together: a kernel of this machine's, busybox, sfdisk and the driver's own script."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from leasekit.core.drivers import SiteFaultError
from leasekit.drivers.baremetal.agent import AGENT, INIT
from leasekit.drivers.baremetal.settings import Environment
from leasekit.drivers.libvirt.cpio import CpioEntry, archive, directory, file, link
from leasekit.drivers.names import one_line

KERNELS: Final = Path("/boot")
MODULES: Final = Path("/lib/modules")
KERNEL: Final = "kernel"
INITRD: Final = "initrd"

_PREFIX: Final = "vmlinuz-"
_LIBRARY: Final = re.compile(r"(/\S+) \(0x")


def make_environment(settings: Environment, folder: Path) -> None:
    """Makes the files ``kernel`` and ``initrd`` in ``folder``, unless they are there and nothing has changed; blocks.

    Raises ``DriverError`` that says what is missing on this machine, and which package brings it.
    """
    kernel = find_kernel(settings)
    busybox, sfdisk = _program("busybox", "busybox-static"), _program("sfdisk", "fdisk")
    try:
        sources = [kernel, busybox, sfdisk]
        told = [f"{path} {path.stat().st_mtime_ns} {path.stat().st_size}" for path in sources]
        mark = sha256("\n".join([*told, *settings.loaded, INIT, AGENT]).encode()).hexdigest()
        made = folder / "made"
        if made.is_file() and made.read_text() == mark:
            return
        made.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        content = _initramfs(kernel, busybox, sfdisk, settings.loaded)
        for name, data in ((KERNEL, kernel.read_bytes()), (INITRD, content)):
            beside = folder / f"{name}.new"
            beside.write_bytes(data)
            beside.replace(folder / name)
        made.write_text(mark)
    except OSError as error:
        where = error.filename or folder
        text = f"the imaging environment can't be made: {where}: {error.strerror}"
        raise SiteFaultError(text, retry=False) from error


def find_kernel(settings: Environment) -> Path:
    """The kernel that is named, or of those installed the one that lacks the fewest modules; of several the one with
    the highest version. Raises ``DriverError`` where none has all that nodes need, with what each lacks.
    """
    kernels = [settings.kernel] if settings.kernel is not None else installed_kernels()
    if not kernels:
        text = f"the imaging environment needs a kernel: none in {KERNELS} has modules (install linux-image-amd64)"
        raise SiteFaultError(text, retry=False)
    lacking = {kernel: lacks(kernel, settings.loaded) or () for kernel in kernels}
    found = min(kernels, key=lambda kernel: len(lacking[kernel]))
    if settings.modules and lacking[found]:
        told = "; ".join(f"{kernel} lacks {', '.join(names)}" for kernel, names in lacking.items())
        text = f"the imaging environment needs a kernel with all of environment.modules: {told}"
        raise SiteFaultError(text, retry=False)
    return found


def installed_kernels() -> list[Path]:
    """The kernels of this machine that have modules, highest version first."""
    found = [path for path in KERNELS.glob(f"{_PREFIX}*") if (MODULES / _release(path) / "modules.dep").is_file()]
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", _release(path))], reverse=True)


def lacks(kernel: Path, modules: Iterable[str]) -> list[str] | None:
    """Which of ``modules`` a kernel neither has built in nor beside it; None where nothing is beside it that says so.
    Raises ``DriverError``.
    """
    folder = MODULES / _release(kernel)
    there: set[str] = set()
    try:
        for name in ("modules.dep", "modules.builtin"):
            lines = (folder / name).read_text("utf-8").splitlines()
            there |= {_module(Path(line.partition(":")[0]).name.partition(".ko")[0]) for line in lines}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SiteFaultError(f"can't read {error.filename}: {error.strerror}", retry=False) from error
    return [name for name in modules if _module(name) not in there]


def _module(name: str) -> str:
    """To the kernel dashes and underscores in the names of modules are one."""
    return name.replace("-", "_")


def _release(kernel: Path) -> str:
    return kernel.name.removeprefix(_PREFIX)


def _program(name: str, package: str) -> Path:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        text = f"the imaging environment needs the program {name} (install the package {package})"
        raise SiteFaultError(text, retry=False)
    return Path(found)


def _initramfs(kernel: Path, busybox: Path, sfdisk: Path, modules: tuple[str, ...]) -> bytes:
    entries = {name: directory(name) for name in ("bin", "dev", "lib", "lib/modules", "usr", "usr/sbin")}
    loaded = []
    for path in _module_files(_release(kernel), modules):
        entries.setdefault(f"lib/modules/{path.name}", file(f"lib/modules/{path.name}", path.read_bytes()))
        loaded.append(path.name)
    programs = [(busybox, "bin/busybox"), (sfdisk, "usr/sbin/sfdisk")]
    libraries = {library for program, _ in programs for library in _libraries(program)}
    for path, name in [*programs, *((library, str(library)[1:]) for library in sorted(libraries))]:
        for parent in reversed(Path(name).parents[:-1]):
            entries.setdefault(str(parent), directory(str(parent)))
        entries[name] = file(name, path.read_bytes(), 0o755)
    entries["modules"] = file("modules", "".join(f"{name}\n" for name in loaded).encode())
    entries["bin/sh"] = link("bin/sh", "busybox")
    entries["init"] = CpioEntry("init", 0o100755, INIT.encode())
    entries["agent"] = CpioEntry("agent", 0o100755, AGENT.encode())
    return archive(entries.values())


def _module_files(release: str, names: tuple[str, ...]) -> Iterator[Path]:
    """What has to be loaded, in that order; modules that the kernel has built in, or not at all, are left out."""
    found: dict[Path, None] = {}
    modprobe = _program("modprobe", "kmod")
    for name in names:
        command = [str(modprobe), "--set-version", release, "--ignore-install", "--show-depends", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            words = line.split()
            if words[:1] == ["insmod"] and len(words) > 1:
                found.setdefault(Path(words[1]))
    return iter(found)


def _libraries(program: Path) -> list[Path]:
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if done.returncode and "not a dynamic executable" not in done.stdout + done.stderr:
        raise SiteFaultError(f"ldd {program}: {one_line(done.stderr, 200)}", retry=False)
    return [Path(path) for path in _LIBRARY.findall(done.stdout)]
