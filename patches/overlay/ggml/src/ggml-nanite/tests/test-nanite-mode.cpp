// Modes, from the program and from the environment: what is exposed, what is refused, what is said about it.

#include "check.h"
#include "ggml-backend.h"
#include "nanite-hooks.h"

#include <cstring>

static bool says(const char * text) {
    return nanite_hooks::status_json().find(text) != std::string::npos;
}

static bool refused(const char * mode) {
    try {
        nanite_hooks::set_mode(mode);
    } catch (const std::invalid_argument & e) {
        return strstr(e.what(), "off, observe") != nullptr;
    }
    return false;
}

int main(int argc, char ** argv) {
    const bool bad_environment = argc > 1 && strcmp(argv[1], "bad-environment") == 0;

    CHECK(ggml_backend_reg_by_name("Nanite"));
    CHECK(!ggml_backend_dev_by_name("Nanite")); // off: no device, so nothing in upstream can meet it
    CHECK(says("\"mode\":\"off\"") && says("\"active\":false") && says("\"code\":\"off\""));
    CHECK(says("\"code\":\"bad_mode\"") == bad_environment);
    CHECK(says("observer") == bad_environment);

    for (const char * mode : { "", "on", "OFF", "observe ", "static" }) {
        CHECK(refused(mode));
    }
    CHECK(says("\"mode\":\"off\"") && !ggml_backend_dev_by_name("Nanite"));

    nanite_hooks::set_mode("observe");
    nanite_hooks::set_mode("observe");
    size_t n = 0;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        n += strcmp(ggml_backend_dev_name(ggml_backend_dev_get(i)), "Nanite") == 0;
    }
    CHECK(n == 1);
    const ggml_backend_dev_t dev = ggml_backend_dev_by_name("Nanite");
    CHECK(ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_ACCEL);
    CHECK(says("\"mode\":\"observe\"") && says("\"active\":false") && says("\"code\":\"no_expert_weights\""));
    CHECK(nanite_hooks::metrics_text().find("\nnanite_enabled 1\n") != std::string::npos);

    nanite_hooks::set_mode("off");
    CHECK(nanite_hooks::metrics_text().find("\nnanite_enabled 0\n") != std::string::npos);
    printf("ok\n");
    return 0;
}
