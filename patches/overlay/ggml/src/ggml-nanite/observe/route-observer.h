#pragma once

// Counts the native routing decisions: which experts each layer chose, how many distinct ones a call touched, how many
// bytes of weights that is. Plain C++17, no ggml: the observe plane may look, and never triggers anything.
//
// Threads: `nanite_route_union` and `nanite_layer_call` belong to one backend instance (one thread at a time).
// `nanite_route_observer` is shared by all instances: record() is lock free but for the first call of a layer;
// forget() and snapshot() take the mutex that also guards insertion.
//
// Invariants
//   1. A layer's counts sum to its `assignments`; each call adds n_used * n_tokens to both.
//   2. `unique_experts` of a call is the size of the set of its ids; it is at most min(n_experts, assignments).
//   3. A call with an id outside 0 .. n_experts-1 changes no route count; it is counted as bad_ids.
//   4. A call that names all experts for every token (llama.cpp's warm-up) is no decision: it is counted in
//      `warmup_calls` alone.
//   5. Records are never freed while the process runs: a snapshot may read one that forget() has retired.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

enum nanite_fallback : int {
    NANITE_FALLBACK_IDS_NOT_HOST, // the ids of a call were not readable from the host
    NANITE_FALLBACK_BAD_IDS,      // an id was outside of the layer's experts
    NANITE_FALLBACK_NO_LAYER,     // the weight's name holds no layer number
    NANITE_FALLBACK_PART_CHAIN,   // a call held gate or up without the down projection that closes the chain
    NANITE_FALLBACK_NO_EXPERTS,   // a call held no expert product at all
    NANITE_FALLBACK_TABLE_FULL,   // more layers than the table holds
    NANITE_FALLBACK_COUNT,
};

const char * nanite_fallback_name(nanite_fallback reason);

// The set of experts that one call's ids name, with how often each is named. Buffers are reused from call to call.
struct nanite_route_union {
    std::vector<uint32_t> counts;  // [n_experts] how often, valid for the ids in `experts`
    std::vector<int32_t>  experts; // distinct ids, in order of first use
    int64_t               n_used      = 0;
    int64_t               n_tokens    = 0;
    bool                  all_experts = false; // every token names every expert: a warm-up, not a decision

    // `ids`: i32[n_tokens][n_used] with byte strides nb0 (between a token's ids) and nb1 (between tokens).
    // false: an id is out of range; the union is then empty.
    bool assign(const void * ids, int64_t n_used, int64_t n_tokens, size_t nb0, size_t nb1, int64_t n_experts);
    void clear();
};

struct nanite_layer_counts {
    int32_t               model          = 0; // ordinal among the models of this process that have this layer number
    int32_t               layer          = 0;
    int32_t               n_experts      = 0;
    bool                  live           = true; // false: its model was unloaded
    uint64_t              calls          = 0;
    uint64_t              warmup_calls   = 0;
    uint64_t              tokens         = 0; // token positions
    uint64_t              assignments    = 0; // (position, expert) pairs
    uint64_t              unique_experts = 0; // summed over calls
    uint64_t              bytes_touched  = 0; // distinct expert weights read, summed over calls
    std::vector<uint64_t> counts;             // [n_experts] assignments by expert
};

class nanite_route_observer {
  public:
    nanite_route_observer();
    ~nanite_route_observer();
    nanite_route_observer(const nanite_route_observer &)             = delete;
    nanite_route_observer & operator=(const nanite_route_observer &) = delete;

    // One finished routed layer. `key` is the address of its down projection's weights: it tells layers of different
    // models apart. false: the table is full, nothing was recorded.
    bool record(const void * key, int32_t layer, int32_t n_experts, const nanite_route_union & routes, uint64_t bytes);

    // The weights in [begin, end) are gone: their records are retired and a new model at the same address gets new ones.
    void forget(const void * begin, const void * end);

    void     count_fallback(nanite_fallback reason) { fallbacks[reason].fetch_add(1, std::memory_order_relaxed); }
    uint64_t fallback_count(nanite_fallback reason) const { return fallbacks[reason].load(std::memory_order_relaxed); }

    // Every record so far, ordered by (model, layer). Counters are read one by one while others may still write.
    std::vector<nanite_layer_counts> snapshot() const;

    static constexpr size_t TABLE_SIZE =
        2048; // power of two; a process with more live layers loses routes, and says so

  private:
    struct layer_record;

    layer_record * find(const void * key) const;
    layer_record * insert(const void * key, int32_t layer, int32_t n_experts);

    mutable std::mutex                             mutex; // guards insertion and retirement
    std::unique_ptr<std::atomic<layer_record *>[]> table;
    std::vector<std::unique_ptr<layer_record>>     records;
    std::atomic<uint64_t>                          fallbacks[NANITE_FALLBACK_COUNT];
};
