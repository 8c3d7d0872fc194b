"""Which networks the tests of a process make."""

from __future__ import annotations

import os
from pathlib import Path

NUMBERS = 250


def free_number(prefix: str) -> int:
    """A number from 1 on, by the process's own, of which there is no interface of this name: a run that was killed
    leaves some behind.
    """
    there = {path.name for path in Path("/sys/class/net").iterdir()}
    numbers = ((os.getpid() + more) % NUMBERS + 1 for more in range(NUMBERS))
    return next(number for number in numbers if f"{prefix}{number}" not in there)
