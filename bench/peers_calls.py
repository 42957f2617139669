"""Adapters: how bench/peers_cuda.py and bench/world.py call each library for a shape.

Every library gets tensors in the layout that models use, [B, S, H, D] or packed [T, H, D], and may offer several forms
of a call; all forms are timed and the fastest counts. A library that cannot compute a shape says why (Lacks).
"""

import inspect
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from cuflash_c import Library

PEERS = ("fa3", "fa4", "torch-cudnn", "torch-flash", "torch-efficient")
BACKENDS = {"torch-cudnn": SDPBackend.CUDNN_ATTENTION, "torch-flash": SDPBackend.FLASH_ATTENTION,
            "torch-efficient": SDPBackend.EFFICIENT_ATTENTION}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
sdpa = torch.nn.functional.scaled_dot_product_attention


class Lacks(Exception):
    """Raised if a library cannot compute a shape; the text is the reason."""


class Tensors:
    """Inputs of a shape, normal random numbers; pages of a cache are shuffled."""

    def __init__(self, shape, device, dtype=None):
        self.shape, s = shape, shape
        self.dtype, self.device = dtype or DTYPES[s.dtype], device

        def make(heads, length, dim):
            if s.lengths:
                return self.random(sum(s.lengths), heads, dim)
            if s.heads_first:
                return self.random(s.batch, heads, length, dim).transpose(1, 2)
            return self.random(s.batch, length, heads, dim)

        self.q, self.k = make(s.heads_q, s.len_q, s.head_dim), make(s.heads_k, s.len_k, s.head_dim)
        self.v = self.k[..., :s.dim_v] if s.shared_values else make(s.heads_k, s.len_k, s.dim_v)
        self.dout = make(s.heads_q, s.len_q, s.dim_v) if s.direction == "backward" else None
        self.cu = torch.tensor([0, *s.lengths]).cumsum(0).to(device, torch.int32) if s.lengths else None
        self.cache_lengths = torch.full((s.batch,), s.len_k, dtype=torch.int32, device=device)
        self.own_lengths = torch.tensor(s.own_lengths, dtype=torch.int32, device=device) if s.padded else None
        self.slopes = torch.tensor([2**(-8 * (h + 1) / s.heads_q) for h in range(s.heads_q)], device=device)
        self.bias = self.random(1, s.heads_q, s.len_q, s.len_k) if s.bias else None
        self.sinks = self.random(s.heads_q) if s.sinks else None
        self.mask = self.visible() if s.mask else None
        self.summary = None  # summary of the mask by Cuflash.summarize; replaces the mask tensor if set
        if s.page_size:
            pages = s.batch * s.len_k // s.page_size
            order = torch.randperm(pages, device=device)
            place = torch.empty_like(order)
            place[order] = torch.arange(pages, device=device)  # page i of the cache is at place[i]
            self.pages = [t.view(pages, s.page_size, s.heads_k, s.head_dim)[order] for t in (self.k, self.v)]
            self.table = place.to(torch.int32).view(s.batch, -1)

    def random(self, *shape):
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(self.dtype)

    def empty_output(self):
        if self.shape.dim_v == self.shape.head_dim:
            return torch.empty_like(self.q)
        return torch.empty((*self.q.shape[:-1], self.shape.dim_v), dtype=self.dtype, device=self.device)

    def visible(self):
        """The mask tensor. A causal mask is not part of it."""
        s = self.shape
        if s.mask == "random":
            return torch.rand(s.batch, 1, s.len_q, s.len_k, device=self.device) < 0.7
        document = torch.arange(s.len_k, device=self.device) // s.document
        return (document[:, None] == document).expand(s.batch, 1, -1, -1).contiguous()

    def learned(self):
        """The inputs besides q, k and v that need a gradient."""
        return [t for t in (self.bias if self.shape.bias == "learned" else None, self.sinks) if t is not None]

    def by_heads(self):
        """Views [B, H, S, D]."""
        return (t.transpose(1, 2) for t in (self.q, self.k, self.v))


def gradients(tensors, function):
    """A call of the backward pass alone: forward runs once here, and its graph is retained."""
    leaves = [t.detach().requires_grad_() for t in (tensors.q, tensors.k, tensors.v, *tensors.learned())]
    with torch.enable_grad():
        out = function(*leaves)
    return lambda: torch.autograd.grad(out, leaves, tensors.dout, retain_graph=True)


def directed(tensors, function):
    """The call to time: function(q, k, v, *learned) -> out itself, or its backward pass, as the shape asks."""
    if tensors.shape.direction == "backward":
        return gradients(tensors, function)

    def run():
        with torch.no_grad():
            return function(tensors.q, tensors.k, tensors.v, *tensors.learned())
    return run


