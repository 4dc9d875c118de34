// SPDX-License-Identifier: Apache-2.0
// Runs targets without a fuzzer's compiler: over their seeds, and over mutations of these that a
// fixed random generator makes, with bounds of memory and time. An input that fails is left in a
// file.
//   fuzz_inputs --target NAME [--mutations N] [--first SEED]
//   fuzz_inputs --target NAME --write-seeds FOLDER
//   fuzz_inputs --target NAME --input FILE
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "target.h"

namespace {

constexpr std::size_t kLongestInput = 64 * 1024;
constexpr rlim_t kMostMemory = rlim_t{2} << 30;
constexpr int kLongestSeconds = 10;  // of one input

std::string input;        // the one that runs
std::string failed_name;  // of the file for it

class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, std::uint64_t first)
      : seeds_(std::move(seeds)), random_(first) {}

  std::string next() {
    std::string text = seeds_[below(seeds_.size())];
    for (std::size_t steps = 1 + below(6); steps > 0; --steps) change(&text);
    if (text.size() > kLongestInput) text.resize(kLongestInput);
    return text;
  }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  void change(std::string* text) {
    const std::size_t at = below(text->size() + 1);
    const std::size_t length = std::min(text->size() - at, 1 + below(below(8) == 0 ? 4096 : 16));
    switch (below(9)) {
      case 0:
        if (at < text->size()) (*text)[at] = static_cast<char>((*text)[at] ^ (1 << below(8)));
        break;
      case 1:
        text->replace(at, std::min<std::size_t>(1, text->size() - at), 1,
                      "\0\xff\x7f\n\",=[{/%@-0"[below(14)]);
        break;
      case 2:
        text->erase(at, length);
        break;
      case 3:
        text->insert(at, std::string(1 + below(300), static_cast<char>(random_())));
        break;
      case 4:
        text->insert(below(text->size() + 1), text->substr(at, length));
        break;
      case 5:
        change_integer(text, at);
        break;
      case 6:
      case 7:
        change_number(text, at);
        break;
      default: {
        const std::string& other = seeds_[below(seeds_.size())];
        const std::size_t from = below(other.size() + 1);
        text->replace(at, length, other, from, 1 + below(400));
      }
    }
  }

  // A binary number, at a place where one may stand.
  void change_integer(std::string* text, std::size_t at) {
    constexpr std::uint64_t kNumbers[] = {0,
                                          1,
                                          2,
                                          0x7fffffff,
                                          0x80000000,
                                          0xffffffff,
                                          UINT64_MAX,
                                          UINT64_MAX >> 1,
                                          std::uint64_t{1} << 63,
                                          4096,
                                          65535};
    const std::uint64_t number =
        below(3) == 0 ? text->size() - below(9) : kNumbers[below(std::size(kNumbers))];
    const std::size_t bytes = std::size_t{1} << below(4);
    at -= at % bytes;
    if (at + bytes <= text->size()) std::memcpy(&(*text)[at], &number, bytes);
  }

  // The next number in digits.
  void change_number(std::string* text, std::size_t at) {
    constexpr const char* kNumbers[] = {"0",
                                        "1",
                                        "-1",
                                        "18446744073709551615",
                                        "18446744073709551616",
                                        "9223372036854775808",
                                        "4294967296",
                                        "1e308",
                                        "-0.5",
                                        "1e-9",
                                        "null",
                                        "\"7\"",
                                        "[]",
                                        "{}",
                                        "true",
                                        ""};
    at = text->find_first_of("0123456789", at);
    if (at == std::string::npos) return;
    const std::size_t end = std::min(text->find_first_not_of("0123456789", at), text->size());
    text->replace(at, end - at, kNumbers[below(std::size(kNumbers))]);
  }

  const std::vector<std::string> seeds_;
  std::mt19937_64 random_;
};

// Async-signal-safe, apart from being in a process that ends.
void leave_input(int number) {
  const int file = open(failed_name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file >= 0 && write(file, input.data(), input.size()) >= 0) {
    const char* const why = number == SIGALRM ? "takes too long" : "fails";
    char line[400];
    const int length =
        std::snprintf(line, sizeof line, "an input %s: see %s\n", why, failed_name.c_str());
    if (write(STDERR_FILENO, line, static_cast<std::size_t>(length)) < 0) _exit(3);
  }
  signal(number, SIG_DFL);
  raise(number);
}

void bound() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlimit memory{kMostMemory, kMostMemory};  // (a sanitizer's own map is larger)
  setrlimit(RLIMIT_AS, &memory);
#endif
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM})
    signal(number, leave_input);
}

void run(const fuzz::Target& target, std::string text) {
  input = std::move(text);
  const itimerval limit{{0, 0}, {kLongestSeconds, 0}};
  setitimer(ITIMER_REAL, &limit, nullptr);
  target.run(input);
}

std::string option(int count, char** words, const std::string& name) {
  for (int i = 1; i + 1 < count; ++i) {
    if (words[i] == name) return words[i + 1];
  }
  return "";
}

}  // namespace

int main(int count, char** words) {
  const fuzz::Target* const target = fuzz::target_of(option(count, words, "--target"));
  if (target == nullptr) {
    std::fprintf(stderr, "--target is one of\n");
    for (const fuzz::Target& each : fuzz::targets())
      std::fprintf(stderr, "  %-14s %s\n", each.name, each.inputs);
    return 2;
  }
  const std::vector<std::string> seeds = target->seeds();
  const std::string folder = option(count, words, "--write-seeds");
  if (!folder.empty()) {
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      std::ofstream(folder + "/seed" + std::to_string(i), std::ios::binary) << seeds[i];
    }
    return 0;
  }
  failed_name = std::string("fuzz-") + target->name + ".input";
  bound();
  const std::string file = option(count, words, "--input");
  if (!file.empty()) {
    std::ifstream stream(file, std::ios::binary);
    run(*target, {std::istreambuf_iterator<char>(stream), {}});
    return 0;
  }
  for (const std::string& seed : seeds) run(*target, seed);
  const std::string mutations = option(count, words, "--mutations");
  const std::string first = option(count, words, "--first");
  Mutator mutator(seeds, first.empty() ? 1 : std::stoull(first));
  const std::uint64_t total = mutations.empty() ? 1000 : std::stoull(mutations);
  for (std::uint64_t i = 0; i < total; ++i) run(*target, mutator.next());
  std::printf("%s: %zu seeds and %llu mutations\n", target->name, seeds.size(),
              static_cast<unsigned long long>(total));
  return 0;
}
