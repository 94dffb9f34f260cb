# Each target sets itself up: a virtual environment in .venv with the pinned versions of constraints.txt.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help run test test-slow test-browser coverage bench lint explore setup clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "roofcast needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 2; }
	@echo "==> setting up $(VENV) (about a minute, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tune,cluster,parquet,dev]'
	@touch $(STAMP)

setup: $(STAMP)  ## create the virtual environment and install

run: $(STAMP)  ## the main job: replay a measured trace, predicted beside measured
	@echo "==> replaying a trace that vLLM served on an H200 through the simulated H200"
	@$(BIN)/roofcast validate --run llama8b_bf16 --workload conv_r12 --out out/run

test: lint  ## all checks: lint, types, layers, tests
	@echo "==> tests"
	@$(BIN)/python -m pytest -n 2

test-slow: $(STAMP)  ## the slow cases too
	@$(BIN)/python -m pytest -n 2 -m "not benchmark and not browser"

test-browser: $(STAMP)  ## drive the page in a headless Chromium
	@$(BIN)/python -m pytest -m browser tests/ui

# Coverage does not see inside compiled functions: tests of the inner loop run as plain Python too.
PLAIN := $(addprefix tests/sim/test_,engine_memory.py engine_caching.py engine_batching.py \
	engine_door.py engine_order.py engine_rules.py front_end.py drafts.py)

coverage: $(STAMP)  ## lines and error messages that no test reaches (some 20 minutes)
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -n 2 -q
	@ROOFCAST_PLAIN=1 $(BIN)/coverage run -m pytest -n 2 -q $(PLAIN)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report --skip-covered --sort=cover
	@$(BIN)/python tests/coverage_floor.py

bench: $(STAMP)  ## benchmarks (pytest-benchmark)
	@$(BIN)/python -m pytest -m benchmark tests/benchmarks

lint: $(STAMP)  ## ruff, mypy, import-linter
	@echo "==> ruff, mypy, import-linter"
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

explore: $(STAMP)  ## open the what-if page
	@$(BIN)/roofcast explore

clean:  ## remove what the targets made
	@rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache
