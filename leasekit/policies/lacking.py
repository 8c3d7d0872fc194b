"""What hosts have too little of, in words for whoever is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def lacking(needs: Mapping[str, float], free: Sequence[Sequence[float]]) -> str:
    """Each resource that some hosts have too little of: on how many of them, and what these have at most. ``free`` has
    a row for each host, in the order of ``needs``; empty if nothing is missing.
    """
    found: list[str] = []
    for at, (name, need) in enumerate(needs.items()):
        short = [row[at] for row in free if row[at] < need]
        if short:
            told = f"{need:.8g} needed, at most {max(short):.8g} free"
            found.append(f"too little {name} on {len(short)} of {len(free)} hosts ({told})")
    return ", ".join(found)
