/* cuflash: exact, IO-aware attention. The C ABI.
 *
 * A call takes up to three structs: the attention problem (cuflash_attention), the other tensors that the call reads or
 * writes, and how it is executed (cuflash_execution, may be NULL). Initialise each with its *_init function first: every
 * struct carries its size, so that later versions can append fields without breaking programs built against this
 * header.
 *
 * The library never takes ownership of the caller's memory and keeps no pointer after a call. No function in this file
 * throws. A call that fails because of its arguments has not touched an output; cuflash_last_error() then returns a
 * sentence that says what was wrong.
 *
 * Outputs and the workspace must not share memory with inputs or with each other. A call is rejected if it is certain
 * that two of them share an element; interleaved views, such as slices of a packed QKV, are legal. Three things go
 * unchecked: overlap of views with strides so unrelated that the search for a shared element gives up, overlap between
 * two concurrent calls, and whether memory is as large as its tensor says.
 *
 * Lengths, block tables and indices in host memory are read once, before the first output is written; writes by another
 * thread during the call have no effect on it. Values of other tensors are not checked.
 */
#ifndef CUFLASH_CUFLASH_H_
#define CUFLASH_CUFLASH_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CUFLASH_VERSION_MAJOR 0
#define CUFLASH_VERSION_MINOR 1
#define CUFLASH_VERSION_PATCH 0

#if defined(CUFLASH_STATIC)
#define CUFLASH_API
#else
#define CUFLASH_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cuflash_status {
  CUFLASH_OK = 0,
  CUFLASH_INVALID_ARGUMENT = 1, /* the arguments break a rule; the message names the argument */
  CUFLASH_UNSUPPORTED = 2,      /* legal, but no backend of this build computes it */
  CUFLASH_OUT_OF_MEMORY = 3,    /* an allocation inside the library failed; pass a workspace to avoid it */
  CUFLASH_NO_DEVICE = 4,        /* the requested device, its driver or its compiler is missing */
  CUFLASH_INTERNAL = 5          /* a bug in cuflash; please report the message */
} cuflash_status;

typedef enum cuflash_dtype {
  CUFLASH_F64 = 1,
  CUFLASH_F32 = 2,
  CUFLASH_F16 = 3,
  CUFLASH_BF16 = 4,
  CUFLASH_I32 = 5, /* sequence lengths */
  CUFLASH_BOOL = 6 /* one byte per element, 0 is false */
} cuflash_dtype;

typedef enum cuflash_alignment {
  CUFLASH_BOTTOM_RIGHT = 0, /* the last query is aligned with the last key: c = len_k - len_q */
  CUFLASH_TOP_LEFT = 1      /* the first query is aligned with the first key: c = 0 */
} cuflash_alignment;

typedef enum cuflash_device {
  CUFLASH_DEVICE_AUTO = 0, /* the device that the pointers point to */
  CUFLASH_DEVICE_CPU = 1,  /* host memory; where the pointers point to is not checked */
  CUFLASH_DEVICE_CUDA = 2  /* memory of one CUDA device, which need not be the current one */
} cuflash_device;

/* A view of the caller's memory. data == NULL and rank == 0: the tensor is absent. Strides count elements, not bytes.
 * The last dimension is contiguous; every other stride is free (0 repeats an input). All tensors of a call, including
 * lengths, are in host memory, or all are in the memory of one CUDA device. */
typedef struct cuflash_tensor {
  const void* data;
  int32_t dtype; /* cuflash_dtype */
  int32_t rank;
  int64_t shape[4];
  int64_t stride[4];
} cuflash_tensor;

typedef struct cuflash_mutable_tensor {
  void* data;
  int32_t dtype; /* cuflash_dtype */
  int32_t rank;
  int64_t shape[4];
  int64_t stride[4];
} cuflash_mutable_tensor;

/* The attention problem: inputs, masks and options. Forward and backward take the same description.
 *
 * Dense:  q [B, Hq, Sq, D], k [B, Hk, Sk, D], v [B, Hk, Sk, Dv]; any memory order by strides. Hq is a multiple of Hk.
 * Padded: dense, with seqlens_q and/or seqlens_k.
 * Packed: q [Tq, Hq, D], k [Tk, Hk, D], v [Tk, Hk, Dv] with cu_seqlens_q and cu_seqlens_k. */
