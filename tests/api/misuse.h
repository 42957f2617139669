// Wrong calls of the C ABI: a valid call of any of its functions with one defect, and the expected answer.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/problem/rejections.h"

namespace cuflash::rejections {

// A valid call that takes tensors. Members that a function does not have are empty.
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
  // Moves the tensor to the start of a separate block of `room` bytes, which must also stay untouched.
  std::byte* move(const Slot& slot, size_t room);
};
using MakeTarget = std::function<Target()>;

size_t bytes_of(const Slot& slot);

// Something wrong with a tensor. apply returns what the refusal must mention, or nothing if the tensor cannot have it.
struct Defect {
  using Values = std::optional<std::vector<std::string>>;
  const char* what;
  Values (*apply)(const Slot& slot);
};
std::span<const Defect> tensor_defects();

// Forward and backward, dense, padded and packed; calls over caches of several kinds; merges.
std::vector<MakeTarget> all_targets();

// Collects the names of all cases, and fails for those with a wrong answer.
class Misuse {
 public:
  // Breaks a fresh call of each target; `broken` returns nothing if the target lacks what it would break. The call, its
  // workspace query and its explanation must all refuse it.
  using Break = std::function<std::optional<Refusal>(Target&)>;
  void everywhere(const std::string& what, const Break& broken);
  // Breaks only the call: for defects that the queries do not check.
  void calls(const std::string& what, const Break& broken);

  // Adds a single case; `failure` comes from why_not_refused.
  void check(const std::string& name, const std::string& failure);

  size_t count() const { return names_.size(); }

 private:
  std::vector<std::string> names_;
};

class MisuseTest : public testing::Test {
 protected:
  void TearDown() override { std::cout << misuse.count() << " cases\n"; }

  Misuse misuse;
};

}  // namespace cuflash::rejections
