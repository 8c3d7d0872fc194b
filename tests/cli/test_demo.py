"""The demo that `make demo` runs: it passes as a whole, and fails where it can't have checked a step."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from system.system_waits import no_units_left

MONTH = 'horizon = "30d"'
DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo.py"
_spec = importlib.util.spec_from_file_location("demo", DEMO)
demo = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(demo)


@pytest.mark.xdist_group("demo")
def test_demo_checks_every_step(tmp_path: Path) -> None:
    """All steps are checked, the daemons are gone afterwards, and what it names at the end is there; a month that takes
    seven seconds of a processor has three days here.
    """
    folder, deploy = tmp_path / "run", tmp_path / "deploy"
    for name in ("quickstart", "emulation"):
        shutil.copytree(DEMO.parent / name, deploy / name)
    month = deploy / "emulation" / "month.toml"
    assert MONTH in month.read_text()
    month.write_text(month.read_text().replace(MONTH, 'horizon = "3d"'))
    line = [sys.executable, str(DEMO), "--deploy", str(deploy), "--folder", str(folder), "--term", "12s"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stdout
    assert len(re.findall(r"^ok ", done.stdout, re.MULTILINE)) == 12
    assert "All steps checked" in done.stdout
    assert list((folder / "month").glob("*.png"))
    page = (folder / "page" / "index.html").read_text()
    assert page.count("✓ ok") == 12
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert "image/svg+xml;base64," in page
    assert "refresh" not in page
    assert [name for name in ("site", "broker", "guest") if not (folder / f"{name}.db").exists()] == []
    demo.fresh(folder)
    assert [path.name for path in folder.iterdir()] == [demo.MARKER]


@pytest.mark.xdist_group("demo")
def test_what_a_terminal_is_shown(tmp_path: Path) -> None:
    """The page as it grows, and the deployment's own pages with a lease, until the daemons are stopped."""
    folder = tmp_path / "run"
    demo.fresh(folder)
    shown = demo.Demo(DEMO.parent, folder, Console(quiet=True))
    try:
        with no_units_left(folder), demo.served(shown.report.path.parent) as address:
            shown.make_keys()
            with pytest.raises(demo.DemoError), shown.step("go <wrong>"):
                raise demo.DemoError("it did")
            page = httpx.get(address).text
            assert [page.count(words) for words in ("✓ ok", "✗ failed", "go &lt;wrong&gt;", "refresh")] == [1, 1, 1, 1]
            pages = shown.go_on()
            assert pages in httpx.get(address).text
        answer = httpx.get(pages, follow_redirects=True)
        assert (answer.status_code, "<title>" in answer.text) == (200, True)
    finally:
        shown.stop_all()


def test_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """A folder that no demo has made is neither removed nor written to."""
    (tmp_path / "precious").touch()
    with pytest.raises(demo.DemoError, match="was not made by a demo"):
        demo.fresh(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_unexpected_is_told() -> None:
    """What differs from what is expected names both."""
    demo.expect(4, 4, "units")
    with pytest.raises(demo.DemoError, match="units: expected 4, found 3"):
        demo.expect(3, 4, "units")


def test_demo_fails_without_its_deploy_files(tmp_path: Path) -> None:
    """Where a step can't be done the exit status is 1 and the reason is told in words."""
    line = [sys.executable, str(DEMO), "--folder", str(tmp_path / "run"), "--deploy", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "site.toml" in done.stderr
