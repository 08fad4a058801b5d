"""Check packages: install each into a bare root file system, and run a gateway from there.

Usage: `python benches/check_packages.py FOLDER`, as root. The root file system has nothing but the
package, a list of users and what the kernel has; dpkg of this machine installs it. A PEP is put on
two interfaces of a network namespace and taken off, once with the program of the package and once
with the static one. Packages of other architectures are only unpacked.
"""

from __future__ import annotations

import gzip
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

CONFIG: Final = """\
name = "sat"
functions = ["pep"]
[lan]
interfaces = ["lan0"]
[link]
interfaces = ["sat0"]
[pep]
connections = 100
"""
# In new namespaces of network and mounts; `exec chroot` is from then on the only program.
SET_UP: Final = """\
set -e
mount -t proc proc "$0/proc"
mount -t devtmpfs dev "$0/dev"
for name in lan sat; do
    ip link add ${name}0 type veth peer name ${name}1
    ip link set ${name}0 up
    ip link set ${name}1 up
done
ip link set lo up
ip addr add 10.0.1.1/24 dev lan0
ip addr add 10.0.2.1/24 dev sat0
ip route add default via 10.0.2.2
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.tcp_mtu_probing=1
gate() { chroot "$0" "$PROGRAM" "$@"; }
gate --version
gate check /etc/bentpipe/sat.toml
gate up /etc/bentpipe/sat.toml
gate status sat
gate down sat
test -z "$(nft list ruleset)"
"""
ADMINISTRATION: Final = ("info", "updates", "triggers", "parts")
SIZE_MAX: Final = 8_000_000
ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = "bentpipe-gate.8"
# Images of containers often leave out manual pages.
INSTALL: Final = ("dpkg", "--force-script-chrootless", "--path-include=/usr/share/man/*")


def check(folder: Path, root: Path) -> None:
    """Install and run the packages of a folder."""
    own = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    for package in sorted(folder.glob("*.deb")):
        bare = root / package.stem
        new_root(bare)
        architecture = package.stem.rpartition("_")[2]
        if architecture != own:
            subprocess.run(["dpkg-deb", "-x", package, bare], check=True)
        else:
            subprocess.run([*INSTALL, f"--root={bare}", "--install", package], check=True)
        check_files(bare)
        if architecture == own:
            run_gateway(bare, "/usr/sbin/bentpipe-gate")
    bare = root / "static"
    new_root(bare)
    # Whoever downloads it may leave its name.
    name = f"bentpipe-gate-{platform.machine()}"
    shutil.copy(folder / name, bare / name)
    run_gateway(bare, f"/{name}")


def check_files(bare: Path) -> None:
    """Check the program, the unit and the manual page that a package has installed."""
    program = bare / "usr/sbin/bentpipe-gate"
    if program.stat().st_size > SIZE_MAX:
        sys.exit(f"{program}: it has more than {SIZE_MAX} B")
    unit = bare / "usr/lib/systemd/system/bentpipe-gate@.service"
    if f"ExecStart={Path('/usr/sbin/bentpipe-gate')} up" not in unit.read_text():
        sys.exit(f"{unit}: it does not start the program")
    page = bare / f"usr/share/man/man8/{PAGE}.gz"
    source = ROOT / "crates/gate" / PAGE
    if not page.is_file() or gzip.decompress(page.read_bytes()) != source.read_bytes():
        sys.exit(f"{page}: it is not {source}, compressed")


def new_root(bare: Path) -> None:
    """Make a root file system without a program."""
    dpkg = (f"var/lib/dpkg/{name}" for name in ADMINISTRATION)
    for name in ("dev", "proc", "etc/bentpipe", "run", *dpkg):
        (bare / name).mkdir(parents=True)
    for name in ("status", "available"):
        (bare / "var/lib/dpkg" / name).touch()
    (bare / "etc/passwd").write_text("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")
    (bare / "etc/bentpipe/sat.toml").write_text(CONFIG)


def run_gateway(bare: Path, program: str) -> None:
    """Put a PEP on a router of its own, and take it off."""
    print(f"{bare.name}: {program}", flush=True)
    command = ["unshare", "--net", "--mount", "env", f"PROGRAM={program}"]
    subprocess.run([*command, "sh", "-c", SET_UP, bare], check=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit("usage: check_packages.py FOLDER")
    with tempfile.TemporaryDirectory() as name:
        check(Path(arguments[0]), Path(name))
