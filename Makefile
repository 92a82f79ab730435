# Each target makes .venv and installs what it needs first; nothing else on the machine is touched.

PYTHON ?= python3
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
DATA ?=
BENCH ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help demo test check bench wheel clean

help:
	@echo "make demo    images -> shards -> training on 2 ranks -> stop -> resume; DATA=folder takes a captions.tsv"
	@echo "make test    the tests, without the slow sweeps"
	@echo "make check   lint, types, all tests, coverage"
	@echo "make bench   speed beside other loaders, each in an environment of its own; BENCH='--samples 2000' and the like"
	@echo "make wheel   the distribution, in dist/"

demo: $(INSTALLED)
	$(BIN)/python tools/demo.py $(if $(DATA),--data "$(DATA)")

test: $(INSTALLED)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not slow"

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=tools $(BIN)/mypy --allow-untyped-calls --no-warn-unused-ignores tools/demo.py examples
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --cov --cov-report=term --cov-fail-under=90

bench: $(INSTALLED)
	$(BIN)/python tools/bench/peers.py --setup $(BENCH)

wheel: $(INSTALLED)
	$(BIN)/python -m build --wheel

$(INSTALLED): pyproject.toml tools/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c tools/constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf build dist demo-output *.egg-info .coverage .coverage.*
