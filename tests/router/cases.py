"""The routers: the rules, settings and paths of each case, read from ``cases.toml``."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "cases.toml"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A router ``a`` and the hosts around it.

    ``rules`` are those of nftables and ``commands`` shell commands, by host; ``$a`` and so on are
    the namespaces. ``during`` runs on ``a`` while journeys are under way. ``targets`` are the
    addresses (IPv4, IPv6) to which a journey connects. ``expect`` is how journeys end that do not
    end as on a router without rules; ``stall_s`` how long a connection may be without progress.
    ``needs`` is a command that fails where the kernel cannot have this case.
    """

    name: str
    about: str
    rules: dict[str, str] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)
    lan: list[str] = field(default_factory=lambda: ["lan0"])
    link: list[str] = field(default_factory=lambda: ["sat0"])
    journeys: list[str] = field(default_factory=list)
    targets: dict[str, list[str]] = field(default_factory=dict)
    expect: dict[str, str] = field(default_factory=dict)
    during: str = ""
    stall_s: float = 5.0
    needs: str = ""

    def why_impossible(self) -> str | None:
        """Return what the kernel of this machine lacks for this case."""
        return _refusal(self.needs) if self.needs else None


@cache
def _refusal(command: str) -> str | None:
    tried = ["unshare", "--net", "sh", "-c", command]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    said = (done.stderr or done.stdout).strip().splitlines() or [f"code {done.returncode}"]
    return re.sub(r"^\S*:\d+:\d+-\d+: ", "", said[0])


@cache
def all_cases() -> dict[str, Case]:
    """Return the cases by name, in the order of the file."""
    read = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: Case(name=name, **fields) for name, fields in read.items()}
