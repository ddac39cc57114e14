#!/usr/bin/env python3
"""Runs tinygrad's own NVIDIA back end, unchanged, against the simulated kernel driver.

    python3 -m venv target/tinygrad && target/tinygrad/bin/pip install -r scripts/requirements.txt
    cargo build -p vrampager-nv-shim -p vrampager-cli
    target/debug/vrampager sim-driver --sim gpus=2,vram=4G -- \
        target/tinygrad/bin/python scripts/tinygrad-smoke.py [--stress SECONDS] [--rounds N]

Prints one JSON object; the exit status is 0 only if every promise holds. tinygrad must use its
kernel-driver interface, not its mock.
"""
import argparse
import importlib.metadata
import json
import os
import random
import sys
import tempfile
import time

os.environ.setdefault("CACHEDB", os.path.join(tempfile.mkdtemp(), "cache.db"))
os.environ["DEV"] = "NV"

from tinygrad import Device  # noqa: E402
from tinygrad.device import BufferSpec  # noqa: E402

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
POOL = random.Random(0).randbytes(17 * MIB)
KINDS = {
    "device": BufferSpec(),
    "device, CPU-visible": BufferSpec(cpu_access=True),
    "host": BufferSpec(host=True),
    "uncached": BufferSpec(uncached=True),
    "uncached, CPU-visible": BufferSpec(uncached=True, cpu_access=True),
}


def counters():
    """What the simulated driver says is alive and has happened."""
    with open("/proc/driver/vrampager/counters", encoding="ascii") as lines:
        return {name: int(value) for name, value in (line.split() for line in lines)}


def some_bytes(rng, size):
    """A random part of random bytes: making fresh ones would take longer than copying them."""
    start = rng.randrange(len(POOL) - size)
    return POOL[start:start + size]


def write(dev, buf, data):
    dev.allocator._copyin(buf, memoryview(bytearray(data)))


def read(dev, buf, size):
    out = bytearray(size)
    dev.allocator._copyout(memoryview(out), buf)
    return bytes(out)


def every_kind_keeps_its_bytes(dev):
    for name, spec in KINDS.items():
        for size in (1, 4 * KIB, 100_001, 5 * MIB, 9 * MIB):
            buf = dev.allocator._alloc(size, spec)
            data = some_bytes(random, size)
            write(dev, buf, data)
            assert read(dev, buf, size) == data, f"{name}, {size} bytes"
            if buf.view is not None:
                assert bytes(buf.cpu_view().view(size=size, fmt="B")[:]) == data, f"CPU view of {name}"
            dev.allocator._free(buf, spec)


def gpus_copy_to_one_another(one, two):
    for size in (4 * KIB, 3 * MIB + 17, 16 * MIB):
        here, there = (dev.allocator._alloc(size, BufferSpec()) for dev in (one, two))
        data = some_bytes(random, size)
        write(one, here, data)
        one.allocator._transfer(there, here, size, src_dev=one, dest_dev=two)
        two.synchronize()
        assert read(two, there, size) == data, f"{size} bytes between GPUs"
        one.allocator._free(here, BufferSpec())
        two.allocator._free(there, BufferSpec())


def memory_runs_out_as_memory_error(dev, size=GIB):
    """Allocations until there is no room; then all can be freed and the memory had again."""
    held, before = [], counters()["vram_bytes"]
    try:
        while len(held) < 100_000:
            held.append(dev.allocator._alloc(size, BufferSpec()))
    except MemoryError:
        pass
    else:
        raise AssertionError("memory never ran out")
    for buf in held:
        dev.allocator._free(buf, BufferSpec())
    assert counters()["vram_bytes"] == before, "freed memory came back"
    return len(held)