typedef struct cuflash_attention {
  size_t struct_size;
  cuflash_tensor q, k, v; /* one type: f64, f32, f16 or bf16 */

  double scale;         /* used if has_scale is not 0; at most 2.3586e38, which f32 can multiply by log2(e) */
  int32_t has_scale;    /* 0: scale is 1/sqrt(D) */
  int32_t causal;       /* not 0: key j is visible to query i only if j <= i + c; sets window_right to 0 */
  int32_t alignment;    /* cuflash_alignment: the meaning of c */
  int64_t window_left;  /* j >= i + c - window_left; -1: unbounded */
  int64_t window_right; /* j <= i + c + window_right; -1: unbounded */
  double softcap;       /* > 0: s = softcap * tanh(s / softcap); 0: off */

  cuflash_tensor alibi_slopes; /* f32 [Hq] or [B, Hq] */
  cuflash_tensor bias;         /* [B or 1, Hq or 1, Sq or 1, Sk], type of q or f32; added to the scores */
  cuflash_tensor mask;         /* bool, shaped as bias; false hides the key */
  cuflash_tensor sink;         /* [Hq], type of q or f32: one logit per head, in the softmax's denominator only */

  double dropout_p; /* in [0, 1) */
  uint64_t dropout_seed;
  uint64_t dropout_offset;

  cuflash_tensor cu_seqlens_q, cu_seqlens_k; /* i32 [B + 1]: sequence b is rows cu[b] .. cu[b + 1] */
  int64_t max_seqlen_q, max_seqlen_k;        /* packed: an upper bound of the lengths. Required on CUDA, which does not
                                              * read lengths on the host; 0: derived from cu_seqlens in host memory. On
                                              * the CPU only the shapes of bias and mask depend on it */
  cuflash_tensor seqlens_q, seqlens_k;       /* i32 [B]: only the first seqlens[b] rows of a dense sequence exist */

  cuflash_tensor mask_summary;   /* i32 [words]: the result of cuflash_summarize_mask; the mask itself may then be
                                  * absent */
  int64_t mask_summary_shape[4]; /* the shape that cuflash_summarize_mask returned */
} cuflash_attention;

typedef struct cuflash_forward_outputs {
  size_t struct_size;
  cuflash_mutable_tensor o;   /* [B, Hq, Sq, Dv] or packed [Tq, Hq, Dv]; type of q or f32 */
  cuflash_mutable_tensor lse; /* optional: [B, Hq, Sq] or packed [Hq, Tq]; f32 (f64 for f64), natural logarithm */
} cuflash_forward_outputs;

/* Each gradient is optional; an absent one is not computed. */
typedef struct cuflash_backward_tensors {
  size_t struct_size;
  cuflash_tensor o, lse;        /* as the forward call wrote them */
  cuflash_tensor dout;          /* gradient of o, shaped as o; type of q or f32 (products round it to the type of q) */
  cuflash_tensor dlse;          /* optional: gradient of lse, shaped and typed as lse */
  cuflash_mutable_tensor dq;    /* shaped as q; type of q or f32 */
  cuflash_mutable_tensor dk;    /* shaped as k */
  cuflash_mutable_tensor dv;    /* shaped as v */
  cuflash_mutable_tensor dbias; /* shaped as bias, summed where bias repeats; type of q or f32 */
  cuflash_mutable_tensor dsink; /* [Hq]; type of q or f32 */
} cuflash_backward_tensors;

/* How many tiles of the score matrix a call computed. A tile is tile_q queries by tile_k keys of one head. Lengths,
 * causal and window decide which tiles are skipped, and so does a mask tensor that hides every pair of a tile, pairs
 * beyond the lengths included; for up to 16 queries on the CPU, where heads share the keys that are read, a mask tensor
 * skips nothing. Over a cache on CUDA, the queries of all heads that share keys are rows of one tile, and tile_q counts
 * these rows. */
typedef struct cuflash_tile_stats {
  int64_t tile_q, tile_k; /* the tile shape of the kernel that ran */
  int64_t visited;        /* computed */
  int64_t masked;         /* visited tiles in which some pair had to be masked */
  int64_t skipped;        /* never touched */
} cuflash_tile_stats;

/* Runs body(body_context, 0) ... body(body_context, n - 1), in any order and on any threads, and returns when all have
 * finished. Running them sequentially is fine. It must not throw. */
typedef void (*cuflash_parallel_body)(void* body_context, int64_t index);
typedef void (*cuflash_parallel_for)(void* context, int64_t n, cuflash_parallel_body body, void* body_context);

/* Returns memory of this many bytes on the device and stream of the call, or NULL. The call's kernels use it; it may be
 * reused by what follows them on the stream. It must not throw. */
typedef void* (*cuflash_allocate)(void* context, size_t bytes);

