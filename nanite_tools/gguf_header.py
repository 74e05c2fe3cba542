"""The header of a GGUF file: metadata and tensor table, never the weights.

Written for speed and for hostile input. `gguf.GGUFReader` builds objects for every token of the vocabulary, which takes
seconds and most of a gigabyte for a vocabulary of 248320 with merges; here long arrays and texts are stepped over.
The rules (names, shapes, offsets, alignment) are those of upstream's `ggml/src/gguf.cpp`.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from nanite_tools.errors import InputError
from nanite_tools.gguf_cursor import Cursor, printable, shown_path

Value = int | float | bool | str | tuple[int | float | bool, ...]
_Row = tuple[tuple[int, ...], int, int, int]  # shape, type number, bytes, offset in the weights

#: Tensor type number -> (name, elements a block, bytes a block). The first entry is newer than some releases of `gguf`.
TYPE_SIZES: Final[dict[int, tuple[str, int, int]]] = {
    42: ("Q2_0", 64, 18),
    **{int(kind): (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType},
}

_SCALARS: Final[dict[int, struct.Struct]] = {
    int(kind): struct.Struct("<" + code)
    for kind, code in {
        GGUFValueType.UINT8: "B",
        GGUFValueType.INT8: "b",
        GGUFValueType.UINT16: "H",
        GGUFValueType.INT16: "h",
        GGUFValueType.UINT32: "I",
        GGUFValueType.INT32: "i",
        GGUFValueType.FLOAT32: "f",
        GGUFValueType.BOOL: "?",
        GGUFValueType.UINT64: "Q",
        GGUFValueType.INT64: "q",
        GGUFValueType.FLOAT64: "d",
    }.items()
}

_KEPT_STRING_BYTES: Final = 1 << 16  # longer text values are stepped over
_KEPT_ARRAY_ITEMS: Final = 4096  # longer arrays are stepped over, and all arrays of strings
_MAX_KEY_BYTES: Final = 65535  # the format's own limit
_MAX_NAME_BYTES: Final = 63  # upstream's GGML_MAX_NAME, less the end mark
_MAX_KEYS: Final = 1 << 16
_MAX_TENSORS: Final = 1 << 18


@dataclass(frozen=True)
class GgufTensor:
    """One row of the tensor table.

    `shape` has ggml's order (row length first), without padding; `type_id` is ggml's number, `type_name` its name;
    `n_bytes` is what the weights occupy, `offset_bytes` where they start in the file.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    n_bytes: int
    offset_bytes: int

    @property
    def shape4(self) -> tuple[int, int, int, int]:
        """The shape as ggml holds it: four sizes, missing ones are 1."""
        a, b, c, d = (*self.shape, 1, 1, 1, 1)[:4]
        return a, b, c, d


@dataclass(frozen=True)
class GgufHeader:
    """Metadata without the long arrays and texts, and the whole tensor table of one file."""

    path: Path
    file_bytes: int
    version: int
    fields: dict[str, Value]
    tensors: tuple[GgufTensor, ...]
    data_offset_bytes: int


def read_header(path: Path) -> GgufHeader:
    """Parse the header of one GGUF file (version 2 or 3, little-endian).

    Raises InputError: no such file, not a regular file, no permission, not GGUF, big-endian, another version, a length
    that points past the end, a repeated name, an unknown tensor type, or weights that end after the file does.
    """
    shown = shown_path(path)
    try:
        mode = path.stat().st_mode  # before opening: opening a FIFO would wait for its writer
        if stat.S_ISDIR(mode):
            raise InputError(f"{shown} is a directory", "name one .gguf file in it")
        if not stat.S_ISREG(mode):
            raise InputError(f"{shown} is not a regular file", "name a .gguf file on a disk")
        with path.open("rb", buffering=0) as handle:
            return _parse(Cursor(path, handle, os.fstat(handle.fileno()).st_size))
    except FileNotFoundError:
        raise InputError(f"no such file: {shown}", "check the path's spelling") from None
    except PermissionError:
        raise InputError(f"no permission to read {shown}", "give yourself the right to read it (chmod u+r)") from None
    except OSError as error:
        raise InputError(f"cannot read {shown}: {error.strerror}", "check the path and the disk") from None
    except ValueError:  # a NUL byte in the path
        raise InputError(f"not a path: {shown}", "check the path's spelling") from None


