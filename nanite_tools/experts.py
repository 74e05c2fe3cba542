"""Routed experts in a tensor table: which blocks hold them, how many, and what one of them weighs.

Three layouts exist: one 3-D tensor for a matrix of all experts (`blk.N.ffn_gate_exps.weight`), gate and up merged
(`ffn_gate_up_exps`), and the old one, a tensor for each expert (`blk.N.ffn_gate.E.weight`). Biases and per-expert
scales (`.bias`, `.scale`, `.input_scale`) belong to the expert. Shared experts (`_shexp`), the router (`ffn_gate_inp`)
and the chunk experts of GroveMoE (`_chexps`, routed by group, not by expert) do not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nanite_tools.errors import InputError
from nanite_tools.gguf_cursor import printable, shown_path
from nanite_tools.gguf_header import GgufTensor

#: The scheduling unit of expert bytes in the runtime (`TILE_BYTES` there too).
TILE_BYTES: Final = 256 * 1024

_STACKED = re.compile(r"blk\.([0-9]+)\.ffn_(gate|up|down|gate_up)_exps\.(weight|bias|scale|input_scale)")
_SINGLE = re.compile(r"blk\.([0-9]+)\.ffn_(gate|up|down)\.([0-9]+)\.(weight|bias|scale|input_scale)")
_MAX_EXPERTS: Final = 1 << 16  # far above upstream's limit of 1024; keeps a hostile header small in memory
_HINT = "the file contradicts itself: convert the model again, or fetch another file"


@dataclass(frozen=True)
class ExpertLayer:
    """The routed experts of one block.

    `expert_bytes` is one expert (the largest, should they differ), `n_bytes` all of them, `n_tiles` the tiles of one:
    each tensor's share is cut on its own, the last tile of each is short. `n_in` is the width of an expert's input and
    output, `n_ff` the width inside.
    """

    n_experts: int
    n_in: int
    n_ff: int
    expert_bytes: int
    n_bytes: int
    n_tiles: int
    one_tensor_each: bool


@dataclass
class _Part:
    """One tensor role of a block: the name of one tensor for messages, the shape of one matrix, bytes by expert."""

    name: str
    shape: tuple[int, int]
    sizes: dict[int, int]


def collect_experts(path: Path, tensors: Iterable[GgufTensor], n_experts: int, n_blocks: int) -> dict[int, ExpertLayer]:
    """Block -> its routed experts, nextn blocks included, blocks without experts absent.

    `n_experts` is what the header announces; `path` is for messages. Raises InputError when a tensor disagrees with it,
    a matrix is missing from a block, an expert is missing from a matrix, shapes do not fit together, or a block is not
    one of `n_blocks`.
    """
    if n_experts > _MAX_EXPERTS:
        raise _fail(path, f"the header announces {n_experts} experts")
    blocks: dict[int, dict[tuple[str, str], _Part]] = defaultdict(dict)
    singles: set[int] = set()
    for tensor in tensors:
        if match := _STACKED.fullmatch(tensor.name):
            sizes = _stacked_sizes(path, tensor, match[3], n_experts)
            if sizes:
                blocks[int(match[1])][match[2], match[3]] = _Part(tensor.name, tensor.shape4[:2], sizes)
        elif match := _SINGLE.fullmatch(tensor.name):
            block, key = int(match[1]), (match[2], match[4])
            part = blocks[block].setdefault(key, _Part(tensor.name, tensor.shape4[:2], {}))
            part.sizes[int(match[3])] = tensor.n_bytes
            singles.add(block)
    layers = {
        block: _layer(path, block, parts, n_experts, n_blocks, block in singles)
        for block, parts in sorted(blocks.items())
    }
    widths = {layer.n_in: block for block, layer in layers.items()}
    if len(widths) > 1:
        (a, block_a), (b, block_b) = sorted(widths.items())[:2]
        raise _fail(path, f"experts are {a} wide in block {block_a} and {b} in block {block_b}: two models mixed up")
    return layers


def _fail(path: Path, problem: str) -> InputError:
    return InputError(f"{shown_path(path)}: {problem}", _HINT)


def _stacked_sizes(path: Path, tensor: GgufTensor, suffix: str, n_experts: int) -> dict[int, int]:
    """Bytes by expert; empty for one scale that all experts share."""
    n0, n1, n2, n3 = tensor.shape4
    found = n2 if suffix == "weight" else (tensor.shape or (1,))[-1]
    if n3 != 1:
        raise _fail(path, f"tensor {printable(tensor.name)} has four dimensions")
    if suffix != "weight" and n0 * n1 * n2 == 1 and n_experts != 1:
        return {}
    if found != n_experts or tensor.n_bytes % max(found, 1):
        raise _fail(path, f"tensor {printable(tensor.name)} holds {found} experts, the header announces {n_experts}")
    return dict.fromkeys(range(found), tensor.n_bytes // max(found, 1))


def _layer(
    path: Path, block: int, parts: Mapping[tuple[str, str], _Part], n_experts: int, n_blocks: int, singles: bool
) -> ExpertLayer:
    if block >= n_blocks:
        raise _fail(path, f"block {block} holds experts, but the header counts {n_blocks} blocks")
    if ("down", "weight") not in parts or not {("up", "weight"), ("gate_up", "weight")} & parts.keys():
        names = ", ".join(sorted(printable(part.name) for part in parts.values()))
        raise _fail(path, f"the experts of block {block} lack a matrix: only {names}")
    n_ff, n_in = parts["down", "weight"].shape
    for (matrix, suffix), part in parts.items():
        due = {"down": (n_ff, n_in), "gate_up": (n_in, 2 * n_ff)}.get(matrix, (n_in, n_ff))
        if suffix == "weight" and part.shape != due:
            raise _fail(path, f"tensor {printable(part.name)} has matrices of {part.shape}, {due} would fit the others")
        if len(part.sizes) != n_experts or max(part.sizes, default=-1) != n_experts - 1:
            raise _fail(
                path,
                f"block {block} has {len(part.sizes)} experts in {printable(part.name)} and its like, "
                f"the header announces {n_experts}",
            )
    by_expert = [sum(part.sizes[expert] for part in parts.values()) for expert in range(n_experts)]
    return ExpertLayer(
        n_experts=n_experts,
        n_in=n_in,
        n_ff=n_ff,
        expert_bytes=max(by_expert),
        n_bytes=sum(by_expert),
        n_tiles=sum(-(-max(part.sizes.values()) // TILE_BYTES) for part in parts.values()),
        one_tensor_each=singles,
    )
