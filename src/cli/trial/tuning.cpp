// SPDX-License-Identifier: Apache-2.0
// Peaks give pool sizes, waits give limits. Sizes are rounded up to the step by which the driver
// grows a pool.
#include "cli/trial/tuning.h"

#include <algorithm>
#include <map>

#include "cli/page/story.h"
#include "cli/page/text.h"
#include "config/types.h"
#include "report/derived.h"
#include "report/verdict.h"
#include "stats/pool_growth.h"
#include "util/text.h"

namespace cupool::cli {

using stats::in_growth_steps;
using util::format_bytes;
using util::format_count;
using util::format_duration_ns;

namespace {

// The device with the highest reserved memory.
struct Peak {
  std::uint64_t reserved = 0;
  std::uint64_t total = 0;
  std::string where;
};

std::string place_of(const Report& report, const DeviceReport& device, bool many) {
  std::string place = "device " + std::to_string(device.ordinal);
  if (many) place += " of " + name_of(report, true);
  return place;
}

// Whether an RDMA library rules out pools: those of a time before it was loaded need no size.
bool is_plain_for_rdma(const Report& report) {
  return report.has_rdma_library() && report.backend == "malloc";
}

Peak highest_peak(const std::vector<Report>& reports) {
  Peak peak;
  for (const Report& report : reports) {
    if (is_plain_for_rdma(report)) continue;
    for (const DeviceReport& device : report.devices) {
      if (!device.pool || device.pool->reserved_high <= peak.reserved) continue;
      peak = {device.pool->reserved_high, device.total_memory,
              place_of(report, device, reports.size() > 1)};
    }
  }
  return peak;
}

// Whether the peaks of a host's processes on one device exceed nine tenths of its memory together.
// Then they must not all reserve their peak at the start. CUDA_VISIBLE_DEVICES may renumber
// devices; the answer then errs on the side of caution.
bool shared_device_is_full(const std::vector<Report>& reports) {
  std::map<std::pair<std::string, int>, std::uint64_t> sums;
  for (const Report& report : reports) {
    for (const DeviceReport& device : report.devices) {
      if (!device.pool || device.total_memory == 0) continue;
      std::uint64_t& sum = sums[{report.host, device.ordinal}];
      sum += device.pool->reserved_high;
      if (sum > device.total_memory / 10 * 9) return true;
    }
  }
  return false;
}

void tune_pool(const std::vector<Report>& reports, Tuning* tuning) {
  const Peak peak = highest_peak(reports);
  if (peak.reserved == 0) {
    // An RDMA library has its own remark.
    if (std::none_of(reports.begin(), reports.end(), is_plain_for_rdma)) {
      tuning->remarks.push_back("No driver pool was used, so there is no pool to size.");
    }
    return;
  }
  const std::string seen = "The pool reserved at most " + format_bytes(peak.reserved) +
                           (peak.total > 0 ? " of " + format_bytes(peak.total) : "") + ", on " +
                           peak.where;
  const std::uint64_t with_room = in_growth_steps(peak.reserved + peak.reserved / 4);
  const std::uint64_t threshold =
      peak.total > 0 ? std::max(in_growth_steps(peak.reserved), std::min(with_room, peak.total))
                     : with_room;
  tuning->settings.push_back({"CUPOOL_RELEASE_THRESHOLD", report::option_value(threshold),
                              seen + ". A quarter more keeps the memory between iterations, and "
                                     "gives the memory of a single burst back to the device."});
  if (peak.total > 0 && peak.reserved > peak.total / 10 * 9) {
    tuning->remarks.push_back(seen +
                              ": too close to the device's memory to reserve it at the start.");
  } else if (shared_device_is_full(reports)) {
    tuning->remarks.push_back(
        "Several processes of one host share a device, and their peaks add up to more than nine "
        "tenths of it. If all reserved their peak at the start, one could run out of memory.");
  } else {
    std::uint64_t growths = 0;
    for (const Report& report : reports) growths += report.counter("growth_total");
    tuning->settings.push_back(
        {"CUPOOL_PREALLOC", report::option_value(in_growth_steps(peak.reserved)),
         "The pool gave fresh memory " + format_count(growths) +
             " times; reserving its peak at the start moves that cost out of the run."});
  }
}

// Whether the limit on pending bytes is one that the library finds, and below its highest. Waits
// for it cost no time, or raise it.
bool may_still_grow(const Report& report, const DeviceReport& device) {
  const auto limit = bytes_of(device.gauge(stats::Gauge::pending_limit_bytes).current);
  const auto is_found = [](const SettingReport& row) {
    return row.name == "CUPOOL_MAX_PENDING" && row.value == "auto";
  };
  return limit < config::LimitOption{}.resolve(device.total_memory) &&
         std::any_of(report.settings.begin(), report.settings.end(), is_found);
}

void tune_pending(const std::vector<Report>& reports, Tuning* tuning) {
  std::uint64_t waits = 0;
  std::uint64_t wait_ns = 0;
  std::uint64_t retired = 0;
  std::uint64_t total = 0;
  bool too_low = false;
  for (const Report& report : reports) {
    if (report.has_rdma_library() && report.free_mode == "sync") continue;  // every free waits
    waits += report.counter("free_waits_pending_limit_total");
    wait_ns += report.counter("free_wait_ns_total");
    for (const DeviceReport& device : report.devices) {
      if (device.counter("free_waits_pending_limit_total") == 0) continue;
      if (may_still_grow(report, device)) continue;
      too_low = true;
      retired = std::max(retired, bytes_of(device.gauge("retired_bytes").peak));
      total = std::max(total, device.total_memory);
    }
  }
  if (!too_low) return;
  const std::uint64_t pending = report::suggested_pending_bytes(retired, total);
  if (pending == 0) {
    tuning->remarks.push_back(format_count(waits) +
                              " frees waited for CUPOOL_MAX_PENDING, which already is an eighth of "
                              "the device or more.");
    return;
  }
  tuning->settings.push_back({"CUPOOL_MAX_PENDING", report::option_value(pending),
                              format_count(waits) + " frees waited for this limit (all waits: " +
                                  format_duration_ns(wait_ns) + "), with " + format_bytes(retired) +
                                  " pending at most. The value is twice that, or an eighth of the "
                                  "device if that is less."});
}

bool has_setting(const Report& report, const std::string& name) {
  return std::any_of(report.settings.begin(), report.settings.end(),
                     [&](const SettingReport& row) { return row.name == name && !row.is_default; });
}

void add_remarks(const std::vector<Report>& reports, Tuning* tuning) {
  std::uint64_t copies = 0;
  std::uint64_t managed = 0;
  std::uint64_t orders = 0;
  std::uint64_t rescues = 0;
  bool agents = false;
  bool sync = false;
  std::string modes;
  for (const Report& report : reports) {
    rescues += report.counter("oom_rescues_total");
    if (report.modes_differ() && modes.empty()) modes = report.mode_reason->text + ".";
    // Other hardware may use the memory: neither shorter waits nor other memory can be advised.
    if (report.has_rdma_library()) continue;
    copies += report.counter("free_waits_host_copy_total");
    managed +=
        report.counter("free_waits_managed_total") + report.counter("free_waits_zero_copy_total");
    orders += report.counter("stream_waits_total");
    agents = agents || (report.backend == "malloc" && !has_setting(report, "CUPOOL_BACKEND"));
    sync = sync || (report.free_mode == "sync" && has_setting(report, "CUPOOL_FREE_MODE"));
  }
  if (!modes.empty()) tuning->remarks.push_back(modes);
  if (agents && modes.empty()) {
    tuning->remarks.push_back(
        "Memory came from cuMemAlloc, not from pools: MPI, UCX or a similar library is in the "
        "process, or the device has no pools. For MPI: cupool run --profile mpi.");
  }
  if (sync) {
    tuning->remarks.push_back(
        "CUPOOL_FREE_MODE=sync makes every free wait; auto waits only where a program could "
        "notice.");
  }
  if (copies > 0) {
    tuning->remarks.push_back(
        format_count(copies) +
        " frees waited for copies to or from the host. CUPOOL_FREE_MODE=ordered avoids these "
        "waits, "
        "but is safe only if the program never relies on a free to complete such a copy.");
  }
  if (orders > 0) {
    tuning->remarks.push_back(
        format_count(orders) +
        " times a stream waited for what its thread had given to another one before a free. "
        "CUPOOL_FREE_MODE=ordered gives the streams their overlap back, but is safe only if the "
        "program orders them itself; cupool compare --free-mode ordered shows the difference.");
  }
  if (managed > 0) {
    tuning->remarks.push_back(format_count(managed) +
                              " frees waited because kernels may touch "
                              "managed or zero-copy memory.");
  }
  if (rescues > 0) {
    tuning->remarks.push_back(format_count(rescues) +
                              " times memory ran out and cupool gave idle memory back: the device "
                              "is full. CUPOOL_MAX_CACHED below 100% keeps less idle memory.");
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Tuning::variables() const {
  std::vector<std::pair<std::string, std::string>> list;
  for (const TunedSetting& setting : settings) list.emplace_back(setting.name, setting.value);
  return list;
}

Tuning tune(const std::vector<Report>& reports) {
  Tuning tuning;
  tune_pool(reports, &tuning);
  tune_pending(reports, &tuning);
  add_remarks(reports, &tuning);
  return tuning;
}

std::string env_file(const Tuning& tuning, const std::vector<Report>& reports) {
  std::string text = "# Settings of cupool for " + printable_text(reports.front().program) +
                     ",\n# made by cupool tune " CUPOOL_VERSION " from " +
                     std::to_string(reports.size()) +
                     (reports.size() == 1 ? " report" : " reports") +
                     ".\n# Use: cupool run --profile FILE ./program\n";
  for (const TunedSetting& setting : tuning.settings) {
    text +=
        "\n# " + printable_text(setting.reason) + "\n" + setting.name + "=" + setting.value + "\n";
  }
  for (const std::string& remark : tuning.remarks) text += "\n# " + printable_text(remark) + "\n";
  return text;
}

}  // namespace cupool::cli
