// SPDX-License-Identifier: Apache-2.0
// `cupool doctor program`: will cupool serve the program? If not, why?
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/facts_text.h"

namespace cupool::cli {

namespace {

int act(bool json, const Session& session) {
  if (session.program.empty()) {
    throw UsageError("doctor needs a program: cupool doctor ./program");
  }
  const Facts facts = collect_facts(session.program[0]);
  if (!facts.file.problem.empty()) throw UsageError(facts.file.problem);
  const std::vector<Finding> findings = diagnose(facts);
  const std::string text =
      json ? facts_as_json(facts, findings) : facts_as_text(facts, findings, session.program);
  std::fputs(text.c_str(), stdout);
  return will_work(findings) ? exit_ok : exit_negative;
}

}  // namespace

void add_doctor(CLI::App& app, Session& session) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* command =
      add_command(app, session, "doctor", "Check whether cupool will work for a program.",
                  ProgramWords::after_options, [json](Session& now) { return act(*json, now); });
  command->add_flag("--json", *json, "Print JSON");
  command->footer(
      "Reads the files of the program and its libraries without running it, and queries the CUDA\n"
      "driver in a child process.\n"
      "Exit code: 0, no obstacle; 1, an obstacle; 2, no such program.");
}

}  // namespace cupool::cli
