#!/usr/bin/env python3
"""report_csv_test.py LOCKSTEP_REPORT TRAIN_RESNET: what Python's csv module reads in the table of a run that was
continued from an earlier checkpoint is what its metrics.jsonl says."""
import csv
import io
import json
import pathlib
import subprocess
import sys
import tempfile

OPTIONS = ("--model mlp --image-size 8 --train-images 64 --test-images 30 --batch-size 8 --log-every 2 "
           "--checkpoint-every 5 --workers 0 --threads 1").split()


def train(program, out, *options):
    subprocess.run([program, *OPTIONS, "--out", str(out), *options], check=True, stdout=subprocess.DEVNULL)


def events(out):
    """The lines of metrics.jsonl that count, without what a resume trained again."""
    found = []
    for line in (out / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "resume":
            found = [earlier for earlier in found if earlier["step"] <= event["step"]]
        elif event["event"] in ("step", "epoch"):
            found.append(event)
    return found


def main():
    report, train_resnet = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / 'of "two" parts,\nin two lines'
        train(train_resnet, out, "--epochs", "2")
        for name in ("last", "last.1"):  # acts as if the run had been killed after step 15
            (out / name).rename(out / ("gone" if name == "last" else "last"))
        train(train_resnet, out, "--epochs", "3", "--resume", "auto")
        text = subprocess.run([report, str(out), "--csv", "-"], check=True, stdout=subprocess.PIPE).stdout.decode()
        rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
        expected = events(out)
        assert len(rows) == len(expected) == 12 + 3, f"{len(rows)} rows, expected {len(expected)}"
        names = ["run", "event", "epoch", "step", "loss", "test_loss", "accuracy", "test_accuracy"]
        assert list(rows[0])[:8] == names, list(rows[0])
        assert set(rows[0]) == {"run"}.union(*expected)
        for row, event in zip(rows, expected):
            assert row.pop("run") == out.name
            assert row.pop("event") == event.pop("event")
            for name, cell in row.items():
                value = event.get(name)
                assert (cell == "") == (value is None), f"{name}: {cell!r}, expected {value}"
                assert value is None or float(cell) == value, f"{name}: {cell}, expected {value!r}"
    print("as metrics.jsonl says")


if __name__ == "__main__":
    main()
