#!/usr/bin/env python3
"""Counts the 16-byte loads that a kernel has in flight before it uses the first of them: loads_in_flight.py < FILE

FILE is the output of `nvdisasm -c` for a cubin. Prints a line for each kernel: its name, and the most loads (LDG.E.128) in one
piece of straight code before an instruction that names a register of one of them."""
import re
import sys

LOAD = re.compile(r"\bLDG\.E\.128\S*\s+R(\d+)")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);")
ENDS = re.compile(r"\b(BRA|BRX|EXIT|RET|CALL|BAR|WARPSYNC)\b")


def most_in_flight(lines):
    most, loads, pending = 0, 0, set()
    for line in lines:
        if re.match(r"^\S+:\s*$", line):  # a label: other code jumps here
            most, loads, pending = max(most, loads), 0, set()
            continue
        found = INSTRUCTION.match(line)
        if not found:
            continue
        text = found.group(1)
        load = LOAD.search(text)
        named = {int(r) for r in re.findall(r"\bR(\d+)\b", text[load.end():] if load else text)}
        if named & pending:
            most, loads, pending = max(most, loads), 0, set()
        if load:
            loads += 1
            pending.update(range(int(load.group(1)), int(load.group(1)) + 4))
        if ENDS.search(text):
            most, loads, pending = max(most, loads), 0, set()
    return max(most, loads)


def main():
    kernel, body = None, []
    for line in [*sys.stdin, ".section .text.end"]:
        section = re.match(r"\s*\.section\s+\.(\S+?),", line + ",")
        if section:
            if kernel:
                print(kernel, most_in_flight(body))
            name = section.group(1)
            kernel, body = (name[len("text."):] if name.startswith("text.") else None), []
        elif kernel:
            body.append(line)


if __name__ == "__main__":
    main()
