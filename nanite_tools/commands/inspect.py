"""`nanite-tools inspect MODEL`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from nanite_tools.topology import Topology


@click.command(name="inspect")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
def command(model: Path, as_json: bool) -> None:
    """Tell what the GGUF file MODEL holds: layers, experts, bytes, quantisation.

    MODEL is a .gguf file, or any shard of a split model; the other shards are found beside it. Only headers are read.
    """
    from nanite_tools.console import print_json, print_table, warn
    from nanite_tools.topology import inspect_model

    topology = inspect_model(model)
    if as_json:
        print_json(topology.to_json())
    else:
        print_table("", ["", printable_name(topology)], _rows(topology))
    for note in topology.notes:
        warn(note)


def printable_name(topology: Topology) -> str:
    """The model's name, else the file's."""
    from nanite_tools.gguf_cursor import printable

    return printable(topology.name or Path(topology.path).name)


def _rows(topology: Topology) -> list[list[str]]:
    from nanite_tools.gguf_cursor import printable

    t = topology
    files = f" in {len(t.files)} files" if len(t.files) > 1 else ""
    rows = [
        ["architecture", printable(t.arch)],
        ["quantisation", t.file_type or "not named"],
        ["weights", _size(t.total_bytes) + files],
        ["trained context", f"{t.n_ctx_train} tokens"],
    ]
    mtp = f" + {t.n_nextn_layers} nextn (MTP), not part of the trunk" if t.n_nextn_layers else ""
    if not t.routed_layers:
        return [
            *rows,
            ["layers", f"{t.n_layers}{mtp}"],
            ["routed experts", "none in the trunk: nothing for an expert cache to hold"],
            ["fingerprint", t.fingerprint[:16]],
        ]
    roles = {role: kinds for role, kinds in t.quant.items() if role.startswith("ffn_") and role.endswith("_exps")}
    shared = f", and {t.n_shared_experts} shared" if t.n_shared_experts else ""
    return [
        *rows,
        ["layers", f"{t.n_layers}{mtp}"],
        ["routed layers", f"{len(t.routed_layers)} of {t.n_layers}: blocks {_ranges(t.routed_layers)}"],
        ["experts a layer", f"{t.n_experts}, of which a token uses {t.n_experts_used}{shared}"],
        ["one expert", f"{_span(t.expert_bytes)}, {_tiles(t.tiles_per_expert)} tiles of up to 256 KiB"],
        ["expert types", ", ".join(f"{role[4:-5]} {kinds}" for role, kinds in sorted(roles.items()))],
        ["routed experts", f"{_size(t.routed_bytes)}, {_share(t.routed_bytes, t.total_bytes)} of the weights"],
        *([["nextn (MTP) blocks", f"{_size(t.nextn_bytes)}, {_share(t.nextn_bytes, t.total_bytes)}"]] if mtp else []),
        ["everything else", f"{_size(t.other_bytes)}, {_share(t.other_bytes, t.total_bytes)}"],
        ["a token reads", f"{_size(t.routed_bytes_per_token)} of routed experts"],
        ["fingerprint", t.fingerprint[:16]],
    ]


def _size(n_bytes: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.2f} {unit}"
    return f"{n_bytes} B"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "0.0%"


def _span(values: Mapping[int, int]) -> str:
    low, high = min(values.values()), max(values.values())
    return _size(low) if low == high else f"{_size(low)} to {_size(high)}, by layer"


def _tiles(values: Mapping[int, int]) -> str:
    low, high = min(values.values()), max(values.values())
    return str(low) if low == high else f"{low} to {high}"


def _ranges(blocks: Iterable[int]) -> str:
    """`0-2, 5, 7-9`; a regular step as `1, 3, … 47 (every 2)`."""
    items = list(blocks)
    steps = {b - a for a, b in pairwise(items)}
    if len(items) > 2 and len(steps) == 1 and (step := steps.pop()) > 1:
        return f"{items[0]}, {items[1]}, … {items[-1]} (every {step})"
    runs: list[list[int]] = []
    for block in items:
        if runs and block == runs[-1][1] + 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
