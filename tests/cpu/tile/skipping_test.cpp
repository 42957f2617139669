// Tiles reported as skipped are not read: their memory is unreadable here.
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

// Rows of one page each, so that rows a call must not touch can be made unreadable.
class PagedRows {
 public:
  explicit PagedRows(int64_t rows) : rows_(rows), bytes_(static_cast<size_t>(rows) * static_cast<size_t>(page())) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~PagedRows() { munmap(data_, bytes_); }
  PagedRows(const PagedRows&) = delete;
  PagedRows& operator=(const PagedRows&) = delete;

  Tensor view(int64_t dim) const {
    const int64_t stride = page() / 4;
    return {data_, DType::f32, 4, {1, 1, rows_, dim}, {stride * rows_, stride * rows_, stride, 1}};
  }
  void forbid(int64_t begin, int64_t end) const {
    ASSERT_EQ(
        mprotect(static_cast<char*>(data_) + begin * page(), static_cast<size_t>((end - begin) * page()), PROT_NONE),
        0);
  }

 private:
  static int64_t page() { return sysconf(_SC_PAGESIZE); }
  int64_t rows_;
  size_t bytes_;
  void* data_;
};

struct PagedProblem {
  PagedRows k, v;
  Inputs in;

  PagedProblem(int64_t len_q, int64_t len_k) : k(len_k), v(len_k), in(dense({.len_q = len_q, .len_k = 1})) {
    in.attention.k = k.view(8), in.attention.v = v.view(8);
    fill_normal(k.view(8), 2), fill_normal(v.view(8), 3);
  }

  Results run_all() {
    Buffer o(in.dout.view()), lse(contiguous<void>(nullptr, DType::f32, 1, 1, in.attention.q.shape[2])),
        dq(in.q.view());
    Buffer dk(bhsd<void>(nullptr, DType::f32, 1, 1, in.attention.k.shape[2], 8)), dv(dk.view());
    flash_attention_forward(in.attention, {.o = o.view(), .lse = lse.view()});
    BackwardTensors tensors{.o = o.view(), .lse = lse.view(), .dout = in.dout.view()};
    tensors.dq = dq.view(), tensors.dk = dk.view(), tensors.dv = dv.view();
    flash_attention_backward(in.attention, tensors);
    return {o.read(), lse.read(), dq.read(), dk.read(), dv.read(), {}, {}};
  }
};

// A tile with a visible key is read as a whole. No tile is longer than this.
constexpr int64_t kMargin = 256;

void expect_unread(PagedProblem& p, int64_t begin, int64_t end) {
  const Results expected = p.run_all();
  p.k.forbid(begin, end), p.v.forbid(begin, end);
  const Results r = p.run_all();
  EXPECT_TRUE(same_bits(r, expected));
  EXPECT_TRUE(all_equal(part(r.dk, begin * 8, (end - begin) * 8), 0));
}

TEST(SkippedTiles, KeysBehindTheLastQueryOfACausalProblem) {
  PagedProblem p(100, 1024);
  p.in.attention.causal = true;
  p.in.attention.alignment = Alignment::top_left;
  expect_unread(p, 100 + kMargin, 1024);
}

TEST(SkippedTiles, KeysBeforeTheWindow) {
  PagedProblem p(100, 1024);
  p.in.attention.window_left = 20;
  expect_unread(p, 0, 1024 - 100 - 20 - kMargin);
}

TEST(SkippedTiles, KeysBehindTheWindow) {
  PagedProblem p(100, 1024);
  p.in.attention.window_right = 20;
  p.in.attention.alignment = Alignment::top_left;
  expect_unread(p, 100 + 20 + kMargin, 1024);
}

// Beyond a length nothing is read at all, not even inside the last tile.
TEST(SkippedTiles, KeysBeyondTheLength) {
  PagedProblem p(100, 1024);
  const int32_t used = 70;
  p.in.attention.seqlens_k = contiguous(&used, 1);
  expect_unread(p, 70, 1024);
}

}  // namespace
}  // namespace cuflash::test
