# Every target works from a bare clone: it makes .venv from a Python >= 3.11 and installs what it needs, once per pyproject.toml.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow test-long test-oldest test-newest test-versions lint format docs bench clean

VENV := .venv
BIN := $(VENV)/bin
# The oldest JAX that pyproject.toml allows, in an environment of its own.
OLDEST := .venv-oldest
OLDEST_JAX := $(shell sed -nE 's/^dependencies = .*"jax>=([0-9.]+)".*/\1/p' pyproject.toml)
# The newest JAX that pip finds, with the newest Python on the machine: JAX's newest versions leave older ones of Python behind.
NEWEST := .venv-newest
NEWER := $(shell for p in python3.14 python3.13 python3.12 $(wildcard $(HOME)/.pyenv/versions/3.14*/bin/python) \
	$(wildcard $(HOME)/.pyenv/versions/3.13*/bin/python) $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python); do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
# A version of each minor release between the oldest and the newest.
VERSIONS := 0.6.1 0.6.2 0.7.2 0.8.3 0.9.2 0.10.0 0.10.2 0.11.2 0.12.0.1
# A Python that is new enough and can make virtual environments; override with `make PYTHON=...`.
SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c '$(SUITABLE)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 18

demo: $(VENV)/.installed-demo ## the main job: woodpecker toy, 4096 of them, and two parameters recovered from data
	$(BIN)/python -m jaxnsd demo --out out/demo

# The fast tests are many programs that run once: to optimize them takes longer than to run them. The slow tests run what users run.
# By XLA's older emitters, in one part, they are compiled in half the time. JAX 0.12 has none, and XLA ends a process at an option that it
# does not know.
PLAIN := --xla_backend_optimization_level=0
OLDER := $(PLAIN) --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
test: $(VENV)/.installed-test ## lint, format check and the fast tests
	XLA_FLAGS="$(OLDER)" $(BIN)/python -c 'import jax; jax.devices()' 2>/dev/null && flags="$(OLDER)" || flags="$(PLAIN)"; \
		XLA_FLAGS="$$XLA_FLAGS $$flags" $(BIN)/python -m pytest

test-slow: $(VENV)/.installed-test ## the slow tests
	$(BIN)/python -m pytest -m "slow and not long"

test-long: $(VENV)/.installed-test ## campaigns: every scheme on every system, orders, thousands of states and of tossed bodies (hours)
	$(BIN)/python -m pytest -m long

test-oldest: $(OLDEST)/.installed ## values and derivatives with the oldest JAX that is supported, left to XLA
	JAXNSD_NATIVE=0 $(OLDEST)/bin/python -m pytest -m oldest $$(grep -rl --include='test_*.py' 'mark\.oldest' tests) # other files need what is not installed

# Those of the oldest JAX come first, once as they are and once by XLA; PART=first leaves it at these, PART=rest
# leaves them out.
test-newest: ## values and derivatives, by XLA too, and the fast tests, with the newest JAX on the newest Python here
	@if [ -z "$(NEWER)" ]; then echo "test-newest: there is no Python newer than 3.11 here, so no newer JAX: nothing was tested"; \
	else $(MAKE) --no-print-directory $(NEWEST)/.installed && \
		$(NEWEST)/bin/python -c 'import jax, sys; print("JAX", jax.__version__, "on Python", sys.version.split()[0])' && \
		if [ "$(PART)" != rest ]; then \
			$(NEWEST)/bin/python -m pytest -m "oldest or newest" && JAXNSD_NATIVE=0 $(NEWEST)/bin/python -m pytest -m oldest; fi && \
		if [ "$(PART)" != first ]; then XLA_FLAGS="$$XLA_FLAGS --xla_backend_optimization_level=0" \
			$(NEWEST)/bin/python -m pytest -m "not slow and not long and not oldest"; fi; fi

test-versions: | $(BIN)/python ## by hand: three motions, their gradients and README's blocks with each minor version of JAX
	@for version in $(VERSIONS); do \
		python=$(BIN)/python; case $$version in 0.1[1-9].*) python="$(NEWER)";; esac; \
		[ -n "$$python" ] || { echo "$$version needs a newer Python than there is here"; continue; }; \
		"$$python" -m venv out/versions/$$version && out/versions/$$version/bin/python -m pip install --quiet --disable-pip-version-check \
			--editable '.[native,ensemble,mjcf]' "jax==$$version" "jaxlib==$$version" pytest pytest-xdist filelock && \
		out/versions/$$version/bin/python tests/versions.py && \
		for once in made kept; do JAXNSD_NATIVE=0 JAX_COMPILATION_CACHE_DIR=out/versions/$$version/cache \
			JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 out/versions/$$version/bin/python tests/versions.py || exit 1; done && \
		out/versions/$$version/bin/python -m pytest -n 0 -m "slow or not slow" tests/whole/test_readme.py || exit 1; done

lint: $(VENV)/.installed-test ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-test ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs ## the pages as a site, in out/docs, that needs no network
	$(BIN)/python docs/build.py out/docs
	@echo "out/docs/index.html"

bench: $(VENV)/.installed-test ## the speed table
	@for script in examples/benchmarks/[a-z]*.py; do \
		[ -e "$$script" ] || { echo "no benchmarks in examples/benchmarks"; exit 1; }; \
		echo "$$script"; $(BIN)/python "$$script" || exit 1; done

clean: ## remove what make and the tests produce
	rm -rf $(VENV) $(OLDEST) $(NEWEST) build dist out .jax_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "jaxnsd needs Python >= 3.11 with venv and pip, and none was found on the PATH." >&2; \
		echo "Install one (on Debian and Ubuntu: python3 and python3-venv), or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@"$(PYTHON)" -c '$(SUITABLE)' || { echo "$(PYTHON) is older than 3.11 or lacks venv or ensurepip: name another with PYTHON=..." >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(OLDEST)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable . \
		'jax==$(OLDEST_JAX)' 'jaxlib==$(OLDEST_JAX)' pytest pytest-xdist filelock scipy
	@touch $@

# Every time: there may be a newer JAX since.
$(NEWEST)/.installed: FORCE
	"$(NEWER)" -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager --editable '.[test]'
	@touch $@

FORCE:

$(VENV)/.installed-demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[native,progress]'
	@touch $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@
