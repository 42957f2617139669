// Rows of a bf16 tensor on their way into the operands of a matrix instruction. Included inside the namespace of an
// instruction set, after vector_kernels.h.

// A row holds no NaN and no Inf.
inline bool is_finite_bf16(const uint16_t* row, int64_t dim) {
  constexpr int kWidth = kVectorBytes / 2;
  typedef uint16_t Bits __attribute__((vector_size(kVectorBytes), may_alias, aligned(2)));
  typedef int16_t Mask __attribute__((vector_size(kVectorBytes), may_alias));
  typedef int64_t Long __attribute__((vector_size(kVectorBytes), may_alias));
  Mask nonfinite = {};
  const int64_t whole = dim / kWidth * kWidth;
  for (int64_t d = 0; d < whole; d += kWidth)
    nonfinite |= (Mask)((*reinterpret_cast<const Bits*>(row + d) & uint16_t{0x7f80}) == uint16_t{0x7f80});
  int64_t any = 0;
  for (int n = 0; n < kVectorBytes / 8; ++n) any |= reinterpret_cast<Long&>(nonfinite)[n];
  for (int64_t d = whole; d < dim; ++d) any |= (row[d] & 0x7f80) == 0x7f80;
  return any == 0;
}

// kCount rows from `first` on, of which each may be read up to the next multiple of kPad elements: where they lie, or in
// staging with zeros behind the last element. Rows beyond the source's last are zero.
template <int kCount, int kPad>
struct Bf16Rows {
  const uint16_t* row[kCount];

  Bf16Rows(const Source& source, int64_t first, uint16_t* staging) {
    const int64_t padded = (source.dim + kPad - 1) / kPad * kPad;
    for (int n = 0; n < kCount; ++n) {
      uint16_t* to = staging + n * padded;
      row[n] = to;
      int64_t filled = 0;
      if (first + n < source.count) {
        const auto* from = static_cast<const uint16_t*>(source.data) + source.offset + (first + n) * source.row_stride;
        row[n] = padded == source.dim ? from : to;
        filled = source.dim;
        if (row[n] == to) __builtin_memcpy(to, from, static_cast<size_t>(filled) * sizeof *from);
      }
      if (row[n] == to)
        for (int64_t d = filled; d < padded; ++d) to[d] = 0;
    }
  }

  // Rows with NaN or Inf become zero and are listed in `bad` by their number, `first` being that of the first one.
  // zeros: a row of them. Returns how many were added.
  int64_t drop_nonfinite(int64_t first, int64_t dim, const uint16_t* zeros, int32_t* nonfinite) {
    int64_t count = 0;
    for (int n = 0; n < kCount; ++n) {
      if (is_finite_bf16(row[n], dim)) continue;
      row[n] = zeros;
      nonfinite[count++] = static_cast<int32_t>(first + n);
    }
    return count;
  }
};
