# Every target works from a clean clone. CARGO_TARGET_DIR, BURSAR_TEST_CACHE and KUBEBUILDER_ASSETS are honoured.
SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
CARGO       ?= cargo
DEMO        ?=
# Most tests wait for servers: three for each core, and on a large machine no more than its memory holds control planes.
export RUST_TEST_THREADS ?= $(shell echo $$(( $$(nproc) < 8 ? 3 * $$(nproc) : 24 )))

.PHONY: test bench soak demo servers packages cluster domain keycloak new-kind build demo-build deny release deb rpm image image-test packages-test
.DEFAULT_GOAL := test

# All that must hold on each change. The control plane (Go) and the crates build side by side: the one has long single
# links, the other long single crates.
test:
	@$(MAKE) --no-print-directory -j2 servers domain keycloak build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) test --locked --workspace

# The figures of docs/performance.md: minutes, and no check. Ratios compare what was measured in one run.
bench:
	@$(MAKE) --no-print-directory servers
	$(CARGO) build --locked --profile bench -p bursar-homed
	$(CARGO) bench --locked -p bursar --bench "*"

# The homes' tests with large numbers (20,000 writes while everything is exchanged), and on NFS with Linux's own client in a
# virtual machine; 2,000 random pods by webhook and backstop; the properties of admission, raw bodies among them, with large
# numbers: an hour.
soak: servers build new-kind
	BURSAR_TEST_PODS=2000 $(CARGO) test --locked -p bursar --test it admission::agreement
	PROPTEST_CASES=20000 $(CARGO) test --locked -p bursar-core --lib admission::property_tests
	BURSAR_SOAK=1 $(CARGO) test --locked -p bursar --test it homes:: keycloak::a_large_realm
	BURSAR_SOAK=1 tests/nfs.sh

# LDAP, a control plane, Bursar and its webhook with sample people, until Ctrl-C; DEMO=once checks it and ends.
demo:
	@$(MAKE) --no-print-directory -j2 servers demo-build
	@BURSAR_TEST_STAY_ROOT=1 DEMO=$(DEMO) $(CARGO) run --locked --quiet --example demo

# What the tests and the demo run: Debian packages, and the Kubernetes control plane of tests/cluster.
servers: packages cluster

packages:
	@tests/cluster/apt.sh

cluster:
	@tests/cluster/build.sh >/dev/null

# The Active Directory of the tests; nothing else needs Samba.
domain: packages
	@tests/cluster/apt.sh samba samba-ad-provision samba-dsdb-modules samba-vfs-modules winbind python3-samba iproute2
	@tests/cluster/samba.sh >/dev/null

# What people log in at and with, in the tests: Keycloak from Maven Central (160 MB, once), and kubelogin. After
# `packages`: apt has one lock.
keycloak: packages
	@tests/cluster/apt.sh openjdk-17-jre-headless maven
	@tests/keycloak/fetch.sh >/dev/null
	@tests/keycloak/kubelogin.sh >/dev/null

# Where the compiler asks for a new kind of object.
new-kind:
	@tests/new-kind.sh

# Everything that `test` runs, compiled; nothing run.
build:
	@$(CARGO) build --locked --workspace --all-targets

# What the demo runs, and no test.
demo-build:
	@$(CARGO) build --locked -p bursar -p bursar-homed -p bursar-webhook --bins --example demo

# One TLS stack, licenses that fit, crates from the registry alone: deny.toml.
deny:
	@packaging/tool.sh cargo-deny
	$(CARGO) deny --locked check bans licenses sources

# Both packages come from one release build (10 minutes on 2 cores), and land in target/debian and target/generate-rpm.
deb: release
	@packaging/tool.sh cargo-deb
	$(CARGO) deb --locked --no-build --no-strip

rpm: release
	@packaging/tool.sh cargo-generate-rpm
	$(CARGO) generate-rpm --target-dir "$${CARGO_TARGET_DIR:-target}"

# The programs, each package by itself, so that none has features that only another needs; and what they say of themselves:
# manual pages and completions.
release:
	nice $(CARGO) build --locked --release -p bursar --bins
	nice $(CARGO) build --locked --release -p bursar-homed
	nice $(CARGO) build --locked --release -p bursar-webhook
	packaging/generate.sh "$${CARGO_TARGET_DIR:-target}/release/bursar"

# Installs both packages, looks at owners, modes and units, starts the daemons in a booted system, removes them again.
packages-test: deb rpm servers
	$(CARGO) build --locked -p bursar --example site
	target=$${CARGO_TARGET_DIR:-target}; tests/packages.sh "$$target"/debian/bursar_*.deb "$$target"/generate-rpm/bursar-*.rpm

# The webhook's image, from scratch, into target/image: a static program (10 minutes on 2 cores the first time), one layer,
# the same digest from the same sources.
image:
	@packaging/image.sh

# Builds the image twice, compares the digests, and runs it without Kubernetes.
image-test:
	tests/image.sh
