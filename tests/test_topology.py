"""Topologies of published models' shapes. Expected numbers come from the models' configurations, worked out by hand.

Bytes of a matrix are rows times columns, divided by the elements of a block, times the bytes of a block:
Q4_K 256 → 144, Q6_K 256 → 210, Q5_0 32 → 22, Q8_0 32 → 34, Q4_0 32 → 18, MXFP4 32 → 17, NVFP4 64 → 36, F32 1 → 4.
"""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_bytes import F32, Q4_0, Q8_0, Row, Value, moe_fields, moe_rows, write

from ci.gguf_models import MODELS
from ci.make_gguf_corpus import write_model
from nanite_tools.errors import InputError
from nanite_tools.gguf_header import read_header
from nanite_tools.paths import find_layout
from nanite_tools.topology import Topology, fingerprint, inspect_model

KEYS = """
schema path files arch name file_type n_blocks n_layers n_nextn_layers routed_layers n_experts n_experts_used
n_shared_experts n_ff_exp n_embd n_ctx_train expert_bytes routed_bytes nextn_bytes other_bytes total_bytes
tiles_per_expert quant fingerprint
"""
NEMOTRON_E = [1, 3, 6, 8, 10, 13, 15, 17, 20, 22, 24, 27, 29, 31, 34, 36, 38, 40, 43, 45, 47, 49, 51]
V2_MORE_BITS = [1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26]
V2_FEWER_BITS = [3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19, 21, 22]

