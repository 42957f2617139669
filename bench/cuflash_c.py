"""The C ABI of libcuflash for Python's ctypes: just what the benchmarks call."""

import ctypes
from ctypes import byref, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p

F64, F32, F16, BF16, I32, BOOL = 1, 2, 3, 4, 5, 6


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("rank", c_int32), ("shape", c_int64 * 4), ("stride", c_int64 * 4)]


class Attention(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor),
        ("scale", c_double), ("has_scale", c_int32), ("causal", c_int32), ("alignment", c_int32),
        ("window_left", c_int64), ("window_right", c_int64), ("softcap", c_double),
        ("alibi_slopes", Tensor), ("bias", Tensor), ("mask", Tensor), ("sink", Tensor),
        ("dropout_p", c_double), ("dropout_seed", c_uint64), ("dropout_offset", c_uint64),
        ("cu_seqlens_q", Tensor), ("cu_seqlens_k", Tensor), ("max_seqlen_q", c_int64), ("max_seqlen_k", c_int64),
        ("seqlens_q", Tensor), ("seqlens_k", Tensor), ("mask_summary", Tensor), ("mask_summary_shape", c_int64 * 4),
    ]


class ForwardOutputs(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("o", Tensor), ("lse", Tensor)]


class BackwardTensors(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, Tensor) for name in ("o", "lse", "dout", "dlse", "dq", "dk", "dv", "dbias", "dsink")]


class CacheTensors(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, Tensor) for name in ("k", "v", "seqlens", "block_table", "batch_idx", "leftpad", "k_new", "v_new",
                                    "cu_seqlens_new", "seqlens_new")] + [
        ("max_seqlen_new", c_int64), ("rotary_cos", Tensor), ("rotary_sin", Tensor), ("rotary_interleaved", c_int32),
        ("rotary_one_position", c_int32), ("num_splits", c_int32), ("o", Tensor), ("lse", Tensor)]


class Execution(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("device", c_int32), ("num_threads", c_int32), ("deterministic", c_int32),
        ("stream", c_void_p), ("workspace", c_void_p), ("workspace_size", c_size_t),
        ("parallel_for", c_void_p), ("parallel_for_context", c_void_p), ("tile_stats", c_void_p),
        ("workspace_from_pool", c_int32), ("check_lengths", c_int32),
    ]


class Library:
    """One loaded libcuflash. Tensors are torch tensors [B, H, S, D] of any strides with a contiguous last dimension."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.cuflash_last_error.restype = ctypes.c_char_p
        self.lib.cuflash_version.restype = ctypes.c_char_p

    def view(self, tensor):
        import torch
        dtypes = {torch.float64: F64, torch.float32: F32, torch.float16: F16, torch.bfloat16: BF16,
                  torch.int32: I32, torch.bool: BOOL}
        view = Tensor(tensor.data_ptr(), dtypes[tensor.dtype], tensor.dim())
        for d in range(tensor.dim()):
            view.shape[d], view.stride[d] = tensor.shape[d], tensor.stride(d)
        return view

    def _check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.cuflash_last_error().decode())

    def attention(self, q, k, v, causal=False, **options):
        """Options are fields of cuflash_attention; tensors among them are torch tensors."""
        a = Attention(struct_size=ctypes.sizeof(Attention), window_left=-1, window_right=-1, causal=int(causal))
        a.q, a.k, a.v = self.view(q), self.view(k), self.view(v)
        for name, value in options.items():
            setattr(a, name, self.view(value) if hasattr(value, "data_ptr") else value)
        return a

    def execution(self, device, threads=0, deterministic=False):
        e = Execution(struct_size=ctypes.sizeof(Execution), num_threads=threads, deterministic=int(deterministic))
        if device.type == "cuda":
            import torch
            e.stream = torch.cuda.current_stream(device).cuda_stream
        return e

    def _call(self, name, a, tensors, e, device):
        """A function without arguments that makes this call each time it is called. It owns its workspace."""
        run, workspace = getattr(self.lib, f"cuflash_{name}"), None
        if device.type == "cuda":
            import torch
            size = c_size_t()
            self._check(getattr(self.lib, f"cuflash_{name}_workspace_size")(byref(a), byref(tensors), byref(e), byref(size)))
            workspace = torch.empty(max(size.value, 64), dtype=torch.uint8, device=device)
            e.workspace, e.workspace_size = workspace.data_ptr(), size.value

        def call(keep=workspace):
            self._check(run(byref(a), byref(tensors), byref(e)))
        call.workspace_bytes = e.workspace_size
        call.explain = lambda: self._explain(name, a, tensors, e)
        return call

    def _explain(self, name, a, tensors, e):
        """The text that `cuflash explain` prints for a call."""
        explain, size = getattr(self.lib, f"cuflash_explain_{name}"), c_size_t()
        self._check(explain(byref(a), byref(tensors), byref(e), None, 0, byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(explain(byref(a), byref(tensors), byref(e), text, size, byref(size)))
        return text.value.decode()

    def summarize(self, mask):
        """Makes the summary of a mask and returns it as options of a call."""
        import torch
        size, shape, view = c_size_t(), (c_int64 * 4)(), self.view(mask)
        self._check(self.lib.cuflash_mask_summary_size(byref(view), byref(size)))
        words = torch.empty(size.value // 4, dtype=torch.int32, device=mask.device)
        self._check(self.lib.cuflash_summarize_mask(byref(view), byref(self.view(words)),
                                                    byref(self.execution(mask.device)), shape))
        return {"mask_summary": words, "mask_summary_shape": shape}

    def forward(self, q, k, v, o, lse, causal=False, threads=0, **options):
        a = self.attention(q, k, v, causal, **options)
        outputs = ForwardOutputs(struct_size=ctypes.sizeof(ForwardOutputs), o=self.view(o), lse=self.view(lse))
        return self._call("forward", a, outputs, self.execution(q.device, threads), q.device)

    def backward(self, q, k, v, o, lse, dout, dq, dk, dv, causal=False, threads=0, deterministic=False,
                 dbias=None, dsink=None, **options):
        a = self.attention(q, k, v, causal, **options)
        tensors = BackwardTensors(struct_size=ctypes.sizeof(BackwardTensors))
        for name, tensor in (("o", o), ("lse", lse), ("dout", dout), ("dq", dq), ("dk", dk), ("dv", dv),
                             ("dbias", dbias), ("dsink", dsink)):
            if tensor is not None:
                setattr(tensors, name, self.view(tensor))
        return self._call("backward", a, tensors, self.execution(q.device, threads, deterministic), q.device)

    def attend_cache(self, q, k, v, seqlens, o, causal=False, threads=0, block_table=None):
        """k and v are [B, H, S, D], or with a block table [pages, H, page size, D]."""
        a = Attention(struct_size=ctypes.sizeof(Attention), window_left=-1, window_right=-1, causal=int(causal))
        a.q = self.view(q)
        tensors = CacheTensors(struct_size=ctypes.sizeof(CacheTensors))
        for name, tensor in (("k", k), ("v", v), ("seqlens", seqlens), ("o", o), ("block_table", block_table)):
            if tensor is not None:
                setattr(tensors, name, self.view(tensor))
        return self._call("attend_cache", a, tensors, self.execution(q.device, threads), q.device)
