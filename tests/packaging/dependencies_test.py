"""packaging/dependencies.json is what documents, scripts and the Spack recipe say, too.

    dependencies_test.py SOURCE"""
import json
import pathlib
import re
import sys

from recipe import Recipe

source = pathlib.Path(sys.argv[1])
entries = json.loads((source / "packaging/dependencies.json").read_text())["dependencies"]
recipe = Recipe(source / "packaging/spack/package.py")
building = (source / "docs/building.md").read_text()
install = (source / "scripts/install-deps.sh").read_text()
options = (source / "cmake/LockstepOptions.cmake").read_text() + (source / "CMakeLists.txt").read_text()
failures = []


def expect(good, text):
    if not good:
        failures.append(text)


for entry in entries:
    name, minimum, spack = entry["name"], entry["minimum"], entry["spack"]
    expect(name.lower() in building.lower(), f"docs/building.md does not name {name}")
    expect(entry["licence"], f"{name} has no licence")
    if minimum:
        shown = rf"{re.escape(name)}[^|\n]{{0,24}}?\b{re.escape(minimum)}\b"
        expect(re.search(shown, building, re.I), f"docs/building.md does not say {name} {minimum}")
    for package in entry["debian"]:
        expect(re.search(rf"(?<![\w+-]){re.escape(package)}(?![\w+-])", install), f"install-deps.sh lacks {package}")
    if entry["needed_by"].startswith("LOCKSTEP_"):
        expect(entry["needed_by"].removeprefix("LOCKSTEP_") in options, f"{entry['needed_by']} is no option")
    if spack in ("gcc", "llvm"):  # compilers, which are conflicts of the recipe
        compiler = {"gcc": "gcc", "llvm": "clang"}[spack]
        conflict = f"%{compiler}@:{int(minimum) - 1}"
        expect((conflict, "") in recipe.conflicts, f"package.py lacks conflicts('{conflict}')")
    elif spack:
        versions = recipe.depends.get(spack, ("missing", ""))[0]
        expected = f"{minimum}:" if minimum else ""
        expect(versions == expected, f"package.py: {spack}@{versions}, dependencies.json: {expected}")

listed = {entry["spack"] for entry in entries}
for name in recipe.depends:
    expect(name in listed | {"c", "cxx"}, f"dependencies.json lacks {name} of package.py")
for package in re.findall(r"\b(?:lib[a-z0-9+-]+-dev|nlohmann-json3-dev)\b", install):
    mpich_or_openmp = package in ("libomp-14-dev", "libmpich-dev")  # alternatives to listed packages
    expect(mpich_or_openmp or any(package in entry["debian"] for entry in entries), f"dependencies.json lacks {package}")
found = set(re.findall(r"lockstep_need\((\w+)", options)) - {"package", "PACKAGE"}
known = {"ZLIB", "nlohmann_json", "CLI11", "tomlplusplus", "GTest"}
expect(found <= known, f"dependencies.json and this test lack {sorted(found - known)}")

print("\n".join(failures) or f"{len(entries)} dependencies")
sys.exit(bool(failures))
