"""`nanite-tools build`: words in, one result out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanite_tools import builder, cli
from nanite_tools.builder import BuildResult
from nanite_tools.cmake_flags import PRESETS
from nanite_tools.errors import BuildError, MissingError


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """`builder.build` replaced by one that notes what it was called with."""
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "series").write_text("")
    monkeypatch.setenv("NANITE_TOOLS_ROOT", str(tmp_path))
    monkeypatch.setenv("NANITE_TOOLS_BUILD", str(tmp_path / "out"))
    noted: list[dict[str, Any]] = []

    def build(layout: Any, preset: str, **options: Any) -> BuildResult:
        noted.append({"root": layout.root, "preset": preset, **options})
        options["say"]("a line of [progress]")
        folder = layout.build_dir(preset, stock=options["stock"], module=options["module"])
        return BuildResult(folder / "bin", folder, False, 1.5, {"head": "abc"})

    monkeypatch.setattr(builder, "build", build)
    return noted


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["build", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_defaults(calls: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    call = calls[0]
    assert call.pop("say")
    assert call == {
        "root": tmp_path,
        "preset": "cpu",
        "stock": False,
        "module": False,
        "targets": None,
        "jobs": None,
        "source_dir": None,
        "cuda_arch": None,
        "clean": False,
    }
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'out' / 'cpu' / 'bin'}\n"
    assert output.err == "a line of [progress]\n"


def test_every_option(calls: list[dict[str, Any]], tmp_path: Path) -> None:
    words = ["cuda", "--stock", "--module", "--jobs", "3", "--source", str(tmp_path), "--clean", "--cuda-arch", "86,90"]
    assert run(*words) == 0
    wanted = {"preset": "cuda", "stock": True, "module": True, "jobs": 3, "source_dir": tmp_path, "clean": True}
    assert wanted.items() <= calls[0].items()
    assert calls[0]["cuda_arch"] == "86,90"


def test_tests_come_with_the_programs(calls: list[dict[str, Any]]) -> None:
    assert run("cpu", "--tests") == run("asan", "--tests") == run("asan") == 0
    programs = ["llama-server", "llama-completion", "llama-bench", "llama-perplexity"]
    assert [call["targets"] for call in calls] == [[*programs, "nanite-tests"], None, None]


def test_json(calls: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--stock", "--json") == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == {
        "schema": 1,
        "preset": "cpu",
        "stock": True,
        "module": False,
        "build_dir": str(tmp_path / "out" / "stock" / "cpu"),
        "bin_dir": str(tmp_path / "out" / "stock" / "cpu" / "bin"),
        "up_to_date": False,
        "seconds": 1.5,
        "manifest": {"head": "abc"},
    }
    assert "progress" in output.err


@pytest.mark.parametrize(
    "words",
    [["gpu"], ["--jobs", "0"], ["--jobs", "-1"], ["--jobs", "x"], ["--source", "/no/such/folder"], ["cpu", "x"]],
)
def test_usage_errors(calls: list[dict[str, Any]], words: list[str]) -> None:
    assert run(*words) == 2
    assert calls == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(MissingError("no ninja", "install it"), 4), (BuildError("a.cpp:1: error: x", "see build.log"), 5)],
)
def test_failures_are_lines_and_json(
    calls: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: MissingError | BuildError,
    code: int,
) -> None:
    def fail(*_args: Any, **_options: Any) -> BuildResult:
        raise error

    monkeypatch.setattr(builder, "build", fail)
    assert run("--json") == code
    output = capsys.readouterr()
    wanted = {"message": error.message, "hint": error.hint, "exit_code": code}
    assert json.loads(output.out) == {"schema": 1, "error": wanted}
    assert output.err == f"error: {error.message}\nhint: {error.hint}\n"


def test_help_names_each_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert "{" + "|".join(PRESETS) + "}" in text.lower() or "[" + "|".join(PRESETS) + "]" in text.lower()
