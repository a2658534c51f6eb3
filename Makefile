# Two commands for newcomers: `make demo` and `make test`. Each installs what it needs into .venv.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test
WORKDIR ?= runs/demo
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

# glibc maps large temporaries anew in every step; in large pages that costs hundreds of times fewer
# page faults. Ignored where the C library is another one.
HUGE_PAGES := GLIBC_TUNABLES=glibc.malloc.hugetlb=1

BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed-

ifneq ($(words $(VENV)),1)
$(error VENV='$(VENV)' must be one folder, without spaces)
endif

.DEFAULT_GOAL := help
.PHONY: help demo recipe-small aggregation-small cascade test coverage lint bench reference
.DELETE_ON_ERROR:

help:
	@echo "make demo    train a small ZAYA model on the text of Python's standard library (CPU, about 3 minutes);"
	@echo "             again: resume; results in WORKDIR=$(WORKDIR)"
	@echo "make recipe-small   pretraining, midtraining on reasoning and SFT in miniature, in runs/recipe"
	@echo "make aggregation-small   a model that learns to aggregate attempts; single samples, votes and"
	@echo "             Markovian RSA beside each other, in runs/aggregation"
	@echo "make cascade   from raw text to a small model that was reinforced in four stages (about an hour),"
	@echo "             in runs/cascade"
	@echo "make test    run the tests; EXTRAS=test,parity also compares live with the PyTorch implementation"
	@echo "             (a download of several hundred MB); PYTEST_ARGS='...' goes to pytest"
	@echo "make coverage   the same tests, then which lines and branches they ran; longer than make test"
	@echo "make lint    ruff and mypy"
	@echo "make bench   time training and forward pass against the PyTorch implementation"
	@echo "make reference   pages of every public function and class, from the docstrings, in runs/reference"
	@echo "Each creates $(VENV) with PYTHON=$(PYTHON) and installs into it first, if need be."

demo: $(INSTALLED)base
	@echo "==> training the demo in $(WORKDIR); interrupt it whenever you like, the same command resumes"
	$(HUGE_PAGES) $(BIN)/python -m experiments.pretrain --workdir $(WORKDIR) $(DEMO_ARGS)

recipe-small: $(INSTALLED)data
	@echo "==> pretraining, midtraining and SFT in miniature; the same command resumes"
	$(HUGE_PAGES) $(BIN)/python -m experiments.recipe --workdir runs/recipe

AGGREGATION := runs/aggregation
aggregation-small: $(INSTALLED)test
	@echo "==> tokenizer, SFT, then three ways to spend compute with three seeds; the same command resumes"
	test -f $(AGGREGATION)/tokenizer.json || $(BIN)/python -m zaya_jax.data.train_tokenizer \
	    --config experiments/configs/aggregation_small.py --vocab-size 640 \
	    --output $(AGGREGATION)/tokenizer.json
	$(HUGE_PAGES) $(BIN)/python -m experiments.sft --workdir $(AGGREGATION)/sft \
	    --config experiments/configs/aggregation_small.py
	for seed in 0 1 2; do for ttc in none majority light; do \
	    $(BIN)/python -m experiments.evaluate --ttc $$ttc --workdir $(AGGREGATION)/$$ttc-$$seed \
	        --config experiments/configs/evaluation/aggregation_small.py:$$ttc --config.seed=$$seed \
	        --config.init_from=$(AGGREGATION)/sft || exit 1; \
	done; done

cascade: $(INSTALLED)test
	@echo "==> from raw text through four stages of RL to Markovian RSA; the same command resumes"
	$(HUGE_PAGES) $(BIN)/python -m experiments.cascade --workdir runs/cascade

test: $(INSTALLED)$(EXTRAS)
	@echo "==> running the tests"
	$(BIN)/python -m pytest $(PYTEST_ARGS)

coverage: $(INSTALLED)$(EXTRAS) $(INSTALLED)coverage
	@echo "==> running the tests; the report is in .coverage"
	$(BIN)/python -m pytest --cov --cov-report= $(PYTEST_ARGS)
	$(BIN)/python benchmarks/coverage_figures.py

lint: $(INSTALLED)dev
	@echo "==> checking style, formatting and types"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)parity
	@echo "==> timing against the PyTorch implementation on this CPU; leave the machine alone meanwhile"
	$(HUGE_PAGES) $(BIN)/python benchmarks/cpu_vs_transformers.py $(BENCH_ARGS)

# Named one by one: a package with __all__ would hide its modules.
MODULES := $(subst /,.,$(patsubst %/__init__.py,%,$(wildcard zaya_jax/*/__init__.py)) \
    $(patsubst %.py,%,$(filter-out %__.py,$(wildcard zaya_jax/*.py))))
reference: $(INSTALLED)test $(INSTALLED)reference
	@echo "==> writing the reference to runs/reference/index.html"
	$(BIN)/python -W ignore -m pdoc --docformat google --output-directory runs/reference \
	    kernels_pallas experiments zaya_jax $(MODULES)

# One stamp for each set of extras, renewed when pyproject.toml changes.
$(INSTALLED)base: pyproject.toml | $(VENV)/created
	@echo "==> installing zaya_jax into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(INSTALLED)%: pyproject.toml | $(VENV)/created
	@$(BIN)/python -c 'import sys, tomllib; known = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; wrong = sorted({*sys.argv[1].split(",")} - {*known}); sys.exit(f"EXTRAS: no extra {wrong[0]!r}; there are {chr(44).join(known)}" if wrong else None)' '$*'
	@echo "==> installing zaya_jax[$*] into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(VENV)/created:
	@echo "==> creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(None if sys.version_info >= (3, 11) else f"zaya_jax needs Python 3.11 or newer, {sys.executable} is {v}: make PYTHON=python3.13 ...")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@
