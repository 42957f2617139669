// Two equal keys: the output is the mean of their values. A call that breaks a rule throws the header's own error.
#include <cuflash/flash_attention.h>

#include <cstdio>
#include <string>

int main() {
  using namespace cuflash;
  const float q[] = {1, 2}, k[] = {3, 4, 3, 4}, v[] = {5, 6, 7, 8};
  float o[2] = {};
  const Attention attention{.q = bhsd(q, 1, 1, 1, 2), .k = bhsd(k, 1, 1, 2, 2), .v = bhsd(v, 1, 1, 2, 2)};
  flash_attention_forward(attention, {.o = bhsd(o, 1, 1, 1, 2)});
  if (o[0] != 6 || o[1] != 7) return std::fprintf(stderr, "got %g %g, expected 6 7\n", double{o[0]}, double{o[1]}), 1;

  try {
    flash_attention_forward(attention, {.o = bhsd(o, 1, 1, 1, 1)});
  } catch (const FlashAttentionError& error) {
    return error.status() == CUFLASH_INVALID_ARGUMENT && cuflash_version() == std::string(EXPECTED_VERSION) ? 0 : 1;
  }
  return 1;
}
