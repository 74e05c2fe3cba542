from dataclasses import dataclass
from typing import Any

import pytest

from nanite_tools.demo_figures import explain, read_figures, since, size


@dataclass(frozen=True)
class Model:
    """Two routed layers (1 and 2) of four experts, 100 bytes each, in a model of 1000 bytes."""

    routed_layers: tuple[int, ...] = (1, 2)
    n_experts: int = 4
    n_experts_used: int = 2
    routed_bytes: int = 800
    total_bytes: int = 1000


def row(layer: int, counts: list[int], calls: int = 3) -> dict[str, Any]:
    return {"layer": layer, "calls": calls, "counts": counts}


def nanite(*rows: dict[str, Any], assignments: int = 20) -> dict[str, Any]:
    return {
        "schema": 1,
        "reasons": [{"code": "no_calls", "detail": "nothing ran"}],
        "weights": {"tensors": 6, "mapped_bytes": 800, "copied_bytes": 3},
        "counters": {
            "tokens": 5,
            "assignments": assignments,
            "unique_experts": 14,
            "bytes_touched": 1400,
            "fallbacks": {"bias": 2},
        },
        "layers": list(rows),
    }


# layer 1: 6+4 choices of two experts; layer 2: 4+3+2+1 of all four; half of 20 is reached by the busiest two (6+4)
DOCUMENT = nanite(row(1, [6, 0, 4, 0]), row(2, [1, 2, 3, 4]), row(9, [50, 50, 50, 50]))


def test_figures() -> None:
    figures = read_figures(DOCUMENT, Model())
    assert figures.problem == ""
    assert (figures.layers, figures.layers_taken) == (2, 2)
    assert (figures.experts, figures.experts_used, figures.half_experts) == (8, 6, 2)
    assert (figures.tokens, figures.assignments, figures.unique_experts, figures.bytes_touched) == (5, 20, 14, 1400)
    assert (figures.mapped_bytes, figures.copied_bytes) == (800, 3)
    assert figures.bytes_per_token == 280
    assert figures.fallbacks == {"bias": 2}


def test_the_text_holds_this_run_s_figures() -> None:
    text = " ".join(explain(read_figures(DOCUMENT, Model()), Model()))
    for words in (
        "2 of 2 routed layers",
        "2 of 4 experts",
        "5 tokens made 20 choices",
        "14 experts, 1.4 kB",
        "6 of 8 experts were used (75%)",
        "the busiest 2 (25%)",
        "800 B of a model of 1 kB (80%)",
        "800 B mapped, 3 B copied",
        "2 bias",
        "280 B of experts, 28.0% of the model",
        "17.6 GB would be experts",  # 80% of 22 GB
        "6.16 GB of them read",  # 28% of 22 GB
        "would fill 4.4 GB",  # 25% of 17.6 GB
    ):
        assert words in text, words


def test_what_the_start_counted_is_taken_off() -> None:
    before = {
        "counters": {"layers": 8, "tokens": 4, "assignments": 16, "bytes_touched": 400, "fallbacks": {}},
        "time": {"compute_ns": 5},
        "layers": [{"model": 0, "layer": 1, "calls": 1, "counts": [2, 0, 1, 0]}],
    }
    after = {
        "schema": 1,
        "counters": {"layers": 8, "tokens": 10, "assignments": 40, "bytes_touched": 1000, "fallbacks": {"bias": 2}},
        "time": {"compute_ns": 9},
        "weights": {"tensors": 6},
        "layers": [
            {"model": 0, "layer": 1, "calls": 3, "counts": [2, 5, 1, 1]},
            {"model": 1, "layer": 1, "calls": 4, "counts": [1, 0, 0, 0]},
        ],
    }
    assert since(after, before) == {
        "schema": 1,
        "counters": {"layers": 8, "tokens": 6, "assignments": 24, "bytes_touched": 600, "fallbacks": {"bias": 2}},
        "time": {"compute_ns": 4},
        "weights": {"tensors": 6},
        "layers": [
            {"model": 0, "layer": 1, "calls": 2, "counts": [0, 5, 0, 1]},
            {"model": 1, "layer": 1, "calls": 4, "counts": [1, 0, 0, 0]},
        ],
    }
    assert since({}, {})["layers"] == []


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({}, "this llama-server has no GET /nanite"),
        (nanite(), "no route went through Nanite: no_calls: nothing ran"),
        (nanite(row(1, [0, 0, 0, 0]), row(2, [0, 0, 0, 0])), "no route went through Nanite: no_calls: nothing ran"),
        (nanite(row(1, [1, 0, 0, 0]), assignments=0), "no route went through Nanite: no_calls: nothing ran"),
        (nanite(row(1, [1, 0, 0, 0])), "Nanite missed 1 of 2 routed layers: [2]"),
        (nanite(row(1, [1, 0, 0, 0]), row(2, [1, 0, 0, 0], calls=0)), "Nanite missed 1 of 2 routed layers: [2]"),
        ({"schema": 1}, "no route went through Nanite: it gives no reason"),
    ],
)
def test_problems(document: dict[str, Any], problem: str) -> None:
    assert read_figures(document, Model()).problem == problem


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (27648, "27.6 kB"), (999_600, "1 MB"), (2.25e10, "22.5 GB")],
)
def test_size(n: float, text: str) -> None:
    assert size(n) == text
