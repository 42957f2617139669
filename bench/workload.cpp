#include "bench/workload.h"

#include <random>

#include "dtype.h"

namespace cuflash::bench {

const char* name_of(Option option) {
  switch (option) {
    case Option::none: return "plain";
    case Option::causal: return "causal";
    case Option::dropout: return "dropout 0.1";
    case Option::bias: return "bias";
    case Option::dbias: return "bias with its gradient";
    case Option::shared_dbias: return "bias of all heads, with its gradient";
    case Option::mask: return "mask tensor";
    case Option::documents: return "mask tensor, eight documents";
    case Option::alibi: return "ALiBi";
    case Option::softcap: return "softcap 30";
    case Option::window: return "window of a quarter";
    case Option::padding: return "padded, three quarters used";
    case Option::sink: return "sink";
  }
  return "";
}

std::vector<float> random_values(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

Workload::Workload(const Shape& shape) : shape_(shape), lse_(static_cast<size_t>(shape.heads * shape.length)) {
  const int64_t elements = shape.heads * shape.length * shape.dim;
  for (uint32_t seed = 0; Bytes * bytes : {&q_, &k_, &v_, &dout_}) {
    bytes->resize(static_cast<size_t>(elements * size_of(shape.type)));
    store_row(bytes->data(), shape.type, 0, elements, random_values(elements, ++seed).data());
  }
  for (Bytes* bytes : {&o_, &dq_, &dk_, &dv_}) bytes->resize(q_.size());
  attention_ = {.q = tensor(q_), .k = tensor(k_), .v = tensor(v_)};
  add_option();
}

void Workload::add_option() {
  const int64_t heads = shape_.heads, length = shape_.length;
  switch (shape_.option) {
    case Option::none: return;
    case Option::causal: attention_.causal = true; return;
    case Option::dropout: attention_.dropout_p = 0.1, attention_.dropout_seed = 1; return;
    case Option::dbias: dbias_.resize(static_cast<size_t>(heads * length * length)); [[fallthrough]];
    case Option::bias:
      bias_ = random_values(heads * length * length, 5);
      attention_.bias = contiguous(bias_.data(), int64_t{1}, heads, length, length);
      return;
    case Option::shared_dbias:
      dbias_.resize(static_cast<size_t>(length * length));
      bias_ = random_values(length * length, 5);
      attention_.bias = contiguous(bias_.data(), int64_t{1}, int64_t{1}, length, length);
      return;
    case Option::mask: {
      mask_.resize(static_cast<size_t>(heads * length * length));
      std::mt19937 engine(6);
      for (uint8_t& allowed : mask_) allowed = engine() % 8 != 0;
      attention_.mask = contiguous(mask_.data(), int64_t{1}, heads, length, length);
      return;
    }
    case Option::documents:
      mask_.resize(static_cast<size_t>(length * length));
      for (int64_t i = 0; i < length; ++i)
        for (int64_t j = 0; j < length; ++j)
          mask_[static_cast<size_t>(i * length + j)] = i * 8 / length == j * 8 / length;
      attention_.mask = contiguous(mask_.data(), int64_t{1}, int64_t{1}, length, length);
      return;
    case Option::alibi:
      for (int64_t h = 0; h < heads; ++h) per_head_.push_back(1.0f / static_cast<float>(2 << h));
      attention_.alibi_slopes = contiguous(per_head_.data(), heads);
      return;
    case Option::softcap: attention_.softcap = 30; return;
    case Option::window: attention_.window_left = length / 8, attention_.window_right = length / 8; return;
    case Option::padding:
      lengths_ = {static_cast<int32_t>(length * 3 / 4)};
      attention_.seqlens_q = attention_.seqlens_k = contiguous(lengths_.data(), int64_t{1});
      return;
    case Option::sink:
      per_head_ = random_values(heads, 7), dsink_.resize(per_head_.size());
      attention_.sink = contiguous(per_head_.data(), heads);
      return;
  }
}

BackwardTensors Workload::gradients() {
  BackwardTensors t{.o = tensor(o_), .lse = lse(), .dout = tensor(dout_)};
  t.dq = tensor(dq_), t.dk = tensor(dk_), t.dv = tensor(dv_);
  const int64_t bias_heads = shape_.option == Option::shared_dbias ? 1 : shape_.heads;
  if (!dbias_.empty()) t.dbias = contiguous(dbias_.data(), int64_t{1}, bias_heads, shape_.length, shape_.length);
  if (!dsink_.empty()) t.dsink = contiguous(dsink_.data(), shape_.heads);
  return t;
}

double Workload::pairs() const {
  const auto length = static_cast<double>(shape_.length);
  double pairs = static_cast<double>(shape_.heads) * length * length;
  if (shape_.option == Option::causal) pairs /= 2;
  return pairs;
}

}  // namespace cuflash::bench
