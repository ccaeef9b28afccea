# The door for newcomers: `make` alone says what there is. Everything is installed into .venv, nothing elsewhere.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two workers: on two cores a third only waits.
WORKERS ?= 2
# A file's tests stay together, and files with few and long tests do not come last, when nothing is left to fill the other
# worker with: the conftest files say which come first.
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Further arguments for the rehearsal's playbooks, for example ANSIBLE_ARGS='-e sparkpair_context=32768'.
ANSIBLE_ARGS ?=
PLAYBOOK := $(BIN)/ansible-playbook -i inventories/rehearsal $(ANSIBLE_ARGS)

.PHONY: help
help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- the two commands -------------------------------------------------------------------------------------------------

.PHONY: rehearse
rehearse: $(VENV)/.rehearsal ## Bring a pair up on this machine and ask it a question; ends LIVE
	$(PLAYBOOK) playbooks/site.yml

# Molecule keeps one processor busy and the linters another, so they go first, together; each tells what it found when it
# has ended.
.PHONY: test
test: $(VENV)/.dev ## Run every check and every test
	$(MAKE) --jobs=2 --output-sync=target --no-print-directory test-molecule lint docs-check
	$(MAKE) --no-print-directory test-engine test-collection

# --- the rehearsal ----------------------------------------------------------------------------------------------------

.PHONY: status
status: $(VENV)/.rehearsal ## Say how the rehearsal is
	$(PLAYBOOK) playbooks/status.yml

.PHONY: stop
stop: $(VENV)/.rehearsal ## Stop the rehearsal; its files stay
	$(PLAYBOOK) playbooks/teardown.yml

# --- checks and tests, one by one -------------------------------------------------------------------------------------

.PHONY: lint
lint: $(VENV)/.dev ## Lint Python, YAML and Ansible, check the types of the engine
	$(BIN)/ruff check .
	$(BIN)/mypy engine/src
	$(BIN)/yamllint --strict .
	$(BIN)/ansible-lint --offline

.PHONY: docs
docs: $(VENV)/.dev ## Write the generated pages anew
	$(BIN)/python scripts/docs.py
	$(BIN)/python scripts/api_page.py

.PHONY: docs-check
docs-check: $(VENV)/.dev ## Check that the generated pages say what is declared
	$(BIN)/python scripts/docs.py --check
	$(BIN)/python scripts/api_page.py --check
	$(BIN)/antsibull-changelog lint

.PHONY: test-engine
test-engine: $(VENV)/.dev ## Test the engine: kernels, reference, API, real pairs
	$(BIN)/pytest tests/engine $(SPREAD)

.PHONY: test-collection
test-collection: $(VENV)/.dev ## Test the collection: unit tests, real playbooks, the built artifact
	$(BIN)/pytest tests/integration tests/unit $(SPREAD)

.PHONY: test-molecule
test-molecule: $(VENV)/.dev ## Play the rehearsal's whole life with molecule
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/molecule test

# --- a virtual pair: see docs/virtual_pair.md -------------------------------------------------------------------------

.PHONY: test-pair
test-pair: $(VENV)/.dev ## Converge two virtual machines and let everything go wrong (needs root, 24 minutes)
	SPARKPAIR_PAIR_OWNER=$$$$ PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/molecule test --scenario-name pair

# Three for a ring of three machines.
MACHINES ?= 2

.PHONY: pair-up
pair-up: $(VENV)/.dev ## Start two virtual machines with RDMA, NFS, Docker and ssh (needs root); MACHINES=3 starts three
	$(BIN)/python -m tests.pair up --machines $(MACHINES)

.PHONY: pair-down
pair-down: $(VENV)/.dev ## End the virtual machines; their disks are kept for the next time
	$(BIN)/python -m tests.pair down

# --- measuring --------------------------------------------------------------------------------------------------------

.PHONY: bench-api
bench-api: $(VENV)/.dev ## Measure what the HTTP side costs beside the source's own loop, in one run
	$(BIN)/python bench/api_overhead.py

.PHONY: bench-weights
bench-weights: $(VENV)/.dev ## Measure the copy of weights beside raw TCP and the disk, and verifying them again (needs iperf3)
	$(BIN)/python bench/weights.py

.PHONY: bench-image
bench-image: $(VENV)/.dev ## Measure sending an image beside its slowest stage alone, between two Docker daemons (needs root)
	$(BIN)/python bench/image.py

.PHONY: bench-converge
bench-converge: $(VENV)/.dev ## Measure a run of site.yml that changes nothing beside a play that gathers facts (needs sshd)
	$(BIN)/python bench/converge.py

.PHONY: bench-roce
bench-roce: $(VENV)/.dev ## Measure gathers as RDMA writes beside gloo's, between two virtual machines (needs root)
	$(BIN)/python bench/roce_side_by_side.py

.PHONY: bench-engine
bench-engine: $(VENV)/.dev ## Compare the engine's drafts, streams, resumed prompts and slices, side by side in one run
	$(BIN)/python bench/engine_side_by_side.py

.PHONY: bench-miniature
bench-miniature: $(VENV)/.dev ## Compare drafts on the skills of the trained miniature in CHECKPOINT, side by side in one run
	$(BIN)/python bench/miniature_drafts.py $(CHECKPOINT)

# --- building ---------------------------------------------------------------------------------------------------------

.PHONY: build
build: $(VENV)/.rehearsal ## Build the collection's artifact into build/
	$(BIN)/ansible-galaxy collection build --force --output-path build

.PHONY: clean
clean: ## Remove what make made here: .venv, build, caches (not the rehearsal's state)
	rm -rf $(VENV) build .cache .ansible .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	scripts/create_venv.sh $(PYTHON) $(VENV)

# The engine is installed in place, so that the ranks run the sources that are here.
$(VENV)/.rehearsal: requirements-rehearsal.txt engine/pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --requirement requirements-rehearsal.txt
	$(BIN)/pip install --quiet --no-deps --editable engine
	touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.rehearsal
	$(BIN)/pip install --quiet --requirement requirements-dev.txt
	touch $@
