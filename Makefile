# Two commands do all the set-up by themselves: `make demo` and `make test`.
BIN := .venv/bin

.PHONY: help demo test test-3.10 test-docker test-kubernetes test-slurm test-ssh test-chaos check bench results clean

help:
	@echo "make demo   train, evaluate, export and try a captioner on drawn scenes, here"
	@echo "make test   all checks and tests that need no root and no daemon"
	@echo "make bench  speed, side by side with peers"
	@echo "make results train the long runs and record them in docs/results.md (hours)"
	@echo "make clean  remove the virtual environment and what demo and tests made"

demo: .venv/.ready-demo
	@scripts/demo

test: .venv/.ready-test
	@$(BIN)/python -m pytest

check: .venv/.ready-test
	@$(BIN)/ruff check src tests benchmarks
	@$(BIN)/ruff format --check src tests benchmarks
	@$(BIN)/mypy

# Vertex AI's own images have Python 3.10: what needs no torch is tested there too.
test-3.10:
	@scripts/test-on-3.10

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

# Kills at random moments, and every write and upload failed in turn, the long form: HEADWAY_CHAOS is how many kills.
test-chaos: .venv/.ready-test
	@$(BIN)/python -m tests.chaos --kills $${HEADWAY_CHAOS:-200}

# The long runs, for docs/results.md: hours. A minute's worth of it runs in `make test`.
results: .venv/.ready-test
	@$(BIN)/python scripts/results $(RESULTS)

bench: .venv/.ready-test
	@$(BIN)/python -m benchmarks

.venv/.ready-%: pyproject.toml requirements/constraints.txt requirements/test.txt scripts/setup
	@scripts/setup $*

clean:
	rm -rf .venv .cache demo runs build dist
