# On a fresh machine `make demo` and `make test` install everything that they need.
# PYTHON is the interpreter for .venv: CPython 3.11, 3.12 or 3.13, by default the newest of them on this machine.
SHELL := /bin/bash
BIN := .venv/bin
ifndef PYTHON
PYTHON := $(if $(wildcard $(BIN)/uv),$(BIN)/python,$(shell bash scripts/find_python.sh))
endif
DEMO := demo
VERSION := $(wildcard dataprep/__init__.py)  # which the metadata of an editable install repeat
unexport PYTHONDONTWRITEBYTECODE  # with it every process compiles pyarrow and other packages again: 1.1 s each
export HF_HUB_OFFLINE := 1
export HF_DATASETS_OFFLINE := 1
export NO_GCE_CHECK := true
export TF_CPP_MIN_LOG_LEVEL := 3

.PHONY: help python demo test test-all matrix cluster-test gpu-test lint setup setup-core bench-setup constraints audit soak fuzz bench site wheel release clean
help:
	@echo "make demo        set up, pack real photographs as COCO does, build and verify shards, train on them"
	@echo "make test        set up, lint, and test dataprep, the core of the loaders, an adapter and a training"
	@echo "make test ROOM=dataprep/builder  run the tests of one room; needs no more than setup-core"
	@echo "make test-all    set up, lint, and run all tests but the long ones"
	@echo "make matrix      run all tests of the last commit on Python 3.11, 3.12 and 3.13; PYTHONS=\"3.11 3.13\" chooses"
	@echo "make lint        check style, types, import contracts and workflows"
	@echo "make setup-core  install what dataprep, the core of the loaders and their tests need: no torch, TensorFlow or JAX"
	@echo "make setup       install everything for development into .venv, and the peers of the benchmarks into .bench-venv"
	@echo "make bench-setup setup, and the peers of the arena of loaders (8 GB) into .bench-venv/arena"
	@echo "make constraints pin the packages of setup.cfg for every Python; OPTIONS=--upgrade takes the newest; says what changed"
	@echo "make audit       list known vulnerabilities of all pinned packages; fails if there is one"
	@echo "make soak SHOW=crashes  run one long check with its full count; without SHOW list the checks"
	@echo "make fuzz        feed mutated JPEGs to the extensions in C under sanitizers, SECONDS=60 for each; needs clang"
	@echo "make cluster-test  build on a Ray cluster and in parts, while processes and nodes are killed, and compare the bytes"
	@echo "                   CLUSTER=\"ray parts spark beam slurm image\" chooses (spark needs java), KILLS=30 kills so often"
	@echo "make gpu-test    train on an NVIDIA GPU, and compare the losses with those of the processor"
	@echo "make site        build the documentation site, build/site/index.html; a broken link or reference ends it"
	@echo "make wheel       build the wheel with the C extensions, and run it where there is no compiler; ARCH=aarch64 cross-compiles"
	@echo "make release     make the sdist, wheels, bill of materials and checksums, twice with the same bytes, and check them"
	@echo "make bench       measure images/s of a build and of its peers"
	@echo "make bench-TABLE measure one table of benchmarks/README.md again, such as make bench-scale"

python:
	@bash scripts/check_python.sh "$(PYTHON)" $(origin PYTHON)

$(BIN)/uv: | python
	$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9

.venv/.demo: $(BIN)/uv setup.cfg setup.py constraints.txt Makefile $(VERSION) | python
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[demo,report,xla]'
	@touch $@

SOURCES := $(BIN)/uv setup.cfg setup.py constraints.txt Makefile $(VERSION) $(wildcard loaders/decode/_jpeg*.[ch] dataprep/formats/_*.[ch])
.venv/.core: $(SOURCES) | python
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[demo,report,laion,hf,metrics,select,test]'
	touch $@

.venv/.dev: $(SOURCES) | python
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[demo,report,laion,hf,select,beam,ray,tf,torch,xla,jax,grain,finetune,metrics,test,dev]'
	@$(BIN)/python -c 'from loaders import open_decoder; print("loaders decode with", open_decoder().name)'
	touch $@ .venv/.core .venv/.demo

# Peers of the benchmarks whose pins exclude ours: MosaicML's streaming and img2dataset; Grain is with them.
.bench-venv/.peers: $(BIN)/uv benchmarks/peers.in benchmarks/peers-constraints.txt benchmarks/img2dataset-constraints.txt | python
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .bench-venv
	$(BIN)/uv pip install --quiet --python .bench-venv/bin/python -c benchmarks/peers-constraints.txt -r benchmarks/peers.in
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .bench-venv/img2dataset
	$(BIN)/uv pip install --quiet --python .bench-venv/img2dataset/bin/python -r benchmarks/img2dataset-constraints.txt
	touch $@

# Peers of the arena of loaders, for which torch is newer than ours: DALI, SPDL, torchcodec, datasets and Ray Data.
.bench-venv/arena/.peers: .bench-venv/.peers benchmarks/arena.in benchmarks/arena-constraints.txt
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .bench-venv/arena
	$(BIN)/uv pip install --quiet --python .bench-venv/arena/bin/python -c benchmarks/arena-constraints.txt -r benchmarks/arena.in
	touch $@

