#include "tests/shared/support.h"

#include <algorithm>
#include <cstring>

#include "check/cases/random.h"
#include "check/run/compare.h"
#include "reference/naive.h"
#include "reference/noise.h"
#include "reference/oracle.h"

namespace cuflash::test {
namespace {

template <class Visit>
void for_each_offset(const ConstTensor& t, Visit visit) {
  int64_t extent[4] = {1, 1, 1, 1}, stride[4] = {0, 0, 0, 0};
  std::copy_n(t.shape.begin(), t.rank, extent + 4 - t.rank);
  std::copy_n(t.stride.begin(), t.rank, stride + 4 - t.rank);
  for (int64_t a = 0; a < extent[0]; ++a)
    for (int64_t b = 0; b < extent[1]; ++b)
      for (int64_t c = 0; c < extent[2]; ++c)
        for (int64_t d = 0; d < extent[3]; ++d) visit(a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]);
}

int64_t last_extent(const ConstTensor& t) { return t.shape[static_cast<size_t>(t.rank - 1)]; }

// Contiguous, with extent 1 where the input repeats, since the gradient is a sum there.
Tensor summed_layout(const ConstTensor& input) {
  auto shape = input.shape;
  for (size_t d = 0; d < 3; ++d)
    if (input.stride[d] == 0) shape[d] = std::min<int64_t>(shape[d], 1);
  return contiguous<void>(nullptr, input.dtype, shape[0], shape[1], shape[2], shape[3]);
}

// The memory order of `input` with this last extent; contiguous where the input repeats or has another extent.
Tensor output_layout(const ConstTensor& input, int64_t extent) {
  bool contiguous = last_extent(input) != extent;
  for (size_t d = 0; d + 1 < static_cast<size_t>(input.rank); ++d)
    contiguous |= input.stride[d] == 0 && input.shape[d] > 1;
  if (!contiguous) return {nullptr, input.dtype, input.rank, input.shape, input.stride};
  if (input.rank == 3) return thd<void>(nullptr, input.dtype, input.shape[0], input.shape[1], extent);
  return bhsd<void>(nullptr, input.dtype, input.shape[0], input.shape[1], input.shape[2], extent);
}

Tensor lse_layout(const ConstTensor& q) {
  const DType type = state_type(q.dtype);
  if (q.rank == 3) return contiguous<void>(nullptr, type, q.shape[1], q.shape[0]);
  return contiguous<void>(nullptr, type, q.shape[0], q.shape[1], q.shape[2]);
}

// Reads an output back. Packed rows after the last sequence must be unchanged.
std::vector<double> take(Buffer& output, const ConstTensor& cu_seqlens, int row_dim) {
  if (cu_seqlens) output.limit(row_dim, static_cast<const int32_t*>(cu_seqlens.data)[cu_seqlens.shape[0] - 1]);
  EXPECT_EQ(output.damage(), "");
  return output.read();
}

}  // namespace

std::vector<double> values_of(const ConstTensor& t) {
  std::vector<double> values;
  for_each_offset(t, [&](int64_t offset) { values.push_back(load_element(t.data, t.dtype, offset)); });
  return values;
}

void fill(const Tensor& t, double value) {
  for_each_offset(t, [&](int64_t offset) { store_row(t.data, t.dtype, offset, 1, &value); });
}

void fill_normal(const Tensor& t, uint64_t seed, double deviation) {
  size_t count = 0;
  for_each_offset(t, [&](int64_t) { ++count; });
  std::vector<double> values(count);
  check::Random(seed).normals(values.data(), std::ssize(values), deviation);
  const double* next = values.data();
  for_each_offset(t, [&](int64_t offset) { store_row(t.data, t.dtype, offset, 1, next++); });
}

bool all_equal(const std::vector<double>& values, double expected) {
  return std::all_of(values.begin(), values.end(), [&](double value) { return value == expected; });
}

