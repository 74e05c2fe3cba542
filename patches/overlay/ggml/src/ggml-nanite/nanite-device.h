#pragma once

// The one Nanite device, and what it asks of the other devices of the process.

#include "ggml-backend.h"

class nanite_route_observer;

ggml_backend_dev_t nanite_device(void);

// The observer that all backend instances of the process feed.
nanite_route_observer & nanite_device_observer(void);

// The registered CPU device, or NULL while none is registered.
ggml_backend_dev_t nanite_device_cpu(void);

// The host buffer type of the first GPU, pinned memory as a rule; NULL when there is none.
ggml_backend_buffer_type_t nanite_device_pinned_buffer_type(void);

// Can the CPU backend, which runs what Nanite takes, run this node?
bool nanite_device_cpu_supports(const struct ggml_tensor * op);

// Would upstream's scheduler move this product to a GPU (a batch big enough to pay for copying the weights)?
bool nanite_device_gpu_would_offload(const struct ggml_tensor * op);

// A weight buffer is about to be freed: its layers are no longer what lies at these addresses.
void nanite_device_forget_weights(const void * begin, const void * end);
