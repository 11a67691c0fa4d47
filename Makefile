# Every target that builds or tests first runs scripts/setup, which is quick when there is nothing to do. The work is in scripts/.
.DEFAULT_GOAL := help
SHELL := bash
REPEAT ?= 1
PHASES ?=
SERVER ?=
QUICK ?=
BENCH ?=
TOPOLOGY ?= single
SCALE ?= usual
TARGET ?= all
PERMITS ?=
server = $(if $(SERVER),--server $(SERVER))

.PHONY: help setup servers build wasm demo test test-rest test-all conformance failover bench sim planted faults fuzz soak lint fmt docs docs-site dist clean test-platforms

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## install what building and testing need into .tools/ (no root); quick the second time
	@scripts/setup

wasm: setup ## the WebAssembly module, into bindings-node/redlatch.wasm; says its size
	@scripts/build wasm

build: setup ## build every language's face for use from this checkout
	@scripts/build

servers: setup ## get the servers that SERVER= can name into .tools/, and list them
	@scripts/servers

demo: ## the flash sale: all languages sell the same 100 items, without and with the lock; builds what that takes
	@scripts/demo

test: setup ## every language's suite and the short scenarios; SERVER=redis-6.2 on that server, REPEAT=10 ten times beside a load, PHASES="rust c" some of scripts/tests.toml
	@scripts/test $(server) --repeat $(REPEAT) $(PHASES)

test-all: setup ## all that continuous integration runs
	@scripts/test --set all $(server) --repeat $(REPEAT)

test-rest: setup ## what `make test-all` runs besides `make test`
	@scripts/test --set rest $(server) --repeat $(REPEAT)

test-%: setup
	@scripts/test $(server) --repeat $(REPEAT) $*

conformance: build ## every scenario in every language and against real Redisson, in its long form; TOPOLOGY=sentinel or cluster; writes its report
	@. scripts/env.sh && python conformance/run.py --long --topology $(TOPOLOGY) --report conformance/REPORT$(patsubst -single,,-$(TOPOLOGY)).md

failover: build ## fail-overs and moved slots under load, on Sentinel and Cluster; checks and times them; PERMITS=5 of semaphores
	@. scripts/env.sh && python conformance/failover.py $(if $(PERMITS),--limit $(PERMITS) --holds 200 --waiters 300)

bench: setup ## ours beside the lock libraries of today, floors and limits; writes docs/performance.md; QUICK=1 takes minutes
	@. scripts/env.sh && python scripts/bench $(if $(QUICK),--quick) $(BENCH)

sim: setup ## new seeds of the simulation for MINUTES=1 on THREADS=1, or SEEDS=n of them; SEED=n replays one
	@scripts/sim

planted: setup ## plants known bugs in a copy, one after the other, and tells which tests find each, and how fast
	@. scripts/env.sh && python faults/planted.py

faults: build ## the fault matrix: what goes wrong x what the program is doing x language, on real servers; SCALE=full a million names and the like
	@$(if $(filter full,$(SCALE)),scripts/build --release &&) . scripts/env.sh && \
		python faults/matrix.py $(if $(filter full,$(SCALE)),--scale full --release) 2>$${CARGO_TARGET_DIR}/faults.log

fuzz: setup ## what comes from outside, mutated for MINUTES=0.5 a target; the C API with hostile calls
	@scripts/fuzz

soak: setup ## all languages at once with random faults for MINUTES=2, built with optimisations; the recorded history is checked; MODEL=permits of semaphores, MODEL=counters of plain ones and latches, MODEL=multi of multi locks, MODEL=quorum of quorums
	@. scripts/env.sh && scripts/build --release python node && python faults/soak.py --model $(or $(MODEL),lock) --minutes $(or $(MINUTES),2) 2>$${CARGO_TARGET_DIR}/soak.log

lint: setup ## formatting, clippy, ruff, mypy, JavaScript and TypeScript checks, and the house gates
	@scripts/lint

fmt: setup ## format Rust and Python
	@scripts/lint --fix

docs: setup ## the Rust documentation, into target/doc
	@. scripts/env.sh && RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --package redlatch

docs-site: setup ## the pages and API references as a site, into target/site/html; checks every link
	@scripts/docs-site

test-platforms: setup ## packages for every system that scripts/dist builds for, built and tested; TARGET= for one
	@scripts/setup-cross && scripts/dist $(TARGET) && scripts/test-platforms $(filter-out all,$(TARGET))

dist: setup ## wheel, sdist, npm packages, crates, C tarball and Debian packages into dist/
	@scripts/dist

.PHONY: release reproducible
release: setup ## VERSION=0.1.0: checks, tests, builds everything into dist/ and tries the uploads; DRY=1 leaves the tests out and tells all that is missing
	@scripts/release $(or $(VERSION),$(error VERSION= names the release)) $(if $(DRY),--dry)

reproducible: setup ## the packages built twice, in different folders, are the same to the last byte (TARGETS=, of those that scripts/dist builds)
	@scripts/reproducible $(TARGETS)

clean: ## remove all that was built; what setup installed stays
	rm -rf dist target bindings-node/*.node bindings-python/python/redlatch/*.so
