# make setup | run [CONFIG=configs/quick.yaml] | test | nightly | lowest | lint | bench | docs
PYTHON ?= python3
CONFIG ?= configs/vendors.yaml
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
UNUSED := /tests/|/ray/(rllib|data|serve|train|tune)/|/transformers/models/|/sympy/physics/|/(moto|cfnlint|graphql|mypyc?|pip|fontTools|pygments)/

# One file stays in one process, so that what a module sets up is set up once; the longest files come first. Six at once, also on two
# cores: a third of the time tests wait for processes and clusters of their own.
PYTEST := $(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder

.PHONY: setup run test nightly lowest lint bench docs clean

setup: $(COMPILED)

# torch first: with the pinned build in place nothing asks for another one. uv takes a third of pip's time for what is left, and both
# processors; where it cannot have it (a proxy that only pip knows), pip does. pip itself would compile on one processor.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("the farm needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; say make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt torch uv
	$(BIN)/python -m farm.fleet.pip_settings pip install -q --python $(BIN)/python -c constraints.txt -e '.[dev]' \
		|| $(BIN)/python -m pip install -q --no-compile -c constraints.txt -e '.[dev]'
	touch $(STAMP)

# Some packages hold files that are no Python and do not compile. Half of the code is never imported: other packages' tests, what one
# imports of hundreds, what is there as a library too (mypy). Python compiles that when it is imported.
$(COMPILED): $(STAMP)
	$(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' $(VENV)/lib || true
	touch $(COMPILED)

# Exit code 1 says that wrong results were found, which is what a run is for: make reports it and goes on.
run: setup
	$(BIN)/python -m farm.launch $(CONFIG) $(ARGS) || { code=$$?; test $$code -eq 1; }

# Every commit. What is marked nightly is the second half.
test: setup
	$(PYTEST) -m "not nightly" $(ARGS)

nightly: setup
	$(PYTEST) -m nightly $(ARGS)

# With the lowest versions that pyproject.toml allows, in an environment of their own.
lowest: setup
	$(BIN)/python -m tests.lowest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m tests.bench $(ARGS)

docs: setup
	$(BIN)/python -m mkdocs build

clean:
	rm -rf $(VENV) build *.egg-info
