// Shared by the references: the arguments as heads, rows and lengths, and lookups for one score. The only attention logic
// here is the rule of visibility.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstdint>
#include <vector>

#include "oracle.h"
#include "philox.h"

namespace cuflash::reference {

// One query head of one sequence. Rows beyond the lengths do not exist.
struct Head {
  int64_t b, h, h_kv;
  int64_t len_q, len_k;
  int64_t first_q, first_k;  // packed: the row the sequence starts at; dense: 0
  int64_t c;                 // query i is at the position of key i + c
  double slope;              // ALiBi; 0 if the call has none
  double sink;               // -inf if the call has none
  DropoutStream dropout;
};

// The rows of a head in a contiguous array of its tensor's logical shape: row i has number begin + i * step.
struct RowNumbers {
  int64_t begin, step;
  int64_t operator()(int64_t i) const { return begin + i * step; }
};

struct Inputs {
  explicit Inputs(const Attention& attention);

  const Attention& attention;
  bool packed;
  int64_t batch, heads_q, heads_k;
  int64_t rows_q, rows_k;  // rows of one head: Sq and Sk, packed Tq and Tk
  int64_t dim, dim_v;
  double scale;
  int64_t window_left, window_right;
  double keep_scale;  // 1 / (1 - dropout_p)
  DropoutRule rule;
  std::vector<Head> heads;

  RowNumbers q_rows(const Head& head) const;    // of q, o and their gradients
  RowNumbers k_rows(const Head& head) const;    // of k, v and their gradients
  RowNumbers lse_rows(const Head& head) const;  // of lse and dlse

  // The existing rows of one head, contiguous [length][width].
  template <class Real>
  std::vector<Real> load_q(const Head& head) const {
    return load<Real>(attention.q, head, head.h, head.first_q, head.len_q);
  }
  template <class Real>
  std::vector<Real> load_k(const Head& head) const {
    return load<Real>(attention.k, head, head.h_kv, head.first_k, head.len_k);
  }
  template <class Real>
  std::vector<Real> load_v(const Head& head) const {
    return load<Real>(attention.v, head, head.h_kv, head.first_k, head.len_k);
  }
  template <class Real>
  std::vector<Real> load_dout(const ConstTensor& dout, const Head& head) const {
    return load<Real>(dout, head, head.h, head.first_q, head.len_q);
  }
  template <class Real>
  std::vector<Real> load_dlse(const ConstTensor& dlse, const Head& head) const;  // [len_q]; 0 if dlse is absent

  // visible[j] for j < len_k.
  void visible_keys(const Head& head, int64_t i, std::vector<uint8_t>& visible) const;
  bool hides_keys() const;  // whether any option other than a length can hide a key

  double alibi(const Head& head, int64_t i, int64_t j) const;
  double bias(const Head& head, int64_t i, int64_t j) const;  // 0 if the call has none
  double keep(const Head& head, int64_t i, int64_t j) const;  // dropout's factor: 0 or 1 / (1 - p)
  int64_t dbias_index(const Head& head, int64_t i, int64_t j) const;

  // Outputs of the right sizes, with the values they have without any row.
  Forward empty_forward() const;
  Backward empty_backward() const;

 private:
  template <class Real>
  std::vector<Real> load(const ConstTensor& t, const Head& head, int64_t h, int64_t first, int64_t length) const;
};

}  // namespace cuflash::reference
