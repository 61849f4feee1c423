# Every target sets up what it needs, also on a bare clone: `make demo` and `make test` just work.
#
#   VENV=...         where the environment lives             (default: .venv)
#   PYTHON=...       the Python to make a new one with       (default: found by tools/find-python)
#   JAX_VERSION=...  an exact release of JAX to install      (default: the newest that is allowed)
#   WORKERS=...      pytest processes                        (default: 2)
#   ARGS=...         more arguments for pytest or the demo   (make test ARGS='-k evict')
#   COMPILE_VENV=... the environment of compile-gpu          (default: .venv-compile-gpu)

VENV ?= .venv
JAX_VERSION ?=
WORKERS ?= 2
ARGS ?=
COMPILE_VENV ?= .venv-compile-gpu

PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed-jax-$(or $(JAX_VERSION),newest)
PIP := $(PY) -m pip install --disable-pip-version-check -qq

# The compiler for NVIDIA GPUs comes in large wheels, one for each JAX: an environment of its own.
COMPILE_JAX := 0.11.2
COMPILE_PY := $(COMPILE_VENV)/bin/python
COMPILE_STAMP := $(COMPILE_VENV)/.installed-jax-$(COMPILE_JAX)
COMPILE_PIP := $(COMPILE_PY) -m pip install --disable-pip-version-check -qq

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak mutants compile-gpu lint types format wheel clean

help: ## say what each target does
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1	/' | \
	    while IFS='	' read -r target text; do printf '  make %-11s %s\n' "$$target" "$$text"; done

setup: $(STAMP) ## make or refresh the environment, and nothing else

demo: $(STAMP) ## run the cache against a churning workload and show what it saves
	$(PY) -m experiments.churn $(ARGS)

# worksteal: neighbours stay in one process as long as both are busy, so a file's jits compile once.
test: $(STAMP) ## run every test, the slow ones too
	$(PY) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

soak: $(STAMP) ## run random traces against the reference (ARGS='--seconds 600')
	$(PY) -m experiments.soak $(ARGS)

mutants: $(STAMP) ## take the guards out one by one: the test named for each must fail
	$(PY) -m tests.mutants $(ARGS)

compile-gpu: $(COMPILE_STAMP) ## compile everything for an NVIDIA H200, without one, and look for copies
	JAX_PLATFORMS=cpu $(COMPILE_PY) -m tests.compile_gpu $(ARGS)

lint: $(STAMP) ## check style and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

# The wheel of Node.js in .venv is used, never one that happens to be on PATH: one answer everywhere.
types: $(STAMP) ## check types
	PYRIGHT_PYTHON_GLOBAL_NODE=off $(PY) -m pyright --pythonpath $(PY)

format: $(STAMP) ## format the code and sort its imports
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

wheel: $(STAMP) ## build the wheel into dist/
	@rm -rf dist
	$(PY) -m build --quiet --wheel --no-isolation

clean: ## remove the environments, caches and built files
	rm -rf .venv* build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The interpreter in a venv is a link: when what it points to is gone, this rule runs again.
$(PY):
	@python=$$(PYTHON="$(PYTHON)" tools/find-python) && \
	    echo "Making $(VENV) with $$("$$python" --version)" && \
	    "$$python" -m venv --clear $(VENV)

$(COMPILE_PY):
	@python=$$(export PYTHON="$(PYTHON)"; tools/find-python 3.12 2>/dev/null || tools/find-python) && \
	    echo "Making $(COMPILE_VENV) with $$("$$python" --version)" && \
	    "$$python" -m venv --clear $(COMPILE_VENV)

$(STAMP): pyproject.toml | $(PY)
	@echo "Installing into $(VENV): JAX $(or $(JAX_VERSION),(newest allowed)) and what the tests and experiments need (1-3 min)"
	@rm -f $(VENV)/.installed-*
	@$(PIP) --upgrade -e '.[test,experiments]' 'jax$(if $(JAX_VERSION),==$(JAX_VERSION))'
	@$(PY) -c 'import jax, sys; print(f"Ready: JAX {jax.__version__} on Python {sys.version.split()[0]}")'
	@touch $@

# No dependencies: CUDA's libraries, which only a GPU needs, are 3 GB. The tests import pytest.
$(COMPILE_STAMP): pyproject.toml | $(COMPILE_PY)
	@echo "Installing into $(COMPILE_VENV): JAX $(COMPILE_JAX) and the CUDA compiler (1-2 min)"
	@rm -f $(COMPILE_VENV)/.installed-*
	@$(COMPILE_PIP) --upgrade -e . pytest 'jax==$(COMPILE_JAX)'
	@$(COMPILE_PIP) --no-deps 'jax-cuda13-plugin==$(COMPILE_JAX)' 'jax-cuda13-pjrt==$(COMPILE_JAX)' \
	    'nvidia-cuda-nvcc<14' 'nvidia-nvvm<14'
	@touch $@
