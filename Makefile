# meshtf: the everyday commands. One cargo profile (release) serves the demo, the tests and the benches, so that the
# dependencies are built once. `make help` lists the targets.

SHELL := /bin/bash
CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
MESHTF := $(TARGET_DIR)/release/meshtf
# A Python of the benches' own: they look for it beside what is built.
VENV := $(TARGET_DIR)/bench-venv
# The Python module's wheel, and an environment that has it. PYTHON names one Python or several; PYTHON_EXTRA further packages.
PYTHON_DIR := $(TARGET_DIR)/python
PYTHON ?= python3
PYTHON_EXTRA ?=
# nbconvert, for the notebooks.
JUPYTER_VENV := $(TARGET_DIR)/jupyter-venv
# TensorFlow's own client, for the tests that use it. It needs about 2 GB.
TF_VENV := $(TARGET_DIR)/tf-venv
TF_PYTHON ?= python3.11
# TensorFlow 1.15's, for the test of an older client: 0.6 GB. It runs with Python 3.7 only, which pyenv may keep out of the PATH.
TF1_VENV := $(TARGET_DIR)/tf1-venv
TF1_PYTHON ?= $(or $(shell PYENV_VERSION=$$(pyenv latest 3.7 2>/dev/null) pyenv which python3.7 2>/dev/null),python3.7)
JOBS_FLAG := $(if $(JOBS),--jobs $(JOBS))
# Unit tests run on a quick build of the project's crates, with overflow checks and debug assertions, on the same dependencies.
QUICK := --config tests/quick.toml
# Features beyond the default ones: GPUs where there is one (GPU=yes or GPU=no says otherwise). FEATURES=ndarray,parquet,wgpu has all.
# What is built, tested and measured has the same ones, so that each crate is built once.
HAS_GPU = $(or $(GPU),$(if $(filter Darwin,$(shell uname))$(wildcard /dev/nvidia0 /dev/dri/render*),yes,no))
FEATURES ?= $(if $(filter yes,$(HAS_GPU)),wgpu)
FEATURES_FLAG := $(if $(FEATURES),--features $(FEATURES))
# Tools of `make check` that cargo builds.
TOOLS := $(abspath $(TARGET_DIR))/tools
DENY := PATH='$(TOOLS)/bin':"$$PATH" $(CARGO) deny
# The crates of the project. The schema's validator is built apart: it asks dependencies for other features.
WORKSPACE := --workspace --exclude meshtf-schema
# Documentation, the package's last: of a re-export its page shows what the pages of the crate below have, if these are there already,
# and cargo has no order between them.
define document
@RUSTDOCFLAGS='-D warnings' $(CARGO) doc --release --no-deps $(WORKSPACE) --exclude meshtf $(FEATURES_FLAG) $(JOBS_FLAG) --quiet
@RUSTDOCFLAGS='-D warnings' $(CARGO) doc --release --no-deps -p meshtf $(FEATURES_FLAG) $(JOBS_FLAG) --quiet
endef

# Programs with burn's own client are a workspace of their own, which is built apart, and always whole: a part of it would ask for
# other features of the crates below, and build those anew.
BURN_DIR := $(abspath $(TARGET_DIR))/burn
BURN := cd examples/burn && CARGO_TARGET_DIR='$(BURN_DIR)' $(CARGO)

# Colours on a terminal only.
say = @if [ -t 1 ]; then printf '\033[1;36m▸ %s\033[0m\n' '$(1)'; else printf '▸ %s\n' '$(1)'; fi

.DEFAULT_GOAL := help
.PHONY: help advisories api cargo-deny demo demo-tf picture test soak test-arm test-tf test-burn burn-programs tensorflow tensorflow-1.15 test-python test-notebooks jupyter wheel check bench bench-burn setup build dist

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | while IFS=$$'\t' read -r name text; do \
		printf '  make %-10s %s\n' "$$name" "$$text"; done

build: ## the release binary (with GPUs: make build GPU=yes)
	$(call say,building meshtf$(if $(FEATURES), with $(FEATURES)): the first time with all of its dependencies)
	@$(CARGO) build --release --bin meshtf $(FEATURES_FLAG) $(JOBS_FLAG)
	$(call say,built $(MESHTF))

dist: ## what is given away, in target/dist: a small binary, an archive, a .deb, an image (without GPUs: make dist GPU=no)
	$(call say,building meshtf to give away, and packing it: every crate once more, optimised as a whole)
	@CARGO='$(CARGO)' CARGO_TARGET_DIR='$(TARGET_DIR)' GPU='$(GPU)' JOBS='$(JOBS)' bash packaging/dist.sh '$(TARGET_DIR)/dist/packages'
	$(call say,built $(TARGET_DIR)/dist/meshtf and what is in $(TARGET_DIR)/dist/packages)

