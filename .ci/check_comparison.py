"""Checks a report of `cargo xtask compare-tinygrad --json`: its shape, and what it promises of us."""

import argparse
import json
import sys

SHAPE = {
    "tinygrad": ["rounds", "leaked_handles", "leaked_pins", "version"],
    "ours": ["rounds", "holes", "leaked_handles", "leaked_pins"],
    "stress": ["ops", "mismatches"],
    "ratio": ["allocs_per_s", "ioctls_per_alloc", "copy_4k_latency", "copy_64m_throughput"],
}
OUR_ROUNDS = 100_000
# 64 GiB of addresses below 2^40 hold 63 buffers of 1 GiB and what tinygrad takes for itself; one less
# when a few more of its own buffers lie between them.
THEIR_ROUNDS = (62, 63)

parser = argparse.ArgumentParser()
parser.add_argument("report")
args = parser.parse_args()

with open(args.report, encoding="utf-8") as file:
    report = json.load(file)

faults = []
shape = {key: list(value) for key, value in report.items()}
if shape != SHAPE:
    sys.exit(f"the report has other fields than promised: {shape}")
theirs, ours, stress = report["tinygrad"], report["ours"], report["stress"]
if stress["mismatches"] != 0 or stress["ops"] == 0:
    faults.append(f"{stress['mismatches']} wrong of {stress['ops']} random operations")
if ours["rounds"] != OUR_ROUNDS or ours["holes"] != 1:
    faults.append(f"we did {ours['rounds']} rounds and left {ours['holes']} holes")
faults += [f"we left {ours[key]} {key}" for key in ("leaked_handles", "leaked_pins") if ours[key] != 0]
if theirs["rounds"] not in THEIR_ROUNDS:
    faults.append(f"tinygrad did {theirs['rounds']} rounds: the comparison is out of date")
if theirs["leaked_handles"] <= 0 or theirs["leaked_pins"] <= 0:
    faults.append("tinygrad leaked nothing: the comparison is out of date")
faults += [f"{name} is {value}" for name, value in report["ratio"].items() if not value > 0]

print(json.dumps(report))
if faults:
    sys.exit("; ".join(faults))
