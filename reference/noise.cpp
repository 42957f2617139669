#include "noise.h"

#include <cmath>
#include <limits>

#include "dtype.h"
#include "inputs.h"
#include "softmax_row.h"

namespace cuflash::reference {

namespace {

double dot_of_magnitudes(const double* a, const double* b, int64_t count) {
  return sum_of(count, [=](int64_t d) { return std::abs(a[d] * b[d]); });
}

double square(double x) { return x * x; }

// The errors of one query's softmax and output.
struct RowNoise {
  std::vector<double> score;      // absolute error of each visible score, which is the relative error of its p
  std::vector<double> cap_slope;  // absolute error of the slope of softcap
  double lse;
  std::vector<double> o, o_value;  // error of the output row, and the row
  std::vector<double> o_storage;   // what rounding P to the type of q adds to the error
};

class NoiseModel {
 public:
  NoiseModel(const Inputs& inputs, const Head& of_head)
      : in(inputs),
        head(of_head),
        compute(state_type(in.attention.q.dtype) == DType::f64 ? 0x1p-53 : 0x1p-24),
        storage(in.attention.q.dtype == DType::f16    ? 0x1p-11
                : in.attention.q.dtype == DType::bf16 ? 0x1p-8
                                                      : compute),
        denormal(in.attention.q.dtype == DType::f16 ? 0x1p-25 : 0),
        q(in.load_q<double>(head)),
        k(in.load_k<double>(head)),
        v(in.load_v<double>(head)) {}

  SoftmaxRow softmax(int64_t i) const { return softmax_row(in, head, i, q.data() + i * in.dim, k.data()); }

  RowNoise row(int64_t i, const SoftmaxRow& r) const {
    RowNoise noise;
    score_noise(i, r, noise);
    // Writing p_sink for the sink's share: d LSE = sum p_j ds_j + p_sink dsink.
    const double p_sink = std::exp(head.sink - r.lse);
    const double sink_noise = p_sink == 0 ? 0 : p_sink * compute * (2 * std::abs(head.sink) + std::abs(r.max) + 4);
    noise.lse = compute * (std::abs(r.lse) + 2) + sink_noise;
    for (size_t n = 0; n < r.keys.size(); ++n) noise.lse += r.p[n] * noise.score[n];
    output_noise(r, sink_noise, noise);
    return noise;
  }

  void store(int64_t i, const RowNoise& noise, Forward& result) const {
    const int64_t o_row = in.q_rows(head)(i);
    for (int64_t d = 0; d < in.dim_v; ++d) {
      const size_t at = static_cast<size_t>(d);
      result.o[static_cast<size_t>(o_row * in.dim_v + d)] = noise.o[at] + noise.o_storage[at];
    }
    result.lse[static_cast<size_t>(in.lse_rows(head)(i))] = noise.lse;
  }

  void backward(const ConstTensor& dout, const ConstTensor& dlse, Backward& linear, Backward& squares,
                Forward* forward) const {
    const auto d_o = in.load_dout<double>(dout, head), d_lse = in.load_dlse<double>(dlse, head);
    for (int64_t i = 0; i < head.len_q; ++i) {
      const SoftmaxRow r = softmax(i);
      if (std::isinf(r.lse) && r.lse < 0) continue;
      // Products take dO in the type of q.
      const double dout_rounding = size_of(dout.dtype) > size_of(in.attention.q.dtype) ? storage : 0;
      const RowNoise noise = row(i, r);
      if (forward) store(i, noise, *forward);
      backward_row(i, r, noise, d_o.data() + i * in.dim_v, dout_rounding, d_lse[static_cast<size_t>(i)], linear,
                   squares);
    }
  }

 private:
  const Inputs& in;
  const Head& head;
  const double compute, storage;  // the largest relative error of one rounding
  const double denormal;          // the absolute error of tiny values, if it can matter
  const std::vector<double> q, k, v;

  // The error of a sum of `count` products, relative to the sum of their magnitudes. Roundings are a random walk, which grows
  // with the square root of the count; a quarter of that, since backends sum in several lanes.
  double sum_error(int64_t count) const { return compute * (2 + 0.25 * std::sqrt(static_cast<double>(count))); }