def _parse(cursor: Cursor) -> GgufHeader:
    version, n_tensors, n_keys = _opening(cursor)
    fields: dict[str, Value] = {}
    seen: set[str] = set()
    for number in range(n_keys):
        key = cursor.text(_MAX_KEY_BYTES, f"metadata key {number}")
        if not key or key in seen:
            cursor.fail(f"metadata key {printable(key)} appears twice" if key else f"metadata key {number} is empty")
        seen.add(key)
        value = _value(cursor, key)
        if value is not None:
            fields[key] = value
    alignment = fields.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {printable(repr(alignment))}, not a power of two")
    rows: dict[str, _Row] = {}
    for number in range(n_tensors):
        name = cursor.text(_MAX_NAME_BYTES, f"the name of tensor {number}")
        if name in rows:
            cursor.fail(f"tensor {printable(name)} appears twice")
        rows[name] = _row(cursor, name)
    start = -(-cursor.pos // alignment) * alignment
    tensors: list[GgufTensor] = []
    due = 0
    for name, (shape, type_id, n_bytes, offset) in rows.items():
        if offset != due:
            cursor.fail(f"tensor {printable(name)} starts at byte {offset} of the weights, {due} was due")
        end = start + offset + n_bytes
        if end > cursor.size:
            cursor.fail(f"the file has {cursor.size} bytes, but tensor {printable(name)} ends at {end}")
        tensors.append(GgufTensor(name, shape, type_id, TYPE_SIZES[type_id][0], n_bytes, start + offset))
        due = -(-(offset + n_bytes) // alignment) * alignment
    return GgufHeader(cursor.path, cursor.size, version, fields, tuple(tensors), start)


def _opening(cursor: Cursor) -> tuple[int, int, int]:
    """Version, number of tensors, number of metadata keys."""
    if cursor.size == 0:
        cursor.fail("the file is empty")
    start = cursor.take(min(cursor.size, 40), "the magic")
    cursor.pos = 0
    if start.startswith(b"version https://git-lfs"):
        cursor.fail("this is a Git LFS pointer, not the model", "run `git lfs pull` in its folder")
    if start[:4] != b"GGUF"[: len(start)]:
        cursor.fail(f"not a GGUF file (it starts with {start[:4]!r})", "name a .gguf model file")
    cursor.skip(4, "the magic")
    version = cursor.u32("the version")
    if version and version & 0xFFFF == 0:
        cursor.fail("a big-endian GGUF file", "fetch the little-endian file, or convert it with gguf-convert-endian")
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version}; versions 2 and 3 can be read", "convert the model again, or update")
    n_tensors, n_keys = cursor.u64("the tensor count"), cursor.u64("the key count")
    left = cursor.size - cursor.pos  # a row of the table takes 24 bytes or more, a key 13
    if n_tensors > min(_MAX_TENSORS, left // 24) or n_keys > min(_MAX_KEYS, left // 13):
        cursor.fail(f"{n_tensors} tensors and {n_keys} metadata keys are announced, more than fit")
    return version, n_tensors, n_keys


def _value(cursor: Cursor, key: str) -> Value | None:
    """The value of `key`, or None where it is stepped over."""
    what = f"the value of {printable(key)}"
    kind = cursor.u32(what)
    if kind == GGUFValueType.STRING:
        n_bytes = cursor.u64(what)
        if n_bytes <= _KEPT_STRING_BYTES:
            return cursor.take(n_bytes, what).decode("utf-8", "backslashreplace")
        cursor.skip(n_bytes, what)
        return None
    count = None
    if kind == GGUFValueType.ARRAY:
        kind, count = cursor.u32(what), cursor.u64(what)
    if kind == GGUFValueType.STRING and count is not None:
        cursor.skip_strings(count, what)
        return None
    if kind not in _SCALARS:
        cursor.fail(f"metadata key {printable(key)} has the unknown value type {kind}")
    layout = _SCALARS[kind]
    if count is None:
        scalar: int | float | bool = layout.unpack(cursor.take(layout.size, what))[0]
        return scalar
    if count > _KEPT_ARRAY_ITEMS:
        cursor.skip(count * layout.size, what)
        return None
    return tuple(item for (item,) in layout.iter_unpack(cursor.take(count * layout.size, what)))


def _row(cursor: Cursor, name: str) -> _Row:
    """The rest of the table's entry for the tensor `name`."""
    what = f"the entry of tensor {printable(name)}"
    n_dims = cursor.u32(what)
    if n_dims > 4:
        cursor.fail(f"tensor {printable(name)} has {n_dims} dimensions, at most 4 are allowed")
    shape = tuple(cursor.u64(what) for _ in range(n_dims))
    type_id, offset = cursor.u32(what), cursor.u64(what)
    if type_id not in TYPE_SIZES:
        cursor.fail(
            f"tensor {printable(name)} has the unknown quantisation type {type_id}",
            "the file is newer than this version of nanite-tools, or damaged",
        )
    type_name, block, block_bytes = TYPE_SIZES[type_id]
    n_elements = math.prod(shape)
    if n_elements >= 1 << 63 or (shape[0] if shape else 1) % block:
        cursor.fail(f"tensor {printable(name)} has the impossible shape {shape} for {type_name}")
    return shape, type_id, n_elements // block * block_bytes, offset
