"""How things are said in messages."""

from __future__ import annotations


def counted(count: int, noun: str = "unit") -> str:
    """A number of things: ``1 unit``, ``2 units``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def with_article(noun: str) -> str:
    """``noun``, as in "a broker" or "an authority"."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"
