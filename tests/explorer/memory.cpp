// SPDX-License-Identifier: Apache-2.0
// Which writes a load may return, where a store may go, and what either makes its thread know.
#include "memory.h"

#include <cstdlib>

namespace explorer {

namespace {

constexpr std::uint64_t kFar = std::uint64_t{1} << 40;  // between two writes, so that others fit

}  // namespace

void View::raise(std::size_t location, std::uint64_t key) {
  if (newest.size() <= location) newest.resize(location + 1);
  newest[location] = std::max(newest[location], key);
}

void View::join(const View& other) {
  if (newest.size() < other.newest.size()) newest.resize(other.newest.size());
  for (std::size_t i = 0; i < other.newest.size(); ++i) {
    newest[i] = std::max(newest[i], other.newest[i]);
  }
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other.clock[i]);
}

bool acquires(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}
bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}
bool is_sequential(std::memory_order order) {
  return order == std::memory_order_seq_cst;
}

std::uint64_t Memory::load(MemoryThread& self, Cell& cell, std::memory_order order) {
  const std::uint64_t from = lowest(self, cell, order);
  const Location& place = location(&self, cell);
  const Write& read = place.writes[choose_write(place, from, [](const Write&) { return true; })];
  self.view.raise(cell.index_, read.key);
  self.read_since_spin.push_back(cell.index_);
  see(self, read.view, order);
  if (is_sequential(order)) sequential_.raise(cell.index_, read.key);
  return read.value;
}

void Memory::store(MemoryThread& self, Cell& cell, std::uint64_t value, std::memory_order order) {
  const std::uint64_t from = lowest(self, cell, order);
  const std::size_t behind = choose_write(location(&self, cell), from,
                                          [](const Write& write) { return !write.is_read_by_rmw; });
  insert(self, cell, behind, value, order, nullptr);
}

std::uint64_t Memory::modify(MemoryThread& self, Cell& cell,
                             const std::function<std::uint64_t(std::uint64_t)>& change,
                             std::memory_order order) {
  const std::uint64_t from = lowest(self, cell, order);
  const Location& place = location(&self, cell);
  const std::size_t at =
      choose_write(place, from, [](const Write& write) { return !write.is_read_by_rmw; });
  return exchange_at(self, cell, at, change(place.writes[at].value), order);
}

bool Memory::compare_exchange(MemoryThread& self, Cell& cell, std::uint64_t* expected,
                              std::uint64_t desired, std::memory_order success,
                              std::memory_order failure) {
  const std::uint64_t from = lowest(self, cell, success);
  const Location& place = location(&self, cell);
  const std::size_t at = choose_write(place, from, [&](const Write& write) {
    return write.value != *expected || !write.is_read_by_rmw;
  });
  const Write& seen = place.writes[at];
  if (seen.value == *expected) {
    exchange_at(self, cell, at, desired, success);
    return true;
  }
  *expected = seen.value;
  self.view.raise(cell.index_, seen.key);
  self.read_since_spin.push_back(cell.index_);
  see(self, seen.view, failure);
  if (is_sequential(failure)) sequential_.raise(cell.index_, seen.key);
  return false;
}

void Memory::fence(MemoryThread& self, std::memory_order order) {
  if (acquires(order)) self.view.join(self.acquirable);
  if (is_sequential(order)) {
    self.view.join(sequential_);
    sequential_.join(self.view);
  }
  if (releases(order)) self.released = self.view;
}

void Memory::lock(MemoryThread& self, Cell& mutex) {
  Location& place = location(&self, mutex);
  place.locked = true;
  self.view.join(place.released);
  ++writes_;
}

void Memory::unlock(MemoryThread& self, Cell& mutex) {
  Location& place = location(&self, mutex);
  place.locked = false;
  place.released = self.view;
  ++writes_;
}

