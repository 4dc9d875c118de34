// SPDX-License-Identifier: Apache-2.0
// One function per group of findings.
#include "cli/doctor/diagnosis.h"

#include <cuda.h>
#include <elf.h>
#include <sys/stat.h>

#include <algorithm>

#include "cli/shell/simulated_device.h"
#include "util/known_cuda.h"

namespace cupool::cli {

namespace {

using Findings = std::vector<Finding>;

void obstacle(Findings* findings, std::string id, std::string text, std::string cure) {
  findings->push_back({Severity::obstacle, std::move(id), std::move(text), std::move(cure)});
}

void warning(Findings* findings, std::string id, std::string text, std::string cure) {
  findings->push_back({Severity::warning, std::move(id), std::move(text), std::move(cure)});
}

void note(Findings* findings, std::string id, std::string text, std::string cure = "") {
  findings->push_back({Severity::note, std::move(id), std::move(text), std::move(cure)});
}

bool is_elf_program(const Facts& facts) {
  return facts.elf_status == ElfStatus::read;
}

bool same_machine(const Facts& facts) {
  return facts.elf.bits == facts.library_elf.bits && facts.elf.machine == facts.library_elf.machine;
}

void judge_file(const Facts& facts, Findings* findings) {
  if (facts.elf_status == ElfStatus::not_elf) {
    note(findings, "no-elf",
         facts.file.executable() +
             " is neither an ELF file nor a script with #!; a shell may run it",
         "pass the program that it starts");
  } else if (facts.elf_status != ElfStatus::read) {
    obstacle(findings, "unreadable", facts.file.executable() + ": " + facts.elf_reason,
             "pass a readable file");
  }
}

void judge_loader(const Facts& facts, Findings* findings) {
  if (!is_elf_program(facts)) return;
  const std::string loader = facts.elf.interpreter;
  if (!facts.library.empty() && !same_machine(facts)) {
    obstacle(findings, "architecture",
             "the program is built for " + machine_name(facts.elf.machine) + ", " +
                 std::to_string(facts.elf.bits) + " bits; cupool for " +
                 machine_name(facts.library_elf.machine) + ", " +
                 std::to_string(facts.library_elf.bits) + " bits",
             "build cupool for the program's machine");
    return;
  }
  if (facts.elf.bits != 64) return;
  if (loader.empty() && !facts.elf.soname.empty()) {
    obstacle(findings, "library", "this is a library, not a program",
             "pass the program that loads it");
  } else if (loader.empty()) {
    obstacle(findings, "static",
             "statically linked: no dynamic loader runs, so nothing can be preloaded",
             "link it dynamically to libc (drop -static); the CUDA runtime may stay static");
  } else if (loader.find("ld-musl") != std::string::npos) {
    obstacle(findings, "musl", "the program uses musl (" + loader + "), cupool needs glibc",
             "use a glibc build of the program");
  } else if (!is_glibc_loader(loader)) {
    warning(findings, "loader", "unknown dynamic loader " + loader,
            "cupool loads only if this is a glibc loader");
  } else if (!facts.system_loader) {
    warning(findings, "loader",
            "the program uses a loader of its own, " + loader +
                ". doctor does not run this loader, so it is unknown whether cupool loads",
            "if you trust the program, try cupool run");
  }
}

void judge_rights(const Facts& facts, Findings* findings) {
  if (!facts.secure_execution.empty()) {
    obstacle(findings, "secure-execution",
             facts.secure_execution + ", so the dynamic loader ignores LD_PRELOAD",
             "run a copy: cp drops these rights");
  }
  if (facts.file.empties_environment) {
    obstacle(findings, "empty-environment",
             "the script's first line clears the environment (env -i), LD_PRELOAD included",
             "start the interpreter directly: cupool run INTERPRETER SCRIPT");
  }
}

void judge_libraries(const Facts& facts, Findings* findings) {
  for (const Dependency& library : facts.dependencies) {
    if (!library.path.empty() || library.name.compare(0, 10, "libcuda.so") == 0) continue;
    if (facts.system_loader) {
      obstacle(findings, "missing-library",
               library.name + " is not found: the program cannot start",
               "add its folder to LD_LIBRARY_PATH");
    } else {
      note(findings, "missing-library",
           library.name +
               " is not found by this system's rules; the program's own loader may find it");
    }
  }
  const ExpectedModes modes = expected_modes(facts);
  for (const std::string& agent : facts.use.agents) {
    const std::string shares = agent + " shares device memory with other hardware: ";
    if (modes.reason.empty()) {
      note(findings, "agent", shares + "free mode and backend are as requested");
      continue;
    }
    note(findings, "agent",
         shares + "requested are free mode " + config::text_of(facts.free_mode) + " and backend " +
             config::text_of(facts.backend) + ", in force will be free mode " +
             config::text_of(modes.free_mode) + " and backend " + config::text_of(modes.backend) +
             (modes.backend == config::Backend::malloc ? " (plain memory)" : ""),
         "if peers run without cupool: --profile mpi");
  }
}

void judge_preload(const Facts& facts, Findings* findings) {
  if (facts.library.empty()) {
    obstacle(findings, "no-library", facts.library_problem,
             "install cupool, or set CUPOOL_LIBRARY");
    return;
  }
  if (facts.load.tried && !facts.load.works) {
    obstacle(findings, "preload-refused",
             "the program's loader rejects cupool" +
                 (facts.load.messages.empty() ? "" : ": " + facts.load.messages),
             "build cupool against the libc that the program uses");
  }
  for (const OtherPreload& other : facts.other_preloads) {
    if (!other.readable) {
      warning(findings, "preload-unreadable",
              "LD_PRELOAD names " + other.path + ", which cannot be read: " + other.problem,
              "remove it from LD_PRELOAD");
    } else if (other.intercepts_cuda) {
      warning(findings, "preload-intercepts",
              other.path +
                  " in LD_PRELOAD intercepts CUDA's allocations too; it will see only the calls "
                  "that cupool passes on",
              "preload only one of the two");
    } else {
      note(findings, "preload-other",
           "LD_PRELOAD has " + other.path + "; it will be loaded after cupool");
    }
  }
}

void judge_settings(const Facts& facts, Findings* findings) {
  if (!facts.disabled_by.empty()) {
    const bool observes = facts.disabled_value == "observe";
    obstacle(
        findings, "disabled",
        facts.disabled_by + "=" + facts.disabled_value +
            (observes ? " has cupool measure the driver and serve nothing" : " turns cupool off"),
        "unset " + facts.disabled_by);
  }
  for (const std::string& text : facts.settings_warnings) {
    warning(findings, "setting", text, "cupool options lists all options");
  }
}

std::string refusal_cure(const Facts& facts) {
  switch (facts.driver.error) {
    case CUDA_ERROR_NO_DEVICE:
      if (!facts.visible_devices.empty()) return "correct or unset " + facts.visible_devices;
      return "in a container, start it with access to the GPUs (--gpus all)";
    case CUDA_ERROR_STUB_LIBRARY:
      return "this is the toolkit's stub: remove its folder from LD_LIBRARY_PATH";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "the kernel module and libcuda have different versions: restart the machine";
    default:
      return "run nvidia-smi for details";
  }
}

void judge_driver(const Facts& facts, Findings* findings) {
  const ProbedDriver& driver = facts.driver;
  switch (driver.state) {
    case ProbedDriver::State::absent:
      obstacle(findings, "no-driver", "there is no CUDA driver: " + driver.message,
               "install NVIDIA's driver; in a container, start it with access to the GPUs");
      return;
    case ProbedDriver::State::refused:
      obstacle(findings, "driver-refused", "the CUDA driver does not start: " + driver.message,
               refusal_cure(facts));
      return;
    case ProbedDriver::State::crashed:
    case ProbedDriver::State::silent:
      obstacle(findings, "driver-broken", "the CUDA driver failed to answer: " + driver.message,
               "see nvidia-smi and the kernel's log");
      return;
    case ProbedDriver::State::answered:
      break;
  }
  if (!driver.context_events) {
    warning(findings, "no-context-events",
            "the driver (CUDA " + cuda_version_text(driver.version) +
                ") has no context events, so every free waits for the GPU",
            "install a driver of CUDA 12.5 or later");
  }
  if (driver.version > util::kNewestKnownCuda) {
    note(findings, "newer-driver",
         "the driver (CUDA " + cuda_version_text(driver.version) +
             ") is newer than the latest that cupool knows (CUDA " +
             cuda_version_text(util::kNewestKnownCuda) +
             "). If the program calls a newer function that cupool would have to intercept, cupool "
             "steps aside with a warning",
         "");
  }
}

void judge_devices(const Facts& facts, Findings* findings) {
  for (std::size_t i = 0; i < facts.driver.devices.size(); ++i) {
    const std::string device = "device " + std::to_string(i);
    if (!facts.driver.devices[i].pools) {
      warning(findings, "no-pools",
              device + " has no memory pools: cupool caches memory from cuMemAlloc instead", "");
    } else if (!facts.driver.devices[i].handles_to_share) {
      note(findings, "no-pool-ipc", device + "'s memory pools cannot be shared between processes",
           "if the program uses cudaIpcGetMemHandle: --backend malloc");
    }
  }
}

// It has a runtime of its own, without GPU code.
void judge_simulated(const Facts& facts, Findings* findings) {
  if (facts.use.needs_nvidia_runtime.empty()) return;
  const auto& devices = facts.driver.devices;
  const bool simulated = std::any_of(devices.begin(), devices.end(), [](const auto& device) {
    return device.name == kSimulatedDevice;
  });
  if (!simulated) return;
  obstacle(findings, "simulated-device",
           facts.use.needs_nvidia_runtime +
               ", and does not start on cupool's simulated device, which runs no kernels",
           "build it without kernels for this device: g++ -I/usr/local/cuda/include program.cpp "
           "-L${LD_LIBRARY_PATH%%:*} -lcudart -o program");
}

void judge_use(const Facts& facts, Findings* findings) {
  if (!is_elf_program(facts)) return;
  if (facts.file.is_python()) {
    note(findings, "python", "Python loads CUDA libraries on import; cupool intercepts them then");
  } else if (facts.file.script) {
    note(findings, "script", "programs started by the script inherit the preload",
         "for more, pass the program that uses the GPU");
  } else if (!facts.use.any() && !facts.elf.interpreter.empty()) {
    note(findings, "no-cuda",
         "no CUDA in the program and its libraries; cupool does nothing unless the program loads "
         "CUDA later");
  }
}

}  // namespace

std::string secure_execution_reason(const FileRights& rights, uid_t uid, gid_t gid) {
  if (rights.mounted_nosuid) return "";
  if ((rights.mode & S_ISUID) != 0 && rights.owner != uid) return "the file is setuid";
  // Without the group's right to execute, the bit means something else.
  const bool setgid = (rights.mode & S_ISGID) != 0 && (rights.mode & S_IXGRP) != 0;
  if (setgid && rights.group != gid) return "the file is setgid";
  // Root has all capabilities anyway.
  if (rights.capabilities && uid != 0) return "the file carries capabilities";
  return "";
}

ExpectedModes expected_modes(const Facts& facts) {
  ExpectedModes modes{facts.free_mode, facts.backend, ""};
  if (facts.use.agents.empty()) return modes;
  // Others of these libraries are then taken for a part of it. Whether the program uses one of them
  // itself shows when it runs.
  const bool mpi =
      std::any_of(facts.use.agents.begin(), facts.use.agents.end(),
                  [](const std::string& agent) { return agent.compare(0, 6, "libmpi") == 0; });
  const bool sync = facts.free_mode == config::FreeMode::automatic && !mpi;
  const bool plain = facts.backend == config::Backend::automatic;
  if (sync) modes.free_mode = config::FreeMode::sync;
  if (plain) modes.backend = config::Backend::malloc;
  if (sync || plain) modes.reason = facts.use.agents.front() + " is linked";
  return modes;
}

std::vector<Finding> diagnose(const Facts& facts) {
  Findings findings;
  judge_file(facts, &findings);
  judge_loader(facts, &findings);
  judge_rights(facts, &findings);
  judge_libraries(facts, &findings);
  judge_preload(facts, &findings);
  judge_settings(facts, &findings);
  judge_driver(facts, &findings);
  judge_devices(facts, &findings);
  judge_simulated(facts, &findings);
  judge_use(facts, &findings);
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return static_cast<int>(a.severity) < static_cast<int>(b.severity);
  });
  return findings;
}

bool will_work(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.severity == Severity::obstacle;
  });
}

const char* text_of(Severity severity) {
  switch (severity) {
    case Severity::obstacle:
      return "obstacle";
    case Severity::warning:
      return "warning";
    case Severity::note:
      return "note";
  }
  return "?";
}

}  // namespace cupool::cli
