# Everything is done from here; `make help` lists it. Nothing has to be installed or activated before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVER := $(VENV)/.server-installed
DEV := $(VENV)/.dev-installed
TOOLS := $(VENV)/.tools-installed
SERVE_FLAGS ?=
FUZZ_MINUTES ?= 10
BENCH_FLAGS ?=
# A process for each core; each file has its servers in one of them.
PYTEST_FLAGS ?= --numprocesses auto --dist loadfile
SOAK_MINUTES ?= 60
SOAK_FLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help serve test check format lock licences generate zoo zoo-full tools dashboard dashboard-picture fidelity-table fuzz soak reliability-table bench bench-smoke default-tokenizer clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("tokend needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(SERVER): pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing the server into $(VENV), once' >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[server]'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing the server and the development tools into $(VENV), once' >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(SERVER)

$(TOOLS): tests/tools.txt constraints.txt $(DEV)
	@echo 'installing the tools of tests/tools.txt into $(VENV), once' >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement tests/tools.txt
	@touch $@

serve: $(SERVER) ## run the server on the embedded tokenizer (SERVE_FLAGS for more)
	@exec $(BIN)/tokend serve $(SERVE_FLAGS)

test: $(DEV) ## run all tests; those that need packages from the registries skip where these are not cached
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

check: $(DEV) ## run all that needs no running: format, lint, types, imports, proto, generated code, docs
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTHON) proto/generate.py --check
	$(BIN)/python -m pytest --quiet tests/repo tests/contract/test_proto.py

format: $(DEV) ## format the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lock: $(DEV) ## pin what the server's image installs, with hashes (deploy/docker/requirements.txt)
	$(BIN)/uv pip compile pyproject.toml --extra server --extra native --extra otel --constraint constraints.txt \
		--universal --python-version 3.11 --generate-hashes --no-annotate --quiet \
		--custom-compile-command 'make lock' --output-file deploy/docker/requirements.txt

licences: $(DEV) ## list the licences of what the server's image installs (docs/licences.md)
	$(BIN)/python -m tests.repo.licences

generate: ## make the generated code again
	$(PYTHON) proto/generate.py

zoo: $(DEV) ## fetch the real tokenizers that the tests use (the core set)
	$(BIN)/python -m tests.zoo.fetch

tools: $(TOOLS) ## fetch the programs that the tests run: Prometheus, Envoy, kubectl, hadolint, schemas
	$(BIN)/python -m tests.observability.prometheus

dashboard: $(DEV) ## write the Grafana dashboard again
	$(BIN)/python deploy/grafana/make_dashboard.py

dashboard-picture: tools ## draw docs/dashboard.png again: the dashboard's data under a load of a minute
	$(BIN)/python -m tests.observability.picture docs/dashboard.png

zoo-full: $(DEV) ## fetch the whole zoo and compare all of it with the reference, on both engines (over an hour)
	$(BIN)/python -m tests.zoo.fetch --all
	TOKEND_ZOO_SET=full TOKEND_ZOO_REQUIRED=1 $(BIN)/python -m pytest tests/equivalence
	TOKEND_ENGINE=auto TOKEND_ZOO_SET=full TOKEND_ZOO_REQUIRED=1 $(BIN)/python -m pytest tests/equivalence/test_zoo.py

fidelity-table: $(DEV) ## make the table of docs/fidelity.md again (half an hour; needs the whole zoo)
	$(BIN)/python -m tests.equivalence.report

fuzz: $(DEV) ## look for new examples that differ from the reference, for FUZZ_MINUTES
	$(BIN)/python -m tests.equivalence.fuzz --minutes $(FUZZ_MINUTES)

bench: zoo ## compare with the libraries, echoes and a peer (10 minutes; BENCH_FLAGS, docs/benchmarks.md)
	$(BIN)/python -m benchmarks $(BENCH_FLAGS)

bench-smoke: zoo ## run the code of the benchmarks on very little of everything
	$(BIN)/python -m benchmarks --smoke

soak: $(DEV) ## run mixed load for SOAK_MINUTES, check every answer, and see that nothing grows (docs/reliability.md)
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES) $(SOAK_FLAGS)

reliability-table: $(DEV) ## put the server through every fault at length, and write the tables of docs/reliability.md
	$(BIN)/python -m tests.faults.report

default-tokenizer: $(DEV) ## train the embedded default tokenizer again
	$(BIN)/python -m tokend_server.data.train_default

clean: ## remove what the targets made
	rm -rf $(VENV) .venv-proto build dist .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