wheel: ## a Python wheel with the command and the module, in target/wheel (without GPUs: make wheel GPU=no)
	$(call say,building meshtf and its Python module to give away: every crate once more)
	@CARGO='$(CARGO)' CARGO_TARGET_DIR='$(TARGET_DIR)' GPU='$(GPU)' JOBS='$(JOBS)' bash packaging/wheel.sh '$(TARGET_DIR)/wheel'

demo: build ## two nodes as separate processes, one graph over both, the answer: 238
	@MESHTF='$(MESHTF)' bash examples/demo.sh

demo-tf: build $(TF_VENV)/ready ## the same with TensorFlow's own client: ten lines of Python print 238
	@MESHTF='$(MESHTF)' PYTHON='$(TF_VENV)/bin/python' bash examples/demo_tf.sh

picture: build ## docs/top.svg, the picture of README, from a run of `meshtf top`; takes tmux
	@MESHTF='$(MESHTF)' bash docs/top.sh

test: ## unit tests, the optimised library against recorded values, documentation, processes
	$(call say,building and running the tests; a line that begins with NOT RUN names what this machine lacks for one)
	@$(CARGO) fetch --locked --quiet || echo '  crates of other platforms are not here: tests of the licences that a package lists will fail'
	$(call say,unit tests; on a quick build with overflow checks and debug assertions)
	@$(CARGO) test --release $(QUICK) $(WORKSPACE) --lib --bins $(FEATURES_FLAG) $(JOBS_FLAG)
	$(call say,recorded values and processes; on the optimised build)
	@$(CARGO) build --release --bin meshtf --examples $(FEATURES_FLAG) $(JOBS_FLAG)
	@$(CARGO) test --release $(WORKSPACE) --test '*' $(FEATURES_FLAG) $(JOBS_FLAG)
	@$(CARGO) test --release $(WORKSPACE) --doc $(FEATURES_FLAG) $(JOBS_FLAG)
	$(call say,the schema of graphs)
	@$(CARGO) test --release -p meshtf-schema $(JOBS_FLAG)

SEED ?= 1
SECONDS ?= 600
FAULTS ?= all

soak: ## guarded runs on nodes that are killed, stopped and cut off: ten minutes, or SECONDS=…, of the faults that SEED=… gives; FAULTS=kills: kills alone
	$(call say,guarded runs under faults: about twice SECONDS=$(SECONDS) in all)
	@MESHTF_SOAK_SEED='$(SEED)' MESHTF_SOAK_SECONDS='$(SECONDS)' MESHTF_SOAK_FAULTS='$(FAULTS)' \
		$(CARGO) test --release --test it $(FEATURES_FLAG) $(JOBS_FLAG) -- soak --nocapture

test-arm: build ## recorded cases on ARM, by qemu, and a mesh of both processors (builds every crate once more for ARM)
	@MESHTF='$(MESHTF)' CARGO='$(CARGO)' JOBS='$(JOBS)' bash tests/arm.sh

