#!/usr/bin/env python3
"""Breaks training at random moments, resumes it, and looks at what is left: docs/reliability.md, as a test.

    faults.py TRAIN_RESNET [--kills N] [--stops N] [--freezes N] [--pauses N] [--limits N] [--moves N] [--deletes N]
              [--damages N] [--unread N] [--restarts N] [--copies N] [--worlds N] [--ranks N] [--seed S] [--folder DIR]

kills, stops  chains of runs that are killed (or stopped by a signal) 1 to 5 times, and resumed each time
freezes       a rank is stopped (SIGSTOP), from its first instruction on: the watchdog ends the job and names it
pauses        Ctrl-Z of a job that started its ranks itself, for longer than the watchdog waits, and fg
limits        rank 0 reaches the limit of the size of files, as on a full disk
moves         the folder of results is moved (mv) while the run writes to it
deletes       the folder of results is deleted (rm -r) while the run writes to it
damages       a bit of a checkpoint changes: it is refused, and another one is named
unread        nobody reads the output until the run is over
restarts      ranks are killed, and the job starts them again by itself (--max-restarts)
copies        the same with copies in memory (--copy-every) instead of checkpoints within an epoch: at most two steps are
              lost; first a whole job is killed, what it left in /dev/shm goes with the next
worlds        1, 2, 4, 3 ranks with --batch-per-rank, then other --batch-size: samples and rate are counted here again

After each end: no process is left; last/ and best/ are complete; last/ tells of no best that best/ has not; last/ has
not gone back; metrics.jsonl is valid but for its end. There are at most four best-STEP/, each complete. At the end last/,
best/ and three best-STEP/ have the bytes of a run that was left alone (after deletes: the weights of last/). Exit code 1 and a line for each violation; the last line counts.
"""
import argparse
import fcntl
import hashlib
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

OPTIONS = ("--model mlp --hidden 24 --image-size 8 --train-images 240 --test-images 48 --batch-size 24 --epochs 24 "
           "--log-every 3 --checkpoint-every 2 --keep-best 3 --workers 1 --threads 1 --lr 0.05 --watchdog 30").split()
END_WITHIN = 20.0  # seconds; a killed job takes two on a quiet machine


class Violation(Exception):
    pass


class Late(Exception):
    """The program was done before something was done to it."""


def require(holds, text):
    if not holds:
        raise Violation(text)


def processes_of(session):
    """Process ids and ranks (-1: none) of a session, of those that still run."""
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
            rank = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", environment)
            found.append((int(entry.name), int(rank[1]) if rank else -1))
        except (OSError, ValueError):
            continue  # the process has ended meanwhile
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


def digest(folder, names=("model.safetensors", "optimizer.safetensors", "state.json")):
    total = hashlib.sha256()
    for name in names:
        total.update((folder / name).read_bytes())
    return total.hexdigest()


def kept_best(out):
    """best-STEP/ by name."""
    return {path.name: path for path in out.glob("best-*") if re.fullmatch(r"best-\d+", path.name)}


def check_metrics(path, ended):
    if not path.exists():
        return
    lines = path.read_text().split("\n")
    require(not ended or lines[-1] == "", f"{path}: its last line is cut: {lines[-1]!r}")
    for line in lines[:-1]:
        json.loads(line)