  // Every term of a score is rounded, and so are s - m and exp.
  void score_noise(int64_t i, const SoftmaxRow& r, RowNoise& noise) const {
    for (size_t n = 0; n < r.keys.size(); ++n) {
      const int64_t j = r.keys[n];
      const double raw = std::abs(in.scale) * dot_of_magnitudes(q.data() + i * in.dim, k.data() + j * in.dim, in.dim);
      const double terms = std::abs(in.alibi(head, i, j)) + std::abs(in.bias(head, i, j));
      const double s = r.score[n];
      const double rest = compute * (2 * terms + 2 * std::abs(s) + std::abs(r.max) + 4);
      noise.score.push_back(r.p[n] == 0 ? 0 : r.cap_slope[n] * raw * sum_error(in.dim) + rest);
      const double cap = in.attention.softcap;
      noise.cap_slope.push_back(cap > 0 ? compute * 2 + 2 * r.cap_slope[n] * raw * sum_error(in.dim) / cap : 0);
    }
  }

  // d o = sum p_j ds_j (keep_j v_j - o) - p_sink dsink o, and the roundings of P and of the sum.
  void output_noise(const SoftmaxRow& r, double sink_noise, RowNoise& noise) const {
    const auto width = static_cast<size_t>(in.dim_v);
    std::vector<double> magnitude(width), squares(width), moved(width);
    noise.o_value.resize(width);
    for (size_t n = 0; n < r.keys.size(); ++n) {
      const double* v_j = v.data() + r.keys[n] * in.dim_v;
      const double weight = r.p[n] * r.keep[n];
      for (size_t d = 0; d < width; ++d) {
        const double term = weight * v_j[d];
        noise.o_value[d] += term;
        magnitude[d] += std::abs(term);
        squares[d] += square(term);
      }
    }
    for (size_t n = 0; n < r.keys.size(); ++n) {
      const double* v_j = v.data() + r.keys[n] * in.dim_v;
      const double error = r.p[n] * noise.score[n];
      for (size_t d = 0; d < width; ++d) moved[d] += error * std::abs(r.keep[n] * v_j[d] - noise.o_value[d]);
    }
    for (size_t d = 0; d < width; ++d) {
      noise.o.push_back(moved[d] + sink_noise * std::abs(noise.o_value[d]) + sum_error(head.len_k) * magnitude[d]);
      noise.o_storage.push_back(storage * std::sqrt(squares[d]));
    }
  }

  void backward_row(int64_t i, const SoftmaxRow& r, const RowNoise& noise, const double* do_i, double dout_rounding,
                    double dlse_i, Backward& linear, Backward& squares) const {
    double delta = -dlse_i, delta_noise = compute * std::abs(dlse_i), delta_squares = 0;
    for (int64_t d = 0; d < in.dim_v; ++d) {
      const size_t at = static_cast<size_t>(d);
      const double term = do_i[d] * noise.o_value[at];
      delta += term;
      delta_noise += sum_error(in.dim_v) * std::abs(term) + std::abs(do_i[d]) * noise.o[at];
      // O is read back in the type it was stored in.
      const double stored_o = std::max(storage * std::abs(noise.o_value[at]), denormal);
      delta_squares += square(do_i[d] * noise.o_storage[at]) + square(do_i[d] * stored_o);
    }
    if (in.attention.sink) {
      const size_t h = static_cast<size_t>(head.h);
      const double p_sink = std::exp(head.sink - r.lse);
      linear.dsink[h] += p_sink * (delta_noise + std::abs(delta) * (noise.lse + 4 * compute));
      squares.dsink[h] += p_sink * p_sink * delta_squares;
    }

    const int64_t q_row = in.q_rows(head)(i);
    const double q_sum = sum_error(head.len_q * (in.heads_q / in.heads_k));
    std::vector<double> mean_k(static_cast<size_t>(in.dim), 0);  // the factor of an error of delta in dQ
    for (size_t n = 0; n < r.keys.size(); ++n) {
      const int64_t j = r.keys[n], k_row = in.k_rows(head)(j);
      const double *v_j = v.data() + j * in.dim_v, *k_j = k.data() + j * in.dim;
      const double p_noise = noise.score[n] + noise.lse;  // relative: P is recomputed from s and LSE
      const double dp = r.keep[n] * dot(do_i, v_j, in.dim_v);
      const double dp_noise = sum_error(in.dim_v) * r.keep[n] * dot_of_magnitudes(do_i, v_j, in.dim_v);
      double ds = r.p[n] * (dp - delta);
      double ds_noise = r.p[n] * (std::abs(dp - delta) * (p_noise + 2 * compute) + dp_noise + delta_noise);
      // An error of dO moves both dP and delta; only the difference counts.
      double dout_squares = 0;
      if (dout_rounding > 0) {
        const double *o = noise.o_value.data(), keep = r.keep[n];
        const auto term = [=](int64_t d) { return square(dout_rounding * do_i[d] * (keep * v_j[d] - o[d])); };
        dout_squares = square(r.p[n]) * sum_of(in.dim_v, term);
      }
      double ds_squares = square(r.p[n]) * delta_squares + dout_squares;
      if (in.attention.bias) {
        const size_t at = static_cast<size_t>(in.dbias_index(head, i, j));
        linear.dbias[at] += ds_noise;
        squares.dbias[at] += ds_squares;
      }
      ds_noise = ds_noise * r.cap_slope[n] + std::abs(ds) * noise.cap_slope[n];
      ds_squares *= square(r.cap_slope[n]), dout_squares *= square(r.cap_slope[n]);
      ds *= r.cap_slope[n];

      const double dropped_p = r.p[n] * r.keep[n], s = in.scale;
      add(linear.dv, squares.dv, k_row, do_i, in.dim_v,
          {dropped_p, dropped_p * p_noise, square(dropped_p * dout_rounding), q_sum});
      add(linear.dq, squares.dq, q_row, k_j, in.dim,
          {s * ds, s * ds_noise, s * s * dout_squares, sum_error(head.len_k)});
      add(linear.dk, squares.dk, k_row, q.data() + i * in.dim, in.dim,
          {s * ds, s * ds_noise, s * s * ds_squares, q_sum});
      for (int64_t d = 0; d < in.dim; ++d) mean_k[static_cast<size_t>(d)] += s * r.p[n] * r.cap_slope[n] * k_j[d];
    }
    for (int64_t d = 0; d < in.dim; ++d) {
      squares.dq[static_cast<size_t>(q_row * in.dim + d)] += delta_squares * square(mean_k[static_cast<size_t>(d)]);
    }
  }

