#!/usr/bin/env python3
"""Compares two files of safetensors, tensor by tensor: compare_checkpoints.py --at-most 1e-5 [--only .momentum_buffer] A B

Tensors of f32 and f64 count; with --only those whose name ends so. The measure is ||a - b|| / ||a|| of each tensor.
--at-most X: no tensor is further apart. --at-least X: one is, at least.
Needs nothing but Python. Exit status 0 when that holds, 1 when it does not (NaN included), 2 for wrong usage.
"""
import array
import argparse
import json
import math
import struct
import sys


def tensors(path, only):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        body = file.read()
    found = {}
    for name, entry in header.items():
        kind = {"F32": "f", "F64": "d"}.get(entry.get("dtype")) if name != "__metadata__" and name.endswith(only) else None
        if kind:
            begin, end = entry["data_offsets"]
            values = array.array(kind)
            values.frombytes(body[begin:end])
            if sys.byteorder == "big":
                values.byteswap()
            found[name] = (tuple(entry["shape"]), values)
    return found


def distance(a, b):
    apart = math.sqrt(math.fsum((x - y) * (x - y) for x, y in zip(a, b)))
    norm = math.sqrt(math.fsum(x * x for x in a))
    return apart / norm if norm > 0 else (0.0 if apart == 0 else math.inf)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("a")
    p.add_argument("b")
    p.add_argument("--only", default="", metavar="SUFFIX")
    bound = p.add_mutually_exclusive_group(required=True)
    bound.add_argument("--at-most", type=float)
    bound.add_argument("--at-least", type=float)
    args = p.parse_args()
    try:
        a, b = tensors(args.a, args.only), tensors(args.b, args.only)
    except (OSError, ValueError, KeyError, struct.error) as error:
        print(f"error: {error}")
        return 2
    if not a or {n: s for n, (s, _) in a.items()} != {n: s for n, (s, _) in b.items()}:
        print(f"error: the files do not hold the same tensors: {len(a)} and {len(b)} of f32 or f64")
        return 1
    distances = {name: distance(a[name][1], b[name][1]) for name in a}
    nan = [name for name, value in distances.items() if math.isnan(value)]
    if nan:
        print(f"error: {nan[0]} has values that are no numbers")
        return 1
    name = max(distances, key=distances.get)
    print(f"largest relative distance of {len(a)} tensors: {distances[name]:.3g}, of {name}; " +
          (f"at most {args.at_most:g} wanted" if args.at_most is not None else f"at least {args.at_least:g} wanted"))
    if args.at_most is not None:
        return 0 if distances[name] <= args.at_most else 1
    return 0 if distances[name] >= args.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
