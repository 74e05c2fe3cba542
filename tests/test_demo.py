"""The demo with source, patches and build replaced, and a fake server; once with the real ones where they are built."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_llama_server
import pytest
from test_server import gone

from nanite_tools import builder, cli, patchset, source
from nanite_tools.demo_figures import EXAMPLE_BYTES
from nanite_tools.errors import BuildError
from nanite_tools.paths import find_layout

#: What the start counted: one token, in one layer.
EARLY: dict[str, Any] = {
    "schema": 1,
    "mode": "observe",
    "reasons": [],
    "weights": {"tensors": 24, "mapped_bytes": 14_155_776, "copied_bytes": 0},
    "counters": {"tokens": 1, "assignments": 8, "unique_experts": 8, "bytes_touched": 221_184, "fallbacks": {}},
    "layers": [{"layer": 0, "calls": 1, "counts": [1 if expert < 8 else 0 for expert in range(64)]}],
}
#: Eight layers, each with ten choices of expert 5 and ten of expert 7.
COUNTS = [10 if expert in (5, 7) else 0 for expert in range(64)]
NANITE: dict[str, Any] = {
    "schema": 1,
    "mode": "observe",
    "reasons": [],
    "weights": {"tensors": 24, "mapped_bytes": 14_155_776, "copied_bytes": 0},
    "counters": {"tokens": 20, "assignments": 160, "unique_experts": 16, "bytes_touched": 442_368, "fallbacks": {}},
    "layers": [{"layer": layer, "calls": 20, "counts": COUNTS} for layer in range(8)],
}

Main = Callable[..., int]


def after(request: dict[str, Any]) -> dict[str, Any]:
    """The document of a server that counted EARLY at its start and then `request`."""
    counters = {n: v if n == "fallbacks" else v + EARLY["counters"][n] for n, v in request["counters"].items()}
    layers = [dict(row) for row in request["layers"]]
    if layers:
        early = EARLY["layers"][0]
        layers[0]["calls"] += early["calls"]
        layers[0]["counts"] = [a + b for a, b in zip(layers[0]["counts"], early["counts"], strict=True)]
    return {**request, "counters": counters, "layers": layers}


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Main:
    """Run `nanite-tools demo …` here with everything before the launch replaced; the exit code."""
    fake_llama_server.wrapper(tmp_path)
    calls: list[str] = []

    def ensure_source(layout: object, **options: object) -> SimpleNamespace:
        calls.append(f"source {options['source_dir']}")
        return SimpleNamespace(how="submodule", commit="c" * 40)

    def apply(layout: object, **options: object) -> SimpleNamespace:
        calls.append("patches")
        return SimpleNamespace(pin="p" * 40, patches=("a", "b"))

    def build(layout: object, preset: str, **options: object) -> SimpleNamespace:
        calls.append(f"build {preset} {options['source_dir']}")
        return SimpleNamespace(bin_dir=tmp_path, up_to_date=True)

    monkeypatch.setattr(source, "ensure_source", ensure_source)
    monkeypatch.setattr(patchset, "apply", apply)
    monkeypatch.setattr(builder, "build", build)
    monkeypatch.setenv("FAKE_NANITE", json.dumps(EARLY))
    monkeypatch.setenv("FAKE_NANITE_AFTER", json.dumps(after(NANITE)))
    monkeypatch.setenv("FAKE_ANSWER", " the heavens")
    monkeypatch.setenv("FAKE_CHILD", str(tmp_path / "child"))

    def run(*options: str) -> int:
        calls.clear()
        with pytest.raises(SystemExit) as caught:
            cli.main(["demo", "--log", str(tmp_path / "log"), *options])
        assert calls[0].startswith("source")
        child = tmp_path / "child"
        if child.exists():
            assert gone(int(child.read_text()))  # no server is left, whatever happened
        return int(caught.value.code or 0)

    return run


def test_one_screen(main: Main, capfd: pytest.CaptureFixture[str]) -> None:
    assert main("--prompt", "In the beginning God created") == 0
    out, err = capfd.readouterr()
    assert "In the beginning God created the heavens" in out
    assert "8 of 8 routed layers" in out
    assert "16 of 512 experts were used (3%)" in out
    assert [line.split(":")[0] for line in err.splitlines() if ": " in line and line.startswith("[")] == [
        f"[{number}/7] {name}"
        for number, name in enumerate(["source", "patches", "build", "inspect", "launch", "answer", "counters"], 1)
    ]
    assert len(out.splitlines()) <= 24


def test_json(main: Main, capfd: pytest.CaptureFixture[str]) -> None:
    assert main("--json", "--prompt", "a b c", "--n-predict", "9", "--source", "/src") == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert document["schema"] == 1
    assert [step["name"] for step in document["steps"]][:3] == ["source", "patches", "build"]
    assert all(step["seconds"] >= 0 for step in document["steps"])
    assert document["answer"]["text"] == " the heavens"
    assert (document["answer"]["n_prompt_tokens"], document["answer"]["n_tokens"]) == (3, 9)
    assert {**document["nanite"], "time": None} == {**NANITE, "time": None}
    assert document["figures"]["bytes_per_token"] == 442_368 / 20
    assert "[7/7] counters" in err


def test_the_command_line_of_the_server(main: Main, tmp_path: Path) -> None:
    assert main() == 0
    argv = json.loads((tmp_path / "log").read_text().splitlines()[0].removeprefix("argv "))
    assert argv[:2] == ["--model", str(find_layout().embedded_model)]
    assert argv[-3:] == ["--nanite", "observe", "--no-repack"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": [], "reasons": [{"code": "no_calls", "detail": "d"}]}, "no_calls: d"),
        ({"layers": NANITE["layers"][:6]}, "missed 2 of 8 routed layers: [6, 7]"),
    ],
)
def test_routes_that_miss_nanite_are_7(
    main: Main,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    change: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setenv("FAKE_NANITE_AFTER", json.dumps(after(NANITE | change)))
    assert main("--json") == 7
    assert words in json.loads(capfd.readouterr().out)["error"]["message"]


def test_failures_keep_their_exit_codes(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STOCK", "1")
    assert main() == 4  # no --nanite
    monkeypatch.delenv("FAKE_STOCK")
    assert main("--prompt", "fail") == 4  # HTTP 500

    def broken(*args: object, **options: object) -> None:
        raise BuildError("no compiler")

    monkeypatch.setattr(builder, "build", broken)
    assert main() == 5


def test_interrupted_in_a_step(main: Main, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(*args: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    monkeypatch.setattr(builder, "build", interrupted)
    assert main() == 143
    assert "goes on from here" in capfd.readouterr().err


def test_keep_serves_until_the_end(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_END_S", "3")
    assert main("--keep") == 0
    monkeypatch.setenv("FAKE_END_CODE", "1")
    assert main("--keep") == 4


def test_the_example_is_22_gb() -> None:
    assert EXAMPLE_BYTES == 22 * 10**9


@pytest.mark.model
def test_the_real_thing(our_bin: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "nanite_tools", "demo", "--json", "--log", str(tmp_path / "log"), "--n-predict", "16"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    counters, answer = document["nanite"]["counters"], document["answer"]
    # each token of the prompt and each new one but the last goes through the trunk once
    assert counters["tokens"] == answer["n_prompt_tokens"] + answer["n_tokens"] - 1
    assert document["figures"]["layers_taken"] == 8
    assert document["nanite"]["weights"]["copied_bytes"] == 0
