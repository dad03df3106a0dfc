#!/usr/bin/env python3
"""Runs of a training program in turns, each a line of options: how many samples a second, and the ratio to the first.

  compare_runs.py --program build/bin/train_resnet --ranks 2 --rounds 7 --common '--model resnet20 --steps 24 --threads 1' \\
      'ddp=' 'zero1=--strategy zero1' 'in rank order=--reproducible layout' \\
      'world=--reproducible world --virtual-ranks 2' 'of 8=--reproducible world --virtual-ranks 8'
  compare_runs.py --rounds 7 --common '...' 'before=PROGRAM: ' 'after=build/bin/train_resnet: '

A run is NAME=OPTIONS, or NAME=PROGRAM: OPTIONS for another program. Each round runs all of them once, one after the other. The
figure of a run is the median of samples a second over its reports but the first; of a name, the median over the rounds. The
ratio is of medians, of the name's over the first name's; its 95 % interval is a bootstrap's over the rounds, by the ratios
within each. Threads wait passively; with --ranks N by mpirun. What a trace costs:

  compare_runs.py --ranks 2 --rounds 15 --common '--model resnet20 --steps 60 --log-every 5 --threads 1' \\
      'without=' 'trace=--trace /tmp/trace.json --trace-steps 1:60'
"""
import argparse
import datetime
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile


def arguments(description):
    """Returns the argument parser of a program that compares runs."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="build/bin/train_resnet")
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--common", default="", help="options of all runs")
    p.add_argument("runs", nargs="+", metavar="NAME=[PROGRAM: ]OPTIONS")
    return p


def parse(text, program):
    name, found, options = text.partition("=")
    if not found:
        sys.exit(f"{os.path.basename(sys.argv[0])}: '{text}' is no run, expected NAME=OPTIONS")
    own, colon, rest = options.partition(": ")
    return (name, own, rest) if colon else (name, program, options)


def output_of(command):
    """Returns the output of a program. Ends this program when that one fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict(os.environ, OMP_WAIT_POLICY="passive"))
    if done.returncode != 0:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {shlex.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def metrics_of(command, ranks=1):
    """Runs a command on the host and returns the lines of its metrics.jsonl."""
    with tempfile.TemporaryDirectory() as out:
        run = os.path.join(out, "run")
        output_of((["mpirun", "-np", str(ranks)] if ranks > 1 else []) + command + ["--devices", "cpu", "--out", run])
        with open(os.path.join(run, "metrics.jsonl")) as lines:
            return [json.loads(line) for line in lines]


def events_of(a, program, options, *more):
    return metrics_of([program, *shlex.split(a.common), *shlex.split(options), *more], a.ranks)


def rate(a, program, options):
    rates = [value for e in events_of(a, program, options) if e["event"] == "step" for key, value in e.items() if key.endswith("s_per_second")]
    if len(rates) < 3:
        sys.exit(f"compare_runs.py: {program} {options} reported {len(rates)} times, expected at least 3: more --steps, or a "
                 "smaller --log-every")
    return statistics.median(rates[1:])


def processor():
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else "a processor without a name"


def interval(run, first):
    """Returns the 95 % interval of the median over the rounds of run / first, by 10000 bootstrap draws."""
    ratios = [a / b for a, b in zip(run, first)]
    draws = random.Random(1)
    medians = sorted(statistics.median(draws.choices(ratios, k=len(ratios))) for _ in range(10000))
    return medians[250], medians[-251]


def main():
    p = arguments(__doc__)
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    runs = [parse(text, a.program) for text in a.runs]
    figures = [[] for _ in runs]
    load = os.getloadavg()[0]
    for i in range(a.rounds):
        for run, (_, program, options) in zip(figures, runs):
            run.append(rate(a, program, options))
        print(f"round {i + 1} of {a.rounds}", file=sys.stderr, flush=True)
    print(f"{datetime.date.today()}, {processor()}, load before {load:.2f}; {a.ranks} rank(s), {a.rounds} rounds in turns; {a.common}\n")
    width = max(len(name) for name, _, _ in runs)
    print(f"{'':{width}}  samples/s: median [least, most]   of the first [95 %]")
    first = statistics.median(figures[0])
    for (name, _, options), run in zip(runs, figures):
        middle = statistics.median(run)
        low, high = interval(run, figures[0])
        print(f"{name:{width}}  {middle:9.1f} [{min(run):.1f}, {max(run):.1f}]  {middle / first:14.4f} [{low:.4f}, {high:.4f}]"
              f"    {options}".rstrip())


if __name__ == "__main__":
    main()
