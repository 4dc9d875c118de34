// SPDX-License-Identifier: Apache-2.0
// A forked child queries the driver and writes JSON into a pipe. cuda.h gives the functions' types;
// nothing is linked.
#include "cli/doctor/driver_probe.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>

#include "util/clock.h"

namespace cupool::cli {

namespace {

using Json = nlohmann::json;

// Calls libcuda's functions by their exported names.
class Driver {
 public:
  Driver() : handle_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) message_ = dlerror();
  }

  const std::string& message() const { return message_; }
  bool loaded() const { return handle_ != nullptr; }
  bool has(const char* name) const { return dlsym(handle_, name) != nullptr; }

  template <typename... Types, typename... Arguments>
  CUresult call(CUresult (*)(Types...), const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<CUresult (*)(Types...)>(dlsym(handle_, name));
    return function == nullptr ? CUDA_ERROR_NOT_FOUND : function(arguments...);
  }

 private:
  void* handle_;  // never closed: the process ends after the query
  std::string message_;
};

// The type comes from the declaration, the exported name from cuda.h's macro.
#define CUPOOL_TEXT_OF(name) #name
#define CUPOOL_ASK(driver, name, ...) \
  (driver).call(static_cast<decltype(&(name))>(nullptr), CUPOOL_TEXT_OF(name), __VA_ARGS__)

int attribute(const Driver& driver, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  const CUresult result = CUPOOL_ASK(driver, cuDeviceGetAttribute, &value, which, device);
  return result == CUDA_SUCCESS ? value : 0;
}

Json ask_device(const Driver& driver, int ordinal) {
  CUdevice device = 0;
  char name[256] = "";
  std::size_t memory = 0;
  CUPOOL_ASK(driver, cuDeviceGet, &device, ordinal);
  CUPOOL_ASK(driver, cuDeviceGetName, name, static_cast<int>(sizeof name - 1), device);
  CUPOOL_ASK(driver, cuDeviceTotalMem, &memory, device);
  const int handles = attribute(driver, device, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
  return {{"name", name},
          {"memory", memory},
          {"major", attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)},
          {"minor", attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)},
          {"pools", attribute(driver, device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) != 0},
          {"handles", (handles & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0}};
}

std::string error_text(const Driver& driver, CUresult error) {
  const char* name = nullptr;
  const char* text = nullptr;
  CUPOOL_ASK(driver, cuGetErrorName, error, &name);
  CUPOOL_ASK(driver, cuGetErrorString, error, &text);
  std::string message = name != nullptr ? name : "error " + std::to_string(error);
  if (text != nullptr && message != text) message += ": " + std::string(text);
  return message;
}

// The child's whole query.
Json ask() {
  const Driver driver;
  if (!driver.loaded()) return {{"state", "absent"}, {"message", driver.message()}};
  const CUresult initialised = CUPOOL_ASK(driver, cuInit, 0u);
  int version = 0;
  CUPOOL_ASK(driver, cuDriverGetVersion, &version);
  Json answer = {{"state", "answered"},
                 {"version", version},
                 {"context_events", version >= 12050 && driver.has("cuCtxRecordEvent")},
                 {"devices", Json::array()}};
  int count = 0;
  CUresult result = initialised;
  if (result == CUDA_SUCCESS) result = CUPOOL_ASK(driver, cuDeviceGetCount, &count);
  if (result == CUDA_SUCCESS && count == 0) result = CUDA_ERROR_NO_DEVICE;
  if (result != CUDA_SUCCESS) {
    answer["state"] = "refused";
    answer["error"] = static_cast<int>(result);
    answer["message"] = error_text(driver, result);
    return answer;
  }
  for (int i = 0; i < count; ++i) answer["devices"].push_back(ask_device(driver, i));
  return answer;
}

[[noreturn]] void answer_in_child(int pipe_end) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);  // a crash is reported; no core file
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string text;
  try {
    text = ask().dump(-1, ' ', false, Json::error_handler_t::replace);
  } catch (const std::exception& error) {
    _exit(1);
  }
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(pipe_end, text.data() + done, text.size() - done);
    if (written <= 0) _exit(1);
    done += static_cast<std::size_t>(written);
  }
  _exit(0);  // skips exit handlers: a broken driver's may hang
}

// Reads the pipe to its end. Returns false if that takes longer than the limit.
bool read_answer(int pipe_end, int limit_seconds, std::string* text) {
  const std::uint64_t deadline =
      util::now_ns() + static_cast<std::uint64_t>(limit_seconds) * 1'000'000'000u;
  for (;;) {
    const std::uint64_t now = util::now_ns();
    if (now >= deadline) return false;
    pollfd polled{pipe_end, POLLIN, 0};
    const int ready = poll(&polled, 1, static_cast<int>((deadline - now) / 1'000'000u) + 1);
    if (ready <= 0) continue;
    char buffer[4096];
    const ssize_t got = read(pipe_end, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    text->append(buffer, static_cast<std::size_t>(got));
  }
}

ProbedDriver parse_answer(const std::string& text) {
  ProbedDriver driver;
  const Json answer = Json::parse(text);
  const std::string state = answer.at("state");
  driver.message = answer.value("message", "");
  driver.error = answer.value("error", 0);
  driver.version = answer.value("version", 0);
  driver.context_events = answer.value("context_events", false);
  driver.state = state == "answered"  ? ProbedDriver::State::answered
                 : state == "refused" ? ProbedDriver::State::refused
                                      : ProbedDriver::State::absent;
  for (const Json& device : answer.value("devices", Json::array())) {
    driver.devices.push_back({device.at("name"), device.at("memory"), device.at("major"),
                              device.at("minor"), device.at("pools"), device.at("handles")});
  }
  return driver;
}

}  // namespace

ProbedDriver probe_driver(int limit_seconds) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    answer_in_child(ends[1]);
  }
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    throw std::system_error(errno, std::generic_category(), "fork");
  }
  std::string text;
  const bool in_time = read_answer(ends[0], limit_seconds, &text);
  close(ends[0]);
  if (!in_time) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  ProbedDriver driver;
  if (!in_time) {
    driver.state = ProbedDriver::State::silent;
    driver.message = "no answer in " + std::to_string(limit_seconds) + " s";
  } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    driver.state = ProbedDriver::State::crashed;
    driver.message = WIFSIGNALED(status)
                         ? "crashed with signal " + std::to_string(WTERMSIG(status))
                         : "exited with code " + std::to_string(WEXITSTATUS(status));
  } else {
    driver = parse_answer(text);
  }
  return driver;
}

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace cupool::cli
