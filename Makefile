# make demo    record a training run, forget a number, get it in hindsight
# make test    all tests
# make matrix  replay and resume every program of the exactness matrix; writes docs/exactness.md (ten minutes)
# make lint    ruff and mypy --strict
# make bench   what recording and replaying cost, as ratios measured side by side
# make bench-quick  the same for small sizes, in three minutes, without writing docs/benchmarks.md
# make docs    hold every command and code block of README.md and docs/ to the code
# make setup   only the virtual environment; the others make it when they need it
# make clean   take away what these made
#
# Python 3.11 and make are all that has to be there. Another Python: make PYTHON=/path/to/python test

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup demo test matrix lint bench bench-quick docs clean

setup: $(VENV)/installed-test

demo: $(VENV)/installed-test
	$(BIN)/python examples/demo.py

# Tests that share what is dear to record stay in one process (tests/conftest.py).
test: $(VENV)/installed-test
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist loadgroup

matrix: $(VENV)/installed-test
	rm -f docs/exactness.jsonl
	FLOR_MATRIX_TABLE=docs/exactness.md $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 \
		tests/programs/test_matrix.py -m "matrix or not matrix"

lint: $(VENV)/installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/installed-bench
	$(BIN)/python benchmarks/overhead.py --page docs/benchmarks.md
	$(BIN)/python benchmarks/short_fit.py --page docs/benchmarks.md
	$(BIN)/python benchmarks/logged_scalars.py --page docs/benchmarks.md
	$(BIN)/python benchmarks/snapshot.py --page docs/benchmarks.md
	$(BIN)/python benchmarks/many_variables.py --page docs/benchmarks.md
	$(BIN)/python benchmarks/recording_parts.py --page docs/benchmarks.md
	$(BIN)/python benchmarks/loop_overhead.py --page docs/benchmarks.md
	$(BIN)/python benchmarks/store_listing.py --page docs/benchmarks.md
	$(BIN)/python benchmarks/export_cost.py --page docs/benchmarks.md
	$(BIN)/python benchmarks/replay.py --page docs/benchmarks.md

bench-quick: $(VENV)/installed-bench
	$(BIN)/python benchmarks/overhead.py --seconds 2 --rounds 1 --ways --workloads "small convnet" "transformer"
	$(BIN)/python benchmarks/short_fit.py --seconds 1 --rounds 1
	$(BIN)/python benchmarks/logged_scalars.py --entries 20000 --rounds 1
	$(BIN)/python benchmarks/snapshot.py --sizes 2 --rounds 3
	$(BIN)/python benchmarks/many_variables.py --variables 100 --megabytes 10 --rounds 3
	$(BIN)/python benchmarks/recording_parts.py --megabytes 2 --epochs 6
	$(BIN)/python benchmarks/loop_overhead.py --steps 1000 --rounds 3 --repeats 1
	$(BIN)/python benchmarks/store_listing.py --runs 50 --entries 5000 --rounds 2
	$(BIN)/python benchmarks/export_cost.py --megabytes 2 --rounds 3
	$(BIN)/python benchmarks/replay.py --parts epochs steps --epochs 6 --training-secs 5 --step-secs 5 --rounds 1

docs: $(VENV)/installed-test
	$(BIN)/python -m pytest tests/test_docs.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# One stamp per extra: made anew when the dependencies change, and not otherwise.
$(VENV)/installed-%: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "Installing flor_keras[$*] and its pinned dependencies into $(VENV); TensorFlow is large."
	@$(INSTALL) --editable '.[$*]'
	@touch $@

.PRECIOUS: $(VENV)/installed-%

$(VENV)/pyvenv.cfg:
	@"$(PYTHON)" -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit(f"flor_keras needs Python 3.11 or newer; {sys.executable} is {v}. Type: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)")'
	"$(PYTHON)" -m venv $(VENV)
