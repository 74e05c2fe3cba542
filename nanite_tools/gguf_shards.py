"""A model in several files: `NAME-00001-of-0000N.gguf`. File names count from 1, the `split.no` inside them from 0."""

from __future__ import annotations

import re
from pathlib import Path

from nanite_tools.errors import InputError
from nanite_tools.gguf_cursor import printable, shown_path
from nanite_tools.gguf_header import GgufHeader, read_header

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5,})-of-(?P<count>[0-9]{5,})\.gguf", re.DOTALL)
_WHOLE_SET = "put all shards of one download into one folder, under the names that they were published with"


def read_model(path: Path) -> tuple[GgufHeader, ...]:
    """The headers of all files of the model that `path` belongs to, first shard first.

    `path` may be a model in one file or any shard of a split one. Raises InputError when a shard is missing, renamed,
    out of place or of another model. Two quantisations of one model, split at the same tensors, cannot be told apart.
    """
    header = read_header(path)
    count = _number(header, "split.count", 1)
    if count <= 1:
        return (header,)
    paths = _shard_paths(header, count)
    missing = [shard for shard in paths if shard != path and not shard.is_file()]
    if missing:
        names = ", ".join(printable(shard.name, 200) for shard in missing[:3]) + (", …" if len(missing) > 3 else "")
        raise InputError(f"{len(missing)} of {count} shards of {shown_path(path)} are missing: {names}", _WHOLE_SET)
    headers = tuple(header if shard == path else read_header(shard) for shard in paths)
    _check_set(headers, count)
    return headers


def _number(header: GgufHeader, key: str, default: int | None = None) -> int:
    value = header.fields.get(key, default)
    if type(value) is not int or value < 0:
        raise InputError(f"{shown_path(header.path)}: {key} is {printable(repr(value))}, not a count", _WHOLE_SET)
    return value


def _shard_paths(header: GgufHeader, count: int) -> list[Path]:
    number = _number(header, "split.no")
    match = _SHARD_NAME.fullmatch(header.path.name)
    if number >= count:
        raise InputError(f"{shown_path(header.path)}: split.no is {number} of {count} shards", _WHOLE_SET)
    if match is None or (int(match["number"]), int(match["count"])) != (number + 1, count):
        raise InputError(
            f"{shown_path(header.path)} is shard {number + 1} of {count}, and its name does not say so",
            f"rename it to NAME-{number + 1:05d}-of-{count:05d}.gguf, beside its other shards",
        )
    return [header.path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]


def _check_set(headers: tuple[GgufHeader, ...], count: int) -> None:
    first = headers[0]
    n_tensors = _number(first, "split.tensors.count")
    arch = first.fields.get("general.architecture")
    owner: dict[str, Path] = {}
    for number, header in enumerate(headers):
        shown = shown_path(header.path)
        if (_number(header, "split.no"), _number(header, "split.count", 1)) != (number, count):
            raise InputError(f"{shown}: its header does not say shard {number + 1} of {count}", _WHOLE_SET)
        if (
            _number(header, "split.tensors.count") != n_tensors
            or header.fields.get("general.architecture", arch) != arch
        ):
            raise InputError(f"{shown} is a shard of another model than {printable(first.path.name, 200)}", _WHOLE_SET)
        for tensor in header.tensors:
            if tensor.name in owner:
                raise InputError(
                    f"{shown} is a shard of another model: tensor {printable(tensor.name)} is in "
                    f"{printable(owner[tensor.name].name, 200)} too",
                    _WHOLE_SET,
                )
            owner[tensor.name] = header.path
    if len(owner) != n_tensors:
        raise InputError(
            f"the {count} shards of {shown_path(first.path)} hold {len(owner)} tensors, {n_tensors} were announced: "
            "one is of another model",
            _WHOLE_SET,
        )
