#!/bin/sh
# Instructions per operation, counted by callgrind over the measured part of each trace.
# Usage: crates/space/benches/callgrind.sh [WORKLOAD...]     (from the workspace root)
set -eu
binary=${BENCH_BINARY:-$(cargo bench -p vrampager-space --bench workloads --no-run 2>&1 |
    sed -n 's/.*workloads\/main.rs (\(.*\))/\1/p')}
[ $# -gt 0 ] || set -- W1/10k W1/100k W2/1T W3 W4 W5/pow2 W5/mixed70
out=$(mktemp)
trap 'rm -f "$out"' EXIT

count() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
        --toggle-collect='*measured_ops*' "$binary" count "$1" "$2" >"$out" 2>&1
    operations=$(sed -n 's/^operations //p' "$out")
    instructions=$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$out")
    printf '%s instr/op %-12s %s\n' "$((instructions / operations))" "$1" "$2"
}

for workload in "$@"; do
    case $workload in
    W5*) peers='vrampager buddy|vrampager sub fast|buddy_system_allocator|offset-allocator' ;;
    W4) peers='vrampager range low' ;;
    *) peers='vrampager sub fast|vrampager sub tight|vrampager range low|vrampager range best|offset-allocator|VMA virtual block|BTreeMap best fit' ;;
    esac
    printf '%s\n' "null|$peers" | tr '|' '\n' | while read -r peer; do
        count "$workload" "$peer"
    done
done
