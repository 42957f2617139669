// Where the rows of the decode path lie, and what is read of them soon. Included inside the namespace of an instruction
// set.

template <class T>
inline T* row_of(const RowBlock<T>& x, int64_t head, int64_t row) {
  return x.data + (head * x.rows + row) * x.stride;
}

constexpr int64_t kCacheLine = 64;

template <class Stored>
inline const Stored* key_row(const KeyRows& x, int64_t head, int64_t key) {
  return static_cast<const Stored*>(x.data) + x.offset + head * x.head_stride + key * x.row_stride;
}

// What will be read soon, in elements from what is read now. `far` hides the latency of memory and goes to the second
// level: on Neoverse-V1, prefetches from memory into the first one take the place of what its own prefetcher does better.
// `near` brings what the second level has into the first; worth its instructions where three rows or more are computed
// from one stream.
struct Prefetch {
  int64_t l2, l1;
  int64_t l2_row;   // from a row that is asked for to the next
  int64_t l2_head;  // `far` of a head less that of the head before
  Prefetch of_head(int64_t head) const { return {l2 + head * l2_head, l1, l2_row, l2_head}; }
};
// Heads take turns with `turn` keys each. Where they lie side by side, all that they read in a turn is one piece of memory:
// it is asked for from its begin to its end, whichever head reads it. turn = 0: each head asks for its own rows. On a Xeon
// that is faster in any case.
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
// p: of the first row that is read now. row: of those that are asked for.
template <class Stored>
inline void prefetch_l2(const Stored* p, int64_t row, Prefetch prefetch) {
  __builtin_prefetch(p + prefetch.l2 + row * prefetch.l2_row, 0, 2);
}
template <int kRows, class Stored>
inline void prefetch_l1(const Stored* p, Prefetch prefetch) {
  if constexpr (kRows >= 3) __builtin_prefetch(p + prefetch.l1);
}
