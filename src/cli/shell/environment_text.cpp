// SPDX-License-Identifier: Apache-2.0
// Each syntax has its own quotes, and values that it cannot hold. A refused value is better than a
// changed one.
#include "cli/shell/environment_text.h"

#include <nlohmann/json.hpp>

#include "cli/shell/exit_code.h"
#include "cli/shell/shell_words.h"
#include "cli/shell/suggestion.h"

namespace cupool::cli {

namespace {

// The value of LD_PRELOAD is left to the shell, so that the lines fit any shell that reads them.
std::string posix_text(const PreloadVariables& variables) {
  std::string text =
      "export LD_PRELOAD=" + shell_word(variables.library) + "\"${LD_PRELOAD:+:$LD_PRELOAD}\"\n";
  for (const auto& [name, value] : variables.settings) {
    text += "export " + name + "=" + shell_word(value) + "\n";
  }
  return text;
}

std::string fish_text(const PreloadVariables& variables) {
  std::string text = "set -gx LD_PRELOAD (string join : -- " + fish_word(variables.library) +
                     " (string split -n : -- \"$LD_PRELOAD\"))\n";
  for (const auto& [name, value] : variables.settings) {
    text += "set -gx " + name + " " + fish_word(value) + "\n";
  }
  return text;
}

// csh has no word for "LD_PRELOAD, if it is set" that fits on one line, so the present value is
// written out.
std::string csh_text(const PreloadVariables& variables) {
  std::string text = "setenv LD_PRELOAD " + shell_word(variables.preload) + ";\n";
  for (const auto& [name, value] : variables.settings) {
    if (value.find('\n') != std::string::npos) {
      throw UsageError("csh takes no line end in a value: " + name);
    }
    text += "setenv " + name + " " + shell_word(value) + ";\n";
  }
  return text;
}

std::string docker_text(const PreloadVariables& variables) {
  std::string text = "-e " + shell_word("LD_PRELOAD=" + variables.library);
  for (const auto& [name, value] : variables.settings) {
    text += " -e " + shell_word(name + "=" + value);
  }
  return text + " -v " + shell_word(variables.library + ":" + variables.library + ":ro") + "\n";
}

// A JSON string is a YAML string.
std::string yaml_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw UsageError("a manifest takes no value that is not UTF-8");
  }
}

// In values of `env`, $(NAME) is expanded and $$ is a dollar.
std::string kubernetes_variable(const std::string& name, const std::string& value) {
  return "  - name: " + name + "\n    value: " + yaml_string(escaped(value, "$", "$")) + "\n";
}

std::string kubernetes_text(const PreloadVariables& variables) {
  const std::string path = yaml_string(variables.library);
  std::string text = "# For a container:\nenv:\n";
  text += kubernetes_variable("LD_PRELOAD", variables.library);
  for (const auto& [name, value] : variables.settings) text += kubernetes_variable(name, value);
  return text + "volumeMounts:\n  - name: cupool\n    mountPath: " + path +
         "\n    readOnly: true\n"
         "# For its pod; the library is installed on every node:\nvolumes:\n  - name: cupool\n"
         "    hostPath:\n      path: " +
         path + "\n      type: File\n";
}

std::string slurm_text(const PreloadVariables& variables) {
  std::string word = "--export=ALL,LD_PRELOAD=" + variables.preload;
  for (const auto& [name, value] : variables.settings) {
    if (value.find_first_of(",'\"\\\n") != std::string::npos) {
      throw UsageError(
          "--export of Slurm takes no comma, quote, backslash or line end in a value: " + name +
          "=" + value + "\nIn the job's script, before srun: eval \"$(cupool env ...)\"");
    }
    word += "," + name + "=" + value;
  }
  return shell_word(word) + "\n";
}

constexpr EnvironmentSyntax kSyntaxes[] = {
    {"sh", false, false, posix_text},     {"bash", false, false, posix_text},
    {"dash", false, false, posix_text},   {"zsh", false, false, posix_text},
    {"fish", false, false, fish_text},    {"csh", false, false, csh_text},
    {"docker", true, false, docker_text}, {"kubernetes", true, true, kubernetes_text},
    {"slurm", false, true, slurm_text},
};

}  // namespace

const EnvironmentSyntax& environment_syntax(const std::string& name) {
  for (const EnvironmentSyntax& syntax : kSyntaxes) {
    if (name == syntax.name) return syntax;
  }
  std::string known;
  for (const std::string& one : environment_syntax_names())
    known += (known.empty() ? "" : ", ") + one;
  throw UsageError("--shell takes " + known + ", not " + name +
                   did_you_mean(name, environment_syntax_names()));
}

std::vector<std::string> environment_syntax_names() {
  std::vector<std::string> names;
  for (const EnvironmentSyntax& syntax : kSyntaxes) names.emplace_back(syntax.name);
  return names;
}

}  // namespace cupool::cli
