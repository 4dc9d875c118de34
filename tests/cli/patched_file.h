// SPDX-License-Identifier: Apache-2.0
// Copies of programs with single bytes changed: executables for other machines and loaders, without
// a compiler for them.
#pragma once

#include <elf.h>

#include <functional>
#include <string>

namespace cli {

/// Copies a file, executable, with the content that `change` leaves.
void copy_changed(const std::string& from, const std::string& to,
                  const std::function<void(std::string* bytes)>& change);

/// Replaces every occurrence by a text that is no longer; the rest is filled with zero bytes.
void replace_bytes(std::string* bytes, const std::string& what, const std::string& by);

/// The ELF header of a 64-bit file in memory.
Elf64_Ehdr* header_of(std::string* bytes);

/// Makes the program header that names the dynamic loader one that means nothing.
void drop_interpreter(std::string* bytes);

/// Writes a text file that may be executed.
void write_script(const std::string& path, const std::string& content);

}  // namespace cli