typedef struct cuflash_execution {
  size_t struct_size;
  int32_t device;        /* cuflash_device */
  int32_t num_threads;   /* CPU: 0 uses CUFLASH_NUM_THREADS or every core that the process may use. Results do not
                          * depend on it */
  int32_t deterministic; /* CUDA backward: bitwise reproducible. The CPU always is */
  void* stream;          /* CUDA: the CUstream to launch on; ignored by the CPU */
  void* workspace;       /* scratch of at least the queried size, 64-byte aligned; bytes beyond the queried size are not
                    * touched. NULL: the CPU uses a block of its own; CUDA requires one, unless the queried size is 0 or
                    * allocate or workspace_from_pool is set. Forward on CUDA without tile_stats and mask also runs
                    * without one, but may be slower */
  size_t workspace_size;
  cuflash_parallel_for parallel_for; /* NULL: the library's own thread pool */
  void* parallel_for_context;
  cuflash_tile_stats* tile_stats; /* optional: filled by the call, which then waits for its stream on CUDA */
  int32_t workspace_from_pool;    /* CUDA, not 0: without a workspace, take it from the device's stream-ordered pool */
  int32_t check_lengths;          /* CUDA, not 0: copy lengths to the host and check them, which waits for the stream.
                                   * Without it, a length that is out of range is clamped to the tensors */
  cuflash_allocate allocate;      /* CUDA, optional: if workspace is NULL, the call gets its workspace, 64-byte aligned,
                                   * from this function. Called again if the call starts over with another kernel */
  void* allocate_context;
} cuflash_execution;

static inline void cuflash_attention_init(cuflash_attention* a) {
  memset(a, 0, sizeof *a);
  a->struct_size = sizeof *a;
  a->window_left = -1;
  a->window_right = -1;
}
static inline void cuflash_forward_outputs_init(cuflash_forward_outputs* t) {
  memset(t, 0, sizeof *t);
  t->struct_size = sizeof *t;
}
static inline void cuflash_backward_tensors_init(cuflash_backward_tensors* t) {
  memset(t, 0, sizeof *t);
  t->struct_size = sizeof *t;
}
static inline void cuflash_execution_init(cuflash_execution* e) {
  memset(e, 0, sizeof *e);
  e->struct_size = sizeof *e;
}

CUFLASH_API cuflash_status cuflash_forward(const cuflash_attention* attention, const cuflash_forward_outputs* outputs,
                                           const cuflash_execution* execution);
CUFLASH_API cuflash_status cuflash_backward(const cuflash_attention* attention, const cuflash_backward_tensors* tensors,
                                            const cuflash_execution* execution);

/* Bytes of scratch that the same call with the same execution needs. They grow linearly with the sequence length, with
 * one exception: for a mask tensor without a summary, CUDA makes the summary, an eighth of its size, in the workspace. */
CUFLASH_API cuflash_status cuflash_forward_workspace_size(const cuflash_attention* attention,
                                                          const cuflash_forward_outputs* outputs,
                                                          const cuflash_execution* execution, size_t* bytes);
CUFLASH_API cuflash_status cuflash_backward_workspace_size(const cuflash_attention* attention,
                                                           const cuflash_backward_tensors* tensors,
                                                           const cuflash_execution* execution, size_t* bytes);

/* Makes the summary of a mask tensor: one bit per pair, and which blocks of 16 queries x 16 keys are hidden or visible as
 * a whole. One summary replaces the tensor in forward, backward and every layer with the same mask; causal, windows and
 * lengths apply on top of it, and dimensions along which the mask repeats (stride 0) take no space. A call on CUDA with a
 * mask tensor and no summary makes its own in its workspace.
 *
 * mask: bool [B or 1, Hq or 1, Sq or 1, Sk], as in cuflash_attention; packed: Sq and Sk are max_seqlen_q and _k.
 * summary: i32 [words or more], of the size in bytes that the query returns, aligned to 64 bytes, in the same memory as
 * the mask. execution: only device, stream, num_threads and parallel_for matter; on CUDA the work is enqueued on stream.
 * shape: pass it as mask_summary_shape to the calls that read the summary. */
CUFLASH_API cuflash_status cuflash_mask_summary_size(const cuflash_tensor* mask, size_t* bytes);
CUFLASH_API cuflash_status cuflash_summarize_mask(const cuflash_tensor* mask, const cuflash_mutable_tensor* summary,
                                                  const cuflash_execution* execution, int64_t shape[4]);

/* Explains which backend and kernel the call would use and why, or why there is none; computes nothing. Writes at most
 * capacity bytes of text, always terminated; *needed (may be NULL) is the size of the whole text with terminator. */
CUFLASH_API cuflash_status cuflash_explain_forward(const cuflash_attention* attention,
                                                   const cuflash_forward_outputs* outputs,
                                                   const cuflash_execution* execution, char* text, size_t capacity,
                                                   size_t* needed);
CUFLASH_API cuflash_status cuflash_explain_backward(const cuflash_attention* attention,
                                                    const cuflash_backward_tensors* tensors,
                                                    const cuflash_execution* execution, char* text, size_t capacity,
                                                    size_t* needed);

/* The message of this thread's last failed call; "" before the first failure. Valid until this thread's next call. */
CUFLASH_API const char* cuflash_last_error(void);
CUFLASH_API const char* cuflash_status_name(cuflash_status status);
CUFLASH_API const char* cuflash_version(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CUFLASH_CUFLASH_H_ */
