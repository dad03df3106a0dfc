"""packaging/spack/package.py: for every choice of variants, the options that it gives exist, and CMake takes them.

    spack_test.py SOURCE BUILD CMAKE GENERATOR CXX
BUILD is a build folder, whose cache has all options. One choice is configured for real."""
import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys

from recipe import Recipe

source, build, cmake, generator, cxx = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), *sys.argv[3:6]
recipe = Recipe(source / "packaging/spack/package.py")
failures = []


def expect(good, text):
    if not good:
        failures.append(text)


wanted = {"shared", "mpi", "gloo", "cuda", "cuda_arch", "nccl", "onednn", "openmp", "images", "libdeflate", "fortran"}
expect(wanted <= set(recipe.variants), f"variants {sorted(recipe.variants)} lack {sorted(wanted - set(recipe.variants))}")
version = re.search(r"project\(lockstep VERSION ([0-9.]+)", (source / "CMakeLists.txt").read_text()).group(1)
expect(recipe.versions == [version], f"versions are {recipe.versions}, CMakeLists.txt says {version}")
expect(recipe.licence == "Apache-2.0", f"the licence is {recipe.licence}")

# Checks every option of CMake that the recipe gives, for every allowed choice of variants.
cache = dict(re.findall(r"^([A-Za-z_0-9]+):[A-Z]+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M))
finders = {"NCCL_ROOT": "FindNCCL.cmake", "CUDNN_ROOT": "FindCUDNN.cmake"}
truth = [name for name, default in recipe.variants.items() if isinstance(default, bool)]
choices = 0
for bits in itertools.product((False, True), repeat=len(truth)):
    values = dict(zip(truth, bits), cuda_arch=("80", "90"))
    if (values["onednn"] and not values["openmp"]) or not values["cuda"] and (values["nccl"] or values["cudnn"]):
        continue
    choices += 1
    options = recipe.arguments(values)
    for option in options:
        known = option in cache or (option in finders and (source / "cmake" / finders[option]).exists())
        expect(known, f"{values}: {option} is no option of CMakeLists.txt")
    expect(options["LOCKSTEP_CPU_ARCH"] == "", f"{values}: LOCKSTEP_CPU_ARCH is {options['LOCKSTEP_CPU_ARCH']}")
    expect(options["LOCKSTEP_SITE_PACKAGES"] == "OFF", f"{values}: LOCKSTEP_SITE_PACKAGES is not OFF")
    for name in truth:
        option = "BUILD_SHARED_LIBS" if name == "shared" else f"LOCKSTEP_{name.upper()}"
        expect(options.get(option) == ("ON" if values[name] else "OFF"), f"{values}: {option} is {options.get(option)}")
    expect((options.get("LOCKSTEP_CUDA_ARCHITECTURES") == "80;90") == values["cuda"], f"{values}: architectures {options}")
    # The recipe must set every option whose default is AUTO. Otherwise the build would depend on software that happens
    # to be on the machine.
    automatic = {name for name, value in cache.items() if name.startswith("LOCKSTEP_") and value == "AUTO"
                 and name != "LOCKSTEP_TORCH"}
    expect(automatic <= set(options), f"{values}: {sorted(automatic - set(options))} are left to AUTO")
expect(choices >= 20, f"{choices} choices of variants")

# The control: a recipe with an unknown variant must be refused.
try:
    recipe.package.cmake_args = lambda me: [me.define_from_variant("LOCKSTEP_MPI", "mpl")]
    recipe.arguments(dict.fromkeys(recipe.variants, False))
    expect(False, "a variant that does not exist was taken")
except ValueError:
    pass
recipe = Recipe(source / "packaging/spack/package.py")

# Configures a build with the options that the recipe gives for the parts of this build, no CUDA, and static libraries
# only.
here = build / "tests/packaging/spack"
shutil.rmtree(here, ignore_errors=True)
has = json.loads(sys.argv[6])
values = dict(dict.fromkeys(truth, False), cuda_arch="none", **{name: bool(value) for name, value in has.items()})
command = [cmake, "-S", source, "-B", here, "-G", generator, f"-DCMAKE_CXX_COMPILER={cxx}", "-DCMAKE_BUILD_TYPE=Release"]
command += [f"-D{option}={value}" for option, value in recipe.arguments(values).items()]
ended = subprocess.run([str(part) for part in command], capture_output=True, text=True)
log = ended.stdout + ended.stderr
expect(ended.returncode == 0, f"CMake does not take {command}:\n{log}")
expect("not used by the project" not in log, f"CMake knows nothing of an option:\n{log}")
if ended.returncode == 0:
    expect("compiled for: any" in log, f"expected a build for any processor:\n{log}")
    rules = (here / "cmake_install.cmake").read_text() + (here / "bindings/c/cmake_install.cmake").read_text()
    expect("liblockstep.a" in rules and "liblockstep.so" not in rules, "~shared installs a shared library, or no archive")

print("\n".join(failures) or f"{choices} choices of variants")
sys.exit(bool(failures))
