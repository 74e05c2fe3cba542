"""What a GGUF model holds, from its headers alone: layers, experts, bytes, quantisation.

The tensor table is the truth. A trunk block is routed when it holds routed-expert matrices, whatever a leading-dense or
interleave key says; a block at or after `n_blocks - n_nextn_layers` belongs to the nextn (MTP) head, as in upstream's
`llama_hparams::n_layer()`. Names and keys are those of upstream's `src/llama-arch.cpp`.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gguf.constants import LlamaFileType

from nanite_tools.errors import InputError
from nanite_tools.experts import ExpertLayer, collect_experts
from nanite_tools.gguf_cursor import printable, shown_path
from nanite_tools.gguf_header import GgufHeader, GgufTensor
from nanite_tools.gguf_shards import read_model

_BLOCK = re.compile(r"blk\.([0-9]+)\.(.+)", re.DOTALL)
_ONE_EXPERT = re.compile(r"(ffn_(?:gate|up|down))\.[0-9]+(\..+)", re.DOTALL)
_SHARED = re.compile(r"blk\.[0-9]+\.ffn_(gate|up|down)_shexp\.weight")
_CONVERT = "convert the model again with the current convert_hf_to_gguf.py, or fetch another file"
_NOT_A_MODEL = "name a language model; projectors (mmproj), adapters (LoRA) and imatrix files have no layers to place"
_GUESSED: Final = int(LlamaFileType.GUESSED)


@dataclass(frozen=True)
class Topology:
    """What `inspect` reports; `to_json` gives schema 1.

    `expert_bytes` and `tiles_per_expert` map each routed trunk block to one expert's size: all its matrices, biases and
    per-expert scales. `routed_bytes` is all experts of the trunk's routed blocks, `nextn_bytes` everything in the nextn
    blocks, `other_bytes` the rest (attention, dense and shared experts, embeddings), `total_bytes` their sum: tensor
    bytes, without headers and padding. `n_experts_used` is the largest of the trunk's blocks (few models differ by
    block; `used_by_layer` has each), `n_ff_exp` the widest. `n_shared_experts` is the header's count, 1 where there are
    shared experts and no count (several fused into one matrix are one then), 0 where there are none.
    `quant` maps a tensor role (its name without `blk.N.` and `.weight`) to the type's name, or to several joined with
    `+`, most bytes first, where blocks differ. Roles in nextn blocks begin with `nextn.`.
    `fingerprint` covers the architecture and each tensor's name, shape and type, however the file is split. It does not
    cover the weights: two fine-tunes of one model, quantised alike, share it.
    `used_by_layer` (trunk blocks) and `notes` (things that a reader should know) are not part of the JSON.
    """

    path: str
    files: tuple[str, ...]
    arch: str
    name: str | None
    file_type: str | None
    n_blocks: int
    n_layers: int
    n_nextn_layers: int
    routed_layers: tuple[int, ...]
    n_experts: int
    n_experts_used: int
    n_shared_experts: int
    n_ff_exp: int
    n_embd: int
    n_ctx_train: int
    expert_bytes: Mapping[int, int]
    routed_bytes: int
    nextn_bytes: int
    other_bytes: int
    total_bytes: int
    tiles_per_expert: Mapping[int, int]
    quant: Mapping[str, str]
    fingerprint: str
    used_by_layer: Mapping[int, int]
    notes: tuple[str, ...]

    @property
    def routed_bytes_per_token(self) -> int:
        """Expert bytes that one token reads in the trunk."""
        return sum(self.expert_bytes[layer] * self.used_by_layer[layer] for layer in self.routed_layers)

    def to_json(self) -> dict[str, Any]:
        """Schema 1: fixed keys in a fixed order; block indices become string keys."""
        skipped = ("used_by_layer", "notes")
        document: dict[str, Any] = {"schema": 1}
        for key, value in vars(self).items():
            if key in skipped:
                continue
            if isinstance(value, Mapping):
                document[key] = {str(k): v for k, v in value.items()}
            else:
                document[key] = list(value) if isinstance(value, tuple) else value
        return document


def inspect_model(path: Path) -> Topology:
    """The topology of the model at `path` (one file, or any shard of a split one).

    Reads headers only. Raises InputError for anything that is no complete, consistent GGUF language model.
    """
    headers = read_model(path)
    first = headers[0]
    tensors = [tensor for header in headers for tensor in header.tensors]
    arch = first.fields.get("general.architecture")
    if not isinstance(arch, str) or not arch:
        raise InputError(f"{shown_path(first.path)}: the header names no architecture", _NOT_A_MODEL)
    n_blocks = _count(first, arch, "block_count")
    n_nextn = _count(first, arch, "nextn_predict_layers", 0)
    n_embd, n_ctx_train = _count(first, arch, "embedding_length"), _count(first, arch, "context_length")
    if n_blocks == 0 or n_nextn > n_blocks:
        raise InputError(f"{shown_path(first.path)}: {n_nextn} nextn blocks of {n_blocks} blocks in all", _CONVERT)
    n_layers = n_blocks - n_nextn
    _check_nextn(first, tensors, n_layers)

    announced = _count(first, arch, "expert_count", 0)
    layers = collect_experts(first.path, tensors, announced, n_blocks)
    trunk = {index: layer for index, layer in sorted(layers.items()) if index < n_layers}
    used = _used_by_layer(first, arch, trunk or layers, n_blocks, announced)
    total = sum(tensor.n_bytes for tensor in tensors)
    routed = sum(layer.n_bytes for layer in trunk.values())
    nextn = sum(tensor.n_bytes for tensor in tensors if n_layers <= _block(tensor.name) < n_blocks)
    has_shared = any(_SHARED.fullmatch(tensor.name) for tensor in tensors)
    name = first.fields.get("general.name")
    return Topology(
        path=str(path),
        files=tuple(str(header.path) for header in headers),
        arch=arch,
        name=name if isinstance(name, str) else None,
        file_type=_file_type(first),
        n_blocks=n_blocks,
        n_layers=n_layers,
        n_nextn_layers=n_nextn,
        routed_layers=tuple(trunk),
        n_experts=announced if layers else 0,
        n_experts_used=max(used.values(), default=0),
        n_shared_experts=max(1, _count(first, arch, "expert_shared_count", 1)) if has_shared else 0,
        n_ff_exp=max((layer.n_ff for layer in layers.values()), default=0),
        n_embd=n_embd,
        n_ctx_train=n_ctx_train,
        expert_bytes={index: layer.expert_bytes for index, layer in trunk.items()},
        routed_bytes=routed,
        nextn_bytes=nextn,
        other_bytes=total - routed - nextn,
        total_bytes=total,
        tiles_per_expert={index: layer.n_tiles for index, layer in trunk.items()},
        quant=_quant(tensors, n_layers),
        fingerprint=fingerprint(arch, tensors),
        used_by_layer={index: used[index] for index in trunk},
        notes=tuple(_notes(layers, trunk, used, announced)),
    )


def fingerprint(arch: str, tensors: Iterable[GgufTensor]) -> str:
    """SHA-256, in hex, of UTF-8 lines: the architecture, then `name TAB n0,n1,n2,n3 TAB type number`, sorted."""
    lines = sorted(f"{t.name}\t{','.join(map(str, t.shape4))}\t{t.type_id}\n".encode() for t in tensors)
    return hashlib.sha256(b"".join([f"{arch}\n".encode(), *lines])).hexdigest()


def _count(header: GgufHeader, arch: str, key: str, default: int | None = None) -> int:
    full = f"{arch}.{key}"
    value = header.fields.get(full, default)
    if value is None:
        raise InputError(f"{shown_path(header.path)}: the header has no {printable(full)}", _NOT_A_MODEL)
    if type(value) is not int or value < 0:
        problem = f"{printable(full)} is {printable(repr(value))}, not a count"
        raise InputError(f"{shown_path(header.path)}: {problem}", _CONVERT)
    return value


def _block(name: str) -> int:
    """The block that a tensor belongs to, -1 for none."""
    match = _BLOCK.fullmatch(name)
    return int(match[1]) if match else -1


def _check_nextn(header: GgufHeader, tensors: Iterable[GgufTensor], n_layers: int) -> None:
    for tensor in tensors:
        match = _BLOCK.fullmatch(tensor.name)
        if match and match[2].startswith("nextn.") and int(match[1]) < n_layers:
            raise InputError(
                f"{shown_path(header.path)}: block {int(match[1])} is a nextn (MTP) block ({printable(tensor.name)}), "
                f"but the header counts it among the trunk's {n_layers}",
                _CONVERT,
            )


def _used_by_layer(
    header: GgufHeader, arch: str, blocks: Iterable[int], n_blocks: int, n_experts: int
) -> dict[int, int]:
    """Routed block -> experts that a token uses there. The key holds one number, or one for each block."""
    value = header.fields.get(f"{arch}.expert_used_count")
    used: dict[int, int] = {}
    for block in blocks:
        count = (value[block] if len(value) == n_blocks else None) if isinstance(value, tuple) else value
        if type(count) is not int or not 0 < count <= n_experts:
            problem = (
                f"{printable(arch)}.expert_used_count does not say how many of {n_experts} experts block {block} uses"
            )
            raise InputError(f"{shown_path(header.path)}: {problem} ({printable(repr(value))})", _CONVERT)
        used[block] = count
    return used


def _file_type(header: GgufHeader) -> str | None:
    """The quantisation mix by its usual name (`Q4_K_M`), or None. A converter's guess is a name too."""
    value = header.fields.get("general.file_type")
    if type(value) is not int:
        return None
    names = {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    return {**names, 41: "Q2_0"}.get(value & ~_GUESSED, f"type {value}")


def _quant(tensors: Iterable[GgufTensor], n_layers: int) -> dict[str, str]:
    sizes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for tensor in tensors:
        match = _BLOCK.fullmatch(tensor.name)
        role = _ONE_EXPERT.sub(r"\1_exps\2", match[2]) if match else tensor.name
        role = role.removesuffix(".weight")
        if match and int(match[1]) >= n_layers and not role.startswith("nextn."):
            role = f"nextn.{role}"
        sizes[role][tensor.type_name] += tensor.n_bytes
    return {role: "+".join(sorted(by, key=lambda kind: (-by[kind], kind))) for role, by in sorted(sizes.items())}


def _notes(
    layers: Mapping[int, ExpertLayer], trunk: Mapping[int, ExpertLayer], used: Mapping[int, int], announced: int
) -> Iterable[str]:
    if layers and not trunk:
        yield "the experts here belong to nextn (MTP) blocks only: a draft head, to be loaded beside its model"
    if not layers and announced > 1:
        yield f"the header announces {announced} experts, but the file holds none"
    if any(layer.one_tensor_each for layer in layers.values()):
        yield "one tensor for each expert, an old layout that the pinned runtime does not load: convert the model again"
    if len(set(used.values())) > 1:
        yield f"blocks use different numbers of experts: {min(used.values())} to {max(used.values())}"