class Cuflash:
    """Calls cuflash through its C ABI, with outputs that are allocated once."""

    def __init__(self, path):
        self.library = Library(path)

    def version(self):
        return self.library.lib.cuflash_version().decode()

    def forms(self, t):
        s = t.shape
        if s.direction == "decode":
            return {"cache": self.cache(t)}
        forms = {"attention": self.attention(t)}
        if s.group == "short":
            forms["cache"] = self.cache(t)
        return forms

    def summarize(self, mask):
        return self.library.summarize(mask)

    @staticmethod
    def options(t):
        """The members of cuflash_attention that the shape asks for."""
        s = t.shape
        mask = t.mask if t.summary is None else None
        tensors = {"alibi_slopes": t.slopes if s.alibi else None, "bias": t.bias, "mask": mask, "sink": t.sinks,
                   "seqlens_q": t.own_lengths, "seqlens_k": t.own_lengths, "cu_seqlens_q": t.cu, "cu_seqlens_k": t.cu}
        options = {"softcap": s.softcap, "window_left": s.window, "dropout_p": s.dropout, "dropout_seed": 1}
        options |= t.summary or {}
        if s.lengths:
            options |= {"max_seqlen_q": s.len_q, "max_seqlen_k": s.len_k}
        return options | {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def attention(self, t):
        s, options = t.shape, self.options(t)
        if s.lengths:
            view = lambda x: x
            lse = torch.empty((s.heads_q, t.q.shape[0]), dtype=torch.float32, device=t.q.device)
        else:
            view = lambda x: x.transpose(1, 2)
            lse = torch.empty((s.batch, s.heads_q, s.len_q), dtype=torch.float32, device=t.q.device)
        o = t.empty_output()
        q, k, v, out = view(t.q), view(t.k), view(t.v), view(o)
        forward = self.library.forward(q, k, v, out, lse, s.causal, **options)
        if s.direction != "backward":
            return called(forward, o, lse, t)
        forward()
        grads = tuple(torch.empty_like(x) for x in (t.q, t.k, t.v))
        learned = {name: torch.empty_like(x) for name, x in (("dbias", t.bias if s.bias == "learned" else None),
                                                             ("dsink", t.sinks)) if x is not None}
        backward = self.library.backward(q, k, v, out, lse, view(t.dout), *map(view, grads), s.causal,
                                         deterministic=s.deterministic, **learned, **options)
        return called(backward, (*grads, *learned.values()), o, lse, t)

    def cache(self, t):
        s = t.shape
        o = t.empty_output()
        k, v = t.pages if s.page_size else (t.k, t.v)
        run = self.library.attend_cache(t.q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), t.cache_lengths,
                                        o.transpose(1, 2), s.causal, block_table=t.table if s.page_size else None)
        return called(run, o, t)


def called(run, results, *kept):
    """A call that runs and returns the results. The C ABI has only addresses, so `kept` keeps their tensors alive."""
    def call(kept=kept):
        run()
        return results
    return call


def accepted(function, needed, optional=()):
    """The keyword arguments of `needed` and `optional` that a function has. A missing one of `needed` raises Lacks:
    the signatures of these libraries differ between versions."""
    names = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in names.values()):
        for name in needed:
            if name not in names:
                raise Lacks(f"{function.__name__} of this version has no {name}")
        optional = {name: value for name, value in dict(optional).items() if name in names}
    return {**needed, **dict(optional)}


def output_of(result):
    """The output of a call; some versions return a tuple of output and log-sum-exp."""
    return result[0] if isinstance(result, (tuple, list)) else result


def require_built(module, feature):
    """Raises Lacks if FlashAttention-3 was built without a feature; a call that needs it would end the process."""
    try:
        import flash_attn_config
    except ImportError:
        return
    flags = getattr(flash_attn_config, "CONFIG", {}).get("build_flags", {})
    if module.__name__.startswith("flash_attn_interface") and flags.get(f"FLASHATTENTION_DISABLE_{feature}"):
        raise Lacks(f"this build of FlashAttention-3 has no {feature}")


