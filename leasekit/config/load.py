"""Reading deploy files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from leasekit.config.deployment import Deployment
from leasekit.config.emulation import apply_changes
from leasekit.config.errors import ConfigError, ConfigErrors, Faults
from leasekit.config.identities import rotation_faults
from leasekit.config.reach import for_daemons, out_of_reach
from leasekit.config.resolve import make_deployment
from leasekit.config.sockets import FILE_MAX
from leasekit.core.settings import SettingsError

_PLACE: Final = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def load(path: Path, state: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Deployment:
    """The deployment that the file at ``path`` describes, with all its runs checked.

    ``state`` (else the environment's ``LEASEKIT_STATE``, else the file) says where keys, stores, sockets and logs
    are;
    nothing is made or opened there but existing key files. ``overrides`` replaces values at dotted keys, as a run's
    ``set`` does. Raises :class:`~.errors.ConfigErrors` with every fault that can be found.
    """
    document = read_document(path)
    deployment = _make(path, state, document, overrides or {})
    if deployment.emulation is not None:
        errors = []
        for run in deployment.emulation.runs:
            try:
                deployment.with_run(run)
            except ConfigErrors as error:
                errors += [ConfigError(e.file, f"run {run.name!r}: {e.key}", e.found, e.allowed) for e in error.errors]
        if errors:
            raise ConfigErrors(errors)
    return deployment


def check(path: Path, state: Path | None = None) -> tuple[list[ConfigError], list[str]]:
    """All that is wrong with the file at ``path``, with the keys of actors that changed theirs; and what is not wrong
    but odd, a line each: actors that must talk and can't. Both are empty if all is well.
    """
    try:
        deployment = load(path, state)
    except ConfigErrors as error:
        return error.errors, []
    return rotation_faults(deployment), out_of_reach(deployment) if for_daemons(deployment) else []


def read_document(path: Path) -> dict[str, Any]:
    """The file's tables as they are. Raises :class:`~.errors.ConfigErrors` if it can't be read or is not TOML."""
    faults = Faults(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX + 1)
    except FileNotFoundError:
        faults.add("", "no such file", "a deploy file in TOML")
    except OSError as error:
        faults.add("", f"a file that can't be read ({error.strerror})", "a deploy file in TOML")
    faults.finish()
    if len(data) > FILE_MAX:
        faults.add("", f"more than {FILE_MAX} bytes", "a deploy file of at most that many")
        faults.finish()
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        faults.add(f"line {line}, column {column}", f"the byte 0x{data[error.start]:02x}", "TOML, which is UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        faults.add(*_syntax(str(error), data))
    except RecursionError:
        faults.add("", "tables or lists nested too deep", "a deploy file in TOML")
    raise ConfigErrors(faults.errors)


def _syntax(text: str, data: bytes) -> tuple[str, str, str]:
    """Key, found and allowed of a syntax error: the place is what tomllib says in its text, the end where it names
    none.
    """
    match = _PLACE.fullmatch(text)
    line, column = (match[2], match[3]) if match else (None, None)
    if line is None:
        lines = data.split(b"\n")
        line, column = str(len(lines)), str(len(lines[-1]) + 1)
    return f"line {line}, column {column}", f"a syntax error ({match[1] if match else text})", "TOML"


def _make(path: Path, state: Path | None, document: Mapping[str, Any], changes: Mapping[str, Any]) -> Deployment:
    faults = Faults(str(path))
    try:
        changed = apply_changes(document, changes)
    except SettingsError as error:
        faults.add_settings("", error)
        raise ConfigErrors(faults.errors) from None

    def remake(further: Mapping[str, Any]) -> Deployment:
        return _make(path, state, changed, further)

    return make_deployment(path, state, changed, faults, remake)
