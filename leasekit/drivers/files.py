"""Small files that are whole or not there, directories that go with all that is in them, and what may be executed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from leasekit.core.drivers import DriverError, SiteFaultError
from leasekit.core.settings import SettingsError, structure

T = TypeVar("T")

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


SEARCH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The path on which programs are looked for, unless the site's settings have another."""


def write_whole(path: Path, content: Any, *, durable: bool = True) -> None:
    """Writes ``content`` as JSON: the file holds all of it or what it held before, whenever this process is killed.
    It is for its owner alone.

    With ``durable`` that holds for a power failure too, and it may block for long. Raises ``DriverError`` naming
    the file.
    """
    beside = path.with_name(path.name + ".new")
    try:
        with os.fdopen(os.open(beside, _FLAGS, 0o600), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, sort_keys=True)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
        if not durable:
            return
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise SiteFaultError(f"can't write {path}: {error.strerror}") from error


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """With the file ``lock``, which nobody else has meanwhile, in this process or another. Blocks. Raises
    ``DriverError`` naming the file.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise SiteFaultError(f"can't write {lock}: {error.strerror}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_private(folder: Path) -> None:
    """Makes a folder, and what is missing above it, for their owner alone. Raises ``OSError``."""
    if not folder.parent.exists():
        make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def narrow(paths: Iterable[Path]) -> str:
    """Takes from others what they may do with files and folders that are there; what is behind a link stays as it is.
    Returns, for people, what was narrowed and what could not be, in one line; empty where there was nothing to do.
    """
    narrowed, kept = [], []
    for path in paths:
        try:
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                path.chmod(stat.S_IMODE(mode) & 0o700)
                narrowed.append(f"{path} (mode {stat.S_IMODE(mode):04o})")
        except FileNotFoundError:
            continue
        except OSError as error:
            kept.append(f"{path} ({error.strerror})")
    said = [f"others could use {_some(narrowed)}: now only the owner can"] if narrowed else []
    return "; ".join([*said, f"others may use {_some(kept)}, which can't be changed"] if kept else said)


def _some(named: Sequence[str]) -> str:
    return named[0] + (f" and {len(named) - 1} more" if len(named) > 1 else "")


def read_table(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or none where there is no file. Raises ``DriverError`` for anything else in it."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DriverError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"no JSON ({error})") from error
    if not isinstance(content, dict):
        raise damaged(path, f"a {type(content).__name__} where a JSON object is expected")
    return content


def read_as(cls: type[T], path: Path) -> T | None:
    """The object of an attrs class that a file holds as JSON, or none where there is no file. Raises ``DriverError``
    for anything else in it.
    """
    table = read_table(path)
    try:
        return None if table is None else structure(cls, table, path.stem)
    except SettingsError as error:
        raise damaged(path, f"other contents than it was given ({error.errors[0]})") from error


def damaged(path: Path, found: str) -> DriverError:
    """The error for a file of the driver's own that is not what the driver wrote."""
    text = f"{path}: found {found}; see to the processes that it may concern, then remove the file"
    return DriverError(text, retry=False)


def wipe(path: Path) -> None:
    """Removes a directory and all in it, whatever permissions were left on it; blocks. Raises ``DriverError``."""
    try:
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path, onerror=_open_up)
    except OSError as error:
        raise DriverError(f"can't remove {error.filename or path}: {error.strerror}") from error


def _open_up(function: Callable[..., Any], name: str, found: Any) -> None:
    """Tries once more, with permission to write in the directory concerned; what is gone by now is no error."""
    if isinstance(found[1], FileNotFoundError):
        return
    concerned = Path(name) if function in (os.scandir, os.open, os.listdir, os.lstat) else Path(name).parent
    concerned.chmod(stat.S_IRWXU)
    if concerned == Path(name):
        shutil.rmtree(concerned)
    else:
        function(name)


def find_executable(name: str, directory: Path, search: str) -> Path:
    """The file that a command's first word names: a path from ``directory``, or a name on the path ``search``.

    Raises ``ValueError`` that names the file and what is wrong with it.
    """
    if "/" not in name:
        found = shutil.which(name, path=search)
        if found is None:
            raise ValueError(f"found {name!r}, there is no such program on the path {search}")
        return Path(found)
    path = (directory / name).absolute()
    if not path.exists():
        raise ValueError(f"found {name!r}, there is no file {path}")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ValueError(f"found {name!r}, {path} is not executable (chmod +x)")
    return path
