#!/usr/bin/env python3
"""Test accuracies of a training program with several lines of options, over the same seeds: does an option cost accuracy?

  compare_accuracy.py --program build/bin/train_resnet --ranks 2 --seeds 1 2 3 --points 0.5 \\
      --common '--model resnet20 --data idx:FASHION --epochs 2 --batch-size 128 --threads 1' \\
      'fp32=' 'bf16=--compress bf16' 'powersgd=--compress powersgd:2'

A run is NAME=OPTIONS, or NAME=PROGRAM: OPTIONS. Each seed trains all of them once, one after the other. Printed are the accuracy after the last epoch in
percent, the mean over the seeds, what it is above the first name's mean in points, and the bytes that a rank's gradients are
when they travel, a step. Exit status 1 when a mean is more than --points below the first's. With --ranks N by mpirun.
"""
import datetime
import statistics
import sys

from compare_runs import arguments, events_of, parse


def run(a, program, options, seed):
    last = [e for e in events_of(a, program, options, "--seed", str(seed)) if e["event"] == "epoch"][-1]
    return 100 * last["test_accuracy"], last["gradient_bytes"], last["sent_bytes"]


def main():
    p = arguments(__doc__)
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    p.add_argument("--points", type=float, default=0.5)
    a = p.parse_args()
    runs = [parse(text, a.program) for text in a.runs]
    results = {name: [] for name, _, _ in runs}
    for seed in a.seeds:
        for name, program, options in runs:
            results[name].append(run(a, program, options, seed))
            print(f"seed {seed}, {name}: {results[name][-1][0]:.2f} %", file=sys.stderr, flush=True)
    first = statistics.mean(r[0] for r in results[runs[0][0]])
    width = max(len(name) for name, _, _ in runs)
    print(f"{datetime.date.today()}, {a.ranks} rank(s); {a.common}\n")
    print(" " * width + "".join(f"  seed {seed:<3}" for seed in a.seeds) + "   mean    above the first   kB a step")
    short = []
    for name, _, options in runs:
        accuracies = [r[0] for r in results[name]]
        above = statistics.mean(accuracies) - first
        _, whole, sent = results[name][0]
        print(f"{name:<{width}}" + "".join(f"  {x:8.2f}" for x in accuracies) +
              f"  {statistics.mean(accuracies):6.2f}  {above:+13.2f}      {sent / 1e3:8.1f} of {whole / 1e3:.1f}   {options}")
        if not above >= -a.points:
            short.append(name)
    if short:
        sys.exit(f"compare_accuracy.py: more than {a.points} points below {runs[0][0]}: {', '.join(short)}")


if __name__ == "__main__":
    main()
