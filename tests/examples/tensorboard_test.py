#!/usr/bin/env python3
"""tensorboard_test.py TRAIN_RESNET: what TensorBoard's own reader finds in a run, and in one that was continued from an
earlier checkpoint, is what metrics.jsonl says."""
import json
import pathlib
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

OPTIONS = ("--model mlp --image-size 8 --train-images 64 --test-images 30 --batch-size 8 --log-every 2 "
           "--checkpoint-every 5 --workers 0 --threads 1 --tensorboard").split()


def train(program, out, *options):
    subprocess.run([program, *OPTIONS, "--out", str(out), *options], check=True, stdout=subprocess.DEVNULL)


def lines(out):
    """The events of metrics.jsonl that count: {("step" or "epoch", step): event}, without what a resume trained again."""
    found = {}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "resume":
            found = {key: value for key, value in found.items() if key[1] <= event["step"]}
        elif event["event"] in ("step", "epoch"):
            found[event["event"], event["step"]] = event
    return found


def compare(out):
    read = EventAccumulator(str(out / "tensorboard"))
    read.Reload()
    expected = lines(out)
    for tag, kind, name in (("train/loss", "step", "loss"), ("train/accuracy", "step", "accuracy"),
                            ("train/images_per_second", "step", "images_per_second"),
                            ("train/learning_rate", "step", "learning_rate"), ("epoch/loss", "epoch", "loss"),
                            ("test/loss", "epoch", "test_loss"), ("test/accuracy", "epoch", "test_accuracy")):
        there = {scalar.step: scalar.value for scalar in read.Scalars(tag)}
        wanted = {step: event[name] for (of, step), event in expected.items() if of == kind}
        assert there.keys() == wanted.keys(), f"{tag}: steps {sorted(there)}, expected {sorted(wanted)}"
        for step, value in wanted.items():
            assert abs(there[step] - value) <= 1e-6 * abs(value), f"{tag}, step {step}: {there[step]}, expected {value}"
    return len(expected)


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        train(sys.argv[1], out, "--epochs", "2")
        first = compare(out)
        for name in ("last", "last.1"):  # acts as if the run had been killed after step 15
            (out / name).rename(out / ("gone" if name == "last" else "last"))
        train(sys.argv[1], out, "--epochs", "3", "--resume", "auto")
        assert compare(out) > first
        assert len(list((out / "tensorboard").iterdir())) == 2
        train(sys.argv[1], out, "--epochs", "1", "--overwrite")
        compare(out)
        assert len(list((out / "tensorboard").iterdir())) == 1
    print("as metrics.jsonl says")


if __name__ == "__main__":
    main()
