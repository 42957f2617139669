// Parts of a case that every kind of case draws alike.
#pragma once

#include "check/cases/case.h"

namespace cuflash::check {

enum class Role { input, output };

void draw_types(Case& c, Choices& choose, const Limits& limits);
void draw_head_sizes(Case& c, Choices& choose, const Limits& limits);
void draw_fused(Case& c, Choices& choose);
void draw_mode(Case& c, Choices& choose);  // dense, padded or packed, with the lengths of sequences
std::vector<int32_t> draw_lengths(Choices& choose, int64_t batch, int64_t length);
void draw_options(Case& c, Choices& choose);
void draw_option_set(Case& c, Choices& choose, const OptionChoice& set);  // exactly these
void draw_mask_content(Case& c, Choices& choose);                         // does nothing without a mask tensor
Layout draw_layout(Choices& choose, Role role);
int64_t in_vectors(int64_t elements);  // rounded up to 16 bytes of a 16-bit type
void align_rows(Layout& layout);       // to 16 bytes in a 16-bit type, if the head size allows it
void align_rows(Case& c);              // all layouts of the case
void draw_execution(Case& c, Choices& choose);
void draw_cuda_execution(Case& c, Choices& choose);
void draw_data(Case& c, Choices& choose);
// The requested outputs, and everything besides the problem: execution, data, memory.
void draw_call(Case& c, Choices& choose, const Limits& limits);

}  // namespace cuflash::check
