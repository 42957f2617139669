"""Large problems on the GPU, held to PyTorch in float64: sizes that are out of reach for the oracle on the CPU.

    python tests/gpu/gpu_large.py build/release/lib/libcuflash.so [--only NAME]

The float64 reference is evaluated head by head, in blocks of queries, on a few heads of each problem: the first, the last
and some between. Errors are allowed as the contract says: f64 1e-12 of the largest value; f32 1e-5 forward and 1e-4 of
the largest gradient; 16-bit types twice the error of the same formula evaluated naively in that type.
"""

import argparse
import os
import random
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "bench"))
from cuflash_c import Library  # noqa: E402

BLOCK = 2048  # queries at a time


class Options:
    def __init__(self, causal=False, window_left=-1, window_right=-1, softcap=0.0):
        self.causal, self.left, self.right, self.softcap = causal, window_left, window_right, softcap

    def fields(self):
        return {"window_left": self.left, "window_right": self.right, "softcap": self.softcap}

    def visible(self, rows, keys, shift, device):
        at = torch.arange(rows.start, rows.stop, device=device)[:, None] + shift
        key = torch.arange(keys, device=device)[None, :]
        seen = torch.ones((len(rows), keys), dtype=torch.bool, device=device)
        if self.causal:
            seen &= key <= at
        elif self.right >= 0:
            seen &= key <= at + self.right
        if self.left >= 0:
            seen &= key >= at - self.left
        return seen


