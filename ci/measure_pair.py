"""Alternating `llama-bench` runs of two sides, with every raw value kept.

    python ci/measure_pair.py --out FILE.json --model M.gguf --pairs 20 \\
        --a BIN/llama-bench --b BIN/llama-bench --env-b NANITE_MODE=observe -- -p 0 -n 64 -t 2 --repack 0

Runs A B, B A, A B … (the order within a pair alternates), one warm-up of each side first, and writes hardware,
commands and all values. The figure to quote is the median over pairs of B/A, with a 95% interval from the sign test's
order statistics, which assumes nothing about the noise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Side:
    """One side of the comparison: a llama-bench binary and what its environment adds."""

    binary: Path
    env: dict[str, str]

    def run(self, arguments: list[str]) -> tuple[list[float], dict[str, Any]]:
        """Tokens per second of each repetition of the one test, and llama-bench's own record of it."""
        command = [str(self.binary), *arguments, "-o", "json"]
        done = subprocess.run(command, env={**os.environ, **self.env}, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        records = json.loads(done.stdout)
        if len(records) != 1:
            raise SystemExit(f"one test is wanted, llama-bench ran {len(records)}: give one of -p and -n")
        return [float(x) for x in records[0]["samples_ts"]], records[0]


def median_interval(ratios: list[float], confidence: float = 0.95) -> tuple[float, float]:
    """A distribution-free interval of the median: order statistics k and n+1-k with 2·P(Bin(n, ½) < k) ≤ 1−confidence.

    With fewer than six values no such interval exists at 95% and the whole range is returned.
    """
    ordered = sorted(ratios)
    n = len(ordered)
    k = 0
    while k < n // 2 and 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n <= 1 - confidence:
        k += 1
    return ordered[max(k - 1, 0)], ordered[min(n - k, n - 1)]


def cpu_name() -> str:
    """The processor as the system names it; on Linux from /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def sha256_of(path: Path) -> str:
    """Checksum of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def commit_of(root: Path) -> str:
    """The repository's commit, `+dirty` when tracked files differ from it. NANITE_COMMIT names it where git is not."""
    if named := os.environ.get("NANITE_COMMIT"):
        return named
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    dirty = subprocess.run(["git", "-C", str(root), "diff", "--quiet", "HEAD"], check=False).returncode != 0
    return head.stdout.strip() + ("+dirty" if dirty else "")


def parse_env(pairs: list[str]) -> dict[str, str]:
    """["A=1", "B=2"] as a dictionary."""
    for pair in pairs:
        if "=" not in pair:
            raise SystemExit(f"--env-a and --env-b take NAME=VALUE, not {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)


def main() -> None:
    """Run the pairs and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file with all raw values")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--a", type=Path, required=True, help="llama-bench of side A, the baseline")
    parser.add_argument("--b", type=Path, required=True, help="llama-bench of side B")
    parser.add_argument("--env-a", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--env-b", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--no-checksum", action="store_true", help="do not read the whole model for its sha256")
    parser.add_argument("--note", default="", help="what is compared, in words")
    parser.add_argument("bench_arguments", nargs="+", help="after --: llama-bench's own arguments, one test")
    args = parser.parse_args()
    if args.pairs < 1:
        parser.error("--pairs is at least 1")

    arguments = ["-m", str(args.model), *args.bench_arguments]
    sides = {"a": Side(args.a, parse_env(args.env_a)), "b": Side(args.b, parse_env(args.env_b))}
    record = {name: side.run(arguments)[1] for name, side in sides.items()}  # the warm-up
    values: dict[str, list[list[float]]] = {"a": [], "b": []}
    for i in range(args.pairs):
        for name in ("ab", "ba")[i % 2]:
            values[name].append(sides[name].run(arguments)[0])
        print(f"{i + 1}/{args.pairs}: B/A {median(values['b'][i]) / median(values['a'][i]):.4f}", file=sys.stderr)

    ratios = [median(b) / median(a) for a, b in zip(values["a"], values["b"], strict=True)]
    low, high = median_interval(ratios)
    result = {
        "schema": 1,
        "note": args.note,
        "unit": "tokens per second",
        "host": {"cpu": cpu_name(), "cpus": os.cpu_count(), "system": platform.platform()},
        "commit": commit_of(Path(__file__).resolve().parent.parent),
        "model": {
            "file": args.model.name,
            "bytes": args.model.stat().st_size,
            "sha256": None if args.no_checksum else sha256_of(args.model),
        },
        "command": ["llama-bench", "-m", args.model.name, *args.bench_arguments, "-o", "json"],
        "environment": {name: side.env for name, side in sides.items()},
        "build_commit": {name: record[name].get("build_commit") for name in record},
        "median": {name: median(median(v) for v in values[name]) for name in values},
        "ratio_b_over_a": {"median": median(ratios), "low95": low, "high95": high, "pairs": ratios},
        "samples": values,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"B/A {median(ratios):.4f} [{low:.4f}, {high:.4f}] over {args.pairs} pairs: {args.out}")


if __name__ == "__main__":
    main()
