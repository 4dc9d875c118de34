// SPDX-License-Identifier: Apache-2.0
// Each step relies on the facts of earlier ones.
#include "cli/doctor/facts.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "cli/shell/exit_code.h"
#include "cli/shell/library.h"
#include "config/settings.h"

namespace cupool::cli {

namespace {

FileRights rights_of(const std::string& path) {
  FileRights rights;
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return rights;
  rights.mode = status.st_mode;
  rights.owner = status.st_uid;
  rights.group = status.st_gid;
  rights.capabilities = getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
  struct statvfs mount {};
  rights.mounted_nosuid = statvfs(path.c_str(), &mount) == 0 && (mount.f_flag & ST_NOSUID) != 0;
  return rights;
}

void find_own_library(Facts* facts) {
  try {
    facts->library = find_library();
    std::string reason;
    if (read_elf(facts->library, &facts->library_elf, &reason) == ElfStatus::read) return;
    facts->library_problem = facts->library + ": " + reason;
    facts->library.clear();
  } catch (const UsageError& error) {
    facts->library_problem = error.what();
  }
}

bool runs_here(const Facts& facts) {
  return facts.elf_status == ElfStatus::read && facts.elf.bits == 64 &&
         !facts.elf.interpreter.empty() && is_glibc_loader(facts.elf.interpreter) &&
         (facts.library.empty() || facts.elf.machine == facts.library_elf.machine);
}

void look_at_libraries(const Environment& inherited, Facts* facts) {
  const char* const value = inherited.get("LD_PRELOAD");
  const std::string present = value == nullptr ? "" : value;
  if (runs_here(*facts)) {
    facts->system_loader = is_system_loader(facts->elf.interpreter);
    facts->dependencies = find_dependencies(facts->file.executable(), facts->elf, inherited);
    if (!facts->library.empty() && facts->system_loader) {
      facts->load = try_load(facts->elf.interpreter, facts->library, inherited);
    }
  }
  for (const std::string& path : other_preloads(present)) {
    OtherPreload other;
    other.path = path;
    ElfFile elf;
    // The loader searches for a bare name and reports a missing one itself.
    other.readable = path.find('/') == std::string::npos ||
                     read_elf(path, &elf, &other.problem) == ElfStatus::read;
    other.intercepts_cuda = elf.defines("cudaMalloc") || elf.defines("cuMemAlloc_v2");
    facts->other_preloads.push_back(other);
  }
}

}  // namespace

Facts collect_facts(const std::string& name) {
  Facts facts;
  const Environment environment = Environment::inherited();
  find_own_library(&facts);
  facts.file = find_program_file(name, environment);
  if (facts.file.problem.empty()) {
    const std::string& path = facts.file.executable();
    facts.elf_status = read_elf(path, &facts.elf, &facts.elf_reason);
    facts.secure_execution = secure_execution_reason(rights_of(path), getuid(), getgid());
  }
  look_at_libraries(environment, &facts);
  if (facts.elf_status == ElfStatus::read && facts.file.problem.empty()) {
    facts.use = find_cuda_use(facts.file.executable(), facts.dependencies);
  }
  std::vector<const char*> variables = environment.pointers();
  const config::Settings settings =
      config::parse(variables.data(), &facts.settings_warnings, nullptr);
  if (!settings.enable) {
    facts.disabled_by = "CUPOOL_ENABLE";
    facts.disabled_value = "0";
  } else if (settings.mode != config::Mode::pool) {
    facts.disabled_by = "CUPOOL_MODE";
    facts.disabled_value = settings.mode == config::Mode::off ? "off" : "observe";
  }
  facts.free_mode = settings.free_mode;
  facts.backend = settings.backend;
  facts.driver = probe_driver();
  if (const char* visible = environment.get("CUDA_VISIBLE_DEVICES")) {
    facts.visible_devices = std::string("CUDA_VISIBLE_DEVICES=") + visible;
  }
  return facts;
}

}  // namespace cupool::cli
