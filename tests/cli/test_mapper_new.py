"""``leasekit mapper new``: what it writes can be installed, checked, deployed, and used as a single file."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from pathlib import Path

import pytest
from cli_daemons import running

from leasekit.cli import main
from leasekit.config.load import load
from leasekit.runtime.client import ControlClient

ROLES = ("broker", "authority", "guest")
METHODS = {"broker": "allocate", "authority": "assign", "guest": "plan"}


def _new(folder: Path, name: str, role: str) -> Path:
    assert main.run(["mapper", "new", name, "--role", role, "--in", str(folder)]) == 0
    return folder / name


def _run(*command: object, cwd: Path) -> str:
    words = [str(word) for word in command]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # its test needs none, and they take a second to import
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment of its own, which sees what this one has, leasekit included."""
    _run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment", cwd=tmp_path)
    (packages,) = (tmp_path / "environment" / "lib").glob("python*/site-packages")
    outer = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
    (packages / "outer.pth").write_text(f"import site; {outer}\n")
    return tmp_path / "environment" / "bin" / "python"


def test_a_package_is_installed_and_named_in_a_deploy_file(tmp_path: Path, python: Path) -> None:
    """`pip install -e` and a deploy file that names it is all it takes: it is listed, the file has no fault, and runs;
    without a network.
    """
    package = _new(tmp_path, "one-by-one", "broker")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps")
    _run(*pip, "--no-build-isolation", "--editable", package, cwd=tmp_path)
    leasekit = (python, "-m", "leasekit.cli.main")
    listed = json.loads(_run(*leasekit, "mapper", "list", "--role", "broker", "--json", cwd=tmp_path))
    (mine,) = [entry for entry in listed if entry["name"] == "one-by-one"]
    assert mine == {
        "name": "one-by-one",
        "role": "broker",
        "from": "leasekit-one-by-one",
        "class": "one_by_one:OneByOne",
    }
    deploy = package / "deploy.toml"
    deploy.write_text(deploy.read_text().replace('"one_by_one.py"', '"one-by-one"'))
    _run(*leasekit, "config", "check", deploy, "--state", tmp_path.parent, cwd=tmp_path)  # of which paths are short
    summary = json.loads(_run(*leasekit, "emulate", deploy, "--json", cwd=tmp_path))
    assert summary["runs"][0]["guests"]["guest"]["mean_leased"] == pytest.approx(3)


@pytest.mark.parametrize(
    ("role", "cases"),
    [*((role, 3) for role in ROLES), *(pytest.param(role, 25, marks=pytest.mark.soak) for role in ROLES)],
)
def test_what_is_written_passes_its_own_test(role: str, cases: int, tmp_path: Path) -> None:
    """The generated test, which runs the conformance kit too, passes, and so does the deploy file run; the kit plays
    few cases, or (a soak) all that the test says.
    """
    package = _new(tmp_path, f"my_{role}", role)
    test = package / f"test_my_{role}.py"
    text = test.read_text()
    assert "cases=25, sizes=(10, 1_000)" in text
    if cases < 25:
        test.write_text(text.replace("cases=25, sizes=(10, 1_000)", f"cases={cases}, sizes=(10,)"))
    printed = _run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=package)
    assert "2 passed" in printed
    assert main.run(["emulate", str(package / "deploy.toml")]) == 0


@pytest.mark.parametrize("role", ROLES)
def test_what_is_written_is_well_formed(role: str, tmp_path: Path) -> None:
    """It has the names asked for and nothing left over of what it was made from, and linters have nothing to say."""
    package = _new(tmp_path, "night-shift", role)
    text = (package / "night_shift.py").read_text()
    assert "class NightShift:" in text
    assert f"def {METHODS[role]}(" in text
    assert "skeleton" not in text.lower()
    bin_ = Path(sys.executable).parent
    _run(
        bin_ / "ruff",
        "check",
        "--no-cache",
        "--isolated",
        "--line-length",
        "120",
        "--select",
        "E,F,I,B,UP",
        cwd=package,
    )


def test_a_single_file_works_by_path(tmp_path: Path) -> None:
    """Without an installation, a deploy file names the file, or a class in it, and settings beside that."""
    package = _new(tmp_path, "by-path", "guest")
    deploy = package / "deploy.toml"
    deploy.write_text(deploy.read_text().replace('"by_path.py"', '"by_path.py:ByPath", units = 2'))
    assert main.run(["config", "check", str(deploy), "--state", str(tmp_path.parent)]) == 0


@pytest.mark.xdist_group("cli_daemons")
@pytest.mark.parametrize("role", ROLES)
def test_the_deploy_file_runs_as_daemons(role: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands but for a setting of the guest's: nothing to warn of, and a lease becomes active."""
    file = _new(tmp_path, "m", role) / "deploy.toml"
    settings = ', retry = "1s"' if role == "guest" else ""
    file.write_text(file.read_text().replace('"m.py" }', f'"m.py"{settings} }}'))
    assert main.run(["config", "check", str(file)]) == 0
    assert "warning" not in capsys.readouterr().err
    guest = load(file).actors["guest"].control
    with running(file), ControlClient(guest) as watcher, ControlClient(guest) as client:
        events = watcher.watch("", patience=30)
        if role != "guest":
            now = client.query("status")["now"]
            request = {"type": "vm", "units": 1, "term": [now, now + 3_600_000], "name": "asked"}
            client.command("lease.request", **request, properties={"deferrable": "true"})
        while not any(lease["state"] == "active" for lease in client.query("leases")):
            next(events)


@pytest.mark.parametrize("name", ["fcfs", "Capital", "two words", "json", "class", "-x", "x.py"])
def test_names_that_will_not_do(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is taken, hides a module or is no name gets one line that says so, and nothing is written."""
    assert main.run(["mapper", "new", "--role", "broker", "--in", str(tmp_path), "--", name]) == 1
    assert capsys.readouterr().err.startswith(f"leasekit: NAME: found {name!r}")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of that name is left as it is."""
    (tmp_path / "mine").mkdir()
    assert main.run(["mapper", "new", "mine", "--role", "broker", "--in", str(tmp_path)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert list((tmp_path / "mine").iterdir()) == []