std::vector<double> part(const std::vector<double>& values, int64_t begin, int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

Inputs::Inputs(const Tensor& q_layout, const Tensor& k_layout, const Tensor& v_layout, const Tensor& o_layout)
    : q(q_layout), k(k_layout), v(v_layout), dout(o_layout), attention{.q = q.view(), .k = k.view(), .v = v.view()} {
  fill_normal(q.view(), 1), fill_normal(k.view(), 2), fill_normal(v.view(), 3), fill_normal(dout.view(), 4);
}

Inputs dense(const Sizes& s) {
  return {bhsd<void>(nullptr, s.dtype, s.batch, s.heads_q, s.len_q, s.dim),
          bhsd<void>(nullptr, s.dtype, s.batch, s.heads_k, s.len_k, s.dim),
          bhsd<void>(nullptr, s.dtype, s.batch, s.heads_k, s.len_k, s.dim_v),
          bhsd<void>(nullptr, s.dtype, s.batch, s.heads_q, s.len_q, s.dim_v)};
}

Inputs padded(const Sizes& s, const std::vector<int32_t>& used_q, const std::vector<int32_t>& used_k, double beyond) {
  Inputs in = dense(s);
  in.lengths_q = used_q, in.lengths_k = used_k;
  in.attention.seqlens_q = contiguous(std::as_const(in.lengths_q).data(), s.batch);
  in.attention.seqlens_k = contiguous(std::as_const(in.lengths_k).data(), s.batch);
  const auto spoil = [&](const Tensor& t, const std::vector<int32_t>& used) {
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t live = used[static_cast<size_t>(b)];
      fill(narrow(narrow(t, 0, b, 1), 2, live, t.shape[2] - live), beyond);
    }
  };
  spoil(in.q.view(), used_q), spoil(in.dout.view(), used_q), spoil(in.k.view(), used_k), spoil(in.v.view(), used_k);
  return in;
}

Inputs packed(const Sizes& s, const std::vector<int32_t>& cu_q, const std::vector<int32_t>& cu_k) {
  Inputs in{thd<void>(nullptr, s.dtype, s.len_q, s.heads_q, s.dim),
            thd<void>(nullptr, s.dtype, s.len_k, s.heads_k, s.dim),
            thd<void>(nullptr, s.dtype, s.len_k, s.heads_k, s.dim_v),
            thd<void>(nullptr, s.dtype, s.len_q, s.heads_q, s.dim_v)};
  in.lengths_q = cu_q, in.lengths_k = cu_k;
  in.attention.cu_seqlens_q = contiguous(std::as_const(in.lengths_q).data(), cu_q.size());
  in.attention.cu_seqlens_k = contiguous(std::as_const(in.lengths_k).data(), cu_k.size());
  const auto spoil = [](const Tensor& t, int64_t live) { fill(narrow(t, 0, live, t.shape[0] - live), kNan); };
  spoil(in.q.view(), cu_q.back()), spoil(in.dout.view(), cu_q.back());
  spoil(in.k.view(), cu_k.back()), spoil(in.v.view(), cu_k.back());
  return in;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}
bool same_bits(const Results& a, const Results& b) {
  return same_bits(a.o, b.o) && same_bits(a.lse, b.lse) && same_bits(a.dq, b.dq) && same_bits(a.dk, b.dk) &&
         same_bits(a.dv, b.dv) && same_bits(a.dbias, b.dbias) && same_bits(a.dsink, b.dsink);
}

