-- SPDX-License-Identifier: Apache-2.0
-- A module file for Lmod: modulefiles/cupool/0.1.0.lua, with the archive unpacked in `root`.
-- `module load cupool` finds the command; what a job preloads is its own affair:
--   cupool run ./program        or        LD_PRELOAD=$CUPOOL_LIBRARY ./program
local root = "/opt/cupool/" .. myModuleVersion()

whatis("Serves the cudaMalloc and cudaFree of unmodified CUDA programs from stream-ordered pools")
help("cupool run ./program; cupool --help")
prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("MANPATH", pathJoin(root, "share/man"))
setenv("CUPOOL_LIBRARY", pathJoin(root, "lib/libcupool.so"))
