// The backend through ggml's public interface: for every shape of chain that llama.cpp builds, the scheduler gives
// Nanite one split a layer, the result equals the CPU backend's to the bit, and the counters equal the ids.

#include "ggml-cpu.h"
#include "moe-graph.h"
#include "nanite-hooks.h"

#include <cstdio>
#include <map>
#include <set>
#include <string>

static ggml_backend_dev_t cpu_device() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

static ggml_backend_dev_t nanite_device() {
    return ggml_backend_dev_by_name("Nanite");
}

static uint64_t number_after(const std::string & text, const std::string & key, size_t from = 0) {
    const size_t at = text.find("\"" + key + "\":", from);
    CHECK(at != std::string::npos);
    return strtoull(text.c_str() + at + key.size() + 3, nullptr, 10);
}

static uint64_t counter(const char * key) {
    const std::string status = nanite_hooks::status_json();
    return number_after(status, key, status.find("\"counters\":"));
}

// The live layer's object of the status document, "" when there is none.
static std::string live_layer(int layer) {
    const std::string status = nanite_hooks::status_json();
    const std::string key    = "\"layer\":" + std::to_string(layer) + ",\"live\":true";
    const size_t      at     = status.find(key);
    return at == std::string::npos ? "" : status.substr(at, status.find('}', at) - at);
}

static std::vector<uint64_t> counts_of(const std::string & layer) {
    std::vector<uint64_t> counts;
    const char *          p = layer.c_str() + layer.find("\"counts\":[") + strlen("\"counts\":[");
    while (*p && *p != ']') {
        char * end;
        counts.push_back(strtoull(p, &end, 10));
        p = *end == ',' ? end + 1 : end;
    }
    return counts;
}

struct run_result {
    std::vector<float>                             out;
    std::vector<std::vector<std::vector<int32_t>>> ids; // [layer][token][k]
    int                                            n_splits = 0;
};

static run_result run(const moe_weights & w, int n_tokens, bool with_nanite, int n_threads) {
    std::vector<ggml_backend_t> backends;
    if (with_nanite) {
        backends.push_back(ggml_backend_dev_init(nanite_device(), nullptr));
    }
    backends.push_back(ggml_backend_dev_init(cpu_device(), nullptr));
    for (ggml_backend_t b : backends) {
        CHECK(b);
        const auto set_n_threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(ggml_backend_get_device(b)), "ggml_backend_set_n_threads");
        CHECK(set_n_threads);
        set_n_threads(b, n_threads);
    }
    ggml_backend_sched_t sched =
        ggml_backend_sched_new(backends.data(), nullptr, (int) backends.size(), 1024, false, true);
    run_result result;
    {
        moe_graph g(w, n_tokens);
        CHECK(ggml_backend_sched_alloc_graph(sched, g.gf));
        std::mt19937                          rng(77 + n_tokens);
        std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
        std::vector<float>                    in(ggml_nelements(g.in));
        for (float & x : in) {
            x = uniform(rng);
        }
        ggml_backend_tensor_set(g.in, in.data(), 0, in.size() * 4);
        CHECK(ggml_backend_sched_graph_compute(sched, g.gf) == GGML_STATUS_SUCCESS);
        result.n_splits = ggml_backend_sched_get_n_splits(sched);
        result.out.resize(ggml_nelements(g.out));
        ggml_backend_tensor_get(g.out, result.out.data(), 0, result.out.size() * 4);
        for (int il = 0; il < moe_shape::n_layer; il++) {
            result.ids.push_back(g.read_ids(il));
        }
    }
    ggml_backend_sched_free(sched);
    for (ggml_backend_t b : backends) {
        ggml_backend_free(b);
    }
    return result;
}

// upstream's GPU backends take over products of this many positions and more (GGML_OP_OFFLOAD_MIN_BATCH's default)
static const int GPU_BATCH = 32;

static bool gpu_registered() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) ||
           ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
}

