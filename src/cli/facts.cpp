// Each question is asked once, in an order that lets later ones rest on earlier answers.
#include "cli/facts.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/library.h"
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

bool same_file(const std::string& a, const std::string& b) {
  struct stat status_a {};
  struct stat status_b {};
  return stat(a.c_str(), &status_a) == 0 && stat(b.c_str(), &status_b) == 0 &&
         status_a.st_dev == status_b.st_dev && status_a.st_ino == status_b.st_ino;
}

void try_preload(const Environment& inherited, const std::string& present, Facts* facts) {
  Environment environment = inherited;
  environment.set("LD_PRELOAD", preload_value(facts->library, present));
  const TriedLoad listed = try_load(facts->elf.interpreter, facts->file.executable(), environment);
  facts->preload_was_tried = listed.tried;
  facts->preload_messages = listed.messages;
  for (const Dependency& library : listed.libraries) {
    facts->preload_works = facts->preload_works || same_file(library.path, facts->library);
  }
}

void look_at_libraries(const Environment& inherited, Facts* facts) {
  const char* const value = inherited.get("LD_PRELOAD");
  const std::string present = value == nullptr ? "" : value;
  if (runs_here(*facts)) {
    Environment environment = inherited;
    environment.unset("LD_PRELOAD");
    facts->dependencies =
        list_dependencies(facts->elf.interpreter, facts->file.executable(), environment);
    // A program that cannot be loaded at all says nothing of the preload.
    const bool complete =
        std::none_of(facts->dependencies.begin(), facts->dependencies.end(),
                     [](const Dependency& library) { return library.path.empty(); });
    if (!facts->library.empty() && complete) try_preload(inherited, present, facts);
  }
  for (const std::string& path : other_preloads(present)) {
    OtherPreload other;
    other.path = path;
    ElfFile elf;
    std::string reason;
    // A bare name is found by the loader, which says so if it is not.
    other.readable =
        path.find('/') == std::string::npos || read_elf(path, &elf, &reason) == ElfStatus::read;
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
  facts.enabled = config::parse(variables.data(), &facts.settings_warnings, nullptr).enable;
  facts.driver = probe_driver();
  if (const char* visible = environment.get("CUDA_VISIBLE_DEVICES")) {
    facts.visible_devices = std::string("CUDA_VISIBLE_DEVICES=") + visible;
  }
  return facts;
}

}  // namespace cupool::cli
