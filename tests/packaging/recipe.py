"""Loads packaging/spack/package.py without Spack: names of its language that record what a recipe says."""
import types

# Variants that Spack's class CudaPackage adds to a recipe.
_CUDA_VARIANTS = {"cuda": False, "cuda_arch": "none"}


class Spec:
    """One choice of variants: {"mpi": True, "cuda_arch": ("90",)}."""

    def __init__(self, values):
        self.values = values
        self.variants = {name: types.SimpleNamespace(value=value) for name, value in values.items()}

    def satisfies(self, text):
        if text[0] not in "+~" or not text[1:].isidentifier():
            raise ValueError(f"'{text}' is no +variant or ~variant")
        return bool(self.values.get(text[1:], False)) == (text[0] == "+")

    def __getitem__(self, name):
        return types.SimpleNamespace(prefix=f"/prefix/{name}")


class Recipe:
    """What a package.py declares, and the arguments that it gives CMake."""

    def __init__(self, path):
        self.versions, self.variants, self.depends, self.conflicts = [], dict(_CUDA_VARIANTS), {}, []
        language = types.ModuleType("spack.package")
        language.CMakePackage = type("CMakePackage", (), {})
        language.CudaPackage = type("CudaPackage", (), {})
        language.license = lambda text: setattr(self, "licence", text)
        language.version = lambda number, **_: self.versions.append(number)
        language.variant = lambda name, default, description, when=None: self.variants.update({name: default})
        language.conflicts = lambda what, when="", msg="": self.conflicts.append((what, when))
        language.depends_on = self._depends_on
        source = path.read_text()
        first, _, rest = source.partition("from spack.package import *\n")
        names = {name: value for name, value in vars(language).items() if not name.startswith("__")}
        exec(compile(first + "\n" + rest, str(path), "exec"), names)
        self.package = names["Lockstep"]

    def _depends_on(self, spec, type=("build", "link"), when=""):
        name, _, versions = spec.partition("@")
        if when and when[1:] not in self.variants:
            raise ValueError(f"depends_on('{spec}', when='{when}'): no such variant")
        self.depends[name] = (versions, when)

    def arguments(self, values, run_tests=False):
        """cmake_args() as {option: value}."""
        def text(value):
            if isinstance(value, bool):
                return "ON" if value else "OFF"
            return ";".join(value) if isinstance(value, (tuple, list)) else str(value)

        def from_variant(option, variant):
            if variant not in self.variants:
                raise ValueError(f"define_from_variant('{option}', '{variant}'): no such variant")
            return (option, text(values[variant]))

        me = types.SimpleNamespace(spec=Spec(values), run_tests=run_tests, define_from_variant=from_variant,
                                   define=lambda option, value: (option, text(value)))
        pairs = self.package.cmake_args(me)
        if len(dict(pairs)) != len(pairs):
            raise ValueError(f"an option is set twice: {pairs}")
        return dict(pairs)
