"""Off is stock, observing changes nothing, and what is counted is what was routed.

The reference is always the unpatched build of the same commit with `--no-repack`, at the same threads and batch shapes.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from runs import PROMPTS, Complete, clean_environment

from nanite_tools.paths import Layout

pytestmark = pytest.mark.model

N_PREDICT = 512


@pytest.fixture(scope="module")
def reference(complete: Complete, stock_bin: Path) -> dict[tuple[str, int], bytes]:
    """Stock's answer by (prompt, threads)."""
    return {(p.name, t): complete(stock_bin, p, N_PREDICT, t) for p in PROMPTS for t in (1, 2)}


def test_there_are_three_prompts_and_they_differ(reference: dict[tuple[str, int], bytes]) -> None:
    assert len(PROMPTS) == 3
    assert len({reference[p.name, 1] for p in PROMPTS}) == 3
    for prompt in PROMPTS:
        # 2.89 characters a token on average in this model's vocabulary; half of that is well below any real answer
        assert len(reference[prompt.name, 1]) > len(prompt.read_bytes()) + N_PREDICT * 1.4


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p.stem)
@pytest.mark.parametrize("mode", ["unset", "off", "observe"])
def test_linked_in(
    mode: str,
    prompt: Path,
    threads: int,
    complete: Complete,
    our_bin: Path,
    reference: dict[tuple[str, int], bytes],
    tmp_path: Path,
) -> None:
    report = tmp_path / "report.json"
    flags = [] if mode == "unset" else ["--nanite", mode]
    answer = complete(our_bin, prompt, N_PREDICT, threads, *flags, env={"NANITE_REPORT": str(report)})
    assert answer == reference[prompt.name, threads]
    if mode == "observe":
        status = json.loads(report.read_text())
        assert status["active"] and status["counters"]["layers"] == 8 and status["counters"]["fallbacks"] == {}
    else:
        assert not report.exists()  # no backend instance was ever made


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p.stem)
@pytest.mark.parametrize("mode", ["off", "observe"])
def test_module_in_unpatched_build(
    mode: str,
    prompt: Path,
    threads: int,
    complete: Complete,
    stock_module_bin: Path,
    nanite_module: Path,
    tmp_path: Path,
) -> None:
    """The same against the same build without the module (its CPU kernels are not the native build's)."""
    report = tmp_path / "report.json"
    expected = complete(stock_module_bin, prompt, N_PREDICT, threads)
    environment = {"GGML_BACKEND_PATH": str(nanite_module), "NANITE_MODE": mode, "NANITE_REPORT": str(report)}
    assert complete(stock_module_bin, prompt, N_PREDICT, threads, env=environment) == expected
    assert report.exists() == (mode == "observe")
    if mode == "observe":
        status = json.loads(report.read_text())
        assert status["active"] and status["counters"]["layers"] == 8


@pytest.fixture(scope="module")
def route_count(stock_bin: Path, layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The independent counter, compiled against the unpatched build."""
    program = tmp_path_factory.mktemp("route-count") / "route-count"
    source = layout.stock / "src"
    code = layout.root / "tests" / "native" / "route-count.cpp"
    subprocess.run(
        [
            *("c++", "-std=c++17", "-O1", str(code), "-o", str(program)),
            *(f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}"),
            *(f"-L{stock_bin}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{stock_bin}"),
        ],
        check=True,
    )
    return program


def observed(report: Path) -> dict[int, tuple[int, list[int]]]:
    """Layer -> (tokens, counts by expert) of a report file."""
    status: dict[str, Any] = json.loads(report.read_text())
    return {layer["layer"]: (layer["tokens"], layer["counts"]) for layer in status["layers"]}


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p.stem)
def test_route_counts_equal_an_independent_count(
    prompt: Path, complete: Complete, our_bin: Path, route_count: Path, layout: Layout, tmp_path: Path
) -> None:
    """The observer in our build, against upstream's evaluation callback in the unpatched one."""
    n_predict = 100
    report = tmp_path / "report.json"
    complete(our_bin, prompt, n_predict, 2, "--nanite", "observe", env={"NANITE_REPORT": str(report)})
    done = subprocess.run(
        [str(route_count), str(layout.embedded_model), str(prompt), str(n_predict), "2"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    independent = {}
    for line in done.stdout.splitlines():
        layer, tokens, *counts = map(int, line.split())
        independent[layer] = (tokens, counts)
    assert sorted(independent) == list(range(8))
    for tokens, counts in independent.values():
        assert len(counts) == 64 and sum(counts) == 8 * tokens
        assert tokens > n_predict  # the prompt's positions, and all generated tokens but the last
    assert observed(report) == independent
