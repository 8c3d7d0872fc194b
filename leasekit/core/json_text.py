"""JSON that people write or pass on: read strictly where Python's own reader lets things pass."""

from __future__ import annotations

import json
from typing import Any


class JsonError(ValueError):
    """What keeps a text from being JSON, in words that say where it is."""


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises :class:`JsonError` for a text that is no JSON, and for what others take in silence: a key that an object has
    twice (of which the last would win), ``NaN`` and ``Infinity``.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except JsonError:
        raise
    except json.JSONDecodeError as error:
        raise JsonError(_no_json(error.doc, error.pos)) from None
    except UnicodeDecodeError:
        raise JsonError("found bytes that are not UTF-8") from None
    except RecursionError:
        raise JsonError("found lists in lists without end") from None
    except ValueError:
        raise JsonError("found a number with thousands of digits") from None


def _no_json(text: str, at: int) -> str:
    """Where a text stops being JSON, and what is there. Python's own reader says it in other words, and of a comma that
    closes a list or an object at another place, from one version to the next.
    """
    before = text[:at].rstrip(" \t\r\n")
    if text[at : at + 1] in ("]", "}") and before.endswith(","):
        at = len(before) - 1
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return f"line {line}, column {column}: found no JSON ({repr(text[at : at + 20]) if text[at:] else 'the text ends'})"


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise JsonError(f"an object has the same key twice: {key!r:.80}")
        found[key] = value
    return found


def _no_constant(text: str) -> float:
    raise JsonError(f"{text} is no number")
