# Everything runs in the project's own environment: nothing is needed beforehand but Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
# Tests start hundreds of processes: each would compile everything anew, half a second of it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test lint format test-matrix reference docs clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.venv: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Holdfast needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch .venv

# Apart, so that `make demo` need not wait for it.
$(BIN)/zensical: .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

demo: .venv  ## watch jobs run, fail, retry and finish on an embedded PostgreSQL
	@$(BIN)/holdfast demo

test: lint  ## lint, then every test, on an embedded PostgreSQL; most of the time they wait, so two at once
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: .venv $(BIN)/zensical  ## style, types, the layers of the house and the links of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python docs/build_site.py

format: .venv  ## rewrite the files in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: .venv  ## write the reference pages that are made from the code
	$(BIN)/python docs/generate_rights.py
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python docs/generate_python_reference.py

docs: .venv $(BIN)/zensical  ## build the documentation site; it opens from disk: build/site/index.html
	$(BIN)/python docs/build_site.py

clean:  ## remove the environment and every cache
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist

test-matrix: .venv  ## the tests on PostgreSQL 15 to 18 (npm brings them), and on Python 3.12 and 3.13 if present
	tests/matrix.sh

.PHONY: mutants torture faults fuzz
mutants: .venv  ## take away one guard at a time, and see whether a test notices
	$(BIN)/python tests/mutants.py

fuzz: .venv  ## twenty thousand cron expressions, times and zones, compared with cronsim
	HOLDFAST_FUZZ=20000 $(BIN)/pytest --timeout 1800 tests/sql/test_cronsim.py

SEEDS ?= 10
torture: .venv  ## ten seeds of 10,000 jobs each, among faults of every kind
	$(BIN)/python -m tests.faults.torture --seeds $(SEEDS) --abreast 2 --jobs 10000 --faults 60

faults: .venv  ## kill part of a fleet of workers in each way, twenty times
	HOLDFAST_REPEATS=20 $(BIN)/pytest -s tests/faults/test_killed_fleets.py

.PHONY: check-all wheel
check-all: .venv  ## the checks that are too long for `make test`: matrix, mutants, fuzz, torture, wheel
	$(BIN)/python tests/check_all.py

wheel: .venv  ## build the wheel, install it in an environment of its own, and run the demo there
	$(BIN)/python tests/wheel.py

.PHONY: bench bench-quick bench-compare
bench: .venv  ## Holdfast and its peers side by side, in under an hour; the results go to bench/results
	$(BIN)/python -m bench --million

bench-quick: .venv  ## Holdfast, graphile-worker and pgqueuer, in under three minutes once installed
	$(BIN)/python -m bench --quick

ROUNDS ?= 5
bench-compare: .venv  ## this checkout against BASE=<commit>, without peers
	@test -n "$(BASE)" || { echo "name the commit: make bench-compare BASE=<commit>"; exit 2; }
	$(BIN)/python -m bench.compare --base $(BASE) --rounds $(ROUNDS) $(if $(MEASURES),--measures $(MEASURES)) $(if $(SCALE),--scale $(SCALE))
