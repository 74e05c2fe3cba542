#!/usr/bin/env bash
# All checks of this repository: style, types, builds, C++ tests, patches, Python tests. CI runs this and so may you.
#
#   ci/run.sh            everything; needs a network on the first run, for packages and the upstream source
#   ci/run.sh --quick    no build: the checks that need none, and the tests of what is built already
#
# A fresh Debian or Ubuntu with python3 and git is enough: what is missing is installed when this is root or sudo asks
# for no password, else named. Exit: 0 all passed, 1 a step failed, 2 usage, 4 something is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=0
for word in "$@"; do
    case "$word" in
        --quick) quick=1 ;;
        -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) echo "ci/run.sh: unknown option '$word' (see --help)" >&2; exit 2 ;;
    esac
done

logs=${NANITE_TOOLS_BUILD:-build}/ci
mkdir -p "$logs"
names=() verdicts=() times=()
failed=0

# step NAME COMMAND...: run it, keep its output, show the end of it when it fails; go on in any case
step() {
    local name=$1 log started status=0
    shift
    log=$logs/$(tr -cs 'a-zA-Z0-9\n' '-' <<<"$name").log
    started=$SECONDS
    printf '== %s\n' "$name"
    "$@" >"$log" 2>&1 || status=$?
    names+=("$name")
    times+=($((SECONDS - started)))
    if [[ $status -eq 0 ]]; then
        verdicts+=(ok)
        tail -n 1 "$log" | cut -c 1-160 | sed 's/^/   /'
    else
        verdicts+=("FAILED ($status)")
        failed=1
        tail -n 60 "$log" | sed 's/^/   /'
    fi
    printf '   %s, %d s\n' "${verdicts[-1]}" "${times[-1]}"
}

# skip NAME WHY: a line in the table for what was not run
skip() {
    names+=("$1")
    verdicts+=("skipped: $2")
    times+=(0)
    printf '== %s\n   skipped: %s\n' "$1" "$2"
}

summary() {
    local i
    printf '\n%-34s %8s  %s\n' step seconds result
    for i in "${!names[@]}"; do
        printf '%-34s %8d  %s\n' "${names[i]}" "${times[i]}" "${verdicts[i]}"
    done
    printf '%-34s %8d  %s\n' total "$SECONDS" "$([[ $failed -eq 0 ]] && echo 'all passed' || echo 'FAILED')"
}

# missing_packages: the Debian packages of the tools that are not there
missing_packages() {
    if [[ $quick -eq 0 ]]; then
        command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || echo g++
        command -v cmake >/dev/null || echo cmake
        command -v ninja >/dev/null || echo ninja-build
        command -v ccache >/dev/null || echo ccache
    fi
    command -v clang-format >/dev/null || echo clang-format
    command -v shellcheck >/dev/null || echo shellcheck
    python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

install_packages() {
    local root=() packages
    mapfile -t packages < <(missing_packages)
    [[ ${#packages[@]} -gt 0 ]] || return 0
    if [[ $EUID -ne 0 ]]; then root=(sudo -n); fi
    if command -v apt-get >/dev/null && { [[ $EUID -eq 0 ]] || sudo -n true 2>/dev/null; }; then
        echo "== installing ${packages[*]}"
        "${root[@]}" apt-get update -qq
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
    else
        # ccache and shellcheck only help: without them the run is slower, or skips a step
        mapfile -t packages < <(missing_packages | grep -vxE 'ccache|shellcheck' || true)
        [[ ${#packages[@]} -eq 0 ]] && return 0
        echo "missing: ${packages[*]} (Debian's names); install them and run this again" >&2
        exit 4
    fi
}

# make_venv: .venv when it is ours or can be made, else one of our own under the build folder
make_venv() {
    local wanted=.venv stamp
    if [[ -e .venv ]] && ! { .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 10))' &&
        .venv/bin/python -m pip --version; } >/dev/null 2>&1; then
        wanted=${NANITE_TOOLS_BUILD:-build}/ci-venv
    fi
    [[ -x $wanted/bin/python ]] || python3 -m venv "$wanted"
    venv=$(cd "$wanted" && pwd)
    stamp=$(sha256sum pyproject.toml | cut -d ' ' -f 1)
    if [[ $(cat "$venv/nanite-ci.stamp" 2>/dev/null || true) != "$stamp" ]]; then
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'
        echo "$stamp" >"$venv/nanite-ci.stamp"
    fi
    export PATH="$venv/bin:$PATH"
}

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "ci/run.sh needs python3, 3.10 or later" >&2
    exit 4
fi
install_packages
make_venv
build=${NANITE_TOOLS_BUILD:-build}

step "ruff check" ruff check .
step "ruff format" ruff format --check .
step "mypy" mypy
mapfile -t cpp_sources < <(git ls-files -- 'patches/overlay/*.h' 'patches/overlay/*.cpp' 'tests/*.cpp')
step "C++ format" clang-format --dry-run --Werror "${cpp_sources[@]}"
if command -v shellcheck >/dev/null; then
    step "shellcheck" shellcheck ci/*.sh .ci/run
else
    skip "shellcheck" "not installed"
fi

if [[ $quick -eq 0 ]]; then
    step "build cpu, tests" nanite-tools build cpu --tests
    step "build stock cpu" nanite-tools build cpu --stock
    step "build stock module" nanite-tools build cpu --stock --module
    step "build asan" nanite-tools build asan
fi
for preset in cpu asan; do
    if [[ $quick -eq 0 || -f $build/$preset/ggml/src/ggml-nanite/CTestTestfile.cmake ]]; then
        step "C++ tests, $preset" \
            ctest --test-dir "$build/$preset/ggml/src/ggml-nanite" --output-on-failure --no-tests=error
    else
        skip "C++ tests, $preset" "not built"
    fi
done
if [[ $quick -eq 0 || -d $build/src ]]; then
    step "patches verify" nanite-tools patches verify
else
    skip "patches verify" "no prepared tree"
fi
if [[ $quick -eq 0 ]]; then export NANITE_REQUIRE_BUILDS=1; fi
step "pytest" python -m pytest -q

summary
exit "$failed"
