// From peaks and waits to settings. Sizes are rounded up to the step by which the driver grows a
// pool.
#include "cli/tuning.h"

#include <algorithm>
#include <map>

#include "cli/report_story.h"
#include "cli/report_text.h"
#include "report/derived.h"
#include "util/text.h"

namespace cupool::cli {

using util::format_bytes;
using util::format_count;
using util::format_duration_ns;

namespace {

constexpr std::uint64_t kStep = 32ull << 20;

std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + kStep - 1) / kStep * kStep;
}

// The device on which most was needed, and what.
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

Peak highest_peak(const std::vector<Report>& reports) {
  Peak peak;
  for (const Report& report : reports) {
    for (const DeviceReport& device : report.devices) {
      if (!device.pool || device.pool->reserved_high <= peak.reserved) continue;
      peak = {device.pool->reserved_high, device.total_memory,
              place_of(report, device, reports.size() > 1)};
    }
  }
  return peak;
}

// Whether processes of one host reserved more of one device together than there is room for, so
// that each taking its peak at once would be too much. Ordinals may be renumbered by the
// environment; then this errs to the careful side.
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
    tuning->remarks.push_back("No driver pool was used: there is nothing to size.");
    return;
  }
  const std::string seen = "The pool reserved at most " + format_bytes(peak.reserved) +
                           (peak.total > 0 ? " of " + format_bytes(peak.total) : "") + ", on " +
                           peak.where;
  const std::uint64_t with_room = rounded(peak.reserved + peak.reserved / 4);
  const std::uint64_t threshold =
      peak.total > 0 ? std::max(rounded(peak.reserved), std::min(with_room, peak.total))
                     : with_room;
  tuning->settings.push_back(
      {"CUPOOL_RELEASE_THRESHOLD", report::option_value(threshold),
       seen +
           ": with a quarter more it keeps what comes back in the next step, and gives back what "
           "only one burst needed."});
  if (peak.total > 0 && peak.reserved > peak.total / 10 * 9) {
    tuning->remarks.push_back(seen + ": too near the limit to reserve it at the start.");
  } else if (shared_device_is_full(reports)) {
    tuning->remarks.push_back(
        "Several processes of one host use the same device, and their peaks together are more than "
        "nine tenths of it: reserving them at the start could leave one without.");
  } else {
    std::uint64_t growths = 0;
    for (const Report& report : reports) growths += report.counter("growth_total");
    tuning->settings.push_back(
        {"CUPOOL_PREALLOC", report::option_value(rounded(peak.reserved)),
         format_count(growths) +
             " times memory was taken fresh; the pool's whole peak at the start "
             "moves its growing out of the run."});
  }
}

void tune_pending(const std::vector<Report>& reports, Tuning* tuning) {
  std::uint64_t waits = 0;
  std::uint64_t wait_ns = 0;
  std::uint64_t retired = 0;
  std::uint64_t total = 0;
  for (const Report& report : reports) {
    waits += report.counter("free_waits_pending_limit_total");
    wait_ns += report.counter("free_wait_ns_total");
    for (const DeviceReport& device : report.devices) {
      if (device.counter("free_waits_pending_limit_total") == 0) continue;
      retired = std::max(retired, bytes_of(device.gauge("retired_bytes").peak));
      total = std::max(total, device.total_memory);
    }
  }
  if (waits == 0) return;
  std::uint64_t pending = rounded(2 * retired);
  if (total > 0) pending = std::min(pending, std::max(total / 8 / kStep * kStep, kStep));
  if (pending <= retired) {
    tuning->remarks.push_back(format_count(waits) +
                              " frees waited for CUPOOL_MAX_PENDING, which is an eighth of the "
                              "device or more already.");
    return;
  }
  tuning->settings.push_back({"CUPOOL_MAX_PENDING", report::option_value(pending),
                              format_count(waits) + " frees waited for this limit (all waits: " +
                                  format_duration_ns(wait_ns) + "), with " + format_bytes(retired) +
                                  " pending at most: twice that, and no more than an eighth of the "
                                  "device."});
}

bool has_setting(const Report& report, const std::string& name) {
  return std::any_of(report.settings.begin(), report.settings.end(),
                     [&](const SettingReport& row) { return row.name == name && !row.is_default; });
}

void add_remarks(const std::vector<Report>& reports, Tuning* tuning) {
  std::uint64_t copies = 0;
  std::uint64_t managed = 0;
  std::uint64_t rescues = 0;
  bool agents = false;
  bool sync = false;
  for (const Report& report : reports) {
    copies += report.counter("free_waits_host_copy_total");
    managed +=
        report.counter("free_waits_managed_total") + report.counter("free_waits_zero_copy_total");
    rescues += report.counter("oom_rescues_total");
    agents = agents || (report.backend == "malloc" && !has_setting(report, "CUPOOL_BACKEND"));
    sync = sync || (report.free_mode == "sync" && has_setting(report, "CUPOOL_FREE_MODE"));
  }
  if (agents) {
    tuning->remarks.push_back(
        "Memory was plain although that was not asked for: MPI, UCX or the like is in the process, "
        "or the device has no pools. Profile: cupool run --profile mpi.");
  }
  if (sync) {
    tuning->remarks.push_back(
        "CUPOOL_FREE_MODE=sync makes every free wait; auto waits where a "
        "program can tell.");
  }
  if (copies > 0) {
    tuning->remarks.push_back(
        format_count(copies) +
        " frees waited for copies to or from the host. CUPOOL_FREE_MODE="
        "ordered would not; it is right only for programs that never touch a buffer of the host "
        "because a free has returned.");
  }
  if (managed > 0) {
    tuning->remarks.push_back(format_count(managed) +
                              " frees waited because kernels may touch "
                              "managed or zero-copy memory.");
  }
  if (rescues > 0) {
    tuning->remarks.push_back(format_count(rescues) +
                              " times memory ran out and idle memory had to be given back: the "
                              "device is full; CUPOOL_MAX_CACHED below 100% keeps less idle.");
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
