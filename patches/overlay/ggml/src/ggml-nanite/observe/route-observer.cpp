#include "route-observer.h"

#include <algorithm>
#include <cstring>
#include <functional>

const char * nanite_fallback_name(nanite_fallback reason) {
    switch (reason) {
        case NANITE_FALLBACK_IDS_NOT_HOST: return "ids_not_host";
        case NANITE_FALLBACK_BAD_IDS: return "bad_ids";
        case NANITE_FALLBACK_NO_LAYER: return "no_layer";
        case NANITE_FALLBACK_PART_CHAIN: return "part_chain";
        case NANITE_FALLBACK_NO_EXPERTS: return "no_experts";
        case NANITE_FALLBACK_TABLE_FULL: return "table_full";
        case NANITE_FALLBACK_COUNT: break;
    }
    return "unknown";
}

void nanite_route_union::clear() {
    for (const int32_t id : experts) {
        counts[id] = 0;
    }
    experts.clear();
    n_used      = 0;
    n_tokens    = 0;
    all_experts = false;
}

bool nanite_route_union::assign(const void * ids, int64_t n_used_new, int64_t n_tokens_new, size_t nb0, size_t nb1,
                                int64_t n_experts) {
    clear();
    if (n_experts < 0 || n_used_new < 0 || n_tokens_new < 0) {
        return false;
    }
    if ((int64_t) counts.size() < n_experts) {
        counts.resize(n_experts); // only when a layer with more experts than any before is seen
        experts.reserve(n_experts);
    }
    for (int64_t t = 0; t < n_tokens_new; t++) {
        const char * row = (const char *) ids + t * nb1;
        for (int64_t k = 0; k < n_used_new; k++) {
            int32_t id;
            memcpy(&id, row + k * nb0, sizeof(id)); // strides need not be aligned
            if (id < 0 || id >= n_experts) {
                clear();
                return false;
            }
            if (counts[id]++ == 0) {
                experts.push_back(id);
            }
        }
    }
    n_used      = n_used_new;
    n_tokens    = n_tokens_new;
    all_experts = n_experts > 1 && n_tokens > 0 && n_used == n_experts && (int64_t) experts.size() == n_experts &&
                  std::all_of(experts.begin(), experts.end(), [&](int32_t id) { return counts[id] == n_tokens; });
    return true;
}

struct nanite_route_observer::layer_record {
    const void *      key;
    int32_t           model;
    int32_t           layer;
    int32_t           n_experts;
    std::atomic<bool> live{ true };

    std::atomic<uint64_t> calls{ 0 };
    std::atomic<uint64_t> warmup_calls{ 0 };
    std::atomic<uint64_t> tokens{ 0 };
    std::atomic<uint64_t> assignments{ 0 };
    std::atomic<uint64_t> unique_experts{ 0 };
    std::atomic<uint64_t> bytes_touched{ 0 };

    std::unique_ptr<std::atomic<uint64_t>[]> counts;
};

static void add(std::atomic<uint64_t> & counter, uint64_t n) {
    counter.fetch_add(n, std::memory_order_relaxed);
}

static uint64_t get(const std::atomic<uint64_t> & counter) {
    return counter.load(std::memory_order_relaxed);
}

nanite_route_observer::nanite_route_observer() : table(new std::atomic<layer_record *>[TABLE_SIZE]) {
    for (size_t i = 0; i < TABLE_SIZE; i++) {
        table[i].store(nullptr, std::memory_order_relaxed);
    }
    for (auto & counter : fallbacks) {
        counter.store(0, std::memory_order_relaxed);
    }
}

nanite_route_observer::~nanite_route_observer() = default;

