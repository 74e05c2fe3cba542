#!/usr/bin/env bash
# What `observe` does beside a GPU: C++ tests, equal text with the experts on the CPU, and paired speeds.
#
#   ci/device/observe.sh BIN SYNTH.gguf RESULTS
#
# BIN holds llama-bench and llama-completion of a CUDA build; SYNTH.gguf is a file with a real model's shape, for speed;
# RESULTS receives one JSON file a measurement. Ends with 1 when a text differs.
set -euo pipefail
[[ $# -eq 3 ]] || { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$1 synth=$2 results=$3
mkdir -p "$results"
model=$root/tests/models/tiny-moe-mtp-Q4_0.gguf

failed=0
ctest --test-dir "$bin/../ggml/src/ggml-nanite" --output-on-failure --no-tests=error || failed=1
answer() { # MODE PROMPT: stock's and ours differ by the mode alone
    NANITE_REPORT=$results/report-$1-$(basename "$2" .txt).json "$bin/llama-completion" -m "$model" -f "$2" -n 256 \
        --temp 0 --ignore-eos --no-escape --no-repack --no-warmup -no-cnv --simple-io -t 8 -ngl 99 -cmoe --nanite "$1" \
        2>"$results/completion.log" </dev/null | sha256sum | cut -c 1-16
}
for prompt in "$root"/tests/prompts/*.txt; do
    off=$(answer off "$prompt") again=$(answer off "$prompt") observe=$(answer observe "$prompt")
    verdict=equal
    if [[ $off != "$again" ]]; then
        verdict="stock is not reproducible here"
    elif [[ $off != "$observe" ]]; then
        verdict=DIFFERENT
        failed=1
    fi
    echo "text $(basename "$prompt"): off $off $again observe $observe: $verdict"
done
for report in "$results"/report-observe-*.json; do
    [[ -f $report ]] || { echo "no report of observe: the device was inert"; failed=1; break; }
    python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(d["counters"], d["weights"])' "$report"
done

pair() { # NAME PAIRS BENCH_ARGUMENT...
    local name=$1 pairs=$2
    shift 2
    python3 "$root/ci/measure_pair.py" --out "$results/$name.json" --model "$synth" --pairs "$pairs" --no-checksum \
        --a "$bin/llama-bench" --b "$bin/llama-bench" --env-a NANITE_MODE=off --env-b NANITE_MODE=observe -- "$@" 2>&1 |
        tail -n 1
}
pair observe-tg-ncmoe40-t8 "${PAIRS:-10}" -p 0 -n 64 -r 2 -t 8 -ngl 99 -ncmoe 40 --repack 0
pair observe-tg-ncmoe27-t8 "${PAIRS:-10}" -p 0 -n 64 -r 2 -t 8 -ngl 99 -ncmoe 27 --repack 0
pair observe-pp512-ncmoe27-t8 "${PAIRS:-10}" -p 512 -n 0 -r 1 -t 8 -ngl 99 -ncmoe 27 --repack 0
exit "$failed"
