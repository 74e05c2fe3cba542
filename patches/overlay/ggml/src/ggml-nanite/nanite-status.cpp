#include "nanite-status.h"

#include "ggml-impl.h"
#include "nanite-backend.h"
#include "nanite-buffer.h"
#include "nanite-device.h"
#include "nanite-mode.h"
#include "observe/route-observer.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

namespace {
struct totals {
    uint64_t layers = 0, layer_calls = 0, warmup_calls = 0, tokens = 0, assignments = 0, unique_experts = 0,
             bytes_touched = 0;
};
} // namespace

static std::string quoted(const std::string & text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if ((unsigned char) c < 0x20 || (unsigned char) c >= 0x7f) {
            char buf[8];
            snprintf(buf, sizeof(buf), "\\u%04x", (unsigned char) c);
            out += buf;
        } else {
            out += c;
        }
    }
    return out + "\"";
}

static std::string field(const char * name, uint64_t value) {
    return quoted(name) + ":" + std::to_string(value);
}

// `tokens`: positions that passed the busiest layer of each model, summed over the models (upstream computes only the
// rows that are asked for in the last layer, so layers differ).
static totals sum(const std::vector<nanite_layer_counts> & layers) {
    totals                      t;
    std::map<int32_t, uint64_t> tokens;
    for (const auto & l : layers) {
        t.layers += 1;
        t.layer_calls += l.calls;
        t.warmup_calls += l.warmup_calls;
        t.assignments += l.assignments;
        t.unique_experts += l.unique_experts;
        t.bytes_touched += l.bytes_touched;
        tokens[l.model] = std::max(tokens[l.model], l.tokens);
    }
    for (const auto & m : tokens) {
        t.tokens += m.second;
    }
    return t;
}

static std::string reasons_json(nanite_mode mode, bool active, const nanite_weight_totals & weights) {
    std::string out;
    const auto  reason = [&](const char * code, const std::string & detail) {
        out += (out.empty() ? "" : ",") + ("{\"code\":" + quoted(code)) + ",\"detail\":" + quoted(detail) + "}";
    };
    if (!nanite_mode_env_error().empty()) {
        reason("bad_mode", "NANITE_MODE is '" + nanite_mode_env_error() + "', this build has: " + nanite_mode_list());
    }
    if (mode == NANITE_MODE_OFF) {
        reason("off", "every op is declined");
    } else if (!active) {
        if (weights.tensors == 0 && weights.copied_bytes == 0) {
            reason("no_expert_weights", "no routed expert lies on the CPU: a dense model, or all experts on a GPU");
        } else {
            reason("no_calls", "expert weights are loaded and no routed layer has run yet");
        }
    }
    if (nanite_buffer_unpinned() > 0) {
        reason("not_pinned", "memory for a GPU's copies could not be pinned: they are slower");
    }
    if (mode != NANITE_MODE_OFF && weights.copied_bytes > 0) {
        reason("weights_copied", "expert weights were copied instead of mapped (the load mode asks for it)");
    }
    return out;
}

static std::string layer_json(const nanite_layer_counts & l) {
    std::string out = "{" + field("model", l.model) + "," + field("layer", l.layer) +
                      ",\"live\":" + (l.live ? "true" : "false") + "," + field("n_experts", l.n_experts) + "," +
                      field("calls", l.calls) + "," + field("warmup_calls", l.warmup_calls) + "," +
                      field("tokens", l.tokens) + "," + field("assignments", l.assignments) + "," +
                      field("unique_experts", l.unique_experts) + "," + field("bytes_touched", l.bytes_touched) +
                      ",\"counts\":[";
    for (size_t e = 0; e < l.counts.size(); e++) {
        out += (e ? "," : "") + std::to_string(l.counts[e]);
    }
    return out + "]}";
}

static std::string fallbacks_json(void) {
    std::string out;
    for (int r = 0; r < NANITE_FALLBACK_COUNT; r++) {
        const uint64_t n = nanite_device_observer().fallback_count((nanite_fallback) r);
        if (n > 0) {
            out += (out.empty() ? "" : ",") + field(nanite_fallback_name((nanite_fallback) r), n);
        }
    }
    return "{" + out + "}";
}

