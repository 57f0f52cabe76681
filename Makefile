# Every target works from a clean clone. CARGO_TARGET_DIR, BURSAR_CACHE and KUBEBUILDER_ASSETS are honoured.
SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
CARGO       ?= cargo
DEMO        ?=

.PHONY: test demo servers packages cluster build
.DEFAULT_GOAL := test

# All that must hold on each change. The control plane (Go) and the crates build side by side: the one has long single
# links, the other long single crates.
test:
	@$(MAKE) --no-print-directory -j2 servers build
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) test --locked

# LDAP, a control plane, Bursar and its webhook with sample people, until Ctrl-C; DEMO=once checks it and ends.
demo:
	@$(MAKE) --no-print-directory -j2 servers build
	@DEMO=$(DEMO) $(CARGO) run --locked --quiet --example demo

# What the tests and the demo run: Debian packages, and the Kubernetes control plane of tests/cluster.
servers: packages cluster

packages:
	@tests/cluster/apt.sh

cluster:
	@tests/cluster/build.sh >/dev/null

# Everything `test` and `demo` run, compiled; nothing run.
build:
	@$(CARGO) build --locked --all-targets
