#pragma once

// A two-layer MoE graph in the shapes that llama.cpp's builder makes, with random weights, for tests: the same bytes can
// be given to Nanite's buffer type or to the CPU's, and a scheduler runs it.

#include "check.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

enum moe_activation { MOE_SWIGLU, MOE_SWIGLU_OAI, MOE_CLAMPED, MOE_SITU, MOE_RELU_SQR, MOE_GEGLU };

struct moe_variant {
    const char *   name;
    moe_activation activation    = MOE_SWIGLU;
    bool           merged        = false; // one gate_up product, two views
    bool           bias          = false; // ADD_ID after each product
    bool           scales        = false; // per-expert scales, gathered by id
    bool           weight_before = false; // llama4: the routing weight multiplies the input
    bool           shared_expert = false;
    bool           lora          = false; // an adapter on the down projection, in a CPU buffer
    int            n_used        = 3;
    ggml_type      type          = GGML_TYPE_Q4_0;
};

struct moe_shape {
    static constexpr int n_embd = 64, n_ff = 32, n_expert = 8, n_layer = 2;
};

// Weights of one variant: expert tensors (and their biases and scales) in one buffer, everything else in another.
struct moe_weights {
    struct layer {
        ggml_tensor *router, *up, *gate, *down, *up_b, *gate_b, *down_b, *up_s, *gate_s, *down_s, *sh_up, *sh_down;
        ggml_tensor *lora_a, *lora_b;
    };

    moe_variant           v;
    ggml_context *        ctx = nullptr;
    std::vector<layer>    layers;
    std::vector<uint8_t>  experts_mem, other_mem;
    ggml_backend_buffer_t experts = nullptr, other = nullptr;

    moe_weights(const moe_variant & v, ggml_backend_dev_t experts_dev, ggml_backend_dev_t cpu_dev) : v(v) {
        ctx = ggml_init({ ggml_tensor_overhead() * 64, nullptr, true });
        std::vector<ggml_tensor *> expert_tensors, other_tensors;
        const auto make = [&](std::vector<ggml_tensor *> & list, const std::string & name, ggml_type type, int64_t a,
                              int64_t b, int64_t c) {
            ggml_tensor * t = ggml_new_tensor_3d(ctx, type, a, b, c);
            ggml_set_name(t, name.c_str());
            list.push_back(t);
            return t;
        };
        const int  E = moe_shape::n_expert, F = moe_shape::n_ff, D = moe_shape::n_embd;
        const bool gated = v.activation != MOE_RELU_SQR;
        for (int il = 0; il < moe_shape::n_layer; il++) {
            layer             l = {};
            const std::string p = "blk." + std::to_string(il) + ".ffn_";
            l.router            = make(other_tensors, p + "gate_inp.weight", GGML_TYPE_F32, D, E, 1);
            l.up                = make(expert_tensors, p + (v.merged ? "gate_up" : "up") + "_exps.weight", v.type, D,
                        v.merged ? 2 * F : F, E);
            l.gate = gated && !v.merged ? make(expert_tensors, p + "gate_exps.weight", v.type, D, F, E) : nullptr;
            l.down = make(expert_tensors, p + "down_exps.weight", v.type, F, D, E);
            if (v.bias) {
                l.up_b   = make(expert_tensors, p + "up_exps.bias", GGML_TYPE_F32, l.up->ne[1], E, 1);
                l.gate_b = l.gate ? make(expert_tensors, p + "gate_exps.bias", GGML_TYPE_F32, F, E, 1) : nullptr;
                l.down_b = make(expert_tensors, p + "down_exps.bias", GGML_TYPE_F32, D, E, 1);
            }
            if (v.scales) {
                l.up_s   = make(other_tensors, p + "up_exps.scale", GGML_TYPE_F32, E, 1, 1);
                l.gate_s = l.gate ? make(other_tensors, p + "gate_exps.scale", GGML_TYPE_F32, E, 1, 1) : nullptr;
                l.down_s = make(other_tensors, p + "down_exps.scale", GGML_TYPE_F32, E, 1, 1);
            }
            if (v.shared_expert) {
                l.sh_up   = make(other_tensors, p + "up_shexp.weight", GGML_TYPE_F32, D, F, 1);
                l.sh_down = make(other_tensors, p + "down_shexp.weight", GGML_TYPE_F32, F, D, 1);
            }
            if (v.lora) {
                l.lora_a = make(other_tensors, p + "down_exps.weight.lora_a", GGML_TYPE_F32, F, 4, E);
                l.lora_b = make(other_tensors, p + "down_exps.weight.lora_b", GGML_TYPE_F32, 4, D, E);
            }
            layers.push_back(l);
        }
        std::mt19937 rng(1234);
        experts = place(expert_tensors, experts_mem, experts_dev, rng);
        other   = place(other_tensors, other_mem, cpu_dev, rng);
    }

