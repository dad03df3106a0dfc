#!/usr/bin/env python3
"""bench_allreduce beside osu_allreduce of the OSU micro-benchmarks, in turns: OSU's, OSU's with threads, ours, OSU's, ...

  allreduce_against_osu.py --osu osu_allreduce [--program build/bin/bench_allreduce] [--ranks 2] [--rounds 5] [--out table.txt]

OSU's figure is the mean over calls and ranks; ours beside it is the same (mean_over_ranks_s), and then the median over calls of
the slowest rank (p50_s). Programs of lockstep ask MPI for MPI_THREAD_MULTIPLE, osu_allreduce for
no threads: Open MPI gives it them with OMPI_MPI_THREAD_LEVEL=3. OSU's sums are out of place, ours in place. The environment is
passed on as it is: on a small machine first `source scripts/lib.sh; mpi_environment`. Sizes above 64 KiB have a tenth of the
iterations.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time

from compare_runs import processor

FACTOR = 4
SMALL = 65536


def run(command, **variables):
    environment = dict(os.environ, **variables)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, text=True).stdout


def osu(a, first, last, iterations, **variables):
    text = run(["mpirun", "-np", str(a.ranks), a.osu, "-m", f"{first}:{last}", "-i", str(iterations)], **variables)
    rows = (line.split() for line in text.splitlines() if re.match(r"\d", line))
    return {int(row[0]): float(row[1]) for row in rows}


def ours(a, first, last, iterations):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        run(["mpirun", "-np", str(a.ranks), a.program, "--devices", "cpu", "--collectives", "all_reduce", "--model", "",
             "--min-bytes", str(first), "--max-bytes", str(last), "--factor", str(FACTOR), "--pool-bytes", "0",
             "--benchmark_filter=/blocking/", f"--iterations={iterations}", f"--benchmark_out={out}"])
        with open(out) as file:
            root = json.load(file)
    rows = root["benchmarks"]
    return (root["context"], {int(r["bytes"]): r["mean_over_ranks_s"] * 1e6 for r in rows},
            {int(r["bytes"]): r["p50_s"] * 1e6 for r in rows})


def commit():
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=os.path.dirname(os.path.abspath(__file__)), stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
    return "commit " + git.stdout.strip() if git.returncode == 0 else "commit not known"


p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--osu", required=True)
p.add_argument("--program", default="build/bin/bench_allreduce")
p.add_argument("--ranks", type=int, default=2)
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--iterations", type=int, default=5000, help="of each size")
p.add_argument("--max-bytes", type=int, default=16 << 20, help="a power of 4 times 4")
p.add_argument("--out")
a = p.parse_args()

load = os.getloadavg()[0]
COLUMNS = ("OSU", "OSU, threads", "ours", "ours, slowest")
ranges = [(4, min(SMALL, a.max_bytes), a.iterations)]
if a.max_bytes > SMALL:
    ranges.append((SMALL * FACTOR, a.max_bytes, max(a.iterations // 10, 1)))
figures = {}
for i in range(a.rounds):
    for first, last, iterations in ranges:
        plain = osu(a, first, last, iterations)
        threads = osu(a, first, last, iterations, OMPI_MPI_THREAD_LEVEL="3")
        context, mean, slowest = ours(a, first, last, iterations)
        for size in mean:
            for name, values in zip(COLUMNS, (plain, threads, mean, slowest)):
                figures.setdefault(size, {}).setdefault(name, []).append(values[size])
    print(f"round {i + 1} of {a.rounds}", flush=True)

lines = [f"All-reduce of f32 over {a.ranks} ranks, bench_allreduce beside osu_allreduce, {time.strftime('%Y-%m-%d')}, {commit()},",
         f"{context['library']}, {processor()},",
         f"{context['mpi']}, load before {load:.2f}; {a.rounds} rounds in turns of",
         ""]
for first, last, iterations in ranges:
    lines += [f"  [OMPI_MPI_THREAD_LEVEL=3] mpirun -np {a.ranks} osu_allreduce -m {first}:{last} -i {iterations}",
              f"  mpirun -np {a.ranks} bench_allreduce --devices cpu --collectives all_reduce --model '' --min-bytes {first} --max-bytes {last} \\",
              f"    --factor {FACTOR} --pool-bytes 0 --benchmark_filter=/blocking/ --iterations {iterations}"]
lines += ["", "Microseconds, median of the rounds [least, most]: means over calls and ranks; and ours as the median over calls of the slowest",
          "rank. The ratio is ours over OSU's with threads, and in brackets over that without.", "",
          f"{'bytes':>9}" + "".join(f"{name:>28}" for name in COLUMNS) + f"{'ratio':>15}"]
for size, values in sorted(figures.items()):
    middle = {name: statistics.median(values[name]) for name in COLUMNS}
    cells = "".join(f"{middle[name]:>{9}.2f} {'[%.2f, %.2f]' % (min(values[name]), max(values[name])):<18}" for name in COLUMNS)
    lines.append(f"{size:>9}{cells} {middle['ours'] / middle['OSU, threads']:>6.2f} ({middle['ours'] / middle['OSU']:.2f})")
table = "\n".join(lines) + "\n"
print(table, end="")
if a.out:
    with open(a.out, "w") as file:
        file.write(table)
