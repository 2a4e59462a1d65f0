# SPDX-License-Identifier: Apache-2.0
# The only entrance: every target sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
# Otherwise, every process of the tests compiles every test, and every command compiles Weir.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup demo test check bench wheels image docs pages verify clean

help:  ## these lines
	@awk -F ':.*  ## ' '/^[a-z]+:.*  ## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/ready  ## .venv with Weir and all that its tests need; every other target does so first

# Rebuilt when the pinned dependencies change.
.venv/ready: pyproject.toml softswitch/pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Weir needs Python 3.11 or newer; PYTHON=python3.11 make ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ./softswitch --editable '.[dev]'
	$(BIN)/python -c 'from softp4.native.build import compiler; compiler()' 2>/dev/null || $(BIN)/pip install --quiet ziglang
	touch $@

demo: .venv/ready  ## train a small model over slow links: the switch sums its gradients, then Gloo does
	$(BIN)/weir train --workers 4 --model cnn --lr 0.5 --set clip_norm=1 --method dfs --density 0.05 --epochs 3 --set evaluate_every=11 \
		--links 100mbit --hosts auto

# A process that dies ends the run: pytest-xdist 3.8 may wait for ever for the tests of one that replaces it.
test: check  ## every test; what a machine lacks skips by name, or fails: WEIR_REQUIRE=root,bmv2,simple_switch,p4c,mininet,tshark
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

check: .venv/ready  ## formatting, lint, types, spelling, wording, C warnings, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell --ignore-words-list ect README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs softswitch/docs p4src/README.md examples/README.md weir
	$(BIN)/python -m tests.harness.wording
	$(BIN)/python -m weir.wire.generate --check
	$(BIN)/python p4src/build.py --check
	$(BIN)/python -m tests.native.check_c

wheels: .venv/ready  ## wheels with compiled C for x86-64 and 64-bit Arm (manylinux2014), by zig: build/wheels
	$(BIN)/python -c 'import ziglang' 2>/dev/null || $(BIN)/pip install --quiet ziglang
	$(BIN)/python deploy/wheels.py --machine x86_64 aarch64 --out build/wheels

image: wheels  ## an OCI image without torch, for hub, controller and switch: build/weir.tar
	$(BIN)/python deploy/image.py --wheels build/wheels --out build/weir.tar

docs: .venv/ready  ## the documentation as a site: build/site/docs/index.html
	$(BIN)/python -c 'import sphinx, myst_parser, furo' 2>/dev/null || $(BIN)/pip install --quiet --editable '.[docs]'
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs . build/site

pages: .venv/ready  ## check the pages: their links, paths, names and commands
	$(BIN)/pytest tests/test_docs.py softswitch/tests/test_docs.py

verify: .venv/ready  ## small versions of the documented ratios, where they depend on no machine; fails below a floor
	$(BIN)/weir bench verify

bench: .venv/ready  ## the figures of the switch and of all-reduce in docs/results/
	$(BIN)/weir bench run switch/rate
	$(BIN)/weir bench run collectives/allreduce

clean:  ## everything that make made
	rm -rf .venv build docs/reference/command-line.md *.egg-info softswitch/build softswitch/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
