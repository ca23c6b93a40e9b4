# The main commands are `make serve`, `make quick` (between edits) and `make test`. `make help` lists all commands.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first of these interpreters that is 3.11 or newer. To use another one: make setup PYTHON=...
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1); print(sys.executable)' 2>/dev/null && break; done)
UV ?= $(shell command -v uv 2>/dev/null)

# Always write compiled modules, because tests start thousands of processes.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
BENCH_BIN := .venv-bench/bin
PYTEST := $(BIN)/python -m pytest
# Options for parallel runs and for all runs: make test PYTEST_ARGS='-x -k splice'
# Four workers on two cores, because many tests wait for other processes. tests/conftest.py groups the tests.
PYTEST_PARALLEL ?= -n 4 --dist loadfile --no-loadscope-reorder
PYTEST_ARGS ?=

# $(call create,DIRECTORY): create an empty virtual environment
define create
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found. Set one with PYTHON=..." >&2; exit 1; }
	$(if $(UV),"$(UV)" venv --quiet --allow-existing --no-python-downloads --python "$(PYTHON)" $(1),\
	test -x $(1)/bin/pip || { PYTHON="$(PYTHON)" scripts/need venv; "$(PYTHON)" -m venv $(1); })
endef
# $(call install,DIRECTORY,ARGUMENTS): install packages into a virtual environment, with uv or with its own pip
install = $(if $(UV),"$(UV)" pip install --quiet --python $(1)/bin/python,$(1)/bin/python -m pip install --quiet --disable-pip-version-check) $(2)
# Every lock is complete, so pip does not resolve versions. A later release cannot change or break the installation.
LOCKED := --no-deps --require-hashes
# $(call check,DIRECTORY): fail if an installed package lacks a requirement
check = $(if $(UV),"$(UV)" pip check --python $(1)/bin/python,$(1)/bin/python -m pip check --disable-pip-version-check)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: .venv/.project ## Create .venv with all extras and the test tools from the lock (instant if nothing changed)
	@:

# Packages are built without isolation, because the build tools are also in a lock. So the locks hash every file.
.venv/.locked: requirements/lock.txt
.venv-serve/.locked: requirements/serve.txt
%/.locked: requirements/build.txt
	$(call create,$*)
	$(call install,$*,$(LOCKED) -r requirements/build.txt)
	$(call install,$*,$(LOCKED) --no-build-isolation -r $(filter-out $<,$^))
	$(call check,$*)
	@touch $@

%/.project: %/.locked pyproject.toml
	$(call install,$*,--no-deps --no-build-isolation --editable .)
	@touch $@

.venv-bench/.locked: requirements/bench.txt
.venv-ducklake/.locked: requirements/ducklake.txt
.venv-compat-oldest/.locked: requirements/compat-oldest.txt
.venv-compat-newest/.locked: requirements/compat-newest.txt
.venv-bench/.locked .venv-ducklake/.locked .venv-compat-oldest/.locked .venv-compat-newest/.locked:
	$(call create,$(@D))
	$(call install,$(@D),$(LOCKED) -r $<)
	$(call check,$(@D))
	@touch $@

.PHONY: serve
serve: .venv-serve/.project ## Run the service on http://127.0.0.1:8000: make serve SERVE_ARGS='--port 9000'
	.venv-serve/bin/inlay serve $(SERVE_ARGS)

.PHONY: setup-test
setup-test: .venv/.spark-classes ## Install the Debian packages that tests need (as root or with sudo), or list the missing ones
	@scripts/need chromium curl strace

# An archive of Spark's classes, with which the many JVMs of the tests start in half of the time.
.venv/.spark-classes: .venv/.locked tests/spark/class_archive.py | .venv/.project
	$(BIN)/python -m tests.spark.class_archive
	@touch $@

# Tests on the pyarrow engine: semantics, validation, pruning, planning, splice, writer, local commit, schema and the
# command line. Other engines, other readers, services, and files whose tests wait for processes are excluded.
QUICK := $(addprefix tests/,incremental commit parquet engines requirements cli test_schema.py test_type_grammar.py \
	test_settings.py test_misspelled.py test_storage.py)
NOT_QUICK := $(addprefix --ignore-glob=*/,*duckdb*.py test_splice_readers.py test_progress_bar.py cli/test_service.py)
# A single file starts faster in one process.
QUICK_TESTS = $(if $(T),$(T),-n 2 --dist worksteal $(QUICK) $(NOT_QUICK))
.PHONY: quick quick-tests
quick: setup ## Lint and run the quick tests on pyarrow (under 2 minutes): make quick T=tests/test_schema.py
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint quick-tests

quick-tests: setup
	$(PYTEST) -q -p no:schemathesis --engines pyarrow -m "not spark and not faults" $(QUICK_TESTS) $(PYTEST_ARGS)

.PHONY: test
test: setup setup-test lint ## Set up, lint and run the tests with short profiles (about 12 minutes on 2 cores)
	$(MAKE) --no-print-directory pytest HYPOTHESIS_PROFILE=quick

# Checks that pyproject.toml allows these releases. The project is installed in the same environment.
.venv-compat-%/.checked: .venv-compat-%/.project
	$(call check,$(@D))
	@touch $@

# `scripts/compat` finds the interpreters and creates the environments.
.PHONY: compat
compat: ## Run the quick tests on the oldest and newest supported Python, pyarrow and pandas
	@scripts/compat -q --engines pyarrow -m "not spark and not faults" -n 2 --dist worksteal \
		$(QUICK) $(NOT_QUICK) --ignore-glob=*/test_004_uploads.py $(PYTEST_ARGS)

