#!/usr/bin/env python3
"""Measures functions and classes: prints each function whose body has more than 80 lines and each class of more than 400,
unless scripts/size_exceptions lists it, and each entry of that list that is not needed; exit status 1 when there is one.
A body counts from the line of its opening brace to the line of its closing brace, a class likewise. For a class in a .cpp
its members that are defined outside of its braces count, too. CUDA kernels are not measured. Sources are clang-formatted.
  scripts/check_sizes.py [ROOT]"""
import os
import re
import subprocess
import sys

FLOORS = ["runtime", "kernels", "comm", "nn", "app", "tools", "bindings"]
MOST_LINES = {"function": 80, "class": 400}
MOST_EXCEPTIONS = 10
SOURCES = (".hpp", ".cpp", ".cu", ".cuh", ".h", ".c")

# Matches text that is no code: comments, raw strings, strings, characters (no quote between digits), preprocessor lines.
NO_CODE = re.compile(r"//(?:\\\n|[^\n])*|/\*.*?\*/" r'|\bR"([^(\s"]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
                     r"|(?<!\w)'(?:\\.|[^'\\\n])+'|^[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])*", re.DOTALL | re.MULTILINE)
# BEFORE matches text that may stand before a declaration. NO_NAME matches parts of a declaration that look like calls.
BEFORE = re.compile(r"\s*(?:(?:public|private|protected)\s*:(?!:)|\[\[.*?\]\])")
NO_NAME = re.compile(r"\b(?:alignas|decltype|noexcept|__launch_bounds__|__attribute__)"
                     r"\s*\(\(?[^()]*(?:\([^()]*\))*[^()]*\)?\)")
CLASS = re.compile(r"(?:typedef\s+)?(?:class|struct|union)\b\s*([\w:]*)[^()]*$")


def without(text, opening, closing):
    """Returns the text without pairs of these brackets and the text between them."""
    pattern = re.compile(rf"\{opening}[^\{opening}\{closing}]*\{closing}")
    while pattern.search(text):
        text = pattern.sub("", text)
    return text


def kind_of(head):
    """Returns (kind, name) of the braces that a head opens: scope, class, function, kernel or values."""
    while BEFORE.match(head):
        head = BEFORE.sub("", head, count=1)
    plain = without(NO_NAME.sub("", head).replace("->", ""), "<", ">").replace("template", "").strip()
    if re.match(r"(inline\s+)?namespace\b|extern\s*$", plain):
        return "scope", ""
    if found := CLASS.match(without(plain, "{", "}")):
        return "class", found[1]
    outside = without(without(plain, "(", ")"), "{", "}").strip()
    member = re.search(r"[^:]:[^:]", outside) and re.search(r"\w$", plain)  # Class(int a) : a_{a}
    if "(" not in plain or member or ("=" in outside and "operator" not in outside):
        return "values", ""
    name = re.search(r"([\w:~]*(?:operator\s*[^\s\w(]+|operator [\w ]+|\w))\s*\(", plain)
    return "kernel" if re.search(r"__(global|device)__", head) else "function", name[1] if name else "?"


def measure(text, is_source):
    """Returns [(kind, name, line, lines)] of the functions and classes of a file; ValueError when its braces do not pair."""
    text = NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    line_of = lambda at: text.count("\n", 0, at) + 1
    found, outside, scopes, begin, rounds = [], [], [], 0, 0
    for mark in re.finditer(r"[{};()]", text):
        at, opaque = mark.start(), bool(scopes) and scopes[-1][0] in ("function", "kernel", "values")
        if mark[0] in "()":
            rounds += 0 if opaque else 1 if mark[0] == "(" else -1
        elif mark[0] == "{":
            kind, name = ("values", "") if opaque or rounds else kind_of(text[begin:at])
            owner = "::".join(scope[1] for scope in scopes if scope[0] == "class")
            head = begin + len(text[begin:at]) - len(text[begin:at].lstrip())
            scopes.append((kind, f"{owner}::{name}" if owner else name, at, head))
            begin = at + 1 if kind in ("scope", "class") else begin
        elif mark[0] == "}":
            if not scopes:
                raise ValueError(f"line {line_of(at)} closes a brace that nothing opens")
            kind, name, opened, head = scopes.pop()
            if kind in ("function", "class"):
                found.append([kind, name, line_of(opened), line_of(at) - line_of(opened) + 1])
            if kind == "function" and is_source and "::" in name and not any(scope[0] == "class" for scope in scopes):
                outside.append((name.rpartition("::")[0], line_of(at) - line_of(head) + 1))
            begin = begin if kind == "values" else at + 1
        elif not opaque and not rounds:
            begin = at + 1
    if scopes:
        raise ValueError(f"line {line_of(scopes[-1][2])} opens a brace that nothing closes")
    for entry in found:
        entry[3] += sum(lines for name, lines in outside if entry[:2] == ["class", name])
    return found


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    listed, later, faults = {}, {}, []  # (file, name) or file -> number of uses
    with open(os.path.join(root, "scripts/size_exceptions"), encoding="utf-8") as lines:
        for words in (line.split() for line in lines if line.strip() and not line.startswith("#")):
            if words[0] == "later":
                later[words[1]] = 0
            else:
                listed[tuple(words[:2])] = 0
                faults += [f"scripts/size_exceptions: {' '.join(words)} has no reason"] if len(words) < 3 else []
    names = subprocess.run(["git", "-C", root, "ls-files", "-z", "--", *FLOORS], check=True, capture_output=True, text=True)
    for name in sorted(names.stdout.split("\0")):
        if not name.endswith(SOURCES) or not os.path.isfile(os.path.join(root, name)):
            continue
        with open(os.path.join(root, name), encoding="utf-8") as text:
            try:
                found = measure(text.read(), name.endswith((".cpp", ".cu", ".c")))
            except ValueError as error:
                faults.append(f"{name}: {error}")
                continue
        for kind, member, line, lines in found:
            if lines <= MOST_LINES[kind]:
                continue
            if (name, member) in listed:
                listed[name, member] += 1
            elif name in later:
                later[name] += 1
            else:
                faults.append(f"{name}:{line}: {kind} {member} has {lines} lines, expected at most {MOST_LINES[kind]}")
    faults += [f"scripts/size_exceptions: {' '.join(key)} is not needed" for key, count in listed.items() if not count]
    faults += [f"scripts/size_exceptions: later {name} is not needed" for name, count in later.items() if not count]
    if len(listed) > MOST_EXCEPTIONS:
        faults.append(f"scripts/size_exceptions has {len(listed)} exceptions, expected at most {MOST_EXCEPTIONS}")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"sizes: {len(listed)} exceptions, {sum(later.values())} functions and classes still to be divided")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
