"""A GGUF file in a few lines, written with `struct` alone, so that tests do not lean on the code under test."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

U32, I32, STRING, ARRAY, U64 = 4, 5, 8, 9, 10
#: ggml type number -> (elements a block, bytes a block); from the block structs in upstream's ggml-common.h.
BLOCKS = {0: (1, 4), 2: (32, 18), 8: (32, 34)}
F32, Q4_0, Q8_0 = 0, 2, 8


@dataclass(frozen=True)
class Raw:
    """A value already encoded, type number and all."""

    data: bytes


Value = int | str | Sequence[int] | Raw
Row = tuple[str, int, tuple[int, ...]]


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def encode(value: Value) -> bytes:
    if isinstance(value, Raw):
        return value.data
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    return struct.pack("<IIQ", ARRAY, I32, len(value)) + b"".join(struct.pack("<i", item) for item in value)


def strings(count: int, raw: bytes) -> Raw:
    """An array value of strings that says it has `count` of them."""
    return Raw(struct.pack("<IIQ", ARRAY, STRING, count) + raw)


def n_bytes(row: Row) -> int:
    total = 1
    for size in row[2]:
        total *= size
    block, block_bytes = BLOCKS[row[1]]
    return total // block * block_bytes


def header(fields: Mapping[str, Value], rows: Sequence[Row], *, version: int = 3, offsets: Sequence[int] = ()) -> bytes:
    """Magic to the end of the tensor table. `offsets` replaces the right ones."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(rows), len(fields))
    for key, value in fields.items():
        out += text(key) + encode(value)
    due = 0
    for number, (name, kind, shape) in enumerate(rows):
        offset = offsets[number] if offsets else due
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        due += -(-(n_bytes((name, kind, shape)) if kind in BLOCKS else 0) // 32) * 32
    return out


def write(path: Path, fields: Mapping[str, Value], rows: Sequence[Row], *, version: int = 3) -> Path:
    """A whole file; the weights are a hole."""
    head = header(fields, rows, version=version)
    head += bytes(-len(head) % 32)
    data = sum(-(-n_bytes(row) // 32) * 32 for row in rows)
    with path.open("wb") as handle:
        handle.write(head)
        handle.truncate(len(head) + data)
    return path


def moe_fields(**changes: Value) -> dict[str, Value]:
    """A two-block model of 4 experts, 2 used."""
    fields: dict[str, Value] = {
        "general.architecture": "qwen3moe",
        "general.name": "two blocks",
        "general.file_type": 2,
        "qwen3moe.block_count": 2,
        "qwen3moe.embedding_length": 64,
        "qwen3moe.context_length": 128,
        "qwen3moe.expert_count": 4,
        "qwen3moe.expert_used_count": 2,
    }
    return fields | {key.replace("__", "."): value for key, value in changes.items()}


def moe_rows(blocks: int = 2) -> list[Row]:
    """n_embd 64, expert width 32, Q4_0: one expert is 3 matrices of 64·32/32·18 = 1152 bytes."""
    rows: list[Row] = [("token_embd.weight", Q4_0, (64, 100))]
    for i in range(blocks):
        rows += [
            (f"blk.{i}.attn_norm.weight", F32, (64,)),
            (f"blk.{i}.ffn_gate_exps.weight", Q4_0, (64, 32, 4)),
            (f"blk.{i}.ffn_up_exps.weight", Q4_0, (64, 32, 4)),
            (f"blk.{i}.ffn_down_exps.weight", Q4_0, (32, 64, 4)),
        ]
    return rows
