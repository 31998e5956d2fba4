# The two commands of a newcomer: `make run` and `make test`. Everything else is for people who work on the product.
#
# TORCH_INDEX  optional: a package index to take torch from, for example PyTorch's CPU index
#              (`make run TORCH_INDEX=https://download.pytorch.org/whl/cpu`), where the default index only has CUDA builds.
PYTHON      ?= python3
VENV        ?= .venv
TORCH_INDEX ?=
BIN         := $(VENV)/bin
STAMP       := $(VENV)/.installed
TORCH_ARGS  := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX),)

# Spinning OpenMP threads under contention cost 15x on two cores.
export OMP_WAIT_POLICY := passive

.PHONY: setup run test lint fuzz bench gpu-check clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "infra-agent needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another with: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH_ARGS) torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,fla]'
	$(BIN)/target-engine fetch-model
	touch $@

run: setup
	$(BIN)/infra-agent run throughput
	$(BIN)/infra-agent report latest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

# One thread a worker: two processes with two threads each on two cores spin against each other. What reads a clock runs
# alone afterwards.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m 'not timing'
	$(BIN)/python -m pytest -m timing

# Property tests on examples that nobody has seen yet; what it finds becomes an @example.
fuzz: setup
	HYPOTHESIS_PROFILE=fuzz OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not timing and not slow'

bench: setup
	$(BIN)/infra-agent experiment run evolution

gpu-check: setup
	$(BIN)/infra-agent doctor --gpu

clean:
	rm -rf $(VENV) build *.egg-info
