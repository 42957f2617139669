// One call over a KV cache with everything around it: tensors in the memory of a (fake) device, and what the call must
// have written, from the definition in double. Rows that no query sees are NaN, and unused entries of block tables name pages
// that do not exist.
#pragma once

#include <cuflash/cached_attention.h>

#include <string>
#include <vector>

#include "tests/shared/gpu_memory.h"

namespace cuflash::test {

struct CacheCase {
  DType dtype = DType::bf16;
  int64_t dim_qk = 64, dim_v = 64, heads_k = 1, group = 1;
  int64_t v_column = 0;  // if v is a slice of k's rows
  bool v_in_k = false, aligned = true, o_is_f32 = false, has_lse = true;
  bool packed_q = false, packed_new = false;
  int64_t page_size = 0;  // 0: contiguous
  bool has_entries = false;
  std::vector<int32_t> len_q{}, rows{}, pad{}, len_new{};  // by sequence; pad, len_new empty: none
  int64_t room = 0;                                        // rows of an entry, or of the table; at least what is needed
  int64_t window_left = -1, window_right = -1;
  double scale = 0.125, softcap = 0;
  bool alibi = false, sink = false;
  int64_t rotary = 0;  // rotated elements of a row
  bool interleaved = false, one_position = false, rotary_f32 = false;
  int32_t num_splits = 0;
  uint64_t seed = 1;
};
std::string describe(const CacheCase& c);

// A tensor on the device with a copy on the host, where its values are checked.
struct MirroredTensor {
  DeviceBuffer buffer;
  std::vector<std::byte> host;
  Tensor view;  // in device memory

  MirroredTensor() = default;
  // memory_order: the dimensions from the outermost to the innermost. offset: elements before the first one.
  MirroredTensor(DType dtype, const std::vector<int64_t>& shape, const std::vector<size_t>& memory_order,
                 int64_t offset = 0);
  // Elements [0, count) of the innermost dimension.
  std::vector<double> row(std::vector<int64_t> index, int64_t count) const;
  void set_row(std::vector<int64_t> index, const std::vector<double>& values);
  void write() const { buffer.write(host.data(), host.size()); }
  void read() { host = buffer.read(); }

 private:
  int64_t element(const std::vector<int64_t>& index) const;
  int64_t offset_ = 0;
};

class CacheScene {
 public:
  explicit CacheScene(const CacheCase& c);

  Attention attention;
  CacheTensors cache;

  // What is wrong with the outputs and with the cache after the call, or "". Reads them back first.
  std::string fault();
  // Sequence b's output and LSE; after fault().
  std::vector<double> results(int64_t b) const;
  std::vector<double> read_results(int64_t b) { return o_.read(), lse_.read(), results(b); }
  // Other lengths in the same memory; for calls whose results fault() does not check.
  void set_rows(const std::vector<int32_t>& rows) const;

 private:
  struct Place {
    int64_t entry, row;
  };
  size_t batch() const { return c_.len_q.size(); }
  int64_t appended(size_t b) const { return c_.len_new.empty() ? 0 : c_.len_new[b]; }
  int64_t padding(size_t b) const { return c_.pad.empty() ? 0 : c_.pad[b]; }
  int64_t value_column() const { return c_.v_in_k ? c_.v_column : 0; }
  int64_t keys(size_t b) const { return c_.rows[b] + appended(b) - padding(b); }
  bool sees(size_t b, int64_t i, int64_t j) const;
  bool is_seen(size_t b, int64_t j) const;
  Place place_of(size_t b, int64_t row) const;

  ConstTensor lengths(const std::vector<int32_t>& values);
  ConstTensor running_sum(const std::vector<int32_t>& values, std::vector<int64_t>& begins);
  std::vector<double> normal(int64_t count, double deviation = 1);
  void make_places();
  void make_queries();
  void make_cache();
  void make_new_rows();
  void make_rotary();
  void make_scores();
  void make_outputs();

  std::vector<int64_t> query_index(size_t b, int64_t h, int64_t i) const;
  std::vector<double> query(size_t b, int64_t h, int64_t i) const;
  std::vector<double> new_row(const MirroredTensor& t, size_t b, int64_t h, int64_t n, int64_t dim) const;
  std::vector<double> new_key(size_t b, int64_t h, int64_t n) const;
  std::vector<double> new_value(size_t b, int64_t h, int64_t n) const;
  std::vector<double> key(size_t b, int64_t h, int64_t j) const;
  std::vector<double> value(size_t b, int64_t h, int64_t j) const;
  std::vector<double> rotated(std::vector<double> row, int64_t position) const;
  std::string fault_of_row(size_t b, int64_t h, int64_t i) const;
  std::string fault_of_cache() const;

  const CacheCase c_;
  int64_t max_q_ = 0, max_new_ = 0, entries_ = 0;
  std::vector<DeviceTensor> ints_;
  size_t rows_at_ = 0;                        // index in ints_ of the rows before the append
  std::vector<int32_t> entry_of_;             // contiguous
  std::vector<std::vector<int32_t>> pages_;   // paged
  std::vector<int64_t> q_begin_, new_begin_;  // packed
  MirroredTensor q_, k_, v_, k_new_, v_new_, cos_, sin_, slopes_, sink_, o_, lse_;
  MirroredTensor* values_ = &v_;                    // or k_
  std::vector<std::vector<double>> old_k_, old_v_;  // every row of the cache before the call
  uint64_t draws_ = 0;
};

}  // namespace cuflash::test
