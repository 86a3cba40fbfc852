# graphrag-ray: `make demo` shows it, `make test` tests it, `make check` is what CI asks of every change.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
S3_TESTS := tests/integration/test_object_store.py tests/end_to_end/test_on_object_storage.py
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: demo test test-again test-s3 fuzz corpora mutation check format install clean

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
	@echo "To go on in this shell: . $(VENV)/bin/activate"

## Two processes: many tests wait for servers, processes and kills. Each keeps whole files to itself.
test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 20

## Those that failed last time, one after the other; an error where none did.
test-again: install
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

## The tests over object storage, on a real S3 server: Ceph's gateway, from Debian's packages.
test-s3: install
	$(BIN)/python tests/ceph.py check
	GRAPHRAG_RAY_TEST_S3=ceph $(BIN)/python -m pytest $(S3_TESTS)

## The second tier of fuzzing: so many rounds through every way by which text reaches the pure rooms.
fuzz: install
	GRAPHRAG_RAY_FUZZ_ROUNDS=$(or $(ROUNDS),100000) $(BIN)/python -m pytest -n 2 tests/unit/test_any_text.py

## Corpora that nobody chose for us, through the offline engine; those that are not below ../shared/data are skipped.
corpora: install
	$(BIN)/python benchmarks/corpora.py

## How many small faults in a pure room its unit tests notice: make mutation ROOM=graph SAMPLE=150
mutation: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,mutation]'
	$(BIN)/python benchmarks/mutation.py $(ROOM) --sample $(or $(SAMPLE),150)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) demo-index mutants .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
