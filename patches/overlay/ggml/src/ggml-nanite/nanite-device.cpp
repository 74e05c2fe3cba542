#include "nanite-device.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "ggml-nanite.h"
#include "nanite-backend.h"
#include "nanite-buffer.h"
#include "nanite-chain.h"
#include "nanite-mode.h"
#include "observe/route-observer.h"

nanite_route_observer & nanite_device_observer(void) {
    static nanite_route_observer observer;
    return observer;
}

void nanite_device_forget_weights(const void * begin, const void * end) {
    nanite_device_observer().forget(begin, end);
}

ggml_backend_dev_t nanite_device_cpu(void) {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

ggml_backend_buffer_type_t nanite_device_pinned_buffer_type(void) {
    for (const auto type : { GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU }) {
        const ggml_backend_dev_t dev = ggml_backend_dev_by_type(type);
        if (dev && ggml_backend_dev_host_buffer_type(dev)) {
            return ggml_backend_dev_host_buffer_type(dev);
        }
    }
    return nullptr;
}

bool nanite_device_cpu_supports(const ggml_tensor * op) {
    const ggml_backend_dev_t cpu = nanite_device_cpu();
    return cpu && ggml_backend_dev_supports_op(cpu, op);
}

bool nanite_device_gpu_would_offload(const ggml_tensor * op) {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        const ggml_backend_dev_t         dev  = ggml_backend_dev_get(i);
        const enum ggml_backend_dev_type type = ggml_backend_dev_type(dev);
        if (type != GGML_BACKEND_DEVICE_TYPE_GPU && type != GGML_BACKEND_DEVICE_TYPE_IGPU) {
            continue;
        }
        if (ggml_backend_dev_offload_op(dev, op) && ggml_backend_dev_supports_op(dev, op)) {
            return true;
        }
    }
    return false;
}

static const char * device_get_name(ggml_backend_dev_t) {
    return "Nanite";
}

static const char * device_get_description(ggml_backend_dev_t) {
    return "Nanite expert runtime";
}

static void device_get_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free  = 0; // none of its own: experts lie in host memory that the CPU device reports
    *total = 0;
}

static enum ggml_backend_dev_type device_get_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

// Events are advertised because upstream gives up pipelining over several GPUs when any device lacks them. Work is
// finished when graph_compute returns, so an event is complete as soon as it is recorded.
static void device_get_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    props->name        = device_get_name(dev);
    props->description = device_get_description(dev);
    props->type        = device_get_type(dev);
    device_get_memory(dev, &props->memory_free, &props->memory_total);
    props->device_id                 = nullptr;
    props->caps                      = {};
    props->caps.async                = true;
    props->caps.buffer_from_host_ptr = true;
    props->caps.events               = true;
    props->caps.mmap_support         = true;
}

static ggml_backend_t device_init_backend(ggml_backend_dev_t, const char *) {
    return nanite_backend_new();
}

static ggml_backend_buffer_type_t device_get_buffer_type(ggml_backend_dev_t) {
    return nanite_buffer_type();
}

static ggml_backend_buffer_t device_buffer_from_host_ptr(ggml_backend_dev_t, void * ptr, size_t size, size_t) {
    return nanite_buffer_from_host_ptr(ptr, size);
}

static bool device_supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return nanite_mode_get() != NANITE_MODE_OFF && nanite_chain_owns(op);
}

static bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return type == nanite_buffer_type() || ggml_backend_buft_is_host(type);
}

static ggml_backend_event_t device_event_new(ggml_backend_dev_t dev) {
    return new ggml_backend_event{ dev, nullptr };
}

static void device_event_free(ggml_backend_dev_t, ggml_backend_event_t event) {
    delete event;
}

static void device_event_synchronize(ggml_backend_dev_t, ggml_backend_event_t) {}

ggml_backend_dev_t nanite_device(void) {
    static const ggml_backend_device_i iface = {
        /* .get_name             = */ device_get_name,
        /* .get_description      = */ device_get_description,
        /* .get_memory           = */ device_get_memory,
        /* .get_type             = */ device_get_type,
        /* .get_props            = */ device_get_props,
        /* .init_backend         = */ device_init_backend,
        /* .get_buffer_type      = */ device_get_buffer_type,
        /* .get_host_buffer_type = */ nullptr,
        /* .buffer_from_host_ptr = */ device_buffer_from_host_ptr,
        /* .supports_op          = */ device_supports_op,
        /* .supports_buft        = */ device_supports_buft,
        /* .offload_op           = */ nullptr,
        /* .event_new            = */ device_event_new,
        /* .event_free           = */ device_event_free,
        /* .event_synchronize    = */ device_event_synchronize,
    };
    static ggml_backend_device device = { iface, ggml_backend_nanite_reg(), nullptr };
    return &device;
}