# The programs wait more than they compute, so what is recorded is checked meanwhile.
test-tf: build $(TF_VENV)/ready ## programs of TensorFlow's own client, against nodes (a few minutes)
	$(call say,programs of TensorFlow's own client; and that what is recorded of TensorFlow is what it answers)
	@MESHTF='$(MESHTF)' TF1_CLIENT='$(if $(wildcard $(TF1_VENV)/ready),$(abspath $(TF1_VENV))/bin/python)' \
		'$(TF_VENV)/bin/python' tests/tf/run.py & programs=$$!; \
		'$(TF_VENV)/bin/python' tests/tf/record.py --check$(if $(wildcard $(TF1_VENV)/ready), \
			&& '$(TF1_VENV)/bin/python' tests/tf/record_1_15.py --check); checked=$$?; wait $$programs && exit $$checked

tensorflow: $(TF_VENV)/ready
tensorflow-1.15: $(TF1_VENV)/ready

# make_venv(folder, Python, how the Python may be named): made once. What goes wrong is said, since without it nothing of this can run.
define make_venv
	@command -v '$(2)' >/dev/null || { echo "there is no $(2): name $(3)"; exit 1; }
	@'$(2)' -m venv '$(1)' || { echo "$(2) makes no virtual environment: has it venv?"; exit 1; }
endef
# install(folder, arguments of pip)
define install
	@'$(1)/bin/pip' install --quiet --disable-pip-version-check $(2) || \
		{ echo "pip cannot install $(2) into $(1): is there an index it can reach?"; exit 1; }
endef

$(TF_VENV)/ready: tests/tf/requirements.txt tests/tf/requirements_alone.txt
	$(call say,TensorFlow into $(TF_VENV): a minute or two and 2 GB the first time)
	$(call make_venv,$(TF_VENV),$(TF_PYTHON),a Python 3.10 to 3.13 with TF_PYTHON=…)
	$(call install,$(TF_VENV),-r tests/tf/requirements.txt)
	$(call install,$(TF_VENV),--no-deps -r tests/tf/requirements_alone.txt)
	@touch '$@'

$(TF1_VENV)/ready: tests/tf/requirements_1_15.txt
	$(call say,TensorFlow 1.15 into $(TF1_VENV): 0.6 GB the first time)
	$(call make_venv,$(TF1_VENV),$(TF1_PYTHON),a Python 3.7 with TF1_PYTHON=…)
	$(call install,$(TF1_VENV),-r tests/tf/requirements_1_15.txt)
	@touch '$@'

test-burn: build burn-programs ## programs with burn's own client, against nodes (the first time, they are built)
	@$(BURN) test --release --workspace $(JOBS_FLAG)
	$(call say,burn programs on the mesh)
	@MESHTF='$(abspath $(MESHTF))' BUILT='$(BURN_DIR)/release' bash examples/burn/suite.sh test $(FILTER)
	$(call say,what is recorded of burn is what it answers)
	@'$(BURN_DIR)/release/record' --check '$(CURDIR)/tests/data/burn'

# The wheel of the release build: small or not, it has the same layout.
define python_wheel
	@$(CARGO) build --release -p meshtf -p meshtf-python --bin meshtf --lib $(FEATURES_FLAG) $(JOBS_FLAG)
	@mkdir -p '$(PYTHON_DIR)' && rm -f '$(PYTHON_DIR)'/meshtf-*.whl
	@MESHTF_LEVEL=1 python3 packaging/wheel.py '$(MESHTF)' '$(TARGET_DIR)/release/lib_native.so' '$(PYTHON_DIR)'
endef

test-python: ## the Python module, from a wheel in a fresh virtual environment; PYTHON='python3.10 python3.13' has it on several
	$(call say,building the Python module)
	$(python_wheel)
	@for python in $(PYTHON); do \
		printf '%s\n' "tests of the Python module: $$("$$python" --version)"; \
		rm -rf '$(PYTHON_DIR)/venv' && "$$python" -m venv '$(PYTHON_DIR)/venv' && \
		'$(PYTHON_DIR)/venv/bin/pip' install --quiet --disable-pip-version-check '$(PYTHON_DIR)'/meshtf-*.whl $(PYTHON_EXTRA) && \
		'$(PYTHON_DIR)/venv/bin/python' -m unittest discover -s crates/python/tests -t crates/python/tests || exit 1; done
	@rm -rf '$(PYTHON_DIR)/beside'
	@if [ -e '$(TF_VENV)/ready' ]; then printf '%s\n' 'conversions of TensorFlow'"'"'s graphs'; \
		'$(TF_VENV)/bin/pip' install --quiet --disable-pip-version-check --no-deps --target '$(PYTHON_DIR)/beside' '$(PYTHON_DIR)'/meshtf-*.whl && \
		PYTHONPATH='$(PYTHON_DIR)/beside' '$(TF_VENV)/bin/python' crates/python/tests/with_tensorflow.py; \
	else echo 'NOT RUN: conversions of TensorFlow'"'"'s graphs: there is no TensorFlow (`make tensorflow` installs it)'; fi

jupyter: $(JUPYTER_VENV)/ready

$(JUPYTER_VENV)/ready: crates/python/tests/requirements_notebooks.txt
	$(call say,nbconvert and scikit-learn into $(JUPYTER_VENV): 0.4 GB the first time)
	$(call make_venv,$(JUPYTER_VENV),$(firstword $(PYTHON)),a Python 3.10 or later with PYTHON=…)
	$(call install,$(JUPYTER_VENV),-r crates/python/tests/requirements_notebooks.txt)
	@touch '$@'

test-notebooks: $(JUPYTER_VENV)/ready ## the notebooks of examples/notebooks, by nbconvert, each on nodes of its own
	$(call say,the example notebooks)
	$(python_wheel)
	@'$(JUPYTER_VENV)/bin/pip' install --quiet --disable-pip-version-check --force-reinstall --no-deps '$(PYTHON_DIR)'/meshtf-*.whl
	@'$(JUPYTER_VENV)/bin/python' crates/python/tests/notebooks.py

burn-programs:
	$(call say,building programs with burn's own client)
	@$(BURN) build --release --workspace $(JOBS_FLAG)

check: ## formatting, lints and documentation with warnings denied, the structure of the source
	$(call say,formatting)
	@$(CARGO) fmt --all -- --check
	$(call say,lints)
	@$(CARGO) clippy --release $(WORKSPACE) --all-targets $(FEATURES_FLAG) $(JOBS_FLAG) -- -D warnings
	@$(if $(FEATURES),$(CARGO) clippy --release --lib --bins $(JOBS_FLAG) -- -D warnings)
	@$(CARGO) clippy --release -p meshtf-schema --all-targets $(JOBS_FLAG) -- -D warnings
	$(call say,documentation)
	$(document)
	$(call say,the public interface)
	@python3 tests/api.py '$(TARGET_DIR)/doc/meshtf'
	$(call say,licences and sources of the dependencies)
	@if $(DENY) --version >/dev/null 2>&1; then \
		$(DENY) --log-level error check --hide-inclusion-graph bans licenses sources; \
	elif [ -z "$$CI" ] || [[ ",$${MESHTF_TEST_MAY_SKIP// /}," == *,cargo-deny,* ]]; then \
		echo 'NOT RUN: cargo-deny is not installed (`make cargo-deny` installs it)'; \
	else echo 'cargo-deny is not installed (`make cargo-deny` installs it)'; exit 1; fi
	$(call say,that tests need no dependency built anew)
	@features() { $(CARGO) tree --no-dedupe --prefix none --format '{p} {f}' --edges "$$1" | sort -u; }; \
		if comm -23 <(features normal,build) <(features normal,build,dev) | grep .; then \
			echo 'a development dependency asks these for other features'; exit 1; fi
	$(call say,that embedding a node needs nothing of the command line)
	@if $(CARGO) tree -p meshtf --no-default-features --edges normal --prefix none | grep -E '^(clap|ratatui|plotters|indicatif)'; then \
		echo 'these are built without the feature cli, too'; exit 1; fi
	$(call say,the structure of the source)
	@mkdir -p '$(TARGET_DIR)' && CARGO_MANIFEST_DIR='$(CURDIR)' rustc --edition 2024 --test tests/tidy.rs -o '$(TARGET_DIR)/tidy'
	@'$(TARGET_DIR)/tidy' --quiet

cargo-deny: $(TOOLS)/bin/cargo-deny

$(TOOLS)/bin/cargo-deny:
	$(call say,cargo-deny into $(TOOLS): three minutes the first time)
	@$(CARGO) install cargo-deny --version '=0.20.2' --locked --quiet --root '$(TOOLS)'

advisories: cargo-deny ## known faults of the dependencies, by RustSec's database (from GitHub)
	@$(DENY) check --hide-inclusion-graph advisories

api: ## writes docs/api.txt, the public interface, of which `make check` shows every difference
	$(document)
	@python3 tests/api.py '$(TARGET_DIR)/doc/meshtf' --write

# Each bench prints its figures; benches/report.py puts them into the tables of the page.
bench: build ## every bench; its figures go into docs/benchmarks.md
	$(call say,numpy and onnxruntime to be measured beside (in $(VENV)))
	@$(VENV)/bin/python -c 'import numpy, onnx, onnxruntime' 2>/dev/null || { python3 -m venv '$(VENV)' && \
		'$(VENV)/bin/pip' install --quiet --retries 1 --timeout 20 'numpy>=2,<3' 'onnx>=1.19,<2' 'onnxruntime>=1.20,<2'; } || \
		echo '  there is no Python or no network here: their columns stay empty'
	$(call say,the Python module to be measured beside the Rust client)
	$(python_wheel)
	@rm -rf '$(PYTHON_DIR)/venv' && python3 -m venv '$(PYTHON_DIR)/venv' && \
		'$(PYTHON_DIR)/venv/bin/pip' install --quiet --retries 1 --timeout 20 '$(PYTHON_DIR)'/meshtf-*.whl || \
		{ rm -rf '$(PYTHON_DIR)/venv'; echo '  there is no Python or no network here: the module is not measured'; }
	$(call say,building and running the benches)
	@set -o pipefail; { $(CARGO) bench --bench '*' $(FEATURES_FLAG) $(JOBS_FLAG) && \
		if [ -x '$(TF_VENV)/bin/python' ]; then for bench in bench models others kernels; do \
		MESHTF='$(MESHTF)' '$(TF_VENV)/bin/python' benches/tf/$$bench.py || exit 1; done; else \
		echo '  TensorFlow is not measured beside: `make tensorflow` installs it'; fi && \
		if '$(VENV)/bin/python' -c 'import onnxruntime' 2>/dev/null; then \
		MESHTF='$(MESHTF)' '$(VENV)/bin/python' benches/onnx/bench.py; fi; } | tee '$(TARGET_DIR)/bench.txt'
	$(call say,docs/benchmarks.md)
	@python3 benches/report.py <'$(TARGET_DIR)/bench.txt'

bench-burn: build burn-programs ## burn programs on the mesh, beside burn's own remote server and flex in the program itself
	@MESHTF='$(abspath $(MESHTF))' BUILT='$(BURN_DIR)/release' bash examples/burn/suite.sh bench $(FILTER)

setup: ## what the GPU tests need: a Vulkan driver (Mesa in software where there is no GPU)
	@bash .ci/setup
