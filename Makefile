# Two commands do everything on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
DEMO := demo
unexport PYTHONDONTWRITEBYTECODE  # every process would compile pyarrow and the like again: 1.1 s each
export HF_HUB_OFFLINE := 1
export HF_DATASETS_OFFLINE := 1
export NO_GCE_CHECK := true
export TF_CPP_MIN_LOG_LEVEL := 3

.PHONY: help demo test cluster-test lint setup soak bench bench-setup clean
help:
	@echo "make demo        set up, pack real photographs as COCO packs them, build and verify shards, train on them"
	@echo "make test        set up and run all tests"
	@echo "make lint        style, types, import contracts"
	@echo "make setup       everything for development into .venv"
	@echo "make soak SHOW=n run one long check at its full count: 2 3 4 5 9 load-resume load-memory replicate fetch laion-statuses laion-crash laion-memory train-exact train-devices train-learns"
	@echo "make cluster-test  the same bytes on real engines on loopback; KILLS=10 is the soak (needs java, mvn, go)"
	@echo "make bench       images/s of a build beside its peers (make bench-setup first)"

$(BIN)/uv:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

.venv/.demo: $(BIN)/uv setup.cfg setup.py constraints.txt Makefile
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[demo,report,xla]'
	touch $@

.venv/.dev: $(BIN)/uv setup.cfg setup.py constraints.txt Makefile $(wildcard loaders/_jpeg*.[ch])
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[demo,report,laion,beam,tf,torch,xla,jax,finetune,dev]'
	@$(BIN)/python -c 'from loaders.decode import open_decoder; print("loaders decode with", open_decoder().name)'
	touch $@ .venv/.demo

setup: .venv/.dev

demo: .venv/.demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/demo.sh $(DEMO)

test: .venv/.dev lint
	$(BIN)/python -m pytest

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

cluster-test: .venv/.dev
	KILLS=$(or $(KILLS),1) $(BIN)/python -m pytest -n 0 -s -rs tests/cluster

soak: .venv/.dev
	$(BIN)/python -m tests.soak $(SHOW)

bench: .venv/.dev
	$(BIN)/python benchmarks/build.py

bench-setup: .venv/.dev
	bash benchmarks/setup_peers.sh

clean:
	rm -rf $(DEMO) build
