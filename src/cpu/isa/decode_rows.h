// Addresses of the rows of the decode path, and the distances at which they are prefetched. Included inside the
// namespace of an instruction set.

template <class T>
inline T* row_of(const RowBlock<T>& x, int64_t head, int64_t row) {
  return x.data + (head * x.rows + row) * x.stride;
}

constexpr int64_t kCacheLine = 64;

template <class Stored>
inline const Stored* key_row(const KeyRows& x, int64_t head, int64_t key) {
  return static_cast<const Stored*>(x.data) + x.offset + head * x.head_stride + key * x.row_stride;
}

// Prefetch distances, in elements from the address being read. `l2` hides the latency of memory and prefetches into L2:
// on Neoverse-V1, software prefetches from memory into L1 displace the hardware prefetcher, which does better. `l1`
// moves lines from L2 to L1, which is worth its instructions if at least three rows are computed from one stream.
struct Prefetch {
  int64_t l2, l1;
  int64_t l2_row;   // distance between prefetched rows
  int64_t l2_head;  // difference of `l2` between a head and the previous one
  Prefetch of_head(int64_t head) const { return {l2 + head * l2_head, l1, l2_row, l2_head}; }
};
// The heads alternate after `turn` keys each. If they are adjacent, one round reads a single piece of memory, which is
// prefetched from beginning to end, whichever head reads it. turn = 0: each head prefetches its own rows, which is
// always faster on a Xeon.
#if defined(__aarch64__)
constexpr bool kPrefetchInOrder = true;
#else
constexpr bool kPrefetchInOrder = false;
#endif
inline Prefetch prefetch_of(const KeyRows& x, int64_t size, int64_t keys, int64_t turn) {
  constexpr int64_t kPrefetchBytes = 16384;
  const int64_t rows = kPrefetchBytes / (x.heads * x.dim * size + 1) + keys;
  const int64_t l2 = x.prefetch_distance ? x.prefetch_distance : rows * x.row_stride;
  if (kPrefetchInOrder && turn != 0 && x.heads > 1 && x.prefetch_distance == 0 && x.head_stride == x.dim &&
      x.row_stride == x.heads * x.dim)
    return {l2, x.head_stride, x.dim, (turn - 1) * x.dim};
  return {l2, x.heads == 1 ? keys * x.row_stride : x.head_stride, x.row_stride, 0};
}
// p: in the first row that is read now. row: index of the row to prefetch.
template <class Stored>
inline void prefetch_l2(const Stored* p, int64_t row, Prefetch prefetch) {
  __builtin_prefetch(p + prefetch.l2 + row * prefetch.l2_row, 0, 2);
}
template <int kRows, class Stored>
inline void prefetch_l1(const Stored* p, Prefetch prefetch) {
  if constexpr (kRows >= 3) __builtin_prefetch(p + prefetch.l1);
}
