// `cupool doctor program`: whether cupool will serve a program, and if not, why.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/facts.h"
#include "cli/facts_text.h"

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
  CLI::App* command = add_command(
      app, session, "doctor", "Say how a program reaches CUDA, and what stands in cupool's way.",
      ProgramWords::after_options, [json](Session& now) { return act(*json, now); });
  command->add_flag("--json", *json, "For programs");
  command->footer(
      "The program is not run: its file and libraries are read, the dynamic loader lists what it\n"
      "would load, and a child process asks the CUDA driver.\n"
      "Exit code: 0, nothing stands in the way; 1, something does; 2, there is no such program.");
}

}  // namespace cupool::cli
