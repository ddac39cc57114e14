"""Checks a report of `vrampager swap --json`: all bytes right, nothing left behind."""

import argparse
import json
import sys

COUNTERS = {"objects", "mappings", "ranges", "pages", "va_bytes", "fds"}
# Of plain memcpy, for large copies. Printed, not asserted: what else runs here is not ours to say.
COPY_TARGET = 0.8

parser = argparse.ArgumentParser()
parser.add_argument("report")
parser.add_argument("--requests", type=int, required=True)
parser.add_argument("--models", type=int, required=True)
parser.add_argument("--swapped", action="store_true", help="the swap file must have been used")
args = parser.parse_args()

with open(args.report, encoding="utf-8") as file:
    report = json.load(file)

faults = []
if report["verified"] is not True:
    faults.append("not verified")
if report["mismatches"] != 0:
    faults.append(f"{report['mismatches']} mismatches")
if report["requests"] != args.requests:
    faults.append(f"{report['requests']} requests instead of {args.requests}")
if len(report["models"]) != args.models:
    faults.append(f"{len(report['models'])} models instead of {args.models}")
asked = sum(model["bytes"] * model["requests"] for model in report["models"])
if report["verified_bytes"] < asked:
    faults.append(f"{report['verified_bytes']} bytes compared of {asked}")
if args.swapped and not report["bytes"]["swap_read"]:
    faults.append("the swap file was not used")
if not COUNTERS <= report["leaks"].keys():
    faults.append(f"leaks not counted: {COUNTERS - report['leaks'].keys()}")
faults += [f"leak: {count} {what}" for what, count in report["leaks"].items() if count != 0]

ratio = report["copy_ratio"]
if ratio is None:
    print("copy_ratio: no large copies")
else:
    verdict = "ok" if ratio >= COPY_TARGET else "MISS"
    print(f"copy_ratio {ratio:.2f} target {COPY_TARGET} {verdict}")
print(f"{report['seconds']:.1f} s, bytes {json.dumps(report['bytes'])}")
if faults:
    sys.exit("; ".join(faults))
