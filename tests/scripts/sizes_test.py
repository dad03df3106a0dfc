#!/usr/bin/env python3
"""sizes_test.py SOURCE: what scripts/check_sizes.py says of made-up trees whose sizes are known by how they are written."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(sys.argv[1]) / "scripts/check_sizes.py"


def check(files, exceptions=""):
    """(exit status, lines of stderr, stdout) for a tree of these files."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"scripts/size_exceptions": exceptions, **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        subprocess.run(["git", "-C", folder, "init", "-q"], check=True)
        subprocess.run(["git", "-C", folder, "add", "-A"], check=True)
        ended = subprocess.run([sys.executable, "-B", SCRIPT, folder], capture_output=True, text=True)
        return ended.returncode, ended.stderr.splitlines(), ended.stdout


def body(lines):
    """Braces of so many lines."""
    return "{\n" + "  call({1, 2});\n" * (lines - 2) + "}\n"


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: {found!r}, expected {expected!r}")


def faults(text, name="comm/a.cpp", exceptions=""):
    return check({name: text}, exceptions)[1]


def limit(line, kind, name, lines, file="comm/a.cpp"):
    return f"{file}:{line}: {kind} {name} has {lines} lines, expected at most {80 if kind == 'function' else 400}"


# Checks the limits: 80 lines for a function, 400 lines for a class.
expect("80 lines", check({"comm/a.cpp": "void f() " + body(80)}),
       (0, [], "sizes: 0 exceptions, 0 functions and classes still to be divided\n"))
expect("81 lines", check({"comm/a.cpp": "void f() " + body(81)})[:2], (1, [limit(1, "function", "f", 81)]))
members = "".join(f"  int a{i} = 0;\n" for i in range(398))
expect("400 lines", faults("struct A {\n" + members + "};\n"), [])
expect("401 lines", faults("struct A {\n" + members + "  int b;\n};\n"), [limit(1, "class", "A", 401)])
expect("not these floors", check({"tests/a.cpp": "void f() " + body(81), "comm/a.py": "{"})[:2], (0, []))

# Checks what counts as a function.
for head, name in [("template <class T, int N = (3 > 2)>\nauto f(T&& t, Options o = {.a = {1}}) -> std::vector<T> ", "f"),
                   ("A::A(int a, B b = {}) : a_{a}, b_(std::move(b)), c_{[] { return 1; }()} ", "A::A"),
                   ("bool operator==(const A& a, const A& b) ", "operator=="),
                   ("[[nodiscard]] __attribute__((noinline)) int f(char c = '{') noexcept(true) ", "f"),
                   ('extern "C" int f(const char* text = "}{\\"") ', "f"),
                   ("namespace a::b {\nclass C {\n public:\n  explicit operator bool() const ", "C::operator bool"),
                   ('const char* t = R"x({{ " )" )x";\n#define OPEN \\\n  {\n/* { */ void f(int a = 1\'000) ', "f")]:
    text = head + body(81) + ("};\n}  // namespace a::b\n" if "class C" in head else "")
    expect(head, faults(text), [limit(head.count("\n") + 1, "function", name, 81)])
for text in ["__global__ void kernel() " + body(81), "template <class T>\n__device__ void f(T) " + body(81),
             "const std::array<int, 100> a{\n" + "  1,\n" * 100 + "};\n", "enum class E {\n" + "  a,\n" * 100 + "};\n",
             "const auto a = f({\n" + "  1,\n" * 100 + "});\n"]:
    expect(text[:40], faults(text), [])

# A class in a source file includes its members that are defined outside of its braces; a class in a header does not.
inside = "struct A::Impl {\n" + "  int a;\n" * 300 + "};\n"
outside = "".join(f"int A::Impl::f{i}(int a) const {body(70)}\n" for i in range(2))
expect("source", faults(inside + outside), [limit(1, "class", "A::Impl", 302 + 140)])
expect("header", faults(inside + outside, "comm/a.hpp"), [])
expect("other class", faults(inside + outside.replace("A::Impl", "A")), [])

# Checks exceptions.
long = "void f() " + body(81)
expect("listed", faults(long, exceptions="# why\ncomm/a.cpp f since\n"), [])
expect("not needed", faults("", exceptions="comm/a.cpp f since\n"), ["scripts/size_exceptions: comm/a.cpp f is not needed"])
expect("later", check({"comm/a.cpp": long}, "later comm/a.cpp\n"),
       (0, [], "sizes: 0 exceptions, 1 functions and classes still to be divided\n"))
expect("later not needed", faults("", exceptions="later comm/a.cpp\n"),
       ["scripts/size_exceptions: later comm/a.cpp is not needed"])
many = "".join(f"void f{i}() {body(81)}" for i in range(11))
expect("eleven", faults(many, exceptions="".join(f"comm/a.cpp f{i} since\n" for i in range(11))),
       ["scripts/size_exceptions has 11 exceptions, expected at most 10"])
expect("no reason", faults(long, exceptions="comm/a.cpp f\n"), ["scripts/size_exceptions: comm/a.cpp f has no reason"])

# Checks that braces that do not pair are an error, not a size.
expect("open", faults("void f() {\n"), ["comm/a.cpp: line 1 opens a brace that nothing closes"])
expect("closed", faults("void f() {}\n}\n"), ["comm/a.cpp: line 2 closes a brace that nothing opens"])
