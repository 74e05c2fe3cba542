#!/usr/bin/env bash
# Build the CUDA runtime on a machine without a network: upstream comes as an archive, Python's packages are not needed.
#
#   ci/device/build.sh UPSTREAM.tar.xz FOLDER [CMAKE_ARGUMENT...]
#
# UPSTREAM.tar.xz is the pinned llama.cpp tree without its git directory; FOLDER gets src/ (patched, with the overlay)
# and cuda/bin. With a network, `nanite-tools build cuda` does the same from a clone. A finished build is not repeated.
set -euo pipefail
[[ $# -ge 2 ]] || { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
upstream=$1 folder=$2
shift 2

if [[ ! -f $folder/src/.prepared ]]; then
    rm -rf "$folder/src"
    mkdir -p "$folder/src"
    tar -xJf "$upstream" -C "$folder/src"
    while read -r name; do
        patch -d "$folder/src" -p1 --no-backup-if-mismatch -s <"$root/patches/hooks/$name"
    done < <(sed 's/#.*//; /^[[:space:]]*$/d' "$root/patches/series")
    touch "$folder/src/.prepared"
fi
cp -ru "$root/patches/overlay/." "$folder/src/"
cmake -S "$folder/src" -B "$folder/cuda" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON \
    -DCMAKE_CUDA_ARCHITECTURES=90-real -DGGML_CUDA_FA=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_UI=OFF \
    -DNANITE_BUILD_TESTS=ON "$@" >"$folder/configure.log" 2>&1 || { tail -n 40 "$folder/configure.log"; exit 5; }
ninja -C "$folder/cuda" llama-bench llama-completion nanite-tests >"$folder/build.log" 2>&1 || {
    grep -m 5 -A 5 'error' "$folder/build.log" || tail -n 40 "$folder/build.log"
    exit 5
}
echo "built: $folder/cuda/bin"
