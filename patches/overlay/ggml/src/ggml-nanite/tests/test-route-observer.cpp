// The route observer against a slow model of it: sets and maps, written without looking at the table.

#include "check.h"
#include "observe/route-observer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace {
struct model_layer {
    int      model = 0, layer = 0, n_experts = 0;
    bool     live  = true;
    uint64_t calls = 0, warmups = 0, tokens = 0, assignments = 0, unique = 0, bytes = 0;

    std::map<int, uint64_t> counts;
};

// ids laid out with gaps, as a view of a larger sorted tensor is
struct strided_ids {
    std::vector<char> bytes;
    size_t            nb0, nb1;
    int64_t           n_used, n_tokens;

    strided_ids(const std::vector<std::vector<int32_t>> & rows, size_t nb0, size_t gap)
        : nb0(nb0),
          n_used(rows.empty() ? 0 : (int64_t) rows[0].size()),
          n_tokens((int64_t) rows.size()) {
        nb1 = nb0 * n_used + gap;
        bytes.assign(nb1 * n_tokens + 8, (char) 0xEE); // what lies between is no valid id
        for (int64_t t = 0; t < n_tokens; t++) {
            for (int64_t k = 0; k < n_used; k++) {
                memcpy(bytes.data() + t * nb1 + k * nb0, &rows[t][k], 4);
            }
        }
    }

    bool load(nanite_route_union & u, int n_experts) const {
        return u.assign(bytes.data(), n_used, n_tokens, nb0, nb1, n_experts);
    }
};
} // namespace

static void test_union_by_hand() {
    nanite_route_union u;
    const strided_ids  ids({ { 3, 1 }, { 1, 0 }, { 3, 1 } }, 4, 12);
    CHECK(ids.load(u, 4));
    CHECK(u.experts == std::vector<int32_t>({ 3, 1, 0 }));
    CHECK(u.counts[0] == 1 && u.counts[1] == 3 && u.counts[2] == 0 && u.counts[3] == 2);
    CHECK(u.n_used == 2 && u.n_tokens == 3 && !u.all_experts);

    // an id out of range on either side leaves nothing behind, also for the next call
    CHECK(!strided_ids({ { 0, 4 } }, 4, 0).load(u, 4));
    CHECK(u.experts.empty() && u.n_tokens == 0 && u.counts[0] == 0 && u.counts[1] == 0 && u.counts[3] == 0);
    CHECK(!strided_ids({ { -1, 2 } }, 4, 0).load(u, 4));
    CHECK(u.experts.empty() && u.counts[2] == 0);

    // every token names every expert: the warm-up; not so when one token repeats an expert
    CHECK(strided_ids({ { 1, 0, 2 }, { 2, 1, 0 } }, 4, 4).load(u, 3) && u.all_experts);
    CHECK(strided_ids({ { 1, 0, 2 }, { 2, 1, 1 } }, 4, 4).load(u, 3) && !u.all_experts);
    CHECK(strided_ids({ { 0 } }, 4, 0).load(u, 1) && !u.all_experts); // one expert is no warm-up
    // fewer experts than the layer before: nothing of it is left
    CHECK(strided_ids({ { 1 } }, 8, 0).load(u, 2) && u.experts.size() == 1 && u.counts[1] == 1 && u.counts[0] == 0);
}

