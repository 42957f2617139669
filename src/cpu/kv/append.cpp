#include "cpu/kv/append.h"

#include <algorithm>
#include <cstring>

#include "cpu/kv/rotary.h"
#include "cpu/threads/threads.h"
#include "problem/visibility.h"

namespace cuflash::cpu {
namespace {

void copy_row(const ConstRows& from, int64_t from_offset, const Rows& to, int64_t to_offset, int64_t dim) {
  const int64_t size = size_of(from.dtype);
  std::memcpy(static_cast<std::byte*>(to.data) + to_offset * size,
              static_cast<const std::byte*>(from.data) + from_offset * size, static_cast<size_t>(dim * size));
}

void append_row(const CacheProblem& p, int64_t b, int64_t from_row, int64_t to_row, int64_t position) {
  const CacheRow to = cache_row(p.cache, b, to_row);
  for (int64_t h = 0; h < p.heads_k; ++h) {
    const int64_t to_k = p.k_cache.at(to.entry, h, to.row);
    copy_row(p.k_new, p.k_new.at(b, h, from_row), p.k_cache, to_k, p.dim_qk);
    if (p.rotary) rotate_row(p.rotary, position, p.k_cache.data, p.dtype, to_k);
    if (p.v_in_k) continue;
    copy_row(p.v_new, p.v_new.at(b, h, from_row), p.v_cache, p.v_cache.at(to.entry, h, to.row), p.dim_v);
  }
}

void rotate_query(const CacheProblem& p, const Rows& rotated, const Sequence& seq, int64_t b, int64_t i) {
  const int64_t position = seq.shift + (p.rotary.one_position ? 0 : i);
  for (int64_t h = 0; h < p.heads_q; ++h) {
    const int64_t to = rotated.at(b, h, seq.q_begin + i);
    copy_row(p.q, p.q.at(b, h, seq.q_begin + i), rotated, to, p.dim_qk);
    rotate_row(p.rotary, position, rotated.data, p.dtype, to);
  }
}

constexpr int64_t kRowsOfATask = 16;

int64_t tasks_of(int64_t rows) { return (rows + kRowsOfATask - 1) / kRowsOfATask; }

Range rows_of(int64_t task, int64_t rows) { return {task * kRowsOfATask, std::min((task + 1) * kRowsOfATask, rows)}; }

// Waking a thread costs microseconds: as much as rotating or copying this many elements.
int64_t workers_for(const CacheProblem& p, int64_t rows_new, int64_t rows_q, const Execution& e) {
  constexpr int64_t kWorthWaking = 32 * 1024;
  const Checked of_keys = Checked(rows_new) * p.heads_k * (p.dim_qk + p.dim_v);
  const Checked elements = Checked(p.batch) * (of_keys + Checked(rows_q) * p.heads_q * p.dim_qk);
  const int64_t threads = num_threads(e);
  return std::min(threads, 1 + elements.at_most(kWorthWaking * threads) / kWorthWaking);
}

}  // namespace

Rows rotated_queries(const CacheProblem& p, void* memory) {
  // A size query may have no such memory, so the products may overflow.
  const auto stride = [](const Checked& elements) { return elements.at_most(Checked::kLargest); };
  if (p.packed()) return {memory, p.dtype, 0, p.dim_qk, stride(Checked(p.heads_q) * p.dim_qk)};
  return {memory, p.dtype, stride(Checked(p.heads_q) * p.len_q * p.dim_qk), stride(Checked(p.len_q) * p.dim_qk),
          p.dim_qk};
}

Checked rotated_queries_size(const CacheProblem& p) {
  if (!p.rotary) return 0;
  const int64_t rows = p.packed() ? p.total_q : p.batch * p.len_q;
  return Checked(rows) * p.heads_q * p.dim_qk * size_of(p.dtype);
}

void append_and_rotate(const CacheProblem& p, const Rows& rotated, const Execution& e) {
  // Use the longest sequences, because the bounds given for packed rows may be far larger.
  int64_t rows_new = 0, rows_q = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.k_new) rows_new = std::max(rows_new, append_of(p.cache, b).count);
    if (p.rotary) rows_q = std::max(rows_q, sequence_of(p, b).len_q);
  }
  const int64_t new_tasks = tasks_of(rows_new), tasks = new_tasks + tasks_of(rows_q);
  if (tasks == 0) return;
  run_tasks(e, workers_for(p, rows_new, rows_q, e), p.batch * tasks, [&](int64_t, int64_t n) {
    const int64_t b = n / tasks, task = n % tasks;
    const Sequence seq = sequence_of(p, b);
    if (task < new_tasks) {
      const AppendedRows append = append_of(p.cache, b);
      const Range rows = rows_of(task, append.count);
      for (int64_t row = rows.begin; row < rows.end; ++row)
        append_row(p, b, append.begin + row, append.to + row, append.to + row - seq.k_begin);
    } else {
      const Range rows = rows_of(task - new_tasks, seq.len_q);
      for (int64_t i = rows.begin; i < rows.end; ++i) rotate_query(p, rotated, seq, b, i);
    }
  });
}

}  // namespace cuflash::cpu
