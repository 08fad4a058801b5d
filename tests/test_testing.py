"""The pytest plugin: programs of tests behind a link, thresholds, and what it costs others."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, Program, needs, needs_lab
from ruamel.yaml import YAML

from bentpipe import Result, simulate
from bentpipe.errors import InvalidRunError, UsageError
from bentpipe.testing import assert_threshold

pytest_plugins = ["pytester"]

HEAVY = {"numpy", "polars", "pydantic", "matplotlib", "ruamel", "rich"}
PLUGIN = ("-p", "bentpipe.testing", "-p", "no:cacheprovider")
MET = "flows.bulk-1.goodput_bps >= 1 Mbit/s"
MISSED = "flows.bulk-1.goodput_bps >= 1 Gbit/s"


def test_the_plugin_is_an_entry_point() -> None:
    """Pytest names a plugin by its entry point: the same name as -p keeps it from loading twice."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (found,) = project["entry-points"]["pytest11"].items()
    assert found == ("bentpipe.testing", "bentpipe.testing")
    assert hasattr(import_module(found[1]), "bentpipe_link")


@pytest.mark.system
def test_a_start_of_pytest_loads_no_heavy_module() -> None:
    """Given a project that does not use bentpipe, expect the plugin to load the bare package."""
    program = (
        "import sys, bentpipe.testing\n"
        "print(sorted(name for name in sys.modules if name.startswith('bentpipe')))\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["['bentpipe', 'bentpipe.testing']", "[]"]


@needs_lab
@needs("ping")
def test_programs_of_a_test_are_behind_the_link(pytester: pytest.Pytester) -> None:
    """Given a link of 40 ms each way, expect a round trip of 80 ms, and the lab to end."""
    pytester.makepyfile(
        """
        import re

        LINK = {
            "link": {
                "forward": {"rate": "20 Mbit/s", "delay": "40 ms"},
                "return": {"rate": "20 Mbit/s", "delay": "40 ms"},
            },
            "traffic": [{"kind": "bulk", "direction": "forward", "size": "1 MB"}],
            "duration": "5 s",
        }
        labs = []

        def test_ping(bentpipe_link):
            lab = bentpipe_link(LINK)
            labs.append(lab)
            done = lab.run("island", ["ping", "-c", "1", "world"])
            assert done.returncode == 0, done.stdout
            assert float(re.search("time=([0-9.]+) ms", done.stdout)[1]) >= 80
            assert lab.report()["directions"] is not None

        def test_the_lab_has_ended():
            import bentpipe, pytest
            with pytest.raises(bentpipe.errors.UsageError, match="closed"):
                labs[0].report()
        """
    )
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=2)


FAKE = """
    import bentpipe, pytest

    class FakeLab:
        closed = 0
        def __init__(self, *links, **options):
            {init}
        def report(self):
            return {{"invalid": {invalid}}}
        def close(self):
            FakeLab.closed += 1

    @pytest.fixture(autouse=True)
    def fake(monkeypatch):
        monkeypatch.setattr(bentpipe, "Lab", FakeLab)
    """


@pytest.mark.thorough
@pytest.mark.system
def test_a_machine_without_labs_skips_with_the_reason(pytester: pytest.Pytester) -> None:
    """Given no namespaces, expect a skip that says so, and a failure where labs are required."""
    pytester.makeconftest(
        FAKE.format(init='raise bentpipe.errors.MachineError("no /dev/net/tun")', invalid=None)
    )
    pytester.makepyfile("def test_link(bentpipe_link):\n    bentpipe_link('geo')\n")
    skipped = pytester.runpytest_subprocess(*PLUGIN, "-rs")
    skipped.assert_outcomes(skipped=1)
    skipped.stdout.fnmatch_lines(["*no labs here: no /dev/net/tun*"])
    failed = pytester.runpytest_subprocess(*PLUGIN, "--bentpipe-require-labs")
    failed.assert_outcomes(failed=1)


