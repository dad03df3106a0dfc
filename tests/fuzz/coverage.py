#!/usr/bin/env python3
"""The lines of each reader that its inputs reach, as a table. Built with LOCKSTEP_FUZZ; coverage.txt says which lines belong to
which reader.
  tests/fuzz/coverage.py REPLAY_PROGRAM WORK_FOLDER READER=FOLDER[,FOLDER...] ...
The folders hold the inputs of a reader. Below 90 % the lines that nothing reached are listed."""
import collections
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
ENOUGH = 90.0


def tool(name):
    found = shutil.which(name + "-14") or shutil.which(name)
    if not found:
        sys.exit("coverage.py: no %s: apt-get install llvm-14" % name)
    return found


def rows_of(path):
    """reader -> [(file, regex or None)]"""
    rows = collections.defaultdict(list)
    with open(path, encoding="utf-8") as text:
        for line in text:
            if line.strip() and not line.startswith("#"):
                reader, file, *regex = line.split(maxsplit=2)
                rows[reader].append((file, regex[0].strip() if regex else None))
    return rows


def exported(program, profile, form):
    return subprocess.run([tool("llvm-cov"), "export", "-format=" + form, program, "-instr-profile=" + profile], check=True,
                          capture_output=True, text=True).stdout


def counts_of(program, profile):
    """{file: {line: count}}, and the extents of functions, {file: [(name, first line, last line)]}."""
    counts, extents = {}, collections.defaultdict(list)
    for line in exported(program, profile, "lcov").splitlines():
        if line.startswith("SF:"):
            lines = counts.setdefault(os.path.realpath(line[3:]), {})
        elif line.startswith("DA:"):
            number, count = line[3:].split(",")[:2]
            lines[int(number)] = int(count)
    for function in json.loads(exported(program, profile, "text"))["data"][0]["functions"]:
        regions = [region for region in function["regions"] if region[5] == 0]
        extents[os.path.realpath(function["filenames"][0])].append(
            (function["name"], min(r[0] for r in regions), max(r[2] for r in regions)))
    return counts, extents


def lines_of_reader(program, profile, rows):
    """[(file, line, reached)]"""
    counts, extents = counts_of(program, profile)
    result = []
    for file, regex in rows:
        path = os.path.join(ROOT, file)
        lines = counts[path]
        chosen = [(first, last) for name, first, last in extents[path] if regex is None or re.search(regex, name)]
        if not chosen:
            sys.exit("coverage.py: no function of %s is like %s" % (file, regex))
        result += [(file, line, lines[line] > 0) for line in sorted(lines)
                   if any(first <= line <= last for first, last in chosen)]
    return result


def ranges(numbers):
    """[3, 4, 5, 9] as "3-5 9"."""
    text = []
    for number in numbers:
        if text and text[-1][1] == number - 1:
            text[-1][1] = number
        else:
            text.append([number, number])
    return " ".join(str(a) if a == b else "%d-%d" % (a, b) for a, b in text)


def main():
    program, work, *sets = sys.argv[1:]
    rows = rows_of(os.path.join(ROOT, "tests", "fuzz", "coverage.txt"))
    os.makedirs(work, exist_ok=True)
    print("%-12s %6s %8s %8s" % ("reader", "lines", "reached", "percent"))
    missed = []
    for entry in sets:
        reader, folders = entry.split("=")
        raw, profile = (os.path.join(work, reader + end) for end in (".profraw", ".profdata"))
        subprocess.run([program, reader] + [f for f in folders.split(",") if os.path.isdir(f)], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ, LLVM_PROFILE_FILE=raw))
        subprocess.run([tool("llvm-profdata"), "merge", "-o", profile, raw], check=True)
        lines = lines_of_reader(program, profile, rows[reader])
        reached = sum(1 for _, _, hit in lines if hit)
        percent = 100.0 * reached / len(lines)
        print("%-12s %6d %8d %7.1f%s" % (reader, len(lines), reached, percent, "" if percent >= ENOUGH else "  *"))
        if percent < ENOUGH:
            for file in sorted({file for file, _, hit in lines if not hit}):
                missed.append("%s: %s: %s" % (reader, file, ranges([n for f, n, hit in lines if f == file and not hit])))
    if missed:
        print("\n* below %.0f %% (tests/fuzz/README.md says why); not reached:" % ENOUGH)
        print("\n".join(missed))


if __name__ == "__main__":
    main()
