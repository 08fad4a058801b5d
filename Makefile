# Everything happens in .venv and target/: nothing outside this folder is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUST := $(shell find crates benches -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
PY := $(shell find python tests benches -name '*.py')

.PHONY: help demo test check bench instructions coverage schema clean

help:
	@echo "make demo      set up and re-run the JPL experiment; the report is target/demo/jpl/report.html"
	@echo "make test      set up and pass all tests"
	@echo "make check     formatting, lints, types"
	@echo "make bench     packet-hops per CPU second, into target/bench.json"
	@echo "make instructions  instructions a packet-hop, against benches/instructions.json (valgrind)"
	@echo "make coverage  line coverage of crates/core"
	@echo "make schema    write the JSON Schema of scenarios anew"

demo: $(VENV)/.installed
	$(BIN)/bentpipe study jpl --out target/demo/jpl
	@echo "The report is target/demo/jpl/report.html"

test: $(VENV)/.installed
	cargo test --workspace --quiet
	$(BIN)/python -m pytest -q

check: $(VENV)/.installed
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	cargo build --release --quiet -p bentpipe-bench
	target/release/bentpipe-bench target/bench.json $$($(BIN)/python benches/plans.py target/bench)

# Times depend on what else a machine does, instructions do not: this is what guards the inner loop.
instructions: $(VENV)/.installed
	cargo build --release --quiet -p bentpipe-bench
	$(BIN)/python benches/instructions.py target/release/bentpipe-bench target/bench/instructions

coverage: target/tools/bin/cargo-llvm-cov
	target/tools/bin/cargo-llvm-cov llvm-cov --package bentpipe-core --package bentpipe-sim \
		--ignore-filename-regex 'crates/(sim|py)/|benches/' --fail-under-lines 90

schema: $(VENV)/.installed
	$(BIN)/bentpipe schema > python/bentpipe/scenario.schema.json

clean:
	rm -rf target $(VENV) python/bentpipe/*.so

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "bentpipe needs CPython 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 3; }
	cargo --version > /dev/null \
		|| { echo "bentpipe needs Rust: see https://rustup.rs" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# The package is installed in place, so that only a change of Rust needs a new build.
$(VENV)/.installed: $(VENV)/.created pyproject.toml $(RUST)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

target/tools/bin/cargo-llvm-cov:
	rustup component add llvm-tools
	cargo install cargo-llvm-cov --locked --quiet --root target/tools
