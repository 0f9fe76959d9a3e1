# Thin on purpose: what a target does is in tools/, and each line can be run by hand.
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cdc test test-deep verify search mutants fuzz check proto bench bench-peers bench-budget \
	sim failed-flushes soak site compose-test dist try-dist clean

PYTHON := .venv/bin/python
# Where it is set, every run would compile the tests and the simulator again.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

setup: ## .venv, dependencies, native code; idempotent, seconds when nothing changed
	@tools/setup.sh

demo: setup ## the main job, end to end; KEEP=1 leaves the cluster up
	@$(PYTHON) -m headrace_pipelines.demo

demo-cdc: setup ## change data capture on a real PostgreSQL under pgbench (Debian: postgresql, maven, a JRE 17)
	@$(PYTHON) -m headrace_pipelines run cdc

test: setup ## pure tests, and one journey on real processes for each area (5 minutes)
	@tools/test.sh test

test-deep: setup ## the other tests that need only Python and Java (25 minutes)
	@tools/test.sh deep

verify: setup ## all of it, with Kafka's jars, a KDC, a browser, Docker and long runs, in shards that resume (hours)
	@$(PYTHON) tools/verify.py $(SHARDS)

search: setup ## chance: random schedules, histories, inputs and faults (MINUTES=30 SEED=1)
	@$(PYTHON) tools/search.py --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1)

mutants: setup ## one-line faults of the product that the tests must find (ONLY=regex)
	@$(PYTHON) tools/mutants.py $(if $(ONLY),--only '$(ONLY)')

fuzz: setup ## the fuzz targets for a while (SECONDS=300 TARGETS="recovery swaps"); failures in build/fuzz
	@$(PYTHON) -m tests.fuzz.run_fuzz --seconds $(or $(SECONDS),300) $(TARGETS)

check: setup ## ruff, mypy, import contracts, fresh generated files, no breaking change of the protocol
	@tools/check.sh

proto: setup ## generate the protos' code anew, and record compatible additions
	@$(PYTHON) tools/proto_tool.py generate

bench: setup ## benchmarks of Headrace alone; make bench-NAME runs bench/NAME.py (replicated, java_clients, spark, …)
	@$(PYTHON) bench/run.py $(BENCH)

bench-peers: setup ## beside Apache Kafka, in one run (JDK, Maven); three replicas: bench-replicated BENCH=--peers
	@$(PYTHON) bench/peers.py $(BENCH)

bench-budget: setup ## Python frames, system calls and copied bytes of each path; fails on growth (strace)
	@$(PYTHON) bench/budget.py $(BENCH)

bench-%: setup
	@$(PYTHON) bench/$*.py $(BENCH)

sim: setup ## the simulator: SCHEDULES=10000 SEED=1; one schedule is told (SCHEDULES=1 SEED=4711 MUTANT=name)
	@$(PYTHON) -m tests.simulation.run --schedules $(or $(SCHEDULES),1000) --seed $(or $(SEED),1) \
		$(if $(MUTANT),--mutant $(MUTANT)) $(SIM)

failed-flushes: setup ## EIO, restart, power loss: SEEDS=200 of each programme, SEED=1 the first (docs/simulation.md)
	@$(PYTHON) -m tests.simulation.failed_flushes --seeds $(or $(SEEDS),200) --seed $(or $(SEED),1) $(PROGRAMMES)

soak: setup ## a cluster under load with a kill -9 a minute (MINUTES=120); lost records, memory growth (docs/soak.md)
	@$(PYTHON) -m tests.system.soak.soak --minutes $(or $(MINUTES),5) $(SOAK)

site: setup ## the pages, the API from docstrings and a search over both, as a site in build/site
	@$(PYTHON) tools/site.py

compose-test: setup ## the cluster in containers: images, scaling, faults (a Docker engine with Compose v2)
	@tools/compose_test.sh

dist: setup ## wheels and sdists of every distribution in dist/ (docs/releasing.md)
	@$(PYTHON) tools/build_dist.py

try-dist: setup ## install dist/ as a user does, without a compiler, and use it; TRY=--without-constraints
	@$(PYTHON) tools/try_dist.py $(TRY)

clean: ## what was built, but not .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
