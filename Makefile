# make serve     everything to a running server: environment, demo model, http://127.0.0.1:8000
# make test      the same environment with the development tools, then the whole test suite
# make check     format, lint, types
# make bench     the measurements of docs/log.md, with the peers in the same run
# make test-peers  the tests that need other servers and frameworks, each in an environment of its own (4 GB in all)
# make test-llamacpp  logits of llama.cpp's own files against ours; llama.cpp is compiled first
# make test-clients  one conversation through frameworks for agents, each in an environment of its own (1.5 GB in all)
# make test-emulated  the kernels on instruction sets that this machine lacks (needs qemu-user, libsimde-dev, an ARM compiler)
# make proto     compiles the messages of the gRPC door again after a change in their .proto file
# make wheel     a wheel in dist/ that installs where no compiler is
# make native    builds the C++ extension again after a change in native/
# make clean     removes what the others made

PYTHON ?= python3
VENV ?= .venv
MODEL ?= demo
FLAGS ?=
PYTEST_FLAGS ?=

BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check --constraint constraints.txt
PIP := $(BIN)/python -m pip install $(PIP_FLAGS)
SOURCES_OF_BUILD := pyproject.toml constraints.txt $(wildcard native/*.txt native/*.cpp native/*.h native/*/*.cpp native/*/*.h)

.PHONY: proto serve test test-peers test-llamacpp test-clients test-emulated check format bench native wheel clean requirements
.DELETE_ON_ERROR:

serve: $(VENV)/.ready
	$(BIN)/headway serve $(MODEL) $(FLAGS)

test: $(VENV)/.ready-dev
	$(BIN)/headway pull demo
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

check: $(VENV)/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src

format: $(VENV)/.ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready-dev
	bash benchmarks/run.sh $(BIN)/python

# Tests marked `peers`: what those environments hold is pinned whole, and wheels alone. They are compiled once: else each
# process would do it, where Python is told to keep nothing, and PyTorch and TensorFlow are half a minute of it.
PEER_ENVIRONMENTS := $(patsubst tests/peers/environments/%.txt,.venvs/%/.ready,$(wildcard tests/peers/environments/*.txt))

test-peers: $(VENV)/.ready-dev $(PEER_ENVIRONMENTS)
	$(BIN)/headway pull demo
	$(BIN)/python -m pytest -m peers $(PYTEST_FLAGS)

.venvs/%/.ready: tests/peers/environments/%.txt | requirements
	$(PYTHON) -m venv --clear .venvs/$*
	.venvs/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
	  --requirement $<
	@touch $@

# Tests marked `llamacpp`, which continuous integration leaves out: llama.cpp is compiled once, in about 15 minutes, and
# kept in .cache/bench.
test-llamacpp: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -m llamacpp $(PYTEST_FLAGS)

# Tests marked `clients`: what those environments hold is pinned whole, so that none of it changes by itself.
CLIENT_ENVIRONMENTS := $(patsubst tests/clients/environments/%.txt,.venvs/%/.ready,$(wildcard tests/clients/environments/*.txt))

test-clients: $(VENV)/.ready-dev $(CLIENT_ENVIRONMENTS)
	$(BIN)/headway pull demo
	$(BIN)/python -m pytest -m clients tests/clients $(PYTEST_FLAGS)

.venvs/%/.ready: tests/clients/environments/%.txt | requirements
	$(PYTHON) -m venv --clear .venvs/$*
	.venvs/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --requirement $<
	@touch $@

test-emulated: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -m emulated tests/native $(PYTEST_FLAGS)

RPC := src/headway/server/oip/rpc
proto: $(VENV)/.ready-dev
	$(BIN)/python -m grpc_tools.protoc --proto_path=$(RPC) --descriptor_set_out=$(RPC)/open_inference.binpb open_inference.proto

# auditwheel names the wheel after the oldest systems that have all its symbols.
wheel: $(VENV)/.ready-dev
	rm -rf build/wheel dist
	$(BIN)/python -m pip wheel $(PIP_FLAGS) --no-deps --wheel-dir build/wheel .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/headway-*.whl
	@ls -l dist

native: $(VENV)/.ready-dev
	$(PIP) --no-build-isolation --no-deps --editable .

clean:
	rm -rf $(VENV) .venvs build dist .mypy_cache .ruff_cache .pytest_cache

requirements:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Headway needs Python 3.11 or newer as $(PYTHON): install it, or run make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing: apt install python3-venv"; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || \
	  { echo "Python's headers are missing: apt install python3-dev"; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || { echo "A C++ compiler is missing: apt install g++"; exit 1; }

$(BIN)/python: | requirements
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: $(SOURCES_OF_BUILD) | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(PIP) --editable '.[dev]'
	@touch $@