  // A factor of a product: its value and error, the square of an error of random sign, and the error of the sum it enters.
  struct Factor {
    double value, noise, squares, sum_error;
  };

  // The error that factor * x adds to a sum of such terms. Rounding to 16 bits has a random sign for each term, so
  // those errors add as squares; errors of a score may all have the same sign and add linearly.
  void add(std::vector<double>& linear, std::vector<double>& squares, int64_t row, const double* x, int64_t width,
           const Factor& factor) const {
    for (int64_t d = 0; d < width; ++d) {
      const size_t at = static_cast<size_t>(row * width + d);
      linear[at] += std::abs(factor.noise * x[d]) + factor.sum_error * std::abs(factor.value * x[d]);
      squares[at] += (square(storage * factor.value) + factor.squares) * square(x[d]);
    }
  }
};

void add_root(std::vector<double>& linear, const std::vector<double>& squares) {
  for (size_t n = 0; n < linear.size(); ++n) linear[n] += std::sqrt(squares[n]);
}

}  // namespace

static Forward empty_noise(const Inputs& in) {
  Forward result = in.empty_forward();
  std::fill(result.lse.begin(), result.lse.end(), 0);
  return result;
}

Forward forward_noise(const Attention& attention) {
  const Inputs in(attention);
  Forward result = empty_noise(in);
  for (const Head& head : in.heads) {
    const NoiseModel model(in, head);
    for (int64_t i = 0; i < head.len_q; ++i) {
      const SoftmaxRow r = model.softmax(i);
      if (std::isinf(r.lse) && r.lse < 0) continue;
      model.store(i, model.row(i, r), result);
    }
  }
  return result;
}

Backward backward_noise(const Attention& attention, const ConstTensor& dout, const ConstTensor& dlse,
                        Forward* forward) {
  const Inputs in(attention);
  if (forward) *forward = empty_noise(in);
  Backward linear = in.empty_backward(), squares = in.empty_backward();
  for (const Head& head : in.heads) NoiseModel(in, head).backward(dout, dlse, linear, squares, forward);
  for (auto of : {&Backward::dq, &Backward::dk, &Backward::dv, &Backward::dbias, &Backward::dsink}) {
    add_root(linear.*of, squares.*of);
  }
  return linear;
}

}  // namespace cuflash::reference
