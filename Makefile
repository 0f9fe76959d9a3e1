# Thin on purpose: what a target does is in tools/, and each line can be run by hand.
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cdc test fuzz check proto bench bench-peers bench-replicated bench-peers-replicated bench-failover \
	bench-pipelines bench-hostile bench-fairness bench-budget bench-partitions bench-metadata bench-quorum bench-groups bench-idle bench-transactions \
	bench-gateway bench-security bench-curves bench-in-a-row sim \
	failed-flushes soak site verify \
	compose-test dist try-dist clean

PYTHON := .venv/bin/python
# Where it is set, every run would compile the tests and the simulator again.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

setup: ## .venv, dependencies, native code; idempotent, seconds when nothing changed
	@tools/setup.sh

demo: setup ## the main job, end to end; KEEP=1 leaves the cluster up
	@$(PYTHON) -m headrace_pipelines.demo

demo-cdc: setup ## change data capture on a real PostgreSQL under pgbench (Debian: postgresql, maven, a JRE 17)
	@$(PYTHON) -m headrace_pipelines run cdc

test: setup ## the whole suite but what needs Docker or Kafka's jars
	@tools/test.sh

fuzz: setup ## the fuzz targets for a while (SECONDS=300 TARGETS="recovery swaps"); failures in build/fuzz
	@$(PYTHON) -m tests.fuzz.run_fuzz --seconds $(or $(SECONDS),300) $(TARGETS)

check: setup ## ruff, mypy, import contracts, fresh generated files, no breaking change of the protocol
	@tools/check.sh

proto: setup ## generate the protos' code anew, and record compatible additions
	@$(PYTHON) tools/proto_tool.py generate

bench: setup ## our benchmarks: codec, produce, consume, latency, connections, gRPC echo
	@$(PYTHON) bench/run.py $(BENCH)

bench-peers: setup ## the same beside Apache Kafka and its clients, in one run (Java, Maven)
	@$(PYTHON) bench/peers.py $(BENCH)

bench-replicated: setup ## three replicas: throughput, latencies, the headline of 500,000 records/s (BENCH="--only REGEX --save")
	@$(PYTHON) bench/replicated.py $(BENCH)

bench-peers-replicated: setup ## the same beside three nodes of Apache Kafka, in one run (Java, Maven)
	@$(PYTHON) bench/replicated.py --peers $(BENCH)

bench-budget: setup ## Python frames, system calls and copied bytes per record, hop by hop; fails on growth (strace; BENCH=--save)
	@$(PYTHON) bench/budget.py $(BENCH)

bench-failover: setup ## leaders killed, frozen, moved under load: how long nobody may write (half an hour)
	@$(PYTHON) bench/failover.py $(BENCH)

bench-fairness: setup ## live traffic beside readers and producers at full speed: its p50 and p99
	@$(PYTHON) bench/fairness.py $(BENCH)

bench-hostile: setup ## hostile clients beside a well-behaved one: its p99, and the brokers' memory (minutes)
	@$(PYTHON) bench/hostile.py $(BENCH)

bench-quorum: setup ## three controllers: failovers, hand-overs, metadata writes a second (minutes)
	@$(PYTHON) bench/quorum.py $(BENCH)

bench-groups: setup ## consumer groups: joins, restarts, deaths, coordinators killed, heartbeats, commits, lag (minutes)
	@$(PYTHON) bench/groups.py $(BENCH)

bench-transactions: setup ## transactions beside three nodes of Apache Kafka, in one run (Java, Maven; BENCH=--short: 3 minutes)
	@$(PYTHON) bench/transactions.py $(BENCH)

bench-gateway: setup ## Kafka's clients through a gateway beside Apache Kafka, in one run (Java, Maven; BENCH=--short is only a smoke test)
	@$(PYTHON) bench/gateway.py $(BENCH)

bench-security: setup ## what TLS costs, beside Apache Kafka, in one run (Java, Maven; BENCH=--short is only a smoke test)
	@$(PYTHON) bench/security.py $(BENCH)

bench-curves: setup ## throughput and p99 against partitions, producers, sizes, groups, brokers, beside Apache Kafka (BENCH=--short: 5 minutes)
	@$(PYTHON) bench/curves.py $(BENCH)

bench-in-a-row: setup ## ten runs in a row on one cluster of three brokers: throughput and p99 of the last and of the first
	@$(PYTHON) bench/in_a_row.py $(BENCH)

bench-idle: setup ## what an idle cluster costs; how long until its first record; 20 tests on the fixture (minutes)
	@$(PYTHON) bench/idle.py $(BENCH)

bench-partitions: setup ## 5,000 partitions on one broker, and its start with long logs (minutes)
	@$(PYTHON) bench/partitions.py $(BENCH)

bench-metadata: setup ## 100,000 partitions in the metadata: create, decide, snapshot, load, follow
	@$(PYTHON) bench/metadata.py $(BENCH)

bench-pipelines: setup ## clickstream and lake beside Spark's connector for Kafka, in one run (Java, Maven; BENCH=--smoke: minutes)
	@$(PYTHON) bench/pipelines.py $(BENCH)

sim: setup ## the simulator: SCHEDULES=10000 SEED=1; one schedule is told (SCHEDULES=1 SEED=4711 MUTANT=name)
	@$(PYTHON) -m tests.simulation.run --schedules $(or $(SCHEDULES),1000) --seed $(or $(SEED),1) \
		$(if $(MUTANT),--mutant $(MUTANT)) $(SIM)

failed-flushes: setup ## EIO, restart, power loss: SEEDS=200 of each programme, SEED=1 the first (docs/simulation.md)
	@$(PYTHON) -m tests.simulation.failed_flushes --seeds $(or $(SEEDS),200) --seed $(or $(SEED),1) $(PROGRAMMES)

soak: setup ## a cluster under load with a kill -9 a minute (MINUTES=120); lost records, memory growth (docs/soak.md)
	@$(PYTHON) -m tests.system.soak.soak --minutes $(or $(MINUTES),5) $(SOAK)

site: setup ## the pages, the API from docstrings and a search over both, as a site in build/site
	@$(PYTHON) tools/site.py

verify: setup ## everything, in shards that resume (state in build/verify)
	@$(PYTHON) tools/verify.py

compose-test: setup ## the cluster in containers: images, scaling, faults (a Docker engine with Compose v2)
	@tools/compose_test.sh

dist: setup ## wheels and sdists of every distribution in dist/ (docs/releasing.md)
	@$(PYTHON) tools/build_dist.py

try-dist: setup ## install dist/ as a user does, without a compiler, and use it; TRY=--without-constraints
	@$(PYTHON) tools/try_dist.py $(TRY)

clean: ## what was built, but not .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
