// SPDX-License-Identifier: Apache-2.0
// Runs a program in all executions, and with each memory order weakened.
#include "explorer.h"

#include <algorithm>
#include <set>

#include "execution.h"
#include "weakening.h"

namespace explorer {

namespace {

// The next list of choices, depth first. False: there is none.
bool advance(std::vector<Choice>& choices) {
  while (!choices.empty() && choices.back().taken + 1 == choices.back().of) choices.pop_back();
  if (choices.empty()) return false;
  ++choices.back().taken;
  return true;
}

Result explore_weakened(const Program& program, std::uint64_t most, const Weakening* weakened,
                        std::set<Weakening>* seen) {
  Result result;
  std::vector<Choice> choices;
  while (result.executions < most) {
    {
      Execution execution(program, choices, weakened, seen);
      execution.go();
      result.violation = execution.violation();
    }
    ++result.executions;
    if (!result.violation.empty()) return result;
    if (!advance(choices)) {
      result.complete = true;
      return result;
    }
  }
  return result;
}

}  // namespace

Result explore(const Program& program, std::uint64_t most) {
  return explore_weakened(program, most, nullptr, nullptr);
}

std::vector<std::string> unneeded_orders(const std::vector<Program>& programs, const char* file) {
  constexpr std::uint64_t kMost = 3'000'000;
  std::set<Weakening> sites;
  for (const Program& program : programs) explore_weakened(program, kMost, nullptr, &sites);
  std::vector<std::string> unneeded;
  bool any = false;
  for (const Weakening& site : sites) {
    if (site.file != file) continue;
    any = true;
    for (const std::memory_order to : weaker_orders(site.kind, site.from)) {
      Weakening weakened = site;
      weakened.to = to;
      const bool noticed = std::any_of(programs.begin(), programs.end(), [&](const Program& each) {
        return !explore_weakened(each, kMost, &weakened, nullptr).violation.empty();
      });
      if (noticed) continue;
      unneeded.push_back(std::string(file) + ":" + std::to_string(site.line) + " " +
                         name_of(site.kind) + " " + name_of(site.from) + " -> " + name_of(to));
    }
  }
  if (!any) unneeded.push_back(std::string(file) + ": no program runs anything of it");
  return unneeded;
}

void require(bool holds, const char* rule) {
  Execution::current()->require(holds, rule);
}

Throughout::Throughout() {
  Execution::current()->hold(+1);
}
Throughout::~Throughout() {
  Execution::current()->hold(-1);
}

Cell::Cell(std::uint64_t initial) noexcept : initial_(initial) {
  if (Execution::current() != nullptr) Execution::current()->made(*this);
}

std::uint64_t load(Cell& cell, std::memory_order order, Site site) {
  if (Execution::current() == nullptr) return cell.initial();
  return Execution::current()->load(cell, order, site);
}
void store(Cell& cell, std::uint64_t value, std::memory_order order, Site site) {
  if (Execution::current() == nullptr) return cell.set_initial(value);
  Execution::current()->store(cell, value, order, site);
}
std::uint64_t modify(Cell& cell, const std::function<std::uint64_t(std::uint64_t)>& change,
                     std::memory_order order, Site site) {
  return Execution::current()->modify(cell, change, order, site);
}
bool compare_exchange(Cell& cell, std::uint64_t* expected, std::uint64_t desired,
                      std::memory_order success, std::memory_order failure, Site site) {
  return Execution::current()->compare_exchange(cell, expected, desired, success, failure, site);
}
void fence(std::memory_order order, Site site) {
  Execution::current()->fence(order, site);
}
void lock(Cell& mutex) {
  Execution::current()->lock(mutex);
}
bool try_lock(Cell& mutex) {
  return Execution::current()->try_lock(mutex);
}
void unlock(Cell& mutex) {
  Execution::current()->unlock(mutex);
}
void spin() {
  Execution::current()->spin();
}
std::uint64_t now_ns() {
  return Execution::current()->now_ns();
}
void glance(const Cell& cell) {
  Execution::current()->glance(cell);
}
void use_data(Cell& cell, bool writes) {
  Execution::current()->use_data(cell, writes);
}

}  // namespace explorer
