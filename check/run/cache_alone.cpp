#include "check/run/cache_alone.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "check/cases/fill.h"
#include "check/cases/layout.h"
#include "check/cases/setup.h"
#include "check/memory/device.h"
#include "check/memory/mirror.h"
#include "dtype.h"
#include "error.h"

namespace cuflash::check {
namespace {

// The part [begin, begin + count) of dimension d.
template <class Pointer>
BasicTensor<Pointer> part(BasicTensor<Pointer> t, size_t d, int64_t begin, int64_t count) {
  if (!t) return t;
  using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, std::byte, const std::byte>;
  t.data = static_cast<Byte*>(t.data) + begin * t.stride[d] * size_of(t.dtype);
  t.shape[d] = count;
  return t;
}

bool same_bits(double x, double y) {
  return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y) || (std::isnan(x) && std::isnan(y));
}

}  // namespace

std::string differs_alone(const CacheCase& c, const CacheMemory& memory) {
  const Case& p = c.plain;
  const int64_t b = c.alone, length = p.length_q(b);
  const bool packed = p.mode == Mode::packed, packed_new = c.new_rows == NewRows::packed;
  const std::array<int32_t, 2> cu_q{0, static_cast<int32_t>(length)};
  const std::array<int32_t, 2> cu_new{0, static_cast<int32_t>(c.count_new(b))};
  const int32_t entry = static_cast<int32_t>(b);

  Attention a = memory.attention();
  a.q = packed ? part(a.q, 0, memory.first_q(b), length) : part(a.q, 0, b, 1);
  if (a.alibi_slopes.rank == 2) a.alibi_slopes = part(a.alibi_slopes, 0, b, 1);
  if (packed) a.cu_seqlens_q = contiguous(cu_q.data(), 2);
  // On CUDA the bound is part of the shape, which may decide how a row is computed, because the host does not see
  // lengths.
  if (packed && p.device == Device::cuda) a.max_seqlen_q = std::max<int64_t>(1, p.len_q);
  a.seqlens_q = part(a.seqlens_q, 0, b, 1);

  CacheTensors t = memory.tensors(false);
  t.seqlens = part(t.seqlens, 0, b, 1), t.leftpad = part(t.leftpad, 0, b, 1);
  t.block_table = part(t.block_table, 0, b, 1);
  t.batch_idx = t.batch_idx || c.page_size ? part(t.batch_idx, 0, b, 1) : contiguous(&entry, 1);
  const auto of_new = [&](const ConstTensor& rows) {
    return packed_new ? part(rows, 0, memory.first_new(b), c.count_new(b)) : part(rows, 0, b, 1);
  };
  t.k_new = of_new(t.k_new), t.v_new = of_new(t.v_new);
  t.seqlens_new = part(t.seqlens_new, 0, b, 1);
  if (packed_new) t.cu_seqlens_new = contiguous(cu_new.data(), 2);

  const RowsShape out{1, p.heads_q, packed ? length : p.len_q, p.dim_v};
  GuardedTensor o = place_rows("o", p.o_dtype, packed, out, p.o);
  GuardedTensor lse = place_lse("lse", state_type(p.dtype), packed, out, {});
  t.o = o.view(), t.lse = lse.view();
  const Setup setup(p, p.threads, a, t, elements_only());
  attend_cache(p.device, a, t, setup.execution());
  if (const std::string text = setup.damage(); !text.empty()) return join("sequence ", b, " alone: ", text);

  for (int64_t h = 0; h < p.heads_q; ++h)
    for (int64_t i = 0; i < length; ++i) {
      const int64_t row = memory.first_q(b) + i;
      const auto& strides = memory.lse.view().stride;
      const double lse_of_all = memory.lse.get(packed ? h * strides[0] + row : b * strides[0] + h * strides[1] + i);
      if (!same_bits(lse_of_all, lse.get(h * lse.view().stride[packed ? 0 : 1] + i)))
        return join("sequence ", b, " alone: lse of head ", h, " query ", i, " has other bits than in the batch");
      for (int64_t d = 0; d < p.dim_v; ++d)
        if (!same_bits(memory.o.get(row_offset(memory.o.view(), b, h, row) + d),
                       o.get(row_offset(o.view(), 0, h, i) + d)))
          return join("sequence ", b, " alone: o of head ", h, " query ", i, " has other bits than in the batch");
    }
  return "";
}

}  // namespace cuflash::check
