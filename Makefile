# Every command makes or refreshes .venv first, and does nothing when it is current.
# A bare machine needs python3 (3.11 to 3.13) with venv, make and PyPI; pip brings uv, uv brings the rest.

PYTHON ?= python3
OLDEST_PYTHON ?= python3.11
HOST ?= $(or $(PUSHFORWARD_HOST),127.0.0.1)
PORT ?= $(or $(PUSHFORWARD_PORT),8000)
ARGS ?=
DEVICE ?= cpu

BIN := .venv/bin
UV := $(BIN)/uv
# Bytecode at once: it costs seconds here and saves as many at every start, also where Python may not write any.
SYNC = $(UV) pip sync --quiet --require-hashes --compile-bytecode
LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-config \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(UPGRADE)
WANTED := pyproject.toml requirements/server.in

# Stamps: what is in .venv now. The server's comes first, so `make demo` on a fresh machine needs no test tools.
BOOTED := .venv/.booted
SERVER := .venv/.server
TESTED := .venv/.tested

.DEFAULT_GOAL := help
.PHONY: help env demo serve test test-slow test-oldest image image-check check format bench lock clean

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(BOOTED): requirements/bootstrap.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
		|| { echo "$(PYTHON) is not Python 3.11 to 3.13; name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@touch $@

$(SERVER): $(BOOTED) requirements/server.txt
	$(SYNC) --python $(BIN)/python requirements/server.txt
	@touch $@

$(TESTED): $(SERVER) requirements/test.txt
	$(SYNC) --python $(BIN)/python requirements/test.txt
	@touch $@

env: $(TESTED) ## make or refresh .venv with the server and the test tools

demo: $(SERVER) ## start the server, send it one JVP, check it against finite differences, stop
	$(BIN)/python -m app.demo

serve: $(SERVER) ## run the server in the foreground [PORT=8000 HOST=127.0.0.1]
	@exec $(BIN)/python -m app --host $(HOST) --port $(PORT)

test: $(TESTED) ## run the tests, two at a time [ARGS="tests/models -k gru"]
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-slow: $(TESTED) ## run the tests marked slow
	$(BIN)/python -m pytest -m slow $(ARGS)

check: $(TESTED) ## formatting, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

format: $(TESTED) ## rewrite what ruff can put right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv-jax/.stamp: $(BOOTED) requirements/bench-jax.txt
	$(UV) venv --quiet --clear --no-python-downloads --python $(BIN)/python .venv-jax
	$(SYNC) --python .venv-jax/bin/python requirements/bench-jax.txt
	@touch $@

.venv-tesseract/.stamp: $(BOOTED) requirements/bench-tesseract.txt
	$(UV) venv --quiet --clear --no-python-downloads --python $(BIN)/python .venv-tesseract
	$(SYNC) --python .venv-tesseract/bin/python requirements/bench-tesseract.txt
	@touch $@

bench: $(SERVER) .venv-jax/.stamp .venv-tesseract/.stamp ## measure against the peers, as tables of ratios [ARGS=...]
	$(BIN)/python -m benchmarks $(ARGS)

.venv-oldest/.stamp: $(BOOTED) requirements/oldest.txt
	$(UV) venv --quiet --clear --no-python-downloads --python $(OLDEST_PYTHON) .venv-oldest
	$(SYNC) --python .venv-oldest/bin/python requirements/oldest.txt
	@touch $@

test-oldest: .venv-oldest/.stamp ## run tests/models on the oldest TensorFlow and Keras
	.venv-oldest/bin/python -m pytest tests/models $(ARGS)

image: ## build the image by Docker [DEVICE=gpu]
	docker build --build-arg DEVICE=$(DEVICE) --build-arg REVISION=$$(git rev-parse HEAD) -t pushforward:$(DEVICE) .

image-check: ## build the image and try what it promises; as root, with buildah and debootstrap [DEVICE=gpu]
	$(PYTHON) -m tools.image_check --device $(DEVICE)

lock: $(BOOTED) ## pin the requirements anew, keeping what still fits [UPGRADE=--upgrade]
	$(LOCK) requirements/bootstrap.in -o requirements/bootstrap.txt
	$(LOCK) $(WANTED) requirements/tensorflow.in -o requirements/server.txt
	$(LOCK) -c requirements/server.txt $(WANTED) requirements/tensorflow.in requirements/test.in -o requirements/test.txt
	$(LOCK) -c requirements/server.txt $(WANTED) requirements/tensorflow-cpu.in -o requirements/image-cpu.txt
	$(LOCK) -c requirements/server.txt $(WANTED) requirements/tensorflow-gpu.in -o requirements/image-gpu.txt
	$(LOCK) $(WANTED) requirements/oldest.in -o requirements/oldest.txt
	$(LOCK) requirements/bench-jax.in -o requirements/bench-jax.txt
	$(LOCK) requirements/bench-tesseract.in -o requirements/bench-tesseract.txt

clean: ## remove the environments and what the tools left behind
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
