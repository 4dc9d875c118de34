// What stands between a program and cupool. Facts are collected elsewhere; here they are judged, so
// that every judgement can be tested without a machine that has the trouble.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cli/cuda_use.h"
#include "cli/dependencies.h"
#include "cli/driver_probe.h"
#include "cli/elf_file.h"
#include "cli/program_file.h"

namespace cupool::cli {

/// Who may do what with an executable file.
struct FileRights {
  mode_t mode = 0;
  uid_t owner = 0;
  gid_t group = 0;
  bool capabilities = false;  ///< the file carries capabilities
  bool mounted_nosuid = false;
};

/// Why the dynamic loader would ignore LD_PRELOAD for this file, started by user `uid` of group
/// `gid`; "" if it would not. Pure. Source: execve(2) and ld.so(8), secure-execution mode.
std::string secure_execution_reason(const FileRights& rights, uid_t uid, gid_t gid);

/// A library that is preloaded besides.
struct OtherPreload {
  std::string path;
  bool readable = false;
  bool intercepts_cuda = false;  ///< defines an allocation function of CUDA
};

struct Facts {
  ProgramFile file;
  ElfStatus elf_status = ElfStatus::read;
  std::string elf_reason;
  ElfFile elf;
  std::string secure_execution;  ///< of secure_execution_reason
  std::vector<Dependency> dependencies;
  CudaUse use;
  std::string library;          ///< libcupool.so; "" if it was not found
  std::string library_problem;  ///< then: why
  ElfFile library_elf;
  bool preload_was_tried = false;
  bool preload_works = false;  ///< the loader listed the library
  std::string preload_messages;
  std::vector<OtherPreload> other_preloads;
  bool enabled = true;  ///< CUPOOL_ENABLE and profile
  std::vector<std::string> settings_warnings;
  ProbedDriver driver;
  std::string visible_devices;  ///< CUDA_VISIBLE_DEVICES, with its name; "" if not set
};

enum class Severity {
  obstacle,  ///< cupool will not serve the program
  warning,   ///< it will, with less than it could
  note,
};

struct Finding {
  Severity severity = Severity::note;
  std::string id;  ///< for programs: "setuid", "no-driver", ...
  std::string text;
  std::string cure;  ///< "" if there is nothing to do
};

/// Everything worth saying, obstacles first.
std::vector<Finding> diagnose(const Facts& facts);

/// Whether nothing stands in the way.
bool will_work(const std::vector<Finding>& findings);

/// "obstacle", "warning" or "note".
const char* text_of(Severity severity);

}  // namespace cupool::cli
