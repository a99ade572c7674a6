# Every command of this project; CI calls the same ones. Each target makes its own environment when it is missing.
#
#   make run                                   the embedded default: ten clients, five methods, a report
#   make test                                  the tests, some minutes
#   make run ARGS="--set rounds=5"             with other settings
#   make run TORCH=torch==2.13.0 PIP_ARGS=...  with a torch for your GPU: name its index in PIP_ARGS

PYTHON   ?= python3
VENV     ?= .venv
TORCH    ?= torch==2.13.0
PIP_ARGS ?=
ARGS     ?=
OUT      ?= runs/demo
JOBS     ?= 2
NAME     ?=

BIN := $(VENV)/bin

.PHONY: run test test-all check format bench crosscheck golden pretrain clean help

help:
	@sed -n 's/^#   //p' Makefile; echo; echo "targets: run test test-all check format bench crosscheck golden pretrain clean"

run: $(VENV)/.demo
	$(BIN)/deltamask compare --out $(OUT) --resume $(ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "slow or not slow" $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Quiet machine, please: timings are compared within one run, but not with whatever else is going on.
bench: $(VENV)/.bench
	$(BIN)/python benchmarks/bench_codecs.py $(ARGS)
	$(BIN)/python benchmarks/bench_round.py $(ARGS)

# Beside public packages: nothing is timed. srrcomp comes as source and asks for torch when it is built; in an isolated
# build pip would fetch another one for that.
crosscheck: $(VENV)/.crosscheck
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt --no-deps --no-build-isolation srrcomp
	$(BIN)/python benchmarks/crosscheck.py $(ARGS)

# make golden NAME=rice: writes that codec's frozen bytes anew, which is a new wire format.
golden: $(VENV)/.dev
	$(BIN)/python -m tests.golden $(NAME)

pretrain: $(VENV)/.demo
	$(BIN)/python scripts/pretrain_embedded.py $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# torch goes first and alone: where the index has a CPU build of this version, pip takes it, and nothing that
# follows replaces it.
$(VENV)/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt "$(TORCH)"
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[$*]"
	touch $@
