#pragma once

// The only door from upstream's programs into Nanite. Header only: it reaches the backend through the registry, so it
// works the same whether Nanite is linked in, loaded as a module, or absent.
//
// Functions that the backend's get_proc_address serves (all thread safe):
//   "nanite_set_mode"      bool (const char * mode)                false: not a mode of this build
//   "nanite_modes"         const char * (void)                     the modes of this build, comma separated
//   "nanite_status"        size_t (char * dst, size_t size)        the document of GET /nanite, as snprintf would write it
//   "nanite_metrics"       size_t (char * dst, size_t size)        the same counters in Prometheus' text format

#include "ggml-backend.h"

#include <stdexcept>
#include <string>

namespace nanite_hooks {

inline void * proc(const char * name) {
    ggml_backend_reg_t reg = ggml_backend_reg_by_name("Nanite");
    return reg ? ggml_backend_reg_get_proc_address(reg, name) : nullptr;
}

inline std::string text(const char * name) {
    typedef size_t (*text_fn)(char * dst, size_t size);
    const text_fn fn = (text_fn) proc(name);
    std::string   out;
    for (size_t n = fn ? fn(nullptr, 0) : 0; n > out.size(); n = fn(&out[0], out.size())) {
        out.resize(n + 1); // counters move between the two calls: ask again until the answer fits
    }
    return out.c_str();
}

// Choose the mode; call it before a model is loaded. Throws std::invalid_argument with a line for the user.
inline void set_mode(const std::string & mode) {
    ggml_backend_load_all();
    typedef bool (*set_fn)(const char * mode);
    typedef const char * (*modes_fn)();
    const set_fn   set   = (set_fn) proc("nanite_set_mode");
    const modes_fn modes = (modes_fn) proc("nanite_modes");
    if (!set || !modes) {
        throw std::invalid_argument("the Nanite backend is not in this build and was not loaded");
    }
    if (!set(mode.c_str())) {
        throw std::invalid_argument("unknown Nanite mode '" + mode + "', this build has: " + modes());
    }
}

inline std::string status_json() {
    const std::string json = text("nanite_status");
    return json.empty() ? "{\"schema\":1,\"mode\":\"off\",\"active\":false,"
                          "\"reasons\":[{\"code\":\"absent\",\"detail\":\"the Nanite backend is not loaded\"}]}"
                        : json;
}

inline std::string metrics_text() {
    return text("nanite_metrics");
}

} // namespace nanite_hooks
