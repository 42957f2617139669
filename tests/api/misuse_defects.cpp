#include <limits>

#include "tests/api/misuse.h"

namespace cuflash::rejections {
namespace {

using Values = Defect::Values;

constexpr int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();
constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();

const Defect kDefects[] = {
    {"data is NULL",
     [](const Slot& s) -> Values {
       s.set_data(nullptr);
       return {{"NULL"}};
     }},
    {"data is misaligned",
     [](const Slot& s) -> Values {
       if (size_of(s.type()) == 1) return std::nullopt;
       s.set_data(static_cast<const char*>(s.data) + 1);
       return {{"aligned"}};
     }},
    {"data is no address",
     [](const Slot& s) -> Values {
       if (size_of(s.type()) == 1) return std::nullopt;
       s.set_data(reinterpret_cast<const void*>(~uintptr_t{0}));
       return {{"aligned"}};
     }},
    {"dtype 0", [](const Slot& s) -> Values { return *s.dtype = 0, Values{{"0"}}; }},
    {"dtype 2^31 - 1", [](const Slot& s) -> Values { return *s.dtype = kMax, Values{{text(kMax)}}; }},
    {"dtype negative", [](const Slot& s) -> Values { return *s.dtype = kMin, Values{{text(kMin)}}; }},
    {"rank -1",
     [](const Slot& s) -> Values {
       return *s.rank = -1, Values{{"rank", "-1"}};
     }},
    {"rank 5",
     [](const Slot& s) -> Values {
       return *s.rank = 5, Values{{"rank", "5"}};
     }},
    {"rank 2^31 - 1",
     [](const Slot& s) -> Values {
       return *s.rank = kMax, Values{{"rank", text(kMax)}};
     }},
    {"rank -2^31",
     [](const Slot& s) -> Values {
       return *s.rank = kMin, Values{{"rank", text(kMin)}};
     }},
    {"rank 0 with data",
     [](const Slot& s) -> Values {
       return *s.rank = 0, Values{{"rank", "0"}};
     }},
    {"first extent -1", [](const Slot& s) -> Values { return s.shape[0] = -1, Values{{"-1"}}; }},
    {"last extent -2^63", [](const Slot& s) -> Values { return s.shape[s.last()] = kLowest, Values{{text(kLowest)}}; }},
    {"first extent 2^63 - 1", [](const Slot& s) -> Values { return s.shape[0] = kHighest, Values{{text(kHighest)}}; }},
    {"last extent 2^31",
     [](const Slot& s) -> Values { return s.shape[s.last()] = int64_t{1} << 31, Values{{text(int64_t{1} << 31)}}; }},
    {"first stride -1",
     [](const Slot& s) -> Values {
       return s.stride[0] = -1, Values{{"stride", "-1"}};
     }},
    {"first stride -2^63", [](const Slot& s) -> Values { return s.stride[0] = kLowest, Values{{text(kLowest)}}; }},
    {"last stride 0", [](const Slot& s) -> Values { return s.stride[s.last()] = 0, Values{{"contiguous"}}; }},
    {"last stride 2",
     [](const Slot& s) -> Values {
       return s.stride[s.last()] = 2, Values{{"contiguous", "2"}};
     }},
    {"last stride 2^63 - 1",
     [](const Slot& s) -> Values { return s.stride[s.last()] = kHighest, Values{{"contiguous"}}; }},
    {"first stride 2^63 - 1",
     [](const Slot& s) -> Values {
       if (*s.rank < 2) return std::nullopt;
       return s.stride[0] = kHighest, Values{{text(kHighest)}};
     }},
    {"rows of an output share memory",
     [](const Slot& s) -> Values {
       if (*s.rank < 2 || !s.is_output) return std::nullopt;
       return s.stride[0] = 1, Values{{"share memory"}};
     }},
};

}  // namespace

std::span<const Defect> tensor_defects() { return kDefects; }

}  // namespace cuflash::rejections
