#include "nanite-backend.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "nanite-buffer.h"
#include "nanite-chain.h"
#include "nanite-device.h"
#include "nanite-mode.h"
#include "nanite-status.h"
#include "observe/route-observer.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>

namespace {
// Functions of the CPU backend, reached through its registry entry so that a module needs no link to it.
struct cpu_functions {
    ggml_backend_set_n_threads_t      set_n_threads      = nullptr;
    ggml_backend_set_abort_callback_t set_abort_callback = nullptr;

    ggml_threadpool_t (*threadpool_new)(ggml_threadpool_params *) = nullptr;
    void (*threadpool_free)(ggml_threadpool_t)                    = nullptr;
    void (*set_threadpool)(ggml_backend_t, ggml_threadpool_t)     = nullptr;

    bool openmp = false;
};

struct nanite_backend {
    ggml_backend_t    cpu = nullptr;
    cpu_functions     fn;
    int               n_threads          = GGML_DEFAULT_N_THREADS;
    ggml_threadpool_t threadpool         = nullptr;
    int               threadpool_threads = 0;

    nanite_route_union  routes;
    const ggml_tensor * routes_of = nullptr; // the ids that `routes` was made from, within one graph
};

struct atomic_totals {
    std::atomic<uint64_t> instances{ 0 }, graphs{ 0 }, nodes{ 0 }, products{ 0 }, compute_ns{ 0 }, observe_ns{ 0 };
};
} // namespace

static atomic_totals g_totals;

static void add(std::atomic<uint64_t> & counter, uint64_t n) {
    counter.fetch_add(n, std::memory_order_relaxed);
}

static uint64_t now_ns(void) {
    using namespace std::chrono;
    return (uint64_t) duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

nanite_backend_totals nanite_backend_totals_get(void) {
    nanite_backend_totals t;
    t.instances  = g_totals.instances.load(std::memory_order_relaxed);
    t.graphs     = g_totals.graphs.load(std::memory_order_relaxed);
    t.nodes      = g_totals.nodes.load(std::memory_order_relaxed);
    t.products   = g_totals.products.load(std::memory_order_relaxed);
    t.compute_ns = g_totals.compute_ns.load(std::memory_order_relaxed);
    t.observe_ns = g_totals.observe_ns.load(std::memory_order_relaxed);
    return t;
}

static nanite_backend * context_of(ggml_backend_t backend) {
    return (nanite_backend *) backend->context;
}

// The routes of one product's ids, worked out once for the products that share them. false: they cannot be read.
static bool load_routes(nanite_backend * ctx, const ggml_tensor * product) {
    const ggml_tensor * ids = product->src[2];
    if (ids == ctx->routes_of) {
        return true;
    }
    ctx->routes_of                     = nullptr;
    const ggml_backend_buffer_t buffer = ids->view_src ? ids->view_src->buffer : ids->buffer;
    if (ids->type != GGML_TYPE_I32 || !ids->data || (buffer && !ggml_backend_buffer_is_host(buffer))) {
        nanite_device_observer().count_fallback(NANITE_FALLBACK_IDS_NOT_HOST);
        return false;
    }
    if (!ctx->routes.assign(ids->data, ids->ne[0], ids->ne[1], ids->nb[0], ids->nb[1], product->src[0]->ne[2])) {
        nanite_device_observer().count_fallback(NANITE_FALLBACK_BAD_IDS);
        return false;
    }
    ctx->routes_of = ids;
    return true;
}

// Look at the routes of a graph before it runs: all that it needs of other splits is there by now, and a node's ids may
// be overwritten as soon as the last product that reads them is done.
static void observe_graph(nanite_backend * ctx, const ggml_cgraph * graph) {
    nanite_route_observer & observer = nanite_device_observer();
    uint64_t                products = 0, bytes = 0;
    bool                    open = false; // a product was seen whose chain has not been closed by its down projection

    ctx->routes_of = nullptr;
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (node->op != GGML_OP_MUL_MAT_ID) {
            continue;
        }
        products++;
        if (!load_routes(ctx, node)) {
            continue;
        }
        const ggml_tensor * weights = node->src[0];
        bytes += ctx->routes.experts.size() * weights->nb[2];
        open = true;
        if (!nanite_chain_is_down(node)) {
            continue;
        }
        const int layer = nanite_chain_layer(weights->name);
        if (layer < 0) {
            observer.count_fallback(NANITE_FALLBACK_NO_LAYER);
        } else {
            observer.record(weights->data, layer, (int32_t) weights->ne[2], ctx->routes, bytes);
        }
        bytes = 0;
        open  = false;
    }
    if (open) {
        observer.count_fallback(NANITE_FALLBACK_PART_CHAIN);
    }
    if (products == 0) {
        observer.count_fallback(NANITE_FALLBACK_NO_EXPERTS);
    }
    add(g_totals.products, products);
}

// With OpenMP a thread pool is only a block of memory that ggml-cpu otherwise allocates for every graph; its threads are
// OpenMP's, shared with the main CPU backend. Without OpenMP a pool of our own would spin against the main one's.
static void ensure_threadpool(nanite_backend * ctx) {
    if (!ctx->fn.openmp || !ctx->fn.threadpool_new || !ctx->fn.threadpool_free || !ctx->fn.set_threadpool ||
        ctx->threadpool_threads == ctx->n_threads) {
        return;
    }
    ggml_threadpool_params params = ggml_threadpool_params_default(ctx->n_threads);
    ggml_threadpool_t      pool   = ctx->fn.threadpool_new(&params);
    if (!pool) {
        return; // ggml-cpu makes its own for every graph
    }
    ctx->fn.set_threadpool(ctx->cpu, pool);
    if (ctx->threadpool) {
        ctx->fn.threadpool_free(ctx->threadpool);
    }
    ctx->threadpool         = pool;
    ctx->threadpool_threads = ctx->n_threads;
}

