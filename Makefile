# Everything a developer runs. Needs Python >= 3.11, git and make; the rest goes into $(VENV).
#
#   make help

VENV ?= .venv
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python; do \
	"$$python" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo "$$python" && break; done)
ARGS ?=
# An index that torch alone is taken from: CPU wheels save 3 GiB.
TORCH_INDEX ?=

bin := $(VENV)/bin
pip := $(bin)/python -m pip install --disable-pip-version-check -c constraints.txt
# Installed: what serving needs, and all, with tests and tools.
serving := $(VENV)/.serving
stamp := $(VENV)/.installed
audit := $(VENV)-audit
clients := $(VENV)-clients
code := mrp_serve service tests $(wildcard training loadtest benchmarks dev)

.DELETE_ON_ERROR:
.PHONY: help install serve loadtest calibrate docs pictures test test-slow clients gpu lint check audit format clean

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 18
	@echo 'Arguments are passed on: make serve ARGS="--model PATH --port N"     make test ARGS="-k golden -x"'

install: $(stamp)  ## set everything up in .venv

$(serving): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(bin)/python -m pip --version >/dev/null 2>&1 || { echo "make: a virtual environment in $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "make: the packages that serving needs, once; about seven minutes on two cores, half of them silent"
	@test -n "$(TORCH_INDEX)" || test -e /dev/nvidiactl || \
		echo "make: no NVIDIA GPU here; TORCH_INDEX=ADDRESS, an index of CPU wheels of torch, may save 3 GiB (README.md)"
	$(if $(TORCH_INDEX),PIP_INDEX_URL="$(TORCH_INDEX)" $(pip) --no-deps torch)
	$(pip) -e '.[tracing]'
	@touch $@

$(stamp): $(serving)
	@echo "make: the packages of tests and tools, once; some minutes"
	$(pip) -e '.[batch,dev,loadtest,paper,tracing,train]'
	@touch $@

serve: $(serving)  ## serve the demo checkpoint on 127.0.0.1:8000
	$(bin)/mrp-serve serve $(ARGS)

# The plans of each `quality` on the demo, and their picture: after every change of the checkpoint or of a mode. Half an hour of a core.
calibrate: $(stamp)  ## measure what the qualities mean on the demo
	$(bin)/mrp-serve calibrate $(ARGS)
	$(bin)/python -m dev.pictures frontier --out docs

# The reference pages, from the code. A test compares them.
docs: $(stamp)  ## write the reference pages from the code
	$(bin)/python -m dev.reference docs

# README's moving picture and one picture for each mode, from traces of the demo. Where there is a Chromium, also those of
# the playground. Seconds.
pictures: $(stamp)  ## draw the pictures of decoding from traces of the demo, and the playground
	$(bin)/python -m dev.pictures decoding --out docs
	tests/loopback $(bin)/python -m tests.playground.picture docs

loadtest: $(stamp)  ## load the service with locust
	$(bin)/python -m loadtest.run $(ARGS)

# A worker for each core and one more, for tests that start Ray share one, and it waits much. One process: make test ARGS="-n 0 -k golden -x"
test: $(stamp)  ## run the tests, some at a time
	tests/loopback $(bin)/python -m pytest -n logical --maxprocesses 8 $(ARGS)

# The tests that take long, one after the other: about an hour. A part of them: make test-slow ARGS="--share 0.1"
test-slow: $(stamp)  ## run the tests that take long
	tests/loopback $(bin)/python -m pytest -m slow $(ARGS)

# Clients of pinned versions, each with packages of its own: uv for Python's, npm for node's. 4 GiB in uv's cache.
clients: $(stamp)  ## run real clients against the service
	@test -x $(clients)/bin/uv || { $(PYTHON) -m venv --clear $(clients) && \
		$(clients)/bin/python -m pip install -qq --disable-pip-version-check uv==0.13.9; }
	for script in tests/clients/python/*_client.py; do $(clients)/bin/uv sync -q --script $$script || exit 1; done
	! command -v npm >/dev/null || npm install --prefix tests/clients/node --ignore-scripts --no-audit --no-fund \
		--no-package-lock --legacy-peer-deps
	PATH="$(abspath $(clients))/bin:$$PATH" tests/loopback $(abspath $(bin))/python -m pytest -m slow tests/clients $(ARGS)

# What a GPU should be asked first, each in six minutes. Rows go to dev/lab/results. ARGS="--torch-profiler-dir DIR" writes
# traces, too. Without a network: CONTRIBUTING.md. LMDeploy beside it: python -m benchmarks.gpu peers --new-tokens 128
gpu: $(stamp)  ## ask a GPU: correctness, then speed
	$(bin)/python -m benchmarks.gpu correctness --out dev/lab/results $(ARGS)
	$(bin)/python -m benchmarks.gpu speed --out dev/lab/results $(ARGS)

lint: $(stamp)  ## check format, lint and types
	$(bin)/ruff format --check $(code)
	$(bin)/ruff check $(code)
	$(bin)/mypy

check: lint test  ## lint and test: what a change must pass

# A report, not a gate: what is known against the pinned versions. Advisories come from osv.dev, which may be out of reach.
audit:  ## look for known faults of the pinned versions
	@test -x $(audit)/bin/pip-audit || { $(PYTHON) -m venv --clear $(audit) && \
		$(audit)/bin/python -m pip install -qq --disable-pip-version-check pip-audit==2.10.1; } \
		|| { echo "audit: NOT DONE, pip-audit could not be installed" >&2; exit 0; }; \
	timeout 120 $(audit)/bin/pip-audit --vulnerability-service osv --requirement constraints.txt --no-deps --disable-pip \
		--progress-spinner off >$(audit)/report 2>&1; status=$$?; \
	if grep -q "^ERROR\|^Traceback" $(audit)/report || [ $$status -gt 1 ]; then \
		echo "audit: NOT DONE, the advisories of osv.dev could not be read" >&2; \
	else cat $(audit)/report; fi

format: $(stamp)  ## mend the format
	$(bin)/ruff format $(code)
	$(bin)/ruff check --fix $(code)

clean:  ## remove all that make made
	rm -rf $(VENV) $(audit) .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist
	find $(code) -name __pycache__ -type d -prune -exec rm -rf {} +
