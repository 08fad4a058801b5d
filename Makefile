# All output is in .venv and target/; nothing outside this folder is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUST := $(shell find crates benches -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
# The daemon of gateways, inside the package.
GATE := python/bentpipe/gateway/bentpipe-gate
PYTEST_OPTIONS :=
# Rules name files below target, also where the environment has another folder for builds.
export CARGO_TARGET_DIR := $(CURDIR)/target
# Tests start thousands of processes: without compiled modules each would spend 0.4 s on compiling the package.
export PYTHONDONTWRITEBYTECODE :=

HOST := $(shell rustc --version --verbose 2> /dev/null | sed -n 's/^host: //p')
PROFDATA := $(shell rustc --print sysroot 2> /dev/null)/lib/rustlib/$(HOST)/bin/llvm-profdata
PGO := $(CURDIR)/target/pgo
BENCH_yes := $(PGO)/$(HOST)/release/bentpipe-bench
BENCH_no := target/release/bentpipe-bench

# `make test` tries the same inputs each time. Others: make test PROPTEST_RNG_SEED=2 BOLERO_RANDOM_ITERATIONS=1000
PROPTEST_RNG_SEED ?= 1
PROPTEST_CASES ?= 64
BOLERO_RANDOM_ITERATIONS ?= 0

.PHONY: help demo test test-rust test-python test-real-time test-unprivileged test-debian-kernel test-all wording build-tests compile-tests packages packages-check check check-format check-rust check-python check-style check-types check-texts docs bench wheel instructions coverage schema picture clean

help:
	@echo "make demo      re-run the JPL experiment; the report is target/demo/jpl/report.html"
	@echo "make test      run the tests that every change needs, some of labs included"
	@echo "make test-real-time  measure labs and gateways"
	@echo "make test-unprivileged  as root: test labs as the user nobody"
	@echo "make test-debian-kernel  test gateways with what other kernels lack, on Debian's in QEMU"
	@echo "make test-all  run what takes long: whole studies, stress, many random inputs"
	@echo "make check     check formatting, lints, types, layers, stubs, the site and the schema"
	@echo "make docs      build the documentation site in target/site; a broken link fails it"
	@echo "make bench     measure simulations, labs, tunnels and kernels of GF(2^8) (target/bench*.json)"
	@echo "make wheel     build a profile-guided manylinux wheel in target/wheels"
	@echo "make wheel-check  install that wheel into an empty environment, and run the demo there"
	@echo "make packages   build bentpipe-gate for routers, static and as Debian packages, in target/packages"
	@echo "make packages-check  as root: install these packages into a bare root file system, and run them there"
	@echo "make instructions  compare instructions per packet-hop with benches/instructions.json (valgrind)"
	@echo "make coverage  measure line coverage of crates/core"
	@echo "make schema    regenerate the JSON Schema of scenarios, the plans of presets, the tables of columns"
	@echo "make wording   write the messages that tests compare into tests/wording.txt"
	@echo "make picture   redraw the picture of the README"

demo: $(VENV)/.runtime
	$(BIN)/bentpipe study jpl --out target/demo/jpl
	@echo "The report is target/demo/jpl/report.html"

# To fail where a test cannot run: make test PYTEST_OPTIONS=--require-labs BENTPIPE_REQUIRE_LABS=1
PYTEST := $(BIN)/python -m pytest -q --durations=30 --durations-min=1
# Some tests wait, so there are two processes more than cores.
PARALLEL := -n $$(($$(nproc) + 2)) --maxprocesses 8 --dist worksteal
RANDOM_INPUTS := PROPTEST_CASES=$(PROPTEST_CASES) PROPTEST_RNG_SEED=$(PROPTEST_RNG_SEED) BOLERO_RANDOM_ITERATIONS=$(BOLERO_RANDOM_ITERATIONS)

