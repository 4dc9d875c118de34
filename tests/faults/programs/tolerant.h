// SPDX-License-Identifier: Apache-2.0
// What the programs of the fault sweep share: calls that may fail, and a ledger of every block, so
// that a block that is lost or served twice is seen by the program itself. A program goes on after
// an error and prints what it was told, without addresses, times or order of threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "owner.h"
#include "probe.h"

namespace faults {

struct Block {
  uintptr_t address = 0;
  size_t size = 0;
  int value = -1;  // what every byte holds; -1: unknown, a call that fills it failed
};

class Ledger {
 public:
  // Whether the call succeeded; a code that is not 0 is told at the end.
  bool ok(const char* call, int code) {
    if (code == 0) return true;
    const std::lock_guard<std::mutex> lock(mutex_);
    ++errors_[{call, code}];
    return false;
  }

  // A block that an allocation gave: nobody else may have any of it.
  void add(uintptr_t address, size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto next = live_.lower_bound(address);
    if (next != live_.end() && next->first < address + size) ++served_twice_;
    if (next != live_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second > address) ++served_twice_;
    }
    live_[address] = size;
    probe::own(reinterpret_cast<void*>(address), size);
  }

  // Before the free; put_back() if the free fails, which leaves the block with the program.
  void remove(const Block& block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    live_.erase(block.address);
    probe::disown(reinterpret_cast<void*>(block.address), block.size);
  }
  void put_back(const Block& block) {
    add(block.address, block.size);
    const std::lock_guard<std::mutex> lock(mutex_);
    not_freed_.push_back(block);
  }
  // Blocks whose free failed once: the program tries again at its end.
  std::vector<Block> take_not_freed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(not_freed_, {});
  }

  // Pinned memory, to which the driver copies late; used round and round.
  void use_pinned(void* memory, size_t size) {
    pinned_ = static_cast<unsigned char*>(memory);
    pinned_size_ = size;
  }
  // Host memory that copies may still write when a call that should have waited has failed.
  unsigned char* host_bytes(size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (size <= pinned_size_) {
      if (pinned_used_ + size > pinned_size_) pinned_used_ = 0;
      pinned_used_ += size;
      std::memset(pinned_ + pinned_used_ - size, 0, size);
      return pinned_ + pinned_used_ - size;
    }
    host_.push_back(std::make_unique<unsigned char[]>(size));
    return host_.back().get();
  }

  void check(const unsigned char* host, const Block& block) {
    if (block.value < 0) return;
    const uint64_t wrong = probe::count_other_bytes(host, block.size, block.value);
    const std::lock_guard<std::mutex> lock(mutex_);
    wrong_bytes_ += wrong;
  }
  void wrong(const char* what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++wrong_[what];
  }

  int report() const {
    std::printf("wrong_bytes=%" PRIu64 " served_twice=%" PRIu64 "\n", wrong_bytes_, served_twice_);
    for (const auto& entry : wrong_) std::printf("wrong: %s\n", entry.first.c_str());
    for (const auto& error : errors_) {
      std::printf("error: %s = %d x%d\n", error.first.first.c_str(), error.first.second,
                  error.second);
    }
    return wrong_bytes_ == 0 && served_twice_ == 0 && wrong_.empty() ? 0 : probe::kWrongResult;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, int>, int> errors_;
  std::map<std::string, int> wrong_;
  std::map<uintptr_t, size_t> live_;
  std::vector<Block> not_freed_;
  std::vector<std::unique_ptr<unsigned char[]>> host_;
  unsigned char* pinned_ = nullptr;
  size_t pinned_size_ = 0;
  size_t pinned_used_ = 0;
  uint64_t wrong_bytes_ = 0;
  uint64_t served_twice_ = 0;
};

inline Ledger& ledger() {
  static auto* const instance = new Ledger;
  return *instance;
}

}  // namespace faults

// The call, by its name in the report.
#define TRY(function, ...) faults::ledger().ok(#function, static_cast<int>(function(__VA_ARGS__)))
