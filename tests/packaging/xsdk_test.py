"""docs/xsdk.md: all 25 policies, each with a test that exists and a file that exists.

    xsdk_test.py SOURCE BUILD CTEST
A test is named as ctest knows it; one that is run with several numbers of ranks without what stands behind `.ranks`."""
import json
import pathlib
import re
import subprocess
import sys

source, build, ctest = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
page = (source / "docs/xsdk.md").read_text()
listing = subprocess.run([ctest, "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True)
tests = {test["name"] for test in json.loads(listing.stdout)["tests"]}
failures = []


def missing_tests(text, known):
    names = re.findall(r"`([a-z_0-9]+\.[a-z_0-9.+]+)`", text)
    return names, [name for name in names if name not in known and not any(t.startswith(name + ".") for t in known)]


rows = re.findall(r"^\| ([MR]\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page, re.M)
expected = [f"M{n}" for n in range(1, 18)] + [f"R{n}" for n in range(1, 9)]
if [row[0] for row in rows] != expected:
    failures.append(f"policies {[row[0] for row in rows]}, expected {expected}")
for policy, _, how, proof in rows:
    names, missing = missing_tests(proof, tests)
    if not names:
        failures.append(f"{policy} names no test")
    failures += [f"{policy}: ctest has no {name}" for name in missing]
    for target in re.findall(r"\]\(([^)#]+)\)", how + proof):
        if not (source / "docs" / target).exists():
            failures.append(f"{policy}: there is no {target}")

# Checks policies R7 and M5 of xSDK: the files must exist, and LICENSE must hold the claimed licence.
for name, text in {"README.md": "# lockstep", "LICENSE": "Apache License", "CHANGELOG.md": "## [Unreleased]",
                   "SUPPORT.md": "lockstep", "CITATION.cff": "cff-version: 1.2.0"}.items():
    file = source / name
    if not file.exists() or text not in file.read_text():
        failures.append(f"{name} is missing, or does not say '{text}'")
version = re.search(r"project\(lockstep VERSION ([0-9.]+)", (source / "CMakeLists.txt").read_text()).group(1)
citation = dict(re.findall(r"^([a-z-]+): (.+)$", (source / "CITATION.cff").read_text(), re.M))
for field in ("cff-version", "message", "title", "version", "license", "type"):
    if field not in citation:
        failures.append(f"CITATION.cff lacks {field}")
if citation.get("version", "").strip('"') != version:
    failures.append(f"CITATION.cff has version {citation.get('version')}, CMakeLists.txt {version}")
if "authors:\n  - " not in (source / "CITATION.cff").read_text():
    failures.append("CITATION.cff names no authors")

# The control: a page that names a test that does not exist must be found.
if missing_tests("`packaging.nothing_of_this_name`", tests)[1] != ["packaging.nothing_of_this_name"]:
    failures.append("a test that does not exist was taken for one")

print("\n".join(failures) or f"{len(rows)} policies")
sys.exit(bool(failures))