# Rust's and Python's tests run beside each other, since half of them wait. Tests that measure labs run alone: here
# some, in `make test-real-time` the others.
test: $(VENV)/.installed
	$(MAKE) --no-print-directory -j2 test-rust test-python
	$(PYTEST) -m "smoke and not thorough" $(PYTEST_OPTIONS) $$(grep -l mark.smoke tests/test_*.py)

# With `LINT_WITH_TESTS=yes`, as in CI, Clippy compiles the tests: its lints take a third of the time of a build of their own.
LINT_WITH_TESTS ?= no
CLIPPY_yes := env RUSTC_WORKSPACE_WRAPPER=clippy-driver RUSTFLAGS="-D warnings"
CARGO_TESTS := $(CLIPPY_$(LINT_WITH_TESTS)) cargo

# The log, so that its lines are not mixed with those of Python's tests.
RUST_LOG := target/rust-tests.log
test-rust:
	@mkdir -p target
	@echo "Rust's tests write $(RUST_LOG)"
	@$(RANDOM_INPUTS) $(CARGO_TESTS) test --workspace --quiet > $(RUST_LOG) 2>&1 || { cat $(RUST_LOG); exit 1; }
	@echo "Rust: $$(awk '/^test result/ { passed += $$4; ignored += $$8 } END { print passed " passed, " ignored " ignored" }' \
		$(RUST_LOG))"

test-python: $(VENV)/.installed
	$(PYTEST) $(PARALLEL) -m "not real_time and not thorough" --ignore=tests/check $(PYTEST_OPTIONS)

test-real-time: $(VENV)/.installed
	$(PYTEST) -m "real_time and not smoke and not thorough" --ignore=tests/check $(PYTEST_OPTIONS)
	$(CARGO_TESTS) test --workspace --test lab --test daemon --quiet -- --ignored --test-threads=1

# As root only: what differs in labs of a user without privileges.
test-unprivileged: $(VENV)/.installed
	$(BIN)/python tests/as_nobody.py -m pytest -q -p no:cacheprovider -n 2 -m unprivileged \
		$(PYTEST_OPTIONS) $$(grep -l mark.unprivileged tests/test_*.py)

# What other kernels may lack: flowtables, VLANs, netem. Emulated, so it takes some 10 min.
KERNEL_TESTS := flowtable or vlan or delays_of_the_link
test-debian-kernel: $(VENV)/.installed
	$(BIN)/python benches/debian_kernel.py -- env BENTPIPE_SLOW=4 python -m pytest -q -p no:cacheprovider --color no \
		--require-labs --timeout 1200 -k "$(KERNEL_TESTS)" $(PYTEST_OPTIONS) \
		tests/test_router_matrix.py tests/test_export_runs.py

# Before a release: whole studies, stress, all labs as nobody, and inputs that no run had before.
test-all: $(VENV)/.installed
	PROPTEST_CASES=2000 BENTPIPE_STRESS=10 BENTPIPE_STRESS_SEED=$$(date +%s) $(CARGO_TESTS) test --workspace --quiet
	BENTPIPE_STRESS=5 BENTPIPE_EXAMPLES=500 $(PYTEST) $(PARALLEL) --timeout=3000 -m "thorough and not lab" \
		--ignore=tests/check $(PYTEST_OPTIONS)
	BENTPIPE_STRESS=5 $(PYTEST) --timeout=3000 -m "thorough and lab" --ignore=tests/check $(PYTEST_OPTIONS)
	[ "$$(id -u)" != 0 ] || $(BIN)/python tests/as_nobody.py -m pytest -q -p no:cacheprovider -n 2 \
		-m "lab and not real_time" --ignore=tests/check $(PYTEST_OPTIONS)

# After a better sentence.
wording: $(VENV)/.installed
	$(PYTEST) -n 0 --update-wording $$(grep -l wording tests/test_*.py)

# What `make test` needs: with -j, beside other targets, and after the installation, for which most of them wait.
build-tests:
	nice $(CARGO_TESTS) test --workspace --quiet --no-run