Results run(const Attention& a, const ConstTensor& dout, const Call& call) {
  Buffer o(output_layout(a.q, last_extent(a.v)), call.offset, "o"), lse(lse_layout(a.q), call.offset, "lse");
  run_forward(a, {.o = o.view(), .lse = lse.view()}, call.execution);

  Buffer dq(output_layout(a.q, last_extent(a.q)), call.offset, "dq");
  Buffer dk(output_layout(a.k, last_extent(a.k)), call.offset, "dk");
  Buffer dv(output_layout(a.v, last_extent(a.v)), call.offset, "dv");
  Buffer dbias, dsink;
  BackwardTensors tensors{.o = o.view(), .lse = lse.view(), .dout = dout, .dlse = call.dlse};
  tensors.dq = dq.view(), tensors.dk = dk.view(), tensors.dv = dv.view();
  if (a.bias) dbias = Buffer(summed_layout(a.bias), call.offset, "dbias"), tensors.dbias = dbias.view();
  if (a.sink) {
    dsink = Buffer(contiguous<void>(nullptr, a.sink.dtype, a.sink.shape[0]), call.offset, "dsink");
    tensors.dsink = dsink.view();
  }
  run_backward(a, tensors, call.execution);

  Results r;
  r.o = take(o, a.cu_seqlens_q, 0), r.lse = take(lse, a.cu_seqlens_q, 1), r.dq = take(dq, a.cu_seqlens_q, 0);
  r.dk = take(dk, a.cu_seqlens_k, 0), r.dv = take(dv, a.cu_seqlens_k, 0);
  if (dbias) r.dbias = take(dbias, {}, 0);
  if (dsink) r.dsink = take(dsink, {}, 0);
  return r;
}

void expect_equals_oracle(const Attention& a, const ConstTensor& dout, const ConstTensor& dlse, const Results& r) {
  using check::Quantity;
  const auto expect = [&](const char* name, Quantity quantity, DType stored, const std::vector<double>& actual,
                          auto part_of, const auto& exact, const auto& naive, const auto& noise) {
    EXPECT_EQ(
        check::disagreement(name, quantity, a.q.dtype, stored, actual, exact.*part_of, naive.*part_of, noise.*part_of),
        "");
  };
  using reference::Forward, reference::Backward;
  const Forward exact = reference::oracle_forward(a), naive = reference::naive_forward(a);
  const Forward noise = reference::forward_noise(a);
  expect("o", Quantity::output, a.q.dtype, r.o, &Forward::o, exact, naive, noise);
  expect("lse", Quantity::lse, state_type(a.q.dtype), r.lse, &Forward::lse, exact, naive, noise);

  const Backward exact_gradients = reference::oracle_backward(a, dout, dlse);
  const Backward naive_gradients = reference::naive_backward(a, dout, dlse);
  const Backward gradient_noise = reference::backward_noise(a, dout, dlse);
  const auto expect_gradient = [&](const char* name, DType stored, const std::vector<double>& actual, auto part_of) {
    expect(name, Quantity::gradient, stored, actual, part_of, exact_gradients, naive_gradients, gradient_noise);
  };
  expect_gradient("dq", a.q.dtype, r.dq, &Backward::dq);
  expect_gradient("dk", a.q.dtype, r.dk, &Backward::dk);
  expect_gradient("dv", a.q.dtype, r.dv, &Backward::dv);
  if (a.bias) expect_gradient("dbias", a.bias.dtype, r.dbias, &Backward::dbias);
  if (a.sink) expect_gradient("dsink", a.sink.dtype, r.dsink, &Backward::dsink);
}

Results expect_matches_oracle(const Attention& a, const ConstTensor& dout, const Call& call) {
  Results r = run(a, dout, call);
  expect_equals_oracle(a, dout, call.dlse, r);
  return r;
}

void expect_same_in_another_layout(const Inputs& in, const Results& expected, const Call& call) {
  if (on_cuda()) {
    expect_matches_oracle(in, call);
  } else {
    EXPECT_TRUE(same_bits(run(in, call), expected));
  }
}

void expect_refused(const Attention& a, const std::string& argument, cuflash_status status) {
  Buffer o(output_layout(a.q, last_extent(a.v)), 0, "o");
  o.limit(0, 0);
  try {
    run_forward(a, {.o = o.view()}, {.check_lengths = true});
    ADD_FAILURE() << "the call must be refused because of " << argument;
  } catch (const FlashAttentionError& error) {
    EXPECT_EQ(error.status(), status);
    EXPECT_NE(std::string(error.what()).find(argument), std::string::npos) << error.what();
  }
  EXPECT_EQ(o.damage(), "");
}

}  // namespace cuflash::test
