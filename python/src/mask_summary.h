// Summaries of masks as arrays. The array of a summary has int32 elements and four dimensions, of which the first two are
// those of the mask, the third says how many queries it has, and the last how many words a row of its bits: the shape
// travels with the words. A call takes it in place of the mask, whose elements are bool.
#pragma once

#include "arrays.h"

namespace cuflash::python {

struct SummaryArrays {
  nb::handle mask, words;
  uintptr_t stream;
  int32_t num_threads;
};
// words must have the shape that summary_shape returns.
void summarize_mask(const SummaryArrays& arrays);
// The shape of the words for a mask of these dimensions.
nb::tuple summary_shape(int64_t batch, int64_t heads, int64_t rows, int64_t keys);

// If the mask is a summary, moves it to the summary's fields. keys is the number of keys of the call.
void take_summary(cuflash_attention& a, int64_t keys);

}  // namespace cuflash::python
