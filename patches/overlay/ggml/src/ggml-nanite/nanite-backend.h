#pragma once

// A backend instance: one llama.cpp context's door to Nanite. It owns a CPU backend instance that computes the chains
// with upstream's kernels, and a workspace for the observer. An instance is used by one thread at a time, as ggml asks.

#include "ggml-backend.h"

#include <cstdint>

// NULL (with a logged reason) when no CPU backend is registered.
ggml_backend_t nanite_backend_new(void);

struct nanite_backend_totals {
    uint64_t instances  = 0; // alive now
    uint64_t graphs     = 0; // splits that the scheduler gave to Nanite
    uint64_t nodes      = 0; // nodes in them
    uint64_t products   = 0; // expert products (MUL_MAT_ID) among them
    uint64_t compute_ns = 0; // wall time inside graph_compute, CPU kernels included
    uint64_t observe_ns = 0; // of which reading and counting routes
};

nanite_backend_totals nanite_backend_totals_get(void);

// Entries of ggml's get_proc_address contract.
void nanite_backend_set_n_threads(ggml_backend_t backend, int n_threads);
void nanite_backend_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void * data);