class FlashAttention:
    """FlashAttention-3 (flash_attn_interface) or FlashAttention-4 (flash_attn.cute): one interface, two modules."""

    def __init__(self, module):
        self.module = module

    def forms(self, t):
        s = t.shape
        if s.direction == "decode":
            return {"kvcache": self.cache(t)}
        forms = {"func": self.attention(t)}
        if s.few_queries:
            for name, make in (("func, splits", lambda: self.attention(t, num_splits=0)),
                               ("kvcache", lambda: self.cache(t))):
                try:
                    forms[name] = make()
                except Lacks:
                    pass
        return forms

    def attention(self, t, **more):
        s = t.shape
        needed = {"causal": s.causal, **more}
        if s.window >= 0:
            needed["window_size"] = (s.window, 0)
        if s.softcap:
            require_built(self.module, "SOFTCAP")
            needed["softcap"] = s.softcap
        if s.dtype == "f32":
            raise Lacks("it computes 16-bit types only")
        if s.dtype == "f16":
            require_built(self.module, "FP16")
        if s.bias or s.mask or s.padded:
            raise Lacks("it takes no bias, no mask tensor and no padded batch")
        for name, value in (("alibi_slopes", t.slopes if s.alibi else None), ("dropout_p", s.dropout or None),
                            ("learnable_sink", t.sinks), ("deterministic", s.deterministic or None)):
            if value is not None:
                needed[name] = value
        name = "flash_attn_varlen_func" if s.lengths else "flash_attn_func"
        function = getattr(self.module, name, None)
        if function is None:
            raise Lacks(f"this version has no {name}")
        lengths = {}
        if s.lengths:
            needed |= {"cu_seqlens_q": t.cu, "cu_seqlens_k": t.cu}
            lengths = {"max_seqlen_q": s.len_q, "max_seqlen_k": s.len_k}
        options = accepted(function, needed, lengths)

        def attend(q, k, v, *sinks):
            return output_of(function(q, k, v, **{**options, **({"learnable_sink": sinks[0]} if sinks else {})}))
        return directed(t, attend)

    def cache(self, t):
        s, function = t.shape, getattr(self.module, "flash_attn_with_kvcache", None)
        if function is None:
            raise Lacks("this version has no flash_attn_with_kvcache")
        needed = {"cache_seqlens": t.cache_lengths, "causal": s.causal}
        k, v = t.pages if s.page_size else (t.k, t.v)
        if s.page_size:
            require_built(self.module, "PAGEDKV")
            needed["page_table"] = t.table
        options = accepted(function, needed)

        def run():
            with torch.no_grad():
                return output_of(function(t.q, k, v, **options))
        return run


