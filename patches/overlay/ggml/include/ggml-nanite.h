#pragma once

// Nanite: a ggml backend that owns the routed experts of mixture-of-experts models.
//
// Device type ACCEL. Its buffer type is host memory and takes mapped files as they are, so every expert tensor that
// llama.cpp places on the CPU comes to it still memory-mapped. What it does not take stays stock.

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// The registry entry. It exposes one device, and only when the mode (see nanite-hooks.h) is not "off".
GGML_BACKEND_API ggml_backend_reg_t ggml_backend_nanite_reg(void);

#ifdef __cplusplus
}
#endif
