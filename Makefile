# Two commands do everything, set-up included: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEED ?= 1
# Most tests wait more than they compute.
WORKERS ?= 3

.PHONY: help install demo test test-unit test-seeds check format bench bench-peers pins clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

install: $(STAMP) ## create .venv and install everything that is pinned in constraints.txt

$(STAMP): pyproject.toml constraints.txt tools/install.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) bash tools/install.sh
	@touch $(STAMP)

demo: ## install, start a local cluster with real vLLM, kill a replica, write a report, clean up
	@export BROWNOUT_DEMO_STARTED=$$(date +%s); $(MAKE) --no-print-directory $(STAMP) && exec $(BIN)/brownout demo --seed $(SEED)

test: test-unit ## every test that this machine can run; real vLLM included
	$(BIN)/python -m pytest tests -m "cluster or docker"

test-unit: $(STAMP) ## the tests that need no cluster and no container engine, several files at a time
	$(BIN)/python -m pytest tests -m "not cluster and not docker" -n $(WORKERS) --dist loadfile

test-seeds: $(STAMP) ## every scenario with three seeds on the local cluster; about half an hour
	BROWNOUT_SEEDS=3 $(BIN)/python -m pytest tests/experiments -m cluster

check: $(STAMP) ## format, lint, strict types, import contracts, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_docs.py

format: $(STAMP) ## format and apply the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## what policies, gateway, records and link proxy cost, and what full replicas give through them
	$(BIN)/python -m tests.bench.policy_cost
	$(BIN)/python -m tests.bench.gateway_cost --rounds 2
	$(BIN)/python -m tests.bench.linkproxy_cost
	$(BIN)/python -m tests.bench.state_cost
	$(BIN)/python -m tests.bench.throughput --fakes --calls-per-caller 5 --without-peers
	$(BIN)/python -m tests.bench.throughput

bench-peers: $(STAMP) ## install other gateways (where they can be had) and measure full replicas through them too
	@PYTHON=$(BIN)/python bash tools/peers.sh
	$(BIN)/python -m tests.bench.throughput

pins: $(STAMP) ## write constraints.txt anew from the environment
	@{ head -2 constraints.txt; $(BIN)/pip freeze --exclude-editable; } > constraints.new && mv constraints.new constraints.txt

clean: ## remove the virtual environment and caches (reports stay)
	rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
