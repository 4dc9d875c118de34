// SPDX-License-Identifier: Apache-2.0
// The loader itself is asked, as doctor asks the system's own.
#include "cli/doctor/preload_check.h"

#include "cli/doctor/cuda_use.h"

#include "cli/doctor/dependencies.h"
#include "cli/doctor/elf_file.h"
#include "cli/doctor/program_file.h"
#include "util/text.h"

namespace cupool::cli {

std::string reason_not_to_preload(const std::string& program, const std::string& library,
                                  const Environment& environment) {
  const ProgramFile file = find_program_file(program, environment);
  if (!file.problem.empty()) return "";
  ElfFile elf;
  ElfFile own;
  std::string ignored;
  if (read_elf_dynamic(file.executable(), &elf, &ignored) != ElfStatus::read ||
      read_elf_dynamic(library, &own, &ignored) != ElfStatus::read) {
    return "";
  }
  // The loader skips libraries of another class or machine with a line of its own.
  if (elf.interpreter.empty() || elf.bits != own.bits || elf.machine != own.machine) return "";
  if (util::base_name(elf.interpreter).compare(0, 7, "ld-musl") == 0) {
    return file.executable() + " uses musl, cupool needs glibc";
  }
  if (!is_glibc_loader(elf.interpreter)) return "";
  const TriedLoad load = try_load(elf.interpreter, library, environment);
  if (!load.tried || load.works) return "";
  return load.messages.substr(0, load.messages.find('\n'));
}

bool shows_cuda(const std::string& program, const Environment& environment) {
  const ProgramFile file = find_program_file(program, environment);
  ElfFile elf;
  std::string ignored;
  if (!file.problem.empty() || read_elf(file.executable(), &elf, &ignored) != ElfStatus::read) {
    return false;
  }
  return find_cuda_use(file.executable(), find_dependencies(file.executable(), elf, environment))
      .any();
}

}  // namespace cupool::cli