.PHONY: test-all
test-all: setup setup-test .venv-bench/.locked .venv-ducklake/.locked lint compat ## Set up, lint, run all tests with long profiles, and run compat (at most 75 minutes on 2 cores)
	$(MAKE) --no-print-directory pytest HYPOTHESIS_PROFILE=thorough INLAY_TEST_LONG=1

# All tests run in one pytest run: each worker process collects them once and starts one Spark session for its tests.
.PHONY: pytest
pytest: export HYPOTHESIS_PROFILE ?= quick
pytest: export INLAY_TEST_LONG ?=
pytest:
	$(PYTEST) $(PYTEST_PARALLEL) $(PYTEST_ARGS)

# The core code of merges. Tests that need no other process must take every branch of it.
COVERED := inlay.incremental inlay.commit inlay.parquet.splice
COVERING := $(addprefix tests/,incremental commit parquet requirements engines cli workspace edges/test_readers.py \
	test_object_stores.py test_storage.py)
.PHONY: coverage
coverage: setup setup-test ## Run the tests of merges, and fail if they do not take every branch of the code of merges
	$(PYTEST) -m "not spark" $(PYTEST_PARALLEL) $(addprefix --cov=,$(COVERED)) --cov-branch --cov-fail-under=100 \
		$(COVERING) $(PYTEST_ARGS)

.PHONY: mutants
mutants: setup setup-test ## Try thousands of changes to the code of merges, and fail if one is neither noticed nor explained
	$(BIN)/python -m tests.mutants.run --modules $(COVERED) --tests $(COVERING) $(MUTANT_ARGS)

# Eleven tests run in two processes, so that each test gets a sixth of the time.
SOAK_SECONDS ?= 3600
SOAKED := test_soak.py test_version_soak.py test_merge_soak.py test_service_kills.py test_service_load.py
.PHONY: soak
soak: setup setup-test ## Inject random faults into all components for an hour: make soak SOAK_SECONDS=600
	@mkdir -p .cache && rm -f .cache/soak.jsonl
	INLAY_TEST_LONG=1 INLAY_SOAK_SECONDS=$$(($(SOAK_SECONDS) / 6)) INLAY_FAULT_COUNTS=$(CURDIR)/.cache/soak.jsonl \
		$(PYTEST) -n 2 -rP $(addprefix tests/faults/,$(SOAKED)) $(PYTEST_ARGS)
	$(BIN)/python -m tests.faults.report .cache/soak.jsonl

.PHONY: lint
lint: setup ## Check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: setup ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# `generate.py` first updates the generated pages. Warnings, such as a broken link, are errors.
.PHONY: docs
docs: setup ## Build the documentation into site/, without the network
	$(BIN)/python docs/generate.py
	$(BIN)/zensical build --strict --clean

.PHONY: bench
bench: setup .venv-bench/.locked .venv-ducklake/.locked ## Run the benchmarks next to other tools: make bench BENCH_ARGS='...'
	INLAY_BENCH_PYTHON=$(abspath $(BENCH_BIN)/python) INLAY_BENCH_DUCKLAKE_PYTHON=$(abspath .venv-ducklake/bin/python) \
		$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

.PHONY: bench-convert
bench-convert: setup ## Run the conversion benchmark next to other tools: make bench-convert BENCH_ARGS='--mb 500'
	$(BIN)/python -m benchmarks.convert $(BENCH_ARGS)

.PHONY: bench-queries
bench-queries: setup ## Send fifty queries from twenty concurrent clients to a service: make bench-queries BENCH_ARGS='--rounds 2'
	$(BIN)/python -m benchmarks.queries $(BENCH_ARGS)

.PHONY: bench-readers
bench-readers: setup ## Count what readers without inlay see during commits: make bench-readers BENCH_ARGS='--commits 100'
	$(BIN)/python -m benchmarks.readers $(BENCH_ARGS)

.PHONY: bench-versions
bench-versions: setup ## Measure what versions cost, with and without a history: make bench-versions BENCH_ARGS='history'
	$(BIN)/python -m benchmarks.versions $(BENCH_ARGS)

# Needs uv. The options keep settings of this machine out of the locks: no index URL, no path, no header.
COMPILE = env -u UV_FIND_LINKS -u PIP_FIND_LINKS "$(UV)" pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-strip-extras --no-header --no-emit-index-url --no-emit-find-links $(COMPILE_ARGS)
.PHONY: lock
lock: ## Renew the locks in requirements/ (needs uv; make lock COMPILE_ARGS=--upgrade)
	$(COMPILE) --all-extras pyproject.toml --output-file requirements/lock.txt
	$(COMPILE) --constraints requirements/lock.txt --extra server pyproject.toml --output-file requirements/serve.txt
	$(COMPILE) --constraints requirements/lock.txt requirements/build.in --output-file requirements/build.txt
	$(COMPILE) requirements/bench.in --output-file requirements/bench.txt
	$(COMPILE) requirements/ducklake.in --output-file requirements/ducklake.txt
	$(COMPILE) requirements/compat-oldest.in --output-file requirements/compat-oldest.txt
	$(COMPILE) requirements/compat-newest.in --output-file requirements/compat-newest.txt

.PHONY: clean
clean: ## Remove the virtual environments and all caches
	rm -rf .venv .venv-serve .venv-bench .venv-ducklake .venv-compat-* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage* htmlcov site .cache dist build
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
