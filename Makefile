# Everything comes from wheels: only Python (3.11 or newer) and make are needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH_VENV := .venv-torch
TORCH_STAMP := $(TORCH_VENV)/.installed

# The fast tests: structure, golden texts, contracts. Everything else builds and runs many kernels.
FAST := tests/ir tests/target tests/operators tests/graph tests/report tests/test_layers.py tests/test_package.py \
	tests/lower/test_golden.py tests/lower/test_verify_program.py tests/space/test_moves.py tests/space/test_columns.py \
	tests/space/test_rule_names.py tests/tuning/test_contracts.py

.PHONY: help env demo check test torch torch-env torch-operators fuzz emulate bench sizes clean

help:
	@echo "make env     create $(VENV) and install stormdrop with what its tests need"
	@echo "make demo    compile, check, tune and race a model against onnxruntime (about three minutes; DEMO='squeezenet1_0 5s': another network and time)"
	@echo "make check   ruff, pyright and the fast tests, in about a minute"
	@echo "make test    all tests, ruff, pyright"
	@echo "make torch   the tests that need PyTorch, in $(TORCH_VENV): both front doors, and 17 networks (some minutes)"
	@echo "make torch-operators  PyTorch's samples of its operators (an hour)"
	@echo "make fuzz    random models against other implementations until Ctrl-C; goes on where it was stopped (FUZZ='--special' for NaN and infinities)"
	@echo "make emulate  5,000 random GPU kernels in the emulator; goes on where it was stopped"
	@echo "make bench   measure figures of kernels; of models: python -m benchmarks.models --help; of the search: benchmarks.search"
	@echo "make sizes   memory of resnet50 at batches 1 to 32, of 1,000 compilations and of 100,000 calls (a quarter of an hour)"
	@echo "make clean   remove $(VENV) and caches"

env: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make env PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# The demo needs the package and its peer, not the tools of the tests; without a peer there is no race.
$(BIN)/stormdrop: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[onnxruntime]' || \
		{ echo "onnxruntime could not be installed: the demo does without it"; $(BIN)/python -m pip install --quiet --editable .; }

demo: | $(BIN)/stormdrop
	@PYTHON="$(abspath $(BIN)/python)" sh examples/demo.sh $(DEMO)

check: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet .
	@$(BIN)/pyright & types=$$!; $(BIN)/python -m pytest $(FAST); tests=$$?; wait $$types && exit $$tests

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/pyright & types=$$!; $(BIN)/python -m pytest -n 2 --dist worksteal; tests=$$?; wait $$types && exit $$tests

$(TORCH_STAMP): pyproject.toml
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install --quiet torch==2.13.0
	$(TORCH_VENV)/bin/python -m pip install --quiet --no-deps torchvision==0.28.0
	$(TORCH_VENV)/bin/python -m pip install --quiet --editable '.[torch]' transformers==5.22.2 pillow expecttest pytest pytest-timeout
	@touch $@

torch-env: $(TORCH_STAMP)

torch: $(TORCH_STAMP)
	$(TORCH_VENV)/bin/python -m pytest tests/pytorch
	$(TORCH_VENV)/bin/python -m tests.pytorch.suite --no-operators

torch-operators: $(TORCH_STAMP)
	$(TORCH_VENV)/bin/python -m tests.pytorch.suite --no-models

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz $(FUZZ)

emulate: $(STAMP)
	$(BIN)/python -m tests.emulator $(EMULATE)

bench: $(STAMP)
	$(BIN)/python -m benchmarks

sizes: $(STAMP)
	$(BIN)/python -m benchmarks.sizes

clean:
	rm -rf $(VENV) $(TORCH_VENV) .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
