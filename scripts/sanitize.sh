#!/usr/bin/env bash
# Builds and runs what the sanitizers can check, in build/tsan and build/asan, and fails at the first kind that
# finds something. How long it takes, and what of it was seen clean, is in docs/contribute/build-times.md.
# usage: scripts/sanitize.sh [thread|address] [CTEST-ARGUMENT...]
#   thread   threads without gRPC: tests with the label tsan. The packages of gRPC and absl are not instrumented;
#            tests/support/tsan_absl_sync.cc tells the sanitizer what absl's locks order, but nothing knows what
#            gRPC's do.
#   address  addresses, leaks and undefined behaviour: all tests of our own code. Left out are fuzzers (they have
#            both sanitizers of their own), benchmarks (the tests run the same code), tests of deploy/, packages
#            and tools (they check files and Python), and chaos, whose processes are killed before they could
#            report.
# Without a kind both run, thread first. RETROINFER_JOBS sets how many tests run at once (default: processors).
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  thread | address) kinds=("$1"); shift ;;
  -h | --help) sed -n '2,13s/^# //p' "$0"; exit 2 ;;
  *) kinds=(thread address) ;;
esac
jobs=${RETROINFER_JOBS:-$(nproc)}
# The tests set what they want the programs to take from the environment.
for name in $(compgen -e RETROINFER_); do unset "$name"; done
# A leak report at the end of a program changes its exit status, which is what the tests look at. Stacks are cut:
# without frame pointers, as in packages, they take long to unwind.
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=0:malloc_context_size=12}"
export LSAN_OPTIONS="${LSAN_OPTIONS:-suppressions=$PWD/tests/support/leaks_of_packages.txt}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}"

# Processor time, user and system, of what this script has run so far and waited for.
cpu_seconds() {
  local ticks
  read -r -a ticks <"/proc/$$/stat"
  echo $(((ticks[15] + ticks[16]) / $(getconf CLK_TCK)))
}

declare -A presets=([thread]=tsan [address]=asan)
declare -A selections=([thread]='-L tsan' [address]='-LE bench|fuzz|deploy|packaging|tidy|tools|chaos')
for kind in "${kinds[@]}"; do
  preset=${presets[$kind]}
  read -r -a selection <<<"${selections[$kind]}"
  cmake --preset "$preset" -DRETROINFER_BUILD_BENCHMARKS=OFF -DRETROINFER_ENABLE_CUDA=OFF >"/dev/null"
  mapfile -t tests < <(ctest --test-dir "build/$preset" -N "${selection[@]}" "$@" | sed -n 's/^ *Test *#[0-9]*: //p')
  if [ ${#tests[@]} -eq 0 ]; then
    echo "sanitize: no test for: ${selection[*]} $*" >&2
    exit 1
  fi
  mapfile -t known < <(cmake --build "build/$preset" --target help | sed -n 's/^\([^ /]*\): phony$/\1/p')
  mapfile -t targets < <(comm -12 <(printf '%s\n' "${tests[@]}" | sort) <(printf '%s\n' "${known[@]}" | sort))
  # A test's program is a target of its name, which builds the services that it starts; tests that are scripts say
  # nothing of what they run: the programs.
  if [ "$kind" = address ] && [ ${#targets[@]} -lt ${#tests[@]} ]; then
    targets+=(retroinfer gpu_worker kv_store_service http_gateway)
  fi
  echo "sanitize: $kind: building ${#targets[@]} programs for ${#tests[@]} tests"
  begun=$SECONDS begun_cpu=$(cpu_seconds)
  cmake --build "build/$preset" --target "${targets[@]}"
  built=$SECONDS built_cpu=$(cpu_seconds)
  ctest --test-dir "build/$preset" --output-on-failure -j "$jobs" "${selection[@]}" "$@"
  echo "sanitize: $kind: clean; built in $((built - begun)) s ($((built_cpu - begun_cpu)) s of processor time)," \
    "${#tests[@]} tests in $((SECONDS - built)) s ($(($(cpu_seconds) - built_cpu)) s of processor time)"
done
