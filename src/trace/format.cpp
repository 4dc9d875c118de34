// SPDX-License-Identifier: Apache-2.0
// Sources: rapidsai/rmm, docs of logging_resource_adaptor (columns Thread,Time,Action,Pointer,Size,
// Stream; the order of the rows is the order of the replay); "Trace Event Format" of the Chromium
// project (the array form, whose closing bracket may be missing).
#include "trace/format.h"

#include <time.h>

#include <cstdio>
#include <fstream>
#include <utility>

namespace cupool::trace {

namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kCounterStepNs = 100'000;
constexpr std::size_t kLongestCounter = 160;  // bytes of a counter event

// JSON strings; thread names may contain any bytes.
std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') json += '\\';
    json += byte < ' ' || byte >= 0x7f ? '?' : c;
  }
  return json + "\"";
}

std::string thread_name(int tid) {
  std::ifstream file("/proc/self/task/" + std::to_string(tid) + "/comm");
  std::string name;
  std::getline(file, name);
  return name.empty() ? "thread " + std::to_string(tid) : name;
}

// In front of the names of calls: "page-locked malloc".
const char* prefix_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::page_locked:
      return "page-locked ";
    case MemoryKind::managed:
      return "managed ";
    case MemoryKind::stream_ordered:
      return "stream-ordered ";
    default:
      return "";
  }
}

std::string curve_name(MemoryKind kind, int device) {
  std::string name = std::string("live ") + prefix_of(kind) + "bytes";
  if (device >= 0) name += " of device " + std::to_string(device);
  return name;
}

}  // namespace

Format format_of(const std::string& path) {
  constexpr char extension[] = ".json";
  constexpr std::size_t length = sizeof extension - 1;
  const bool json =
      path.size() > length && path.compare(path.size() - length, length, extension) == 0;
  return json ? Format::chrome_json : Format::rmm_csv;
}

Renderer::Renderer(Format format, std::uint64_t wall_ns, std::uint64_t monotonic_ns, int pid,
                   std::string process)
    : format_(format),
      wall_ns_(wall_ns),
      monotonic_ns_(monotonic_ns),
      pid_(pid),
      process_(std::move(process)) {}

std::string Renderer::header() const {
  if (format_ == Format::rmm_csv) return "Thread,Time,Action,Pointer,Size,Stream\n";
  return "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" + std::to_string(pid_) +
         ",\"args\":{\"name\":" + quoted(process_) + "}}";
}

std::string Renderer::footer() const {
  if (format_ == Format::rmm_csv) return "";
  std::string text;
  for (const auto& [key, curve] : curves_) {
    if (curve.changed_at != curve.counted_at) render_curve(key, curve, &text);
  }
  return text + "\n]\n";
}

std::size_t Renderer::footer_bytes() const {
  return format_ == Format::rmm_csv ? 0 : 3 + curves_.size() * kLongestCounter;
}

void Renderer::render(const Event& event, std::string* out) {
  format_ == Format::rmm_csv ? render_row(event, out) : render_json(event, out);
}

void Renderer::render_row(const Event& event, std::string* out) {
  if (event.action == Action::free_done) return;
  const std::uint64_t wall_ns = wall_ns_ + (event.time_ns - monotonic_ns_);
  if (wall_ns / kSecond != second_) {
    second_ = wall_ns / kSecond;
    const auto seconds = static_cast<time_t>(second_);
    struct tm parts {};
    ::localtime_r(&seconds, &parts);
    char text[16];
    clock_.assign(text, ::strftime(text, sizeof text, "%H:%M:%S", &parts));
  }
  // A replay takes a refused free back by an allocation.
  const char* action = event.action == Action::free               ? "free"
                       : event.action == Action::allocate_failure ? "allocate failure"
                                                                  : "allocate";
  char row[160];
  char pointer[32] = "(nil)";
  if (event.address != 0) {
    std::snprintf(pointer, sizeof pointer, "0x%llx",
                  static_cast<unsigned long long>(event.address));
  }
  const int length =
      std::snprintf(row, sizeof row, "%d,%s.%06llu,%s,%s,%llu,0\n", event.tid, clock_.c_str(),
                    static_cast<unsigned long long>(wall_ns % kSecond / 1000), action, pointer,
                    static_cast<unsigned long long>(event.bytes));
  out->append(row, static_cast<std::size_t>(length));
}

std::string Renderer::microseconds(std::uint64_t time_ns) const {
  const std::uint64_t since = time_ns > monotonic_ns_ ? time_ns - monotonic_ns_ : 0;
  char text[40];
  std::snprintf(text, sizeof text, "%llu.%03u", static_cast<unsigned long long>(since / 1000),
                static_cast<unsigned>(since % 1000));
  return text;
}

void Renderer::name_thread(int tid, std::string* out) {
  if (!named_threads_.emplace(tid, true).second) return;
  *out += ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":" + std::to_string(pid_) +
          ",\"tid\":" + std::to_string(tid) + ",\"args\":{\"name\":" + quoted(thread_name(tid)) +
          "}}";
}

// The live bytes as a counter, limited to a visible resolution: of changes in quick succession the
// last one, once there is a later one.
void Renderer::count(const Event& event, std::string* out) {
  const auto bytes = static_cast<std::int64_t>(event.bytes);
  const CurveKey key{event.kind, event.device};
  Curve& curve = curves_[key];
  const bool is_seen = curve.counted_at == 0 || event.time_ns - curve.counted_at >= kCounterStepNs;
  if (is_seen && curve.changed_at != curve.counted_at) render_curve(key, curve, out);
  curve.live += event.action == Action::free ? -bytes : bytes;
  curve.changed_at = event.time_ns;
  if (!is_seen) return;
  curve.counted_at = event.time_ns;
  render_curve(key, curve, out);
}

void Renderer::render_curve(const CurveKey& key, const Curve& curve, std::string* out) const {
  *out += ",\n{\"name\":\"" + curve_name(key.first, key.second) +
          "\",\"ph\":\"C\",\"pid\":" + std::to_string(pid_) +
          ",\"ts\":" + microseconds(curve.changed_at) +
          ",\"args\":{\"bytes\":" + std::to_string(curve.live) + "}}";
}

void Renderer::render_json(const Event& event, std::string* out) {
  const bool changes = event.action == Action::allocate || event.action == Action::free ||
                       event.action == Action::free_refused;
  if (changes) count(event, out);
  if (event.action == Action::free) return;  // shown by its free_done or free_refused
  name_thread(event.tid, out);
  const char* name = event.action == Action::allocate           ? "malloc"
                     : event.action == Action::allocate_failure ? "malloc failed"
                     : event.action == Action::free_refused     ? "free refused"
                                                                : "free";
  char address[32];
  std::snprintf(address, sizeof address, "0x%llx", static_cast<unsigned long long>(event.address));
  char duration[40];
  std::snprintf(duration, sizeof duration, "%llu.%03u",
                static_cast<unsigned long long>(event.duration_ns / 1000),
                static_cast<unsigned>(event.duration_ns % 1000));
  *out += std::string(",\n{\"name\":\"") + prefix_of(event.kind) + name +
          "\",\"cat\":\"memory\",\"ph\":\"X\",\"pid\":" + std::to_string(pid_) +
          ",\"tid\":" + std::to_string(event.tid) +
          ",\"ts\":" + microseconds(event.time_ns - event.duration_ns) + ",\"dur\":" + duration +
          ",\"args\":{\"bytes\":" + std::to_string(event.bytes) + ",\"address\":\"" + address +
          "\",\"device\":" + std::to_string(event.device) + "}}";
}

}  // namespace cupool::trace
