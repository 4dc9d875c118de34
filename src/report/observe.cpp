// SPDX-License-Identifier: Apache-2.0
// The conclusion from an observed run, in figures and in words, with every assumption.
#include "report/observe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report/derived.h"
#include "util/text.h"

namespace cupool::report {

using stats::Observation;
using util::format_bytes;
using util::format_count;
using util::format_duration_ns;

namespace {

// Thresholds of a thread's saving, as a share of the run: worth it, or worth a little.
constexpr double kWorthIt = 0.05;
constexpr double kALittle = 0.01;
// A saving that nobody notices. Where frees stall, a longer run may save more.
constexpr std::uint64_t kLeastSavedNs = 1'000'000;
// Above this share of the devices' memory, the report warns of the limit.
constexpr double kNearLimit = 0.9;

std::uint64_t ran_ns(const stats::Snapshot& snapshot) {
  return snapshot.end_wall_ns - std::min(snapshot.process.start_wall_ns, snapshot.end_wall_ns);
}

// `every_free_waits`: frees that found the GPU busy remain as they are.
std::uint64_t remaining_ns(const Observation& seen, bool every_free_waits) {
  const std::uint64_t fresh = std::min(seen.fresh_blocks, seen.mallocs);
  const std::uint64_t mean_malloc = seen.mallocs == 0 ? 0 : seen.malloc_ns / seen.mallocs;
  return fresh * mean_malloc + (seen.mallocs - fresh + seen.frees) * kAssumedCallNs +
         (every_free_waits ? seen.busy_free_ns : 0);
}

bool is_without_stall(const Observation& seen) {
  return seen.frees > 0 && seen.busy_frees == 0 && seen.unknown_frees == 0;
}

std::string verdict_of(const Conclusion& found, const Observation& seen, std::uint64_t ran) {
  if (found.worth == Worth::nothing_seen) {
    return "Nothing to observe: the program allocated no memory that cupool would serve";
  }
  const std::string figures = format_duration_ns(found.saved_ns) + " of " +
                              format_duration_ns(found.legacy_ns) + " in malloc and free" +
                              (seen.threads > 1 ? " (all threads)" : "") + ", in a run of " +
                              format_duration_ns(ran);
  return std::string(words_of(found.worth, is_without_stall(seen))) +
         ": pooling would save at most " + figures;
}

std::string stall_sentence(const Observation& seen) {
  const std::uint64_t asked = seen.frees - std::min(seen.frees, seen.unknown_frees);
  std::string text;
  if (asked > 0) {
    text = seen.busy_frees == 0
               ? "None of " + format_count(asked) + " frees found the GPU busy: there is no stall."
               : format_count(seen.busy_frees) + " of " + format_count(asked) +
                     " frees began while the GPU was busy and took " +
                     format_duration_ns(seen.busy_free_ns) + ": these are stalls.";
    if (seen.idle_free_time.count > 0) {
      text += " With an idle GPU the median free took " +
              format_duration_ns(seen.idle_free_time.p50_ns) + ".";
    }
  }
  if (seen.unknown_frees > 0) {
    text +=
        (text.empty() ? "" : " ") + ("For " + format_count(seen.unknown_frees)) +
        " frees this is unknown: a stream was capturing, or the driver is older than CUDA 12.5.";
  }
  return text;
}

// What keeps a free, or what keeps something else in its place, under cupool.
std::string waits_assumed(const stats::ProcessInfo& process) {
  if (every_free_waits(process)) {
    return "a free that finds the GPU busy waits as now, since the free mode is sync.";
  }
  const std::string later = " A wait avoided in a free may occur in a later call.";
  const std::string& mode =
      process.mode_reason ? process.mode_reason->free_mode : process.requested_free_mode;
  if (mode == "ordered") return "no free waits." + later;
  const std::string copies =
      " Frees still wait for pending copies to or from the host, callbacks and graphs.";
  const bool by_messages = process.mode_reason && !process.mode_reason->library.empty();
  return by_messages ? "no free waits: the program's next call of MPI does, for work that was "
                       "pending at the free." +
                           copies
                     : "no free waits. With CUPOOL_FREE_MODE=auto, frees still wait for pending "
                       "copies to or from the host." +
                           later;
}

std::string memory_sentence(const Observation& seen) {
  std::string text = "The program had at most " + format_bytes(seen.live_peak_bytes) +
                     " live. Pooling would hold at least " + format_bytes(seen.rounded_peak_bytes) +
                     " (its size classes) and at most about " + format_bytes(seen.pool_most_bytes) +
                     " (idle and pending blocks included)";
  if (seen.device_total_bytes > 0) text += " of " + format_bytes(seen.device_total_bytes);
  if (static_cast<double>(seen.pool_most_bytes) >
      kNearLimit * static_cast<double>(seen.device_total_bytes)) {
    text += ": near the limit, so idle blocks would be given back often";
  }
  return text + ".";
}

}  // namespace

const char* text_of(Worth worth) noexcept {
  switch (worth) {
    case Worth::yes:
      return "yes";
    case Worth::little:
      return "little";
    case Worth::no:
      return "no";
    default:
      return "nothing_seen";
  }
}

Worth worth_of(const Saving& saving) noexcept {
  if (saving.no_stall && saving.saved_ns < kLeastSavedNs) return Worth::no;
  return saving.share >= kWorthIt   ? Worth::yes
         : saving.share >= kALittle ? Worth::little
                                    : Worth::no;
}

const char* words_of(Worth worth, bool no_stall) noexcept {
  return worth == Worth::yes      ? "Worth trying"
         : worth == Worth::little ? "Little to gain"
         : no_stall               ? "Nothing to gain"
                                  : "Not worth it";
}

const char* advice_of(Worth worth, bool no_stall) noexcept {
  if (worth == Worth::no && no_stall) {
    return "No free waits for the GPU, and the calls themselves cost next to nothing: cupool would "
           "not make this program faster. A profiler shows where its time goes.";
  }
  if (worth == Worth::no) {
    return "What cupool could save is too small a part of this run to matter. A profiler shows "
           "where "
           "its time goes; a longer run or a larger input may have more to save.";
  }
  return no_stall
             ? "No free waits for the GPU: all of the saving is in the calls themselves. cupool "
               "compare measures it."
             : "cupool compare measures the real saving.";
}

Conclusion conclude(const stats::Snapshot& snapshot) {
  Conclusion found;
  const Observation& seen = *snapshot.observation;
  const std::uint64_t ran = ran_ns(snapshot);
  found.legacy_ns = seen.malloc_ns + seen.free_ns;
  found.remaining_ns =
      std::min(remaining_ns(seen, every_free_waits(snapshot.process)), found.legacy_ns);
  found.saved_ns = found.legacy_ns - found.remaining_ns;
  if (seen.mallocs > 0 && ran > 0) {
    const auto threads = static_cast<double>(std::max<std::uint64_t>(seen.threads, 1));
    found.share = static_cast<double>(found.saved_ns) / threads / static_cast<double>(ran);
    const auto saved = static_cast<double>(found.saved_ns) / threads;
    found.worth =
        worth_of({static_cast<std::uint64_t>(saved), found.share, is_without_stall(seen)});
  }
  found.verdict = verdict_of(found, seen, ran);
  if (found.worth == Worth::nothing_seen) return found;
  found.sentences.push_back(
      format_count(seen.mallocs) + " allocations took " + format_duration_ns(seen.malloc_ns) +
      ", " + format_count(seen.frees) + " frees " + format_duration_ns(seen.free_ns) + ", by " +
      format_count(seen.threads) + (seen.threads == 1 ? " thread." : " threads."));
  found.sentences.push_back(stall_sentence(seen));
  found.sentences.push_back(memory_sentence(seen));
  if (modes_differ(snapshot.process)) {
    found.sentences.push_back(modes_in_words(snapshot.process) + ".");
  }
  found.sentences.emplace_back(advice_of(found.worth, is_without_stall(seen)));
  const std::uint64_t fresh = std::min(seen.fresh_blocks, seen.mallocs);
  found.assumptions = {
      "a call that cupool serves from a cache takes " + format_duration_ns(kAssumedCallNs) + ".",
      format_count(fresh) + (fresh == 1
                                 ? " allocation takes fresh memory and costs what it costs now."
                                 : " allocations take fresh memory and cost what they cost now."),
      waits_assumed(snapshot.process) +
          " The saving is an upper bound; cupool compare measures it.",
  };
  return found;
}

nlohmann::ordered_json observe_json(const stats::Snapshot& snapshot) {
  const Observation& seen = *snapshot.observation;
  const Conclusion found = conclude(snapshot);
  nlohmann::ordered_json json;
  json["worth_it"] = text_of(found.worth);
  json["verdict"] = found.verdict;
  json["sentences"] = found.sentences;
  json["assumptions"] = found.assumptions;
  json["assumed_call_ns"] = kAssumedCallNs;
  json["threads"] = seen.threads;
  json["malloc_calls_total"] = seen.mallocs;
  json["malloc_ns_total"] = seen.malloc_ns;
  json["free_calls_total"] = seen.frees;
  json["free_ns_total"] = seen.free_ns;
  json["free_busy_calls_total"] = seen.busy_frees;
  json["free_busy_ns_total"] = seen.busy_free_ns;
  json["free_unknown_calls_total"] = seen.unknown_frees;
  json["free_busy_p50_ns"] = seen.busy_free_time.p50_ns;
  json["free_busy_p99_ns"] = seen.busy_free_time.p99_ns;
  json["free_idle_p50_ns"] = seen.idle_free_time.p50_ns;
  json["free_idle_p99_ns"] = seen.idle_free_time.p99_ns;
  json["fresh_blocks"] = seen.fresh_blocks;
  json["live_peak_bytes"] = seen.live_peak_bytes;
  json["rounded_peak_bytes"] = seen.rounded_peak_bytes;
  json["pool_most_bytes"] = seen.pool_most_bytes;
  json["legacy_ns"] = found.legacy_ns;
  json["remaining_ns"] = found.remaining_ns;
  json["saved_at_most_ns"] = found.saved_ns;
  json["saved_share_of_run"] = found.share;
  return json;
}

Verdict observed_verdict(const stats::Snapshot& snapshot) {
  const Observation& seen = *snapshot.observation;
  const Conclusion found = conclude(snapshot);
  Verdict verdict;
  verdict.time = found.verdict;
  verdict.memory = "the program had at most " + format_bytes(seen.live_peak_bytes) +
                   " live; cupool would hold " + format_bytes(seen.rounded_peak_bytes) +
                   " to about " + format_bytes(seen.pool_most_bytes);
  const bool helps = found.worth == Worth::yes || found.worth == Worth::little;
  verdict.next = helps ? "cupool compare ./program measures the real saving"
                       : "nothing to do; a profiler shows where the time goes";
  return verdict;
}

std::string observe_text(const stats::Snapshot& snapshot) {
  const Conclusion found = conclude(snapshot);
  std::string text = "  Observed: nothing was changed.\n";
  for (const std::string& sentence : found.sentences) text += wrapped("  ", sentence);
  for (const std::string& assumption : found.assumptions) {
    text += wrapped("  Assumed: ", assumption);
  }
  return text;
}

}  // namespace cupool::report
