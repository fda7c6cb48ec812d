# `make demo` and `make test` do all the set-up they need in an environment of their own.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2

# A busy machine must not spin at barriers, and two one-threaded processes beat one with two threads.
export OMP_WAIT_POLICY := PASSIVE
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export NO_MKDOCS_2_WARNING := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-slow check bench docs format clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 20

demo: $(VENV)/.core  ## harden a small model for its field and report, in about a minute of CPU time
	$(BIN)/operant demo

test: $(VENV)/.dev  ## run the tests
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

test-slow: $(VENV)/.dev  ## run the tests that take minutes
	$(BIN)/python -m pytest -n $(WORKERS) -m slow

check: $(VENV)/.dev docs  ## lint, types, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev  ## run every benchmark and print its ratios
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

docs: $(VENV)/.dev  ## build the documentation into site/
	@# Not --quiet: it drops warnings before --strict counts them. Shown only if it fails.
	@output=$$($(BIN)/mkdocs build --strict 2>&1) || { echo "$$output" | grep -v '^INFO'; exit 1; }

format: $(VENV)/.dev  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and what was built
	rm -rf $(VENV) site build dist

$(VENV)/.made:
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml studies/pyproject.toml constraints.txt | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable '.[flows,vision,attacks,art,triage]' --editable studies
	@touch $@ $(VENV)/.core
