"""The public names of the package, and what their import loads."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
import tomllib
from importlib import metadata, resources

import pytest
from conftest import ROOT, measures, needs, needs_lab

import bentpipe

# Results of functions, and modules, which have the examples of those.
UNDOCUMENTED = {"Answer", "Comparison", "Search", "errors", "plots", "scenario"}
DOCUMENTED = sorted(set(dir(bentpipe)) - UNDOCUMENTED - {"__version__"})


def test_every_public_name_can_be_imported() -> None:
    names = dir(bentpipe)
    assert 15 <= len(names) <= 25
    for name in names:
        assert getattr(bentpipe, name) is not None


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_examples_of_a_public_name_print_what_they_show(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    globs = {"bentpipe": bentpipe}
    found = doctest.DocTestFinder().find(getattr(bentpipe, name), name, globs=globs)
    examples = [each for each in found if each.examples]
    assert examples
    documented = getattr(bentpipe, name)
    if not isinstance(documented, type):
        for section in ("Parameters", "Returns", "Raises", "Examples"):
            assert f"{section}\n{'-' * len(section)}\n" in inspect.cleandoc(documented.__doc__)
    for each in examples:
        printed: list[str] = []
        doctest.DocTestRunner().run(each, out=printed.append)
        assert not printed, "".join(printed)


@needs_lab
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("Lab", marks=needs("ping")),
        pytest.param("emulate", marks=[measures, needs("iperf3")]),
    ],
)
def test_the_examples_that_need_a_lab_print_what_they_show(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = inspect.getdoc(getattr(bentpipe, name)) or ""
    shown = text.replace("  # doctest: +SKIP", "")
    example = doctest.DocTestParser().get_doctest(shown, {"bentpipe": bentpipe}, name, None, None)
    assert example.examples
    printed: list[str] = []
    doctest.DocTestRunner().run(example, out=printed.append)
    assert not printed, "".join(printed)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"simulat$"):
        _ = bentpipe.simulat  # type: ignore[attr-defined]


def test_there_is_one_version() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    stated = cargo["workspace"]["package"]["version"]
    assert bentpipe.__version__ == metadata.version("bentpipe") == stated


def test_the_package_is_typed() -> None:
    assert resources.files("bentpipe").joinpath("py.typed").is_file()


@pytest.mark.system
def test_help_and_version_do_not_wait_for_heavy_modules() -> None:
    """Start-up is quick because of what is not imported; a time would measure the machine."""
    heavy = {"numpy", "polars", "pydantic", "matplotlib", "ruamel", "bentpipe.studies"}
    program = (
        "import sys\n"
        "from bentpipe.cli.app import main\n"
        "codes = [main(words) for words in (['--version'], ['--help'], ['ask', '--help'])]\n"
        f"print(codes, sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[0, 0, 0] []"


@pytest.mark.system
def test_programs_in_labs_do_not_wait_for_modules_that_they_do_not_use() -> None:
    """Given `exec` on presets, and `lab exec`, expect nothing heavy, and no other verb's module."""
    heavy = {
        "numpy",
        "polars",
        "pydantic",
        "matplotlib",
        "ruamel",
        "rich",
        "bentpipe.scenario.schema",
    }
    others = {f"bentpipe.cli.{verb}" for verb in ("lab", "search", "study")}
    program = (
        "import sys\n"
        "from bentpipe.cli import exec as exec_verb\n"
        "from bentpipe.live import sockets\n"
        "from bentpipe.cli.app import main\n"
        # Up to where a lab would be set up, or called.
        "exec_verb.ProgramRun.execute = lambda run, **_: sys.exit(len(run.lab.plans))\n"
        "sockets.connect = lambda *_: sys.exit(3)\n"
        "given = ['exec', '--link', 'geo', '--link', 'leo', '--host', 'world', '--watch', 'true']\n"
        f"print(main(given), sorted({heavy | others!r} & set(sys.modules)))\n"
        f"print(main(['lab', 'exec', 'sat', 'true']), sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["2 []", "3 []"], done.stderr
