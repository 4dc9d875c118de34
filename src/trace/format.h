// SPDX-License-Identifier: Apache-2.0
// Formats of traces: the table of RMM's logging adaptor, for RMM's replay benchmark, and the JSON
// of chrome://tracing and Perfetto.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "trace/event.h"

namespace cupool::trace {

enum class Format { rmm_csv, chrome_json };

/// The format of a file by its name: `.json` is Chrome's, any other RMM's.
Format format_of(const std::string& path);

/// Renders events ordered by time. Not thread-safe. Throws only std::bad_alloc.
class Renderer {
 public:
  /// `wall_ns` is the wall time (since 1970) of the monotonic time `monotonic_ns`; `process` is the
  /// displayed name of the process.
  Renderer(Format format, std::uint64_t wall_ns, std::uint64_t monotonic_ns, int pid,
           std::string process);

  std::string header() const;
  void render(const Event& event, std::string* out);
  /// The end, with the last value of each curve.
  std::string footer() const;
  /// Bytes that footer() has at most.
  std::size_t footer_bytes() const;

 private:
  void render_row(const Event& event, std::string* out);
  void render_json(const Event& event, std::string* out);
  void name_thread(int tid, std::string* out);
  /// One curve of live bytes.
  struct Curve {
    std::int64_t live = 0;
    std::uint64_t changed_at = 0;  ///< time of the last change
    std::uint64_t counted_at = 0;  ///< time of the last counter event
  };
  using CurveKey = std::pair<MemoryKind, int>;  ///< kind and device
  void count(const Event& event, std::string* out);
  void render_curve(const CurveKey& key, const Curve& curve, std::string* out) const;
  std::string microseconds(std::uint64_t time_ns) const;

  const Format format_;
  const std::uint64_t wall_ns_;
  const std::uint64_t monotonic_ns_;
  const int pid_;
  const std::string process_;
  std::uint64_t second_ = UINT64_MAX;  ///< the second whose clock time is cached
  std::string clock_;
  std::map<int, bool> named_threads_;
  std::map<CurveKey, Curve> curves_;
};

}  // namespace cupool::trace
