#!/usr/bin/env python3
"""Kills and stops training at random moments, resumes it, and looks at what is left: docs/reliability.md, as a test.

    faults.py TRAIN_RESNET --kills CHAINS --stops CHAINS [--ranks N] [--seed S] [--folder DIR]

A chain is a run that is killed (or stopped by a signal) 1 to 5 times at random moments, and resumed each time. After
each end: no process is left; last/ and best/ are complete; last/ tells of no best that best/ has not; last/ has not
gone back; metrics.jsonl is valid but for its end. At the end of the chain last/ and best/ have the bytes of a run that
was left alone. Exit code 1 and a line for each violation; the last line counts.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

OPTIONS = ("--model mlp --hidden 24 --image-size 8 --train-images 240 --test-images 48 --batch-size 24 --epochs 24 "
           "--log-every 3 --checkpoint-every 2 --workers 1 --threads 1 --lr 0.05 --watchdog 30").split()
END_WITHIN = 20.0  # seconds; a killed job of a quiet machine takes two


class Violation(Exception):
    pass


def require(holds, text):
    if not holds:
        raise Violation(text)


def processes_of(session):
    """Process ids and environments' ranks of a session, of those that still run."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            fields = stat[stat.rindex(")") + 2:].split()
            if int(fields[3]) != session or fields[0] == "Z":
                continue
            environment = (entry / "environ").read_bytes()
            found.append((int(entry.name), b"OMPI_COMM_WORLD_RANK=" in environment))
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return found


def checkpoint(folder):
    """state.json of a complete checkpoint; None where there is no folder."""
    if not folder.is_dir():
        return None
    listed = json.loads((folder / "checksums.json").read_text())["files"]
    require(set(listed) >= {"model.safetensors", "optimizer.safetensors", "state.json"}, f"{folder}: lists {listed}")
    for name, entry in listed.items():
        data = (folder / name).read_bytes()
        require(len(data) == entry["bytes"] and zlib.crc32(data) == entry["crc32"], f"{folder}/{name}: other bytes")
    return json.loads((folder / "state.json").read_text())


def digest(folder):
    total = hashlib.sha256()
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        total.update((folder / name).read_bytes())
    return total.hexdigest()


def check_metrics(path, ended):
    if not path.exists():
        return
    lines = path.read_text().split("\n")
    require(not ended or lines[-1] == "", f"{path}: its last line is cut: {lines[-1]!r}")
    for line in lines[:-1]:
        json.loads(line)


class Chain:
    def __init__(self, program, ranks, out, rng):
        self.command = [program, *OPTIONS, "--devices", f"cpu:{ranks}" if ranks > 1 else "cpu", "--out", str(out)]
        self.out = out
        self.rng = rng
        self.step = 0
        self.parts = []  # what was done, for the report

    def start(self):
        log = open(self.out.parent / (self.out.name + ".log"), "ab")
        return subprocess.Popen(self.command + ["--resume", "auto"], stdin=subprocess.DEVNULL, stdout=log,
                                stderr=subprocess.STDOUT, start_new_session=True)

    def wait(self, process):
        """Until the job has ended, all of it; its exit code."""
        limit = time.monotonic() + END_WITHIN
        try:
            code = process.wait(timeout=END_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise Violation("it did not end") from None
        while processes_of(process.pid):
            if time.monotonic() > limit:
                left = processes_of(process.pid)
                for pid, _ in left:
                    os.kill(pid, signal.SIGKILL)
                raise Violation(f"{len(left)} processes are left")
            time.sleep(0.05)
        return code

    def look(self, ended=False):
        last = checkpoint(self.out / "last")
        best = checkpoint(self.out / "best")
        require(last is not None or self.step == 0, "last/ is gone")
        if last is not None:
            require(last["step"] >= self.step, f"last/ has gone back from step {self.step} to {last['step']}")
            self.step = last["step"]
            if last["best"] is not None:
                require(best is not None, f"last/ tells of the best {last['best']}, and there is no best/")
                require(best["best"] >= last["best"], f"last/ tells of the best {last['best']}, best/ of {best['best']}")
        check_metrics(self.out / "metrics.jsonl", ended)

    def kill(self, seconds):
        process = self.start()
        time.sleep(self.rng.uniform(0, seconds))
        running = processes_of(process.pid)
        ranks = [pid for pid, is_rank in running if is_rank]
        others = [pid for pid, is_rank in running if not is_rank]
        kind = self.rng.choice(["all", "rank", "parent", "launcher"])
        targets = {"all": [pid for pid, _ in running], "rank": ranks[:1] if self.rng.random() < 0.5 else ranks[-1:],
                   "parent": [process.pid], "launcher": others[-1:]}[kind] or [process.pid]
        self.parts.append(f"kill {kind}")
        for pid in targets:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.wait(process)
        self.look()

    def stop(self, seconds):
        process = self.start()
        time.sleep(self.rng.uniform(0, seconds))
        number = self.rng.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
        self.parts.append(signal.Signals(number).name)
        process.send_signal(number)
        code = self.wait(process)
        # A signal before the program's first instruction ends the process as the system does.
        require(code in (0, 75, -number, 128 + number), f"exit code {code} after {signal.Signals(number).name}")
        if code == 0:
            require(checkpoint(self.out / "last")["epoch"] == 24, "exit code 0, and the run is not done")
        self.look(ended=code in (0, 75))

    def finish(self):
        code = self.wait_long(self.start())
        require(code == 0, f"the last part ended with {code}")
        self.look(ended=True)

    def wait_long(self, process):
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise Violation("the last part did not end") from None
        return self.wait(process)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=0, help="chains of kills")
    parser.add_argument("--stops", type=int, default=0, help="chains of signals")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where runs are kept; default: a temporary folder")
    arguments = parser.parse_args()
    folder = pathlib.Path(arguments.folder or tempfile.mkdtemp(prefix="lockstep-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    violations = 0
    ends = 0
    try:
        rng = random.Random(arguments.seed)
        alone = Chain(arguments.program, arguments.ranks, folder / "alone", rng)
        begin = time.monotonic()
        alone.finish()
        seconds = time.monotonic() - begin
        expected = {name: digest(alone.out / name) for name in ("last", "best")}
        for number in range(arguments.kills + arguments.stops):
            chain = Chain(arguments.program, arguments.ranks, folder / f"chain{number}",
                          random.Random(arguments.seed * 1000003 + number))
            end = chain.kill if number < arguments.kills else chain.stop
            try:
                for _ in range(chain.rng.randint(1, 5)):
                    end(seconds)
                    ends += 1
                chain.finish()
                for name, value in expected.items():
                    require(digest(chain.out / name) == value, f"{name}/ is not that of a run that was left alone")
            except (Violation, OSError, ValueError, KeyError) as fault:
                violations += 1
                print(f"chain {number} ({', '.join(chain.parts)}): {fault}", flush=True)
                continue
            shutil.rmtree(chain.out)
    finally:
        if not arguments.folder and violations == 0:
            shutil.rmtree(folder, ignore_errors=True)
    kept = f"; kept in {folder}" if violations else ""
    print(f"{arguments.kills} chains of kills, {arguments.stops} of signals, {ends} ends in all; "
          f"{violations} violations{kept}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
