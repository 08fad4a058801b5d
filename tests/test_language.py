"""Names and prose use the standard terms of RFCs, Linux and the field (CONTRIBUTING.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_tidy import relative, tracked

# Each term, and the standard one. A class of one letter keeps this file from holding the term
# itself. Terms that are also plain English are looked for as names only.
TERMS = {
    r"[F]ollows|[W]hom": "StackVariant",
    r"[b]efriend": "reno_friendly",
    r"[s]urvives_partial_acks": "newreno",
    r"[r]epeated_to": "recover",
    r"[a]nswer_is_early": "rearm_rto",
    r"[t]ake_news": "take_delivered",
    r"[h]ear_(data|ack)": "on_data, on_ack",
    r"[h]ears_of_next": "needs_dequeue_events",
    r"[O]nTheWay": "InTransit",
    r"[h]asten": "decrease_key",
    r"[Kk]eeper": "lab daemon",
    r"[b]ury": "reap",
    r"[o]wn_views": "mount_private_proc_and_sys",
    r"[l]ead_outside": "enable_internet",
    r"[l]ay_over": "bind_mount_text",
    r"[P]ATIENCE": "TIMEOUT",
    r"_[a]fterthoughts": "post_run_warnings",
    r"[c]omplaints?": "error_message",
    r"[r]ivals": "competing_flows",
    r"[j]oint_goodput_bps": "aggregate_goodput_bps",
    r"[o]utside_bytes": "inter_frame_bytes",
    r"(beside|vs) measured": "published vs. measured",
    r"[l]inks in a row": "links in series",
    r"[d]raws? chance": "is stochastic",
    r"[s]egments sent again": "retransmitted segments",
    r"[n]obody listens": "no server is listening",
    r"[a] promise of": "an invariant of",
    r"[w]hole number belongs": "expected an integer",
    r"(short|long) way": "fast path, slow path",
    r"[i]n that of one that is no more": "reusing a freed allocation",
}
NAMES = (
    r"[L]oad|[R]oom|[T]ail|[H]ead|[M]aker|[O]rder|[C]ourses|[F]ollowed|[E]ntrance|[E]xit|[H]ands|[C]ommons|[P]lace|[J]oin|[C]ourse|"
    r"[C]onversations|[c]alm|[h]ear|[b]orn|[l]aw|[l]east|[m]ost|[s]ettled|[r]eminder"
)
DEFINED = re.compile(
    rf"\b(struct|enum|trait|type|class|fn|def|mod|const|static)\s+({NAMES})\b"
    rf"|^\s*(pub )?({NAMES}): [A-Za-z]"
)
FILES = [
    path
    for path in tracked(".rs", ".py", ".pyi", ".md", ".yaml", ".toml", ".j2", ".csv")
    if path.name != "test_language.py"
]


# The one use of a term that is meant: `bentpipe ask complaint` answers what users complain about.
MEANT = {
    r"[c]omplaints?": {
        "CHANGELOG.md",
        "docs/how-to/ask-a-question.md",
        "python/bentpipe/answers/__init__.pyi",
        "python/bentpipe/answers/" + "complaint.py",
        "python/bentpipe/answers/users.py",
        "python/bentpipe/cli/ask.py",
        "tests/test_ask.py",
    }
}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_names_and_prose_use_the_standard_term(path: Path) -> None:
    is_code = path.suffix in {".rs", ".py", ".pyi"}
    found = {
        re.compile(rf"\b({term})\b"): better
        for term, better in TERMS.items()
        if relative(path) not in MEANT.get(term, ())
    }
    for line in path.read_text(encoding="utf-8").splitlines():
        for term, better in found.items():
            assert not term.search(line), f"{better}: {line}"
        assert not (is_code and DEFINED.search(line)), line


def test_the_test_would_see_such_a_name() -> None:
    assert DEFINED.search("pub struct Ro" + "om {")
    assert DEFINED.search("    lea" + "st: u64,")
    assert not DEFINED.search("at most: one")
    assert any(re.search(rf"\b({term})\b", "the kee" + "per of a lab") for term in TERMS)
