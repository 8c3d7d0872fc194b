# What can be made here. `make` alone says so.
# Everything runs in .venv, which `make setup` makes and keeps up to date with both pyproject.toml files.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup system bench-system demo test quick quick-finds test-libvirt test-xen test-baremetal test-command check bench size soak docs clean compiled

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed.stamp
# Two more than there are cores: the two that have daemons and virtual machines mostly wait.
WORKERS ?= 4
CANDIDATES := python3 python3.13 python3.12 python3.11
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# What is compiled is kept: daemons and commands under test import it some hundred times.
unexport PYTHONDONTWRITEBYTECODE
# A test that takes a quarter of an hour hangs: it fails by its name, tells where it stands, and the others go on.
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup --no-loadscope-reorder \
	-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

help:  ## say what can be made
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/make \1|\2/' | column -t -s '|'

setup: system $(STAMP)  ## make .venv and install leasekit, its simulation and their tools into it

system:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; none of $(CANDIDATES) is" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || test -x $(BIN)/python || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && apt-get install -y -qq python3-venv; \
		else \
			echo "this Python can't make virtual environments: install the package python3-venv" >&2; exit 1; \
		fi; }

	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! pkg-config --exists libvirt 2>/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			libvirt-dev pkg-config gcc >/dev/null || echo "libvirt-dev can't be installed: the libvirt driver's tests will fail" >&2; \
	fi

# Editable by a path, not by an import hook: type checkers read paths, and run no hooks.
$(STAMP): pyproject.toml simulation/pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
		--editable '.[dev]' --editable ./simulation
	@if pkg-config --exists libvirt 2>/dev/null; then \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check 'libvirt-python>=9.0'; \
	fi
	@touch $@

demo: setup  ## run three daemons and an emulated month, and check each step (under two minutes)
	@$(BIN)/python deploy/demo.py --folder demo-run

test: setup compiled  ## run all tests; the last lines are pytest's summary
	@$(PYTEST)

# Of a fresh tree each worker would compile all, at the same time, which is half a minute of processor time for each.
compiled: setup
	@test -d tests/core/__pycache__ || { \
		for rooms in 'tests/[a-e]*/' 'tests/[f-s]*/ tests/test_*.py'; do \
			$(BIN)/python -m pytest -q --collect-only $$rooms >/dev/null & done; wait; }

# What finds nine bugs of ten, as tests/quick_finds.py measures, and nothing that takes a second or starts a daemon.
QUICK := tests/actors tests/core tests/policies tests/config tests/stores tests/runtime
QUICK_SEEDS := 26

quick: setup  ## most of what finds bugs, in under a minute: linter, tests of the inner rooms, 27 simulated seeds
	@$(BIN)/ruff check --quiet .
	@LEASEKIT_EXAMPLES=100 $(PYTEST) -n 2 -m 'not soak and not long' $(QUICK)
	@$(BIN)/leasekit simulate --seeds 0..$(QUICK_SEEDS) --jobs 2

quick-finds: setup  ## how many of the planted bugs `make quick` finds: takes a quarter of an hour
	@LEASEKIT_EXAMPLES=100 $(BIN)/python tests/quick_finds.py --seeds $(QUICK_SEEDS) $(QUICK)

test-command: setup
	@echo $(PYTEST)

check: setup  ## lint, formatting, types, and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-cache

bench-system:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v glpsol >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			glpk-utils >/dev/null || echo "glpk-utils can't be installed: the benchmark coallocation will fail" >&2; \
	fi

bench: setup bench-system  ## run every benchmark, print one table, and fail where a target is missed
	@$(BIN)/python benchmarks/run.py

size: setup  ## lines of code by room, how large each class of the actors is, and names that are used twice
	@$(BIN)/python tests/size.py

soak: setup  ## what takes hours: 20,000 seeds, 1,000 kills of real daemons, all joint states, fuzzing, a day of floods
	$(BIN)/python -m pytest -q -m soak
	LEASEKIT_EXAMPLES=$${LEASEKIT_EXAMPLES:-1000} $(BIN)/python -m pytest -q -m hypothesis
	$(BIN)/leasekit simulate --seeds 0..$${LEASEKIT_SEEDS:-19999} --jobs 2
	$(BIN)/python tests/branches.py --seeds 0..$${LEASEKIT_BRANCH_SEEDS:-999}
	LEASEKIT_SHELL_WORLDS=$${LEASEKIT_SHELL_WORLDS:-1000} $(BIN)/python -m pytest -q tests/simulation/test_shell_worlds.py
	LEASEKIT_KILLS=$${LEASEKIT_KILLS:-1000} $(BIN)/python -m pytest -q tests/system/test_kill.py tests/system/test_chaos.py
	LEASEKIT_CYCLES=$${LEASEKIT_CYCLES:-20} LEASEKIT_VM_KILLS=$${LEASEKIT_VM_KILLS:-20} \
		$(BIN)/python -m pytest -q -m '' tests/system/test_libvirt_leases.py
	$(BIN)/python -m leasekit_simulation.explore --faults 2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	for target in frames batches tickets statements evidence; do \
		$(BIN)/python tests/fuzz/run.py --target $$target --runs $${LEASEKIT_FUZZ:-1000000}; done
	LEASEKIT_CYCLES=$${LEASEKIT_CYCLES:-20} $(BIN)/python -m pytest -q tests/system/baremetal_soak.py
	$(BIN)/python -m pytest -q tests/docs/real_log_soak.py
	$(BIN)/python benchmarks/hostile_memory.py --rounds $${LEASEKIT_HOSTILE_ROUNDS:-1500}

test-libvirt: setup  ## only the tests with real guests under libvirt and QEMU: they need root
	@$(BIN)/python -m pytest -q -m '' tests/system/test_libvirt*.py tests/system/test_virtual_cluster.py

test-baremetal: setup  ## machines imaged over the network by their BMCs, for real: takes minutes, needs root
	@$(BIN)/python -m pytest -q -s tests/system/baremetal_machines.py tests/system/baremetal_hypervisors.py

test-xen: setup  ## only the tests with a real Xen under QEMU (root, minutes; LEASEKIT_RECORD=1 records xl anew)
	@$(BIN)/python -m pytest -q -s tests/system/xen_guests.py tests/system/xen_moves.py tests/system/xen_kills.py

docs: setup  ## write docs/cli.md and the diagrams in docs/architecture.md anew
	@$(BIN)/python docs/generate.py

clean:  ## remove what was made, the virtual environment too
	rm -rf $(VENV) {.,simulation}/{build,*.egg-info} demo-run .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
