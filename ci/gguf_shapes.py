"""The tensor tables of published models, for make_gguf_corpus.py.

Names follow upstream's `src/models/*.cpp`; types fall back as `llama-quantize` does where 256 does not divide a row.
"""

from __future__ import annotations

from gguf import GGMLQuantizationType as Q

DEEPSEEK_V2_MORE_BITS = {1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26}  # blocks where Q4_K_M gives ffn_down more bits
NEMOTRON_PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"


class Table:
    """A tensor table in the making; shapes in ggml's order (row length first)."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Q, tuple[int, ...]]] = []

    def add(self, name: str, kind: Q, *shape: int) -> None:
        self.rows.append((name, kind, shape))

    def norms(self, prefix: str, width: int, *names: str) -> None:
        for name in names:
            self.add(f"{prefix}{name}.weight", Q.F32, width)

    def ends(self, d: int, vocab: int, *, tied: bool = False, kind: Q = Q.Q4_K, out: Q = Q.Q6_K) -> None:
        self.add("token_embd.weight", out if tied else kind, d, vocab)
        self.norms("", d, "output_norm")
        if not tied:
            self.add("output.weight", out, d, vocab)

    def attention(
        self, i: int, d: int, q: int, kv: int, *, kind: Q = Q.Q4_K, gate: int = 1, head_norm: int = 0
    ) -> None:
        self.norms(f"blk.{i}.", d, "attn_norm")
        for name, k, *shape in (
            ("q", kind, d, q * gate),
            ("k", kind, d, kv),
            ("v", kind, d, kv),
            ("output", kind, q, d),
        ):
            self.add(f"blk.{i}.attn_{name}.weight", k, *shape)
        if head_norm:
            self.norms(f"blk.{i}.", head_norm, "attn_q_norm", "attn_k_norm")

    def ffn(self, i: int, d: int, ff: int, up: Q, down: Q, *, suffix: str = "", n: int = 0, gate: bool = True) -> None:
        """Dense, shared (`_shexp`) or, with `n`, routed (`_exps`) matrices; routed ones bring their router."""
        more = (n,) if n else ()
        if n:
            self.add(f"blk.{i}.ffn_gate_inp.weight", Q.F32, d, n)
        for name in ("gate", "up") if gate else ("up",):
            self.add(f"blk.{i}.ffn_{name}{suffix}.weight", up, d, ff, *more)
        self.add(f"blk.{i}.ffn_down{suffix}.weight", down, ff, d, *more)


def qwen36(t: Table, *, trunk: int = 40, nextn: bool = True, merged: bool = False) -> None:
    d = 2048
    t.ends(d, 248320)
    for i in range(40 - trunk, 41 if nextn else 40):
        p = f"blk.{i}."
        if i == 40 or i % 4 == 3:
            t.attention(i, d, 4096, 512, gate=2, head_norm=256)
        else:
            t.norms(p, d, "attn_norm")
            t.norms(p, 128, "ssm_norm")
            for name, width in (("attn_qkv", 8192), ("attn_gate", 4096)):
                t.add(f"{p}{name}.weight", Q.Q4_K, d, width)
            t.add(p + "ssm_conv1d.weight", Q.F32, 4, 8192)
            for name in ("ssm_dt.bias", "ssm_a"):
                t.add(p + name, Q.F32, 32)
            for name in ("ssm_alpha", "ssm_beta"):
                t.add(f"{p}{name}.weight", Q.F32, d, 32)
            t.add(p + "ssm_out.weight", Q.Q4_K, 4096, d)
        t.norms(p, d, "post_attention_norm", "ffn_gate_inp_shexp")
        if merged:
            t.add(p + "ffn_gate_inp.weight", Q.F32, d, 256)
            t.add(p + "ffn_gate_up_exps.weight", Q.Q4_K, d, 1024, 256)
            t.add(p + "ffn_down_exps.weight", Q.Q6_K, 512, d, 256)
        else:
            t.ffn(i, d, 512, Q.Q4_K, Q.Q6_K, suffix="_exps", n=256)
        t.ffn(i, d, 512, Q.Q4_K, Q.Q6_K, suffix="_shexp")
    if nextn:
        t.add("blk.40.nextn.eh_proj.weight", Q.Q4_K, 2 * d, d)
        t.norms("blk.40.nextn.", d, "enorm", "hnorm", "shared_head_norm")


def qwen3(t: Table, *, nvfp4: bool = False) -> None:
    t.ends(2048, 151936)
    for i in range(48):
        t.attention(i, 2048, 4096, 512, head_norm=128)
        t.norms(f"blk.{i}.", 2048, "ffn_norm")
        t.ffn(i, 2048, 768, Q.NVFP4 if nvfp4 else Q.Q4_K, Q.NVFP4 if nvfp4 else Q.Q6_K, suffix="_exps", n=128)
        for name in ("gate", "up", "down") if nvfp4 else ():
            t.add(f"blk.{i}.ffn_{name}_exps.scale", Q.F32, 128)
            t.add(f"blk.{i}.ffn_{name}_exps.input_scale", Q.F32, 128)


def mla(t: Table, i: int, d: int, heads: int, q_rank: int) -> None:
    p = f"blk.{i}."
    t.norms(p, d, "attn_norm", "ffn_norm")
    if q_rank:
        t.add(p + "attn_q_a.weight", Q.Q4_K, d, q_rank)
        t.norms(p, q_rank, "attn_q_a_norm")
    t.add(p + ("attn_q_b.weight" if q_rank else "attn_q.weight"), Q.Q4_K, q_rank or d, heads * 192)
    t.add(p + "attn_kv_a_mqa.weight", Q.Q4_K, d, 576)
    t.norms(p, 512, "attn_kv_a_norm")
    t.add(p + "attn_k_b.weight", Q.Q8_0, 128, 512, heads)
    t.add(p + "attn_v_b.weight", Q.Q4_K, 512, 128, heads)
    t.add(p + "attn_output.weight", Q.Q4_K, heads * 128, d)


def deepseek_v2_lite(t: Table) -> None:
    t.ends(2048, 102400)
    for i in range(27):
        mla(t, i, 2048, 16, 0)
        if i == 0:
            t.ffn(i, 2048, 10944, Q.Q4_K, Q.Q8_0)
        else:
            down = Q.Q8_0 if i in DEEPSEEK_V2_MORE_BITS else Q.Q5_0
            t.ffn(i, 2048, 1408, Q.Q4_K, down, suffix="_exps", n=64)
            t.ffn(i, 2048, 2816, Q.Q4_K, Q.Q6_K, suffix="_shexp")


def deepseek_v3(t: Table) -> None:
    t.ends(7168, 129280)
    for i in range(61):
        mla(t, i, 7168, 128, 1536)
        if i < 3:
            t.ffn(i, 7168, 18432, Q.Q4_K, Q.Q6_K)
        else:
            t.ffn(i, 7168, 2048, Q.Q4_K, Q.Q6_K, suffix="_exps", n=256)
            t.add(f"blk.{i}.exp_probs_b.bias", Q.F32, 256)
            t.ffn(i, 7168, 2048, Q.Q4_K, Q.Q6_K, suffix="_shexp")


def glm45_air(t: Table) -> None:
    d = 4096
    t.ends(d, 151552)
    for i in range(47):
        t.attention(i, d, 12288, 1024)
        for name, width in (("q", 12288), ("k", 1024), ("v", 1024)):
            t.add(f"blk.{i}.attn_{name}.bias", Q.F32, width)
        t.norms(f"blk.{i}.", d, "post_attention_norm")
        if i == 0:
            t.ffn(i, d, 10944, Q.Q4_K, Q.Q8_0)
            continue
        up, down = (Q.Q8_0, Q.Q8_0) if i == 46 else (Q.Q4_K, Q.Q5_0)
        t.ffn(i, d, 1408, up, down, suffix="_exps", n=128)
        t.add(f"blk.{i}.exp_probs_b.bias", Q.F32, 128)
        t.ffn(i, d, 1408, up, down, suffix="_shexp")
    t.add("blk.46.nextn.eh_proj.weight", Q.Q8_0, 2 * d, d)
    t.norms("blk.46.nextn.", d, "enorm", "hnorm", "shared_head_norm")
    for name in ("embed_tokens", "shared_head_head"):
        t.add(f"blk.46.nextn.{name}.weight", Q.Q8_0, d, 151552)


def gpt_oss_20b(t: Table) -> None:
    t.ends(2880, 201088, kind=Q.Q8_0, out=Q.Q8_0)
    for i in range(24):
        t.attention(i, 2880, 4096, 512, kind=Q.Q8_0)
        for name, width in (("q", 4096), ("k", 512), ("v", 512), ("output", 2880)):
            t.add(f"blk.{i}.attn_{name}.bias", Q.F32, width)
        t.norms(f"blk.{i}.", 64, "attn_sinks")
        t.norms(f"blk.{i}.", 2880, "post_attention_norm")
        t.ffn(i, 2880, 2880, Q.MXFP4, Q.MXFP4, suffix="_exps", n=32)
        t.add(f"blk.{i}.ffn_gate_inp.bias", Q.F32, 32)
        for name in ("gate", "up", "down"):
            t.add(f"blk.{i}.ffn_{name}_exps.bias", Q.F32, 2880, 32)


def llama4_maverick(t: Table) -> None:
    t.ends(5120, 202048)
    for i in range(48):
        t.attention(i, 5120, 5120, 1024)
        t.norms(f"blk.{i}.", 5120, "ffn_norm")
        if i % 2 == 0:
            t.ffn(i, 5120, 16384, Q.Q4_K, Q.Q6_K)
        else:
            t.ffn(i, 5120, 8192, Q.Q4_K, Q.Q6_K, suffix="_exps", n=128)
            t.ffn(i, 5120, 8192, Q.Q4_K, Q.Q6_K, suffix="_shexp")


def olmoe(t: Table) -> None:
    t.ends(2048, 50304)
    for i in range(16):
        t.attention(i, 2048, 2048, 2048, head_norm=2048)
        t.norms(f"blk.{i}.", 2048, "ffn_norm")
        t.ffn(i, 2048, 1024, Q.Q4_K, Q.Q6_K, suffix="_exps", n=64)


def mamba2(t: Table, i: int, d: int, inner: int, groups: int, heads: int) -> None:
    p, conv = f"blk.{i}.", inner + 2 * groups * 128
    t.norms(p, d, "attn_norm")
    t.add(p + "ssm_in.weight", Q.Q8_0, d, inner + conv + heads)
    t.add(p + "ssm_conv1d.weight", Q.F32, 4, conv)
    t.add(p + "ssm_conv1d.bias", Q.F32, conv)
    t.add(p + "ssm_dt.bias", Q.F32, heads)
    for name in ("ssm_a", "ssm_d"):
        t.add(p + name, Q.F32, 1, heads)
    t.add(p + "ssm_norm.weight", Q.F32, inner // groups, groups)
    t.add(p + "ssm_out.weight", Q.Q8_0, inner, d)


def granite4_h_small(t: Table) -> None:
    t.ends(4096, 100352, tied=True)
    for i in range(40):
        if i in (5, 15, 25, 35):
            t.attention(i, 4096, 4096, 1024)
        else:
            mamba2(t, i, 4096, 8192, 1, 128)
        t.norms(f"blk.{i}.", 4096, "ffn_norm")
        t.ffn(i, 4096, 768, Q.Q4_K, Q.Q6_K, suffix="_exps", n=72)
        t.ffn(i, 4096, 1536, Q.Q4_K, Q.Q6_K, suffix="_shexp")


def nemotron3_nano(t: Table) -> None:
    d = 2688
    t.ends(d, 131072, kind=Q.Q5_0, out=Q.Q8_0)
    for i, letter in enumerate(NEMOTRON_PATTERN):
        if letter == "M":
            mamba2(t, i, d, 4096, 8, 64)
        elif letter == "*":
            t.attention(i, d, 4096, 256, kind=Q.Q5_0)
        else:
            t.norms(f"blk.{i}.", d, "attn_norm")
            t.ffn(i, d, 1856, Q.Q5_0, Q.Q8_0, suffix="_exps", n=128, gate=False)
            t.add(f"blk.{i}.exp_probs_b.bias", Q.F32, 128)
            t.ffn(i, d, 3712, Q.Q5_0, Q.Q8_0, suffix="_shexp", gate=False)


def mixtral_old(t: Table) -> None:
    """As converted before 2024-04: a tensor for each expert."""
    t.ends(4096, 32000, kind=Q.Q4_0)
    for i in range(32):
        t.attention(i, 4096, 4096, 1024, kind=Q.Q4_0)
        t.norms(f"blk.{i}.", 4096, "ffn_norm")
        t.add(f"blk.{i}.ffn_gate_inp.weight", Q.F32, 4096, 8)
        for e in range(8):
            for name, *shape in (("gate", 4096, 14336), ("down", 14336, 4096), ("up", 4096, 14336)):
                t.add(f"blk.{i}.ffn_{name}.{e}.weight", Q.Q4_0, *shape)


def llama32_1b(t: Table) -> None:
    t.ends(2048, 128256, tied=True)
    t.norms("", 32, "rope_freqs")
    for i in range(16):
        t.attention(i, 2048, 2048, 512)
        t.norms(f"blk.{i}.", 2048, "ffn_norm")
        t.ffn(i, 2048, 8192, Q.Q4_K, Q.Q6_K)
