/* Attention from C: one head, four queries, six keys, checked against the definition. */
#include <cuflash/cuflash.h>
#include <math.h>
#include <stdio.h>

enum { QUERIES = 4, KEYS = 6, DIM = 8 };

static cuflash_tensor rows(const float* data, int64_t length) {
  cuflash_tensor t = {data, CUFLASH_F32, 4, {1, 1, length, DIM}, {length * DIM, length * DIM, DIM, 1}};
  return t;
}

/* Is o = softmax(q k^T / sqrt(D)) v, for one query? */
static int row_agrees(const float* q, float k[KEYS][DIM], float v[KEYS][DIM], const float* o) {
  double weight[KEYS], sum = 0;
  for (int j = 0; j < KEYS; ++j) {
    double dot = 0;
    for (int d = 0; d < DIM; ++d) dot += (double)q[d] * k[j][d];
    sum += weight[j] = exp(dot / sqrt(DIM)); /* small numbers: no maximum to subtract */
  }
  for (int d = 0; d < DIM; ++d) {
    double expected = 0;
    for (int j = 0; j < KEYS; ++j) expected += weight[j] / sum * v[j][d];
    if (!(fabs(o[d] - expected) < 1e-5)) return 0; /* written so that NaN does not agree */
  }
  return 1;
}

int main(void) {
  float q[QUERIES][DIM], k[KEYS][DIM], v[KEYS][DIM], o[QUERIES][DIM] = {{0}};
  for (int n = 0; n < QUERIES * DIM; ++n) q[n / DIM][n % DIM] = (float)sin(n);
  for (int n = 0; n < KEYS * DIM; ++n) k[n / DIM][n % DIM] = (float)cos(2 * n), v[n / DIM][n % DIM] = (float)sin(3 * n);

  cuflash_attention attention;
  cuflash_attention_init(&attention);
  attention.q = rows(&q[0][0], QUERIES);
  attention.k = rows(&k[0][0], KEYS);
  attention.v = rows(&v[0][0], KEYS);

  cuflash_forward_outputs outputs;
  cuflash_forward_outputs_init(&outputs);
  cuflash_mutable_tensor out = {o, CUFLASH_F32, 4, {1, 1, QUERIES, DIM}, {QUERIES * DIM, QUERIES * DIM, DIM, 1}};
  outputs.o = out;

  cuflash_status status = cuflash_forward(&attention, &outputs, NULL);
  if (status != CUFLASH_OK) {
    fprintf(stderr, "%s: %s\n", cuflash_status_name(status), cuflash_last_error());
    return 1;
  }
  int agree = 0;
  for (int i = 0; i < QUERIES; ++i) agree += row_agrees(q[i], k, v, o[i]);
  printf("cuflash %s from C: %d of %d rows agree with the definition\n", cuflash_version(), agree, QUERIES);
  return agree == QUERIES ? 0 : 1;
}
