"""Run a command on Debian's kernel, in an emulated machine with the files of this one.

Usage: `python benches/debian_kernel.py [--out FOLDER] [--limit SECONDS] -- COMMAND ...`. It needs
QEMU (qemu-system-x86) and kmod, but neither KVM nor root. The kernel is the one that the package
linux-image-amd64 depends on: most routers with nftables have its modules. It is downloaded once by
`apt-get download`, without being installed.

The guest sees this machine's root file system, read-only, with a tmpfs above it: what the command
writes is lost, except below FOLDER. The command runs as root in this folder, with the interpreter
of this program first in its PATH, and without a network. Its exit status is that of this program.
Emulation is some ten times slower than the machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
UNPACKED: Final = ROOT / "target/debian-kernel"
OUT: Final = UNPACKED / "out"
QEMU: Final = "qemu-system-x86_64"
# What the initramfs loads, each with its dependencies; the rest is loaded by modprobe later.
MODULES: Final = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
PACKAGES: Final = {"depmod": "kmod", "modprobe": "kmod", "dpkg": "dpkg", QEMU: "qemu-system-x86"}
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STATUS: Final = ".status"
LIMIT_S: Final = 3_600
CONSOLE_LINES: Final = 20
INIT: Final = """\
#!/bin/busybox sh
busybox mount -t devtmpfs dev /dev
exec < /dev/console > /dev/console 2>&1
set -e
for module in /modules/*; do busybox insmod "$module"; done
mount_9p() { busybox mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2"; }
mount_9p root /lower ro,cache=loose
busybox mount -t tmpfs tmpfs /upper
busybox mkdir /upper/files /upper/work
busybox mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /new
busybox mount --move /dev /new/dev
busybox mkdir -p /new/dev/pts /new/dev/shm
busybox mount -t devpts devpts /new/dev/pts
busybox mount -t tmpfs shm /new/dev/shm
for name in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
    busybox ln -sf "/proc/self/${name#*:}" "/new/dev/${name%:*}"
done
busybox mount -t proc proc /new/proc
busybox mount -t sysfs sys /new/sys
busybox mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
busybox mount -t tmpfs run /new/run
busybox mkdir -p /new/lib/modules
busybox mount --bind "/new$MODULES" /new/lib/modules
mount_9p out "/new$OUT" cache=none
busybox cp /command /new/run/command
exec busybox switch_root /new /bin/sh -c '
    ip link set lo up
    /bin/sh /run/command < /dev/null > /dev/ttyS1 2>&1
    echo $? > "$OUT/.status"
    echo o > /proc/sysrq-trigger
    sleep 60
'
"""
# A terminal would add carriage returns.
COMMAND: Final = """\
stty -F /dev/ttyS1 raw
unset MODULES OUT
export HOME=/root LANG=C.UTF-8 PATH={path}
ulimit -n {files}
cd {folder}
exec {command}
"""


def main() -> int:
    """Run the command of the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="a folder that the guest may write")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds until it is ended")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args()
    for program, package in PACKAGES.items():
        if tool(program) is None:
            sys.exit(f"{program} is not installed; to install it: apt-get install {package}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    unpack()
    options.out.mkdir(parents=True, exist_ok=True)
    return run(options.command, options.out.resolve(), options.limit)


def tool(program: str) -> str | None:
    """Return where a program is; users often lack the folders of the administrator's."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


# --- the kernel and its initramfs -----------------------------------------------------------------


def unpack() -> None:
    """Download and unpack Debian's kernel and a shell, unless that has been done."""
    marker = UNPACKED / "unpacked"
    if marker.exists():
        return
    shutil.rmtree(UNPACKED, ignore_errors=True)
    UNPACKED.mkdir(parents=True)
    depends = ["apt-cache", "depends", "--important", "linux-image-amd64"]
    printed = subprocess.run(depends, check=True, capture_output=True, text=True).stdout
    kernel = next((word for word in printed.split() if word.startswith("linux-image-6")), None)
    if kernel is None:
        sys.exit("apt knows no kernel of Debian; to find it: apt-get update")
    with tempfile.TemporaryDirectory(dir=UNPACKED) as name:
        # The initramfs has a shell.
        packages = [kernel, "busybox-static"]
        subprocess.run(["apt-get", "download", "-qq", *packages], check=True, cwd=name)
        for package in Path(name).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, UNPACKED], check=True)
    subprocess.run([str(tool("depmod")), "-b", UNPACKED, kernel_version()], check=True)
    marker.touch()


def kernel_version() -> str:
    """Return the version of the kernel that is unpacked."""
    (folder,) = (UNPACKED / "lib/modules").iterdir()
    return folder.name


def module_files() -> Iterator[Path]:
    """Yield the files of `MODULES`, each after those it depends on."""
    for module in MODULES:
        command = [str(tool("modprobe")), "-d", str(UNPACKED), "-S", kernel_version()]
        command += ["--show-depends", module]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        yield from (Path(line.split()[1]) for line in printed.splitlines())


def initramfs(script: str) -> bytes:
    """Return an archive that mounts the files of this machine and runs a script there."""
    folders = ("bin", "dev", "lower", "modules", "new", "upper")
    found: dict[str, tuple[int, bytes]] = dict.fromkeys(folders, (0o40755, b""))
    found["init"] = (0o100755, INIT.encode())
    found["command"] = (0o100644, script.encode())
    found["bin/busybox"] = (0o100755, (UNPACKED / "bin/busybox").read_bytes())
    # The shell lists them in this order.
    for number, path in enumerate(dict.fromkeys(module_files())):
        found[f"modules/{number:02}-{path.name}"] = (0o100644, path.read_bytes())
    return archive(found)


def archive(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """Return files, by name with their mode and content, as an archive of cpio.

    The format, newc, is in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
    """
    parts = bytearray()
    for number, (name, (mode, data)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))], 1):
        # Inode, mode, user, group, links, time, size, devices (4), length of the name, checksum.
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        parts += b"070701" + b"".join(b"%08X" % value for value in fields)
        for content in (name.encode() + b"\0", data):
            parts += content
            parts += bytes(-len(parts) % 4)
    return bytes(parts)


# --- the machine ----------------------------------------------------------------------------------


def run(command: list[str], out: Path, limit_s: float) -> int:
    """Run a command in a new guest, which may write a folder; return its exit status."""
    status = out / STATUS
    status.unlink(missing_ok=True)
    script = COMMAND.format(
        path=shlex.quote(f"{Path(sys.executable).parent}:{SYSTEM_PATH}"),
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        folder=shlex.quote(str(Path.cwd())),
        command=shlex.join(command),
    )
    with tempfile.TemporaryDirectory() as name:
        archive_file, console = Path(name) / "initramfs", Path(name) / "console"
        archive_file.write_bytes(initramfs(script))
        machine = qemu(archive_file, console, out)
        try:
            subprocess.run(machine, stdin=subprocess.DEVNULL, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            sys.exit(f"the command was ended: it took more than {limit_s:g} s; --limit sets this")
        if not status.exists() or not status.read_text().strip():
            lines = console.read_text(errors="replace").splitlines() if console.exists() else []
            last = "\n".join(lines[-CONSOLE_LINES:])
            sys.exit(f"the guest ended before the command; its console ends so:\n{last}")
    code = int(status.read_text())
    status.unlink()
    return code


def qemu(archive_file: Path, console: Path, out: Path) -> list[str]:
    """Return the command that starts the guest; its second serial port is standard output."""
    version = kernel_version()
    # The kernel passes variables that it does not know to init.
    words = f"console=ttyS0 panic=-1 mitigations=off MODULES={UNPACKED}/lib/modules OUT={out}"
    command = [QEMU, "-accel", "tcg,thread=multi", "-smp", "2", "-m", "4096", "-cpu", "max"]
    command += ["-nodefaults", "-no-reboot", "-display", "none", "-nic", "none"]
    command += ["-kernel", str(UNPACKED / f"boot/vmlinuz-{version}"), "-append", words]
    command += ["-initrd", str(archive_file), "-serial", f"file:{console}"]
    command += ["-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output"]
    for tag, folder, options in (
        ("root", "/", "security_model=passthrough,readonly=on,multidevs=remap"),
        ("out", out, "security_model=none"),
    ):
        command += ["-fsdev", f"local,id={tag},path={folder},{options}"]
        command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return command


if __name__ == "__main__":
    sys.exit(main())