def reference(q, k, v, dout, options, dtype):
    """o, lse, dq, dk, dv of one head [S, D], every operation in `dtype`."""
    q, k, v, dout = (t.to(dtype) for t in (q, k, v, dout))
    scale, shift = q.shape[1] ** -0.5, k.shape[0] - q.shape[0]
    o, lse, dq = torch.zeros_like(dout), torch.empty(q.shape[0], dtype=dtype, device=q.device), torch.zeros_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, q.shape[0], BLOCK):
        rows = range(start, min(start + BLOCK, q.shape[0]))
        part = slice(rows.start, rows.stop)
        s = q[part] @ k.T * scale
        slope = 1.0
        if options.softcap:
            bent = torch.tanh(s / options.softcap)
            s, slope = options.softcap * bent, 1 - bent * bent
        seen = options.visible(rows, k.shape[0], shift, q.device)
        s = s.masked_fill(~seen, float("-inf"))
        lse[part] = torch.logsumexp(s, 1)
        p = torch.where(seen, torch.exp(s - lse[part, None]), torch.zeros_like(s))
        o[part] = p @ v
        ds = p * (dout[part] @ v.T - (dout[part] * o[part]).sum(1, keepdim=True)) * slope
        dq[part] = ds @ k * scale
        dk += ds.T @ q[part] * scale
        dv += p.T @ dout[part]
    return {"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


def compare(where, dtype, ours, exact, naive):
    faults = []
    for name, value in ours.items():
        want, got = exact[name], value.double()
        finite = torch.isfinite(want)
        if not torch.equal(finite, torch.isfinite(got)):
            faults.append(f"{where} {name}: not finite in other places than the reference")
            continue
        if not finite.any():
            continue
        error = (got - want)[finite].abs().max().item()
        largest = want[finite].abs().max().item()
        if name == "lse":
            allowed = 1e-4 + 1e-5 * largest if dtype != torch.float64 else 1e-12 * max(largest, 1)
        elif dtype == torch.float64:
            allowed = 1e-12 * max(largest, 1e-3)
        elif dtype == torch.float32:
            allowed = 1e-5 if name == "o" else 1e-4 * largest
        else:
            naive_error = (naive[name].double() - want)[finite].abs().max().item()
            allowed = 2 * naive_error + (1e-5 if name == "o" else 1e-4)
        if not error <= allowed:
            faults.append(f"{where} {name}: error {error:.3e}, allowed {allowed:.3e} (largest {largest:.3e})")
    return faults


def check_heads(where, heads, dtype, q, k, v, dout, results, options):
    """Each head is a function of views: (q, k, v, dout, results) of one query head, and its gradients of k and v."""
    faults = []
    for b, h, hk in heads:
        group = q.shape[1] // k.shape[1]
        exact = reference(q[b, h], k[b, hk], v[b, hk], dout[b, h], options, torch.float64)
        half = dtype in (torch.float16, torch.bfloat16)
        naive = reference(q[b, h], k[b, hk], v[b, hk], dout[b, h], options, dtype) if half else None
        ours = {"o": results["o"][b, h], "lse": results["lse"][b, h], "dq": results["dq"][b, h]}
        if group == 1:  # otherwise dk and dv are sums over the group, which the random sweep checks
            ours.update(dk=results["dk"][b, hk], dv=results["dv"][b, hk])
        faults += compare(f"{where} [b={b} h={h}]", dtype, ours, exact, naive)
    return faults


def some_heads(batch, heads_q, heads_k, count=4):
    random.seed(5)
    picks = {(0, 0), (batch - 1, heads_q - 1)} | {
        (random.randrange(batch), random.randrange(heads_q)) for _ in range(count - 2)}
    return [(b, h, h // (heads_q // heads_k)) for b, h in sorted(picks)]


def normal(shape, dtype):
    """Normal random numbers, filled in parts, because memory has no room for a float32 copy of billions of elements."""
    t = torch.empty(shape, dtype=dtype, device="cuda")
    flat = t.view(-1)
    for part in flat.split(1 << 28):
        part.copy_(torch.randn(part.shape, dtype=torch.float32, device="cuda"))
    return t


def poisoned(shape, dtype):
    """Memory for a result, filled with NaN, which shows in elements that are not written."""
    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


def poisoned_like(t):
    """poisoned() with the strides of t, if t has no gaps."""
    return torch.full_like(t, float("nan"))


def run_dense(library, where, q, k, v, dout, options, heads, backward=True):
    o = poisoned_like(dout)
    lse = poisoned(q.shape[:3], torch.float64 if q.dtype == torch.float64 else torch.float32)
    library.forward(q, k, v, o, lse, options.causal, **options.fields())()
    results = {"o": o, "lse": lse}
    if backward:
        grads = {"dq": poisoned_like(q), "dk": poisoned(k.shape, k.dtype), "dv": poisoned(v.shape, v.dtype)}
        library.backward(q, k, v, o, lse, dout, grads["dq"], grads["dk"], grads["dv"], options.causal,
                         **options.fields())()
        results.update(grads)
    torch.cuda.synchronize()
    if backward:
        return check_heads(where, heads, q.dtype, q, k, v, dout, results, options)
    faults = []
    for b, h, hk in heads:
        exact = reference(q[b, h], k[b, hk], v[b, hk], dout[b, h], options, torch.float64)
        naive = reference(q[b, h], k[b, hk], v[b, hk], dout[b, h], options, q.dtype)
        ours = {"o": o[b, h], "lse": lse[b, h]}
        faults += compare(f"{where} [b={b} h={h}]", q.dtype, ours, exact, naive)
    return faults


def dense_case(dtype, batch, heads_q, heads_k, len_q, len_k, dim, dim_v, backward=True, **options):
    def run(library, where):
        make = lambda heads, length, width: normal((batch, length, heads, width), dtype).transpose(1, 2)
        q, k, v = make(heads_q, len_q, dim), make(heads_k, len_k, dim), make(heads_k, len_k, dim_v)
        return run_dense(library, where, q, k, v, make(heads_q, len_q, dim_v), Options(**options),
                         some_heads(batch, heads_q, heads_k), backward)
    return run


def strided_keys(library, where):
    """Keys and values stored [24000, B, 128] and viewed [B, 1, 24000, 128]: offsets beyond 2^31 elements."""
    batch, length, dim = 720, 24000, 128
    k, v = (normal((length, batch, dim), torch.bfloat16).permute(1, 0, 2)[:, None] for _ in range(2))
    q, dout = (normal((batch, 1, 256, dim), torch.bfloat16) for _ in range(2))
    return run_dense(library, where, q, k, v, dout, Options(), some_heads(batch, 1, 1), backward=False)


def run_packed(library, where, q, k, v, dout, lengths, options, sequences):
    """Runs packed sequences [T, H, D] and compares some of them."""
    heads, total, dtype = q.shape[1], q.shape[0], q.dtype
    ends = torch.tensor([0, *lengths]).cumsum(0)
    cu, longest = ends.to("cuda", torch.int32), max(lengths)
    o, dq, dk, dv = (poisoned_like(t) for t in (v.new_empty((total, heads, v.shape[2])), q, k, v))
    lse = poisoned((heads, total), torch.float32)
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest, "max_seqlen_k": longest}
    library.forward(q, k, v, o, lse, options.causal, **packed)()
    library.backward(q, k, v, o, lse, dout, dq, dk, dv, options.causal, **packed)()
    torch.cuda.synchronize()
    faults = []
    for b in sequences:
        rows = slice(int(ends[b]), int(ends[b + 1]))
        for h in (0, heads - 1):
            exact = reference(q[rows, h], k[rows, h], v[rows, h], dout[rows, h], options, torch.float64)
            naive = reference(q[rows, h], k[rows, h], v[rows, h], dout[rows, h], options, dtype)
            ours = {"o": o[rows, h], "lse": lse[h, rows], "dq": dq[rows, h], "dk": dk[rows, h], "dv": dv[rows, h]}
            faults += compare(f"{where} [b={b} h={h}]", dtype, ours, exact, naive)
    return faults


def packed_case(dtype, longest, dim, dim_v=None, causal=False):
    """Every sequence but one is shorter than the longest; all are compared."""
    lengths, heads = [5, longest - 3, 70, longest, longest // 2 + 1], 3

    def run(library, where):
        make = lambda width: normal((sum(lengths), heads, width), dtype)
        return run_packed(library, where, make(dim), make(dim), make(dim_v or dim), make(dim_v or dim), lengths,
                          Options(causal=causal), range(len(lengths)))
    return run


def strided_dout(library, where):
    """Packed rows 9728 elements apart, 410923 of them: the gradient of the output is a slice of something wider."""
    total, heads, dim, stride, dtype = 410923, 16, 96, 9728, torch.bfloat16
    q, k, v = (normal((total, heads, dim), dtype) for _ in range(3))
    wide = torch.empty((total, stride), dtype=dtype, device="cuda")
    dout = wide[:, :heads * dim].view(total, heads, dim)
    dout.copy_(normal((total, heads, dim), dtype))
    length = 1003
    lengths = [length] * (total // length) + [total % length]
    return run_packed(library, where, q, k, v, dout, lengths, Options(causal=True),
                      (0, len(lengths) // 2, len(lengths) - 1))


def long_mask(library, where):
    """A mask tensor of 49999 x 49999 bytes, forward and backward."""
    length, heads, dim, dtype = 49999, 8, 64, torch.bfloat16
    q, k, v, dout = (normal((1, heads, length, dim), dtype) for _ in range(4))
    mask = torch.ones((1, 1, length, length), dtype=torch.bool, device="cuda").tril_()  # what causal says
    results = []
    for extra in ({"mask": mask}, {}):
        o, dq, dk, dv = (poisoned_like(q) for _ in range(4))
        lse = poisoned((1, heads, length), torch.float32)
        causal = not extra
        library.forward(q, k, v, o, lse, causal, **extra)()
        library.backward(q, k, v, o, lse, dout, dq, dk, dv, causal, **extra)()
        results.append({"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv})
    torch.cuda.synchronize()
    masked, causal = results
    relative = lambda name: ((masked[name] - causal[name]).float().abs().max() / causal[name].float().abs().max()).item()
    return [f"{where} {name}: differs from causal by {relative(name):.3e}" for name in masked if not relative(name) < 0.02]


F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
CASES = {
    "bf16 8k causal D=128": dense_case(BF16, 1, 16, 16, 8192, 8192, 128, 128, causal=True),
    "bf16 1500 causal D=128": dense_case(BF16, 2, 8, 8, 1500, 1500, 128, 128, causal=True),
    "bf16 16k D=64": dense_case(BF16, 1, 8, 8, 16384, 16384, 64, 64),
    "bf16 4k causal D=256": dense_case(BF16, 2, 8, 8, 4096, 4096, 256, 256, causal=True),
    "f16 4k D=192 Dv=128": dense_case(F16, 2, 4, 4, 4096, 4096, 192, 128, causal=True),
    "f16 window (1000, 300)": dense_case(F16, 1, 4, 4, 8192, 8192, 64, 64, window_left=1000, window_right=300),
    "f16 softcap 10 causal": dense_case(F16, 2, 8, 8, 1024, 1024, 128, 128, causal=True, softcap=10.0),
    "bf16 GQA 8, Sq > Sk causal": dense_case(BF16, 2, 16, 2, 5000, 3001, 128, 128, causal=True),
    "f32 4k causal D=64": dense_case(F32, 2, 8, 8, 4096, 4096, 64, 64, causal=True),
    "f32 2k D=128": dense_case(F32, 2, 8, 8, 2048, 2048, 128, 128),
    "f64 2k D=96": dense_case(F64, 1, 4, 4, 2048, 2048, 96, 96, causal=True),
    "f16 B=65536": dense_case(F16, 65536, 8, 8, 4, 4, 64, 64),
    "f32 H=65536": dense_case(F32, 1, 65536, 65536, 10, 10, 16, 16),
    "bf16 B=8300 S=1": dense_case(BF16, 8300, 16, 16, 1, 1, 128, 128),
    "bf16 [28800, 15, 16, 72]": dense_case(BF16, 28800, 16, 16, 15, 15, 72, 72),
    "bf16 [1600, 16, 729, 72]": dense_case(BF16, 1600, 16, 16, 729, 729, 72, 72, backward=False),
    "f16 Sq=64*65535+1": dense_case(F16, 1, 1, 1, 64 * 65535 + 1, 16, 64, 64),
    "bf16 keys stored [S, B, D]": strided_keys,
    "bf16 packed, dout strided": strided_dout,
    "bf16 mask tensor 49999^2": long_mask,
}
# Lengths on either side of those at which the plan for a head size changes.
for dim, dim_v in ((64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)):
    for longest in (300, 1000, 2000, 4000, 8000):
        for causal in (False, True):
            dtype = F16 if longest == 1000 else BF16
            name = f"packed {str(dtype)[6:]} {longest} D={dim} Dv={dim_v}{' causal' if causal else ''}"
            CASES[name] = packed_case(dtype, longest, dim, dim_v, causal)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_large: skipped, PyTorch sees no GPU")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = False
    library, ran, failed = Library(args.library), 0, 0
    for name, run in CASES.items():
        if args.only not in name:
            continue
        torch.manual_seed(3)
        start = time.perf_counter()
        try:
            faults = run(library, name)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            faults = [f"{name}: {error}"]
        torch.cuda.empty_cache()
        print(f"{'FAILED' if faults else 'ok    '} {name} ({time.perf_counter() - start:.1f} s)", flush=True)
        for fault in faults:
            print(f"  {fault}", flush=True)
        ran, failed = ran + 1, failed + bool(faults)
    print(f"{failed} of {ran} large problems failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
