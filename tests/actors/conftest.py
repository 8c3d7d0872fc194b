"""The option that writes the scripts anew: ``pytest tests/actors --rewrite-scripts``; read the diff before it is
committed.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--rewrite-scripts", action="store_true", help="write tests/actors/scripts anew")
