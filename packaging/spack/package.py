# Copyright lockstep's authors. SPDX-License-Identifier: Apache-2.0
from spack.package import *


class Lockstep(CMakePackage, CudaPackage):
    """Training and inference inside a program in C, C++ or Fortran: the program's communicators, streams and memory, no
    deep-learning framework, no globals."""

    # There is no archive to fetch yet. Run these in a checkout of the sources:
    #     spack repo create REPO lockstep && mkdir REPO/packages/lockstep && cp packaging/spack/package.py REPO/packages/lockstep
    #     spack repo add REPO && spack dev-build lockstep@0.1.0
    manual_download = True

    license("Apache-2.0")

    version("0.1.0")

    variant("shared", default=True, description="Install shared libraries beside the archives")
    variant("mpi", default=True, description="Communicators from MPI")
    variant("gloo", default=False, description="Ranks that torchrun starts, without MPI")
    variant("nccl", default=False, description="Several ranks with GPUs", when="+cuda")
    variant("cudnn", default=False, description="Fast convolution on GPUs", when="+cuda")
    variant("onednn", default=True, description="Fast convolution and matrix product on the host")
    variant("images", default=True, description="JPEG and PNG files as training data")
    variant("libdeflate", default=True, description="Fast checksums; zlib's without it")
    variant("openmp", default=True, description="Threads in an operation on the host")
    variant("fortran", default=True, description="Test the Fortran module, which is installed as source either way")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("fortran", type="build", when="+fortran")
    depends_on("cmake@3.25:", type="build")
    depends_on("zlib-api")
    depends_on("nlohmann-json", type="build")
    depends_on("mpi@3:", when="+mpi")
    depends_on("gloo", when="+gloo")
    depends_on("onednn@2.6:", when="+onednn")
    depends_on("libjpeg-turbo", when="+images")
    depends_on("libpng@1.6:", when="+images")
    depends_on("libdeflate", when="+libdeflate")
    depends_on("cuda@13.0:", when="+cuda")
    depends_on("nccl@2.28:", when="+nccl")
    depends_on("cudnn@9.8:", when="+cudnn")
    depends_on("googletest", type="test")

    conflicts("%gcc@:11", msg="lockstep is C++20: GCC 12 or newer")
    conflicts("%clang@:13", msg="lockstep is C++20: clang 14 or newer")
    conflicts("+onednn", when="~openmp", msg="oneDNN's threads are OpenMP's")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs: cuda_arch=90")

    def cmake_args(self):
        args = [
            # Spack's compiler wrapper sets the target processor; no library comes from a Python's packages.
            self.define("LOCKSTEP_CPU_ARCH", ""),
            self.define("LOCKSTEP_SITE_PACKAGES", False),
            self.define("LOCKSTEP_EXAMPLES", False),
            self.define("LOCKSTEP_BENCH", False),
            self.define("LOCKSTEP_TESTS", self.run_tests),
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("LOCKSTEP_MPI", "mpi"),
            self.define_from_variant("LOCKSTEP_GLOO", "gloo"),
            self.define_from_variant("LOCKSTEP_ONEDNN", "onednn"),
            self.define_from_variant("LOCKSTEP_OPENMP", "openmp"),
            self.define_from_variant("LOCKSTEP_IMAGES", "images"),
            self.define_from_variant("LOCKSTEP_LIBDEFLATE", "libdeflate"),
            self.define_from_variant("LOCKSTEP_FORTRAN", "fortran"),
            self.define_from_variant("LOCKSTEP_CUDA", "cuda"),
            self.define("LOCKSTEP_CUBLASLT", self.spec.satisfies("+cuda")),
            self.define("LOCKSTEP_NVJPEG", self.spec.satisfies("+cuda")),
            self.define("LOCKSTEP_NCCL", self.spec.satisfies("+nccl")),
            self.define("LOCKSTEP_CUDNN", self.spec.satisfies("+cudnn")),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("LOCKSTEP_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        if self.spec.satisfies("+nccl"):
            args.append(self.define("NCCL_ROOT", self.spec["nccl"].prefix))
        if self.spec.satisfies("+cudnn"):
            args.append(self.define("CUDNN_ROOT", self.spec["cudnn"].prefix))
        return args