ifeq ($(LINT_WITH_TESTS),yes)
	@# What no test needs.
	nice $(CARGO_TESTS) build --profile test --workspace --lib --bins --quiet --features pyo3/extension-module
endif

# Else each of the parallel processes would rewrite the assertions of all tests.
compile-tests: $(VENV)/.installed
	$(BIN)/python -m pytest -q --collect-only > /dev/null

check: check-format check-rust check-python

check-format:
	cargo fmt --all --check

check-rust: $(if $(CLIPPY_$(LINT_WITH_TESTS)),build-tests)
ifneq ($(LINT_WITH_TESTS),yes)
	cargo clippy --workspace --all-targets --quiet -- -D warnings
endif

check-python: check-style check-types check-texts

check-style: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

check-types: $(VENV)/.installed
	$(BIN)/mypy

check-texts: $(VENV)/.installed
	$(BIN)/python -m pytest -q tests/check

# Without --quiet, which turns off the warnings that strict mode counts.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "The site is target/site/index.html"

# Profile-guided, as the wheel: build, run the examples with branch counters, build again (decision
# 9). PROFILED=no builds once. With a profile, optimisation level 2 is faster than 3.
PROFILED ?= yes
$(PGO)/profile $(BENCH_yes) wheel: export CARGO_PROFILE_RELEASE_OPT_LEVEL := 2
# Labs are measured as `make test` builds them: the profile has simulations only, so it slows labs down
# (decision 10).
bench: $(BENCH_$(PROFILED)) $(BENCH_no)
	$< target/bench.json $$($(BIN)/python benches/plans.py target/bench)
	PATH="$(CURDIR)/$(BIN):$$PATH" target/release/bentpipe-bench-live target/bench-live.json
	target/release/bentpipe-bench-gf target/bench-gf.json
	target/release/bentpipe-bench-codes target/bench-codes.json
	target/release/bentpipe-bench-tunnel target/bench-tunnel.json 5 \
		$$(command -v wireguard-go) $$(command -v boringtun-cli)

$(BENCH_no): $(RUST) | $(VENV)/.installed
	env -u CARGO_PROFILE_RELEASE_OPT_LEVEL cargo build --release --quiet -p bentpipe-bench

$(BENCH_yes): $(PGO)/profile
	RUSTFLAGS="-Cprofile-use=$(PGO)/profile" $(BUILD_BENCH) --target-dir $(PGO)

# A profile names functions by their symbols, which end in a hash. The hash depends on features of
# dependencies, so the binding is selected, too, and on these variables, which `maturin --zig` sets.
BUILD_BENCH := CARGO_TARGET_APPLIES_TO_HOST=false CARGO_UNSTABLE_TARGET_APPLIES_TO_HOST=true \
	__CARGO_TEST_CHANNEL_OVERRIDE_DO_NOT_USE_THIS=nightly cargo build --release --quiet \
	-p bentpipe-bench -p bentpipe-py --bin bentpipe-bench --target $(HOST)

