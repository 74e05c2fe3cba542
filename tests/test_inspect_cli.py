"""`nanite-tools inspect` as a user meets it: exit codes, both outputs, one line of error and one of hint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_bytes import Q4_0, Value, moe_fields, moe_rows, write

from nanite_tools.commands.inspect import _ranges, _size
from nanite_tools.paths import find_layout


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "nanite_tools", "inspect", *map(str, args)]
    env = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=60)


def rows_of(stdout: str) -> dict[str, str]:
    """The table as left cell → right cell."""
    cells = (line.split("│") for line in stdout.splitlines() if "│" in line)
    return {left.strip(): right.strip() for left, right in cells}


def test_table_of_the_embedded_model() -> None:
    result = run(find_layout().embedded_model)
    assert (result.returncode, result.stderr) == (0, "")
    assert "tiny-moe-mtp" in result.stdout
    table = rows_of(result.stdout)
    assert table["layers"] == "8 + 1 nextn (MTP), not part of the trunk"
    assert table["routed layers"] == "8 of 8: blocks 0-7"
    assert table["experts a layer"] == "64, of which a token uses 8, and 1 shared"
    assert table["one expert"] == "27.65 kB, 3 tiles of up to 256 KiB"
    # 8 blocks · 64 experts · 27648 bytes; a token reads 8 experts in each of 8 blocks.
    assert table["routed experts"].startswith("14.16 MB, 74.1%")
    assert table["a token reads"] == "1.77 MB of routed experts"


def test_json_on_stdout_and_nothing_else() -> None:
    result = run(find_layout().embedded_model, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert (document["schema"], document["n_layers"], document["n_nextn_layers"]) == (1, 8, 1)
    assert document["expert_bytes"]["7"] == 27648
    assert list(document)[-1] == "fingerprint"


def test_a_dense_model(tmp_path: Path) -> None:
    fields: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "dense \x1b[31mred",
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.context_length": 128,
    }
    path = write(tmp_path / "dense.gguf", fields, [("blk.0.ffn_up.weight", Q4_0, (64, 32))])
    result = run(path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "none in the trunk" in rows_of(result.stdout)["routed experts"]
    assert "\x1b" not in result.stdout
    document = json.loads(run(path, "--json").stdout)
    assert (document["routed_layers"], document["n_experts"], document["n_experts_used"]) == ([], 0, 0)
    assert (document["expert_bytes"], document["routed_bytes"], document["other_bytes"]) == ({}, 0, 1152)


def test_notes_go_to_stderr(tmp_path: Path) -> None:
    result = run(write(tmp_path / "m.gguf", moe_fields(qwen3moe__expert_used_count=[1, 2]), moe_rows()), "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["n_experts_used"] == 2
    assert "1 to 2" in result.stderr


@pytest.mark.parametrize(
    "kind", ["absent", "folder", "empty", "text", "cut header", "cut weights", "fifo", "lone shard"]
)
def test_bad_input_is_one_line_a_hint_and_exit_3(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m-00001-of-00002.gguf"
    split: dict[str, Value] = (
        {"split.no": 0, "split.count": 2, "split.tensors.count": 18} if kind == "lone shard" else {}
    )
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind in ("empty", "text"):
        path.write_text("" if kind == "empty" else "hello\n" * 50)
    elif kind != "absent":
        write(path, moe_fields() | split, moe_rows())
        if kind.startswith("cut"):
            os.truncate(path, 100 if kind == "cut header" else path.stat().st_size - 1)
    result = run(path, "--json")
    assert result.returncode == 3
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")
    error = json.loads(result.stdout)["error"]
    assert error["exit_code"] == 3
    assert lines[0] == f"error: {error['message']}"


def test_wrong_use_is_exit_2() -> None:
    assert run().returncode == 2
    assert run("--nonsense").returncode == 2


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([0], "0"),
        ([0, 1, 2], "0-2"),
        ([1, 3, 5, 7], "1, 3, … 7 (every 2)"),
        ([0, 1, 5, 7, 8], "0-1, 5, 7-8"),
        ([2, 4], "2, 4"),
    ],
)
def test_ranges(blocks: list[int], text: str) -> None:
    assert _ranges(blocks) == text


def test_sizes() -> None:
    assert [_size(n) for n in (0, 999, 1000, 2_039_808, 22_500_000_000)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "2.04 MB",
        "22.50 GB",
    ]
