"""What a request's filter sees of the units that are offered to it, and which of them it takes.

Answers are kept: a request that waits is looked at in every turn, and reading its filter takes milliseconds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

from leasekit.core.filters import FilterError, parse_filter
from leasekit.core.properties import Properties

KEPT_MAX: Final = 16_384
"""How many filters' answers are kept: more than one peer may have requests waiting (``open_requests``)."""

Seen: TypeAlias = frozenset[tuple[str, str]]
"""What a filter sees of a class of units at a site."""


def seen(site: str, type_: str, attributes: Properties) -> Seen:
    """What a filter sees of units of a type with these attributes."""
    return frozenset({**attributes, "site": site, "type": type_}.items())


@lru_cache(maxsize=KEPT_MAX)
def takes(text: str, one: Seen) -> bool:
    """Whether a filter takes it. Raises ``FilterError`` for a text that is none."""
    return parse_filter(text)(dict(one))


@lru_cache(maxsize=KEPT_MAX)
def ask(text: str, offered: frozenset[Seen]) -> tuple[str, frozenset[Seen]]:
    """What is wrong with a filter, and which of all that is offered it takes."""
    try:
        found = parse_filter(text)
        if offered:
            found.check(name for one in offered for name, _ in one)
    except FilterError as error:
        return f"properties.{error}", frozenset()
    return "", frozenset(one for one in offered if takes(text, one))


def misses(text: str, one: Seen) -> str:
    """Why a filter does not take it."""
    return parse_filter(text).misses(dict(one))
