"""Run Python as the user nobody, who has no privileges, home or session: for tests started as root.

``python tests/as_nobody.py -m pytest tests/test_live.py`` runs pytest so. It works in a private
mount namespace, where nobody can read the interpreter, its packages and this folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
# Variables that name folders of the user who runs the tests.
_OF_THE_USER: Final = {"HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "PYTEST_DEBUG_TEMPROOT"}
# Without folders that nobody cannot search: execvp(3) fails with EACCES for them.
_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
# $0 is the folder of `prepare`. The device is as udev(7) makes it for everybody, also where there
# is no udev.
_BECOME_NOBODY: Final = """
set -e
for name in python site tree; do mount --rbind "$1" "$0/$name"; shift; done
mknod -m 666 "$0/tun" c 10 200
mount --bind "$0/tun" /dev/net/tun
rm "$0/tun"
cd "$0/tree"
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""


def prepare() -> Path:
    """Return a new folder to which everything that nobody needs can be mounted.

    Its folder ``tmp`` is for temporary files.
    """
    top = Path(tempfile.mkdtemp(prefix="bentpipe-nobody-"))
    top.chmod(0o755)
    for name in ("python", "site", "tree", "tmp"):
        (top / name).mkdir()
    # The umask does not hold here.
    (top / "tmp").chmod(0o777)
    return top


def environment(top: Path) -> dict[str, str]:
    """Return the environment of `command`."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_THE_USER}
    path = f"{top / 'tree' / 'python'}:{top / 'site'}"
    # Nobody cannot search the folder of libpython, and another Python of the machine may have one.
    library = str(top / "python" / "lib")
    variables = {"PATH": _PATH, "TMPDIR": str(top / "tmp"), "PYTHONPATH": path}
    return kept | variables | {"LD_LIBRARY_PATH": library}


def command(top: Path) -> list[str]:
    """Return the words that start Python as nobody; its arguments follow."""
    interpreter = Path(sys.executable).resolve().relative_to(sys.base_prefix)
    folders = [sys.base_prefix, sysconfig.get_path("purelib"), str(ROOT)]
    become = ["unshare", "--mount", "sh", "-c", _BECOME_NOBODY, str(top), *folders]
    return [*become, str(top / "python" / interpreter)]


def main(arguments: Sequence[str]) -> int:
    """Run Python with arguments as nobody; return its exit code."""
    top = prepare()
    # Without a home, matplotlib would make a temporary folder, which its process leaves to its end.
    fonts = top / "matplotlib"
    fonts.mkdir()
    fonts.chmod(0o777)
    variables = environment(top) | {"MPLCONFIGDIR": str(fonts)}
    try:
        done = subprocess.run([*command(top), *arguments], env=variables, check=False)
    finally:
        shutil.rmtree(top)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
