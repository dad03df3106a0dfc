#!/usr/bin/env python3
"""Counts the lines of code and of comments of each floor and compares them with scripts/budget: prints a table, and the floors
with more lines of code than the budget allows. Exit status 1 when there is one. A line with code and a comment is code; empty
lines do not count.
  scripts/count_lines.py [ROOT]"""
import os
import subprocess
import sys

SLASHES = (".cpp", ".hpp", ".cu", ".c", ".h", ".abi")
HASHES = (".sh", ".py", ".cmake", ".toml", ".json", ".def", "CMakeLists.txt")


def count(text, name):
    """Returns (lines of code, lines of comments) of a file."""
    mark = "//" if name.endswith(SLASHES) else "!" if name.lower().endswith((".f90", ".f90.in", ".inc")) else "#"
    code = comments = 0
    in_block = False
    for line in text.splitlines():
        line = line.strip()
        if not line:
            continue
        begins = mark == "//" and line.startswith("/*")
        if in_block or begins or line.startswith(mark):
            comments += not (mark == "#" and line.startswith("#!"))
            if mark == "//" and (in_block or begins):
                in_block = "*/" not in line
        else:
            code += 1
    return code, comments


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    budget = {}
    with open(os.path.join(root, "scripts/budget"), encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                floor, number = line.split()
                budget[floor] = int(number)
    names = subprocess.run(["git", "-C", root, "ls-files", "-zco", "--exclude-standard", "--", *budget], check=True, capture_output=True, text=True)
    found = {floor: [0, 0] for floor in budget}
    for name in names.stdout.split("\0"):
        if not name or name.endswith(".md") or not os.path.isfile(os.path.join(root, name)):
            continue
        try:
            with open(os.path.join(root, name), encoding="utf-8") as text:
                code, comments = count(text.read(), name)
        except UnicodeDecodeError:  # a binary file
            continue
        floor = name.split("/")[0]
        found[floor][0] += code
        found[floor][1] += comments
    print(f"{'floor':10} {'code':>8} {'budget':>8} {'comments':>9}")
    for floor, (code, comments) in found.items():
        print(f"{floor:10} {code:8} {budget[floor]:8} {comments:9}")
    print(f"{'all':10} {sum(c for c, _ in found.values()):8} {sum(budget.values()):8} {sum(c for _, c in found.values()):9}")
    over = [floor for floor, (code, _) in found.items() if code > budget[floor]]
    for floor in over:
        print(f"{floor} has {found[floor][0]} lines of code, scripts/budget allows {budget[floor]}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
