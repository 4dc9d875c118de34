// See files.h.
#include "cli/files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "cli/command.h"
#include "cli/report_text.h"

namespace cupool::cli {

std::vector<Report> read_reports(const std::vector<std::string>& files) {
  std::vector<Report> reports;
  try {
    for (const std::string& file : files) reports.push_back(read_report(file));
  } catch (const ReportError& error) {
    throw UsageError(error.what());
  }
  return reports;
}

bool write_text(const std::string& file, const std::string& text) {
  if (file.empty() || file == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return true;
  }
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  if (stream) return true;
  std::fprintf(stderr, "cupool: cannot write %s: %s\n", file.c_str(), std::strerror(errno));
  return false;
}

}  // namespace cupool::cli
