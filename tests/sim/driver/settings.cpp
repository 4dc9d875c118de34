// SPDX-License-Identifier: Apache-2.0
// The CUPOOL_SIM_* variables: one place that knows their names. A value that cannot be understood
// stops the process, because a test that silently runs with a default proves nothing.
#include "driver/settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef SIM_DRIVER_VERSION
#define SIM_DRIVER_VERSION 13000
#endif

namespace cupool::sim {

namespace {

[[noreturn]] void refuse(const char* name, const char* value) {
  std::fprintf(stderr, "cupool sim: cannot understand %s=%s\n", name, value);
  std::abort();
}

template <typename Parse>
void read(const char* name, Parse parse) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return;
  if (!parse(value)) refuse(name, value);
}

bool parse_count(const char* text, long* out) {
  char* end = nullptr;
  *out = std::strtol(text, &end, 10);
  return end != text && *end == '\0' && *out >= 0;
}

}  // namespace

bool parse_mode(const char* text, Mode* mode) {
  if (std::strcmp(text, "late") == 0) return *mode = Mode::late, true;
  if (std::strcmp(text, "early") == 0) return *mode = Mode::early, true;
  if (std::strcmp(text, "timed") == 0) return *mode = Mode::timed, true;
  return false;
}

bool parse_judge(const char* text, Judge* judge) {
  if (std::strcmp(text, "0") == 0) return *judge = Judge::off, true;
  if (std::strcmp(text, "1") == 0) return *judge = Judge::abort, true;
  if (std::strcmp(text, "report") == 0) return *judge = Judge::report, true;
  return false;
}

bool parse_forgets(const char* text, Forgets* forgets) {
  if (*text == '\0') return *forgets = Forgets::nothing, true;
  if (std::strcmp(text, "non_blocking") == 0) return *forgets = Forgets::non_blocking, true;
  if (std::strcmp(text, "per_thread") == 0) return *forgets = Forgets::per_thread, true;
  if (std::strcmp(text, "destroyed") == 0) return *forgets = Forgets::destroyed, true;
  return false;
}

bool parse_milliseconds(const char* text, uint64_t* out) {
  long n = 0;
  if (!parse_count(text, &n)) return false;
  *out = static_cast<uint64_t>(n);
  return true;
}

size_t parse_bytes(const char* text) {
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  double scale = 1;
  switch (*end) {
    case 'K':
      scale = 1024.0;
      ++end;
      break;
    case 'M':
      scale = 1024.0 * 1024;
      ++end;
      break;
    case 'G':
      scale = 1024.0 * 1024 * 1024;
      ++end;
      break;
    case 'T':
      scale = 1024.0 * 1024 * 1024 * 1024;
      ++end;
      break;
    default:
      break;
  }
  if (end == text || *end != '\0' || number <= 0) return 0;
  return static_cast<size_t>(number * scale);
}

namespace {

bool parse_sizes(const std::string& text, std::vector<size_t>* sizes) {
  sizes->clear();
  for (size_t at = 0, end = 0; end != std::string::npos; at = end + 1) {
    end = text.find(',', at);
    sizes->push_back(parse_bytes(text.substr(at, end - at).c_str()));
    if (sizes->back() == 0) return false;
  }
  return true;
}

}  // namespace

Settings read_settings() {
  Settings s;
  s.driver_version = SIM_DRIVER_VERSION;
  s.pools = SIM_DRIVER_VERSION >= 11020;
  long n = 0;
  read("CUPOOL_SIM_MODE", [&](const char* v) { return parse_mode(v, &s.mode); });
  read("CUPOOL_SIM_JUDGE", [&](const char* v) { return parse_judge(v, &s.judge); });
  read("CUPOOL_SIM_DEVICES", [&](const char* v) {
    if (!parse_count(v, &n) || n > 64) return false;
    s.devices = static_cast<int>(n);
    return true;
  });
  read("CUPOOL_SIM_MEMORY", [&](const char* v) { return parse_sizes(v, &s.memory_bytes); });
  read("CUPOOL_SIM_STREAM_BYTES",
       [&](const char* v) { return (s.stream_bytes = parse_bytes(v)) != 0 || *v == '0'; });
  read("CUPOOL_SIM_PEERS", [&](const char* v) {
    if (!parse_count(v, &n)) return false;
    s.peers = n != 0;
    return true;
  });
  read("CUPOOL_SIM_POOLS", [&](const char* v) {
    if (!parse_count(v, &n)) return false;
    s.pools = s.pools && n != 0;
    return true;
  });
  read("CUPOOL_SIM_POOL_IPC", [&](const char* v) {
    if (std::strcmp(v, "1") == 0) return s.pool_ipc = PoolIpc::yes, true;
    if (std::strcmp(v, "0") == 0) return s.pool_ipc = PoolIpc::no, true;
    return s.pool_ipc = PoolIpc::keeps, std::strcmp(v, "keeps") == 0;
  });
  read("CUPOOL_SIM_LATE_REFUSALS", [&](const char* v) {
    if (!parse_count(v, &n)) return false;
    s.late_refusals = n != 0;
    return true;
  });
  read("CUPOOL_SIM_RECLAIM", [&](const char* v) {
    if (!parse_count(v, &n)) return false;
    s.reclaim = n != 0;
    return true;
  });
  read("CUPOOL_SIM_DRIVER_VERSION", [&](const char* v) {
    if (!parse_count(v, &n)) return false;
    s.driver_version = static_cast<int>(n);
    return true;
  });
  read("CUPOOL_SIM_UNEXPORTED", [&](const char* v) {
    if (!parse_count(v, &n)) return false;
    s.unexported = n != 0;
    return true;
  });
  read("CUPOOL_SIM_GBPS",
       [&](const char* v) { return (s.gigabytes_per_second = std::atof(v)) > 0; });
  read("CUPOOL_SIM_POLLS", [&](const char* v) {
    if (!parse_count(v, &n)) return false;
    s.polls = static_cast<int>(n);
    return true;
  });
  read("CUPOOL_SIM_RETURN_MS", [&](const char* v) { return parse_milliseconds(v, &s.return_ms); });
  read("CUPOOL_SIM_FIRST_POOL_MS",
       [&](const char* v) { return parse_milliseconds(v, &s.first_pool_ms); });
  read("CUPOOL_SIM_PATIENCE_MS",
       [&](const char* v) { return parse_milliseconds(v, &s.patience_ms); });
  read("CUPOOL_SIM_DEADLOCK_MS",
       [&](const char* v) { return parse_milliseconds(v, &s.deadlock_ms); });
  read("CUPOOL_SIM_CALLS", [&](const char* v) { return s.calls_file = v, true; });
  read("CUPOOL_SIM_SHARED", [&](const char* v) { return s.shared_file = v, true; });
  read("CUPOOL_SIM_FAIL", [&](const char* v) { return s.fail = v, true; });
  return s;
}

}  // namespace cupool::sim
