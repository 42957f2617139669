// Where the machine code of a kernel comes from: the pack file, the disk cache, or the compiler. Needs no GPU.
#pragma once

#include <optional>
#include <string>

#include "cuda/jit/compile.h"
#include "cuda/jit/disk_cache.h"

namespace cuflash::cuda {

struct BinarySettings {
  std::string cache_dir;  // "": none
  std::string pack;       // "": none
  std::string jit;        // "" or "on": compile missing kernels; "off": refuse to
};

enum class Origin { pack, disk, compiler };
struct Binary {
  std::string cubin;
  Origin origin;
};

class Binaries {
 public:
  explicit Binaries(const BinarySettings& settings);

  // Safe from many threads and processes: if several miss the same kernel, one compiles it.
  Binary get(const Program& program);

  DiskCache& disk() { return disk_; }
  // Why the pack is not used; "" if it is, or if there is none.
  const std::string& pack_state() const { return pack_state_; }
  size_t pack_size() const { return pack_ ? pack_->size() : 0; }

 private:
  std::optional<std::string> from_pack(const Program& program) const;
  [[noreturn]] void refuse(const Program& program) const;

  BinarySettings settings_;
  DiskCache disk_;
  std::optional<Archive> pack_;
  std::string pack_state_;
};

// The binaries of this process, configured by its environment. Initialised at the first call.
Binaries& binaries();

// The key of a kernel in a pack. A pack serves machines without a compiler, so its keys do not depend on one. Keys of
// the disk cache do, because another compiler makes other code.
Digest pack_key(const Program& program);
Digest disk_key(const Program& program, int compiler_version);

}  // namespace cuflash::cuda
