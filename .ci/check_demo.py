"""Checks the demo's report: all bytes right, nothing left behind."""

import json
import sys

COUNTERS = {"objects", "mappings", "ranges", "pages", "va_bytes", "fds"}

with open(sys.argv[1], encoding="utf-8") as file:
    report = json.load(file)

faults = []
if report["verified"] is not True:
    faults.append("not verified")
if report["mismatches"] != 0:
    faults.append(f"{report['mismatches']} mismatches")
if report["requests"] != 200:
    faults.append(f"{report['requests']} requests instead of 200")
if len(report["models"]) != 8:
    faults.append(f"{len(report['models'])} models instead of 8")
if not COUNTERS <= report["leaks"].keys():
    faults.append(f"leaks not counted: {COUNTERS - report['leaks'].keys()}")
faults += [f"leak: {count} {what}" for what, count in report["leaks"].items() if count != 0]

print(f"demo: copy_ratio {report['copy_ratio']:.3f}, bytes {json.dumps(report['bytes'])}")
if faults:
    sys.exit("demo: " + "; ".join(faults))
