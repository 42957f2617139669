#include "mask_summary.h"

#include "execute.h"
#include "mask_params.h"

namespace cuflash::python {
namespace {

int64_t spans_of(int64_t keys) { return (keys + kMaskSpan - 1) / kMaskSpan; }
// The number of rows of bits that all words of the summary fill.
int64_t stored_rows(int64_t rows) {
  const int64_t words = (rows + kMaskBlock - 1) / kMaskBlock * kMaskPlanes;  // of blocks, for every span
  return rows + (words + kMaskSpanWords - 1) / kMaskSpanWords;
}
// The inverse of stored_rows.
int64_t mask_rows(int64_t stored) {
  int64_t rows = stored * 85 / 86;
  while (rows > 0 && stored_rows(rows) > stored) --rows;
  while (stored_rows(rows + 1) <= stored) ++rows;
  return rows;
}

template <class Tensor>
int64_t elements(const Tensor& t) {
  return t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3];
}
// The words as the library takes them.
template <class Tensor>
void flatten(Tensor& t) {
  const int64_t words = elements(t);
  t.rank = 1, t.shape[0] = words, t.stride[0] = 1;
}

}  // namespace

nb::tuple summary_shape(int64_t batch, int64_t heads, int64_t rows, int64_t keys) {
  return nb::make_tuple(batch, heads, stored_rows(rows), spans_of(keys) * kMaskSpanWords);
}

void take_summary(cuflash_attention& a, int64_t keys) {
  const cuflash_tensor& t = a.mask;
  if (!t.data || t.dtype != CUFLASH_I32 || t.rank != 4) return;  // the library says what is wrong with it
  const bool contiguous = elements(t) == 0 || (t.stride[2] == t.shape[3] && t.stride[1] == t.shape[2] * t.stride[2] &&
                                               t.stride[0] == t.shape[1] * t.stride[1]);
  if (!contiguous) throw nb::value_error("mask: the words of its summary are not contiguous");
  a.mask_summary = t;
  const int64_t shape[] = {
      t.shape[0], t.shape[1], mask_rows(t.shape[2]),
      spans_of(keys) * kMaskSpanWords == t.shape[3] ? keys : t.shape[3] / kMaskSpanWords * kMaskSpan};
  for (int d = 0; d < 4; ++d) a.mask_summary_shape[d] = shape[d];
  flatten(a.mask_summary);
  a.mask = {};
}

void summarize_mask(const SummaryArrays& given) {
  Arrays arrays("bhsd", given.stream);
  cuflash_tensor mask{};
  cuflash_mutable_tensor words{};
  arrays.input(mask, given.mask, "mask"), arrays.output(words, given.words, "words");
  if (words.rank != 4) throw nb::value_error("words: must have the shape that summary_shape says");
  flatten(words);
  Runtime runtime{};
  runtime.stream = given.stream, runtime.allocate = nb::none(), runtime.num_threads = given.num_threads;
  const cuflash_execution execution = execution_of(arrays, runtime);
  int64_t shape[4];
  cuflash_status status;
  {
    nb::gil_scoped_release released;
    status = cuflash_summarize_mask(&mask, &words, &execution, shape);
  }
  check(status, {"bhsd", Words::attention});
}

}  // namespace cuflash::python
