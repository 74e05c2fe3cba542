// Counts routed experts through llama.cpp's public evaluation callback, without any of our code: the independent count
// that the observer's is held against.
//
//   route-count MODEL PROMPT_FILE N_PREDICT N_THREADS
//
// Decodes the prompt, then generates greedily (end-of-generation tokens are never chosen), and prints one line for each
// routed layer: "layer tokens count[0] count[1] …". The last sampled token is not decoded, as in llama-completion.

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

struct layer_count {
    long long              tokens = 0;
    std::vector<long long> experts;
};

struct counter {
    int                        n_expert = 0;
    std::map<int, layer_count> layers;
};

static bool on_node(ggml_tensor * t, bool ask, void * data) {
    static const char NAME[] = "ffn_moe_topk-";
    if (strncmp(t->name, NAME, sizeof(NAME) - 1) != 0) {
        return !ask;
    }
    if (ask) {
        return true;
    }
    counter *     c     = (counter *) data;
    layer_count & layer = c->layers[atoi(t->name + sizeof(NAME) - 1)];
    layer.experts.resize(c->n_expert);
    layer.tokens += t->ne[1];
    std::vector<int> row(t->ne[0]);
    for (int64_t i = 0; i < t->ne[1]; i++) {
        ggml_backend_tensor_get(t, row.data(), i * t->nb[1], row.size() * sizeof(int));
        for (const int id : row) {
            layer.experts.at(id)++;
        }
    }
    return true;
}

int main(int argc, char ** argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s MODEL PROMPT_FILE N_PREDICT N_THREADS\n", argv[0]);
        return 2;
    }
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level >= GGML_LOG_LEVEL_ERROR) {
                fputs(text, stderr);
            }
        },
        nullptr);
    std::ifstream file(argv[2], std::ios::binary);
    std::string   prompt((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!prompt.empty() && prompt.back() == '\n') {
        prompt.pop_back(); // as llama-completion does with -f
    }

    ggml_backend_load_all();
    llama_model_params mp = llama_model_default_params();
    mp.use_extra_bufts    = false; // --no-repack
    llama_model * model   = llama_model_load_from_file(argv[1], mp);
    if (!model) {
        return 3;
    }
    counter counts;
    char    key[256], value[256];
    llama_model_meta_val_str(model, "general.architecture", key, 128);
    strcat(key, ".expert_count");
    if (llama_model_meta_val_str(model, key, value, sizeof(value)) < 0) {
        fprintf(stderr, "no %s\n", key);
        return 3;
    }
    counts.n_expert = atoi(value);

    llama_context_params cp   = llama_context_default_params();
    cp.n_ctx                  = 2048;
    cp.n_threads              = atoi(argv[4]);
    cp.n_threads_batch        = atoi(argv[4]);
    cp.cb_eval                = on_node;
    cp.cb_eval_user_data      = &counts;
    llama_context *     ctx   = llama_init_from_model(model, cp);
    const llama_vocab * vocab = llama_model_get_vocab(model);

    std::vector<llama_token> tokens(prompt.size() + 8);
    tokens.resize(
        llama_tokenize(vocab, prompt.data(), (int) prompt.size(), tokens.data(), (int) tokens.size(), true, true));
    const int   n_vocab = llama_vocab_n_tokens(vocab);
    llama_token next    = 0;
    for (int i = 0; i < atoi(argv[3]); i++) {
        llama_batch batch =
            i == 0 ? llama_batch_get_one(tokens.data(), (int) tokens.size()) : llama_batch_get_one(&next, 1);
        if (llama_decode(ctx, batch) != 0) {
            return 1;
        }
        const float * logits = llama_get_logits_ith(ctx, -1);
        next                 = -1;
        for (int v = 0; v < n_vocab; v++) {
            if (!llama_vocab_is_eog(vocab, v) && (next < 0 || logits[v] > logits[next])) {
                next = v;
            }
        }
    }
    for (const auto & l : counts.layers) {
        printf("%d %lld", l.first, l.second.tokens);
        for (const long long n : l.second.experts) {
            printf(" %lld", n);
        }
        printf("\n");
    }
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
