# make setup | run [CONFIG=configs/quick.yaml] | test | lowest | lint | bench | docs
PYTHON ?= python3
CONFIG ?= configs/vendors.yaml
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled

.PHONY: setup run test lowest lint bench docs clean

setup: $(COMPILED)

# torch first: with the pinned build in place nothing asks for another one. pip itself would compile on one processor.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("the farm needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; say make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e '.[dev]'
	touch $(STAMP)

# Some packages hold files that are no Python and do not compile.
$(COMPILED): $(STAMP)
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	touch $(COMPILED)

# Exit code 1 says that wrong results were found, which is what a run is for: make reports it and goes on.
run: setup
	$(BIN)/python -m farm.launch $(CONFIG) $(ARGS) || { code=$$?; test $$code -eq 1; }

# Four at once, also on two cores: tests wait for processes and clusters of their own. A file stays in one process, the longest come first.
test: setup
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

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
