# What a person types here. Every target makes what it needs; nothing outside this folder is changed.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-for-tests
ROOMS  := agent client coordinator mesh sandbox tls

.PHONY: help demo test test-full check lint types unit bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml packaging/build_hook.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

# kp-init is C: an editable install builds it once; this rebuilds it when its source changed.
KP_INIT := sandbox/kernpool_sandbox/_bin/kp-init
$(KP_INIT): $(STAMP) $(wildcard sandbox/kernpool_sandbox/init/*)
	PYTHONPATH=sandbox $(BIN)/python -c "from kernpool_sandbox.kpinit import binary; binary.find()"
	@touch $@

demo: $(KP_INIT) ## one job and 240 sandboxes on this machine (KEEP=1 leaves it running)
	$(BIN)/python examples/demo.py

test: $(KP_INIT) ## linters, types, layers, unit, integration and house tests
	$(BIN)/python -m pytest -m 'not full'

test-full: $(KP_INIT) ## what `make test` leaves out because it is long
	$(BIN)/python -m pytest -m full

check: $(KP_INIT) ## linters, types and layers alone
	$(BIN)/python -m pytest tests/house

bench: $(KP_INIT) ## every benchmark, one table each
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

clean: ## remove what the targets made
	rm -rf $(VENV) sandbox/kernpool_sandbox/_bin build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache
