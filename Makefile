# meshtf: the everyday commands. One cargo profile (release) serves the demo, the tests and the benches, so that the
# dependencies are built once. `make help` lists the targets.

SHELL := /bin/bash
CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
MESHTF := $(TARGET_DIR)/release/meshtf
# A Python of the benches' own: they look for it beside what is built.
VENV := $(TARGET_DIR)/bench-venv
JOBS := $(if $(JOBS),--jobs $(JOBS))

# Colours on a terminal only.
say = @if [ -t 1 ]; then printf '\033[1;36m▸ %s\033[0m\n' '$(1)'; else printf '▸ %s\n' '$(1)'; fi

.DEFAULT_GOAL := help
.PHONY: help demo test check bench setup build

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | while IFS=$$'\t' read -r name text; do \
		printf '  make %-7s %s\n' "$$name" "$$text"; done

build: ## the release binary
	$(call say,building meshtf: about 15 minutes of a 2-core machine the first time; seconds after that)
	@$(CARGO) build --release --bin meshtf $(JOBS)
	$(call say,built $(MESHTF))

demo: build ## two nodes as separate processes, one graph over both, the answer: 238
	@MESHTF='$(MESHTF)' bash examples/demo.sh

test: ## every test: library, documentation, processes
	$(call say,building and running every test)
	@$(CARGO) test --release $(JOBS)
	$(call say,the pure core by itself: no burn; no tokio; no libp2p)
	@$(CARGO) test --release --no-default-features --lib $(JOBS)

check: ## formatting, lints with warnings denied, the shape of the house
	$(call say,formatting)
	@$(CARGO) fmt --all -- --check
	$(call say,lints)
	@$(CARGO) clippy --release --all-targets $(JOBS) -- -D warnings
	@$(CARGO) clippy --release --no-default-features --lib $(JOBS) -- -D warnings
	$(call say,the shape of the house)
	@$(CARGO) test --release --no-default-features --test tidy $(JOBS)

bench: ## the figures of the README, as a table
	$(call say,numpy to be measured beside (in $(VENV)))
	@$(VENV)/bin/python -c 'import numpy' 2>/dev/null || { python3 -m venv '$(VENV)' && \
		'$(VENV)/bin/pip' install --quiet --retries 1 --timeout 20 'numpy>=2,<3'; } || \
		echo '  there is no Python or no network here: its column stays empty'
	$(call say,building the benches)
	@$(CARGO) bench $(JOBS)

setup: ## what the GPU tests need: a Vulkan driver (Mesa in software where there is no GPU)
	@bash .ci/setup
