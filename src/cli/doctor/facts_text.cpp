// SPDX-License-Identifier: Apache-2.0
// One labelled line per fact, then the findings with their cures.
#include "cli/doctor/facts_text.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/shell/shell_words.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

using OrderedJson = nlohmann::ordered_json;

std::string line(const char* label, const std::string& text) {
  char start[16];
  std::snprintf(start, sizeof start, "%-10s ", label);
  return start + text + "\n";
}

std::string chain_of(const ProgramFile& file) {
  std::string text;
  for (const std::string& path : file.chain) text += (text.empty() ? "" : ", run by ") + path;
  return text;
}

std::string program_lines(const Facts& facts) {
  std::string text = line("program", chain_of(facts.file));
  if (facts.elf_status != ElfStatus::read) return text;
  const ElfFile& elf = facts.elf;
  return text + line("", machine_name(elf.machine) + (elf.interpreter.empty()
                                                          ? ", no dynamic loader"
                                                          : ", loader " + elf.interpreter));
}

std::string runtime_text(const Runtime& runtime) {
  const std::string version = runtime.version.empty() ? "" : " " + runtime.version;
  if (!runtime.is_static) return "runtime" + version + ", shared: " + runtime.file;
  return "runtime, static, in " + runtime.file +
         (runtime.version.empty() ? "" : " (compiled by CUDA " + runtime.version + ")");
}

std::string use_lines(const CudaUse& use) {
  std::string text;
  for (const Runtime& runtime : use.runtimes) text += line("CUDA", runtime_text(runtime));
  for (const std::string& file : use.linked_to_driver) {
    text += line("CUDA", "driver, linked by " + file);
  }
  for (const std::string& file : use.open_driver) {
    text += line("CUDA", "driver, opened by " + file);
  }
  for (const std::string& file : use.open_runtime) {
    text += line("CUDA", "runtime, opened by " + file);
  }
  for (const int route : use.routes) {
    text += line("route", std::to_string(route) + ", " + route_text(route));
  }
  return text;
}

std::string driver_lines(const ProbedDriver& driver) {
  if (driver.state != ProbedDriver::State::answered) return line("driver", driver.message);
  std::string text = line(
      "driver", "CUDA " + cuda_version_text(driver.version) +
                    (driver.context_events ? ", with context events" : ", without context events"));
  for (std::size_t i = 0; i < driver.devices.size(); ++i) {
    const ProbedDevice& device = driver.devices[i];
    text += line(("device " + std::to_string(i)).c_str(),
                 device.name + ", " + util::format_bytes(device.memory_bytes) +
                     ", compute capability " + std::to_string(device.compute_major) + "." +
                     std::to_string(device.compute_minor) +
                     (device.pools ? ", memory pools" : ", no memory pools") +
                     (device.pools && device.handles_to_share ? " that can be shared" : ""));
  }
  return text;
}

std::string finding_lines(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += std::string(text_of(finding.severity)) + ": " + finding.text + "\n";
    if (!finding.cure.empty()) text += "  -> " + finding.cure + "\n";
  }
  return text.empty() ? "" : "\n" + text;
}

std::string verdict(const Facts& facts, const std::vector<Finding>& findings,
                    const std::vector<std::string>& program) {
  if (!will_work(findings)) return "cupool will not serve this program.";
  const std::string command = "cupool run " + shell_words(program);
  if (facts.use.any()) return "cupool will serve this program: " + command;
  return "No obstacle found: " + command;
}

OrderedJson runtimes_as_json(const CudaUse& use) {
  OrderedJson runtimes = OrderedJson::array();
  for (const Runtime& runtime : use.runtimes) {
    runtimes.push_back({{"linkage", runtime.is_static ? "static" : "shared"},
                        {"file", runtime.file},
                        {"version", runtime.version}});
  }
  return runtimes;
}

const char* state_text(ProbedDriver::State state) {
  switch (state) {
    case ProbedDriver::State::answered:
      return "answered";
    case ProbedDriver::State::absent:
      return "absent";
    case ProbedDriver::State::refused:
      return "refused";
    case ProbedDriver::State::crashed:
      return "crashed";
    case ProbedDriver::State::silent:
      return "silent";
  }
  return "?";
}

OrderedJson driver_as_json(const ProbedDriver& driver) {
  OrderedJson devices = OrderedJson::array();
  for (const ProbedDevice& device : driver.devices) {
    devices.push_back({{"name", device.name},
                       {"memory_bytes", device.memory_bytes},
                       {"compute_capability", std::to_string(device.compute_major) + "." +
                                                  std::to_string(device.compute_minor)},
                       {"pools", device.pools},
                       {"pools_shareable", device.handles_to_share}});
  }
  return {{"state", state_text(driver.state)},
          {"message", driver.message},
          {"error", driver.error},
          {"cuda_version", driver.version == 0 ? "" : cuda_version_text(driver.version)},
          {"context_events", driver.context_events},
          {"devices", devices}};
}

OrderedJson modes_as_json(const Facts& facts) {
  const ExpectedModes modes = expected_modes(facts);
  return {{"requested",
           {{"free_mode", config::text_of(facts.free_mode)},
            {"backend", config::text_of(facts.backend)}}},
          {"free_mode", config::text_of(modes.free_mode)},
          {"backend", config::text_of(modes.backend)},
          {"reason", modes.reason}};
}

}  // namespace

std::string facts_as_text(const Facts& facts, const std::vector<Finding>& findings,
                          const std::vector<std::string>& program) {
  // File names and file contents are untrusted.
  return util::printable(program_lines(facts) + use_lines(facts.use) +
                             (facts.library.empty() ? "" : line("library", facts.library)) +
                             driver_lines(facts.driver) + finding_lines(findings) + "\n" +
                             verdict(facts, findings, program) + "\n",
                         true);
}

std::string facts_as_json(const Facts& facts, const std::vector<Finding>& findings) {
  OrderedJson list = OrderedJson::array();
  for (const Finding& finding : findings) {
    list.push_back({{"severity", text_of(finding.severity)},
                    {"id", finding.id},
                    {"text", finding.text},
                    {"cure", finding.cure}});
  }
  const OrderedJson json = {
      {"schema_version", 1},
      {"works", will_work(findings)},
      {"program",
       {{"chain", facts.file.chain},
        {"machine", facts.elf.bits == 0 ? "" : machine_name(facts.elf.machine)},
        {"loader", facts.elf.interpreter}}},
      {"library", facts.library},
      {"cuda",
       {{"runtimes", runtimes_as_json(facts.use)},
        {"links_driver", facts.use.linked_to_driver},
        {"opens_driver", facts.use.open_driver},
        {"opens_runtime", facts.use.open_runtime},
        {"agents", facts.use.agents},
        {"routes", facts.use.routes}}},
      {"modes", modes_as_json(facts)},
      {"driver", driver_as_json(facts.driver)},
      {"findings", list}};
  // File names may not be UTF-8.
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace cupool::cli
