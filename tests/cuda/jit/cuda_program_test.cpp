// Names of architectures and kernels: read back, and refused if wrong.
#include "cuda/jit/program.h"

#include <gtest/gtest.h>

#include "cuda/families/registry.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

std::string refusal(auto call) {
  try {
    call();
  } catch (const FlashAttentionError& error) {
    return error.what();
  }
  return "";
}

TEST(Arch, IsFoundByItsNames) {
  for (const char* name : {"sm_90a", "sm_90", "90a", "90"}) EXPECT_EQ(arch_named(name).number(), 90) << name;
  for (const char* name : {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100", "sm_103", "sm_120", "sm_121"}) {
    const Arch arch = arch_named(name);
    EXPECT_EQ(target_of(arch), name);
    EXPECT_EQ(arch_of(arch.major, arch.minor).shared_per_block, arch.shared_per_block);
    EXPECT_EQ(arch.shared_per_sm - arch.shared_per_block, 1024) << name;
  }
  EXPECT_EQ(arch_named("sm_80").shared_per_block, 163 * 1024);
  EXPECT_EQ(arch_named("sm_89").shared_per_block, 99 * 1024);
  EXPECT_EQ(arch_named("sm_90a").shared_per_block, 227 * 1024);
  EXPECT_EQ(arch_named("sm_120").shared_per_block, 99 * 1024);
}

TEST(Arch, OtherNamesAreRefusedWithTheList) {
  for (const char* name : {"", "sm_", "sm_70", "sm_80a", "hopper", "sm_90x", "sm_90aa", "sm_9", "sm_-90", "a"}) {
    const std::string text = refusal([&] { arch_named(name); });
    EXPECT_NE(text.find("sm_80, sm_86"), std::string::npos) << name << ": " << text;
  }
}

TEST(Arch, ANewerDeviceThanTheTableGetsTheLeastOfAll) {
  const Arch arch = arch_of(15, 3);
  EXPECT_EQ(target_of(arch), "sm_153");
  EXPECT_EQ(arch.shared_per_block, 99 * 1024);
  EXPECT_NE(refusal([] { arch_of(7, 5); }).find("7.5"), std::string::npos);
}

TEST(KernelName, IsReadBack) {
  const KernelKey forward = key_of(kernel_type("forward"), arch_named("sm_90a"),
                                   ForwardConfig{Element::bf16, 128, 96, 64, 32, 4, 1, 2, 2, kCopyElements, kBias});
  EXPECT_EQ(name_of(forward), "forward:sm_90a:bf16,128,96,64,32,4,1,2,2,1,4");
  EXPECT_EQ(kernel_named(name_of(forward)), forward);
  for (const char* name : {"backward_prepare", "backward", "backward_finish", "backward_bias", "backward_sink"}) {
    BackwardConfig config{};
    config.element = Element::f64;
    const KernelKey key = key_of(kernel_type(name), arch_named("sm_80"), config);
    EXPECT_EQ(kernel_named(name_of(key)), key) << name_of(key);
  }
  const KernelKey cache = key_of(kernel_type("kv_attention"), arch_named("sm_90a"),
                                 KvConfig{Element::f16, 576, 512, 16, 32, 1, 2, 2, 4, 1, kCopyWhole, kAlibi, 1, 0, 0});
  EXPECT_EQ(name_of(cache), "kv_attention:sm_90a:f16,576,512,16,32,1,2,2,4,1,2,2,1,0,0");
  EXPECT_EQ(kernel_named(name_of(cache)), cache);
  const KernelKey merge = key_of(kernel_type("merge_states"), arch_named("sm_80"), MergeConfig{Element::f32, 16});
  EXPECT_EQ(kernel_named(name_of(merge)), merge);
}

TEST(KernelName, NonsenseIsRefused) {
  for (const char* name :
       {"", "forward", "forward:sm_90a", "forward:sm_90a:bf16", "sideways:sm_90a:bf16,1,2,3,4,5,6,7,8,9,10",
        "forward:sm_1:bf16,1,2,3,4,5,6,7,8,9,10", "forward:sm_90a:i32,1,2,3,4,5,6,7,8,9,10",
        "forward:sm_90a:bf16,1,2,3,4,5,6,7,8,9,10,11", "forward:sm_90a:bf16,1,2,3,4,5,6,7,8,9,x",
        "forward:sm_90a:bf16,1,2,3,4,5,6,7,8,9,", "forward:sm_90a:bf16,1,2,3,4,5,6,7,8,9,99999999999"})
    EXPECT_NE(refusal([&] { kernel_named(name); }), "") << name;
}

TEST(Program, NamesHeaderConfigAndParams) {
  const Program program = program_of(kernel_named("forward:sm_80:f16,64,64,128,64,4,1,2,2,0,0"));
  EXPECT_EQ(program.arch.number(), 80);
  for (const char* part :
       {"#include \"portable/forward.h\"", "ForwardConfig C{Element{3}, 64, 64, 128, 64, 4, 1, 2, 2, 0, 0}",
        "extern \"C\"", kEntryName, "__launch_bounds__(num_threads(C), C.ctas_per_sm)",
        "const __grid_constant__ ForwardParams p", "forward<C>(p)"})
    EXPECT_NE(program.source.find(part), std::string::npos) << program.source;
}

}  // namespace
}  // namespace cuflash::cuda
