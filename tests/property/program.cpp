// SPDX-License-Identifier: Apache-2.0
// The text of programs.
#include "program.h"

#include <fstream>
#include <stdexcept>

#include "generator.h"

namespace cupool::property {
namespace {

std::string filled(const Operation& op) {
  std::string text = kRows[static_cast<std::size_t>(op.kind)].text;
  const auto put = [&](const char* name, std::uint64_t value) {
    const std::size_t at = text.find(name);
    if (at != std::string::npos) text.replace(at, std::string(name).size(), std::to_string(value));
  };
  put("{a}", op.a);
  put("{b}", op.b);
  put("{c}", op.c);
  put("{size}", op.size);
  return text;
}

}  // namespace

Program generate(std::uint64_t seed, const Machinery& machinery) {
  return Generator(seed, machinery).make(seed);
}

std::string readable(const Program& program) {
  std::string text = "program of seed " + std::to_string(program.seed) + ", " +
                     (program.concurrent ? "threads running freely" : "one operation at a time") +
                     ", device " + program.device_mode + ", polls " +
                     std::to_string(program.polls) + " (stream 0: legacy, 1: per-thread default)\n";
  for (const Operation& op : program.operations) {
    text += "  thread " + std::to_string(op.thread) + ": " + filled(op) + "\n";
  }
  return text;
}

void save(const Program& program, const std::string& path) {
  std::ofstream file(path);
  file << program.seed << ' ' << program.concurrent << ' ' << program.device_mode << ' '
       << program.polls << ' ' << program.operations.size() << '\n';
  for (const Operation& op : program.operations) {
    file << static_cast<unsigned>(op.kind) << ' ' << op.thread << ' ' << op.a << ' ' << op.b << ' '
         << op.c << ' ' << op.size << '\n';
  }
}

Program load(const std::string& path) {
  std::ifstream file(path);
  Program program;
  std::size_t count = 0;
  file >> program.seed >> program.concurrent >> program.device_mode >> program.polls >> count;
  program.operations.resize(count);
  for (Operation& op : program.operations) {
    unsigned kind = 0;
    file >> kind >> op.thread >> op.a >> op.b >> op.c >> op.size;
    op.kind = static_cast<Kind>(kind);
  }
  if (!file) throw std::runtime_error("cannot read the program in " + path);
  return program;
}

}  // namespace cupool::property
