"""GET /nanite and /metrics of a real server, and that the experts stay mapped."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runs import clean_environment

from nanite_tools.paths import Layout

pytestmark = pytest.mark.model

#: 8 routed layers, each 3 x 64 experts x 16,384 weights, 18 bytes for 32 of them in Q4_0 (the model's notes).
EXPERT_BYTES = 8 * 3 * 64 * 16384 // 32 * 18


@contextmanager
def serve(binary: Path, model: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """(base URL, pid) of a llama-server that answers /health."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(binary), "-m", str(model), "--port", str(port), "-t", "2", "-c", "1024", "--no-repack", *flags]
    environment = clean_environment(**(env or {}))
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310
                    break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        yield url, process.pid
    finally:
        process.kill()
        process.wait()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310
        return str(response.read().decode())


def complete(url: str, prompt: str, n_predict: int) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode())  # noqa: S310
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
        answer: dict[str, Any] = json.loads(response.read())
        return answer


def metric(text: str, name: str) -> int:
    found = re.search(rf"^{re.escape(name)} (\d+)$", text, re.MULTILINE)
    assert found, f"{name} is not in /metrics"
    return int(found.group(1))


def test_counters_of_one_request(our_bin: Path, layout: Layout) -> None:
    model = layout.embedded_model
    with serve(our_bin / "llama-server", model, "--nanite", "observe", "--metrics", "--no-warmup") as (url, _):
        before = json.loads(get(f"{url}/nanite"))
        assert (before["schema"], before["mode"]) == (1, "observe")
        assert before["weights"] == {"tensors": 24, "mapped_bytes": EXPERT_BYTES, "copied_bytes": 0}

        answer = complete(url, "A lantern is", 20)
        assert answer["tokens_predicted"] == 20
        status = json.loads(get(f"{url}/nanite"))
        metrics = get(f"{url}/metrics")

    # the last generated token is not evaluated; before the request the server has probed the context with a few tokens
    positions = answer["tokens_evaluated"] + 19
    counters = status["counters"]
    assert status["active"] and status["reasons"] == []
    assert counters["layers"] == 8 and counters["tokens"] - before["counters"]["tokens"] == positions
    assert counters["assignments"] - before["counters"]["assignments"] == 8 * 8 * positions
    for layer in status["layers"]:
        assert layer["assignments"] == 8 * layer["tokens"] == sum(layer["counts"])
        assert layer["bytes_touched"] == layer["unique_experts"] * 27648  # one expert in Q4_0 (the model's notes)
    for name in ("layer_calls", "tokens", "assignments", "unique_experts", "bytes_touched"):
        assert metric(metrics, f"nanite_{name}_total") == counters[name]
    assert metric(metrics, "nanite_layers") == 8 and metric(metrics, "nanite_enabled") == 1
    assert 'nanite_fallbacks_total{reason="bad_ids"} 0' in metrics
    assert "llamacpp:tokens_predicted_total 20" in metrics  # upstream's own are still there


def test_off_says_so(our_bin: Path, layout: Layout) -> None:
    with serve(our_bin / "llama-server", layout.embedded_model, "--nanite", "off") as (url, _):
        complete(url, "A lantern is", 4)
        status = json.loads(get(f"{url}/nanite"))
    assert (status["mode"], status["active"], status["counters"]["graphs"]) == ("off", False, 0)
    assert [r["code"] for r in status["reasons"]] == ["off"]


def test_an_unknown_mode_is_refused(our_bin: Path, layout: Layout) -> None:
    for flags, environment in ((["--nanite", "on"], {}), ([], {"NANITE_MODE": "on"})):
        done = subprocess.run(
            [str(our_bin / "llama-server"), "-m", str(layout.embedded_model), *flags],
            env=clean_environment(**environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode != 0
        assert "unknown Nanite mode 'on', this build has: off, observe" in done.stdout + done.stderr


def mapped_and_anonymous_bytes(pid: int, model: Path) -> tuple[int, int]:
    """(resident bytes of the model file's mappings, anonymous bytes of the process), from /proc/PID/smaps."""
    mapped = anonymous = 0
    of_model = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            of_model = line.endswith(str(model))
        elif line.startswith("Rss:") and of_model:
            mapped += int(line.split()[1]) * 1024
        elif line.startswith("Anonymous:"):
            anonymous += int(line.split()[1]) * 1024
    return mapped, anonymous


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_experts_stay_mapped(our_bin: Path, stock_bin: Path, layout: Layout) -> None:
    """Observing adds no copy: the file's mapping is resident, anonymous memory is stock's. A copied load is seen."""
    model = layout.embedded_model
    prompt = "The quick brown fox jumps over the lazy dog. " * 8
    with serve(stock_bin / "llama-server", model) as (url, pid):
        complete(url, prompt, 16)
        _, stock_anonymous = mapped_and_anonymous_bytes(pid, model)
    with serve(our_bin / "llama-server", model, "--nanite", "observe") as (url, pid):
        complete(url, prompt, 16)
        mapped, anonymous = mapped_and_anonymous_bytes(pid, model)
        weights = json.loads(get(f"{url}/nanite"))["weights"]
    assert weights["mapped_bytes"] == EXPERT_BYTES and weights["copied_bytes"] == 0
    assert mapped >= EXPERT_BYTES
    assert anonymous < stock_anonymous + EXPERT_BYTES // 2
    with serve(our_bin / "llama-server", model, "--nanite", "observe", "-lm", "none") as (url, pid):
        complete(url, prompt, 16)
        _, copied_anonymous = mapped_and_anonymous_bytes(pid, model)
        status = json.loads(get(f"{url}/nanite"))
    assert copied_anonymous > anonymous + EXPERT_BYTES // 2
    assert status["weights"]["mapped_bytes"] == 0 and status["weights"]["copied_bytes"] >= EXPERT_BYTES
    assert [r["code"] for r in status["reasons"]] == ["weights_copied"]
