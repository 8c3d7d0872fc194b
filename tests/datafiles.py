"""Where tests find the published traces: a failure on CI where they are missing, a stated skip elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leasekit.config.traces import data_dir


def data_file(name: str) -> Path:
    """The trace of that name in the data folder.

    Fails the test where ``CI`` is set and the trace is missing; skips it elsewhere, and says why.
    """
    folder = data_dir(config=Path(__file__))
    path = None if folder is None else folder / name
    if path is not None and path.is_file():
        return path
    reason = (
        f"trace {name} is missing: looked in {folder or 'no data folder'}; set LEASEKIT_DATA to the folder of traces"
    )
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(reason)
    pytest.skip(reason)
