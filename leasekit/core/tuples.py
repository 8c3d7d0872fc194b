"""Named tuples that are made without a call in Python, where each step of an actor makes some."""

from __future__ import annotations

from typing import Final

new_tuple: Final = tuple.__new__
"""Makes one from a tuple of all its fields."""