static const char * backend_get_name(ggml_backend_t) {
    return "Nanite";
}

static void backend_free(ggml_backend_t backend) {
    nanite_backend * ctx = context_of(backend);
    ggml_backend_free(ctx->cpu);
    if (ctx->threadpool) {
        ctx->fn.threadpool_free(ctx->threadpool);
    }
    delete ctx;
    delete backend;
    if (g_totals.instances.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        nanite_status_write_report();
    }
}

static enum ggml_status backend_graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    nanite_backend * ctx   = context_of(backend);
    const uint64_t   start = now_ns();
    if (nanite_mode_get() != NANITE_MODE_OFF) {
        observe_graph(ctx, graph);
    }
    const uint64_t observed = now_ns();
    ensure_threadpool(ctx);
    const enum ggml_status status = ggml_backend_graph_compute(ctx->cpu, graph);
    add(g_totals.graphs, 1);
    add(g_totals.nodes, graph->n_nodes);
    add(g_totals.observe_ns, observed - start);
    add(g_totals.compute_ns, now_ns() - start);
    return status;
}

// Everything is done when graph_compute returns: see device_get_props.
static void backend_synchronize(ggml_backend_t) {}
static void backend_event_record(ggml_backend_t, ggml_backend_event_t) {}
static void backend_event_wait(ggml_backend_t, ggml_backend_event_t event) {
    if (event->device != nanite_device()) {
        ggml_backend_event_synchronize(event);
    }
}

static ggml_guid_t backend_guid(void) {
    static ggml_guid guid = { 0x6e, 0x61, 0x6e, 0x69, 0x74, 0x65, 0x4d, 0x8e,
                              0x9c, 0x2f, 0x51, 0x0b, 0xd4, 0x37, 0xa6, 0x19 };
    return &guid;
}

static cpu_functions find_cpu_functions(ggml_backend_reg_t reg) {
    const auto find = [&](const char * name) {
        return ggml_backend_reg_get_proc_address(reg, name);
    };
    cpu_functions fn;
    fn.set_n_threads      = (ggml_backend_set_n_threads_t) find("ggml_backend_set_n_threads");
    fn.set_abort_callback = (ggml_backend_set_abort_callback_t) find("ggml_backend_set_abort_callback");
    fn.threadpool_new     = (decltype(fn.threadpool_new)) find("ggml_threadpool_new");
    fn.threadpool_free    = (decltype(fn.threadpool_free)) find("ggml_threadpool_free");
    fn.set_threadpool     = (decltype(fn.set_threadpool)) find("ggml_backend_cpu_set_threadpool");

    const auto get_features = (ggml_backend_get_features_t) find("ggml_backend_get_features");
    for (const ggml_backend_feature * f = get_features ? get_features(reg) : nullptr; f && f->name; f++) {
        fn.openmp = fn.openmp || (strcmp(f->name, "OPENMP") == 0 && strcmp(f->value, "0") != 0);
    }
    return fn;
}

ggml_backend_t nanite_backend_new(void) {
    const ggml_backend_dev_t cpu_dev = nanite_device_cpu();
    if (!cpu_dev) {
        GGML_LOG_ERROR("nanite: no CPU backend is registered, the expert chains have nothing to run on\n");
        return nullptr;
    }
    ggml_backend_t cpu = ggml_backend_dev_init(cpu_dev, nullptr);
    if (!cpu) {
        GGML_LOG_ERROR("nanite: the CPU backend could not be started\n");
        return nullptr;
    }
    auto * ctx = new nanite_backend;
    ctx->cpu   = cpu;
    ctx->fn    = find_cpu_functions(ggml_backend_dev_backend_reg(cpu_dev));
    add(g_totals.instances, 1);

    static const ggml_backend_i iface = {
        /* .get_name            = */ backend_get_name,
        /* .free                = */ backend_free,
        /* .set_tensor_async    = */ nullptr,
        /* .get_tensor_async    = */ nullptr,
        /* .set_tensor_2d_async = */ nullptr,
        /* .get_tensor_2d_async = */ nullptr,
        /* .cpy_tensor_async    = */ nullptr,
        /* .synchronize         = */ backend_synchronize,
        /* .graph_plan_create   = */ nullptr,
        /* .graph_plan_free     = */ nullptr,
        /* .graph_plan_update   = */ nullptr,
        /* .graph_plan_compute  = */ nullptr,
        /* .graph_compute       = */ backend_graph_compute,
        /* .event_record        = */ backend_event_record,
        /* .event_wait          = */ backend_event_wait,
        /* .graph_optimize      = */ nullptr,
    };
    return new ggml_backend{ backend_guid(), iface, nanite_device(), ctx };
}

void nanite_backend_set_n_threads(ggml_backend_t backend, int n_threads) {
    nanite_backend * ctx = context_of(backend);
    ctx->n_threads       = n_threads > 0 ? n_threads : GGML_DEFAULT_N_THREADS;
    if (ctx->fn.set_n_threads) {
        ctx->fn.set_n_threads(ctx->cpu, ctx->n_threads);
    }
}

void nanite_backend_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void * data) {
    nanite_backend * ctx = context_of(backend);
    if (ctx->fn.set_abort_callback) {
        ctx->fn.set_abort_callback(ctx->cpu, callback, data);
    }
}
