# Everything a developer runs. Needs Python >= 3.11, git and make; the rest goes into $(VENV).
#
#   make serve ARGS="--model PATH --port N"     make test ARGS="-k golden -x"

VENV ?= .venv
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python; do \
	"$$python" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo "$$python" && break; done)
ARGS ?=

bin := $(VENV)/bin
stamp := $(VENV)/.installed
audit := $(VENV)-audit
code := service tests $(wildcard training loadtest)

.DELETE_ON_ERROR:
.PHONY: help install serve loadtest calibrate docs pictures test test-slow gpu lint check audit format clean

help:
	@echo "make serve | test | test-slow | gpu | loadtest | calibrate | docs | pictures | check | audit | lint | format | install | clean      (ARGS=\"...\" is passed on)"

install: $(stamp)

$(stamp): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(bin)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(bin)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,loadtest,tracing,train]'
	@touch $@

serve: $(stamp)
	$(bin)/mrp-serve serve $(ARGS)

# What `quality` stands for on the demo, and its picture: after every change of the checkpoint or of a mode. 6 minutes of a core.
calibrate: $(stamp)
	$(bin)/mrp-serve calibrate --threads 1 --count 700 --plot docs $(ARGS)

# The reference pages, from the code. A test compares them.
docs: $(stamp)
	$(bin)/mrp-serve reference --out docs

# README's moving picture and one picture for each mode, from traces of the demo, and the playground's where there is a
# Chromium. Seconds.
pictures: $(stamp)
	$(bin)/mrp-serve animate --threads 1 --out docs
	tests/loopback $(bin)/python -m tests.playground.picture docs

loadtest: $(stamp)
	$(bin)/python -m loadtest.run $(ARGS)

# A worker for each core; tests that start Ray share one. One process: make test ARGS="-n 0 -k golden -x"
test: $(stamp)
	tests/loopback $(bin)/python -m pytest -n logical --maxprocesses 8 $(ARGS)

# The tests that take long, one after the other: about an hour. A part of them: make test-slow ARGS="--share 0.1"
test-slow: $(stamp)
	tests/loopback $(bin)/python -m pytest -m slow $(ARGS)

# What a GPU should be asked first: correctness, speed, peers, each in nine minutes. Rows go to dev/lab/results.
gpu: $(stamp)
	for stage in correctness speed peers; do \
		$(bin)/python -m service.bench.gpu $$stage --out dev/lab/results $(ARGS) || exit 1; done

lint: $(stamp)
	$(bin)/ruff format --check $(code)
	$(bin)/ruff check $(code)
	$(bin)/mypy

check: lint test

# A report, not a gate: what is known against the pinned versions. Advisories come from osv.dev, which may be out of reach.
audit:
	@test -x $(audit)/bin/pip-audit || { $(PYTHON) -m venv --clear $(audit) && \
		$(audit)/bin/python -m pip install -qq --disable-pip-version-check pip-audit==2.10.1; } \
		|| { echo "audit: NOT DONE, pip-audit could not be installed" >&2; exit 0; }; \
	timeout 120 $(audit)/bin/pip-audit --vulnerability-service osv --requirement constraints.txt --no-deps --disable-pip \
		--progress-spinner off >$(audit)/report 2>&1; status=$$?; \
	if grep -q "^ERROR\|^Traceback" $(audit)/report || [ $$status -gt 1 ]; then \
		echo "audit: NOT DONE, the advisories of osv.dev could not be read" >&2; \
	else cat $(audit)/report; fi

format: $(stamp)
	$(bin)/ruff format $(code)
	$(bin)/ruff check --fix $(code)

clean:
	rm -rf $(VENV) $(audit) .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist
	find $(code) -name __pycache__ -type d -prune -exec rm -rf {} +
