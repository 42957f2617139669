// Tests the harness: illegal accesses of a backend are detected.
#include "check/memory/guarded.h"

#include <gtest/gtest.h>

#include "check/cases/memory.h"
#include "check/run/sweep.h"

namespace cuflash::check {
namespace {

// [2, 3, 4] with a gap of 2 elements after every row.
GuardedTensor strided_output(DType dtype) {
  GuardedTensor t("t", dtype, {2, 3, 4}, {18, 6, 1}, 3);
  t.poison();
  return t;
}

void write_all(GuardedTensor& t) { t.write(std::vector<double>(24, 0.5)); }

class GuardedMemory : public testing::TestWithParam<DType> {};

TEST_P(GuardedMemory, ElementsMayBeWritten) {
  GuardedTensor t = strided_output(GetParam());
  EXPECT_NE(t.unwritten(), "");
  write_all(t);
  EXPECT_EQ(t.unwritten(), "");
  EXPECT_EQ(t.damage(), "");
  EXPECT_EQ(t.read(), std::vector<double>(24, 0.5));
}

TEST_P(GuardedMemory, WritesBeforeBehindAndBetweenRowsAreFound) {
  for (const int64_t offset : {-1, -16, 4, 5, 17, 34, 34 + 16}) {
    GuardedTensor t = strided_output(GetParam());
    write_all(t);
    t.set(offset, 0);
    EXPECT_NE(t.damage(), "") << offset;
  }
}

TEST_P(GuardedMemory, AnElementLeftOutIsFound) {
  GuardedTensor t = strided_output(GetParam());
  int64_t last = 0;
  t.for_each([&](const Index&, int64_t offset) { last = offset; });
  t.for_each([&](const Index&, int64_t offset) {
    if (offset != last) t.set(offset, 1);
  });
  EXPECT_NE(t.unwritten().find("[1,2,3,0]"), std::string::npos) << t.unwritten();
}

TEST_P(GuardedMemory, RowsThatDoNotExistMayNotBeWritten) {
  GuardedTensor t = strided_output(GetParam());
  t.limit(0, 1);
  write_all(t);
  EXPECT_NE(t.damage(), "");
}

TEST_P(GuardedMemory, InputsMayNotChange) {
  GuardedTensor t = strided_output(GetParam());
  write_all(t);
  t.freeze();
  EXPECT_EQ(t.damage(), "");
  t.set(7, 1);
  EXPECT_NE(t.damage(), "");
}

INSTANTIATE_TEST_SUITE_P(Types, GuardedMemory, testing::Values(DType::f64, DType::f32, DType::f16, DType::bf16));

// Inputs are filled, and building a case damages nothing.
TEST(CaseMemory, BuildsEveryCaseUndamaged) {
  for (uint64_t index = 0; index < 300; ++index) {
    CaseMemory memory(sweep_case(3, index));
    memory.start_forward();
    EXPECT_EQ(memory.damage(), "") << describe(sweep_case(3, index));
    EXPECT_EQ(memory.q.unwritten() + memory.k.unwritten() + memory.v.unwritten(), "");
  }
}

}  // namespace
}  // namespace cuflash::check
