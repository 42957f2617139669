#include "problem/problem.h"

#include "error.h"

namespace cuflash {

AppendedRows append_of(const CachedKeys& cache, int64_t b) {
  AppendedRows a{0, cache.len_new, cache.rows[b]};
  if (cache.cu_new) a.begin = cache.cu_new[b], a.count = cache.cu_new[b + 1] - a.begin;
  if (cache.used_new) a.count = cache.used_new[b];
  return a;
}

Sequence sequence_of(const Problem& problem, int64_t b) {
  Sequence s{0, 0, problem.len_q, problem.len_k, 0};
  if (problem.cu_q) s.q_begin = problem.cu_q[b], s.len_q = problem.cu_q[b + 1] - s.q_begin;
  if (problem.cu_k) s.k_begin = problem.cu_k[b], s.len_k = problem.cu_k[b + 1] - s.k_begin;
  if (problem.used_q) s.len_q = problem.used_q[b];
  if (problem.used_k) s.len_k = problem.used_k[b];
  if (const CachedKeys& cache = problem.cache) {
    const AppendedRows append = append_of(cache, b);
    s.k_begin = cache.leftpad ? cache.leftpad[b] : 0;
    s.len_k = append.to + append.count - s.k_begin;
  }
  if (!problem.top_left) s.shift = s.len_k - (problem.head_rows ? problem.head_rows : s.len_q);
  return s;
}

static std::string side(int64_t window) { return window == kUnbounded ? "-1" : std::to_string(window); }

std::string to_string(const Problem& p) {
  std::string text = join(name_of(p.dtype), " B=", p.batch, " Hq=", p.heads_q, " Hk=", p.heads_k, " Sq=", p.len_q,
                          " Sk=", p.len_k, " D=", p.dim_qk, " Dv=", p.dim_v, " scale=", p.scale);
  if (p.packed()) text += " packed";
  if (p.used_q || p.used_k) text += " padded";
  if (const CachedKeys& cache = p.cache) {
    text += cache.page_size ? join(" cache of pages of ", cache.page_size) : std::string(" cache");
    if (cache.len_new) text += join(" append=", cache.len_new);
    if (cache.leftpad) text += " leftpad";
  }
  if (p.window_left != kUnbounded || p.window_right != kUnbounded)
    text +=
        join(" window=(", side(p.window_left), ",", side(p.window_right), p.top_left ? ") top-left" : ") bottom-right");
  if (p.softcap > 0) text += join(" softcap=", p.softcap);
  if (p.slopes) text += " alibi";
  if (p.bias) text += " bias";
  if (p.has_mask()) text += " mask";
  if (p.sink) text += " sink";
  if (p.dropout.p > 0) text += join(" dropout=", p.dropout.p);
  return text;
}

}  // namespace cuflash
