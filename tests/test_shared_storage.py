"""Sweeps whose results are at a URL: a local folder as file://, and an S3-compatible server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT, Called, Program

from bentpipe import Result

needs_fsspec = pytest.mark.skipif(
    find_spec("fsspec") is None,
    reason="fsspec is not installed (pip install 'bentpipe[cluster]')",
)
NO_S3 = next((name for name in ("s3fs", "moto") if find_spec(name) is None), None)
needs_s3 = pytest.mark.skipif(
    NO_S3 is not None, reason=f"{NO_S3} is not installed (pip install 'bentpipe[dev]')"
)
GEO = ROOT / "scenarios" / "geo-bulk.yaml"
VOICE = ROOT / "scenarios" / "voice.yaml"
SWEEP = ("--set", "traffic.0.size=100 kB", "--vary", "link.forward.queue.limit=60kB,1MB")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for sweeps under way, of this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """The URL of a folder in a bucket of an S3-compatible server, and its file system."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = import_module("moto.server").ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    files = import_module("s3fs").S3FileSystem(skip_instance_cache=True)
    files.mkdir("sweeps")
    yield "s3://sweeps/queues", files
    server.stop()


def run(bentpipe: Program, out: object, *options: str) -> Called:
    return bentpipe("sweep", GEO, *SWEEP, "--seeds", "3", "--out", str(out), *options)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a sweep, but its report, and when and where its runs were made."""
    files = {str(each.relative_to(folder)): each for each in folder.rglob("*") if each.is_file()}
    return {
        name: each.read_bytes()
        for name, each in files.items()
        if not re.match(r"report|charts|.*execution", name)
    }


@pytest.mark.system
@needs_fsspec
def test_a_url_has_the_files_of_a_folder(bentpipe: Program, tmp_path: Path, state: Path) -> None:
    """Given the same sweep in a folder and at a URL, expect the same bytes, also of each run."""
    there = tmp_path / "share" / "queues"
    assert run(bentpipe, tmp_path / "here", "--keep-runs").code == 0
    called = run(bentpipe, there.as_uri(), "--keep-runs", "--threads", "2")
    assert called.code == 0, called.err
    assert f"wrote {there.as_uri()}" in called.err
    assert contents(there) == contents(tmp_path / "here")
    assert len(list((there / "runs").iterdir())) == 6
    # Nothing is left on this machine.
    assert [each for each in state.rglob("*") if each.is_file()] == []
    # A second sweep replaces the first one, with its runs.
    assert run(bentpipe, there.as_uri()).code == 0
    assert list((there / "runs").iterdir()) == []
    # One of another scenario does not, unless it is wanted.
    kept = contents(there)
    called = bentpipe("sweep", VOICE, "--seeds", "1", "--out", there.as_uri())
    assert called.code == 2
    assert "has the result of a sweep of" in called.err
    assert f"from {GEO}; name another folder, or replace it with --replace" in called.err
    assert contents(there) == kept
    called = bentpipe("sweep", VOICE, "--seeds", "1", "--out", there.as_uri(), "--replace")
    assert called.code == 0, called.err


@needs_fsspec
def test_other_files_are_not_overwritten(bentpipe: Program, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    called = run(bentpipe, tmp_path.as_uri())
    assert called.code == 2
    assert "has other files; name a new folder" in called.err
    called = run(bentpipe, "nosuchthing://a/b")
    assert called.code == 2
    assert "nosuchthing" in called.err


@pytest.mark.thorough
@pytest.mark.system
@needs_fsspec
def test_a_killed_sweep_is_resumed_at_its_url(
    bentpipe: Program, tmp_path: Path, state: Path
) -> None:
    """Given SIGKILL in the middle, expect `--resume URL` to do the rest."""
    there = tmp_path / "share"
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "bentpipe",
        "sweep",
        GEO,
        "--out",
        there.as_uri(),
    ]
    command += ["--set", "traffic.0.size=100 kB", "--seeds", "400", "--keep-runs"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        deadline_s = time.monotonic() + 60
        while not (there / "runs").is_dir() or len(list((there / "runs").iterdir())) < 5:
            assert time.monotonic() < deadline_s
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not (there / "manifest.json").exists()
    assert any(each.name == "journal" for each in state.rglob("*"))
    called = bentpipe("sweep", "--resume", there.as_uri())
    assert called.code == 0, called.err
    assert pl.read_parquet(there / "runs.parquet").height == 400
    assert len(list((there / "runs").iterdir())) == 400
    assert [each for each in state.rglob("*") if each.is_file()] == []


@pytest.mark.thorough
@pytest.mark.system
@needs_fsspec
@needs_s3
def test_workers_write_to_an_s3_compatible_server(
    bentpipe: Program, bucket: tuple[str, Any], tmp_path: Path
) -> None:
    """Given a local Dask cluster and a bucket, expect what is in a folder otherwise."""
    url, files = bucket
    assert run(bentpipe, tmp_path / "here", "--keep-runs").code == 0
    called = run(bentpipe, url, "--keep-runs", "--dask", "--threads", "2")
    assert called.code == 0, called.err
    files.invalidate_cache()
    files.get("sweeps/queues", str(tmp_path / "there"), recursive=True)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    kept = sorted((tmp_path / "there" / "runs").iterdir())
    assert [Result.load(each).manifest["seed"] for each in kept] == [1, 2, 3] * 2
    called = run(bentpipe, "s3://no-such-bucket/a")
    assert called.code == 2
    assert "s3://no-such-bucket/a: cannot be" in called.err
