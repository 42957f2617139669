// The places in which NVRTC is searched, and the message about one that is too old.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "nvrtc.h"
#include "tests/shared/temp_dir.h"

namespace cuflash::cuda {
namespace {

namespace fs = std::filesystem;

TEST(Nvrtc, ATooOldOneIsRefusedWithBothVersions) {
  try {
    load_nvrtc({"libnothing.so", CUFLASH_FAKE_LIBNVRTC});
    FAIL() << "an NVRTC of version 11.8 was taken";
  } catch (const FlashAttentionError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.status(), CUFLASH_NO_DEVICE);
    for (const char* part : {"11.8", "12.3", "libnvrtc.so.11", "CUFLASH_PACK", "pip install nvidia-cuda-nvrtc"})
      EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
  }
}

TEST(Nvrtc, ATooOldOneIsPassedOver) {
  CUFLASH_NEEDS_NVRTC();
  const Nvrtc found = load_nvrtc({"libnothing.so", CUFLASH_FAKE_LIBNVRTC, nvrtc().path});
  EXPECT_EQ(found.path, nvrtc().path);
  EXPECT_GE(found.version, kMinNvrtcVersion);
}

TEST(Nvrtc, NoneIsRefused) {
  EXPECT_THROW(load_nvrtc({}), FlashAttentionError);
  EXPECT_THROW(load_nvrtc({"libnothing.so"}), FlashAttentionError);
}

// The environment is read once, so this runs before any test reads it.
class Search : public testing::Environment {
 public:
  void SetUp() override {
    for (const char* folder : {"home/lib64", "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib",
                               "venv/lib/python3.11/site-packages/nvidia/cu13/lib"})
      fs::create_directories(dir.file(folder));
    dir.write("home/lib64/libnvrtc.so.12", "");
    dir.write("home/lib64/libnvrtc-builtins.so.12.9", "");
    dir.write("home/lib64/libnvrtc.alt.so.12", "");
    dir.write("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "");
    dir.write("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "");
    ::setenv("CUDA_HOME", dir.file("home").c_str(), 1);
    ::setenv("VIRTUAL_ENV", dir.file("venv").c_str(), 1);
    found = nvrtc_candidates();
  }
  test::TempDir dir;
  std::vector<std::string> found;
};
Search* const search = static_cast<Search*>(testing::AddGlobalTestEnvironment(new Search));

size_t place_of(const std::string& path) {
  return static_cast<size_t>(std::find(search->found.begin(), search->found.end(), path) - search->found.begin());
}

TEST(Nvrtc, IsLookedForInItsPlacesInOrder) {
  const std::string site = "venv/lib/python3.11/site-packages/nvidia/";
  const std::vector<std::string> expected{"libnvrtc.so.13",
                                          "libnvrtc.so.12",
                                          "libnvrtc.so",
                                          search->dir.file("home/lib64/libnvrtc.so.12"),
                                          search->dir.file(site + "cu13/lib/libnvrtc.so.13"),
                                          search->dir.file(site + "cuda_nvrtc/lib/libnvrtc.so.12")};
  for (size_t n = 0; n < expected.size(); ++n) {
    EXPECT_LT(place_of(expected[n]), search->found.size()) << expected[n];
    EXPECT_GE(place_of(expected[n]), n == 0 ? 0 : place_of(expected[n - 1]) + 1) << expected[n];
  }
}

TEST(Nvrtc, OtherLibrariesAreNotTakenForNvrtc) {
  for (const std::string& path : search->found) {
    EXPECT_EQ(path.find("builtins"), std::string::npos) << path;
    EXPECT_EQ(path.find(".alt"), std::string::npos) << path;
  }
}

}  // namespace
}  // namespace cuflash::cuda
