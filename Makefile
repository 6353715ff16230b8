# Everything a fresh machine needs is python3 (3.10 or newer), make and git; the rest goes into a virtual environment of its own.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
SIZES ?=
FUZZ ?= --count 10000
CASES ?=
FOLDER ?= fixtures/real/gpu

.PHONY: demo capture quick test test-all coverage fuzz golden bench fixtures generated pictures docs gpu-proof lock clean

# a training loop that was recorded on an H100, or else a simulated one: the first screen, and the page for the browser
demo: $(VENV)/.installed
	@rm -rf graphlink-demo
ifneq ($(wildcard fixtures/real/gpu/pairs/copy-pageable.tar.xz),)
	@$(BIN)/python -W ignore -m tarfile -e fixtures/real/gpu/pairs/copy-pageable.tar.xz graphlink-demo/recorded
else
	@echo "No recording of a GPU is in this folder: what follows is simulated (fixtures/demo)."
	@mkdir -p graphlink-demo/recorded/copy-pageable
	@cp -r fixtures/demo graphlink-demo/recorded/copy-pageable/capture-1
endif
	$(BIN)/graphlink graphlink-demo/recorded/copy-pageable/capture-1 --out graphlink-demo/out
	$(BIN)/graphlink report graphlink-demo/out

# records four ranks of a small model on this machine's CPU and makes their graphs. A PyTorch that is there is kept; else it is the one of the
# extra dev, as the newest brings gigabytes of CUDA
capture: $(VENV)/.installed
	$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) "$$(sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)"
	rm -rf graphlink-capture
	$(BIN)/python fixtures/capture/ddp.py graphlink-capture/recorded
	$(BIN)/graphlink graphlink-capture/recorded --out graphlink-capture/out

# without sweeps and large recordings, which are marked long, and with few random programs a test; test-all has all
test: CHOICE := -m "not long"
test-all: CHOICE := --hypothesis-profile thorough
test test-all: export PYTHONDONTWRITEBYTECODE = # what the tests start is compiled once
test test-all: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# types beside the tests; those of arrays are as numpy has them for Python 3.11 and newer
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 11))' || $(BIN)/mypy --strict & types=$$!; \
		$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(CHOICE); tests=$$?; wait $$types && exit $$tests

# in under a minute: the order of modules, the words of docstrings, and reading, linking, dependencies and graphs of small recordings
quick: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q -m "not long" tests/test_layers.py tests/test_words.py tests/test_architecture.py \
		tests/linking tests/graph tests/depend/test_cuda.py tests/depend/test_host.py tests/depend/test_infer.py tests/depend/test_neighbours.py

# which lines of the package make test runs, those in child processes too; in the test left out the data of coverage has no room either
coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not long" --cov --cov-report term:skip-covered \
		--deselect tests/cli/test_process.py::test_no_room_for_the_outputs

# FUZZ="--first 10000 --count 50000" for other hostile inputs; a failure is printed with its case and seed
fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m tests.fuzz $(FUZZ)

# where outputs were changed on purpose: rewrites the dumps with which tests compare them. CASES=demo for one of them
golden: $(VENV)/.installed-dev
	$(BIN)/python -m tests.golden --write $(CASES)

# SIZES="--events 100000 300000" for less than the four sizes up to 3 M; SIZES=--ten-million for more
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/scale.py $(SIZES)

# judges what fixtures/capture/kit.py recorded on a GPU: FOLDER=where its archives are
gpu-proof: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.gpu_proof $(FOLDER)

# the commands stand in fixtures/README.md
fixtures: $(VENV)/.installed-dev
	sed -n 's/^python -m/-m/p' fixtures/README.md | while read -r line; do echo "$$line"; $(BIN)/python $$line || exit 1; done

# what is drawn from the records: schemas/, and the tables of figures in docs/
generated: $(VENV)/.installed
	$(BIN)/python -m graphlink.run.schemas schemas
	$(BIN)/python docs/tables.py docs

# the pictures that README and docs/ show
pictures: $(VENV)/.installed
	$(BIN)/python docs/pictures.py docs

# the pages of docs/ as a site in site/
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'site/ is complete: $(BIN)/python -m http.server -d site'

# the wheel and the sdist in dist/, and the wheel tried in an environment of its own. It uploads nothing
release: $(BIN)/python
	rm -rf dist
	$(PIP) build twine
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	@empty=$$(mktemp -d) && trap 'rm -rf "$$empty"' EXIT && set -ex && $(PYTHON) -m venv "$$empty/venv" \
		&& "$$empty/venv/bin/pip" --disable-pip-version-check install --quiet dist/*.whl \
		&& "$$empty/venv/bin/graphlink" fixtures/real/ddp --out "$$empty/out" --quiet && "$$empty/venv/bin/graphlink" advice "$$empty/out"

# constraints.txt: versions that work together, as the public workflow installs them where it measures coverage
lock: $(BIN)/python
	$(PIP) uv
	@echo '# make lock wrote it: versions that work together, for all Pythons and systems' > constraints.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --extra dev --no-annotate --no-header pyproject.toml >> constraints.txt

clean:
	rm -rf $(VENV) graphlink-demo graphlink-capture site

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	touch $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[docs]'
	touch $(VENV)/.installed $@

# what the tests import is compiled when they do
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) --no-compile -e '.[dev]'
	touch $(VENV)/.installed $@