# (blocks, nextn, routed layers, experts, used, shared, expert width, n_embd, context), {bytes: layers}, {tiles: layers}
Expected = tuple[tuple[int, int, list[int], int, int, int, int, int, int], dict[int, list[int]], dict[int, list[int]]]
EXPECTED: dict[str, Expected] = {
    # gate, up: 2048·512/256·144 = 589824 (2.25 tiles → 3); down: 2048·512/256·210 = 860160 (3.28 → 4).
    "qwen3.6-35b-a3b": (
        (41, 1, list(range(40)), 256, 8, 1, 512, 2048, 262144),
        {2_039_808: list(range(40))},
        {10: list(range(40))},
    ),
    # gate_up: 2048·1024/256·144 = 1179648 (4.5 → 5); down as above.
    "qwen3.6-35b-a3b-merged": (
        (40, 0, list(range(40)), 256, 8, 1, 512, 2048, 262144),
        {2_039_808: list(range(40))},
        {9: list(range(40))},
    ),
    "mtp-qwen3.6-35b-a3b": ((41, 1, [], 256, 8, 1, 512, 2048, 262144), {}, {}),
    # gate, up: 2048·768/256·144 = 884736 (3.375 → 4); down: 2048·768/256·210 = 1290240 (4.92 → 5).
    "qwen3-30b-a3b": (
        (48, 0, list(range(48)), 128, 8, 0, 768, 2048, 40960),
        {3_059_712: list(range(48))},
        {13: list(range(48))},
    ),
    # 3 matrices of 2048·768/64·36 = 884736 (→ 4 tiles), each with two scales of 4 bytes (→ 1 tile each).
    "qwen3-30b-a3b-nvfp4": (
        (48, 0, list(range(48)), 128, 8, 0, 768, 2048, 40960),
        {3 * 884_736 + 6 * 4: list(range(48))},
        {3 * 4 + 6: list(range(48))},
    ),
    # gate, up: 2048·1408/256·144 = 1622016 (6.19 → 7); down in Q5_0: 2048·1408/32·22 = 1982464 (7.56 → 8),
    # in Q8_0: 2048·1408/32·34 = 3063808 (11.69 → 12). Block 0 is dense.
    "deepseek-v2-lite": (
        (27, 0, list(range(1, 27)), 64, 6, 2, 1408, 2048, 163840),
        {5_226_496: V2_FEWER_BITS, 6_307_840: V2_MORE_BITS},
        {22: V2_FEWER_BITS, 26: V2_MORE_BITS},
    ),
    # gate, up: 7168·2048/256·144 = 8257536 (31.5 → 32); down: 7168·2048/256·210 = 12042240 (45.94 → 46).
    "deepseek-v3": (
        (61, 0, list(range(3, 61)), 256, 8, 1, 2048, 7168, 163840),
        {28_557_312: list(range(3, 61))},
        {110: list(range(3, 61))},
    ),
    # gate, up: 4096·1408/256·144 = 3244032 (12.4 → 13); down: 4096·1408/32·22 = 3964928 (15.1 → 16).
    "glm-4.5-air": (
        (47, 1, list(range(1, 46)), 128, 8, 1, 1408, 4096, 131072),
        {10_452_992: list(range(1, 46))},
        {42: list(range(1, 46))},
    ),
    # 3 matrices of 2880·2880/32·17 = 4406400 (16.8 → 17), each with a bias of 2880·4 = 11520 (→ 1).
    "gpt-oss-20b": (
        (24, 0, list(range(24)), 32, 4, 0, 2880, 2880, 131072),
        {13_253_760: list(range(24))},
        {54: list(range(24))},
    ),
    # gate, up: 5120·8192/256·144 = 23592960 (exactly 90); down: 5120·8192/256·210 = 34406400 (131.25 → 132).
    "llama-4-maverick": (
        (48, 0, list(range(1, 48, 2)), 128, 1, 1, 8192, 5120, 1048576),
        {81_592_320: list(range(1, 48, 2))},
        {312: list(range(1, 48, 2))},
    ),
    # gate, up: 2048·1024/256·144 = 1179648 (4.5 → 5); down: 2048·1024/256·210 = 1720320 (6.56 → 7).
    "olmoe-1b-7b": (
        (16, 0, list(range(16)), 64, 8, 0, 1024, 2048, 4096),
        {4_079_616: list(range(16))},
        {17: list(range(16))},
    ),
    # gate, up: 4096·768/256·144 = 1769472 (6.75 → 7); down: 4096·768/256·210 = 2580480 (9.84 → 10).
    "granite-4.0-h-small": (
        (40, 0, list(range(40)), 72, 10, 1, 768, 4096, 131072),
        {6_119_424: list(range(40))},
        {24: list(range(40))},
    ),
    # No gate. up: 2688·1856/32·22 = 3429888 (13.1 → 14); down: 2688·1856/32·34 = 5300736 (20.2 → 21).
    "nemotron-3-nano-30b-a3b": (
        (52, 0, NEMOTRON_E, 128, 6, 1, 1856, 2688, 262144),
        {8_730_624: NEMOTRON_E},
        {35: NEMOTRON_E},
    ),
    # 3 matrices of 4096·14336/32·18 = 33030144 (exactly 126).
    "mixtral-8x7b-old": (
        (32, 0, list(range(32)), 8, 2, 0, 14336, 4096, 32768),
        {99_090_432: list(range(32))},
        {378: list(range(32))},
    ),
    "llama-3.2-1b": ((16, 0, [], 0, 0, 0, 0, 2048, 131072), {}, {}),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("corpus")
    return {model.file: write_model(model, folder)[0] for model in MODELS}


def by_layer(groups: dict[int, list[int]]) -> dict[int, int]:
    return {layer: value for value, layers in groups.items() for layer in layers}


def test_every_model_of_the_corpus_is_expected() -> None:
    assert {model.file for model in MODELS} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_published_models(corpus: dict[str, Path], name: str) -> None:
    numbers, sizes, tiles = EXPECTED[name]
    t = inspect_model(corpus[name])
    assert (
        t.n_blocks,
        t.n_nextn_layers,
        list(t.routed_layers),
        t.n_experts,
        t.n_experts_used,
        t.n_shared_experts,
        t.n_ff_exp,
        t.n_embd,
        t.n_ctx_train,
    ) == numbers
    assert t.n_layers == numbers[0] - numbers[1]
    assert t.expert_bytes == by_layer(sizes)
    assert t.tiles_per_expert == by_layer(tiles)
    assert t.routed_bytes == sum(size * len(layers) * numbers[3] for size, layers in sizes.items())
    assert t.routed_bytes_per_token == sum(size * len(layers) * numbers[4] for size, layers in sizes.items())
    assert t.total_bytes == t.routed_bytes + t.nextn_bytes + t.other_bytes
    assert (t.nextn_bytes > 0) == (numbers[1] > 0)
    # All tensors of the corpus but a few small ones fill whole 32-byte units: the files' sizes are the total.
    files = [Path(file) for file in t.files]
    headers = sum(read_header(file).data_offset_bytes for file in files)
    assert 0 <= sum(file.stat().st_size for file in files) - headers - t.total_bytes < 64 * 1024


def test_nextn_bytes_of_qwen36(corpus: dict[str, Path]) -> None:
    experts = 256 * 2_039_808
    shared = 2_039_808 + 2048 * 4  # one expert's shape, and its gate
    router = 2048 * 256 * 4
    attention = 2048 * (8192 + 512 + 512 + 4096) // 256 * 144 + 2 * 256 * 4
    head = 4096 * 2048 // 256 * 144 + 3 * 2048 * 4
    norms = 2 * 2048 * 4
    for name in ("qwen3.6-35b-a3b", "mtp-qwen3.6-35b-a3b"):
        assert inspect_model(corpus[name]).nextn_bytes == experts + shared + router + attention + head + norms


def test_nextn_bytes_of_glm(corpus: dict[str, Path]) -> None:
    experts = 129 * 3 * 4096 * 1408 // 32 * 34  # 128 and the shared one
    router = (4096 + 1) * 128 * 4
    attention = 4096 * (12288 + 1024 + 1024 + 12288) // 256 * 144 + (12288 + 1024 + 1024) * 4
    head = (2 * 4096 * 4096 + 2 * 4096 * 151552) // 32 * 34 + 3 * 4096 * 4  # eh_proj, own embeddings, own output
    assert inspect_model(corpus["glm-4.5-air"]).nextn_bytes == experts + router + attention + head + 2 * 4096 * 4


def test_other_bytes_of_olmoe(corpus: dict[str, Path]) -> None:
    ends = 2048 * 50304 // 256 * (144 + 210) + 2048 * 4
    block = 4 * 2048 * 2048 // 256 * 144 + 2048 * 64 * 4 + 4 * 2048 * 4  # q k v o, router, two norms and two head norms
    t = inspect_model(corpus["olmoe-1b-7b"])
    assert (t.nextn_bytes, t.other_bytes) == (0, ends + 16 * block)


def test_quant(corpus: dict[str, Path]) -> None:
    v2 = inspect_model(corpus["deepseek-v2-lite"]).quant
    # 12·3063808 bytes of Q8_0 against 14·1982464 of Q5_0: Q8_0 comes first.
    assert v2["ffn_down_exps"] == "Q8_0+Q5_0"
    assert (v2["ffn_gate_exps"], v2["ffn_gate_inp"], v2["attn_k_b"], v2["output"]) == ("Q4_K", "F32", "Q8_0", "Q6_K")
    glm = inspect_model(corpus["glm-4.5-air"]).quant
    assert (glm["ffn_down_exps"], glm["nextn.ffn_down_exps"], glm["nextn.eh_proj"]) == ("Q5_0", "Q8_0", "Q8_0")
    oss = inspect_model(corpus["gpt-oss-20b"]).quant
    assert (oss["ffn_up_exps"], oss["ffn_up_exps.bias"]) == ("MXFP4", "F32")
    old = inspect_model(corpus["mixtral-8x7b-old"]).quant
    assert {role for role in old if "ffn" in role} == {
        "ffn_norm",
        "ffn_gate_inp",
        "ffn_gate_exps",
        "ffn_up_exps",
        "ffn_down_exps",
    }


def test_notes(corpus: dict[str, Path]) -> None:
    assert "old layout" in inspect_model(corpus["mixtral-8x7b-old"]).notes[0]
    assert "draft head" in inspect_model(corpus["mtp-qwen3.6-35b-a3b"]).notes[0]
    assert inspect_model(corpus["qwen3.6-35b-a3b"]).notes == ()


def test_a_23_gb_file_takes_under_a_second_and_reads_no_weights(corpus: dict[str, Path]) -> None:
    path = corpus["qwen3.6-35b-a3b"]
    assert path.stat().st_size > 23e9
    before = _bytes_read()
    cpu, wall = time.process_time(), time.monotonic()
    inspect_model(path)
    assert time.process_time() - cpu < 1
    assert time.monotonic() - wall < 5  # a busy machine; the CPU time above is the bar
    assert _bytes_read() - before < 32 << 20


def _bytes_read() -> int:
    if not sys.platform.startswith("linux"):
        return 0
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def test_embedded_model() -> None:
    path = find_layout().embedded_model
    t = inspect_model(path)
    # One matrix: 256·64/32·18 = 9216 bytes, one expert 27648; 64 experts in 8 blocks.
    block_of_mtp = (
        64 * 27648  # experts
        + 27648 + 256 * 4  # shared expert and its gate
        + 256 * 64 * 4  # router
        + 256 * (512 + 128 + 128 + 256) // 32 * 18 + 2 * 64 * 4  # q (with its gate), k, v, output, head norms
        + 512 * 256 // 32 * 18 + 3 * 256 * 4  # eh_proj, enorm, hnorm, shared_head_norm
        + 2 * 256 * 4
    )  # fmt: skip
    other_of_blocks = 8 * (27648 + 256 * 4 + 256 * 64 * 4 + 2 * 256 * 4)
    attention = 2 * (256 * (512 + 128 + 128 + 256) // 32 * 18 + 2 * 64 * 4)
    # qkv 512, gate 256, out 256, alpha and beta 4 each; conv 4·512, dt and a 4 each, norm 64 in F32
    delta_net = 6 * (256 * (512 + 256 + 256 + 4 + 4) // 32 * 18 + (4 * 512 + 4 + 4 + 64) * 4)
    ends = 256 * 4096 // 256 * 210 + 256 * 4
    other = other_of_blocks + attention + delta_net + ends
    assert t == replace(
        t,
        path=str(path),
        files=(str(path),),
        arch="qwen35moe",
        name="tiny-moe-mtp",
        file_type="Q4_0",
        n_blocks=9,
        n_layers=8,
        n_nextn_layers=1,
        routed_layers=(0, 1, 2, 3, 4, 5, 6, 7),
        n_experts=64,
        n_experts_used=8,
        n_shared_experts=1,
        n_ff_exp=64,
        n_embd=256,
        n_ctx_train=4096,
        expert_bytes=dict.fromkeys(range(8), 27648),
        tiles_per_expert=dict.fromkeys(range(8), 3),
        routed_bytes=8 * 64 * 27648,
        nextn_bytes=block_of_mtp,
        other_bytes=other,
        total_bytes=8 * 64 * 27648 + block_of_mtp + other,
        notes=(),
    )
    assert (t.quant["ffn_down_exps"], t.quant["token_embd"]) == ("Q4_0", "Q6_K")


def test_fingerprint_of_the_embedded_model_by_the_reference_reader() -> None:
    from gguf import GGUFReader

    path = find_layout().embedded_model
    lines = ["qwen35moe\n"]
    for tensor in sorted(GGUFReader(path).tensors, key=lambda t: str(t.name)):
        shape = [int(n) for n in tensor.shape] + [1] * (4 - len(tensor.shape))
        lines.append(f"{tensor.name}\t{shape[0]},{shape[1]},{shape[2]},{shape[3]}\t{int(tensor.tensor_type)}\n")
    assert inspect_model(path).fingerprint == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_json_keys_and_plain_values() -> None:
    document = inspect_model(find_layout().embedded_model).to_json()
    assert list(document) == KEYS.split()
    assert document["schema"] == 1
    assert document["routed_layers"] == list(range(8))
    assert document["expert_bytes"] == {str(i): 27648 for i in range(8)}


def small(tmp_path: Path, rows: list[Row] | None = None, **changes: Value) -> Topology:
    return inspect_model(write(tmp_path / "small.gguf", moe_fields(**changes), moe_rows() if rows is None else rows))


def refused(tmp_path: Path, rows: list[Row] | None = None, **changes: Value) -> str:
    with pytest.raises(InputError) as caught:
        small(tmp_path, rows, **changes)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value.message


def test_fingerprint_covers_names_shapes_types_and_architecture_only(tmp_path: Path) -> None:
    rows = [("b", F32, (8, 1)), ("a", Q4_0, (32, 2))]
    known = hashlib.sha256(b"olmoe\na\t32,2,1,1\t2\nb\t8,1,1,1\t0\n").hexdigest()
    tensors = read_header(write(tmp_path / "m.gguf", {}, rows)).tensors
    assert fingerprint("olmoe", tensors) == known
    assert fingerprint("olmoe", tensors[::-1]) == known
    assert fingerprint("olmo", tensors) != known
    for changed in ([("c", F32, (8,)), rows[1]], [("b", F32, (9,)), rows[1]], [rows[0], ("a", Q8_0, (32, 2))]):
        assert fingerprint("olmoe", read_header(write(tmp_path / "m.gguf", {}, changed)).tensors) != known


def test_experts_used_by_block(tmp_path: Path) -> None:
    t = small(tmp_path, qwen3moe__expert_used_count=[1, 3])
    assert (t.n_experts_used, t.used_by_layer) == (3, {0: 1, 1: 3})
    assert t.routed_bytes_per_token == (1 + 3) * 3456
    assert "1 to 3" in t.notes[0]


def test_a_scale_for_all_experts_is_no_part_of_one(tmp_path: Path) -> None:
    t = small(tmp_path, [*moe_rows(), ("blk.0.ffn_up_exps.scale", F32, (1,)), ("blk.1.ffn_up_exps.scale", F32, (4,))])
    assert t.expert_bytes == {0: 3456, 1: 3460}
    assert t.tiles_per_expert == {0: 3, 1: 4}


def test_one_tensor_an_expert_of_unequal_types(tmp_path: Path) -> None:
    rows: list[Row] = [
        (f"blk.0.ffn_{name}.{e}.weight", Q8_0 if e == 1 else Q4_0, (64, 32) if name != "down" else (32, 64))
        for name in ("gate", "up", "down")
        for e in range(4)
    ]
    t = small(tmp_path, rows, qwen3moe__block_count=1)
    # 3 matrices of 64·32/32 blocks: 18 or 34 bytes a block.
    assert t.expert_bytes == {0: 3 * 64 * 34}
    assert t.routed_bytes == 3 * 64 * (3 * 18 + 34)
    assert t.quant["ffn_gate_exps"] == "Q4_0+Q8_0"


@pytest.mark.parametrize(
    ("value", "name"), [(15, "Q4_K_M"), (1, "F16"), (0, "F32"), (1024 + 7, "Q8_0"), (77, "type 77")]
)
def test_file_type_names(tmp_path: Path, value: int, name: str) -> None:
    assert small(tmp_path, general__file_type=value).file_type == name


def test_names_that_are_absent_or_no_text(tmp_path: Path) -> None:
    t = small(tmp_path, general__file_type="Q4", general__name=5)
    assert (t.file_type, t.name) == (None, None)


def test_one_announced_expert_and_none_in_the_file_is_dense(tmp_path: Path) -> None:
    rows: list[Row] = [("token_embd.weight", Q4_0, (64, 100)), ("blk.0.ffn_gate.weight", Q4_0, (64, 32))]
    t = small(tmp_path, rows, qwen3moe__expert_count=1)
    assert (t.n_experts, t.n_experts_used, t.routed_layers, t.notes) == (0, 0, (), ())


def swap(old: str, *new: Row) -> list[Row]:
    return [row for row in moe_rows() if row[0] != old] + list(new)


GATE = "blk.1.ffn_gate_exps.weight"
DOWN = "blk.1.ffn_down_exps.weight"


@pytest.mark.parametrize(
    ("rows", "changes", "words"),
    [
        (swap(GATE, (GATE, Q4_0, (64, 32, 5))), {}, "ffn_gate_exps.weight holds 5 experts, the header announces 4"),
        (swap(GATE, (GATE, Q4_0, (64, 32))), {}, "holds 1 experts"),
        (swap(GATE, (GATE, Q4_0, (64, 32, 4, 2))), {}, "four dimensions"),
        (swap(GATE, (GATE, Q4_0, (64, 16, 4))), {}, "matrices of (64, 16), (64, 32) would fit the others"),
        (swap(DOWN, (DOWN, Q4_0, (64, 32, 4))), {}, "would fit the others"),
        (swap(DOWN), {}, "the experts of block 1 lack a matrix"),
        ([*moe_rows(), ("blk.1.ffn_up_exps.bias", F32, (32, 3))], {}, "holds 3 experts"),
        (None, {"qwen3moe__expert_count": 8}, "holds 4 experts, the header announces 8"),
        (None, {"qwen3moe__expert_count": 0}, "holds 4 experts, the header announces 0"),
        (None, {"qwen3moe__expert_count": 0xFFFFFFFF}, "announces 4294967295 experts"),
        (None, {"qwen3moe__expert_used_count": 5}, "expert_used_count"),
        (None, {"qwen3moe__expert_used_count": 0}, "expert_used_count"),
        (None, {"qwen3moe__expert_used_count": [2, 2, 2]}, "expert_used_count"),
        (None, {"qwen3moe__expert_used_count": "2"}, "expert_used_count"),
        (None, {"qwen3moe__block_count": 1}, "block 1 holds experts, but the header counts 1 blocks"),
        (None, {"qwen3moe__block_count": 0}, "0 nextn blocks of 0 blocks"),
        (None, {"qwen3moe__block_count": [1, 2]}, "block_count is (1, 2), not a count"),
        (None, {"qwen3moe__nextn_predict_layers": 3}, "3 nextn blocks of 2"),
        ([*moe_rows(), ("blk.1.nextn.eh_proj.weight", F32, (8,))], {}, "block 1 is a nextn (MTP) block"),
        (None, {"general__architecture": "clip"}, "no clip.block_count"),
        (None, {"general__architecture": 3}, "names no architecture"),
        ([("blk.0.ffn_up.0.weight", Q4_0, (64, 32)), ("blk.0.ffn_down.0.weight", Q4_0, (32, 64))], {}, "1 experts in"),
    ],
)  # fmt: skip
def test_contradictions(tmp_path: Path, rows: list[Row] | None, changes: dict[str, Value], words: str) -> None:
    assert words in refused(tmp_path, rows, **changes)
