#pragma once

// Nanite's buffer type: host memory in ggml's own layout. A weight buffer is either mapped (it wraps the model file's
// mapping and owns nothing) or allocated (the loader copied the weights: `-lm none`, `-lm dio`); both are counted, so
// that a copy is never silent.

#include "ggml-backend.h"

#include <cstdint>

struct nanite_weight_totals {
    uint64_t tensors      = 0; // weights that lie in mapped buffers
    uint64_t mapped_bytes = 0; // their sizes (not the buffers': those are address ranges)
    uint64_t copied_bytes = 0; // sizes of allocated weight buffers
};

ggml_backend_buffer_type_t nanite_buffer_type(void);

// Wrap `size` bytes at `ptr`, which the caller keeps alive; the data is not touched.
ggml_backend_buffer_t nanite_buffer_from_host_ptr(void * ptr, size_t size);

// Does `t` (or what it is a view of) lie in a buffer of this type?
bool nanite_buffer_holds(const struct ggml_tensor * t);

nanite_weight_totals nanite_buffer_totals(void);

// Allocations so far that should have been pinned for a GPU's copies and are plain memory.
uint64_t nanite_buffer_unpinned(void);
