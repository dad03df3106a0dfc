#!/usr/bin/env python3
"""Rows of the part speed: what moving data costs beside what it should.

  cost_rows.py --alone cost.json --ranks cost.json --copies copies.json --kernels kernels.json

alone: lockstep-cost of one rank; ranks: of several; copies: bench_copy; kernels: bench_kernels, whose context has the
measured copy bandwidth, bytes read and written. A file that is not there makes the rows that need it "skipped".
Prints a line a row: name, passed/failed/skipped and detail, with tabs between. A bandwidth is that of the best size in
either program: pinned copies reach at least 90 % of the link (PCIe generation and width), copies inside the GPU, read and
written, at least 90 % of the copy bandwidth. Needs nothing but Python.
"""
import argparse
import json
import math
import re

WANTED = 0.9


def load(path):
    """Returns the file's object; None when the file is missing or was not written to the end."""
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def path_of(cost, name):
    return next((p for p in (cost or {}).get("paths", []) if p["name"] == name), None)


def best_copy(cost, name, copies, pattern):
    """Returns the delivered bytes per second of the best size; None when neither program has this path."""
    path = path_of(cost, name)
    rates = [p["bytes"] / p["median_s"] for p in path["points"]] if path else []
    rates += [b.get("bytes_per_second") for b in (copies or {}).get("benchmarks", []) if re.search(pattern, b["name"])]
    return max((rate for rate in rates if rate is not None and math.isfinite(rate)), default=None)


def share(rate, limit, of):
    """Returns status and detail of a rate, which must reach WANTED times the limit."""
    said = f"{rate / 1e9:.1f} GB/s, {100 * rate / limit:.1f} % of {of}, {limit / 1e9:.1f} GB/s; "
    said += f"at least {100 * WANTED:.0f} % wanted"
    return ("passed" if rate >= WANTED * limit else "failed"), said


def link_row(alone, copies, name, pattern):
    rate, path = best_copy(alone, name, copies, pattern), path_of(alone, name)
    if rate is None:
        return "skipped", "no such copy was measured"
    if not path or not path["limit_bytes_per_s"] > 0:
        return "skipped", f"{rate / 1e9:.1f} GB/s; no generation and width of the link to hold it against"
    return share(rate, path["limit_bytes_per_s"], path["limit_text"])


def inside_row(alone, copies, kernels):
    rate = best_copy(alone, "copy/device_to_device", copies, r"^copy/device_to_device/.*/one_way/copy_engine/\d+/manual_time$")
    if rate is None:
        return "skipped", "no such copy was measured"
    limit = float((kernels or {}).get("context", {}).get("copy_bytes_per_second", 0))
    if not limit > 0:
        return "skipped", f"{2 * rate / 1e9:.1f} GB/s read and written; bench_kernels measured no copy bandwidth"
    return share(2 * rate, limit, "the copy bandwidth of bench_kernels")


def smallest_row(alone):
    said = []
    for name, what in (("pinned_to_device", "host to GPU, pinned"), ("device_to_pinned", "GPU to host, pinned"),
                       ("device_to_device", "inside the GPU"), ("peer", "GPU to GPU")):
        path = path_of(alone, "copy/" + name)
        if path:
            point = min(path["points"], key=lambda p: p["bytes"])
            said.append(f"{what} {point['median_s'] * 1e6:.2f} us ({point['bytes']} B)")
    return ("passed", ", ".join(said)) if said else ("skipped", "no copy of a GPU was measured")


def left_out(cost, what):
    return next((text for text in (cost or {}).get("left_out", []) if what in text), None)


def peer_row(alone):
    path = path_of(alone, "copy/peer")
    if path is None:
        return "skipped", left_out(alone, "Copies between GPUs") or "no copy between GPUs was measured"
    rate, limit = max(p["bytes"] / p["median_s"] for p in path["points"]), path["limit_bytes_per_s"]
    return "passed", f"{rate / 1e9:.1f} GB/s" + (f", {100 * rate / limit:.1f} % of {path['limit_text']}" if limit > 0 else "")


def nccl_row(ranks):
    if ranks is None:
        return "skipped", "lockstep-cost with several ranks left no cost.json"
    path = path_of(ranks, "all_reduce/nccl")
    if path is None:  # a failure, as every bundle has NCCL
        return "failed", left_out(ranks, "All-reduces between GPUs") or "lockstep-cost has no all_reduce/nccl"
    points = path["points"]
    least, most = points[0], max(points, key=lambda p: p["bytes"] / p["median_s"])
    busbw = path["bus_factor"] * most["bytes"] / most["median_s"]
    return "passed", (f"{ranks['ranks']} ranks: {least['bytes']} B in {least['median_s'] * 1e6:.1f} us, busbw at most "
                      f"{busbw / 1e9:.2f} GB/s ({most['bytes']} B); {ranks['about'].get('gpu', 'GPU not named')}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--alone", "--ranks", "--copies", "--kernels"):
        p.add_argument(name, required=True)
    a = p.parse_args()
    alone, ranks, copies, kernels = load(a.alone), load(a.ranks), load(a.copies), load(a.kernels)
    pinned = r"^copy/{}/\d+/pinned/one_way/copy_engine/\d+/manual_time$"
    for name, (status, detail) in (
            ("host to GPU, pinned, of the link", link_row(alone, copies, "copy/pinned_to_device", pinned.format("host_to_device"))),
            ("GPU to host, pinned, of the link", link_row(alone, copies, "copy/device_to_pinned", pinned.format("device_to_host"))),
            ("inside the GPU, of the copy bandwidth", inside_row(alone, copies, kernels)),
            ("smallest copies", smallest_row(alone)),
            ("GPU to GPU", peer_row(alone)),
            ("all-reduce over NCCL", nccl_row(ranks))):
        print(name, status, detail, sep="\t")


if __name__ == "__main__":
    main()
