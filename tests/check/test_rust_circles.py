"""Modules of a Rust crate that use each other in a circle.

Modules are files. What a file uses are the modules with the items that its paths name, where
`pub use` is followed to the item's own file; methods are not seen, and test code is not read. A
module and one inside it may use each other. All others may not, directly or through others, and
neither may what is inside them: `link::queue -> tcp::rtt` and `tcp::rack -> link` are a circle.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from sources import ROOT, no_offenders

Module = tuple[str, ...]

NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|\bb?r(#*)".*?"\1|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', re.DOTALL
)
TEST = re.compile(r"#\[cfg\(test\)\]")
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?mod (\w+);")
USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?use\s+([^;]+);", re.MULTILINE)
PATH = re.compile(r"(?<![\w:])[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+")


def without_tests(code: str) -> str:
    """Return code without the items that only tests have."""
    before, *parts = TEST.split(code)
    return before + "".join(part[item_length(part) :] for part in parts)


def item_length(code: str) -> int:
    depth = 0
    for index, letter in enumerate(code):
        depth += (letter in "([{") - (letter in ")]}")
        if depth <= 0 and letter in ";,}":
            return index + 1
    return len(code)


def declared(tree: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each name that a `use` declares, with its path."""
    opening = tree.find("{")
    if opening < 0:
        path, _, alias = tree.partition(" as ")
        segments = path.strip().removesuffix("::self").split("::")
        yield alias.strip() or segments[-1], segments
        return
    depth, start = 0, opening + 1
    for end, letter in enumerate(tree[opening:], start=opening):
        depth += (letter == "{") - (letter == "}")
        if depth == 0 or (depth == 1 and letter == ","):
            if part := tree[start:end].strip():
                yield from declared(tree[:opening].strip() + part)
            start = end + 1


class Crate:
    """The modules of a crate, and the names that each takes from others."""

    def __init__(self, texts: dict[Module, str]) -> None:
        texts = {module: NOT_CODE.sub(" ", text) for module, text in texts.items()}
        tests = {(*module, name) for module in texts for name in TEST_MODULE.findall(texts[module])}
        self.codes = {
            module: without_tests(text)
            for module, text in texts.items()
            if not any(module[: len(test)] == test for test in tests)
        }
        self.names = {
            module: [name for use in USE.findall(code) for name in declared(use)]
            for module, code in self.codes.items()
        }

    def home(self, module: Module, path: list[str]) -> Module | None:
        """Return the module of what a path names; `None` if that is not of this crate."""
        roots = {"crate": (), "self": module, "super": module[:-1]}
        home = roots.get(path[0], module)
        for index, name in enumerate(path):
            aliases = [found for alias, found in self.names[home] if alias == name]
            if name in roots:
                home = home[:-1] if name == "super" and index else home
            elif (*home, name) in self.codes:
                home = (*home, name)
            elif aliases and aliases[0] != path[index : index + 1]:
                return self.home(home, [*aliases[0], *path[index + 1 :]])
            else:
                return None if index == 0 else home
        return home

    def uses(self) -> Iterator[tuple[Module, Module]]:
        for module, code in self.codes.items():
            inline = [path.split("::") for path in PATH.findall(USE.sub("", code))]
            for path in [*inline, *(path for _, path in self.names[module])]:
                home = self.home(module, path)
                if home is not None:
                    yield module, home

    def circles(self) -> list[str]:
        """Return the uses that circles consist of."""
        levels: dict[Module, dict[tuple[str, str], set[str]]] = defaultdict(dict)
        for user, used in self.uses():
            depth = next(
                (i for i, (a, b) in enumerate(zip(user, used, strict=False)) if a != b), None
            )
            if depth is not None:
                places = levels[user[:depth]].setdefault((user[depth], used[depth]), set())
                places.add(f"{'::'.join(user)} uses {'::'.join(used)}")
        return [
            place
            for edges in levels.values()
            for (user, used), places in edges.items()
            if user in reachable(set(edges), used)
            for place in sorted(places)
        ]


def reachable(edges: set[tuple[str, str]], start: str) -> set[str]:
    seen, pending = {start}, [start]
    while pending:
        here = pending.pop()
        following = {used for user, used in edges if user == here} - seen
        seen |= following
        pending += following
    return seen


def read(source: Path) -> Crate:
    """Read a crate's library."""
    texts = {}
    for path in source.rglob("*.rs"):
        module = path.relative_to(source).with_suffix("").parts
        if module[-1] in {"lib", "mod"}:
            module = module[:-1]
        texts[module] = path.read_text(encoding="utf-8")
    return Crate(texts)


def test_no_modules_of_a_crate_use_each_other_in_a_circle() -> None:
    sources = list((ROOT / "crates").glob("*/src"))
    assert len(sources) > 5
    no_offenders(
        f"{source.parent.name}: {use}" for source in sources for use in read(source).circles()
    )


def test_the_check_would_see_a_circle() -> None:
    modules: dict[Module, str] = {
        (): "pub mod link; pub mod tcp; pub mod wire;",
        ("link",): "mod queue;\npub use queue::{Queue, codel::Codel as Best};\nuse crate::tcp::X;",
        ("link", "queue"): "pub mod codel;\nuse super::Link; // crate::tcp::rtt::Rtt",
        ("link", "queue", "codel"): "use super::{super::Link, Queue};\nfn f() { tcp::f() }",
        ("tcp",): "mod rtt; mod rack;\npub use rack::Rack;\n#[cfg(test)]\nmod harness;",
        ("tcp", "harness"): "use crate::link::Link;",
        ("tcp", "rack"): "use super::rtt::Rtt;",
        ("tcp", "rtt"): "use super::Tcp;\n#[cfg(test)]\nmod tests { use crate::link::Link; }",
        ("wire",): "use crate::link::Best; use std::link::Tcp;",
    }
    assert Crate(modules).circles() == []
    sibling = {("tcp", "rtt"): "#[cfg(test)]\nuse x;\nfn f() -> super::Rack;"}
    assert Crate(modules | sibling).circles() == [
        "tcp::rack uses tcp::rtt",
        "tcp::rtt uses tcp::rack",
    ]
    distant = "use crate::{wire::self,\n link as other};\nfn f() -> other::Best { wire::f() }"
    assert sorted(Crate(modules | {("tcp", "rtt"): distant}).circles()) == [
        "link uses tcp",
        "tcp::rtt uses link",
        "tcp::rtt uses link::queue::codel",
        "tcp::rtt uses wire",
        "wire uses link::queue::codel",
    ]
