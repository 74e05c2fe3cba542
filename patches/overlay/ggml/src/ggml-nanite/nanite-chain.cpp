#include "nanite-chain.h"

#include "ggml-backend-impl.h"
#include "nanite-buffer.h"
#include "nanite-device.h"

#include <climits>
#include <cstring>

// Longer than any chain upstream builds (an ADD for each used expert and a dozen nodes before): a bound, not a limit.
static const int MAX_DEPTH = 2 * 1024;

static bool product_belongs(const ggml_tensor * op) {
    if (!nanite_buffer_holds(op->src[0]) || op->src[1]->type != GGML_TYPE_F32) {
        return false;
    }
    // the loader asks with an op that has no data, to choose where weights go: the batch rule is for real graphs
    return !op->src[0]->data || !nanite_device_gpu_would_offload(op);
}

static bool leads_to_product(const ggml_tensor * t, int depth);

static bool node_belongs(const ggml_tensor * t, int depth) {
    switch (t->op) {
        case GGML_OP_MUL_MAT_ID: return product_belongs(t);
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_CONT:
        case GGML_OP_UNARY:
        case GGML_OP_SQR:
        case GGML_OP_CLAMP:
        case GGML_OP_SCALE:
        case GGML_OP_MUL:
        case GGML_OP_ADD_ID: return leads_to_product(t->src[0], depth);
        case GGML_OP_ADD:
        case GGML_OP_GLU:
            // the second operand first: it is the shallow one in upstream's chain of additions
            return (!t->src[1] || leads_to_product(t->src[1], depth)) && leads_to_product(t->src[0], depth);
        default: return false;
    }
}

static bool leads_to_product(const ggml_tensor * t, int depth) {
    return t && depth < MAX_DEPTH && node_belongs(t, depth + 1);
}

// A node with an operand that is already allocated outside of the graph (a weight, a cache) must not pull that operand
// over. Expert biases and per-expert scales are host weights that the CPU backend reads in place: those are fine.
static bool reads_foreign_device_memory(const ggml_tensor * op) {
    for (int i = 0; i < GGML_MAX_SRC && op->src[i]; i++) {
        const ggml_tensor *         s      = op->src[i];
        const ggml_backend_buffer_t buffer = s->view_src ? s->view_src->buffer : s->buffer;
        if (buffer && buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS && !ggml_backend_buffer_is_host(buffer)) {
            return true;
        }
    }
    return false;
}

bool nanite_chain_owns(const ggml_tensor * op) {
    if (op->op == GGML_OP_NONE) {
        const ggml_backend_buffer_t buffer = op->view_src ? op->view_src->buffer : op->buffer;
        return !buffer || nanite_buffer_holds(op);
    }
    return node_belongs(op, 0) && !reads_foreign_device_memory(op) && nanite_device_cpu_supports(op);
}

bool nanite_chain_is_down(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT_ID && leads_to_product(node->src[1], 0);
}

int nanite_chain_layer(const char * weight_name) {
    static const char PREFIX[] = "blk.";
    const char *      p = strncmp(weight_name, PREFIX, sizeof(PREFIX) - 1) == 0 ? weight_name + sizeof(PREFIX) - 1 : "";
    int               layer = 0, digits = 0;
    for (; *p >= '0' && *p <= '9'; p++, digits++) {
        if (layer > (INT_MAX - 9) / 10) {
            return -1;
        }
        layer = layer * 10 + (*p - '0');
    }
    return digits > 0 && *p == '.' ? layer : -1;
}