static size_t slot_of(const void * key) {
    return (size_t) (((uint64_t) (uintptr_t) key * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

// Retired records keep their table slot: probing passes over them, so a reader never misses a live one.
nanite_route_observer::layer_record * nanite_route_observer::find(const void * key) const {
    for (size_t i = 0, s = slot_of(key); i < TABLE_SIZE; i++, s++) {
        layer_record * rec = table[s % TABLE_SIZE].load(std::memory_order_acquire);
        if (!rec) {
            return nullptr;
        }
        if (rec->key == key && rec->live.load(std::memory_order_relaxed)) {
            return rec;
        }
    }
    return nullptr;
}

nanite_route_observer::layer_record * nanite_route_observer::insert(const void * key, int32_t layer,
                                                                    int32_t n_experts) {
    std::lock_guard<std::mutex> lock(mutex); // once a layer and model, never in a steady decode
    if (layer_record * rec = find(key)) {
        return rec;
    }
    for (size_t i = 0, s = slot_of(key); i < TABLE_SIZE; i++, s++) {
        std::atomic<layer_record *> & slot = table[s % TABLE_SIZE];
        const layer_record *          old  = slot.load(std::memory_order_relaxed);
        if (old && old->live.load(std::memory_order_relaxed)) {
            continue;
        }
        auto rec       = std::make_unique<layer_record>();
        rec->key       = key;
        rec->layer     = layer;
        rec->n_experts = n_experts;
        rec->model =
            (int32_t) std::count_if(records.begin(), records.end(), [&](const auto & r) { return r->layer == layer; });
        rec->counts.reset(new std::atomic<uint64_t>[n_experts]);
        for (int32_t e = 0; e < n_experts; e++) {
            rec->counts[e].store(0, std::memory_order_relaxed);
        }
        records.push_back(std::move(rec));
        slot.store(records.back().get(), std::memory_order_release);
        return records.back().get();
    }
    return nullptr;
}

bool nanite_route_observer::record(const void * key, int32_t layer, int32_t n_experts,
                                   const nanite_route_union & routes, uint64_t bytes) {
    layer_record * rec = find(key);
    if (!rec) {
        rec = insert(key, layer, n_experts);
        if (!rec) {
            count_fallback(NANITE_FALLBACK_TABLE_FULL);
            return false;
        }
    }
    if (routes.all_experts) {
        add(rec->warmup_calls, 1);
        return true;
    }
    add(rec->calls, 1);
    add(rec->tokens, routes.n_tokens);
    add(rec->assignments, routes.n_tokens * routes.n_used);
    add(rec->unique_experts, routes.experts.size());
    add(rec->bytes_touched, bytes);
    for (const int32_t id : routes.experts) {
        if (id < rec->n_experts) {
            add(rec->counts[id], routes.counts[id]);
        }
    }
    return true;
}

void nanite_route_observer::forget(const void * begin, const void * end) {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto & rec : records) {
        if (!std::less<const void *>()(rec->key, begin) && std::less<const void *>()(rec->key, end)) {
            rec->live.store(false, std::memory_order_relaxed);
        }
    }
}

std::vector<nanite_layer_counts> nanite_route_observer::snapshot() const {
    std::vector<nanite_layer_counts> out;
    {
        std::lock_guard<std::mutex> lock(mutex);
        out.reserve(records.size());
        for (const auto & rec : records) {
            nanite_layer_counts c;
            c.model          = rec->model;
            c.layer          = rec->layer;
            c.n_experts      = rec->n_experts;
            c.live           = rec->live.load(std::memory_order_relaxed);
            c.calls          = get(rec->calls);
            c.warmup_calls   = get(rec->warmup_calls);
            c.tokens         = get(rec->tokens);
            c.assignments    = get(rec->assignments);
            c.unique_experts = get(rec->unique_experts);
            c.bytes_touched  = get(rec->bytes_touched);
            c.counts.resize(rec->n_experts);
            for (int32_t e = 0; e < rec->n_experts; e++) {
                c.counts[e] = get(rec->counts[e]);
            }
            out.push_back(std::move(c));
        }
    }
    std::sort(out.begin(), out.end(), [](const nanite_layer_counts & a, const nanite_layer_counts & b) {
        return a.model != b.model ? a.model < b.model : a.layer < b.layer;
    });
    return out;
}
