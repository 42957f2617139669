#include "cli/tensor_file.h"

#include <cstring>

#include "cli/exit.h"
#include "cli/npy_header.h"
#include "cli/text.h"
#include "dtype.h"

namespace cuflash::cli {

namespace {

NpyType npy_type_of(DType type) { return state_type(type) == DType::f64 ? NpyType::f64 : NpyType::f32; }

Tensor view_of(const std::vector<int64_t>& file_shape, DType type, Arrangement arrangement) {
  constexpr size_t kMostDimensions = 4;
  const std::string got = join("its shape is ", shape_text(file_shape));
  if (file_shape.empty()) throw UsageError(join(got, ": a single number, where an array is expected"));
  if (file_shape.size() > kMostDimensions) throw UsageError(join(got, ", but at most 4 dimensions have a meaning"));
  std::vector<int64_t> shape = file_shape;
  if (arrangement == Arrangement::leading_ones) shape.insert(shape.begin(), kMostDimensions - shape.size(), 1);

  Tensor view{nullptr, type, static_cast<int32_t>(shape.size()), {}, {}};
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    view.shape[d] = shape[d];
    view.stride[d] = stride;
    stride *= shape[d];
  }
  if (arrangement == Arrangement::heads_third && view.rank == 4) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.stride[1], view.stride[2]);
  }
  return view;
}

HostTensor tensor_of(const std::vector<int64_t>& file_shape, DType type, Arrangement arrangement,
                     std::vector<std::byte> bytes) {
  HostTensor tensor{file_shape, std::move(bytes), view_of(file_shape, type, arrangement)};
  tensor.view.data = tensor.bytes.data();
  return tensor;
}

// Runs `make` and puts the flag and the file in front of what goes wrong in it.
template <class Make>
HostTensor named(const char* flag, const std::string& path, Make make) {
  try {
    return make();
  } catch (const UsageError& error) {
    throw UsageError(join(flag, " ", quoted(path), ": ", error.what()));
  }
}

}  // namespace

HostTensor zeros(const std::vector<int64_t>& file_shape, DType type, Arrangement arrangement) {
  // The size is checked as that of the file it will become, which is never smaller.
  const int64_t file_bytes = npy_data_bytes(npy_type_of(type), file_shape);
  const int64_t bytes = file_bytes / size_of(npy_type_of(type)) * size_of(type);
  return tensor_of(file_shape, type, arrangement, allocate(bytes));
}

HostTensor to_tensor(const char* flag, const std::string& path, const NpyArray& array, DType type,
                     Arrangement arrangement) {
  return named(flag, path, [&] { return tensor_of(array.shape, type, arrangement, convert(array, type)); });
}

HostTensor load_values(const char* flag, const std::string& path, DType type, Arrangement arrangement) {
  if (path.empty()) return {};
  return to_tensor(flag, path, read_npy(path), type, arrangement);
}

HostTensor load_mask(const char* flag, const std::string& path) {
  if (path.empty()) return {};
  const NpyArray array = read_npy(path);
  return named(flag, path,
               [&] { return tensor_of(array.shape, DType::boolean, Arrangement::leading_ones, to_bool(array)); });
}

HostTensor load_lengths(const char* flag, const std::string& path) {
  if (path.empty()) return {};
  const NpyArray array = read_npy(path);
  return named(flag, path, [&] {
    const std::vector<int32_t> lengths = to_int32(array);
    std::vector<std::byte> bytes = allocate(static_cast<int64_t>(lengths.size() * sizeof(int32_t)));
    if (!lengths.empty()) std::memcpy(bytes.data(), lengths.data(), bytes.size());
    return tensor_of(array.shape, DType::i32, Arrangement::plain, std::move(bytes));
  });
}

DType float_type_of(const char* flag, const std::string& path, const NpyArray& array) {
  switch (array.type) {
    case NpyType::f16: return DType::f16;
    case NpyType::f32: return DType::f32;
    case NpyType::f64: return DType::f64;
    default:
      throw UsageError(join(flag, " ", quoted(path), ": holds ", name_of(array.type),
                            "; say with --dtype in which type to compute: f64, f32, f16 or bf16"));
  }
}

NpyArray to_npy(const HostTensor& tensor) {
  const DType type = tensor.view.dtype;
  NpyArray array{npy_type_of(type), tensor.file_shape, {}};
  if (state_type(type) == type) {
    array.bytes = tensor.bytes;
    return array;
  }
  const int64_t count = array.count();
  array.bytes = allocate(count * size_of(array.type));
  load_row(tensor.bytes.data(), type, 0, count, reinterpret_cast<float*>(array.bytes.data()));
  return array;
}

}  // namespace cuflash::cli
