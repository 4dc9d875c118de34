// SPDX-License-Identifier: Apache-2.0
// Judges whether cupool will work for a program. Facts are collected elsewhere, so that tests need
// no machine with the fault.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cli/doctor/cuda_use.h"
#include "cli/doctor/dependencies.h"
#include "cli/doctor/driver_probe.h"
#include "cli/doctor/elf_file.h"
#include "cli/doctor/program_file.h"
#include "config/types.h"

namespace cupool::cli {

/// Permissions and capabilities of an executable file.
struct FileRights {
  mode_t mode = 0;
  uid_t owner = 0;
  gid_t group = 0;
  bool capabilities = false;  ///< the file carries capabilities
  bool mounted_nosuid = false;
};

/// The reason why the dynamic loader would ignore LD_PRELOAD if user `uid` of group `gid` started
/// the file; "" if there is none. Pure. Source: execve(2) and ld.so(8), secure-execution mode.
std::string secure_execution_reason(const FileRights& rights, uid_t uid, gid_t gid);

/// Another library in LD_PRELOAD.
struct OtherPreload {
  std::string path;
  bool readable = false;
  std::string problem;           ///< why it is not readable
  bool intercepts_cuda = false;  ///< defines an allocation function of CUDA
};

struct Facts {
  ProgramFile file;
  ElfStatus elf_status = ElfStatus::read;
  std::string elf_reason;
  ElfFile elf;
  std::string secure_execution;  ///< from secure_execution_reason
  std::vector<Dependency> dependencies;
  CudaUse use;
  std::string library;          ///< path of libcupool.so; "" if not found
  std::string library_problem;  ///< why it was not found
  ElfFile library_elf;
  bool system_loader = false;  ///< the program uses this system's own loader
  TriedLoad load;              ///< that loader's answer for the library
  std::vector<OtherPreload> other_preloads;
  std::string disabled_by;  ///< the variable that keeps cupool from serving; "" if none does
  std::string disabled_value;
  config::FreeMode free_mode = config::FreeMode::automatic;  ///< as requested
  config::Backend backend = config::Backend::automatic;      ///< as requested
  std::vector<std::string> settings_warnings;
  ProbedDriver driver;
  std::string visible_devices;  ///< "CUDA_VISIBLE_DEVICES=..."; "" if not set
};

enum class Severity {
  obstacle,  ///< cupool will not serve the program
  warning,   ///< it will, with limits
  note,
};

struct Finding {
  Severity severity = Severity::note;
  std::string id;  ///< stable, for programs: "static", "no-driver", ...
  std::string text;
  std::string cure;  ///< what to do; "" if nothing
};

/// All findings, obstacles first.
std::vector<Finding> diagnose(const Facts& facts);

/// True if there is no obstacle.
bool will_work(const std::vector<Finding>& findings);

/// Free mode and backend as requested, as they will be, and why they differ.
struct ExpectedModes {
  config::FreeMode free_mode = config::FreeMode::automatic;
  config::Backend backend = config::Backend::automatic;
  std::string reason;  ///< "libmpi.so.40 is linked"; "" if they are as requested
};
ExpectedModes expected_modes(const Facts& facts);

/// "obstacle", "warning" or "note".
const char* text_of(Severity severity);

}  // namespace cupool::cli
