"""What the counters of GET /nanite mean, as figures and as one screen of text. All of it comes from the run itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nanite_tools.launcher import reasons

#: The size that the text scales this run's shares to: what one downloads for a 35B model at 4–5 bits a weight.
EXAMPLE_BYTES = 22_000_000_000


class Model(Protocol):
    """What the figures need to know of a model; `nanite_tools.topology` gives it."""

    @property
    def routed_layers(self) -> Sequence[int]: ...
    @property
    def n_experts(self) -> int: ...
    @property
    def n_experts_used(self) -> int: ...
    @property
    def routed_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...


@dataclass(frozen=True)
class Figures:
    """Counters of one run. An expert here is one (layer, expert) pair; `problem` is empty when Nanite did its work.

    `unique_experts` counts, over all calls, the experts that a call read; `experts_used` those that any call read.
    `half_experts`: how many of the busiest experts took half of all assignments. `bytes_per_token`: expert bytes that
    were read, a token.
    """

    problem: str
    layers: int
    layers_taken: int
    tokens: int
    assignments: int
    unique_experts: int
    bytes_touched: int
    mapped_bytes: int
    copied_bytes: int
    experts: int
    experts_used: int
    half_experts: int
    bytes_per_token: float
    routed_bytes: int
    total_bytes: int
    fallbacks: Mapping[str, int]


def since(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What happened between two documents of GET /nanite: counters, time and each layer's counts less the earlier ones.

    llama-server decodes a few tokens of its own while it starts; they are not part of a request.
    """
    counters, early = after.get("counters", {}), before.get("counters", {})
    rows = {(row.get("model"), row["layer"]): row for row in before.get("layers", [])}
    return {
        **after,
        "counters": {n: v if n == "layers" else _less(v, early.get(n)) for n, v in counters.items()},
        "time": _less(after.get("time", {}), before.get("time")),
        "layers": [_row_since(row, rows.get((row.get("model"), row["layer"]))) for row in after.get("layers", [])],
    }


def _less(value: Any, early: Any) -> Any:
    """`value - early` for numbers, entry by entry for maps; what was not there before counts from zero."""
    if isinstance(value, Mapping):
        return {name: _less(one, (early or {}).get(name)) for name, one in value.items()}
    return value - (early or 0)


def _row_since(row: Mapping[str, Any], early: Mapping[str, Any] | None) -> dict[str, Any]:
    out = dict(row)
    if early is not None:
        for name in ("calls", "warmup_calls", "tokens", "assignments", "unique_experts", "bytes_touched"):
            if name in row:
                out[name] = _less(row[name], early.get(name))
        out["counts"] = [now - then for now, then in zip(row["counts"], early["counts"], strict=True)]
    return out


def read_figures(nanite: Mapping[str, Any], model: Model) -> Figures:
    """Figures from a document of GET /nanite (schema 1; `{}` for none) and the model that was served."""
    counters, weights = nanite.get("counters", {}), nanite.get("weights", {})
    routed = set(model.routed_layers)
    ran = [row for row in nanite.get("layers", []) if row["layer"] in routed and row["calls"] > 0]
    counts = sorted((count for row in ran for count in row["counts"] if count > 0), reverse=True)
    taken, tokens = {row["layer"] for row in ran}, int(counters.get("tokens", 0))
    missed = sorted(routed - taken)
    problem = ""
    if "schema" not in nanite:
        problem = "this llama-server has no GET /nanite"
    elif not counts or int(counters.get("assignments", 0)) == 0:
        problem = f"no route went through Nanite: {reasons(dict(nanite)) or 'it gives no reason'}"
    elif missed:
        problem = f"Nanite missed {len(missed)} of {len(routed)} routed layers: {missed}"
    return Figures(
        problem=problem,
        layers=len(routed),
        layers_taken=len(taken),
        tokens=tokens,
        assignments=int(counters.get("assignments", 0)),
        unique_experts=int(counters.get("unique_experts", 0)),
        bytes_touched=int(counters.get("bytes_touched", 0)),
        mapped_bytes=int(weights.get("mapped_bytes", 0)),
        copied_bytes=int(weights.get("copied_bytes", 0)),
        experts=len(routed) * model.n_experts,
        experts_used=len(counts),
        half_experts=_half(counts),
        bytes_per_token=int(counters.get("bytes_touched", 0)) / tokens if tokens else 0.0,
        routed_bytes=model.routed_bytes,
        total_bytes=model.total_bytes,
        fallbacks={str(name): int(count) for name, count in counters.get("fallbacks", {}).items()},
    )


def _half(counts: Sequence[int]) -> int:
    """How many of the counts, largest first, make up at least half of their sum."""
    total, seen = sum(counts), 0
    for number, count in enumerate(counts, start=1):
        seen += count
        if 2 * seen >= total:
            return number
    return 0


def size(n_bytes: float) -> str:
    """Bytes in decimal units, three digits: 27648 → `27.6 kB`."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"


def explain(figures: Figures, model: Model) -> list[str]:
    """One screen for a person: what happened, and what it means for a model that does not fit in VRAM."""
    f = figures
    read = f.bytes_per_token / f.total_bytes if f.total_bytes else 0.0
    routed = f.routed_bytes / f.total_bytes if f.total_bytes else 0.0
    used = f.experts_used / f.experts if f.experts else 0.0
    half = f.half_experts / f.experts if f.experts else 0.0
    lines = [
        f"Nanite took {f.layers_taken} of {f.layers} routed layers. The router is the model's own: for each token and"
        f" layer it chose {model.n_experts_used} of {model.n_experts} experts.",
        f"{f.tokens} tokens made {f.assignments} choices (token, layer, expert). Computing them read"
        f" {f.unique_experts} experts, {size(f.bytes_touched)}: a call reads an expert once, for all its tokens.",
        f"Over the whole run {f.experts_used} of {f.experts} experts were used ({used:.0%});"
        f" the busiest {f.half_experts} ({half:.0%}) took half of all choices.",
        f"The experts are {size(f.routed_bytes)} of a model of {size(f.total_bytes)} ({routed:.0%})."
        f" Nanite reads them from the mapped file: {size(f.mapped_bytes)} mapped, {size(f.copied_bytes)} copied.",
    ]
    if f.fallbacks:
        lines.append("Left to upstream's code: " + ", ".join(f"{n} {name}" for name, n in f.fallbacks.items()) + ".")
    lines.append(
        f"What that means: a token read {size(f.bytes_per_token)} of experts, {read:.1%} of the model. In a model of"
        f" {size(EXAMPLE_BYTES)} with the same shares {size(routed * EXAMPLE_BYTES)} would be experts that need not be"
        f" in VRAM, {size(read * EXAMPLE_BYTES)} of them read for a token; the experts that take half of all choices"
        f" would fill {size(half * routed * EXAMPLE_BYTES)}."
    )
    return lines