$(PGO)/profile: $(RUST) benches/train.py $(wildcard scenarios/*.yaml) | $(VENV)/.installed $(PROFDATA)
	rm -rf $(PGO)/counts
	RUSTFLAGS="-Cprofile-generate=$(PGO)/counts" $(BUILD_BENCH) --target-dir $(PGO)/counting
	$(PGO)/counting/$(HOST)/release/bentpipe-bench --once \
		$$($(BIN)/python benches/train.py $(PGO)/plans)
	$(PROFDATA) merge --output $@ $(PGO)/counts

$(PROFDATA):
	rustup component add llvm-tools

# zig links with the symbols of glibc 2.17, the oldest that Rust supports (manylinux2014).
WHEELS := target/wheels
REMAP := --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)/registry/src=crates
wheel: $(PGO)/profile $(VENV)/.maturin
	rm -rf $(WHEELS)
	PATH="$(CURDIR)/$(BIN):$$PATH" RUSTFLAGS="-Cstrip=symbols $(REMAP)" \
		cargo zigbuild --release --quiet -p bentpipe-gate \
		--target $(HOST).2.17 --target-dir target/gate
	install -m 755 target/gate/$(HOST)/release/bentpipe-gate $(GATE)
	RUSTFLAGS="-Cprofile-use=$(PGO)/profile $(REMAP)" \
		PATH="$(CURDIR)/$(BIN):$$PATH" \
		maturin build --release --strip --zig --compatibility manylinux2014 --out $(WHEELS)

wheel-check: wheel
	$(BIN)/python benches/check_wheel.py $(WHEELS)/*.whl

# What a router installs. Each tool is built once.
PACKAGES := target/packages
packages: $(VENV)/.maturin target/tools/bin/cargo-deb target/tools/bin/cargo-cyclonedx
	rm -rf $(PACKAGES)
	PATH="$(CURDIR)/$(BIN):$(CURDIR)/target/tools/bin:$$PATH" $(BIN)/python benches/packages.py $(PACKAGES)

packages-check: packages
	$(BIN)/python benches/check_packages.py $(PACKAGES)

$(VENV)/.maturin: | $(VENV)/.created
	$(PIP) 'maturin[zig]>=1.16,<2' \
		'cargo-zigbuild>=0.24,<0.25'
	touch $@

# Instruction counts, unlike times, do not depend on the load: they guard the inner loop.
instructions: $(VENV)/.installed
	$(BIN)/python benches/instructions.py target/bench/instructions

coverage: target/tools/bin/cargo-llvm-cov
	target/tools/bin/cargo-llvm-cov llvm-cov --package bentpipe-core --package bentpipe-sim \
		--ignore-filename-regex 'crates/(sim|py)/|benches/' --fail-under-lines 90

schema: $(VENV)/.installed
	$(BIN)/bentpipe show schema > python/bentpipe/scenario/schema.json
	$(BIN)/python -m bentpipe.plan.presets > target/preset_plans.json
	mv target/preset_plans.json python/bentpipe/plan/preset_plans.json
	$(BIN)/python docs/columns.py

# The picture of the README.
picture: $(VENV)/.installed
	$(BIN)/python docs/images/jpl.py docs/images/jpl.svg

clean:
	rm -rf target $(VENV) python/bentpipe/*.so $(GATE)

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "bentpipe needs CPython 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 3; }
	cargo --version > /dev/null \
		|| { echo "bentpipe needs Rust: see https://rustup.rs" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	touch $@

# The package is installed in place, so only a change of Rust needs a new build. A library's modules are compiled when
# they are first imported: most never are. Pip 23 would spend a minute on the pages of the index.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL_pip := $(PIP) --no-compile --editable
# A quarter of pip's processor time. It does not read pip's configuration (mirrors), so it is not the default, and pip
# follows where it fails.
INSTALL_uv := install() { $(PIP) uv && $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python --editable "$$1" \
	|| $(INSTALL_pip) "$$1"; }; install
INSTALLER ?= pip
INSTALL := $(INSTALL_$(INSTALLER))
$(VENV)/.runtime: $(VENV)/.created pyproject.toml $(RUST) $(GATE)
	$(INSTALL) .
	touch $@

# The binding is selected, too, so that the features of dependencies are those of the extension, and crates are
# compiled once.
$(GATE): $(RUST) | $(VENV)/.created
	cargo build --release --quiet -p bentpipe-gate -p bentpipe-py --features pyo3/extension-module \
		--bin bentpipe-gate
	install -m 755 target/release/bentpipe-gate $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml $(RUST) $(GATE)
	$(INSTALL) '.[dev,docs]'
	touch $(VENV)/.runtime $@

target/tools/bin/cargo-llvm-cov:
	rustup component add llvm-tools
	cargo install cargo-llvm-cov --locked --quiet --root target/tools

target/tools/bin/cargo-%:
	cargo install cargo-$* --locked --quiet --root target/tools
