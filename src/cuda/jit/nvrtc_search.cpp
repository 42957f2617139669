// Where libnvrtc may be.
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "cuda/jit/nvrtc.h"
#include "support/environment.h"

namespace cuflash::cuda {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

// Whether a file is libnvrtc, such as libnvrtc.so.12. libnvrtc-builtins.so and libnvrtc.alt.so are other libraries.
bool is_nvrtc(const std::string& file) {
  return file.starts_with("libnvrtc") && file.find(".so") != std::string::npos &&
         file.find("builtins") == std::string::npos && file.find(".alt") == std::string::npos;
}

Paths loaded_libraries() {
  Paths paths;
  const auto collect = [](dl_phdr_info* info, size_t, void* out) {
    if (info->dlpi_name && *info->dlpi_name) static_cast<Paths*>(out)->push_back(info->dlpi_name);
    return 0;
  };
  ::dl_iterate_phdr(collect, &paths);
  return paths;
}

// The entries of a directory, newest version first; none if it cannot be read.
Paths entries(const fs::path& directory) {
  Paths paths;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    paths.push_back(it->path().string());
  std::sort(paths.rbegin(), paths.rend());
  return paths;
}

void add_directory(Paths& candidates, const fs::path& directory) {
  for (const std::string& path : entries(directory))
    if (is_nvrtc(fs::path(path).filename().string())) candidates.push_back(path);
}

void add_site_packages(Paths& candidates, const fs::path& site) {
  for (const char* inside : {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "torch/lib"})
    add_directory(candidates, site / inside);
}

// Directories of Python packages that this process has loaded libraries from, and that of the virtual environment.
Paths site_packages(const Paths& loaded) {
  Paths sites;
  for (const std::string& path : loaded)
    for (const std::string_view name : {"/site-packages/", "/dist-packages/"})
      if (const size_t at = path.find(name); at != std::string::npos) sites.push_back(path.substr(0, at + name.size()));
  if (const std::string& venv = environment().virtual_env; !venv.empty())
    for (const std::string& python : entries(fs::path(venv) / "lib"))
      if (python.find("/python") != std::string::npos) sites.push_back(python + "/site-packages");
  std::sort(sites.begin(), sites.end());
  sites.erase(std::unique(sites.begin(), sites.end()), sites.end());
  return sites;
}

}  // namespace

std::vector<std::string> nvrtc_candidates() {
  const Paths loaded = loaded_libraries();
  Paths candidates;
  for (const std::string& path : loaded)
    if (is_nvrtc(fs::path(path).filename().string())) candidates.push_back(path);
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) candidates.emplace_back(name);
  for (const std::string& home : environment().cuda_homes)
    for (const char* lib : {"lib64", "lib"}) add_directory(candidates, fs::path(home) / lib);
  for (const std::string& path : entries("/usr/local"))
    if (path.starts_with("/usr/local/cuda")) add_directory(candidates, fs::path(path) / "lib64");
  for (const std::string& site : site_packages(loaded)) add_site_packages(candidates, site);
  return candidates;
}

}  // namespace cuflash::cuda
