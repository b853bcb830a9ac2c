.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-long soak pictures lint format docs lock clean

BIN := .venv/bin
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command 'make lock'

help: ## List the targets (this is the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing: Postgres 15 with wal2json, Java 17, Chromium, the locked Python packages, jars
	@scripts/setup

demo: setup ## Watch a shop's changes reach Kinesis and Delta tables while leaders are killed (under two minutes)
	@$(BIN)/penstock demo

check: lint ## Run the linters, then the unit and property tests (under two minutes)
	$(BIN)/pytest -q -n 2 tests/unit tests/properties

test: lint ## Run the linters, then all tests, and report what unit and property tests cover (under 40 minutes)
	$(BIN)/pytest -q -n 2 --cov --cov-report=term:skip-covered tests/unit tests/properties
	$(BIN)/pytest -q -n 2 --dist loadfile --durations=10 tests/deploy tests/integration tests/spark tests/faults

soak: setup ## Play generated histories against penstock shapes for SOAK_MINUTES (10); compare every table
	$(BIN)/python -m tests.spark.oracle --minutes $(or $(SOAK_MINUTES),10)

test-long: setup ## Run the tests, and those that take minutes each, too
	PENSTOCK_LONG_TESTS=1 $(BIN)/pytest --durations=20

pictures: setup ## Take the pictures of the page for docs/images again, in Chromium
	$(BIN)/python -m tests.page_pictures

lint: setup ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## Format the code, and fix what ruff can fix by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## Build the docs as a site, in site/: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock: $(BIN)/uv ## Write requirements/* again from pyproject.toml, keeping versions that still fit
	$(COMPILE) pyproject.toml --output-file requirements/capture.lock
	$(COMPILE) pyproject.toml --extra demo --extra spark --group dev --group docs --output-file requirements/dev.lock
	$(COMPILE) pyproject.toml --extra spark --constraints requirements/dev.lock --output-file requirements/shapes.lock
	echo hatchling | $(COMPILE) - --constraints requirements/dev.lock --output-file requirements/build.lock
	echo uv | $(COMPILE) - --constraints requirements/dev.lock --output-file requirements/bootstrap.txt

$(BIN)/uv:
	@scripts/setup

clean: ## Remove the virtual environment, caches and build results
	rm -rf .venv dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -type d -name __pycache__ -prune -exec rm -rf {} +
