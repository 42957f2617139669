// The part of XLA's typed foreign function interface (its C API, version 0.x) that a handler needs, declared again here
// so that building the package needs no jaxlib. tests/python/jax/test_jax_structs.py compares every offset with the
// header that jax ships.
//
// Every struct begins with its size as its writer knew it; later versions only append members.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuflash::python::xla {

inline constexpr int kMajor = 0;
inline constexpr int kMinor = 3;       // the newest version whose structs were compared with these
inline constexpr int kFirstMinor = 1;  // the oldest that asks for a handler's version

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};
inline constexpr int32_t kMetadataExtension = 1;

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major;
  int32_t minor;
};

struct Metadata {  // what a handler says about itself when it is registered
  size_t struct_size;
  Version version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;    // owned by XLA
struct Context;  // the context of one execution

enum class ErrorCode : int32_t { invalid_argument = 3, resource_exhausted = 8, unimplemented = 12, internal = 13 };

struct CreateErrorArgs {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};
struct DestroyErrorArgs {
  size_t struct_size;
  Extension* extensions;
  Error* error;
};
struct GetStreamArgs {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  void* stream;  // out: CUstream
};
struct AllocateArgs {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  size_t size;
  size_t alignment;
  void* data;  // out
};
struct FreeArgs {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  size_t size;
  void* data;
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(CreateErrorArgs*);
  void (*get_error_message)(void*);
  void (*destroy_error)(DestroyErrorArgs*);
  Error* (*register_handler)(void*);
  Error* (*get_stream)(GetStreamArgs*);
  Error* (*register_type)(void*);
  Error* (*get_context)(void*);
  Error* (*set_state)(void*);
  Error* (*get_state)(void*);
  Error* (*allocate)(AllocateArgs*);
  Error* (*free)(FreeArgs*);
};

enum class DataType : int32_t { boolean = 1, s32 = 4, s64 = 5, f16 = 10, f32 = 11, f64 = 12, bf16 = 16 };

struct Buffer {  // dense, row-major
  size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;  // [rank]
};

struct Text {
  const char* data;
  size_t size;
};
struct Scalar {
  DataType dtype;
  void* value;
};
inline constexpr int32_t kBuffer = 1;             // the only type of an argument or a result
inline constexpr int32_t kScalar = 3, kText = 4;  // types of an attribute

struct Buffers {  // arguments, and results
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;   // [size]
  Buffer** values;  // [size]
};
struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;  // [size]
  Text** names;    // [size]
  void** values;   // [size]: Scalar* or Text*
};

inline constexpr int32_t kExecute = 3;  // the stage in which the buffers hold data

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  int32_t stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

using Handler = Error*(CallFrame*);

}  // namespace cuflash::python::xla
