"""How many kills there are, and which: ``LEASEKIT_KILLS`` in all (20 if not set), ``LEASEKIT_SEED`` the first seed."""

from __future__ import annotations

import os

KILLS = int(os.environ.get("LEASEKIT_KILLS", "20"))
SEED = int(os.environ.get("LEASEKIT_SEED", "1"))
PLAIN = max(KILLS * 2 // 5, 1)
"""How many of them are of daemons whose connections are left alone."""
ROUND_MAX = 100


def chaos_rounds() -> list[tuple[int, int]]:
    """Seeds and numbers of kills of the rounds of chaos."""
    left = max(KILLS - PLAIN, 1)
    rounds = -(-left // ROUND_MAX)
    return [(SEED + number, left // rounds + (number < left % rounds)) for number in range(rounds)]