    ~moe_weights() {
        ggml_backend_buffer_free(experts);
        ggml_backend_buffer_free(other);
        ggml_free(ctx);
    }

    moe_weights(const moe_weights &) = delete;

  private:
    // Wrap memory that we own, as the loader does with a mapped file, and fill it.
    static ggml_backend_buffer_t place(const std::vector<ggml_tensor *> & tensors, std::vector<uint8_t> & mem,
                                       ggml_backend_dev_t dev, std::mt19937 & rng) {
        const size_t align = 32;
        size_t       size  = align;
        for (const ggml_tensor * t : tensors) {
            size += GGML_PAD(ggml_nbytes(t), align);
        }
        mem.resize(size);
        auto *                base   = (uint8_t *) GGML_PAD((uintptr_t) mem.data(), align);
        ggml_backend_buffer_t buffer = ggml_backend_dev_buffer_from_host_ptr(dev, base, size - align, size - align);
        CHECK(buffer);
        ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        std::uniform_real_distribution<float> uniform(-0.25f, 0.25f);
        for (ggml_tensor * t : tensors) {
            CHECK(ggml_backend_tensor_alloc(buffer, t, base) == GGML_STATUS_SUCCESS);
            std::vector<float> values(ggml_nelements(t));
            for (float & x : values) {
                x = uniform(rng);
            }
            if (t->type == GGML_TYPE_F32) {
                memcpy(t->data, values.data(), values.size() * 4);
            } else {
                ggml_quantize_chunk(t->type, values.data(), t->data, 0, ggml_nrows(t), t->ne[0], nullptr);
            }
            base += GGML_PAD(ggml_nbytes(t), align);
        }
        return buffer;
    }
};

// The graph over given weights for n_tokens positions.
struct moe_graph {
    ggml_context *             ctx = nullptr;
    ggml_cgraph *              gf  = nullptr;
    ggml_tensor *              in  = nullptr;
    ggml_tensor *              out = nullptr;
    std::vector<ggml_tensor *> ids;      // [layer] native expert ids, a strided view
    std::vector<ggml_tensor *> products; // all MUL_MAT_ID on expert weights

