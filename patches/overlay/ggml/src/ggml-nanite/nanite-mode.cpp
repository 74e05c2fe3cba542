#include "nanite-mode.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

static const struct {
    nanite_mode  mode;
    const char * name;
} MODES[] = {
    { NANITE_MODE_OFF, "off" },
    { NANITE_MODE_OBSERVE, "observe" },
};

const char * nanite_mode_list(void) {
    return "off, observe";
}

const char * nanite_mode_name(nanite_mode mode) {
    for (const auto & m : MODES) {
        if (m.mode == mode) {
            return m.name;
        }
    }
    return "unknown";
}

bool nanite_mode_parse(const char * name, nanite_mode * mode) {
    for (const auto & m : MODES) {
        if (strcmp(m.name, name) == 0) {
            *mode = m.mode;
            return true;
        }
    }
    return false;
}

namespace {
struct mode_state {
    std::atomic<nanite_mode> mode{ NANITE_MODE_OFF };
    std::string              env_error;

    mode_state() {
        const char * env = getenv("NANITE_MODE");
        nanite_mode  m   = NANITE_MODE_OFF;
        if (env && *env && !nanite_mode_parse(env, &m)) {
            env_error = env;
        }
        mode.store(m, std::memory_order_relaxed);
    }
};
} // namespace

static mode_state & state(void) {
    static mode_state s;
    return s;
}

nanite_mode nanite_mode_get(void) {
    return state().mode.load(std::memory_order_relaxed);
}

void nanite_mode_set(nanite_mode mode) {
    state().mode.store(mode, std::memory_order_relaxed);
}

const std::string & nanite_mode_env_error(void) {
    return state().env_error;
}
