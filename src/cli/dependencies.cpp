// The loader is started by its own path and told to list: no code of the program or of a library
// runs.
#include "cli/dependencies.h"

#include <sstream>

#include "util/text.h"

namespace cupool::cli {

std::vector<Dependency> parse_dependencies(const std::string& output) {
  std::vector<Dependency> libraries;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    // "name => path (0x...)", "name => not found", or "path (0x...)".
    const std::string text(util::trim(line));
    const std::size_t arrow = text.find(" => ");
    const std::size_t address = text.rfind(" (0x");
    if (arrow == std::string::npos && address == std::string::npos) continue;
    Dependency library;
    if (arrow == std::string::npos) {
      library.path = text.substr(0, address);
      library.name = util::base_name(library.path);
      if (library.path[0] != '/') library.path.clear();
      if (library.path.empty()) continue;  // the kernel's vdso
    } else {
      library.name = text.substr(0, arrow);
      library.name = util::base_name(library.name);
      if (address != std::string::npos && address > arrow + 4) {
        library.path = text.substr(arrow + 4, address - arrow - 4);
      }
    }
    libraries.push_back(library);
  }
  return libraries;
}

bool is_glibc_loader(const std::string& loader) {
  const std::string name = util::base_name(loader);
  return name.compare(0, 8, "ld-linux") == 0 || name.compare(0, 4, "ld64") == 0;
}

std::vector<Dependency> list_dependencies(const std::string& loader, const std::string& program,
                                          const Environment& environment) {
  ChildStart start;
  start.argv = {loader, program};
  start.environment = environment;
  // As ldd does it: goes on behind a library that is missing, where --list ends.
  start.environment.set("LD_TRACE_LOADED_OBJECTS", "1");
  return parse_dependencies(run_captured(start).standard_output);
}

TriedLoad try_load(const std::string& loader, const std::string& program,
                   const Environment& environment) {
  ChildStart start;
  start.argv = {loader, "--list", program};
  start.environment = environment;
  const CapturedEnd end = run_captured(start);
  TriedLoad load;
  load.tried = end.end.start_code == 0 && end.end.signal == 0;
  load.libraries = parse_dependencies(end.standard_output);
  load.messages = std::string(util::trim(end.standard_error));
  return load;
}

}  // namespace cupool::cli
