// Runs a fuzz target without libFuzzer, with any compiler: on the seeds and on random mutations of them, the same in every
// run.
//
//   npy_fuzz_plain [--count N] [--seed S]   N mutated inputs (the default is scaled by CUFLASH_TEST_SCALE)
//   npy_fuzz_plain FILE...                  these inputs, for example a crash that libFuzzer found
//   npy_fuzz_plain --write DIRECTORY        the seeds and a dictionary of words as files, for libFuzzer
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "fuzz/input_holder.h"
#include "fuzz/target.h"

namespace {

using namespace cuflash::fuzz;
namespace fs = std::filesystem;

void write_file(const fs::path& path, const std::string& content) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream << content << std::flush;
  if (!stream) throw std::runtime_error("cannot write " + path.string());
}

std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The words in the format of libFuzzer's dictionaries.
std::string dictionary() {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (const std::string& word : words()) {
    text += '"';
    for (const char c : word) {
      const auto byte = static_cast<unsigned char>(c);
      text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 0xf]};
    }
    text += "\"\n";
  }
  return text;
}

void write_corpus(const fs::path& directory) {
  fs::create_directories(directory / "seeds");
  size_t number = 0;
  for (const std::string& seed : seeds()) write_file(directory / "seeds" / std::to_string(number++), seed);
  write_file(directory / "words.dict", dictionary());
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed), seeds_(seeds()), words_(words()) {}

  std::string next() {
    std::string input = any(seeds_);
    for (uint64_t changes = 1 + below(3); changes > 0; --changes) change(input);
    if (below(4) != 0) repair(input);
    return input;
  }

 private:
  uint64_t below(uint64_t count) { return random_() % count; }
  const std::string& any(const std::vector<std::string>& from) { return from[below(from.size())]; }
  size_t place(const std::string& input) { return below(input.size() + 1); }

  void change(std::string& input) {
    const size_t at = place(input), length = below(input.size() - at + 1);
    const bool at_end = at == input.size();
    switch (below(8)) {
      case 0: input.insert(at, 1, static_cast<char>(below(256))); break;
      case 1: input.insert(at, any(words_)); break;
      case 2: input.replace(at, std::min<size_t>(length, 8), any(words_)); break;
      case 3: input.erase(at, std::min<size_t>(length, 8)); break;
      case 4: input.insert(at, input.substr(at, length)); break;
      case 5: input.replace(at, length, any(seeds_).substr(0, below(64))); break;
      case 6:
        if (!at_end) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      default: change_digit(input, at);
    }
  }
  // Most checks are about numbers.
  void change_digit(std::string& input, size_t from) {
    const size_t at = input.find_first_of("0123456789", from);
    if (at != std::string::npos) input[at] = static_cast<char>('0' + below(10));
  }

  std::mt19937_64 random_;  // the same numbers on every machine
  std::vector<std::string> seeds_, words_;
};

uint64_t scaled(uint64_t count) {
  const char* scale = std::getenv("CUFLASH_TEST_SCALE");
  return scale ? static_cast<uint64_t>(static_cast<double>(count) * std::atof(scale)) : count;
}

int run(const fs::path& program, uint64_t count, uint64_t seed) {
  // The current input is on disk, however the process ends.
  const fs::path current = program.filename().string() + ".input";
  std::cout << "the current input is in " << fs::absolute(current).string() << ", and stays there after a failure"
            << std::endl;
  const DiskFile holder(current);
  uint64_t inputs = 0, taken = 0;
  const auto try_one = [&](const std::string& input) {
    ++inputs;
    holder.hold(input);
    taken += check(input) ? 1 : 0;
  };
  for (const std::string& input : seeds()) try_one(input);
  Mutator mutator(seed);
  for (uint64_t n = 0; n < count; ++n) try_one(mutator.next());
  fs::remove(current);
  std::cout << inputs << " inputs, " << count << " of them mutated with seed " << seed << "; " << taken
            << " accepted, the others refused\n";
  // If nothing is accepted, only refusals are tested.
  const bool enough = taken > inputs / 50 && taken < inputs;
  if (!enough) std::cerr << "too few or too many inputs were accepted: the mutations no longer fit the reader\n";
  return enough ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  uint64_t count = scaled(50000), seed = 1;
  std::vector<std::string> files;
  for (size_t n = 0; n < arguments.size(); ++n) {
    const bool has_value = n + 1 < arguments.size();
    if (arguments[n] == "--count" && has_value) {
      count = std::stoull(arguments[++n]);
    } else if (arguments[n] == "--seed" && has_value) {
      seed = std::stoull(arguments[++n]);
    } else if (arguments[n] == "--write" && has_value) {
      write_corpus(arguments[++n]);
      return 0;
    } else {
      files.push_back(arguments[n]);
    }
  }
  for (const std::string& file : files) std::cout << file << (check(read_file(file)) ? " accepted\n" : " refused\n");
  return files.empty() ? run(argv[0], count, seed) : 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