    moe_graph(const moe_weights & w, int n_tokens) {
        ctx = ggml_init({ ggml_tensor_overhead() * 1024 + ggml_graph_overhead_custom(1024, false), nullptr, true });
        gf  = ggml_new_graph_custom(ctx, 1024, false);
        in  = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, moe_shape::n_embd, n_tokens);
        ggml_set_input(in);
        ggml_tensor * x = in;
        for (const auto & l : w.layers) {
            ggml_tensor * h   = ggml_rms_norm(ctx, x, 1e-6f);
            ggml_tensor * moe = routed(w.v, l, h, n_tokens);
            if (w.v.shared_expert) {
                moe = ggml_add(ctx, moe, ggml_mul_mat(ctx, l.sh_down, ggml_silu(ctx, ggml_mul_mat(ctx, l.sh_up, h))));
            }
            x = ggml_add(ctx, moe, x);
        }
        out = ggml_scale(ctx, x, 0.5f);
        ggml_set_output(out);
        ggml_build_forward_expand(gf, out);
    }

    ~moe_graph() { ggml_free(ctx); }

    moe_graph(const moe_graph &) = delete;

    // native ids as [n_tokens][n_used], read after the graph ran
    std::vector<std::vector<int32_t>> read_ids(int layer) const {
        const ggml_tensor *               t = ids[layer];
        std::vector<std::vector<int32_t>> rows(t->ne[1], std::vector<int32_t>(t->ne[0]));
        for (int64_t i = 0; i < t->ne[1]; i++) {
            ggml_backend_tensor_get(t, rows[i].data(), i * t->nb[1], t->ne[0] * 4);
        }
        return rows;
    }

  private:
    ggml_tensor * product(ggml_tensor * w, ggml_tensor * cur, ggml_tensor * id, ggml_tensor * scale) {
        ggml_tensor * res = ggml_mul_mat_id(ctx, w, cur, id);
        products.push_back(res);
        if (scale) {
            ggml_tensor * s = ggml_reshape_3d(ctx, scale, 1, scale->ne[0], 1);
            s               = ggml_repeat_4d(ctx, s, 1, scale->ne[0], cur->ne[2], 1);
            res             = ggml_mul(ctx, res, ggml_get_rows(ctx, s, id));
        }
        return res;
    }

    ggml_tensor * activate(const moe_variant & v, ggml_tensor * cur, ggml_tensor * up) {
        switch (v.activation) {
            case MOE_SWIGLU: return ggml_swiglu_split(ctx, cur, up);
            case MOE_GEGLU: return ggml_geglu_split(ctx, cur, up);
            case MOE_SWIGLU_OAI: return ggml_swiglu_oai(ctx, cur, up, 1.702f, 7.0f);
            case MOE_RELU_SQR: return ggml_sqr(ctx, ggml_relu(ctx, cur));
            case MOE_CLAMPED:
                return ggml_mul(ctx, ggml_clamp(ctx, ggml_silu(ctx, cur), -INFINITY, 0.3f),
                                ggml_clamp(ctx, up, -0.3f, 0.3f));
            case MOE_SITU: {
                ggml_tensor * act = ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, cur, 0.5f)), 2.0f);
                act               = ggml_mul(ctx, act, ggml_sigmoid(ctx, cur));
                return ggml_mul(ctx, act, ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, up, 0.25f)), 4.0f));
            }
        }
        return nullptr;
    }

    ggml_tensor * routed(const moe_variant & v, const moe_weights::layer & l, ggml_tensor * h, int n_tokens) {
        const int     E = moe_shape::n_expert, F = moe_shape::n_ff, D = moe_shape::n_embd;
        ggml_tensor * probs = ggml_soft_max(ctx, ggml_mul_mat(ctx, ggml_reshape_2d(ctx, l.router, D, E), h));
        ggml_tensor * id    = ggml_argsort_top_k(ctx, probs, v.n_used);
        ggml_set_output(id->src[0]); // kept, so that a test can read it
        ids.push_back(id);
        ggml_tensor * weights = ggml_get_rows(ctx, ggml_reshape_3d(ctx, probs, 1, E, n_tokens), id);
        weights               = ggml_reshape_2d(ctx, weights, v.n_used, n_tokens);
        weights               = ggml_div(ctx, weights, ggml_clamp(ctx, ggml_sum_rows(ctx, weights), 6.1e-5f, INFINITY));
        weights               = ggml_reshape_3d(ctx, weights, 1, v.n_used, n_tokens);
        ggml_build_forward_expand(gf, weights);

        ggml_tensor * cur = ggml_reshape_3d(ctx, h, D, 1, n_tokens);
        if (v.weight_before) {
            cur = ggml_mul(ctx, ggml_repeat_4d(ctx, cur, D, v.n_used, n_tokens, 1), weights);
        }
        ggml_tensor * up = product(l.up, cur, id, l.up_s);
        if (l.up_b) {
            up = ggml_add_id(ctx, up, ggml_reshape_2d(ctx, l.up_b, l.up_b->ne[0], E), id);
        }
        if (v.merged) {
            ggml_tensor * both = up;
            cur                = ggml_view_3d(ctx, both, F, both->ne[1], both->ne[2], both->nb[1], both->nb[2], 0);
            up = ggml_view_3d(ctx, both, F, both->ne[1], both->ne[2], both->nb[1], both->nb[2], F * both->nb[0]);
        } else if (l.gate) {
            cur = product(l.gate, cur, id, l.gate_s);
            if (l.gate_b) {
                cur = ggml_add_id(ctx, cur, ggml_reshape_2d(ctx, l.gate_b, F, E), id);
            }
        } else {
            cur = up;
        }
        cur                   = activate(v, cur, up);
        ggml_tensor * experts = product(l.down, cur, id, l.down_s);
        if (v.lora) {
            experts =
                ggml_add(ctx, experts, ggml_mul_mat_id(ctx, l.lora_b, ggml_mul_mat_id(ctx, l.lora_a, cur, id), id));
        }
        if (l.down_b) {
            experts = ggml_add_id(ctx, experts, ggml_reshape_2d(ctx, l.down_b, D, E), id);
        }
        if (!v.weight_before) {
            experts = ggml_mul(ctx, experts, weights);
        }
        ggml_build_forward_expand(gf, experts);
        std::vector<ggml_tensor *> rows;
        for (int k = 0; k < v.n_used; k++) {
            rows.push_back(ggml_view_2d(ctx, experts, D, n_tokens, experts->nb[2], k * experts->nb[1]));
            ggml_build_forward_expand(gf, rows.back());
        }
        ggml_tensor * sum = rows[0];
        for (int k = 1; k < v.n_used; k++) {
            sum = ggml_add(ctx, sum, rows[k]);
            ggml_build_forward_expand(gf, sum);
        }
        return v.n_used == 1 ? ggml_cont(ctx, sum) : sum;
    }
};
