#!/usr/bin/env python3
"""Throughput of whole training steps on one GPU: train_resnet against PyTorch (eager, CUDA graph, compiled), interleaved.

  gpu_against_torch.py --program train_resnet --peer torch_resnet.py [--dtypes bf16,fp16] [--batches 256,64] [--rounds 3]
                       [--seconds 300] [--json steps.json] [--markdown steps.md]

The peer is the program that bench/end_to_end/against_torch.py describes, with --device, --dtype, --graph and --compile, and
with its SGD fused (torch_fused.py): with fp16's scaler no other one can be captured. Both
run on synthetic images of the same size, with 1000 classes. Ours runs with loader, augmentation, copies to the GPU and updates; its figure is
the median over its reports after the first two. The peer's images lie on the GPU from the start. Ours tunes its libraries in
round 1 only: a file of choices for each setting is kept over the rounds. A run is one epoch, with --workers processors for
the loader, so that neither an evaluation nor the loader is what is measured.

Round 1 runs ours, ours with --weights-beside and with --dependent-launches, and every mode of the peer for each setting (type
and batch), later rounds ours in all ways and the mode that was fastest there. The ratio of a round is ours over the best of the peer in that round; the result is the median of the ratios.
--seconds is the time for everything: a run that would not fit, by what runs like it have taken so far, is left out and
listed. Without PyTorch ours runs alone, and the report says so.
Exit status: 0, also when the peer fails; 1 when one of our runs fails, or none was made.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MODES = ("eager", "graph", "compile")  # of the peer, in the order of round 1
OURS = "ours"
WAYS = {"ours, weights beside": ["--weights-beside"], "ours, dependent launches": ["--dependent-launches"]}  # of ours, too
FUSED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_fused.py")


class Failed(Exception):
    pass


def contenders(first, best, modes):
    """Who runs in a round of a setting: all in the first, then ours in all ways and the peer's best."""
    if first:
        return (OURS, *WAYS, *modes)
    return (OURS, *WAYS, best) if best else (OURS, *WAYS)


def estimate(contender, setting, took, first_time):
    """Seconds that a run will take: as the last one like it, else the longest of the same contender, else a guess. The
    last, because the first one of ours tunes and the peer's first one may compile."""
    same = [t for c, s, t in took if c == contender and s == setting]
    like = [t for c, s, t in took if c == contender]
    return same[-1] if same else max(like) if like else first_time


def best_of(figures):
    """The peer's fastest mode by the median of its figures, None without any."""
    peer = {mode: statistics.median(x) for mode, x in figures.items() if mode not in (OURS, *WAYS) and x}
    return max(peer, key=peer.get) if peer else None


def summary(rounds):
    """Of one setting: rounds is a list of {contender: images/s}."""
    figures = {}
    for r in rounds:
        for contender, rate in r.items():
            figures.setdefault(contender, []).append(rate)
    best = best_of(figures)
    # Within a round, so that a clock that drifts changes both sides.
    peers = [(r, [rate for mode, rate in r.items() if mode not in (OURS, *WAYS)]) for r in rounds if OURS in r]
    ratios = [r[OURS] / max(rates) for r, rates in peers if rates]
    ways = {way: [r[way] / r[OURS] for r in rounds if OURS in r and way in r] for way in WAYS}
    return {"median": {c: statistics.median(x) for c, x in figures.items()}, "best_of_peer": best, "rounds": rounds,
            "ratio": statistics.median(ratios) if ratios else None, "ratios": ratios,
            "to_ours": {way: statistics.median(x) for way, x in ways.items() if x}}