def stress(devs, seconds, seed):
    """Random allocations, copies and frees, each byte compared with what was written last."""
    rng, held, ops, mismatches = random.Random(seed), [], 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ops += 1
        action = rng.random()
        if not held or (action < 0.3 and len(held) < 24):
            dev, spec = rng.choice(devs), rng.choice(list(KINDS.values()))
            size = rng.choice((rng.randrange(1, 64 * KIB), rng.randrange(1, 4 * MIB), 8 * MIB))
            held.append([dev, spec, dev.allocator._alloc(size, spec), None, size])
            continue
        entry = rng.choice(held)
        dev, spec, buf, data, size = entry
        if action < 0.6 or data is None:
            entry[3] = some_bytes(rng, size)
            write(dev, buf, entry[3])
        elif action < 0.8:
            mismatches += read(dev, buf, size) != data
        else:
            mismatches += read(dev, buf, size) != data
            dev.allocator._free(buf, spec)
            held.remove(entry)
    for dev, spec, buf, _, _ in held:
        dev.allocator._free(buf, spec)
    return {"ops": ops, "mismatches": mismatches, "seconds": seconds, "seed": seed}


def rounds_of_visible_gibibyte(dev, limit):
    """Rounds of {allocate 1 GiB CPU-visible, free} until the client fails; no more than `limit`."""
    spec = BufferSpec(cpu_access=True)
    for done in range(limit):
        try:
            buf = dev.allocator._alloc(GIB, spec)
        except (RuntimeError, MemoryError):
            return done
        dev.allocator._free(buf, spec)
    return limit


def leaks_of_host_rounds(dev, rounds):
    before = counters()
    for _ in range(rounds):
        buf = dev.allocator._alloc(4 * KIB, BufferSpec(host=True))
        dev.allocator._free(buf, BufferSpec(host=True))
    after = counters()
    left = {name: after[name] - before[name] for name in before}
    mappings = ("cpu_maps", "dma_maps", "uvm_maps", "uvm_ranges")
    return {"objects": left["objects"], "pins": left["pins"],
            "mappings": sum(left[name] for name in mappings)}


def speed(dev):
    """Medians of this run, in microseconds and GB/s."""
    def median(action, times):
        taken = []
        for _ in range(times):
            begun = time.perf_counter()
            action()
            taken.append(time.perf_counter() - begun)
        return sorted(taken)[len(taken) // 2]

    small, large = (dev.allocator._alloc(size, BufferSpec()) for size in (4 * KIB, 64 * MIB))
    page, block = memoryview(bytearray(4 * KIB)), memoryview(bytearray(64 * MIB))

    def copy(buf, data):
        dev.allocator._copyin(buf, data)
        dev.synchronize()

    def pair():
        dev.allocator._free(dev.allocator._alloc(MIB, BufferSpec()), BufferSpec())

    before = counters()["ioctls"]
    pair_seconds = median(pair, 200)
    ioctls = (counters()["ioctls"] - before) / 200
    return {
        "alloc_free_us": round(pair_seconds * 1e6, 1),
        "ioctls_per_alloc_free": round(ioctls, 1),
        "copy_4k_us": round(median(lambda: copy(small, page), 500) * 1e6, 1),
        "copy_64m_gb_per_s": round(64 * MIB / median(lambda: copy(large, block), 5) / 1e9, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stress", type=float, default=0, help="seconds of random operations")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of 1 GiB CPU-visible")
    parser.add_argument("--host-rounds", type=int, default=0, help="rounds of host allocations")
    parser.add_argument("--speed", action="store_true", help="measure")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    random.seed(args.seed)

    one, two = Device["NV:0"], Device["NV:1"]
    interface = type(one.iface).__name__
    assert interface == "NVKIface", f"tinygrad uses {interface}"
    result = {"version": importlib.metadata.version("tinygrad"), "interface": interface,
              "live": counters()}
    every_kind_keeps_its_bytes(one)
    gpus_copy_to_one_another(one, two)
    result["gib_until_full"] = memory_runs_out_as_memory_error(two)
    if args.stress:
        result["stress"] = stress([one, two], args.stress, args.seed)
        assert result["stress"]["mismatches"] == 0, result["stress"]
    if args.speed:
        result["speed"] = speed(one)
    if args.host_rounds:
        result["leaks"] = leaks_of_host_rounds(one, args.host_rounds)
    if args.rounds:
        result["rounds"] = rounds_of_visible_gibibyte(one, args.rounds)
    after = counters()
    assert after["channel_errors"] == 0, after
    result["counted"] = {name: after[name] for name in ("ioctls", "copies", "copied_bytes")}
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
