# SPDX-License-Identifier: Apache-2.0
# What .deb and .rpm have in common; packages.py sets the rest. Dependencies are stated, not searched for,
# since a package of another architecture cannot be asked here.
set(CPACK_PACKAGE_NAME cupool)
set(CPACK_PACKAGE_VENDOR "cupool")
set(CPACK_PACKAGE_CONTACT "cupool maintainers <maintainers@cupool.invalid>")
set(CPACK_PACKAGE_DESCRIPTION "LD_PRELOAD=libcupool.so ./program, or cupool run ./program: allocations of an
unmodified CUDA program come from stream-ordered pools, and a report says at exit what that gained.")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_CURRENT_LIST_DIR}/../LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_INCLUDE_TOPLEVEL_DIRECTORY OFF)

set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.17)")
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)

set(CPACK_RPM_PACKAGE_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION}")
set(CPACK_RPM_PACKAGE_LICENSE Apache-2.0)
set(CPACK_RPM_PACKAGE_AUTOREQ OFF)
set(CPACK_RPM_PACKAGE_AUTOPROV OFF)
set(CPACK_RPM_PACKAGE_REQUIRES "glibc >= 2.17")
# The files are stripped, and their debug information lies beside the packages.
set(CPACK_RPM_SPEC_MORE_DEFINE "%define debug_package %{nil}\n%define __strip /bin/true\n%define _build_id_links none")
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION /usr/lib64 /usr/share/doc)