def state_of(pid):
    """Of a process, as in /proc/PID/stat; X: there is none."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        return stat[stat.rindex(")") + 2]
    except OSError:
        return "X"


def error_lines(said):
    """Not the last lines of all: mpirun brings standard output and standard error in no fixed order."""
    return [line for line in said.splitlines() if line.startswith("lockstep: error: ")]


class Chain:
    def __init__(self, program, ranks, out, rng, options=()):
        devices = f"cpu:{ranks}" if ranks > 1 else "cpu"
        self.command = [program, *OPTIONS, *options, "--devices", devices, "--out", str(out)]
        self.ranks = ranks
        self.out = out
        self.log = out.parent / (out.name + ".log")
        self.rng = rng
        self.step = 0
        self.parts = []  # names of what was done, for the report

    def start(self, *options):
        with open(self.log, "ab") as log:
            return subprocess.Popen(self.command + ["--resume", "auto", *options], stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def until(self, process, holds):
        """Waits until holds() is true; False when the process ends before."""
        limit = time.monotonic() + END_WITHIN
        while process.poll() is None and time.monotonic() < limit:
            if holds():
                return True
            time.sleep(0.002)
        require(process.poll() is not None, "it did not come so far")
        return False

    def ranks_of(self, process):
        """{rank: pid}; the process itself where there is no launcher."""
        if self.ranks == 1:
            return {0: process.pid}
        return {rank: pid for pid, rank in processes_of(process.pid) if rank >= 0}

    def said(self):
        return self.log.read_text(errors="replace")

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
        kept = kept_best(self.out)
        require(len(kept) <= 4, f"{len(kept)} of the best are kept: {sorted(kept)}")
        for name, path in kept.items():
            require(name == f"best-{checkpoint(path)['step']}", f"{name}/ is of step {checkpoint(path)['step']}")
        check_metrics(self.out / "metrics.jsonl", ended)

    def kill(self, seconds):
        process = self.start()
        time.sleep(self.rng.uniform(0, seconds))
        running = processes_of(process.pid)
        ranks = [pid for pid, rank in running if rank >= 0]
        others = [pid for pid, rank in running if rank < 0]
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
        # The signal may arrive before the program has installed its handler. The process then ends with the system's
        # exit code.
        require(code in (0, 75, -number, 128 + number), f"exit code {code} after {signal.Signals(number).name}")
        if code == 0:
            require(checkpoint(self.out / "last")["epoch"] == 24, "exit code 0, and the run is not done")
        self.look(ended=code in (0, 75))

    def freeze(self, seconds):
        self.parts.append("freeze")
        process = self.start("--watchdog", "2")
        self.until(process, lambda: self.ranks_of(process))
        time.sleep(self.rng.uniform(0, seconds))
        ranks = self.ranks_of(process)
        if not ranks:  # the job has ended
            self.wait(process)
            return
        rank = self.rng.choice(sorted(ranks))
        try:
            os.kill(ranks[rank], signal.SIGSTOP)
        except ProcessLookupError:
            pass
        try:
            code = self.wait(process)
        except Violation:
            # After the end of a run no rank watches the others (docs/reliability.md), so a stopped rank is not noticed
            # and wait() kills the job.
            require("\nfinished: " in self.said(), "it did not end")
            self.look(ended=True)
            return
        self.look(ended=False)
        if self.ranks == 1:
            return
        require(code in (0, 76), f"exit code {code} after rank {rank} was stopped")
        if code == 76:
            word = rf"no word from rank {rank} \(host \S+(?:, pid {ranks[rank]}\) for \d+ s: the process |\): it has not)"
            require(re.search(word, self.said()), f"rank {rank} (pid {ranks[rank]}) is not named")

    def pause(self, seconds):
        """Ctrl-Z and fg."""
        self.parts.append("pause")
        process = self.start("--watchdog", "2")
        self.until(process, lambda: len(self.ranks_of(process)) == self.ranks)
        time.sleep(self.rng.uniform(0.3, max(0.4, seconds - 0.5)))
        process.send_signal(signal.SIGTSTP)
        time.sleep(1)
        states = {pid: state_of(pid) for pid in self.ranks_of(process).values()}
        running = [pid for pid, state in states.items() if state not in "TZX"]
        time.sleep(3)
        process.send_signal(signal.SIGCONT)
        require(not running, f"{len(running)} of {len(states)} ranks went on")
        code = self.wait_long(process)
        require(code == 0, f"exit code {code} after a pause")
        self.look(ended=True)

    def limit(self, seconds):
        self.parts.append("limit")
        process = self.start()
        began = self.until(process, lambda: (self.out / "last").is_dir())
        time.sleep(self.rng.uniform(0, seconds / 2))
        ranks = self.ranks_of(process)
        bytes_ = self.rng.randint(100, 20000)
        limited = began and 0 in ranks
        if limited:
            try:
                resource.prlimit(ranks[0], resource.RLIMIT_FSIZE, (bytes_, bytes_))
            except ProcessLookupError:
                limited = False
        before = len(self.said())
        code = self.wait_long(process)
        self.look()
        require(code in ((0, 3) if limited else (0,)), f"exit code {code} with files of {bytes_} bytes")
        if code == 3:
            lines = error_lines(self.said()[before:])
            require(lines and all("File too large" in line for line in lines), f"the errors are {lines}")

    def move(self, _):
        self.parts.append("move")
        process = self.start()
        self.until(process, lambda: (self.out / "metrics.jsonl").exists())
        time.sleep(self.rng.uniform(0, 0.5))
        if process.poll() is None:
            there = self.out.with_name(self.out.name + ".moved")
            self.out.rename(there)
            code = self.wait_long(process)
            require(code == 0, f"exit code {code}")
            said = self.said()
            require(f"results in {there}\n" in said or f"results in {self.out}\n" in said, "no folder is named")
            if f"results in {there}\n" in said:
                require(f"{self.out} was moved to {there} during the run" in said, "the move is not told")
                require(not self.out.exists(), f"something is left in {self.out}")
            there.rename(self.out)
            for name in ("config.json", "metrics.jsonl", "run.lock"):
                require((self.out / name).exists(), f"{name} is missing")
        else:
            self.wait(process)
        self.look(ended=True)

    def delete(self, _):
        """What is deleted is lost; the run is not."""
        self.parts.append("delete")
        process = self.start()
        self.until(process, lambda: (self.out / "metrics.jsonl").exists())
        time.sleep(self.rng.uniform(0, 0.5))
        running = process.poll() is None
        while self.out.exists():  # a file may appear while the folder is emptied
            shutil.rmtree(self.out, ignore_errors=True)
            if running:
                break
        code = self.wait_long(process)
        lines = error_lines(self.said())
        require(code in (0, 3), f"exit code {code}: {lines}")
        if code == 3:
            require(lines and all(str(self.out) in line for line in lines), f"the errors are {lines}")
            # A file that was written while the folder was being deleted may be a checkpoint, from which the next run
            # would resume. The folder is therefore deleted again.
            shutil.rmtree(self.out, ignore_errors=True)
        elif (self.out / "last").exists():
            require(checkpoint(self.out / "last")["epoch"] == EPOCHS, "exit code 0, and the run is not done")

    def damage(self, _):
        """Of a copy of a finished run."""
        self.parts.append("damage")
        file = self.out / "last" / self.rng.choice(["model.safetensors", "optimizer.safetensors", "state.json"])
        data = file.read_bytes()
        changed = bytearray(data)
        changed[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        file.write_bytes(changed)
        process = self.start()
        code = self.wait_long(process)
        require(code == 2, f"exit code {code} with a changed bit of {file.name}")
        lines = self.said().splitlines()
        require(any("lockstep: error: " in line and str(self.out / "last") in line and "can be read" in line
                    for line in lines), f"no other checkpoint is named: {lines[-1:]}")
        file.write_bytes(data)

    def unread(self, _):
        self.parts.append("unread")
        process = subprocess.Popen(self.command + ["--resume", "auto", "--watchdog", "2", "--log-every", "1"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        metrics = self.out / "metrics.jsonl"
        self.until(process, lambda: metrics.exists() and '"event":"end"' in metrics.read_text())
        if self.ranks == 1:
            time.sleep(4)  # longer than the watchdog waits
            require(process.poll() is None, f"it has ended with {process.poll()} before it was read")
        said = process.stdout.read().decode()
        require(self.wait(process) == 0, "exit code")
        require(said.rstrip().endswith(f"results in {self.out}"), f"the end of the output is {said[-60:]!r}")
        self.look(ended=True)

    def copies_of(self, process):
        return list(pathlib.Path("/dev/shm").glob(f"lockstep-copies-{os.getuid()}-{process.pid}-*"))

    def copy(self, _):
        at = self.command.index("--checkpoint-every")
        self.command[at:at + 2] = ["--copy-every", "2", "--log-every", "1"]
        self.parts.append("kill of a job")
        first = self.start("--max-restarts", "1")
        self.until(first, lambda: any((folder / "last").exists() for folder in self.copies_of(first)))
        for pid, _ in processes_of(first.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.wait(first)
        require(self.copies_of(first), "a killed job has left no copies: nothing is tested")
        self.restart(None, ["--resume", "auto"])
        require(not self.copies_of(first), "copies of the killed job are still there")
        self.look(ended=True)
        done = 0
        resumed = False
        for line in (self.out / "metrics.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "resume":
                # The first resume may read a checkpoint on disk, because the killed job's copies are gone. Later
                # resumes must read copies of the present job.
                require((not resumed and not event["from"].startswith("/dev/shm/")) or event["step"] >= done - 2,
                        f"from step {event['step']} of {event['from']}, where step {done} was done")
                resumed = True
            done = event.get("step", done)
        self.command[at:at + 4] = ["--checkpoint-every", "2"]

    def restart(self, _, options=()):
        """Without --resume: the job goes on by itself."""
        kills = self.rng.randint(1, 3)
        self.parts.append(f"{kills} kills")
        already = self.said().count(": restart ") if self.log.exists() else 0
        with open(self.log, "ab") as log:
            process = subprocess.Popen(self.command + ["--max-restarts", str(kills), *options], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        done = 0
        for number in range(1, kills + 1):
            # Waits until the log says that the start has written "step" or "resume" lines. Only then is one of its
            # ranks killed.
            steps = f"restart {number - 1}" if number > 1 else "training"
            if not self.until(process, lambda: steps in self.said() and len(self.ranks_of_job(process)) == self.ranks):
                break
            time.sleep(self.rng.uniform(0, 0.6))
            ranks = self.ranks_of_job(process)
            if not ranks:
                break
            try:
                os.kill(self.rng.choice(ranks), signal.SIGKILL)
            except ProcessLookupError:
                break
            done = number
            self.until(process, lambda: f"restart {number} of {kills}" in self.said())
        code = self.wait_long(process)
        require(code == 0, f"exit code {code} after {done} kills and restarts")
        require(not self.copies_of(process), "copies of the job are left in /dev/shm")
        require(self.said().count(": restart ") - already <= done, "it was started again without a reason")

    def ranks_of_job(self, process):
        """Process ids of the ranks; that of the child where there is no launcher."""
        running = processes_of(process.pid)
        return [pid for pid, rank in running if rank >= 0] if self.ranks > 1 else [
            pid for pid, _ in running if pid != process.pid]

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


IMAGES, EPOCHS = 240, 24  # equal to those in OPTIONS
RATE = 0.002
# With these options, the model learns the images: the loss falls from 2.7 to 0.5.
LEARNS = f"--image-size 32 --hidden 64 --pad 0 --flip off --optimizer adamw --lr {RATE} --warmup-steps 0".split()


def world(program, out, rng, by_rank):
    """A run that goes on with other ranks, or batches of another size, four times. What it trained on and at which
    rate is counted here again: an epoch ends when less than a batch is left of its samples."""
    parts = [(1, 6), (2, 12), (4, 24), (3, 18)] if by_rank else [(2, 24), (2, 16), (1, 48), (2, 20)]
    epoch, at, losses = 0, 0, []
    log = out / "metrics.jsonl"
    lines = 0
    for number, (ranks, batch) in enumerate(parts):
        size = ["--batch-per-rank", str(batch // ranks)] if by_rank else ["--batch-size", str(batch)]
        chain = Chain(program, ranks, out, rng, [*LEARNS, "--log-every", "1", "--stop-within", "0.02"])
        at_size = chain.command.index("--batch-size")
        chain.command[at_size:at_size + 2] = size
        process = chain.start()
        if number + 1 < len(parts):
            target = lines + 4 * IMAGES // batch
            chain.until(process, lambda: log.exists() and log.read_text().count("\n") > target)
            if process.poll() is None:
                process.send_signal(signal.SIGUSR1)
        code = chain.wait_long(process)
        if code == 0 and number + 1 < len(parts):
            raise Late(f"{ranks} ranks: the run ended before it was stopped")
        require(code == (75 if number + 1 < len(parts) else 0), f"{ranks} ranks: exit code {code}")
        events = [json.loads(line) for line in log.read_text().splitlines()][lines:]
        lines += len(events)
        if at + batch > IMAGES:
            epoch, at = epoch + 1, 0
        first = True
        for event in (event for event in events if event["event"] == "step"):
            done = (epoch + at / IMAGES) / EPOCHS
            rate = RATE * 0.5 * (1 + math.cos(math.pi * done))
            require(abs(event["learning_rate"] - rate) <= RATE * 0.02,
                    f"{ranks} ranks, batch {batch}, step {event['step']}: rate {event['learning_rate']}, by samples {rate}")
            require(event["epoch"] == epoch, f"step {event['step']} is of epoch {event['epoch']}, by samples {epoch}")
            if first and losses:
                level = sum(losses[-10:]) / len(losses[-10:])
                ahead = [e["loss"] for e in events if e["event"] == "step"][:10]
                require(sum(ahead) / len(ahead) < 1.3 * level + 0.1, f"the loss jumps from {level} to {ahead}")
            first = False
            losses.append(event["loss"])
            at += batch
            if at + batch > IMAGES:
                epoch, at = epoch + 1, 0
        state = checkpoint(out / "last")
        there = state["skipped"] + state["batch"] * batch
        require((state["epoch"], there) == (epoch, at), f"last/ is at epoch {state['epoch']}, sample {there}; by its "
                f"steps at epoch {epoch}, sample {at}")
    require(epoch == EPOCHS, f"it ended in epoch {epoch}")
    require(sum(losses[-20:]) < 0.7 * sum(losses[:20]), "it has not learned")


KINDS = ("kills", "stops", "freezes", "pauses", "limits", "moves", "deletes", "damages", "unread",
         "restarts", "copies")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    for kind in (*KINDS, "worlds"):
        parser.add_argument(f"--{kind}", type=int, default=0)
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
        expected = {name: digest(alone.out / name) for name in ("last", "best", *kept_best(alone.out))}
        require(len(expected) == 5, f"--keep-best 3 has kept {sorted(expected)}")
        trials = [kind for kind in (*KINDS, "worlds") for _ in range(getattr(arguments, kind))]
        for number, kind in enumerate(trials):
            rng = random.Random(arguments.seed * 1000003 + number)
            ranks = 1 if kind == "unread" else arguments.ranks
            chain = Chain(arguments.program, ranks, folder / f"{kind}{number}", rng)
            try:
                if kind == "worlds":
                    for again in range(5):  # on a busy machine, the rest of a run may take less time than a signal
                        try:
                            world(arguments.program, chain.out, rng, by_rank=number % 2 == 0)
                            break
                        except Late as late:
                            require(again < 4, f"five times: {late}")
                            shutil.rmtree(chain.out)
                    ends += 4
                    shutil.rmtree(chain.out)
                    continue
                if kind == "damages":
                    shutil.copytree(alone.out, chain.out)
                end = {"kills": chain.kill, "stops": chain.stop, "freezes": chain.freeze, "pauses": chain.pause,
                       "limits": chain.limit, "moves": chain.move, "deletes": chain.delete, "damages": chain.damage,
                       "unread": chain.unread, "restarts": chain.restart, "copies": chain.copy}[kind]
                for _ in range(rng.randint(1, 5) if kind in ("kills", "stops") else 1):
                    end(seconds)
                    ends += 1
                chain.finish()
                if kind == "deletes":  # the best checkpoint was lost, but the numbers are equal
                    tensors = ("model.safetensors", "optimizer.safetensors")
                    require(digest(chain.out / "last", tensors) == digest(alone.out / "last", tensors),
                            "last/ has not the weights of a run that was left alone")
                elif ranks == arguments.ranks:
                    require(set(kept_best(chain.out)) == set(expected) - {"last", "best"},
                            f"the best are {sorted(kept_best(chain.out))}, of a run that was left alone {sorted(expected)}")
                    for name, value in expected.items():
                        require(digest(chain.out / name) == value, f"{name}/ is not that of a run that was left alone")
            except (Violation, OSError, ValueError, KeyError) as fault:
                violations += 1
                print(f"trial {number}, {kind} ({', '.join(chain.parts)}): {fault}", flush=True)
                continue
            shutil.rmtree(chain.out)
    finally:
        if not arguments.folder and violations == 0:
            shutil.rmtree(folder, ignore_errors=True)
    kept = f"; kept in {folder}" if violations else ""
    counts = ", ".join(f"{kind} {trials.count(kind)}" for kind in (*KINDS, "worlds") if kind in trials)
    print(f"{counts}: {ends} ends in all, {violations} violations{kept}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
