"""The binary interface of this soname: the headers against a stored dump, by libabigail.

    abi_test.py SOURCE BUILD CC [--write]
What abidiff sees is a library whose functions are those of the headers with nothing in them: its debug information has the
public types alone, is the same whatever the library is built with, and needs none in the library itself. That the library has
these functions and no others is bindings.symbols's to say; that they have these types, the compiler's.
--write stores the dump: after a change that old programs survive, or with a new soname."""
import pathlib
import re
import shutil
import subprocess
import sys

source, build, compilers = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3].split("|")
stored = source / "tests/bindings/c/soname_0.abi"
headers = source / "bindings/c/include/lockstep"
work = build / "tests/packaging/abi"
shutil.rmtree(work, ignore_errors=True)
differ = (0, 4, 8, 12)  # abidiff's exit status: 4 a change, 8 one that it knows to break programs; 1 and 2: it failed


def run(*command, good=(0,), folder=None):
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=folder)
    if ended.returncode not in good:
        sys.exit(f"{' '.join(map(str, command))}: status {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended


def dump(name, compiler, change=None):
    """The dump of the headers, with change(text) of lockstep.h; and the names of their functions."""
    folder = work / name / "include/lockstep"
    folder.mkdir(parents=True)
    for header in ("lockstep.h", "lockstep_dlpack.h"):
        text = (headers / header).read_text()
        if change is not None and header == "lockstep.h":
            changed = change(text)
            if changed == text:
                sys.exit(f"{name}: the planted change is none")
            text = changed
        (folder / header).write_text(text)
    here = work / name
    (here / "all.c").write_text("#include <lockstep/lockstep_dlpack.h>\n")
    flat = run(compiler, "-E", "-P", f"-I{here / 'include'}", here / "all.c").stdout
    declared = re.findall(r'__attribute__\s*\(\(visibility\("default"\)\)\)\s*([^;]*?\b(\w+)\s*\([^;]*\))\s*;', flat)
    bodies = "".join(f"{text} {{ __builtin_trap(); }}\n" for text, _ in declared)
    (here / "all.c").write_text("#include <lockstep/lockstep_dlpack.h>\n" + bodies)
    library = here / "liblockstep.so"
    run(compiler, "-w", "-std=gnu2x", "-g", "-fPIC", "-shared", "-Wl,-soname,liblockstep.so.0", "-Iinclude", "all.c",
        "-o", library.name, folder=here)  # leaves folders of this machine out of the dump
    out = here / "dump.abi"
    run("abidw", "--headers-dir", "include", "--drop-private-types", "--no-show-locs", "--no-corpus-path",
        "--no-comp-dir-path", "--out-file", out.name, library.name, folder=here)
    return out, sorted(function for _, function in declared)


first, functions = dump("first", compilers[0])
listed = sorted(line.split()[1] for line in (source / "tests/bindings/c/soname_0.txt").read_text().splitlines()
                if line.startswith("liblockstep "))
if functions != listed:
    sys.exit(f"the headers declare {functions}, expected, by soname_0.txt, {listed}")
if "--write" in sys.argv:
    shutil.copy(first, stored)
    print(f"stored {stored.stat().st_size} bytes")
    sys.exit()

ended = run("abidiff", stored, first, good=differ)
if ended.returncode != 0:
    sys.exit(f"the binary interface has changed. Where programs that were linked before survive that (a new function, a field "
             f"at the end of a struct with struct_size), store it with --write; else the soname changes.\n{ended.stdout}")
for compiler in compilers[1:]:
    other, _ = dump(pathlib.Path(compiler).name, compiler)
    if run("abidiff", stored, other, good=differ).returncode != 0:
        sys.exit(f"{compiler} makes another interface of the same headers")

# Changes of the interface that the check must find.
planted = {
    "wider_field": lambda text: text.replace("int32_t ndim;", "int64_t ndim;", 1),
    "fields_swapped": lambda text: text.replace("double beta2;", "float beta1;", 1).replace("double beta1;", "double beta2;", 1),
    "argument_gone": lambda text: text.replace("lockstep_comm_agree(lockstep_comm, int32_t mine, int32_t* largest)",
                                               "lockstep_comm_agree(lockstep_comm, int32_t* largest)", 1),
    "function_gone": lambda text: text.replace("LOCKSTEP_API lockstep_status lockstep_comm_self(lockstep_context, "
                                               "lockstep_comm*) LOCKSTEP_NOEXCEPT;", "", 1),
}
for name, change in planted.items():
    changed, _ = dump(name, compilers[0], change)
    ended = run("abidiff", stored, changed, good=differ)
    if ended.returncode == 0:
        sys.exit(f"{name}: a planted change of the binary interface was not found")
    print(f"{name}: found, status {ended.returncode}")
print(f"{len(functions)} functions")
