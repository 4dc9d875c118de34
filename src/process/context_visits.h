// Threads of our own look into the program's contexts from time to time. While one does, no context
// may be destroyed; and while the program destroys one, none may look.
#pragma once

namespace cupool::process {

/// To be called before a thread that will visit is started.
void expect_context_visits();

/// A thread of ours is in contexts for the life of an object, if `allowed()`: no context is being
/// destroyed, and the driver is not about to leave. Short: the program may be waiting.
class ContextVisit {
 public:
  ContextVisit();
  ~ContextVisit();
  ContextVisit(const ContextVisit&) = delete;
  ContextVisit& operator=(const ContextVisit&) = delete;

  bool allowed() const { return allowed_; }

 private:
  bool allowed_ = false;
};

/// For the life of an object no thread of ours is in contexts: the program is about to destroy one.
/// Waits for those that are. Costs a load where none is expected.
class ContextPause {
 public:
  ContextPause();
  ~ContextPause();
  ContextPause(const ContextPause&) = delete;
  ContextPause& operator=(const ContextPause&) = delete;

 private:
  const bool active_;
};

/// Ends visits for good, the one that is under way included: the driver is about to leave.
void end_context_visits();

/// In a forked child: there are no threads of ours, and what they held is not let go any more.
void forget_context_visits();

}  // namespace cupool::process