static bool same_bits(const std::vector<float> & a, const std::vector<float> & b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

static void test_variant(const moe_variant & v, int expected_splits) {
    const moe_weights ours(v, nanite_device(), cpu_device());
    const moe_weights stock(v, cpu_device(), cpu_device());
    CHECK(ours.experts_mem.size() == stock.experts_mem.size());

    uint64_t                             tokens = 0;
    std::vector<std::map<int, uint64_t>> expected(moe_shape::n_layer);
    std::vector<uint64_t>                unique(moe_shape::n_layer), bytes(moe_shape::n_layer);

    // with a GPU in the process bigger batches are upstream's: see test_big_batch
    for (const int n_tokens : { 1, 5, gpu_registered() ? GPU_BATCH - 1 : GPU_BATCH + 1 }) {
        for (const int n_threads : { 1, 2 }) {
            const run_result reference = run(stock, n_tokens, false, n_threads);
            const run_result result    = run(ours, n_tokens, true, n_threads);
            CHECK(reference.n_splits == 1);
            CHECK(std::isfinite(reference.out[0]) && reference.out[0] != 0.0f);
            CHECK(same_bits(result.out, reference.out));
            if (result.n_splits != expected_splits) {
                fprintf(stderr, "%s: %d splits, expected %d\n", v.name, result.n_splits, expected_splits);
            }
            CHECK(result.n_splits == expected_splits);
            tokens += n_tokens;
            for (int il = 0; il < moe_shape::n_layer; il++) {
                CHECK(result.ids[il] == reference.ids[il]);
                std::set<int> distinct;
                for (const auto & row : reference.ids[il]) {
                    for (const int32_t id : row) {
                        expected[il][id]++;
                        distinct.insert(id);
                    }
                }
                unique[il] += distinct.size();
                const auto & l = ours.layers[il];
                bytes[il] += distinct.size() * (l.up->nb[2] + (l.gate ? l.gate->nb[2] : 0) + l.down->nb[2]);
            }
        }
    }
    for (int il = 0; il < moe_shape::n_layer && !v.lora && !v.scales; il++) {
        const std::string layer = live_layer(il);
        CHECK(!layer.empty());
        const auto counts = counts_of(layer);
        CHECK(counts.size() == (size_t) moe_shape::n_expert);
        for (int e = 0; e < moe_shape::n_expert; e++) {
            CHECK(counts[e] == expected[il][e]);
        }
        CHECK(number_after(layer, "calls") == 6);
        CHECK(number_after(layer, "tokens") == tokens);
        CHECK(number_after(layer, "assignments") == tokens * v.n_used);
        CHECK(number_after(layer, "unique_experts") == unique[il]);
        CHECK(number_after(layer, "bytes_touched") == bytes[il]);
    }
    printf("%-16s %d splits, equal to the bit\n", v.name, expected_splits);
}

// Weights that lie elsewhere are not adopted: one CPU split, nothing counted.
static void test_foreign_weights() {
    const moe_weights stock(moe_variant{ "foreign" }, cpu_device(), cpu_device());
    const uint64_t    before = counter("graphs");
    CHECK(run(stock, 4, true, 1).n_splits == 1);
    CHECK(counter("graphs") == before);
}

// A batch that a GPU would take over by copying the weights is declined, so that upstream's path stays as it is.
static void test_big_batch() {
    const moe_weights ours(moe_variant{ "big batch" }, nanite_device(), cpu_device());
    CHECK(run(ours, GPU_BATCH - 1, true, 1).n_splits == 2 * moe_shape::n_layer + 1);
    CHECK(run(ours, GPU_BATCH, true, 1).n_splits == (gpu_registered() ? 1 : 2 * moe_shape::n_layer + 1));
}

// gate, up, GLU, down: nothing after the down projection is taken.
static void test_nodes_taken() {
    const moe_weights ours(moe_variant{ "nodes" }, nanite_device(), cpu_device());
    const uint64_t    nodes = counter("nodes"), graphs = counter("graphs"), products = counter("products");
    run(ours, 3, true, 1);
    CHECK(counter("graphs") - graphs == moe_shape::n_layer);
    CHECK(counter("nodes") - nodes == 4 * moe_shape::n_layer);
    CHECK(counter("products") - products == 3 * moe_shape::n_layer);
}

// With the mode off an exposed device declines everything, also on weights in its own buffers.
static void test_off() {
    const moe_weights ours(moe_variant{ "off" }, nanite_device(), cpu_device());
    const moe_weights stock(moe_variant{ "off" }, cpu_device(), cpu_device());
    const uint64_t    before = counter("graphs");
    nanite_hooks::set_mode("off");
    const run_result result = run(ours, 4, true, 1);
    nanite_hooks::set_mode("observe");
    CHECK(result.n_splits == 1 && counter("graphs") == before);
    CHECK(same_bits(result.out, run(stock, 4, false, 1).out));
}

// llama.cpp's warm-up names every expert for every token: no decision, counted apart.
static void test_warm_up() {
    moe_variant v{ "warm-up" };
    v.n_used = moe_shape::n_expert;
    const moe_weights ours(v, nanite_device(), cpu_device());
    run(ours, 2, true, 1);
    const std::string layer = live_layer(0);
    CHECK(number_after(layer, "warmup_calls") == 1 && number_after(layer, "calls") == 0);
    CHECK(number_after(layer, "assignments") == 0);
}

// Mapped weights are counted as mapped, and only while they live.
static void test_weight_totals() {
    const auto mapped = [] {
        const std::string s = nanite_hooks::status_json();
        return number_after(s, "mapped_bytes");
    };
    const uint64_t before = mapped();
    {
        const moe_weights ours(moe_variant{ "totals" }, nanite_device(), cpu_device());
        // per layer: up and gate are 8 x [64 x 32], down is 8 x [32 x 64]: 3 x 16384 weights, 18 bytes for 32 in Q4_0
        CHECK(mapped() - before == 2 * 3 * 16384 / 32 * 18);
        CHECK(number_after(nanite_hooks::status_json(), "copied_bytes") == 0);

        ggml_backend_buffer_t copy =
            ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(nanite_device()), 4096);
        ggml_backend_buffer_set_usage(copy, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        CHECK(number_after(nanite_hooks::status_json(), "copied_bytes") == 4096);
        CHECK(nanite_hooks::status_json().find("\"weights_copied\"") != std::string::npos);
        ggml_backend_buffer_free(copy);
    }
    CHECK(mapped() == before);
}

static void test_report(const char * path) {
    remove(path);
#ifdef _WIN32
    _putenv_s("NANITE_REPORT", path);
#else
    setenv("NANITE_REPORT", path, 1);
#endif
    const moe_weights ours(moe_variant{ "report" }, nanite_device(), cpu_device());
    run(ours, 1, true, 1);
    FILE * f = fopen(path, "rb");
    CHECK(f);
    std::vector<char> text(1 << 20);
    const size_t      n = fread(text.data(), 1, text.size(), f);
    fclose(f);
    CHECK(std::string(text.data(), n) == nanite_hooks::status_json() + "\n");
    remove(path);
}

int main() {
    nanite_hooks::set_mode("observe");
    CHECK(nanite_device());

    // CPU, Nanite, CPU, Nanite, CPU: one split of ours a layer
    const int                one_a_layer = 2 * moe_shape::n_layer + 1;
    std::vector<moe_variant> whole;
    const auto               add = [&](const char * name, auto change) {
        moe_variant v{ name };
        change(v);
        whole.push_back(v);
    };
    add("swiglu", [](moe_variant &) {});
    add("geglu", [](moe_variant & v) { v.activation = MOE_GEGLU; });
    add("swiglu_oai+bias", [](moe_variant & v) {
        v.activation = MOE_SWIGLU_OAI;
        v.bias       = true;
        v.type       = GGML_TYPE_MXFP4;
    });
    add("merged", [](moe_variant & v) { v.merged = true; });
    add("merged+bias", [](moe_variant & v) {
        v.merged = true;
        v.bias   = true;
    });
    add("clamped", [](moe_variant & v) { v.activation = MOE_CLAMPED; });
    add("situ", [](moe_variant & v) { v.activation = MOE_SITU; });
    add("relu_sqr", [](moe_variant & v) { v.activation = MOE_RELU_SQR; });
    add("weight_before", [](moe_variant & v) {
        v.weight_before = true;
        v.n_used        = 1;
    });
    add("one_used", [](moe_variant & v) { v.n_used = 1; });
    add("shared_expert", [](moe_variant & v) { v.shared_expert = true; });
    add("f16", [](moe_variant & v) { v.type = GGML_TYPE_F16; });
    add("q8_0", [](moe_variant & v) { v.type = GGML_TYPE_Q8_0; });
    for (const moe_variant & v : whole) {
        test_variant(v, one_a_layer);
    }
    test_foreign_weights();
    test_big_batch();
    test_nodes_taken();
    test_off();
    test_warm_up();
    test_weight_totals();
    test_report("test-nanite-backend-report.json");
    printf("ok\n");
    return 0;
}
