#include "files/tensors/tensor_file.h"

#include <cstring>

#include "dtype.h"
#include "files/error.h"
#include "files/tensors/convert.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

// The element type in files for a type that attention computes in.
ElementType element_type_of(DType type) {
  switch (type) {
    case DType::f64: return ElementType::f64;
    case DType::f16: return ElementType::f16;
    case DType::bf16: return ElementType::bf16;
    default: return ElementType::f32;
  }
}

Tensor view_of(const std::vector<int64_t>& file_shape, DType type, Arrangement arrangement) {
  constexpr size_t kMaxDimensions = 4;
  const std::string got = join("its shape is ", shape_text(file_shape));
  if (file_shape.empty()) throw FileError(join(got, ": a single number, where an array is expected"));
  if (file_shape.size() > kMaxDimensions) throw FileError(join(got, ", but at most 4 dimensions are allowed"));
  std::vector<int64_t> shape = file_shape;
  if (arrangement == Arrangement::leading_ones) shape.insert(shape.begin(), kMaxDimensions - shape.size(), 1);

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

// Runs `make` and prefixes its errors with the flag and the file.
template <class Make>
HostTensor named(const char* flag, const std::string& file, Make make) {
  try {
    return make();
  } catch (const FileError& error) {
    throw FileError(join(flag, " ", in_quotes(file), ": ", error.what()));
  }
}

}  // namespace

HostTensor zeros(const std::vector<int64_t>& file_shape, DType type, Arrangement arrangement) {
  // Checks the size of the largest file it may become.
  const ElementType largest = element_type_of(state_type(type));
  const int64_t bytes = data_bytes(largest, file_shape) / size_of(largest) * size_of(type);
  return tensor_of(file_shape, type, arrangement, allocate(bytes));
}

HostTensor to_tensor(const char* flag, const std::string& file, const Array& array, DType type,
                     Arrangement arrangement) {
  return named(flag, file, [&] { return tensor_of(array.shape, type, arrangement, convert(array, type)); });
}

HostTensor load_values(const char* flag, const std::string& file, DType type, Arrangement arrangement) {
  if (file.empty()) return {};
  return to_tensor(flag, file, read_array(flag, file), type, arrangement);
}

HostTensor load_mask(const char* flag, const std::string& file) {
  if (file.empty()) return {};
  const Array array = read_array(flag, file);
  return named(flag, file,
               [&] { return tensor_of(array.shape, DType::boolean, Arrangement::leading_ones, to_bool(array)); });
}

HostTensor load_lengths(const char* flag, const std::string& file) {
  if (file.empty()) return {};
  const Array array = read_array(flag, file);
  return named(flag, file, [&] {
    const std::vector<int32_t> lengths = to_int32(array);
    std::vector<std::byte> bytes = allocate(static_cast<int64_t>(lengths.size() * sizeof(int32_t)));
    if (!lengths.empty()) std::memcpy(bytes.data(), lengths.data(), bytes.size());
    return tensor_of(array.shape, DType::i32, Arrangement::plain, std::move(bytes));
  });
}

DType float_type_of(const char* flag, const std::string& file, const Array& array) {
  switch (array.type) {
    case ElementType::f16: return DType::f16;
    case ElementType::bf16: return DType::bf16;
    case ElementType::f32: return DType::f32;
    case ElementType::f64: return DType::f64;
    default:
      throw FileError(join(flag, " ", in_quotes(file), ": holds ", name_of(array.type),
                           "; say with --dtype in which type to compute: f64, f32, f16 or bf16"));
  }
}

Array to_array(const HostTensor& tensor, FileFormat format) {
  const DType type = tensor.view.dtype;
  const DType file_type = format == FileFormat::npy ? state_type(type) : type;
  Array array{element_type_of(file_type), tensor.file_shape, {}};
  if (file_type == type) {
    array.bytes = tensor.bytes;
    return array;
  }
  const int64_t count = array.count();
  array.bytes = allocate(count * size_of(array.type));
  load_row(tensor.bytes.data(), type, 0, count, reinterpret_cast<float*>(array.bytes.data()));
  return array;
}

}  // namespace cuflash::files
