"""The digests of what actors do: the same in every process, and another one as soon as an actor does something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import behaviour
import pytest

from leasekit.actors.kernel import Kernel

NAMES = ["create_join_close", "3"]


def test_digests_are_the_same_in_every_process() -> None:
    """Whatever the order of its sets and dicts."""
    here = [behaviour.digest(name) for name in NAMES]
    line = [sys.executable, behaviour.__file__, "--jobs", "1", "--names", *NAMES]
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(behaviour.__file__).parents[1])}
        made = subprocess.run(line, env=env, capture_output=True, text=True, check=True)
        assert made.stdout.splitlines() == here


@pytest.mark.parametrize("name", NAMES)
def test_a_digest_notices_another_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that counts otherwise has other messages, and so another digest."""
    before = behaviour.digest(name)
    original = Kernel.next
    monkeypatch.setattr(Kernel, "next", lambda self, counter: original(self, counter) + 1)
    assert behaviour.digest(name) != before
