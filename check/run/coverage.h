// Counts the properties of a sweep's cases and the kernels that computed them, which shows what a sweep has not
// reached.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "check/cases/cache_case.h"
#include "check/cases/case.h"

namespace cuflash::check {

class Coverage {
 public:
  void add(const Case& c);
  void add(const CacheCase& c);
  void add(const Coverage& other);

  // "bf16 120, f16 80, causal 91, ...": how many cases had each.
  std::string text() const;

 private:
  void count(const char* trait, bool has) { counts_[trait] += has; }
  void add_problem(const Case& c);

  std::map<std::string, uint64_t> counts_;
};

// "63 kernels: sm90_forward 12, backward 3, ...; 60 of them compiled in 141.2 s": those that this process has loaded.
std::string describe_loaded_kernels();

}  // namespace cuflash::check
