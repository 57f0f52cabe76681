# Every target works in a clean clone. CARGO_TARGET_DIR, BURSAR_TEST_CACHE and KUBEBUILDER_ASSETS are respected.
SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
CARGO       ?= cargo
DEMO        ?=
# Most tests wait for servers, so three run on each core. At most 24 run in all, because each control plane needs
# memory.
export RUST_TEST_THREADS ?= $(shell echo $$(( $$(nproc) < 8 ? 3 * $$(nproc) : 24 )))

.PHONY: test bench soak demo servers packages cluster domain keycloak new-kind build demo-build deny release deb rpm image image-test packages-test
.DEFAULT_GOAL := test

# Runs every check that a change must pass. The control plane (Go) and the crates are built in parallel, because both
# have long steps that use only one core.
test:
	@$(MAKE) --no-print-directory -j2 servers domain keycloak build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) test --locked --workspace

# Measures the figures of docs/performance.md. Takes minutes, and checks nothing. Each ratio compares two results of the
# same run.
bench:
	@$(MAKE) --no-print-directory servers
	$(CARGO) build --locked --profile bench -p bursar-homed -p bursar-webhook
	$(CARGO) bench --locked -p bursar --bench "*"

# Runs the tests of homes with large numbers (20,000 writes while other processes replace files and folders), and on NFS
# with Linux's own client in a virtual machine; 2,000 random pods against webhook and backstop; and the property tests
# of admission with large numbers. Takes an hour.
soak: servers build new-kind
	BURSAR_TEST_PODS=2000 $(CARGO) test --locked -p bursar --test it admission::agreement
	PROPTEST_CASES=20000 $(CARGO) test --locked -p bursar-core --lib admission::property_tests
	BURSAR_SOAK=1 $(CARGO) test --locked -p bursar --test it homes:: keycloak::a_large_realm
	BURSAR_SOAK=1 tests/nfs.sh

# Runs LDAP, a control plane, Bursar and its webhook with sample people, until Ctrl-C; DEMO=once checks them and ends.
demo:
	@$(MAKE) --no-print-directory -j2 servers demo-build
	@BURSAR_TEST_STAY_ROOT=1 DEMO=$(DEMO) $(CARGO) run --locked --quiet --example demo

# The programs that the tests and the demo need: Debian packages, and the Kubernetes control plane of tests/cluster.
servers: packages cluster

packages:
	@tests/cluster/apt.sh

cluster:
	@tests/cluster/build.sh >/dev/null

# The Active Directory for the tests. No other target needs Samba.
domain: packages
	@tests/cluster/apt.sh samba samba-ad-provision samba-dsdb-modules samba-vfs-modules winbind python3-samba iproute2
	@tests/cluster/samba.sh >/dev/null

# The programs for logins in the tests: Keycloak from Maven Central (160 MB, once), and kubelogin. Runs after
# `packages`, because apt has one lock.
keycloak: packages
	@tests/cluster/apt.sh openjdk-17-jre-headless maven
	@tests/keycloak/fetch.sh >/dev/null
	@tests/keycloak/kubelogin.sh >/dev/null

# Prints the places at which the compiler asks for code if there is a new kind of object.
new-kind:
	@tests/new-kind.sh

# Compiles everything that `test` runs.
build:
	@$(CARGO) build --locked --workspace --all-targets

# Compiles the programs that only the demo needs.
demo-build:
	@$(CARGO) build --locked -p bursar -p bursar-homed -p bursar-webhook --bins --example demo

# Checks, as deny.toml says, that there is one TLS stack, that all licenses are allowed, and that all crates come from
# the registry.
deny:
	@packaging/tool.sh cargo-deny
	$(CARGO) deny --locked check bans licenses sources

# Both packages come from one release build (10 minutes on 2 cores). They are in target/debian and target/generate-rpm.
deb: release
	@packaging/tool.sh cargo-deb
	$(CARGO) deb --locked --no-build --no-strip

rpm: release
	@packaging/tool.sh cargo-generate-rpm
	$(CARGO) generate-rpm --target-dir "$${CARGO_TARGET_DIR:-target}"

# Builds the programs, and generates manual pages and completions. Each crate is built by itself: otherwise its
# dependencies would get features that only another crate needs.
release:
	nice $(CARGO) build --locked --release -p bursar --bins
	nice $(CARGO) build --locked --release -p bursar-homed
	nice $(CARGO) build --locked --release -p bursar-webhook
	packaging/generate.sh "$${CARGO_TARGET_DIR:-target}/release/bursar"

# Installs both packages, checks owners, modes and units, starts the daemons in a booted system, and removes the
# packages.
packages-test: deb rpm servers
	$(CARGO) build --locked -p bursar --example site
	target=$${CARGO_TARGET_DIR:-target}; tests/packages.sh "$$target"/debian/bursar_*.deb "$$target"/generate-rpm/bursar-*.rpm

# Builds the webhook's image in target/image: a static program (10 minutes on 2 cores the first time) in one layer. The
# same sources give the same digest.
image:
	@packaging/image.sh

# Builds the image twice, compares the digests, and runs the image without Kubernetes.
image-test:
	tests/image.sh
