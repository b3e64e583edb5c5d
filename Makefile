# `make demo` and `make test` need no other set-up.
BIN := .venv/bin
# Test suites start thousands of processes: cache compiled bytecode, even if the shell disables it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow fuzz fuzz-serve lock sbom audit test-fresh-machine test-3.10 test-docker test-kubernetes test-slurm test-ssh test-chaos test-load check bench results clean

help:
	@echo "make demo   train, evaluate, export and try a captioner on drawn scenes, here"
	@echo "make test   the tests that train nothing and start no foreign server: five minutes"
	@echo "make test-slow  the other tests that need no root and no daemon"
	@echo "make check  ruff and mypy"
	@echo "make bench  speed, side by side with peers"
	@echo "make results train the long runs and record them in docs/results.md (hours)"
	@echo "make clean  remove the virtual environment and what demo and tests made"

demo: .venv/.ready-demo
	@scripts/demo

# One process per core; an idle one takes over tests from the other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
DAEMONS := docker or podman or kubernetes or slurm or ssh

test: .venv/.ready-test
	@$(PYTEST) -m "not slow"

test-slow: .venv/.ready-test
	@$(PYTEST) -m "slow and not ($(DAEMONS))"

check: .venv/.ready-test
	@$(BIN)/ruff check src tests benchmarks
	@$(BIN)/ruff format --check src tests benchmarks
	@$(BIN)/mypy

# Vertex AI's own images have Python 3.10: test the code that needs no torch on it too.
test-3.10:
	@scripts/test-on-3.10

# The README's commands in a fresh Debian chroot: as root, with debootstrap. FRESH=demo runs half of it.
test-fresh-machine:
	@scripts/test-fresh-machine $(FRESH)

# These start their own daemon: as root, with packages from apt.
test-docker: .venv/.ready-test
	@scripts/test-docker

test-kubernetes: .venv/.ready-test
	@scripts/test-kubernetes

test-slurm: .venv/.ready-test
	@scripts/test-slurm

# Several hosts and containers need root; the rest does not.
test-ssh: .venv/.ready-test
	@scripts/test-ssh

# 200 kills at random moments, all other faults, every write and upload failed in turn: hours. CHAOS="--seconds 600".
test-chaos: .venv/.ready-test
	@$(BIN)/python -m tests.chaos $(CHAOS)

# Fuzz every reader of untrusted bytes for two minutes; FUZZ="--seconds 3600 --atheris": longer, guided by coverage.
fuzz: .venv/.ready-test
	@$(BIN)/python -m tests.fuzz $(FUZZ)

# Every recipe's real server against its own OpenAPI, ten minutes each; FUZZ="--recipe translation --seconds 60".
fuzz-serve: .venv/.ready-test
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.serving.fuzz $(FUZZ)

# Hashes of the dependencies; bill of materials; known vulnerabilities (docs/security.md).
lock:
	@scripts/lock

sbom: .venv/.ready-test
	@mkdir -p build
	@scripts/tool cyclonedx-bom==7.5.0 cyclonedx-py environment $(BIN)/python --of JSON -o build/sbom.json
	@echo build/sbom.json

audit:
	@scripts/tool pip-audit==2.10.1 pip-audit --strict --disable-pip --require-hashes -r requirements/locked-test.txt

# The long load test of a server: 1,000 concurrent clients, and 50,000 requests. Minutes.
test-load: .venv/.ready-test
	@HEADWAY_LOAD=1 $(BIN)/python -m pytest -s tests/serving/test_load.py

# The long runs for docs/results.md: hours. `make test-slow` runs one minute of them.
results: .venv/.ready-test
	@$(BIN)/python scripts/results $(RESULTS)

bench: .venv/.ready-test
	@$(BIN)/python -m benchmarks $(BENCH)

bench-%: .venv/.ready-test
	@$(BIN)/python -m benchmarks $(subst -,_,$*)

.venv/.ready-%: pyproject.toml requirements/constraints.txt requirements/test.txt requirements/locked-%.txt scripts/setup
	@scripts/setup $*

clean:
	rm -rf .venv .cache demo runs build dist
