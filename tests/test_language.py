"""Names and prose use the standard terms of RFCs, Linux and the field (CONTRIBUTING.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_tidy import relative, tracked

# Each term, and the standard one. Those that are also plain English are looked for as names only.
TERMS = {
    r"Follows|Whom": "StackVariant",
    r"befriend": "reno_friendly",
    r"survives_partial_acks": "newreno",
    r"repeated_to": "recover",
    r"answer_is_early": "rearm_rto",
    r"take_news": "take_delivered",
    r"hear_(data|ack)": "on_data, on_ack",
    r"hears_of_next": "needs_dequeue_events",
    r"OnTheWay": "InTransit",
    r"hasten": "decrease_key",
    r"[Kk]eeper": "lab daemon",
    r"bury": "reap",
    r"own_views": "mount_private_proc_and_sys",
    r"lead_outside": "enable_internet",
    r"lay_over": "bind_mount_text",
    r"PATIENCE": "TIMEOUT",
    r"_afterthoughts": "post_run_warnings",
    r"complaint": "error_message",
    r"rivals": "competing_flows",
    r"joint_goodput_bps": "aggregate_goodput_bps",
    r"outside_bytes": "inter_frame_bytes",
    r"(beside|vs) measured": "published vs. measured",
    r"links in a row": "links in series",
    r"draws? chance": "is stochastic",
    r"segments sent again": "retransmitted segments",
    r"nobody listens": "no server is listening",
    r"a promise of": "an invariant of",
    r"whole number belongs": "expected an integer",
    r"(short|long) way": "fast path, slow path",
    r"in that of one that is no more": "reusing a freed allocation",
}
NAMES = (
    r"Load|Room|Tail|Head|Maker|Order|Courses|Followed|Entrance|Exit|Hands|Commons|Place|Join|Course|"
    r"Conversations|calm|hear|born|law|least|most|settled|reminder"
)
DEFINED = re.compile(
    rf"\b(struct|enum|trait|type|class|fn|def|mod|const|static)\s+({NAMES})\b"
    rf"|^\s*(pub )?({NAMES}): [A-Za-z]"
)
FOUND = {re.compile(rf"\b({term})\b"): better for term, better in TERMS.items()}
FILES = [
    path
    for path in tracked(".rs", ".py", ".pyi", ".md", ".yaml", ".toml", ".j2", ".csv")
    if path.name != "test_language.py"
]


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_names_and_prose_use_the_standard_term(path: Path) -> None:
    is_code = path.suffix in {".rs", ".py", ".pyi"}
    for line in path.read_text(encoding="utf-8").splitlines():
        for term, better in FOUND.items():
            assert not term.search(line), f"{better}: {line}"
        assert not (is_code and DEFINED.search(line)), line


def test_the_test_would_see_such_a_name() -> None:
    assert DEFINED.search("pub struct Room {")
    assert DEFINED.search("    least: u64,")
    assert not DEFINED.search("at most: one")
    assert any(term.search("the keeper of a lab") for term in FOUND)
