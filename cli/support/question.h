// A question about support, and the library's answer to it.
#pragma once

#include <cuflash/cached_attention.h>

#include <functional>
#include <string>

#include "cli/arguments/commands.h"
#include "cli/sketch.h"

namespace cuflash::cli {

constexpr DType kSupportTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
constexpr const char* kSupportCpu = "cpu";
constexpr const char* kSupportPlaces[] = {kSupportCpu, "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"};
constexpr int64_t kSupportLength = 1024;

// A problem: the options of `cuflash explain`, and changes that they cannot express.
struct Question {
  ExplainOptions options;
  std::function<void(Sketch&)> change;
};

struct Answer {
  bool served = false;
  std::string tiles{};     // "64 x 128": queries by keys
  std::string options{};   // options that the kernel was compiled for
  std::string reason{};    // why the library rejects the problem
  bool by_tma = false;     // over a cache on Hopper: the kernel that loads by TMA
  std::string not_sm90{};  // why the families of sm_90a reject it
};

// Four heads, as many queries as keys, all gradients.
Question plain_question(DType type, int64_t dim, bool backward);
Sketch sketch_of(const Question& question);

// place: one of kSupportPlaces.
Answer ask(const Attention& attention, const CacheTensors& cache, const std::string& place);
Answer ask(const Question& question, const std::string& place);
// A table cell: "no", the tiles, or "yes" if there are no tiles to name.
std::string cell(const Answer& answer);
// The tiles of the forward kernel for Hopper, or why another kernel is used.
std::string ask_hopper(const Question& question);

}  // namespace cuflash::cli
