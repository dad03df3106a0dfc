#!/usr/bin/env python3
"""Checks the #include lines of the floors. No file includes a file of a floor above it. No file outside of comm/launch and
app includes these two. No folders and no headers include each other in a circle (a folder and its detail/ count as one;
runtime/detail and runtime/cuda, the two sides of one seam, may). A room of nn includes only the rooms below it. Two sources
include each other's header only if one of the headers includes the other. No folder of a floor holds more than 24 files
(kernels/ is flat by design). Prints each violation; exit status 1 when there is one.
  scripts/check_includes.py [ROOT]"""
import os
import re
import sys

FLOORS = ["runtime", "kernels", "comm", "nn", "app"]  # ordered from the lowest
MOST_FILES = 24


def files_of(root):
    for floor in FLOORS:
        for folder, _, names in os.walk(os.path.join(root, floor)):
            for name in sorted(names):
                if name.endswith((".hpp", ".cpp", ".cu")):
                    yield os.path.relpath(os.path.join(folder, name), root)


def folder_of(name):
    folder = os.path.dirname(name)
    return folder[: -len("/detail")] if folder.endswith("/detail") and folder != "runtime/detail" else folder


def rooms_of(root):
    """Returns the rooms of nn, each with the rooms that it may include, from nn/CMakeLists.txt."""
    with open(os.path.join(root, "nn/CMakeLists.txt"), encoding="utf-8") as text:
        rooms = re.findall(r"^lockstep_add_room\(nn (\w+)(?: BELOW ([a-z ]+))? SOURCES", text.read(), re.MULTILINE)
    return {room: below.split() for room, below in rooms}


def circles(graph):
    """Returns the strongly connected groups of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    files = list(files_of(root))
    includes = {}
    for name in files:
        with open(os.path.join(root, name), encoding="utf-8") as text:
            mentioned = re.findall(r"^#include <lockstep/([^>]+)>", text.read(), re.MULTILINE)
        includes[name] = {other for other in mentioned if other in set(files)}
    rooms = rooms_of(root)
    faults = []
    for name in files:
        for other in sorted(includes[name]):
            if FLOORS.index(other.split("/")[0]) > FLOORS.index(name.split("/")[0]):
                faults.append(f"{name} includes {other}, of a floor above it")
            for owned in ("comm/launch/", "app/"):  # folders for the owner of a process
                if other.startswith(owned) and not name.startswith(("comm/launch/", "app/")):
                    faults.append(f"{name} includes {other}: only programs know how they were launched")
    for group in circles({name: includes[name] for name in files if name.endswith(".hpp")}):
        faults.append("headers include each other in a circle: " + ", ".join(group))

    folders = {}
    for name in files:
        for other in includes[name]:
            if folder_of(name) not in (SEAM := ("runtime/detail", "runtime/cuda")) and folder_of(other) not in SEAM:
                if folder_of(name) != folder_of(other):
                    folders.setdefault(folder_of(name), set()).add(folder_of(other))
            room, below = name.split("/")[1], other.split("/")[1]
            if name.startswith("nn/") and other.startswith("nn/") and below != room and below not in rooms.get(room, []):
                faults.append(f"{name} includes {other}, of a room that is not below nn/{room}")
    rings = circles(folders)
    for group in rings:
        faults.append("folders include each other in a circle: " + ", ".join(group))

    def source_of(header):
        return header[: -len(".hpp")] + ".cpp"

    for name in files:
        if not name.endswith(".cpp"):
            continue
        own = name[: -len(".cpp")] + ".hpp"
        for other in sorted(includes[name]):
            back = includes.get(source_of(other), set())
            if own < other and own in back and other not in includes.get(own, set()) and own not in includes.get(other, set()):
                faults.append(f"{name} includes {other}, and {source_of(other)} includes {own}")
    counts = {}
    for name in files:
        counts[os.path.dirname(name)] = counts.get(os.path.dirname(name), 0) + 1
    for folder, count in sorted(counts.items()):
        if count > MOST_FILES and not folder.startswith("kernels"):
            faults.append(f"{folder} holds {count} files beside each other, expected at most {MOST_FILES}")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
