# graphrag-ray: `make demo`, `make test`; `make check` is what CI requires of every change.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Each tier remembers its failed tests. With TRIES=2 they are retried once, alone, because the machine may have been
# busy. Tests that fail twice fail, and so does an interrupted run.
FIRST = $(BIN)/python -m pytest -m "not cluster" -o cache_dir=.pytest_cache/first
SECOND = $(if $(shell $(BIN)/python tests/ceph.py check && echo there),GRAPHRAG_RAY_TEST_S3=ceph) \
	GRAPHRAG_RAY_TEST_README=1 GRAPHRAG_RAY_TEST_EXAMPLES=30 \
	$(BIN)/python -m pytest -m "cluster or hypothesis" -o cache_dir=.pytest_cache/second
AGAIN = $(if $(filter 2,$(TRIES)),|| { [ $$? = 1 ] && $(1) --last-failed --last-failed-no-failures none; })
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: demo test test-cluster fuzz corpora mutation check docs format install clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("graphrag-ray needs Python 3.11 or later; set PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(VENV)/.installed

## Index the bundled corpus with the offline engine and ask one question. No key, no network.
demo: install
	$(BIN)/graphrag-ray index demo/corpus --root demo-index
	@echo
	$(BIN)/graphrag-ray query "What happened to the harbour plan and to Hask Marsh?" --root demo-index
	@echo
	@echo "To continue in this shell: . $(VENV)/bin/activate"

## The first tier: all behaviour, without a cluster. Minutes on two cores.
test: install
	$(FIRST) -n 2 --dist worksteal --durations 20 $(call AGAIN,$(FIRST))

## The second tier: Ray clusters, kills, pauses, long waits, Ceph's gateway if its packages are installed
## (`python tests/ceph.py check` lists them), the README's commands, and property tests with many examples.
## Each process runs whole files, in the order of tests/conftest.py, because clusters are slow to start.
test-cluster: install
	$(SECOND) -n 2 --dist loadfile --no-loadscope-reorder --durations 20 $(call AGAIN,$(SECOND))

## Takes hours: all property tests, and ROUNDS hostile texts on every path into the pure folders.
fuzz: install
	GRAPHRAG_RAY_TEST_EXAMPLES=2000 $(BIN)/python -m pytest -n 2 -m hypothesis --timeout 0
	GRAPHRAG_RAY_FUZZ_ROUNDS=$(or $(ROUNDS),100000) $(BIN)/python -m pytest -n 2 tests/unit/test_any_text.py

## Runs the offline engine on public corpora in ../shared/data; missing ones are skipped.
corpora: install
	$(BIN)/python benchmarks/corpora.py

## Mutation testing of a pure folder: make mutation FOLDER=graph SAMPLE=150
mutation: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,mutation]'
	$(BIN)/python benchmarks/mutation.py $(FOLDER) --sample $(or $(SAMPLE),150)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks/*.py benchmarks/papers/*.py
	$(BIN)/lint-imports
	$(BIN)/codespell

## Build the documentation site into site/; notebooks are executed.
docs: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) demo-index mutants .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