std::string nanite_status_json(void) {
    const nanite_mode           mode    = nanite_mode_get();
    const auto                  layers  = nanite_device_observer().snapshot();
    const nanite_weight_totals  weights = nanite_buffer_totals();
    const nanite_backend_totals backend = nanite_backend_totals_get();
    const totals                t       = sum(layers);
    const bool                  active  = mode != NANITE_MODE_OFF && t.layer_calls + t.warmup_calls > 0;

    std::string out =
        "{\"schema\":1,\"mode\":" + quoted(nanite_mode_name(mode)) + ",\"modes\":" + quoted(nanite_mode_list()) +
        ",\"active\":" + (active ? "true" : "false") + ",\"reasons\":[" + reasons_json(mode, active, weights) +
        "],\"weights\":{" + field("tensors", weights.tensors) + "," + field("mapped_bytes", weights.mapped_bytes) +
        "," + field("copied_bytes", weights.copied_bytes) + "},\"counters\":{" + field("layers", t.layers) + "," +
        field("layer_calls", t.layer_calls) + "," + field("warmup_calls", t.warmup_calls) + "," +
        field("tokens", t.tokens) + "," + field("assignments", t.assignments) + "," +
        field("unique_experts", t.unique_experts) + "," + field("bytes_touched", t.bytes_touched) + "," +
        field("graphs", backend.graphs) + "," + field("nodes", backend.nodes) + "," +
        field("products", backend.products) + ",\"fallbacks\":" + fallbacks_json() + "},\"time\":{" +
        field("compute_ns", backend.compute_ns) + "," + field("observe_ns", backend.observe_ns) + "},\"layers\":[";
    for (size_t i = 0; i < layers.size(); i++) {
        out += (i ? "," : "") + layer_json(layers[i]);
    }
    return out + "]}";
}

std::string nanite_status_metrics(void) {
    const nanite_mode           mode    = nanite_mode_get();
    const nanite_weight_totals  weights = nanite_buffer_totals();
    const nanite_backend_totals backend = nanite_backend_totals_get();
    const totals                t       = sum(nanite_device_observer().snapshot());

    std::string out;
    const auto  metric = [&](const char * name, const char * type, const char * help, uint64_t value) {
        out += std::string("# HELP nanite_") + name + " " + help + "\n# TYPE nanite_" + name + " " + type +
               "\nnanite_" + name + " " + std::to_string(value) + "\n";
    };
    metric("enabled", "gauge", "1 when a mode other than off is set", mode != NANITE_MODE_OFF);
    metric("layers", "gauge", "Routed layers taken", t.layers);
    metric("weights_mapped_bytes", "gauge", "Expert weights used in place from the mapped file", weights.mapped_bytes);
    metric("weights_copied_bytes", "gauge", "Expert weights copied into allocated memory", weights.copied_bytes);
    metric("layer_calls_total", "counter", "Calls of routed layers", t.layer_calls);
    metric("tokens_total", "counter", "Token positions through the busiest layer", t.tokens);
    metric("assignments_total", "counter", "Routed (position, expert) pairs", t.assignments);
    metric("unique_experts_total", "counter", "Distinct experts of each layer call, summed", t.unique_experts);
    metric("bytes_touched_total", "counter", "Distinct expert weight bytes of each layer call, summed",
           t.bytes_touched);
    metric("graphs_total", "counter", "Splits that the scheduler gave to Nanite", backend.graphs);
    metric("compute_nanoseconds_total", "counter", "Wall time in those splits", backend.compute_ns);
    out += "# HELP nanite_fallbacks_total Calls that were not counted or not whole, by reason\n"
           "# TYPE nanite_fallbacks_total counter\n";
    for (int r = 0; r < NANITE_FALLBACK_COUNT; r++) {
        const auto reason = (nanite_fallback) r;
        out += std::string("nanite_fallbacks_total{reason=\"") + nanite_fallback_name(reason) + "\"} " +
               std::to_string(nanite_device_observer().fallback_count(reason)) + "\n";
    }
    return out;
}

void nanite_status_write_report(void) {
    const char * path = getenv("NANITE_REPORT");
    if (!path || !*path) {
        return;
    }
    const std::string part = std::string(path) + ".part";
    const std::string json = nanite_status_json() + "\n";
    FILE *            file = fopen(part.c_str(), "wb");
    bool              ok   = file != nullptr;
    if (file) {
        ok = fwrite(json.data(), 1, json.size(), file) == json.size();
        ok = fclose(file) == 0 && ok;
        if (ok) {
            remove(path); // rename does not replace on every system
            ok = rename(part.c_str(), path) == 0;
        }
    }
    if (!ok) {
        GGML_LOG_ERROR("nanite: could not write the report that NANITE_REPORT asks for: %s\n", path);
        remove(part.c_str());
    }
}
