#include "nanite-buffer.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "ggml-nanite.h"
#include "nanite-device.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

namespace {
struct nanite_buffer {
    void *                base;
    ggml_backend_buffer_t storage; // what an allocated buffer lies in; NULL for a mapped one
    uint64_t              tensors      = 0;
    uint64_t              tensor_bytes = 0;
};

struct buffer_list {
    std::mutex mutex; // guards `live` and the counters of its buffers; load and unload time only
    std::vector<ggml_backend_buffer_t> live;
    uint64_t                           unpinned = 0; // allocations that a GPU's host buffer type could not pin
};
} // namespace

static buffer_list & buffers(void) {
    static buffer_list list;
    return list;
}

static nanite_buffer * context_of(ggml_backend_buffer_t buffer) {
    return (nanite_buffer *) buffer->context;
}

static void buffer_free(ggml_backend_buffer_t buffer) {
    nanite_buffer * ctx = context_of(buffer);
    {
        buffer_list &               list = buffers();
        std::lock_guard<std::mutex> lock(list.mutex);
        list.live.erase(std::remove(list.live.begin(), list.live.end(), buffer), list.live.end());
    }
    if (buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
        nanite_device_forget_weights(ctx->base, (const char *) ctx->base + buffer->size);
    }
    if (ctx->storage) {
        ggml_backend_buffer_free(ctx->storage);
    }
    delete ctx;
}

static void * buffer_get_base(ggml_backend_buffer_t buffer) {
    return context_of(buffer)->base;
}

// Only mapped buffers have it: each weight that the loader places in one is counted, once.
static enum ggml_status buffer_init_mapped_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    if (!tensor->view_src) {
        std::lock_guard<std::mutex> lock(buffers().mutex);
        context_of(buffer)->tensors += 1;
        context_of(buffer)->tensor_bytes += ggml_nbytes(tensor);
    }
    return GGML_STATUS_SUCCESS;
}

static void buffer_memset_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset,
                                 size_t size) {
    memset((char *) tensor->data + offset, value, size);
}

static void buffer_set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset,
                              size_t size) {
    memcpy((char *) tensor->data + offset, data, size);
}

static void buffer_get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset,
                              size_t size) {
    memcpy(data, (const char *) tensor->data + offset, size);
}

static bool buffer_cpy_tensor(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst) {
    if (!ggml_backend_buffer_is_host(src->buffer)) {
        return false;
    }
    memcpy(dst->data, src->data, ggml_nbytes(src));
    return true;
}

static void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    memset(context_of(buffer)->base, value, buffer->size);
}

static ggml_backend_buffer_i buffer_interface(bool mapped) {
    return {
        /* .free_buffer   = */ buffer_free,
        /* .get_base      = */ buffer_get_base,
        /* .init_tensor   = */ mapped ? buffer_init_mapped_tensor : nullptr,
        /* .memset_tensor = */ buffer_memset_tensor,
        /* .set_tensor    = */ buffer_set_tensor,
        /* .get_tensor    = */ buffer_get_tensor,
        /* .set_tensor_2d = */ nullptr,
        /* .get_tensor_2d = */ nullptr,
        /* .cpy_tensor    = */ buffer_cpy_tensor,
        /* .clear         = */ buffer_clear,
        /* .reset         = */ nullptr,
    };
}

static ggml_backend_buffer_t buffer_new(void * base, size_t size, ggml_backend_buffer_t storage) {
    auto * ctx = new (std::nothrow) nanite_buffer{ base, storage };
    if (!ctx) {
        return nullptr;
    }
    const ggml_backend_buffer_i iface  = buffer_interface(!storage);
    ggml_backend_buffer_t       buffer = ggml_backend_buffer_init(nanite_buffer_type(), iface, ctx, size);
    buffer_list &               list   = buffers();
    std::lock_guard<std::mutex> lock(list.mutex);
    list.live.push_back(buffer);
    return buffer;
}

static const char * buffer_type_name(ggml_backend_buffer_type_t) {
    return "Nanite";
}

static ggml_backend_buffer_t buffer_type_alloc(ggml_backend_buffer_type_t, size_t size) {
    // As upstream does for its CPU backend: memory that a GPU copies from and to at full speed, where there is one. Its
    // allocator falls back to plain memory by itself when pinning fails, which is counted here.
    const ggml_backend_buffer_type_t pinned  = nanite_device_pinned_buffer_type();
    const ggml_backend_dev_t         cpu     = nanite_device_cpu();
    const ggml_backend_buffer_type_t type    = pinned || !cpu ? pinned : ggml_backend_dev_buffer_type(cpu);
    ggml_backend_buffer_t            storage = type ? ggml_backend_buft_alloc_buffer(type, size) : nullptr;
    if (!storage) {
        GGML_LOG_ERROR("nanite: failed to allocate a buffer of %zu bytes\n", size);
        return nullptr;
    }
    if (pinned && storage->buft != pinned) {
        GGML_LOG_WARN("nanite: %zu bytes could not be pinned, copies from and to the GPU are slower\n", size);
        std::lock_guard<std::mutex> lock(buffers().mutex);
        buffers().unpinned++;
    }
    ggml_backend_buffer_t buffer = buffer_new(ggml_backend_buffer_get_base(storage), size, storage);
    if (!buffer) {
        ggml_backend_buffer_free(storage);
    }
    return buffer;
}

static size_t buffer_type_alignment(ggml_backend_buffer_type_t) {
    return TENSOR_ALIGNMENT;
}

static bool buffer_type_is_host(ggml_backend_buffer_type_t) {
    return true;
}

ggml_backend_buffer_type_t nanite_buffer_type(void) {
    static const ggml_backend_buffer_type_i iface = {
        /* .get_name       = */ buffer_type_name,
        /* .alloc_buffer   = */ buffer_type_alloc,
        /* .get_alignment  = */ buffer_type_alignment,
        /* .get_max_size   = */ nullptr,
        /* .get_alloc_size = */ nullptr,
        /* .is_host        = */ buffer_type_is_host,
    };
    static ggml_backend_buffer_type type = { iface, nanite_device(), nullptr };
    return &type;
}

ggml_backend_buffer_t nanite_buffer_from_host_ptr(void * ptr, size_t size) {
    return buffer_new(ptr, size, nullptr);
}

bool nanite_buffer_holds(const ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return buffer && buffer->buft == nanite_buffer_type();
}

nanite_weight_totals nanite_buffer_totals(void) {
    nanite_weight_totals        totals;
    buffer_list &               list = buffers();
    std::lock_guard<std::mutex> lock(list.mutex);
    for (const ggml_backend_buffer_t buffer : list.live) {
        if (buffer->usage != GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
            continue;
        }
        const nanite_buffer * ctx = context_of(buffer);
        if (!ctx->storage) {
            totals.tensors += ctx->tensors;
            totals.mapped_bytes += ctx->tensor_bytes;
        } else {
            totals.copied_bytes += buffer->size;
        }
    }
    return totals;
}

uint64_t nanite_buffer_unpinned(void) {
    std::lock_guard<std::mutex> lock(buffers().mutex);
    return buffers().unpinned;
}
