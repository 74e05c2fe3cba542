"""Split models: which sets are accepted, and what is said about the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from gguf_bytes import Q4_0, Row, Value, moe_fields, moe_rows, write

from nanite_tools.errors import InputError
from nanite_tools.gguf_shards import read_model
from nanite_tools.topology import inspect_model

GROUPS: tuple[list[Row], ...] = ([], moe_rows()[:4], moe_rows()[4:])  # the first shard holds metadata only


def split_fields(number: int, count: int, n_tensors: int) -> dict[str, Value]:
    return {"split.no": number, "split.count": count, "split.tensors.count": n_tensors}


def write_set(folder: Path, groups: tuple[list[Row], ...] = GROUPS, stem: str = "m", **changes: Value) -> list[Path]:
    """One file a group, named as published; `changes` go into the first one's header."""
    folder.mkdir(exist_ok=True)
    total, count, paths = sum(map(len, groups)), len(groups), []
    for number, rows in enumerate(groups):
        fields = split_fields(number, count, total) | (moe_fields(**changes) if number == 0 else {})
        paths.append(write(folder / f"{stem}-{number + 1:05d}-of-{count:05d}.gguf", fields, rows))
    return paths


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_model(path)
    assert caught.value.hint
    return caught.value.message


def test_any_shard_leads_to_all(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    for path in paths:
        assert [header.path for header in read_model(path)] == paths
    whole = inspect_model(write(tmp_path / "whole.gguf", moe_fields(), moe_rows()))
    split = inspect_model(paths[0])
    assert split.files == tuple(map(str, paths))
    # 64·100/32·18 = 3600 embeddings, and for each block 64·4 norm and 4 experts of 3·64·32/32·18 = 3456 bytes.
    assert split.total_bytes == 3600 + 2 * (256 + 4 * 3456)
    assert (split.fingerprint, split.routed_bytes, split.total_bytes) == (
        whole.fingerprint,
        whole.routed_bytes,
        whole.total_bytes,
    )


def test_links_with_the_right_names_are_followed_by_name(tmp_path: Path) -> None:
    for number, path in enumerate(write_set(tmp_path / "blobs")):
        target = path.rename(path.with_name(f"blob{number}"))
        (tmp_path / f"m-{number + 1:05d}-of-00003.gguf").symlink_to(target)
    assert len(read_model(tmp_path / "m-00001-of-00003.gguf")) == 3


def test_a_single_file_that_counts_one_split(tmp_path: Path) -> None:
    path = write(tmp_path / "any name.gguf", moe_fields() | split_fields(0, 1, 9), moe_rows())
    assert [header.path for header in read_model(path)] == [path]


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_lone_shard(tmp_path: Path, kept: int) -> None:
    paths = write_set(tmp_path)
    for number, path in enumerate(paths):
        if number != kept:
            path.unlink()
    message = refused(paths[kept])
    assert "2 of 3 shards" in message
    assert paths[kept - 1].name in message


def test_a_renamed_shard(tmp_path: Path) -> None:
    first = write_set(tmp_path)[0]
    assert "is shard 1 of 3, and its name does not say so" in refused(first.rename(tmp_path / "model.gguf"))
    second = write_set(tmp_path)[1]
    shutil.copy(second, tmp_path / "m-00003-of-00003.gguf")
    assert "is shard 2 of 3" in refused(tmp_path / "m-00003-of-00003.gguf")


def test_shards_swapped(tmp_path: Path) -> None:
    first, second, third = write_set(tmp_path)
    spare = second.rename(tmp_path / "spare")
    third.rename(second)
    spare.rename(third)
    assert "does not say shard 2 of 3" in refused(first)


def test_a_shard_of_a_model_with_another_tensor_count(tmp_path: Path) -> None:
    first, second, _ = write_set(tmp_path / "a")
    other = write_set(tmp_path / "b", ([], moe_rows()[:4], moe_rows(3)[4:]))
    shutil.copy(other[1], second)
    assert f"{second.name} is a shard of another model" in refused(first)


def test_a_shard_of_a_model_with_the_same_tensor_count(tmp_path: Path) -> None:
    twice = write_set(tmp_path / "a", ([], moe_rows()[:4], moe_rows()[3:8]))
    assert "another model: tensor blk.0.ffn_up_exps.weight is in m-00002-of-00003.gguf too" in refused(twice[0])
    first, second, _ = write_set(tmp_path / "b")
    write(second, split_fields(1, 3, 9), GROUPS[1][:3])
    assert "hold 8 tensors, 9 were announced" in refused(first)


def test_a_shard_of_a_model_of_another_size_with_the_same_tensors(tmp_path: Path) -> None:
    def wider(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(128 if size == 64 else size for size in shape)

    groups: tuple[list[Row], ...] = ([], moe_rows()[:5], moe_rows()[5:])
    first, second, _ = write_set(tmp_path, groups)
    write(second, split_fields(1, 3, 9), [(name, kind, wider(shape)) for name, kind, shape in groups[1]])
    with pytest.raises(InputError, match="experts are 64 wide in block 1 and 128 in block 0: two models mixed up"):
        inspect_model(first)


def test_a_shard_that_names_another_architecture(tmp_path: Path) -> None:
    first, second, _ = write_set(tmp_path)
    write(second, split_fields(1, 3, 9) | {"general.architecture": "olmoe"}, GROUPS[1])
    assert "another model" in refused(first)


def test_a_shard_that_is_cut_short(tmp_path: Path) -> None:
    first, _, third = write_set(tmp_path)
    third.write_bytes(third.read_bytes()[:-100])
    assert third.name in refused(first)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"split.count": 3}, "split.no is None"),
        ({"split.count": 3, "split.no": 3}, "split.no is 3 of 3"),
        ({"split.count": "3", "split.no": 0}, "split.count is '3'"),
        ({"split.count": 0xFFFFFFFF, "split.no": 7}, "its name does not say so"),
    ],
)
def test_headers_that_contradict_themselves(tmp_path: Path, fields: dict[str, Value], words: str) -> None:
    path = write(tmp_path / "m-00001-of-00003.gguf", moe_fields() | fields, [("a", Q4_0, (32,))])
    assert words in refused(path)
