#include "nanite-chain.h"

#include "ggml-backend-impl.h"
#include "nanite-buffer.h"
#include "nanite-device.h"

#include <algorithm>
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

// What a node's chain operands lead back to.
enum chain_part {
    PART_NONE,  // no product of ours
    PART_INNER, // a first product (gate, up), or a node between it and the down projection
    PART_DOWN,  // the down projection, or a node after it
};

static chain_part part_of(const ggml_tensor * t, int depth) {
    if (!t || depth > MAX_DEPTH) {
        return PART_NONE;
    }
    switch (t->op) {
        case GGML_OP_MUL_MAT_ID:
            if (!product_belongs(t)) {
                return PART_NONE;
            }
            return part_of(t->src[1], depth + 1) == PART_NONE ? PART_INNER : PART_DOWN;
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_CONT:
        case GGML_OP_UNARY:
        case GGML_OP_SQR:
        case GGML_OP_CLAMP:
        case GGML_OP_SCALE:
        case GGML_OP_MUL:
        case GGML_OP_ADD_ID: return part_of(t->src[0], depth + 1);
        case GGML_OP_ADD:
        case GGML_OP_GLU: {
            // the second operand first: it is the shallow one in upstream's chain of additions
            const chain_part second = t->src[1] ? part_of(t->src[1], depth + 1) : PART_INNER;
            const chain_part first  = second == PART_NONE ? PART_NONE : part_of(t->src[0], depth + 1);
            return first == PART_NONE ? PART_NONE : std::max(first, second);
        }
        default: return PART_NONE;
    }
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
    const chain_part part = part_of(op, 0);
    return (part == PART_INNER || (part == PART_DOWN && op->op == GGML_OP_MUL_MAT_ID)) &&
           !reads_foreign_device_memory(op) && nanite_device_cpu_supports(op);
}

bool nanite_chain_is_down(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT_ID && part_of(node->src[1], 0) != PART_NONE;
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