void Memory::use_data(MemoryThread& self, Cell& cell, bool writes) {
  Location& place = location(&self, cell);
  for (std::size_t other = 0; other < kMostThreads; ++other) {
    if (other == self.index) continue;
    const bool unordered = place.writes_at[other] > self.view.clock[other] ||
                           (writes && place.reads[other] > self.view.clock[other]);
    if (unordered) {
      referee_.violate("two uses of a plain variable, one a write, are not ordered");
    }
  }
  (writes ? place.writes_at : place.reads)[self.index] = ++self.view.clock[self.index];
}

void Memory::show_newest(MemoryThread& self) {
  for (const std::size_t index : self.read_since_spin) {
    self.view.raise(index, locations_[index].writes.back().key);
  }
  self.read_since_spin.clear();
}

void Memory::note_made(MemoryThread& self, Cell& cell, std::uint64_t execution) {
  cell.made_in_ = execution;
  cell.made_by_ = static_cast<std::uint8_t>(self.index);
  cell.made_at_ = ++self.view.clock[self.index];
}

// `self`: null outside threads.
Memory::Location& Memory::location(MemoryThread* self, Cell& cell) {
  if (cell.execution_ != execution_) {
    cell.execution_ = execution_;
    cell.index_ = static_cast<std::uint32_t>(locations_.size());
    locations_.emplace_back();
    locations_.back().writes.push_back({kFar, cell.initial_, View{}, false});
  }
  if (self != nullptr && cell.made_in_ == execution_ && cell.made_by_ != self->index &&
      self->view.clock[cell.made_by_] < cell.made_at_) {
    referee_.violate("a variable is used by a thread that need not see its construction");
  }
  return locations_[cell.index_];
}

std::uint64_t Memory::lowest(MemoryThread& self, Cell& cell, std::memory_order order) {
  location(&self, cell);
  const std::uint64_t own = std::max(self.view.at(cell.index_), kFar);
  return is_sequential(order) ? std::max(own, sequential_.at(cell.index_)) : own;
}

// One of the writes from `from` on, the newest first.
template <typename Suits>
std::size_t Memory::choose_write(const Location& place, std::uint64_t from, const Suits& suits) {
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < place.writes.size(); ++i) {
    if (place.writes[i].key >= from && suits(place.writes[i])) open.push_back(i);
  }
  return open[open.size() - 1 - referee_.choose(open.size())];
}

void Memory::see(MemoryThread& self, const View& of_write, std::memory_order order) {
  self.acquirable.join(of_write);
  if (acquires(order)) self.view.join(of_write);
}

std::uint64_t Memory::exchange_at(MemoryThread& self, Cell& cell, std::size_t at,
                                  std::uint64_t value, std::memory_order order) {
  const Write read = locations_[cell.index_].writes[at];
  self.read_since_spin.push_back(cell.index_);
  see(self, read.view, order);
  locations_[cell.index_].writes[at].is_read_by_rmw = true;
  insert(self, cell, at, value, order, &read.view);
  return read.value;
}

// `continues`: what the write that it replaced carried (a release sequence).
void Memory::insert(MemoryThread& self, Cell& cell, std::size_t behind, std::uint64_t value,
                    std::memory_order order, const View* continues) {
  std::vector<Write>& writes = locations_[cell.index_].writes;
  const std::uint64_t low = writes[behind].key;
  const bool is_last = behind + 1 == writes.size();
  const std::uint64_t key = is_last ? low + kFar : low + (writes[behind + 1].key - low) / 2;
  if (key == low) std::abort();  // no room between two writes
  self.view.raise(cell.index_, key);
  ++self.view.clock[self.index];
  View carried = releases(order) ? self.view : self.released;
  carried.raise(cell.index_, key);
  if (continues != nullptr) carried.join(*continues);
  if (is_sequential(order)) sequential_.raise(cell.index_, key);
  writes.insert(writes.begin() + static_cast<std::ptrdiff_t>(behind) + 1,
                Write{key, value, std::move(carried), false});
  ++writes_;
}

}  // namespace explorer
