#!/usr/bin/env python3
"""Training throughput of train_resnet against PyTorch, interleaved in rounds: ours, theirs NHWC, theirs NCHW, ours, ...

--compile: in every round also the peer's --compile, in NHWC, whose compiled code is kept from round to round.

  against_torch.py --peer torch_resnet.py [--program build/bin/train_resnet] [--before OLDER/train_resnet] [--ranks 1]
                   [--limits build/bin/bench_kernels] [--model resnet20] [--dtype fp32] [--pairs 9] [--out report.json]

--peer is a program that takes --model, --batch (per rank), --steps, --warmup, --threads, --dtype and --layout and prints one
JSON line with images_per_second; with --ranks 2 it is started twice over gloo. --before: our program of an earlier version,
which runs in every round, too. Both of its layouts run in every round; the one with the
higher median over all rounds counts. Ours runs with loader, augmentation and updates on; its figure is the median over the
reports after the first two. Each round gives a ratio ours / theirs; the median of the ratios is the result.
--limits: what the processor's multiply-adds reach in f32, and a copy in its memory, before each round; the report says which
part of the former a step reaches (its planned operations, those of convolutions and products).
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time


def ours(a, program, environment):
    with tempfile.TemporaryDirectory() as out:
        command = [program, *options_of(a), "--batch-size", str(a.batch), "--train-images", str(a.batch * 32), "--test-images", "16", "--pad", "4", "--flip", "on", "--steps", str(a.steps),
                   "--log-every", "3", "--out", out]
        if a.ranks > 1:
            command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", str(a.ranks)] + command
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        with open(os.path.join(out, "metrics.jsonl")) as lines:
            rates = [e["images_per_second"] for e in map(json.loads, lines) if e["event"] == "step"]
        return statistics.median(rates[2:])


def options_of(a):
    return ["--devices", "cpu", "--dtype", a.dtype, "--model", a.model, "--threads", str(a.threads), "--data", "synthetic",
            *(["--image-size", "224", "--classes", "1000"] if a.model in ("resnet18", "resnet34", "resnet50") else [])]


def limits(a, environment):
    with tempfile.TemporaryDirectory() as out:
        file = os.path.join(out, "limits.json")
        subprocess.run([a.limits, "--devices", "cpu", "--threads", str(a.threads * a.ranks), "--benchmark_filter", "^relu_forward",
                        "--iterations", "1", "--benchmark_out", file], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        with open(file) as text:
            context = json.load(text)["context"]
    return {"fma_flop_per_second": float(context["fma_flop_per_second"]), "copy_bytes_per_second": float(context["copy_bytes_per_second"])}


def flops_of_an_image(a, environment):
    text = subprocess.run([a.program, *options_of(a), "--batch-size", "16", "--train-images", "64", "--test-images", "16", "--dry-run"],
                          check=True, stdout=subprocess.PIPE, env=environment, text=True).stdout
    return float(re.search(r"train plan, batch 16: .*?([0-9.]+) GFLOP", text).group(1)) * 1e9 / 16


def theirs(a, way, environment, port):
    command = [a.python, a.peer, "--model", a.model, "--batch", str(a.batch // a.ranks), "--steps", str(a.steps - 6), "--warmup", "4",
               "--threads", str(a.threads), "--dtype", a.dtype, *(["--layout", "nhwc", "--compile"] if way == "compiled" else ["--layout", way])]
    processes = []
    for rank in range(a.ranks):
        env = dict(environment)
        if a.ranks > 1:
            env.update(RANK=str(rank), WORLD_SIZE=str(a.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, text=True))
    texts = [p.communicate()[0] for p in processes]
    if any(p.returncode for p in processes):
        sys.exit("the peer failed: " + " ".join(command))
    return json.loads(texts[0].strip().splitlines()[-1])["images_per_second"]


p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--peer", required=True)
p.add_argument("--program", default="build/bin/train_resnet")
p.add_argument("--before")
p.add_argument("--limits")
p.add_argument("--compile", action="store_true")
p.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
p.add_argument("--python", default="/usr/bin/python3")
p.add_argument("--model", default="resnet20")
p.add_argument("--batch", type=int, default=128, help="of all ranks together")
p.add_argument("--ranks", type=int, default=1)
p.add_argument("--threads", type=int, default=2, help="per rank")
p.add_argument("--steps", type=int, default=21)
p.add_argument("--pairs", type=int, default=9, help="rounds")
p.add_argument("--out")
a = p.parse_args()

environment = dict(os.environ, OMP_WAIT_POLICY="passive")
WAYS = ("nhwc", "nchw", *(["compiled"] if a.compile else []))  # layouts of the peer
port = 29500
rounds = []
of_processor = []
for i in range(a.pairs):
    if a.limits:
        of_processor.append(limits(a, environment))
    figures = {"ours": ours(a, a.program, environment)}
    if a.before:
        figures["before"] = ours(a, a.before, environment)
    for way in WAYS:
        port += 1
        figures[way] = theirs(a, way, environment, port)
    rounds.append(figures)
    print(f"round {i + 1}: ours {figures['ours']:.1f}, " + (f"before {figures['before']:.1f}, " if a.before else "") + ", ".join(f"theirs {x} {figures[x]:.1f}" for x in WAYS) + " images/s",
          flush=True)


def summary(layout):
    ratios = [r["ours"] / r[layout] for r in rounds]
    return {"theirs_median": statistics.median(r[layout] for r in rounds), "median_ratio": statistics.median(ratios),
            "min_ratio": min(ratios), "max_ratio": max(ratios)}


against = {other: summary(other) for other in (*WAYS, *(["before"] if a.before else []))}
faster = max(("nhwc", "nchw"), key=lambda layout: against[layout]["theirs_median"])
report = {"date": time.strftime("%Y-%m-%d"), "model": a.model, "dtype": a.dtype, "batch": a.batch, "ranks": a.ranks, "threads_per_rank": a.threads,
          "rounds": rounds, "against": against, "faster_layout_of_peer": faster}
for layout, x in against.items():
    print(f"ratio ours / theirs {layout}: median {x['median_ratio']:.3f}, {x['min_ratio']:.3f} to {x['max_ratio']:.3f}"
          + (" (the peer's faster layout)" if layout == faster else ""))
if a.limits:
    flops = flops_of_an_image(a, environment)
    reached = statistics.median(r["ours"] for r in rounds) * flops
    most = {name: statistics.median(x[name] for x in of_processor) for name in of_processor[0]}
    report["limits"] = {**most, "rounds": of_processor, "flop_of_an_image": flops, "flop_per_second": reached}
    print(f"ours: {reached / 1e9:.0f} GFLOP/s of the {most['fma_flop_per_second'] / 1e9:.0f} of f32 multiply-adds "
          f"({100 * reached / most['fma_flop_per_second']:.0f} %); a copy moves {most['copy_bytes_per_second'] / 1e9:.1f} GB/s")
if a.out:
    with open(a.out, "w") as out:
        json.dump(report, out, indent=1, sort_keys=True)
        out.write("\n")
