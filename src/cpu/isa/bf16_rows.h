// Rows of a bf16 tensor as input for the operands of a matrix instruction. Included inside the namespace of an
// instruction set, after vector_kernels.h.

// Whether a row holds no NaN and no Inf.
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

// kCount rows starting at `first`, each readable up to the next multiple of kPad elements: in place, or in staging with
// zeros behind the last element. Rows beyond the last of the source are zero.
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

  // Replaces rows with NaN or Inf by `zeros`, a row of zeros, and lists their numbers in `nonfinite`; the first row has
  // number `first`. Returns how many were added.
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
