"""An actor-based lease broker. As a library: :func:`emulate`, :func:`sweep` and :class:`World` (docs/library.md).

What is named here is imported when it is asked for, so that ``import leasekit`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasekit.core.errors import CommandError, LeasekitError
    from leasekit.library import LogEntry, Result, Rows, Swept, emulate, sweep
    from leasekit.library import SteppedWorld as World

_PLACES = {"CommandError": "core.errors:CommandError", "LeasekitError": "core.errors:LeasekitError"}
_PLACES |= {name: f"library:{name}" for name in ("LogEntry", "Result", "Rows", "Swept", "emulate", "sweep")}
_PLACES |= {"World": "library:SteppedWorld"}
__all__ = ["CommandError", "LeasekitError", "LogEntry", "Result", "Rows", "Swept", "World", "emulate", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'leasekit' has no attribute {name!r}")
    from importlib import import_module

    module, _, found = _PLACES[name].partition(":")
    return getattr(import_module(f"leasekit.{module}"), found)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
