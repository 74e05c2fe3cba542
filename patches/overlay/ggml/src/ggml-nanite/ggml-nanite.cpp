// The registry entry: what ggml sees of Nanite. See ggml-nanite.h.

#include "ggml-nanite.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "nanite-backend.h"
#include "nanite-device.h"
#include "nanite-mode.h"
#include "nanite-status.h"

#include <cstdio>
#include <cstring>

static const char * reg_get_name(ggml_backend_reg_t) {
    return "Nanite";
}

// While the mode is off no device is exposed: an unused one would still take part in every graph split.
static size_t reg_get_device_count(ggml_backend_reg_t) {
    return nanite_mode_get() == NANITE_MODE_OFF ? 0 : 1;
}

static ggml_backend_dev_t reg_get_device(ggml_backend_reg_t, size_t) {
    return nanite_device();
}

static bool proc_set_mode(const char * name) {
    nanite_mode mode;
    if (!nanite_mode_parse(name, &mode)) {
        return false;
    }
    nanite_mode_set(mode);
    if (mode != NANITE_MODE_OFF) {
        ggml_backend_device_register(nanite_device()); // no effect when it is there already
    }
    return true;
}

static size_t copy_text(const std::string & text, char * dst, size_t size) {
    return (size_t) snprintf(dst, size, "%s", text.c_str());
}

static size_t proc_status(char * dst, size_t size) {
    return copy_text(nanite_status_json(), dst, size);
}

static size_t proc_metrics(char * dst, size_t size) {
    return copy_text(nanite_status_metrics(), dst, size);
}

static void * reg_get_proc_address(ggml_backend_reg_t, const char * name) {
    static const struct {
        const char * name;
        void *       function;
    } PROCS[] = {
        { "ggml_backend_set_n_threads", (void *) nanite_backend_set_n_threads },
        { "ggml_backend_set_abort_callback", (void *) nanite_backend_set_abort_callback },
        { "nanite_set_mode", (void *) proc_set_mode },
        { "nanite_modes", (void *) nanite_mode_list },
        { "nanite_status", (void *) proc_status },
        { "nanite_metrics", (void *) proc_metrics },
    };
    for (const auto & p : PROCS) {
        if (strcmp(p.name, name) == 0) {
            return p.function;
        }
    }
    return nullptr;
}

ggml_backend_reg_t ggml_backend_nanite_reg(void) {
    static const ggml_backend_reg_i iface = {
        /* .get_name         = */ reg_get_name,
        /* .get_device_count = */ reg_get_device_count,
        /* .get_device       = */ reg_get_device,
        /* .get_proc_address = */ reg_get_proc_address,
    };
    static ggml_backend_reg reg    = { GGML_BACKEND_API_VERSION, iface, nullptr };
    static const bool       warned = [] {
        if (!nanite_mode_env_error().empty()) {
            GGML_LOG_ERROR("nanite: NANITE_MODE is '%s', this build has: %s; the mode is off\n",
                                 nanite_mode_env_error().c_str(), nanite_mode_list());
        }
#ifdef GGML_BACKEND_DL
        else if (nanite_mode_get() == NANITE_MODE_OFF) {
            GGML_LOG_INFO("nanite: the module is loaded and off; NANITE_MODE=observe turns it on\n");
        }
#endif
        return true;
    }();
    GGML_UNUSED(warned);
    return &reg;
}

GGML_BACKEND_DL_IMPL(ggml_backend_nanite_reg)
