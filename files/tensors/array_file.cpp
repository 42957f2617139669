#include "files/tensors/array_file.h"

#include <algorithm>
#include <deque>
#include <map>

#include "files/error.h"
#include "files/npy/npy.h"
#include "files/safetensors/safetensors.h"
#include "files/tensors/output_files.h"
#include "support/text.h"

namespace cuflash::files {

namespace {

constexpr std::string_view kExtension = ".safetensors";

// "grad_out" for "--grad-out".
std::string tensor_of_flag(std::string_view flag) {
  flag.remove_prefix(std::min(flag.find_first_not_of('-'), flag.size()));
  std::string name(flag);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string tensor_list(const std::vector<SafetensorsTensor>& tensors) {
  constexpr size_t kMax = 8;
  if (tensors.empty()) return "no tensors";
  std::string list;
  for (size_t n = 0; n < std::min(tensors.size(), kMax); ++n) {
    list += join(n == 0 ? "" : ", ", in_quotes(tensors[n].name), " ", shape_text(tensors[n].shape));
  }
  return tensors.size() > kMax ? join(list, " and ", tensors.size() - kMax, " more") : list;
}

Array read_tensor(const char* flag, const ArrayPlace& place) {
  const SafetensorsReader reader(place.path);
  const std::string wanted = place.tensor.empty() ? tensor_of_flag(flag) : place.tensor;
  const SafetensorsTensor* tensor = reader.find(wanted);
  if (!tensor && place.tensor.empty() && reader.tensors().size() == 1) tensor = &reader.tensors().front();
  if (!tensor) {
    throw FileError(join(flag, " ", in_quotes(text_of(place)), ": there is no tensor ", in_quotes(wanted),
                         "; the file holds ", tensor_list(reader.tensors()), "; name one as FILE.safetensors:TENSOR"));
  }
  return reader.read(*tensor);
}

// The outputs that go to one file, under the path of the first.
struct SharedFile {
  std::string path;
  std::vector<size_t> outputs;
};
std::vector<SharedFile> files_of(const std::vector<ArrayPlace>& places) {
  std::vector<SharedFile> files;
  std::map<std::filesystem::path, size_t> file_at;
  for (size_t n = 0; n < places.size(); ++n) {
    const ArrayPlace& place = places[n];
    const bool shares = format_of(place.path) == FileFormat::safetensors;
    if (shares) require_tensor_name(place.tensor);
    const auto [at, is_new] = file_at.emplace(writable_place(place.path), files.size());
    if (is_new) files.push_back({place.path, {}});
    SharedFile& file = files[at->second];
    for (const size_t other : file.outputs) {
      if (shares && format_of(places[other].path) == FileFormat::safetensors && place.tensor != places[other].tensor) {
        continue;
      }
      throw FileError(join("cannot write ", in_quotes(text_of(place)), ": another output has the same name"));
    }
    file.outputs.push_back(n);
  }
  return files;
}

std::string_view bytes_of(const Array& array) {
  return {reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size()};
}

}  // namespace

FileFormat format_of(const std::string& path) {
  return path.ends_with(kExtension) ? FileFormat::safetensors : FileFormat::npy;
}

ArrayPlace array_place(const std::string& text) {
  // The first such colon, since a tensor's name may contain any text.
  const size_t colon = text.find(std::string(kExtension) + ":");
  if (colon == std::string::npos) return {text, ""};
  const size_t end = colon + kExtension.size();
  ArrayPlace place{text.substr(0, end), text.substr(end + 1)};
  if (place.tensor.empty()) {
    throw FileError(join(in_quotes(text), " has no tensor name after its ':'; add it, or remove the ':'"));
  }
  return place;
}

std::string text_of(const ArrayPlace& place) {
  return place.tensor.empty() ? place.path : place.path + ":" + place.tensor;
}

ArrayPlace output_place(const char* flag, const std::string& text) {
  ArrayPlace place = array_place(text);
  if (place.tensor.empty() && format_of(place.path) == FileFormat::safetensors) place.tensor = tensor_of_flag(flag);
  return place;
}

Array read_array(const char* flag, const std::string& text) {
  const ArrayPlace place = array_place(text);
  return format_of(place.path) == FileFormat::npy ? read_npy(place.path) : read_tensor(flag, place);
}

void require_writable(const std::vector<ArrayPlace>& places) { files_of(places); }

void write_arrays(const std::vector<ArrayOutput>& outputs) {
  std::vector<ArrayPlace> places;
  for (const ArrayOutput& output : outputs) places.push_back({output.path, output.tensor});
  std::deque<std::string> starts;  // a deque: its elements do not move
  std::vector<OutputFile> files;
  for (const SharedFile& shared : files_of(places)) {
    OutputFile file{shared.path, {}};
    std::vector<const Array*> arrays;
    if (format_of(shared.path) == FileFormat::npy) {
      arrays = {&outputs[shared.outputs.front()].array};
      starts.push_back(npy_start(*arrays.front()));
    } else {
      std::vector<NamedArray> named;
      for (const size_t n : shared.outputs) named.push_back({outputs[n].tensor, &outputs[n].array});
      SafetensorsContent content = safetensors_content(std::move(named));
      starts.push_back(std::move(content.start));
      arrays = std::move(content.data);
    }
    file.parts.push_back(starts.back());
    for (const Array* array : arrays) file.parts.push_back(bytes_of(*array));
    files.push_back(std::move(file));
  }
  write_files(files);
}

}  // namespace cuflash::files
