"""The interval of the median, against tables; and a whole run with a stand-in for llama-bench."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ci.measure_pair import median_interval, parse_env

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("n", "rank"),
    # Sign-test ranks for a two-sided 95% interval of the median: the k-th smallest and the k-th largest
    # (published tables of the sign test, e.g. Conover: n=6 → 1, 9 → 2, 12 → 3, 20 → 6, 25 → 8).
    [(6, 1), (9, 2), (12, 3), (20, 6), (25, 8)],
)
def test_interval_ranks(n: int, rank: int) -> None:
    values = [float(i) for i in range(1, n + 1)]
    assert median_interval(values[::-1]) == (float(rank), float(n + 1 - rank))


def test_interval_of_few_values_is_the_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([5.0]) == (5.0, 5.0)


def test_environment_pairs() -> None:
    assert parse_env(["A=1", "B=x=y"]) == {"A": "1", "B": "x=y"}
    with pytest.raises(SystemExit):
        parse_env(["A"])


def test_alternates_and_keeps_raw_values(tmp_path: Path) -> None:
    log = tmp_path / "order"
    bench = tmp_path / "bench"
    bench.write_text(
        f"#!{sys.executable}\n"
        "import json, os\n"
        "side = os.environ.get('SIDE', 'a')\n"
        f"open({str(log)!r}, 'a').write(side)\n"
        "print(json.dumps([{'samples_ts': [10.0, 20.0, 30.0] if side == 'a' else [11.0, 22.0, 33.0]}]))\n"
    )
    bench.chmod(0o755)
    model = tmp_path / "m.gguf"
    model.write_bytes(b"x")
    out = tmp_path / "out.json"
    arguments = ["--out", str(out), "--model", str(model), "--pairs", "3", "--a", str(bench), "--b", str(bench)]
    subprocess.run(
        [sys.executable, str(ROOT / "ci" / "measure_pair.py"), *arguments, "--env-b", "SIDE=b", "--", "-n", "1"],
        check=True,
        capture_output=True,
    )
    assert log.read_text() == "ab" + "ab" + "ba" + "ab"
    result = json.loads(out.read_text())
    assert result["samples"]["a"] == [[10.0, 20.0, 30.0]] * 3
    assert result["ratio_b_over_a"]["pairs"] == pytest.approx([1.1] * 3)
    assert result["model"]["sha256"] == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