bench-setup: setup .bench-venv/arena/.peers

# Programs of others that run over our data, without what they share with us.
.bench-venv/diffusers .bench-venv/open_clip .bench-venv/torchtitan: .bench-venv/%: tests/support/%.txt $(BIN)/uv | python
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target $@ -r $<
	touch $@

setup: .venv/.dev .bench-venv/.peers .bench-venv/diffusers .bench-venv/open_clip .bench-venv/torchtitan

setup-core: .venv/.core

constraints: $(BIN)/uv
	bash scripts/constraints.sh $(OPTIONS)

# An audit that cannot ask about a package fails, too: --strict.
audit: $(BIN)/uv
	@for pins in constraints.txt dataprep/data/tpu-*.txt benchmarks/*constraints.txt; do \
		echo "$$pins"; $(BIN)/uv tool run --quiet --python $(BIN)/python --from pip-audit==2.10.1 pip-audit \
			--strict --disable-pip --no-deps --progress-spinner off --requirement $$pins || failed=1; \
	done; exit $${failed:-0}

demo: .venv/.demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/demo.sh $(DEMO)

# Lint keeps one processor busy for half a minute: it runs beside the tests, and its lines come when it ends.
test: QUICK = --quick
test: test-all
ifdef ROOM
test-all: .venv/.core
	$(BIN)/python -m pytest tests/$(ROOM)
else
test-all: setup
	@{ $(MAKE) --no-print-directory lint > .venv/lint.log 2>&1; linted=$$?; cat .venv/lint.log; exit $$linted; } & \
	$(BIN)/python scripts/cpu_time.py $(BIN)/python -m pytest $(QUICK); tested=$$?; \
	wait $$! || { echo "make lint failed: see its lines above, or .venv/lint.log"; exit 1; }; \
	exit $$tested
endif

matrix:
	bash scripts/matrix.sh $(or $(PYTHONS),3.11 3.12 3.13)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[0-9]*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format --default-filetype yaml CITATION.cff
	$(BIN)/zizmor --offline --quiet .github

# Spark is large, and only its tests need it.
.venv/.spark: .venv/.dev
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[spark]'
	touch $@

CLUSTER = ray parts
cluster-test: setup $(if $(filter spark,$(CLUSTER)),.venv/.spark)
	KILLS=$(or $(KILLS),1) $(BIN)/python -m pytest -n 0 -s -rs $(CLUSTER:%=tests/cluster/test_%.py)

gpu-test: setup
	$(BIN)/python -m pytest -n 4 tests/gpu

soak: setup
	$(BIN)/python -m tests.soak $(SHOW)

fuzz: setup
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

# What the site is made with; `make setup` does without it.
.venv/.docs: .venv/.dev
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[docs]'
	touch $@

site: .venv/.docs
	PJRT_DEVICE=CPU PYTHONPATH=docs/site $(BIN)/python -m sphinx -q -b html -E -W -c docs/site -d build/site-doctrees . build/site
	@echo "written: build/site/index.html"

wheel: .venv/.dev
	$(BIN)/python scripts/wheel.py $(if $(ARCH),--arch $(ARCH)) $(if $(PYTHONS),--pythons "$(PYTHONS)") $(if $(PICTURES),--pictures "$(PICTURES)")

release: .venv/.dev
	$(BIN)/python -m scripts.release $(if $(ARCHS),--archs "$(ARCHS)") $(if $(PYTHONS),--pythons "$(PYTHONS)")

bench: setup
	$(BIN)/python benchmarks/build.py

# Tables of benchmarks/README.md, each in less than ten minutes on two quiet cores: make bench-scale
BENCH_build = build.py --rounds 4
BENCH_build-sources = build_sources.py --images 3000 --rounds 3
BENCH_own-data = own_data.py --rounds 3
BENCH_laion = laion.py --images 2000 --rounds 3
BENCH_engines = engines.py --images 8000 --rounds 3
BENCH_arena = loader_arena.py --images 1500 --taken 400 --minutes 9 --picture docs/arena.png
BENCH_formats = loader_arena.py --images 3000 --contenders formats
BENCH_restart = restart.py --images 3000
BENCH_views = views.py
BENCH_grain = grain_sources.py --images 1000 --rounds 3
BENCH_packs = packs.py
BENCH_resume = resume.py --loaders dataprep LanceDB "datasets streaming" --picture docs/resume.png
BENCH_scale = scale.py
BENCH_index-rows = index_rows.py
bench-%:
	@test -n '$(BENCH_$*)' || { echo "no table $*; there are: $(patsubst BENCH_%,%,$(filter BENCH_%,$(.VARIABLES)))"; exit 1; }
	$(BIN)/python benchmarks/$(BENCH_$*) --json benchmarks/results/$*.json $(OPTIONS)

clean:
	rm -rf $(DEMO) build
