"""Build what a router installs: a static program, and a Debian package with a unit for systemd.

Usage: `python benches/packages.py OUT [ARCHITECTURE ...]`, in an environment with `cargo-zigbuild`
and `ziglang`, with `cargo-deb` and `cargo-cyclonedx` on the PATH. Beside them it writes the list of
components (CycloneDX). ARCHITECTURE is `x86_64` or `aarch64`; without it, both are built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TARGETS: Final = {
    "x86_64": "x86_64-unknown-linux-musl",
    "aarch64": "aarch64-unknown-linux-musl",
}
UNIT: Final = ROOT / "crates/gate/src/commands/gateway.service"
PROGRAM: Final = "/usr/sbin/bentpipe-gate"
CONFIG: Final = "/etc/bentpipe/%i.toml"
# One unit for all gateways: each has a configuration by its name. `bentpipe-gate unit` prints one
# with what a configuration needs; this one has what any may need.
FIELDS: Final = {
    "name": "%i",
    "functions": "by its configuration",
    "after": " modprobe@tun.service",
    "wants": " modprobe@tun.service",
    "program": PROGRAM,
    "config": CONFIG,
    "reload": f"ExecReload={PROGRAM} reload {CONFIG}\n",
    # After it was killed, a tunnel stays closed until it is up again.
    "after_kill": "RuntimeDirectoryPreserve=yes\n",
    "limits": "LimitNOFILE=1048576\n",
    "devices": "DevicePolicy=closed\nDeviceAllow=/dev/net/tun rw\n",
}


def unit_text() -> str:
    """Return the unit of all gateways."""
    text = UNIT.read_text()
    for name, value in FIELDS.items():
        text = text.replace(f"{{{name}}}", value)
    return text.replace(
        "# Made by bentpipe-gate unit", "# systemctl enable --now bentpipe-gate@sat:", 1
    )


def build(architecture: str, out: Path) -> None:
    """Build the program and its package for an architecture."""
    target = TARGETS[architecture]
    run("rustup", "target", "add", target)
    run("cargo", "zigbuild", "--release", "--quiet", "-p", "bentpipe-gate", "--target", target)
    made = target_folder() / target / "release/bentpipe-gate"
    shutil.copy(made, out / f"bentpipe-gate-{architecture}")
    run(
        "cargo", "deb", "--quiet", "-p", "bentpipe-gate", "--target", target, "--no-build",
        "--no-strip", "--output", str(out),
    )  # fmt: skip


def target_folder() -> Path:
    """Return the folder of builds."""
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def list_components(out: Path) -> None:
    """Write the components of the program in the format of CycloneDX."""
    name = "bentpipe-gate.cdx"
    run(
        "cargo", "cyclonedx", "--quiet", "--format", "json", "--override-filename", name,
        "--manifest-path", "crates/gate/Cargo.toml",
    )  # fmt: skip
    for manifest in [*ROOT.glob("crates/*"), ROOT / "benches", ROOT / "fuzz"]:
        written = manifest / f"{name}.json"
        if manifest.name == "gate":
            shutil.move(written, out / written.name)
        else:
            written.unlink(missing_ok=True)


def run(*command: str) -> None:
    """Run a command; end with its code if it fails."""
    # What the program prints when it panics names no folders of this machine.
    home = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    flags = f"-Cstrip=symbols --remap-path-prefix={home}/registry/src=crates"
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"RUSTFLAGS": flags}, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main(arguments: list[str]) -> None:
    """Build all."""
    if not arguments or not set(arguments[1:]) <= set(TARGETS):
        sys.exit(f"usage: packages.py OUT [{' | '.join(TARGETS)} ...]")
    out = Path(arguments[0]).absolute()
    out.mkdir(parents=True, exist_ok=True)
    (out / "bentpipe-gate@.service").write_text(unit_text())
    shutil.copy(out / "bentpipe-gate@.service", ROOT / "target/bentpipe-gate@.service")
    for architecture in arguments[1:] or TARGETS:
        build(architecture, out)
    list_components(out)
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:>10} B  {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
