"""Waiting in tests: for states that nothing reports, and how long at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

PATIENCE: Final = 60
"""Seconds after which a test fails that waits for something: far more than a busy machine needs."""


async def poll(true: Callable[[], object]) -> None:
    """Wait for a state that nothing reports."""
    with trio.fail_after(PATIENCE):
        while not true():
            await trio.sleep(0.001)
