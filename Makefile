# Two commands do all the set-up by themselves: `make demo` and `make test`.
BIN := .venv/bin
# Suites start thousands of processes: they keep what the first has compiled, even where a shell says not to.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test fuzz fuzz-serve lock sbom audit test-fresh-machine test-3.10 test-docker test-kubernetes test-slurm test-ssh test-chaos test-load check bench results clean

help:
	@echo "make demo   train, evaluate, export and try a captioner on drawn scenes, here"
	@echo "make test   all checks and tests that need no root and no daemon"
	@echo "make bench  speed, side by side with peers"
	@echo "make results train the long runs and record them in docs/results.md (hours)"
	@echo "make clean  remove the virtual environment and what demo and tests made"

demo: .venv/.ready-demo
	@scripts/demo

# A process a core, each with files of its own: what one file's tests share is made once.
test: .venv/.ready-test
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

check: .venv/.ready-test
	@$(BIN)/ruff check src tests benchmarks
	@$(BIN)/ruff format --check src tests benchmarks
	@$(BIN)/mypy

# Vertex AI's own images have Python 3.10: what needs no torch is tested there too.
test-3.10:
	@scripts/test-on-3.10

# A fresh Debian in a chroot, and nothing typed but what the README says: as root, with debootstrap. FRESH=demo for half.
test-fresh-machine:
	@scripts/test-fresh-machine $(FRESH)

# These start a daemon of their own: as root, with what they need from apt.
test-docker: .venv/.ready-test
	@scripts/test-docker

test-kubernetes: .venv/.ready-test
	@scripts/test-kubernetes

test-slurm: .venv/.ready-test
	@scripts/test-slurm

# Several hosts and containers need root; the rest runs in `make test` as well, where sshd is installed.
test-ssh: .venv/.ready-test
	@scripts/test-ssh

# 200 kills at random moments, every other trouble, every write and upload failed in turn: hours. CHAOS="--seconds 600".
test-chaos: .venv/.ready-test
	@$(BIN)/python -m tests.chaos $(CHAOS)

# Every reader of foreign bytes, for two minutes; FUZZ="--seconds 3600 --atheris" for longer and guided by coverage.
fuzz: .venv/.ready-test
	@$(BIN)/python -m tests.fuzz $(FUZZ)

# Every recipe's real server against its own OpenAPI, ten minutes each; FUZZ="--recipe translation --seconds 60".
fuzz-serve: .venv/.ready-test
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.serving.fuzz $(FUZZ)

# The hashes of what is installed; the bill of materials; what is known against it (docs/security.md).
lock:
	@scripts/lock

sbom: .venv/.ready-test
	@mkdir -p build
	@scripts/tool cyclonedx-bom==7.5.0 cyclonedx-py environment $(BIN)/python --of JSON -o build/sbom.json
	@echo build/sbom.json

audit:
	@scripts/tool pip-audit==2.10.1 pip-audit --strict --disable-pip --require-hashes -r requirements/locked-test.txt

# The long form of the load on a server: 1,000 clients at once, and 50,000 requests. Minutes.
test-load: .venv/.ready-test
	@HEADWAY_LOAD=1 $(BIN)/python -m pytest -s tests/serving/test_load.py

# The long runs, for docs/results.md: hours. A minute's worth of it runs in `make test`.
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