static void test_against_model(unsigned seed) {
    std::mt19937 rng(seed);
    const auto   pick = [&](int lo, int hi) {
        return std::uniform_int_distribution<int>(lo, hi)(rng);
    };
    nanite_route_observer observer;
    nanite_route_union    u;
    static char           weights[64 * 1024]; // addresses only

    std::vector<model_layer> layers; // all ever made
    std::map<size_t, size_t> at;     // offset of live weights -> layers
    uint64_t                 bad = 0;

    for (int step = 0; step < 4000; step++) {
        const int action = pick(0, 99);
        if (action < 2) {
            const size_t begin = pick(0, 63) * 64, end = begin + pick(1, 16) * 64;
            observer.forget(weights + begin, weights + end);
            for (auto it = at.lower_bound(begin); it != at.end() && it->first < end;) {
                layers[it->second].live = false;
                it                      = at.erase(it);
            }
            continue;
        }
        const size_t offset    = pick(0, 63) * 64;
        const int    layer     = (int) (offset / 64) % 7; // several "models" share a layer number
        const int    n_experts = 4 + layer * 3;
        const int    n_tokens  = pick(1, 9);
        const bool   warmup    = action < 8;
        const int    n_used    = warmup ? n_experts : pick(1, 4);

        std::vector<std::vector<int32_t>> rows(n_tokens);
        for (auto & row : rows) {
            std::vector<int32_t> all(n_experts);
            for (int e = 0; e < n_experts; e++) {
                all[e] = e;
            }
            std::shuffle(all.begin(), all.end(), rng);
            row.assign(all.begin(), all.begin() + n_used);
        }
        const bool make_bad = action >= 95;
        if (make_bad) {
            rows[pick(0, n_tokens - 1)][pick(0, n_used - 1)] = pick(0, 1) ? -pick(1, 1000) : n_experts + pick(0, 1000);
        }
        if (!strided_ids(rows, 4 * pick(1, 3), pick(0, 13)).load(u, n_experts)) {
            CHECK(make_bad);
            observer.count_fallback(NANITE_FALLBACK_BAD_IDS);
            bad++;
            continue;
        }
        CHECK(!make_bad);
        const uint64_t bytes = pick(1, 1000);
        CHECK(observer.record(weights + offset, layer, n_experts, u, bytes));

        if (!at.count(offset)) {
            model_layer m;
            m.layer     = layer;
            m.n_experts = n_experts;
            m.model     = (int) std::count_if(layers.begin(), layers.end(), [&](auto & l) { return l.layer == layer; });
            at[offset]  = layers.size();
            layers.push_back(m);
        }
        model_layer & m = layers[at[offset]];
        if (n_used == n_experts) {
            m.warmups++;
            continue;
        }
        std::set<int> unique;
        for (const auto & row : rows) {
            for (const int32_t id : row) {
                m.counts[id]++;
                m.assignments++;
                unique.insert(id);
            }
        }
        m.calls++;
        m.tokens += n_tokens;
        m.unique += unique.size();
        m.bytes += bytes;
    }

    std::sort(layers.begin(), layers.end(), [](const model_layer & a, const model_layer & b) {
        return a.model != b.model ? a.model < b.model : a.layer < b.layer;
    });
    const auto got = observer.snapshot();
    CHECK(got.size() == layers.size());
    for (size_t i = 0; i < got.size(); i++) {
        const auto & g = got[i];
        const auto & m = layers[i];
        CHECK(g.model == m.model && g.layer == m.layer && g.n_experts == m.n_experts && g.live == m.live);
        CHECK(g.calls == m.calls && g.warmup_calls == m.warmups && g.tokens == m.tokens);
        CHECK(g.assignments == m.assignments && g.unique_experts == m.unique && g.bytes_touched == m.bytes);
        for (int e = 0; e < m.n_experts; e++) {
            const auto it = m.counts.find(e);
            CHECK(g.counts[e] == (it == m.counts.end() ? 0 : it->second));
        }
    }
    CHECK(observer.fallback_count(NANITE_FALLBACK_BAD_IDS) == bad && bad > 0);
}

static void test_table_full() {
    nanite_route_observer observer;
    nanite_route_union    u;
    CHECK(strided_ids({ { 0 } }, 4, 0).load(u, 2));
    std::vector<char> weights(nanite_route_observer::TABLE_SIZE + 1);
    for (size_t i = 0; i < nanite_route_observer::TABLE_SIZE; i++) {
        CHECK(observer.record(&weights[i], 0, 2, u, 1));
    }
    CHECK(!observer.record(&weights.back(), 0, 2, u, 1));
    CHECK(observer.fallback_count(NANITE_FALLBACK_TABLE_FULL) == 1);
    // a model that goes makes room
    observer.forget(&weights[0], &weights[10]);
    CHECK(observer.record(&weights.back(), 0, 2, u, 1));
    CHECK(observer.record(&weights[11], 0, 2, u, 1)); // a live one is still found, behind retired ones too
    CHECK(observer.snapshot().size() == nanite_route_observer::TABLE_SIZE + 1);
}

static void test_threads() {
    nanite_route_observer observer;
    const int             n_threads = 4, rounds = 3000, n_layers = 13;
    static char           weights[n_layers];

    std::vector<std::thread> threads;
    for (int i = 0; i < n_threads; i++) {
        threads.emplace_back([&, i] {
            nanite_route_union u;
            const strided_ids  ids({ { i, 5 }, { 5, 6 } }, 4, 0); // each thread its own expert, and two shared ones
            for (int r = 0; r < rounds; r++) {
                CHECK(ids.load(u, 8));
                CHECK(observer.record(&weights[r % n_layers], r % n_layers, 8, u, 3));
                if (r % 500 == 0) {
                    for (const auto & l : observer.snapshot()) {
                        CHECK(l.layer < n_layers && l.model == 0);
                    }
                }
            }
        });
    }
    for (auto & t : threads) {
        t.join();
    }
    uint64_t   own[n_threads] = {}, five = 0, six = 0, calls = 0, bytes = 0;
    const auto got = observer.snapshot();
    CHECK(got.size() == (size_t) n_layers);
    for (const auto & l : got) {
        for (int i = 0; i < n_threads; i++) {
            own[i] += l.counts[i];
        }
        five += l.counts[5];
        six += l.counts[6];
        calls += l.calls;
        bytes += l.bytes_touched;
        CHECK(l.counts[4] == 0 && l.counts[7] == 0);
        CHECK(l.assignments == l.calls * 4 && l.tokens == l.calls * 2 && l.unique_experts == l.calls * 3);
    }
    for (int i = 0; i < n_threads; i++) {
        CHECK(own[i] == (uint64_t) rounds);
    }
    CHECK(calls == (uint64_t) n_threads * rounds && five == calls * 2 && six == calls && bytes == calls * 3);
}

int main() {
    test_union_by_hand();
    for (unsigned seed = 1; seed <= 20; seed++) {
        test_against_model(seed);
    }
    test_table_full();
    test_threads();
    printf("ok\n");
    return 0;
}
