"""Published models for make_gguf_corpus.py: header keys (from their config.json) and tensor tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ci import gguf_shapes as shapes

Value = int | float | list[int]


@dataclass(frozen=True)
class Model:
    """One model: `file` is the stem of its file name, `keys` go under the architecture's prefix."""

    file: str
    arch: str
    name: str
    file_type: int
    build: Callable[[shapes.Table], None]
    keys: Mapping[str, Value]
    vocab: int = 0  # tokens, and as many merges, of a made-up tokenizer
    shard_tensors: int = 0  # tensors a shard; the first shard then holds metadata only
    version: int = 3


def _keys(blocks: int, d: int, context: int, ff: Value, heads: int, kv: Value, head: int) -> dict[str, Value]:
    return {
        "block_count": blocks,
        "embedding_length": d,
        "context_length": context,
        "feed_forward_length": ff,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
    }


def _moe(n: int, used: int, ff: int = 0, shared_ff: int = 0, shared: int = 0, dense: int = 0) -> dict[str, Value]:
    found = {
        "expert_count": n,
        "expert_used_count": used,
        "expert_feed_forward_length": ff,
        "expert_shared_feed_forward_length": shared_ff,
        "expert_shared_count": shared,
        "leading_dense_block_count": dense,
    }
    return {key: value for key, value in found.items() if value}


def _ssm(inner: int, rank: int, groups: int) -> dict[str, Value]:
    return {
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.inner_size": inner,
        "ssm.time_step_rank": rank,
        "ssm.group_count": groups,
    }


def _mla(q_rank: int) -> dict[str, Value]:
    ranks: dict[str, Value] = {"attention.kv_lora_rank": 512, "rope.dimension_count": 64}
    ranks |= {"attention.key_length": 576, "attention.value_length": 512}
    ranks |= {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
    return ranks | ({"attention.q_lora_rank": q_rank} if q_rank else {})


_Q4_K_M, _Q4_0, _MXFP4, _NVFP4 = 15, 2, 38, 39
_QWEN36 = _keys(41, 2048, 262144, 512, 16, 2, 256) | _moe(256, 8, 512, 512) | _ssm(4096, 32, 16)
_QWEN36 |= {"nextn_predict_layers": 1, "full_attention_interval": 4, "rope.dimension_sections": [11, 11, 10, 0]}
_QWEN3 = _keys(48, 2048, 40960, 6144, 32, 4, 128) | _moe(128, 8, 768)
_GRANITE_KV: Value = [8 if i in (5, 15, 25, 35) else 0 for i in range(40)]
_NEMOTRON_KV: Value = [2 if letter == "*" else 0 for letter in shapes.NEMOTRON_PATTERN]
_NEMOTRON_FF: Value = [1856 if letter == "E" else 0 for letter in shapes.NEMOTRON_PATTERN]

MODELS = (
    Model("qwen3.6-35b-a3b", "qwen35moe", "Qwen3.6-35B-A3B", _Q4_K_M, shapes.qwen36, _QWEN36, vocab=248320),
    Model(
        "qwen3.6-35b-a3b-merged",
        "qwen35moe",
        "Qwen3.6-35B-A3B",
        _Q4_K_M,
        partial(shapes.qwen36, nextn=False, merged=True),
        {**{k: v for k, v in _QWEN36.items() if k != "nextn_predict_layers"}, "block_count": 40},
    ),
    Model(
        "mtp-qwen3.6-35b-a3b",
        "qwen35moe",
        "Qwen3.6-35B-A3B MTP",
        _Q4_K_M,
        partial(shapes.qwen36, trunk=0),
        _QWEN36,
    ),
    Model("qwen3-30b-a3b", "qwen3moe", "Qwen3-30B-A3B", _Q4_K_M, shapes.qwen3, _QWEN3),
    Model("qwen3-30b-a3b-nvfp4", "qwen3moe", "Qwen3-30B-A3B", _NVFP4, partial(shapes.qwen3, nvfp4=True), _QWEN3),
    Model(
        "deepseek-v2-lite",
        "deepseek2",
        "DeepSeek-V2-Lite",
        _Q4_K_M,
        shapes.deepseek_v2_lite,
        _keys(27, 2048, 163840, 10944, 16, 1, 0) | _moe(64, 6, 1408, 0, 2, 1) | _mla(0),
    ),
    Model(
        "deepseek-v3",
        "deepseek2",
        "DeepSeek-V3",
        _Q4_K_M,
        shapes.deepseek_v3,
        _keys(61, 7168, 163840, 18432, 128, 1, 0) | _moe(256, 8, 2048, 0, 1, 3) | _mla(1536),
        shard_tensors=256,
    ),
    Model(
        "glm-4.5-air",
        "glm4moe",
        "GLM-4.5-Air",
        _Q4_K_M,
        shapes.glm45_air,
        _keys(47, 4096, 131072, 10944, 96, 8, 128) | _moe(128, 8, 1408, 0, 1, 1) | {"nextn_predict_layers": 1},
    ),
    Model(
        "gpt-oss-20b",
        "gpt-oss",
        "gpt-oss-20b",
        _MXFP4,
        shapes.gpt_oss_20b,
        _keys(24, 2880, 131072, 2880, 64, 8, 64) | _moe(32, 4, 2880) | {"attention.sliding_window": 128},
    ),
    Model(
        "llama-4-maverick",
        "llama4",
        "Llama-4-Maverick-17B-128E",
        _Q4_K_M,
        shapes.llama4_maverick,
        _keys(48, 5120, 1048576, 16384, 40, 8, 128) | _moe(128, 1, 8192) | {"interleave_moe_layer_step": 2},
    ),
    Model(
        "olmoe-1b-7b",
        "olmoe",
        "OLMoE-1B-7B",
        _Q4_K_M,
        shapes.olmoe,
        _keys(16, 2048, 4096, 1024, 16, 16, 128) | _moe(64, 8),
    ),
    Model(
        "granite-4.0-h-small",
        "granitehybrid",
        "Granite-4.0-H-Small",
        _Q4_K_M,
        shapes.granite4_h_small,
        _keys(40, 4096, 131072, 768, 32, _GRANITE_KV, 128) | _moe(72, 10, 0, 1536) | _ssm(8192, 128, 1),
    ),
    Model(
        "nemotron-3-nano-30b-a3b",
        "nemotron_h_moe",
        "Nemotron-3-Nano-30B-A3B",
        _Q4_K_M,
        shapes.nemotron3_nano,
        _keys(52, 2688, 262144, _NEMOTRON_FF, 32, _NEMOTRON_KV, 128)
        | _moe(128, 6, 1856, 3712, 1)
        | _ssm(4096, 64, 8)
        | {"attention.layer_norm_epsilon": 1e-5},
    ),
    Model(
        "mixtral-8x7b-old",
        "llama",
        "Mixtral-8x7B-v0.1",
        _Q4_0,
        shapes.mixtral_old,
        _keys(32, 4096, 32768, 14336, 32, 8, 128) | _moe(8, 2),
        version=2,
    ),
    Model(
        "llama-3.2-1b",
        "llama",
        "Llama-3.2-1B",
        _Q4_K_M,
        shapes.llama32_1b,
        _keys(16, 2048, 131072, 8192, 32, 8, 64),
    ),
)
