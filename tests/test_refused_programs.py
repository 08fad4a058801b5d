"""What is refused names the page that explains it: kinds of traffic, and programs in labs."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, Program

from bentpipe.errors import ScenarioError, UsageError
from bentpipe.live.programs import refuse_program
from bentpipe.refusals import Refusal, refusals, refused_program
from bentpipe.scenario.schema import Scenario

PAGE = "docs/how-to/put-a-program-behind-a-link.md"


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as the site and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("refusal", refusals(), ids=lambda each: f"{each.name}-{each.page}")
def test_the_page_of_each_refusal_exists_and_names_it(refusal: Refusal) -> None:
    name, _, anchor = refusal.page.partition("#")
    page = ROOT / name
    assert anchor in anchors(page)
    shown = {"docker": "docker", "ipv6": "IPv6", "multicast": "ulticast", "quic": "QUIC"}
    assert shown[refusal.name] in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "anchor"),
    [
        ("docker run --rm alpine", "containers"),
        ("/usr/bin/docker ps", "containers"),
        ("docker-compose up", "containers"),
        ("ping -6 world", "ipv6"),
        ("ping6 world", "ipv6"),
        ("curl http://[fd00::1]:80/", "ipv6"),
        ("iperf -c 239.1.1.1 -u", "multicast"),
        ("ffplay udp://@224.0.0.7:5004", "multicast"),
    ],
)
def test_a_program_that_does_not_work_in_a_lab_is_refused_with_its_page(
    command: str, anchor: str
) -> None:
    message = rf"to fix it: .*; see {PAGE}#{anchor}$"
    with pytest.raises(UsageError, match=message):
        refuse_program(command.split())
    with pytest.raises(UsageError, match=message):
        refuse_program(["timeout", "-k", "5", "60", "env", "-i", "A=b", *command.split()])
    with pytest.raises(UsageError, match=message):
        refuse_program(["bash", "-lc", f"cd /tmp && echo 'a; b' | cat;\n{command} > log"])


@pytest.mark.parametrize(
    "launcher",
    [
        *("env", "env -u HOME A=docker", "nice -n 5", "nice -5", "nohup", "setsid -w"),
        *("stdbuf -oL", "sudo -u root -E", "timeout --signal=INT 5", "xargs -n 1 -I {}"),
        "/usr/bin/env -- nice sh -c",
    ],
)
def test_a_program_is_refused_behind_those_that_start_it(launcher: str) -> None:
    words = launcher.split()
    assert "#containers" in (refused_program([*words, "docker"]) or "")
    assert refused_program([*words, "true", "docker"][: len(words) + 1]) is None
    assert refused_program(words) is None


@pytest.mark.parametrize(
    "command",
    [
        "timeout 5 grep docker log",
        "timeout 5 ssh world tail -6 log",
        "env -u docker true",
        "nice",
        "curl -s -o page http://world/bytes/7",
        "head -6 docker",
        "sh -c echo",
        "sh docker -c",
        "ssh world tail -6 log",
        "python3 x.py --version=231.0.0.1",
        "curl -A Chrome/230.0.0.1",
        "curl http://[::1]/",
        "echo 10.0.0.224 1.224.0.0.1 224.0.0.1.2 240.0.0.1",
        "python3 -m http.server",
        "",
    ],
)
def test_other_programs_are_not_refused(command: str) -> None:
    assert refused_program(command.split()) is None
    assert refused_program([""]) is None
    assert refused_program(["sh", "-c", f"{command} 2>&1 > docker < docker"]) is None


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        ("quic", "docs/model/pep.md#what-is-not-modelled"),
        ("HTTP3", "docs/model/pep.md#what-is-not-modelled"),
        ("multicast", "docs/model/simulator.md#what-is-not-modelled"),
    ],
)
def test_a_kind_of_traffic_that_is_not_modelled_names_its_page(kind: str, page: str) -> None:
    scenario = copy.deepcopy(SMALL)
    scenario["traffic"][0]["kind"] = kind
    with pytest.raises(ScenarioError, match=rf'read "{kind}"; allowed: bulk, .*; see {page}$'):
        Scenario.from_dict(scenario)
    scenario["traffic"][0]["kind"] = ""
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict(scenario)
    assert "see docs" not in str(caught.value)


def test_exec_refuses_a_program_before_it_sets_up_a_lab(bentpipe: Program) -> None:
    called = bentpipe("exec", "--link", "leo", "--", "docker", "run", "alpine")
    assert called.code == 125
    assert f"see {PAGE}#containers" in called.err
    called = bentpipe("exec", "--link", "leo", "--world", "sleep 1; docker ps", "--", "true")
    assert f"see {PAGE}#containers" in called.err
    called = bentpipe("lab", "exec", "none", "--", "ping", "-6", "world")
    assert f"see {PAGE}#ipv6" in called.err


def test_run_names_the_page_of_quic(bentpipe: Program, tmp_path: Path) -> None:
    scenario = copy.deepcopy(SMALL)
    scenario["traffic"][0]["kind"] = "quic"
    (tmp_path / "quic.json").write_text(json.dumps(scenario))
    called = bentpipe("run", tmp_path / "quic.json")
    assert called.code == 2
    assert "traffic.0.kind" in called.err
    assert "see docs/model/pep.md#what-is-not-modelled" in called.err