def run(command, environment, limit):
    try:
        done = subprocess.run(command, env=environment, timeout=limit, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        raise Failed(f"stopped after {limit:.0f} s") from None
    except OSError as error:
        raise Failed(str(error)) from None
    if done.returncode:
        said = [line for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
        raise Failed(f"exit status {done.returncode}: {said[-1] if said else 'nothing said'}")
    return done.stdout


def ours(a, dtype, batch, limit, options=()):
    steps = max(48, 8192 // batch)
    choices = os.path.join(a.work, f"choices-{dtype}-{batch}.json")
    out = tempfile.mkdtemp(dir=a.work)
    try:
        run([a.program, "--devices", a.device, "--model", a.model, "--dtype", dtype, "--batch-size", str(batch), "--data",
             "synthetic", "--image-size", str(a.image_size), "--classes", str(a.classes), "--train-images", str(steps * batch),
             "--test-images", "16", "--flip", "on", "--steps", str(steps), "--epochs", "1000", "--log-every", "8",
             "--workers", str(a.workers), "--tune", "on", "--choices", choices, "--out", out,
             *options], os.environ, limit)
        with open(os.path.join(out, "metrics.jsonl")) as lines:
            rates = [e["images_per_second"] for e in map(json.loads, lines) if e["event"] == "step"]
    finally:
        shutil.rmtree(out, ignore_errors=True)
    if len(rates) < 3:
        raise Failed(f"{len(rates)} reports, at least 3 expected")
    return statistics.median(rates[2:])


def peer_environment():
    environment = dict(os.environ)
    # What our programs need in front of it must not come between PyTorch and its own libraries.
    if "LOCKSTEP_PEER_LIBRARY_PATH" in environment:
        environment["LD_LIBRARY_PATH"] = environment["LOCKSTEP_PEER_LIBRARY_PATH"]
        if not environment["LD_LIBRARY_PATH"]:
            del environment["LD_LIBRARY_PATH"]
    return environment


def theirs(a, mode, dtype, batch, limit):
    flags = {"eager": [], "graph": ["--graph"], "compile": ["--compile"]}[mode]
    text = run([a.python, FUSED, a.peer, "--device", a.peer_device, "--model", a.model, "--batch", str(batch), "--dtype", dtype,
                "--steps", str(max(30, 4096 // batch)), "--warmup", "10", *flags], peer_environment(), limit)
    try:
        return json.loads(text.strip().splitlines()[-1])["images_per_second"]
    except (IndexError, KeyError, ValueError):
        raise Failed("the last line is no JSON with images_per_second") from None


def peer_modes(a):
    """The peer's modes, or none and why."""
    if not os.path.isfile(a.peer):
        return (), f"no {os.path.basename(a.peer)} was brought along"
    try:
        run([a.python, "-c", "import torch, torchvision"], peer_environment(), 120)
    except Failed as error:
        return (), f"no PyTorch with torchvision here ({error})"
    return MODES, ""


def measure(a, modes, now=time.monotonic):
    """(rounds by setting, left out)."""
    end = now() + a.seconds
    settings = [(dtype, int(batch)) for batch in a.batches.split(",") for dtype in a.dtypes.split(",")]
    rounds = {setting: [] for setting in settings}
    left_out, took, failed = [], [], set()
    for number in range(a.rounds):
        for setting in settings:
            figures = {c: [r[c] for r in rounds[setting] if c in r] for c in modes}
            this = {}
            for contender in contenders(number == 0, best_of(figures), modes):
                if (contender, setting) in failed:
                    continue
                what = {"dtype": setting[0], "batch": setting[1], "round": number + 1, "run": contender}
                left, needed = end - now(), estimate(contender, setting, took, a.first_estimate)
                if left < needed:
                    left_out.append({**what, "kind": "no time", "reason": f"needs about {needed:.0f} s, {left:.0f} s are left"})
                    continue
                start = now()
                try:
                    limit = min(left, a.limit)
                    if contender == OURS or contender in WAYS:
                        this[contender] = ours(a, *setting, limit, WAYS.get(contender, []))
                    else:
                        this[contender] = theirs(a, contender, *setting, limit)
                    print(f"round {number + 1}, {setting[0]}, batch {setting[1]}: {contender} {this[contender]:.1f} images/s", flush=True)
                except Failed as error:
                    # What failed once is not tried again: the time is better spent.
                    failed.add((contender, setting))
                    left_out.append({**what, "kind": "failed", "reason": str(error)})
                    print(f"round {number + 1}, {setting[0]}, batch {setting[1]}: {contender}: {error}", flush=True)
                took.append((contender, setting, now() - start))
            if this:
                rounds[setting].append(this)
    return rounds, left_out


def markdown(results, left_out, why_no_peer, modes):
    lines = ["Images per second, medians over the rounds; the ratio is ours over the best of the peer, median of the rounds' ratios.",
             "", "| type | batch | " + " | ".join((OURS, *WAYS, *MODES)) + " | ratio | of rounds |", "|" + "---|" * (5 + len(WAYS) + len(MODES))]
    number = lambda x: "" if x is None else f"{x:.1f}"
    for r in results:
        ratio = "" if r["ratio"] is None else f"{r['ratio']:.3f} ({r['best_of_peer']})"
        lines.append(f"| {r['dtype']} | {r['batch']} | " +
                     " | ".join(number(r["median"].get(m)) for m in (OURS, *WAYS, *MODES)) + f" | {ratio} | {len(r['ratios'])} |")
    lines.append("")
    if why_no_peer:
        lines.append(f"- not compared: {why_no_peer}")
    for x in left_out:
        lines.append(f"- left out: round {x['round']}, {x['dtype']}, batch {x['batch']}, {x['run']}: {x['reason']}")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="build/bin/train_resnet")
    p.add_argument("--peer", required=True)
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--model", default="resnet50")
    p.add_argument("--image-size", type=int, default=224, help="of ours; the peer's follows from the model")
    p.add_argument("--classes", type=int, default=1000, help="of ours; the peer's follows from the model: ResNet-50 has 1000")
    p.add_argument("--workers", type=int, default=min(256, max(1, (os.cpu_count() or 1) - 2)), help="of our loader")
    p.add_argument("--dtypes", default="bf16,fp16")
    p.add_argument("--batches", default="256,64")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=300)
    p.add_argument("--limit", type=float, default=120, help="seconds of one run at most")
    p.add_argument("--first-estimate", type=float, default=20, help="seconds of a run that nothing is known of")
    p.add_argument("--device", default="0,", help="of ours")
    p.add_argument("--peer-device", default="cuda")
    p.add_argument("--work", help="folder for what our runs write; the files of choices are kept there")
    p.add_argument("--json")
    p.add_argument("--markdown")
    a = p.parse_args()

    start = time.monotonic()
    modes, why = peer_modes(a)
    if why:
        print(why, flush=True)
    a.seconds -= time.monotonic() - start
    with tempfile.TemporaryDirectory() as temporary:
        a.work = a.work or temporary
        rounds, left_out = measure(a, modes)
    results = [{"dtype": dtype, "batch": batch, **summary(r)} for (dtype, batch), r in rounds.items()]
    report = {"model": a.model, "image_size": a.image_size, "classes": a.classes, "results": results, "left_out": left_out, "not_compared": why}
    if a.json:
        with open(a.json, "w") as out:
            json.dump(report, out, indent=1)
            out.write("\n")
    if a.markdown:
        with open(a.markdown, "w") as out:
            out.write(markdown(results, left_out, why, modes))
    broken = [x for x in left_out if x["run"] == OURS and x["kind"] == "failed"]
    made = [r for r in results if OURS in r["median"]]
    said = [f"{r['dtype']} {r['batch']}: {r['median'][OURS]:.0f} images/s" +
            (f", {r['ratio']:.3f} x {r['best_of_peer']}" if r["ratio"] else "") +
            "".join(f"; {way.removeprefix('ours, ')} {x:.3f} x" for way, x in r["to_ours"].items()) for r in made]
    if broken:
        said.insert(0, f"error: {broken[0]['dtype']} {broken[0]['batch']}: {broken[0]['reason']}")
    if left_out:
        said.append(f"{len(left_out)} runs left out")
    print("; ".join(said) or "error: no run was made")
    return 1 if broken or not made else 0


if __name__ == "__main__":
    sys.exit(main())
