# Each target does its own set-up, once, and again only when pyproject.toml or constraints.txt change: the demo in a light
# environment of its own, .venv-demo, and all others in .venv, which has every extra and the tools.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO := .venv-demo
PRETRAINED := .venv-pretrained
comma := ,
# Two processes with one thread each; from Python 3.12 on coverage is measured by the interpreter's own monitoring.
CORE = $$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')
# Files of tests are in memory where there is room: runs and ledgers wait for the disk thousands of times.
MEMORY = $$(df -Pk /dev/shm 2>/dev/null | awk 'END { if ($$4 > 4000000) print "TMPDIR=/dev/shm" }')
# What Python compiles is kept: tests start some hundred processes, each with the whole library.
PYTEST = env $(MEMORY) PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 COVERAGE_CORE=$(CORE) \
	$(BIN)/python -m pytest -n 2 --dist worksteal
# Tests of the privacy core, which must cover it. All others run through it, too: to measure that as well would take them
# up to twice as long before Python 3.12, and add next to nothing.
CORE_TESTS = $(addprefix tests/,privacy store) $(addprefix src/cloister/,store ledger privacy plan core/channel.py core/lifts.py) \
	$(patsubst %,tests/test_%.py,channel document caveats edges fuzz groups plan roster sharing tasks) \
	$(wildcard $(patsubst %,tests/engines/test_%.py,node_refusals nodes records refused stream_noise streams_apart task_stream workers))

.PHONY: help demo docs test test-core test-slow test-machines test-noise test-pretrained test-versions fuzz mutants check format clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# A virtual environment in $(1) with these extras.
define install
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cloister needs Python 3.11 or newer: make PYTHON=python3.11")'
@$(PYTHON) -m venv $(1)
@$(1)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[$(2)]'
@touch $(1)/.ready
endef

$(READY): pyproject.toml constraints.txt
	@echo "== set-up: installing all extras and tools into .venv, including torch, Ray and Flower (one to five minutes, once)"
	$(call install,.venv,data$(comma)report$(comma)torch$(comma)dev)

$(DEMO)/.ready: pyproject.toml constraints.txt
	@echo "== set-up: installing NumPy, SciPy, scikit-learn, pandas and a few more into $(DEMO) (half a minute, once)"
	$(call install,$(DEMO),data$(comma)report)

demo: $(DEMO)/.ready  ## train on 2410 real schools, compare, write demo/chem97.html
	@echo "== demo: Chem97, 2410 schools, single-task / pooled / non-private / private"
	@$(DEMO)/bin/cloister demo --out demo --force

docs: $(READY)  ## build the documentation site into build/site
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	@echo "open build/site/index.html"

test: $(READY)  ## lint, types, layers, tests and doctests, coverage of the privacy core
	@$(MAKE) -j 2 check test-core
	@echo "== all other tests, and the examples of documentation and docstrings"
	@$(PYTEST) -m "not slow" $(addprefix --ignore=,$(CORE_TESTS))

test-core: $(READY)
	@echo "== tests of the privacy core, with its coverage, while style and types are checked"
	@$(PYTEST) -m "not slow" --cov --cov-report=term $(CORE_TESTS)

test-slow: check  ## everything, including the slow tests
	@$(PYTEST)

test-machines: $(READY)  ## the tests that depend on floating point, as other processors would run them
	@env $(MEMORY) $(BIN)/python tests/machines.py

test-noise: $(READY)  ## all tests with other noise: none may depend on it, unless it says its seed
	@$(PYTEST) -m "not slow" --noise-seed $$(date +%j)

test-versions: $(READY)  ## the core's tests with the oldest and the newest libraries that pyproject.toml allows
	@env $(MEMORY) $(BIN)/python tests/versions.py $(CORE_TESTS) tests/estimators tests/app tests/tables tests/engines/test_cluster.py

MINUTES ?= 5
fuzz: $(READY)  ## spoiled files for every reader, MINUTES=5 each: nothing but a sentence may come of one
	@env $(MEMORY) $(BIN)/python tests/fuzzing.py --minutes $(MINUTES)

$(PRETRAINED)/.ready: pyproject.toml constraints.txt
	@echo "== set-up: installing torch, timm, transformers and peft into $(PRETRAINED) (a few minutes, once)"
	$(call install,$(PRETRAINED),torch)

test-pretrained: $(PRETRAINED)/.ready  ## the recipes for networks of timm, transformers and peft, on tiny random ones
	@$(PRETRAINED)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt timm torchvision transformers peft
	@$(PRETRAINED)/bin/python tests/pretrained.py docs/pretrained.md
	@$(PRETRAINED)/bin/python -m benchmarks architectures

mutants: $(READY)  ## break the code in small ways, one at a time: the tests must notice each
	@$(BIN)/python -m mutants

check: $(READY)
	@echo "== style, types, layers"
	@$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet . || (echo "run 'make format'"; exit 1)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(READY)  ## format the code in place
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:  ## remove the virtual environment, caches and the demo's output
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage demo
