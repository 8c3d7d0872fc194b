"""What docs/tutorial.md says of a whole job log: `make soak` runs it, since the actors take minutes for that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from datafiles import data_file
from docs.test_tutorial import PAGE, commands, complete, folder, json_of

__all__ = ["folder"]


def test_the_real_log(folder: Path) -> None:
    """On the log of KTH's SP2, both come to what the page says."""
    log = data_file("kth-sp2/KTH-SP2-1996-2.1-cln.swf.gz")
    (folder / "kth-sp2").symlink_to(log.parent.resolve())
    complete(folder)
    *_, line = commands("compare")
    runs = {run["mapper"]: run["mean_bounded_slowdown"] for run in json_of(line, folder)["runs"]}
    found = re.search(r"Mean bounded slowdown: ([\d,]+) without overtaking, (\d+) with `Easy`", PAGE)
    assert found is not None
    assert runs["fcfs:backfill=false"] == pytest.approx(float(found[1].replace(",", "")), rel=1e-3)
    assert runs["easy.py:Easy"] == pytest.approx(float(found[2]), abs=0.5)
