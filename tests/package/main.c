/* With one key the output is its value, whatever the scores are. */
#include <cuflash/cuflash.h>
#include <stdio.h>

static cuflash_tensor one_row(const float* data) {
  cuflash_tensor t = {data, CUFLASH_F32, 4, {1, 1, 1, 2}, {2, 2, 2, 1}};
  return t;
}

int main(void) {
  const float q[2] = {1, 2}, k[2] = {3, 4}, v[2] = {5, 6};
  float o[2] = {0, 0};
  cuflash_attention attention;
  cuflash_forward_outputs outputs;

  if (strcmp(cuflash_version(), EXPECTED_VERSION) != 0) {
    fprintf(stderr, "the library says version %s, the package %s\n", cuflash_version(), EXPECTED_VERSION);
    return 1;
  }
  cuflash_attention_init(&attention);
  attention.q = one_row(q);
  attention.k = one_row(k);
  attention.v = one_row(v);
  cuflash_forward_outputs_init(&outputs);
  outputs.o.data = o;
  outputs.o.dtype = CUFLASH_F32;
  outputs.o.rank = 4;
  memcpy(outputs.o.shape, attention.v.shape, sizeof outputs.o.shape);
  memcpy(outputs.o.stride, attention.v.stride, sizeof outputs.o.stride);
  if (cuflash_forward(&attention, &outputs, NULL) != CUFLASH_OK) {
    fprintf(stderr, "%s\n", cuflash_last_error());
    return 1;
  }
  return o[0] == v[0] && o[1] == v[1] ? 0 : 1;
}
