"""Calling mappers: the one place where foreign code runs, and whatever it does becomes a :class:`TurnDone`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leasekit.core.steps import TurnDone


def is_inline(mapper: object) -> bool:
    """Whether the mapper promises to be quick: it is then called on the actor's own step, on views of what is live.

    Others may run in a thread while the actor goes on, and get views that hold still.
    """
    return getattr(mapper, "inline", False) is True


def run_turn(number: int, call: Callable[[], Any]) -> TurnDone:
    """Call a mapper. Never raises: a mapper's bug must not become the actor's."""
    try:
        return TurnDone(number, tuple(call()))
    except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises is reported, never obeyed
        return TurnDone(number, error=f"{type(error).__name__}: {error}")
