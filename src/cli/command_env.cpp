// SPDX-License-Identifier: Apache-2.0
// `cupool env`: what `cupool run` sets, for a shell, a container or a job to set by itself.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "cli/command.h"
#include "cli/shell/environment_text.h"
#include "cli/shell/library.h"
#include "cli/shell/settings_arguments.h"
#include "config/profile.h"

namespace cupool::cli {

namespace {

struct EnvArguments {
  SettingsArguments settings;
  std::string shell = "sh";
};

// The settings with the lines of their profile in its place; as in the library, a setting of its
// own comes before the profile's.
config::KeyValues without_profile(const config::KeyValues& settings) {
  config::KeyValues all;
  std::string profile;
  for (const auto& setting : settings) {
    if (setting.first == "CUPOOL_PROFILE") {
      profile = setting.second;
    } else {
      all.push_back(setting);
    }
  }
  if (profile.empty()) return all;
  std::vector<std::string> warnings;
  for (const auto& line : config::read_profile(profile, &warnings)) {
    bool given = line.first == "CUPOOL_PROFILE";
    for (const auto& setting : all) given = given || setting.first == line.first;
    if (!given) all.push_back(line);
  }
  if (!warnings.empty()) throw UsageError(warnings.front());
  return all;
}

int act(const EnvArguments& arguments) {
  const EnvironmentSyntax& syntax = environment_syntax(arguments.shell);
  PreloadVariables variables;
  const std::string library = find_library();
  if (syntax.other_machine && !can_be_preloaded(library)) {
    throw UsageError(
        "LD_PRELOAD cannot hold a path with a blank or a colon, and a link made here " +
        std::string("is not on other machines: ") + library +
        "\nCopy the library elsewhere and set CUPOOL_LIBRARY to the copy");
  }
  variables.library = preloadable(library);
  const char* const present = std::getenv("LD_PRELOAD");
  variables.preload = preload_value(variables.library, present == nullptr ? "" : present);
  variables.settings = arguments.settings.variables();
  if (syntax.other_file_tree) variables.settings = without_profile(variables.settings);
  std::fputs(syntax.text(variables).c_str(), stdout);
  return exit_ok;
}

}  // namespace

void add_env(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<EnvArguments>();
  CLI::App* command =
      add_command(app, session, "env", "Print what to set for a shell, a container or a job.",
                  ProgramWords::none, [arguments](Session&) { return act(*arguments); });
  std::string names;
  for (const std::string& name : environment_syntax_names())
    names += (names.empty() ? "" : "|") + name;
  command->add_option("--shell", arguments->shell, "Who reads it (default sh)")->type_name(names);
  arguments->settings.add_to(*command);
  command->footer(
      "Prints the variables that `cupool run` sets, with the given settings.\n"
      "sh, bash, dash, zsh: eval \"$(cupool env)\".\n"
      "fish: cupool env --shell fish | source.\n"
      "csh: eval \"`cupool env --shell csh`\".\n"
      "docker: docker run $(cupool env --shell docker) IMAGE.\n"
      "slurm: srun $(cupool env --shell slurm) PROGRAM.\n"
      "kubernetes: the entries of a manifest.");
}

}  // namespace cupool::cli
