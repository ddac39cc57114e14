#!/bin/sh
# Instructions per operation, counted by callgrind over the measured part of each trace.
# Usage: crates/space/benches/callgrind.sh [WORKLOAD...]     (from the workspace root)
set -eu
binary=${BENCH_BINARY:-$(cargo bench -p vrampager-space --bench workloads --no-run 2>&1 |
    sed -n 's/.*workloads\/main.rs (\(.*\))/\1/p')}
[ $# -gt 0 ] || set -- W1/10k W1/100k W1/1M W2/1T W2/tight W3 W4 \
    W5/pow2 W5/mixed70 W5/mixed97 W5s/10k W5s/100k W5s/1M \
    W6/10k/reserve W6/10k/lookup W6/10k/pair W6/100k/lookup W6/1M/reserve W6/1M/lookup W6/1M/pair
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# Prints what one peer needs for an operation, and whether that is the target of the design notes.
count() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
        --toggle-collect='*measured_ops*' "$binary" count "$1" "$2" >"$out" 2>&1
    operations=$(sed -n 's/^operations //p' "$out")
    instructions=$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$out")
    each=$((instructions / operations))
    verdict=
    case "$1 $2" in
    W1/*' vrampager sub fast') [ "$each" -le 120 ] && verdict='target 120 ok' || verdict='target 120 MISS' ;;
    esac
    printf '%s instr/op %-14s %-24s %s\n' "$each" "$1" "$2" "$verdict"
}

for workload in "$@"; do
    case $workload in
    W6*) peers='vrampager range|BTreeMap|rangemap' ;;
    W5*) peers='null|vrampager buddy|vrampager sub fast|buddy_system_allocator|offset-allocator' ;;
    W4) peers='null|vrampager range low' ;;
    *) peers='null|vrampager sub fast|vrampager sub tight|vrampager range low|vrampager range best|offset-allocator|BTreeMap best fit' ;;
    esac
    printf '%s\n' "$peers" | tr '|' '\n' | while read -r peer; do
        count "$workload" "$peer"
    done
done
