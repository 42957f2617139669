// The part of DLPack 1.3's binary interface that is used here: how array libraries share their memory.
// https://dmlc.github.io/dlpack/latest/c_api.html defines the layouts; none of them may change.
#pragma once

#include <cstdint>

namespace cuflash::python::dlpack {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kOpaque = 3, kBfloat = 4, kComplex = 5, kBool = 6 };
// The codes after these, from kFirstNamed on: types of 8, 6 and 4 bits.
constexpr uint8_t kFirstNamed = 7;
constexpr const char* kNamed[] = {"float8_e3m4",     "float8_e4m3",   "float8_e4m3b11fnuz", "float8_e4m3fn",
                                  "float8_e4m3fnuz", "float8_e5m2",   "float8_e5m2fnuz",    "float8_e8m0fnu",
                                  "float6_e2m3fn",   "float6_e3m2fn", "float4_e2m1fn"};

struct Device {
  int32_t type;  // DeviceType
  int32_t id;
};

struct DataType {
  uint8_t code;  // TypeCode
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; NULL: contiguous
  uint64_t byte_offset;
};

struct ManagedTensor {  // the capsule "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  uint32_t major, minor;
};

constexpr uint64_t kReadOnly = 1, kIsCopy = 2;

struct ManagedTensorVersioned {  // the capsule "dltensor_versioned"
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;  // kReadOnly, kIsCopy
  Tensor tensor;
};

// The content of the capsule "dlpack_exchange_api" in a type's attribute __dlpack_c_exchange_api__. Functions return 0,
// or -1 with a Python exception set.
struct ExchangeApi {
  Version version;
  const ExchangeApi* previous;
  void* allocate;
  int (*managed_tensor_of)(void* object, ManagedTensorVersioned** out);
  void* object_of;
  int (*tensor_of)(void* object, Tensor* out);  // borrowed from the object; NULL if the type has no such function
  void* current_stream;
};

}  // namespace cuflash::python::dlpack
