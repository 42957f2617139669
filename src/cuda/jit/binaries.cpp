#include "cuda/jit/binaries.h"

#include "cuda/driver/driver.h"
#include "cuda/jit/nvrtc.h"
#include "error.h"
#include "support/environment.h"
#include "support/kernel_headers.h"

namespace cuflash::cuda {
namespace {

// A text with everything that the compiled code depends on.
std::string identity(const Program& program) {
  std::string text = join("cuflash kernel\n", kernel_headers_hash(), "\n");
  for (const std::string& flag : compile_flags(program.arch)) text += flag + "\n";
  return text + program.source;
}

const Nvrtc* compiler_if_any() {
  try {
    return &nvrtc();
  } catch (const FlashAttentionError&) {
    return nullptr;
  }
}

}  // namespace

Digest pack_key(const Program& program) { return sha256(identity(program)); }
Digest disk_key(const Program& program, int compiler_version) {
  return sha256(join("nvrtc ", compiler_version, "\n", identity(program)));
}

Binaries::Binaries(const BinarySettings& settings) : settings_(settings), disk_(settings.cache_dir) {
  if (settings_.pack.empty()) return;
  try {
    pack_.emplace(Archive::open(settings_.pack));
  } catch (const ArchiveError& error) {
    pack_state_ = error.what();
  }
}

std::optional<std::string> Binaries::from_pack(const Program& program) const {
  if (!pack_) return std::nullopt;
  try {
    if (std::optional<ArchiveEntry> entry = pack_->find(pack_key(program))) return entry->cubin;
  } catch (const ArchiveError&) {
    // A damaged entry counts as missing.
  }
  return std::nullopt;
}

void Binaries::refuse(const Program& program) const {
  const std::string pack = settings_.pack.empty() ? "CUFLASH_PACK names no pack"
                           : !pack_state_.empty() ? join("the pack ", settings_.pack, " ", pack_state_)
                                                  : join("the pack ", settings_.pack, " does not have it");
  throw FlashAttentionError(
      CUFLASH_NO_DEVICE,
      join("kernel: ", program.name, " is needed, ", pack, ", and CUFLASH_JIT=off forbids compiling it; add it with ",
           "'cuflash pack --arch ", target_of(program.arch), " --kernel ", program.name, " -o <file>'"));
}

Binary Binaries::get(const Program& program) {
  const bool jit = settings_.jit != "off";
  if (std::optional<std::string> cubin = from_pack(program)) return {std::move(*cubin), Origin::pack};
  const Nvrtc* compiler = jit ? &nvrtc() : compiler_if_any();
  if (!compiler) refuse(program);
  const Digest key = disk_key(program, compiler->version);
  if (std::optional<std::string> cubin = disk_.load(key)) return {std::move(*cubin), Origin::disk};
  if (!jit) refuse(program);

  const DiskCache::Lock lock(disk_, key);
  if (std::optional<std::string> cubin = disk_.load(key)) return {std::move(*cubin), Origin::disk};
  Binary binary{compile(program).cubin, Origin::compiler};
  disk_.store({key, program.name, binary.cubin});
  return binary;
}

Binaries& binaries() {
  static Binaries instance({environment().cache_dir, environment().pack, environment().jit});
  return instance;
}

}  // namespace cuflash::cuda