@pytest.mark.thorough
@pytest.mark.system
def test_a_late_link_warns_and_fails_a_strict_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(FAKE.format(init="pass", invalid='"late by 20 ms"'))
    pytester.makepyfile(
        """
        def test_warned(bentpipe_link):
            bentpipe_link("geo")

        def test_strict(bentpipe_link):
            bentpipe_link("geo", strict=True)
        """
    )
    done = pytester.runpytest_subprocess(*PLUGIN)
    done.assert_outcomes(passed=2, errors=1, warnings=1)
    done.stdout.fnmatch_lines(["*bentpipe_link: the run is invalid: late by 20 ms*"])


@pytest.mark.thorough
@pytest.mark.system
def test_all_labs_of_a_test_end(pytester: pytest.Pytester) -> None:
    """Given two labs and a failing test, expect both to be closed."""
    pytester.makeconftest(FAKE.format(init="pass", invalid=None))
    pytester.makepyfile(
        """
        def test_two(bentpipe_link):
            bentpipe_link("geo"), bentpipe_link("leo")
            raise ValueError

        def test_after():
            import bentpipe
            assert bentpipe.Lab.closed == 2
        """
    )
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1, failed=1)


def test_thresholds_are_asserted(small_result: Result, tmp_path: Path) -> None:
    assert_threshold(small_result, MET)
    with pytest.raises(AssertionError, match=r"^flows.*Gbit/s: .* missed by 99"):
        assert_threshold(small_result, MET, MISSED)
    assert_threshold(small_result.save(tmp_path / "out"), MET)
    with pytest.raises(UsageError, match="did you mean"):
        assert_threshold(small_result, "flows.goodput >= 1 bit/s")
    with pytest.raises(UsageError, match="no thresholds"):
        assert_threshold(small_result)


def test_the_thresholds_of_the_scenario_are_the_default() -> None:
    result = simulate({**SMALL, "thresholds": [MISSED]})
    with pytest.raises(AssertionError, match="missed by"):
        assert_threshold(result)
    assert_threshold(result, MET)


def test_the_values_of_an_incomplete_run_are_not_checked(small_result: Result) -> None:
    cut = Result({**small_result.manifest, "state": "interrupted"}, small_result.tables)
    with pytest.raises(InvalidRunError, match="interrupted"):
        assert_threshold(cut, MET)


@pytest.mark.system
@pytest.mark.parametrize("service", ["link:", "on: push"])
def test_the_pipelines_of_the_docs_run(service: str, bentpipe: Program, tmp_path: Path) -> None:
    """Given the page's file for GitLab or GitHub, expect YAML whose bentpipe command works."""
    page = (ROOT / "docs/how-to/use-in-a-pipeline.md").read_text(encoding="utf-8")
    (text,) = (each for each in page.split("```text\n") if each.startswith(service))
    jobs = YAML(typ="safe").load(text.partition("```")[0])
    job = jobs["link"] if service == "link:" else jobs["jobs"]["link"]
    steps = job.get("script") or [step["run"] for step in job["steps"] if "run" in step]
    (command,) = (step for step in steps if step.startswith("bentpipe"))
    (tmp_path / "scenario.yaml").write_text(json.dumps({**SMALL, "thresholds": [MET]}))
    words = shlex.split(command)[1:]
    files = {"scenario.yaml", "junit.xml", "result"}
    assert files <= {*words}
    called = bentpipe(*(tmp_path / word if word in files else word for word in words))
    assert called.code == 0, called.err
    assert "<testsuites" in (tmp_path / "junit.xml").read_text()


@pytest.mark.thorough
@needs_lab
@needs("curl")
def test_the_tests_of_the_docs_pass(pytester: pytest.Pytester) -> None:
    page = (ROOT / "docs/how-to/use-in-a-pipeline.md").read_text(encoding="utf-8")
    (block,) = (each for each in page.split("```python\n") if "def test_download" in each)
    pytester.path.joinpath("scenarios").symlink_to(ROOT / "scenarios")
    pytester.makepyfile(block.partition("```")[0])
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=2)
