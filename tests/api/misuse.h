// Wrong calls of the C ABI: a valid call of any of its functions, one thing of which is broken, and how it must be
// answered.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/problem/rejections.h"

namespace cuflash::rejections {

// A valid call that takes tensors. Whatever is not there for a function is empty.
struct Target {
  std::string name;
  std::shared_ptr<void> owner;
  std::vector<Slot> slots;
  std::function<cuflash_status()> run{};
  std::function<cuflash_status(size_t*)> workspace_size{};
  std::function<cuflash_status(char*, size_t, size_t*)> explain{};
  std::function<bool()> untouched{};
  std::function<std::byte*(size_t)> scratch{};
  cuflash_attention* attention = nullptr;
  cuflash_execution* execution = nullptr;

  const Slot* find(const std::string& slot) const;
  // Moves the tensor to the begin of memory of its own, with `room` bytes in all, which must stay untouched too.
  std::byte* move(const Slot& slot, size_t room);
};
using MakeTarget = std::function<Target()>;

size_t bytes_of(const Slot& slot);

// Forward and backward, dense, padded and packed; calls over caches of several kinds; merges.
std::vector<MakeTarget> all_targets();

// Every case that was tried, by its name, and the names of those that were not answered as they must be.
class Misuse {
 public:
  // Breaks a fresh call of each target; nothing where it does not have what is to be broken. The call, its workspace
  // query and its explanation must all refuse it.
  using Break = std::function<std::optional<Refusal>(Target&)>;
  void everywhere(const std::string& what, const Break& broken);
  // The same, of the call alone: what the other two do not look at.
  void calls(const std::string& what, const Break& broken);

  // One case, whatever it is: why_not_refused says what is wrong.
  void check(const std::string& name, const std::string& failure);

  size_t count() const { return names_.size(); }

 private:
  std::vector<std::string> names_;
};

}  // namespace cuflash::rejections
