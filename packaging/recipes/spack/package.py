# SPDX-License-Identifier: Apache-2.0
# A Spack package, built from a checkout: in a repository of yours as packages/cupool/package.py.
#   spack dev-build --source-path CHECKOUT cupool@main
from spack.package import *


class Cupool(CMakePackage):
    """Serves the cudaMalloc and cudaFree of unmodified CUDA programs from stream-ordered pools."""

    license("Apache-2.0")

    version("main")

    depends_on("cxx", type="build")
    depends_on("cmake@3.18:", type="build")
    depends_on("ninja", type="build")
    depends_on("cuda@11.8:", type="build")
    depends_on("spdlog", type="build")
    depends_on("fmt", type="build")
    depends_on("nlohmann-json", type="build")
    depends_on("cli11", type="build")

    generator("ninja")

    def cmake_args(self):
        return [self.define("CUPOOL_BUILD_TESTS", False)]