class Torch:
    """One backend of PyTorch's scaled_dot_product_attention."""

    def __init__(self, backend):
        self.backend = backend

    def forms(self, t):
        s = t.shape
        if s.page_size:
            raise Lacks("scaled_dot_product_attention reads no pages")
        if s.causal and s.len_q != s.len_k:
            raise Lacks("scaled_dot_product_attention aligns a causal mask with the first key")
        for name, asked in (("softcap", s.softcap), ("sinks", s.sinks), ("padded batch", s.padded),
                            ("deterministic backward", s.deterministic)):
            if asked:
                raise Lacks(f"scaled_dot_product_attention has no {name}")
        if s.window >= 0 or s.lengths or s.alibi:
            if self.backend == SDPBackend.FLASH_ATTENTION:
                return {"aten": self.aten(t)}
            if not s.lengths or s.window >= 0 or s.alibi:
                raise Lacks("scaled_dot_product_attention has no window and no ALiBi")
            return {"nested": self.nested(t)}
        forms = {"sdpa": self.dense(t)}
        if s.few_queries and s.heads_q != s.heads_k and not s.causal:
            forms["rows"] = self.rows(t)
        plain = not (s.dropout or s.bias or s.mask)
        if s.direction == "backward" and self.backend == SDPBackend.FLASH_ATTENTION and s.heads_q == s.heads_k and plain:
            forms["aten"] = self.flash_backward(t)
        return forms

    def __call__(self, *tensors, **options):
        with sdpa_kernel(self.backend):
            return sdpa(*tensors, **options)

    def dense(self, t):
        s = t.shape
        options = {"is_causal": s.causal, **({"enable_gqa": True} if s.heads_q != s.heads_k else {}),
                   **({"dropout_p": s.dropout} if s.dropout else {})}
        if s.mask or s.bias:  # one tensor must hold everything: PyTorch rejects is_causal with a mask
            options["is_causal"] = False
            options["attn_mask"] = t.mask & torch.ones_like(t.mask).tril() if s.mask and s.causal else (
                t.mask if s.mask else t.bias.expand(s.batch, -1, -1, -1))

        def attend(q, k, v, *learned):
            bias = {"attn_mask": learned[0].expand(s.batch, -1, -1, -1)} if learned else {}
            return self(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **{**options, **bias}).transpose(1, 2)
        return directed(t, attend)

    def rows(self, t):
        """The query heads of a group as queries of one head: the same result without a mask, in the form that suits a
        kernel for many queries."""
        s, group = t.shape, t.shape.heads_q // t.shape.heads_k
        q = t.q.view(s.batch, s.len_q, s.heads_k, group, s.head_dim).permute(0, 2, 1, 3, 4)
        q = q.reshape(s.batch, s.heads_k, s.len_q * group, s.head_dim)
        k, v = t.k.transpose(1, 2), t.v.transpose(1, 2)

        def run():
            with torch.no_grad():
                return self(q, k, v)

        def in_shape(out):
            out = out.view(s.batch, s.heads_k, s.len_q, group, s.dim_v).permute(0, 2, 1, 3, 4)
            return out.reshape(*t.q.shape[:-1], s.dim_v)
        run.in_shape = in_shape  # outside of what is timed
        return run

    def nested(self, t):
        s = t.shape

        def attend(q, k, v):
            jagged = [torch.nested.nested_tensor_from_jagged(x, t.cu, min_seqlen=min(s.lengths), max_seqlen=s.len_q)
                      .transpose(1, 2) for x in (q, k, v)]
            return self(*jagged, is_causal=s.causal).transpose(1, 2).values()
        return directed(t, attend)

    def aten(self, t):
        """FlashAttention-2 through PyTorch's internal operator, which has windows, slopes and packed sequences."""
        s = t.shape
        options = {"window_size_left": s.window, "window_size_right": 0} if s.window >= 0 else {}
        if s.alibi:
            options["alibi_slopes"] = t.slopes
        operator = torch.ops.aten._flash_attention_forward
        return directed(t, lambda q, k, v: operator(q, k, v, t.cu, t.cu, s.len_q, s.len_k, 0.0, s.causal, False,
                                                    **options)[0])

    def flash_backward(self, t):
        """The backward operator, called without autograd."""
        q, k, v = t.by_heads()
        with torch.no_grad():
            out, lse, cum_q, cum_k, max_q, max_k, seed, offset = torch.ops.aten._scaled_dot_product_flash_attention(
                q, k, v, 0.0, t.shape.causal)[:8]
        operator, dout = torch.ops.aten._scaled_dot_product_flash_attention_backward, t.dout.transpose(1, 2)
        return lambda: tuple(g.transpose(1, 2) for g in operator(
            dout, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, 0.0, t.shape.causal, seed, offset))


def reason_of(error, said):
    """One line: the error message, or PyTorch's warning from before it rejected the call."""
    first = (str(error).splitlines() or [type(error).__name__])[0].strip()
    if "No available kernel" in first:
        lines = [str(w.message).split(" (Triggered")[0].strip() for w in said]
        lines = [line for line in lines if line and "not used because" not in line and "runtime disabled" not in line]
        first = lines[0].splitlines()[0] if lines else first
    return (first or type(error).__name__)[:200]


def difference(ours, theirs):
    """Largest relative L2 difference of all results; infinite if a value is not finite."""
    pairs = list(zip(ours, theirs)) if isinstance(ours, tuple) else [(ours, theirs)]
    return max(((a.float() - b.float()).norm() / a.float().norm()).nan_to_num(float("inf")).item() for a, b in pairs)


def norm_difference(ours, theirs):
    """Largest relative difference of norms, which can agree even if dropout masks differ."""
    pairs = list(zip(ours, theirs)) if isinstance(ours, tuple) else [(ours, theirs)]
    return max((b.float().norm() / a.float().norm() - 1).abs().nan_to_num(float("inf")).item() for a, b in pairs)


def working_forms(library, tensors, expected=None, largest=0.03):
    """The forms of a library that run and agree with `expected`, and the reason if there is none."""
    forms, reason = {}, "it has no form of this call"
    measured = norm_difference if tensors.shape.dropout else difference
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            offered = library.forms(tensors)
        except Exception as error:  # noqa: BLE001: a library of any version may fail in any way
            return {}, reason_of(error, said)
        for name, call in offered.items():
            try:
                result = call()
                if tensors.q.is_cuda:
                    torch.cuda.synchronize()
                result = getattr(call, "in_shape", lambda x: x)(result)
            except Exception as error:  # noqa: BLE001
                reason = reason_of(error, said)
                continue
            if expected is not None and not (off := measured(expected, result)) < largest:
                reason = f"its result differs from that of cuflash by {off:.3f} of the norm"
                continue
            forms[name] = call
    return forms, reason
