"""The corpus: parameter counts against what the models' makers publish, and files that occupy almost nothing."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from ci.gguf_models import MODELS
from ci.gguf_shapes import DEEPSEEK_V2_MORE_BITS, Table
from ci.make_gguf_corpus import write_model

ROOT = Path(__file__).resolve().parent.parent

#: Billions of parameters, from the model cards. GLM's count leaves the MTP block out (46 of 47 blocks).
PUBLISHED = {
    "qwen3.6-35b-a3b-merged": 35.0,
    "qwen3-30b-a3b": 30.5,
    "deepseek-v2-lite": 15.7,
    "deepseek-v3": 671.0,
    "glm-4.5-air": 106.0,
    "gpt-oss-20b": 20.9,
    "llama-4-maverick": 400.0,
    "olmoe-1b-7b": 6.92,
    "granite-4.0-h-small": 32.2,
    "nemotron-3-nano-30b-a3b": 31.6,
    "mixtral-8x7b-old": 46.7,
    "llama-3.2-1b": 1.236,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts(name: str) -> None:
    table = Table()
    model = next(model for model in MODELS if model.file == name)
    model.build(table)
    counted = sum(
        math.prod(shape) for tensor, _, shape in table.rows if not tensor.startswith("blk.46.") or "glm" not in name
    )
    assert counted / 1e9 == pytest.approx(PUBLISHED[name], rel=0.01)


def test_more_bits_follow_the_rule_of_llama_quantize() -> None:
    # use_more_bits in src/llama-quant.cpp: the first and the last eighth, and every third block between.
    n = 27
    rule = {i for i in range(n) if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2}
    assert rule - {0} == DEEPSEEK_V2_MORE_BITS


def test_files_are_sparse_and_shards_are_named_from_one(tmp_path: Path) -> None:
    model = next(model for model in MODELS if model.file == "deepseek-v3")
    paths = write_model(model, tmp_path)
    assert [path.name for path in paths] == [f"deepseek-v3-{i:05d}-of-00006.gguf" for i in range(1, 7)]
    assert sum(path.stat().st_size for path in paths) > 400e9
    assert sum(path.stat().st_blocks * 512 for path in paths) < 4e6


def run(*args: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ci.make_gguf_corpus", *args]
    return subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)


def test_command_line(tmp_path: Path) -> None:
    listed = run("--list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [model.file for model in MODELS]
    written = run("--only", "llama-3.2-1b", str(tmp_path / "new"))
    assert written.returncode == 0, written.stderr
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["llama-3.2-1b.gguf"]
    assert run("--only", "nothing", str(tmp_path)).returncode == 2
    assert run().returncode == 2
