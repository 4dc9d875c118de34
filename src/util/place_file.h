// SPDX-License-Identifier: Apache-2.0
// Atomic replacement of a file: a reader sees the old or the new one, and a failed write leaves the
// old one intact.
#pragma once

#include <cstdint>
#include <string>

namespace cupool::util {

enum class Placed {
  failed,  ///< see errno; the old file is unchanged, with the exceptions of place_file()
  written,
  replaced_others,  ///< placed; another process had written the file since `since_wall_ns`
};

/// Writes `content` beside the file at `path`, under an unused name, and renames it. A new file has
/// mode 0666 & ~umask, a replacement owner, group and mode of the old file. A link stays, and its
/// target is replaced. A link of another user in a folder where everybody may create names (/tmp)
/// is not followed (EACCES). Anything but a regular file (a FIFO, a terminal, /dev/null) is written
/// directly, without waiting for a reader; /dev/stdout and the like mean the descriptor.
///
/// The old file is overwritten in place if it has other names (hard links), if its owner and group
/// cannot be given to a new file, if the folder accepts no file, and if it is a mount point. The
/// space is reserved first, so a full disk leaves the old content intact. There are limits: a
/// reader may see a partial file; a file system that cannot reserve (NFS before 4.2) or never
/// writes in place (Btrfs, ZFS) may still be full; and a killed process leaves old and new content
/// mixed. In a folder like /tmp a file with other names is replaced: the other name may be the
/// right one. A file without write permission is replaced too, if the folder allows it, and then
/// belongs to the writer.
///
/// Thread-safe. Throws only std::bad_alloc.
Placed place_file(const std::string& path, const std::string& content, std::uint64_t since_wall_ns);

}  // namespace cupool::util
