"""The header parser: what it reads, and that no file can make it hang, crash or eat memory."""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from gguf_bytes import ARRAY, F32, Q4_0, Raw, header, moe_fields, moe_rows, strings, text, write

from nanite_tools.errors import InputError
from nanite_tools.gguf_header import GgufHeader, read_header
from nanite_tools.paths import find_layout


def refused(path: Path) -> str:
    """The message of the InputError; one line, with a hint."""
    with pytest.raises(InputError) as caught:
        read_header(path)
    error = caught.value
    assert error.exit_code == 3
    assert error.hint
    assert "\n" not in error.message + error.hint
    return error.message


def blob(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "blob.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_reads_fields_and_table(tmp_path: Path, version: int) -> None:
    fields = moe_fields(a__list=[7, -1, 3], a__long=list(range(5000)), a__words=strings(2, text("x") + text("yz")))
    found = read_header(write(tmp_path / "m.gguf", fields, moe_rows(), version=version))
    assert found.version == version
    assert found.fields["general.name"] == "two blocks"
    assert found.fields["qwen3moe.expert_count"] == 4
    assert found.fields["a.list"] == (7, -1, 3)
    assert "a.long" not in found.fields
    assert "a.words" not in found.fields
    assert [t.name for t in found.tensors] == [row[0] for row in moe_rows()]
    gate = found.tensors[2]
    # 64·32·4 elements, 32 a block, 18 bytes a block; before it 100 rows of 36 bytes, padded to 3616, and 64·4 bytes.
    assert (gate.shape, gate.type_name, gate.n_bytes) == ((64, 32, 4), "Q4_0", 4608)
    assert gate.offset_bytes - found.data_offset_bytes == 3616 + 256
    assert gate.shape4 == (64, 32, 4, 1)


def test_agrees_with_the_reference_reader() -> None:
    from gguf import GGUFReader

    path = find_layout().embedded_model
    ours, theirs = read_header(path), GGUFReader(path)
    assert [(t.name, t.shape, t.type_id, t.n_bytes, t.offset_bytes) for t in ours.tensors] == [
        (t.name, tuple(map(int, t.shape)), int(t.tensor_type), int(t.n_bytes), int(t.data_offset))
        for t in theirs.tensors
    ]
    assert ours.fields["qwen35moe.rope.freq_base"] == theirs.fields["qwen35moe.rope.freq_base"].contents()
    assert ours.fields["tokenizer.chat_template"] == theirs.fields["tokenizer.chat_template"].contents()


def test_every_cut_is_refused_with_one_line(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf", moe_fields(a__words=strings(3, text("x") * 3)), moe_rows())
    data = whole.read_bytes()
    # The last tensor's 4608 bytes need no padding, so every byte counts.
    assert isinstance(read_header(whole), GgufHeader)
    head = len(header(moe_fields(a__words=strings(3, text("x") * 3)), moe_rows()))
    cuts = {*range(head + 40), *random.Random(1).sample(range(head, len(data)), 60), len(data) - 1}
    for cut in sorted(cuts):
        message = refused(blob(tmp_path, data[:cut]))
        assert "ends" in message or "empty" in message or "more than fit" in message, (cut, message)


def test_every_flipped_byte_gives_a_header_or_an_input_error(tmp_path: Path) -> None:
    fields, rows = moe_fields(a__list=[1, 2], a__words=strings(1, text("x"))), moe_rows(1)
    whole = write(tmp_path / "whole.gguf", fields, rows).read_bytes()
    path = tmp_path / "flipped.gguf"
    for at in range(len(header(fields, rows))):
        for value in (0x00, 0x7F, 0xFF):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                read_header(path)
            except InputError as error:
                assert "\n" not in error.message


def test_hostile_lengths_cost_no_memory_and_no_time(tmp_path: Path) -> None:
    start = b"GGUF" + struct.pack("<I", 3)
    one_key = start + struct.pack("<QQ", 0, 1)
    huge = (1 << 62, 1 << 63, (1 << 64) - 1)
    cases = [start + struct.pack("<QQ", n, 0) for n in (1 << 17, 1 << 40, *huge)]
    cases += [start + struct.pack("<QQ", 0, n) for n in (1 << 16, 1 << 40, *huge)]
    cases += [one_key + struct.pack("<Q", n) for n in (1 << 16, *huge)]
    cases += [one_key + text("k") + struct.pack("<IQ", 8, n) for n in (1 << 40, *huge)]
    cases += [
        one_key + text("k") + struct.pack("<IIQ", ARRAY, kind, n) for kind in (0, 8, 10) for n in (1 << 40, *huge)
    ]
    tracemalloc.start()
    for case in cases:
        path = blob(tmp_path, case)
        os.truncate(path, 1 << 30)  # a sparse gigabyte behind it: only the announced length can refuse it
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        begin = time.monotonic()
        refused(path)
        assert time.monotonic() - begin < 2
        assert tracemalloc.get_traced_memory()[1] - before < 8 << 20
    tracemalloc.stop()


def test_a_vocabulary_of_empty_strings_in_a_sparse_file_is_bounded(tmp_path: Path) -> None:
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, 8, 1 << 31)
    path = blob(tmp_path, data)
    os.truncate(path, 1 << 36)
    begin = time.monotonic()
    assert "strings" in refused(path)
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"G", "ends inside"),
        (b"hello, I am a text file\n", "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<III", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4"),
        (b"GGUF" + struct.pack("<IQQ", 0, 0, 0), "version 0"),
    ],
)
def test_what_is_no_gguf(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refused(blob(tmp_path, data))


@pytest.mark.parametrize(
    ("fields", "rows", "words"),
    [
        ({"general.alignment": 0}, [], "general.alignment is 0"),
        ({"general.alignment": 24}, [], "general.alignment is 24"),
        ({"general.alignment": "32"}, [], "general.alignment is '32'"),
        ({"k": Raw(struct.pack("<I", 13))}, [], "unknown value type 13"),
        ({"k": Raw(struct.pack("<IIQ", ARRAY, ARRAY, 0))}, [], "unknown value type 9"),
        ({"": 1}, [], "empty"),
        ({}, [("a", F32, (8,)), ("a", F32, (8,))], "a appears twice"),
        ({}, [("a" * 64, F32, (8,))], "64 bytes"),
        ({}, [("a", 4, (8,))], "unknown quantisation type 4"),
        ({}, [("a", 999, (8,))], "unknown quantisation type 999"),
        ({}, [("a", Q4_0, (33,))], "impossible shape"),
        ({}, [("a", F32, (1, 1, 1, 1, 1))], "5 dimensions"),
        ({}, [("a", F32, (1 << 32, 1 << 32))], "impossible shape"),
        ({}, [("a", F32, (1 << 40,))], "ends at"),
    ],
)
def test_contradictions(
    tmp_path: Path, fields: dict[str, object], rows: list[tuple[str, int, tuple[int, ...]]], words: str
) -> None:
    head = header(fields, rows)  # type: ignore[arg-type]
    assert words in refused(blob(tmp_path, head + bytes(256)))


def test_a_repeated_key(tmp_path: Path) -> None:
    pair = text("k") + struct.pack("<II", 4, 1)
    assert "k appears twice" in refused(blob(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pair * 2))


def test_a_gap_between_tensors(tmp_path: Path) -> None:
    head = header({}, [("a", F32, (8,)), ("b", F32, (8,))], offsets=(0, 64))
    assert "starts at byte 64 of the weights, 32 was due" in refused(blob(tmp_path, head + bytes(256)))


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    message = refused(blob(tmp_path, header({}, [("\x1b[31m\n", F32, (8,))] * 2) + bytes(256)))
    assert "\x1b" not in message
    assert "\\x1b[31m\\n" in message


def test_a_newer_type_than_the_gguf_package_knows(tmp_path: Path) -> None:
    # Q2_0: 64 elements in 18 bytes (block_q2_0 in upstream's ggml-common.h).
    head = header({}, [("a", 42, (128, 3))])
    found = read_header(blob(tmp_path, head + bytes(-len(head) % 32) + bytes(108)))
    assert (found.tensors[0].type_name, found.tensors[0].n_bytes) == ("Q2_0", 108)


def test_a_long_text_value_is_stepped_over(tmp_path: Path) -> None:
    found = read_header(write(tmp_path / "m.gguf", moe_fields(a__template="x" * 70000, b__after=5), moe_rows()))
    assert "a.template" not in found.fields
    assert found.fields["b.after"] == 5


def test_a_header_longer_than_the_window(tmp_path: Path) -> None:
    words = strings(120_000, text("a token of the vocabulary") * 120_000)  # 4 MB
    found = read_header(write(tmp_path / "m.gguf", moe_fields(a__words=words, b__after=5), moe_rows()))
    assert found.fields["b.after"] == 5
    assert len(found.tensors) == 9


@pytest.mark.parametrize("name", ["absent.gguf", "absent/absent.gguf", "x" * 300, "nul\0byte"])
def test_paths_that_name_no_file(tmp_path: Path, name: str) -> None:
    refused(tmp_path / name)


def test_directory_fifo_and_device(tmp_path: Path) -> None:
    assert "directory" in refused(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        assert "not a regular file" in refused(tmp_path / "pipe.gguf")
        assert "not a regular file" in refused(Path("/dev/zero"))


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = blob(tmp_path, b"GGUF")

    def deny(self: Path, *args: object, **kwargs: object) -> object:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", deny)
    assert "no permission" in refused(path)


def test_a_disk_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = blob(tmp_path, b"GGUF")

    def fail(self: Path, *args: object, **kwargs: object) -> object:
        raise OSError(5, "Input/output error", str(self))

    monkeypatch.setattr(Path, "open", fail)
    assert "Input/output error" in refused(path)
