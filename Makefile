# On a fresh machine start with `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# uv takes a fraction of pip's time; if it cannot be installed, pip does the same
comma := ,
define INSTALL
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing negbench[$(1)] and what it needs into $(VENV)"
	@$(BIN)/python -m pip install --disable-pip-version-check -q uv \
		&& $(BIN)/uv pip install --python $(BIN)/python -e '.[$(1)]' -c constraints.txt \
		|| $(BIN)/python -m pip install --disable-pip-version-check -e '.[$(1)]' -c constraints.txt
	touch $@
endef

$(VENV)/.full: pyproject.toml constraints.txt
	$(call INSTALL,full$(comma)fast)

$(VENV)/.pictures: pyproject.toml constraints.txt
	$(call INSTALL,full$(comma)fast$(comma)pictures)
	touch $(VENV)/.full

$(STAMP): pyproject.toml constraints.txt
	$(call INSTALL,dev)
	touch $(VENV)/.full $(VENV)/.pictures

install: $(STAMP) ## create .venv and install negbench with everything it needs

demo: $(VENV)/.full ## does a mined negative help without the batch, and beside it? A small world: tables, reports, MLflow store in runs/
	$(BIN)/negbench compare --recipe demo-single --workers 2 --name demo-single --no-report --tracking-uri none
	$(BIN)/negbench compare --recipe demo --workers 2 --name demo

pictures: $(VENV)/.pictures ## real pictures: fetch four icon packages with npm, draw, encode, compare in runs/emoji; needs npm and a registry
	$(BIN)/negbench data fetch emoji --out data/emoji
	$(BIN)/negbench compare --recipe emoji --data-root data/emoji --workers 2 --name emoji

CARD ?= demo
card: $(VENV)/.full ## a result card for docs/cards: make card CARD=demo, or another recipe of a comparison (emoji after `make pictures`)
	$(BIN)/negbench compare --recipe $(CARD) --workers 2 --name $(CARD) $(if $(wildcard data/$(CARD)),--data-root data/$(CARD))
	$(BIN)/negbench report $(CARD) --card --galleries 0
	cp runs/$(CARD)/card.json docs/cards/$(CARD).json

test faults attack: export PYTHONDONTWRITEBYTECODE = # keep bytecode: tests start many interpreters, and pytest rewrites their files
test faults attack: export OMP_WAIT_POLICY = passive # a test of two threads beside another test: a waiting thread leaves its core
test: $(STAMP) ## run all tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

gpu: $(STAMP) ## run the tests that need a GPU
	$(BIN)/python -m pytest -q -m gpu

faults: $(STAMP) ## the tests of docs/reliability.md at length: a kill at every write, 50 damaged files of each kind, a Ray node killed
	NEGBENCH_FAULTS=1 $(BIN)/python -m pytest -q --timeout 3600 tests/reliability tests/test_executors.py tests/test_cluster.py tests/grid/test_jobs.py

mutants: $(STAMP) ## mutation tests: the tests must fail on single faults in the code (SAMPLE=40 of each GROUP, SEED=0)
	$(BIN)/python tests/mutants.py $(GROUP) --sample $(or $(SAMPLE),40) --seed $(or $(SEED),0)

pinned: $(STAMP) ## verdicts of stored values, equal on every machine; then small comparisons of every kind, on one machine
	$(BIN)/python -m tests.pinned.verdicts
	$(BIN)/python -m tests.pinned.pins

fuzz: $(STAMP) ## try 10,000 strange options and files, new ones each time: none may end in a traceback; and every setting and option: none does nothing in silence
	NEGBENCH_FUZZ=10000 $(BIN)/python -m pytest -q --timeout 0 tests/reliability/test_fuzz.py \
		tests/reliability/test_settings.py tests/reliability/test_command_options.py tests/loop/test_precision.py

attack: $(STAMP) ## kill grids and studies at random moments, and compare their tables (KILLS=200, SEED=0)
	$(BIN)/python -m tests.reliability.attack --kills $(or $(KILLS),200) --seed $(or $(SEED),0)

lint: $(STAMP) ## ruff, mypy, import rules, hadolint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/hadolint Dockerfile

advice: $(STAMP) ## known vulnerabilities of dependencies
	@$(BIN)/pip-audit --skip-editable --progress-spinner off --timeout 5 2>/dev/null | grep -v "could not be audited" \
		|| echo "pip-audit: no look-up was possible (advice only)"

docs: $(STAMP) ## build the documentation site in build/site, without network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q
	@echo "build/site/index.html; to search in it, serve it: $(BIN)/python -m http.server -d build/site"

bench: $(STAMP) ## run the benchmarks, each a table of ratios within one run
	@for file in tests/benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

system: ## install Debian packages for the browser tests (as root); without them those tests are skipped
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends chromium

.PHONY: help install demo pictures card test gpu advice faults attack fuzz mutants pinned lint docs bench system
