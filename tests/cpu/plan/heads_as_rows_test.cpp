// Few queries of grouped heads: panels that hold rows of several heads equal the oracle, and have the same bits as those
// of heads apart, which calls with tile statistics use.
#include "cpu/plan/heads_as_rows.h"

#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

struct Shape {
  const char* name;
  int64_t batch, heads_q, heads_k, len_q, len_k;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

class HeadsAsRows : public testing::TestWithParam<std::tuple<Shape, DType>> {
 protected:
  static Inputs inputs() {
    const auto& [shape, type] = GetParam();
    return dense({shape.batch, shape.heads_q, shape.heads_k, shape.len_q, shape.len_k, 24, 40, type});
  }
  struct Outputs {
    std::vector<double> o, lse;
  };
  static Outputs forward(const Inputs& in, const Tensor& o_layout, TileStats* stats, int threads) {
    const ConstTensor& q = in.attention.q;
    Buffer o(o_layout);
    Buffer lse(
        contiguous<void>(nullptr, q.dtype == DType::f64 ? DType::f64 : DType::f32, q.shape[0], q.shape[1], q.shape[2]));
    flash_attention_forward(in.attention, {.o = o.view(), .lse = lse.view()},
                            {.num_threads = threads, .tile_stats = stats});
    EXPECT_EQ(o.damage() + lse.damage(), "");
    return {values_of(o.view()), values_of(lse.view())};
  }
};

TEST_P(HeadsAsRows, HaveTheBitsOfHeadsApart) {
  Inputs in = inputs();
  const ConstTensor& q = in.attention.q;
  const int64_t dim_v = in.attention.v.shape[3];
  const Tensor heads_first = contiguous<void>(nullptr, q.dtype, q.shape[0], q.shape[1], q.shape[2], dim_v);
  Tensor rows_first = heads_first;  // heads of a row are adjacent, so that results are copied
  rows_first.stride = {q.shape[2] * q.shape[1] * dim_v, dim_v, q.shape[1] * dim_v, 1};
  struct Geometry {
    bool causal;
    int64_t left;
    Alignment alignment;
  };
  for (const auto& [causal, left, alignment] :
       {Geometry{false, -1, Alignment::bottom_right}, Geometry{true, -1, Alignment::bottom_right},
        Geometry{true, 300, Alignment::bottom_right}, Geometry{true, -1, Alignment::top_left}}) {
    in.attention.causal = causal, in.attention.window_left = left, in.attention.alignment = alignment;
    in.attention.softcap = left > 0 ? 5 : 0;
    TileStats stats{};
    const Outputs apart = forward(in, heads_first, &stats, 1);
    EXPECT_GT(stats.visited, 0);
    for (const int threads : {1, 3})
      for (const Tensor& layout : {heads_first, rows_first}) {
        const Outputs together = forward(in, layout, nullptr, threads);
        EXPECT_TRUE(same_bits(together.o, apart.o));
        EXPECT_TRUE(same_bits(together.lse, apart.lse));
      }
    expect_matches_oracle(in);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, HeadsAsRows,
    testing::Combine(testing::Values(Shape{"FullPanels", 2, 8, 2, 8, 600}, Shape{"PanelsOfTwoHeads", 1, 6, 2, 21, 700},
                                     Shape{"OneKeyHead", 3, 5, 1, 17, 520}, Shape{"ShortKeys", 2, 4, 2, 33, 70},
                                     Shape{"MoreQueriesThanKeys", 1, 4, 2, 60, 31}),
                     testing::ValuesIn(kFloatTypes)),
    [](const auto& c) { return std::string(std::get<0>(c.param).name) + "_" + name_of(std::get<1>(c.param)); });

// Whether heads are rows must not depend on the strides where a call would otherwise take the decode path, whose bits
// differ.
TEST(HeadsAsRowsOfAProblem, AreDecidedWithoutStrides) {
  ForwardProblem p;
  p.batch = 1, p.heads_q = 32, p.heads_k = 8, p.len_q = 16, p.len_k = 2048, p.dim_qk = p.dim_v = 128;
  EXPECT_TRUE(cpu::group_fills_panels(p));
  EXPECT_TRUE(cpu::has_heads_as_rows(p));
  p.q.data = p.o.data = &p;
  p.q.head_stride = p.o.head_stride = 128, p.q.row_stride = p.o.row_stride = 32 * 128;
  EXPECT_TRUE(cpu::has_heads_as_rows(p)) << "copies are made";
  EXPECT_FALSE(cpu::is_uniform(p));
  p.len_k = 100;
  EXPECT_FALSE(cpu::group_fills_panels(p)) << "copies would cost too much";
  p.len_k = 2048, p.len_q = 2;
  EXPECT_FALSE(cpu::has_heads_as_rows(p)) << "decode";
}

}  // namespace
}  // namespace cuflash::test
