"""A call of one of the six flash_attn functions, described by a dataclass, and its comparison with the reference."""

import dataclasses
from typing import Optional, Tuple

import torch

import torch_reference
from cuflash import flash_attn_interface as interface

SEED = 0x9E3779B97F4A7C15  # above 2**63, as torch.initial_seed() may be


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem. lengths, (queries, keys) of each sequence, make it a packed (varlen) one."""

    packing: str = "separate"  # or "kv" or "qkv"
    batch: int = 2
    len_q: int = 19
    len_k: int = 33
    lengths: Optional[Tuple[Tuple[int, int], ...]] = None
    heads_k: int = 2
    group: int = 1
    dim: int = 16
    dim_v: int = 16
    dtype: torch.dtype = torch.float32
    causal: bool = False
    window: Tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    scale: Optional[float] = None
    dropout_p: float = 0.0
    alibi: str = ""  # or "heads" or "batch and heads"
    bias: str = ""  # its dimensions, letters of "bhq"; it always has keys, and "-" means keys alone
    mask: str = ""  # likewise
    sink: bool = False
    padded: bool = False  # seqlens_q and seqlens_k
    spread: int = 1  # gaps between rows: inputs are views of a larger tensor
    seed: int = 0

    def normal(self) -> "Case":
        """The nearest valid case: packed tensors share the sizes that they must."""
        case = self
        if case.packing != "separate":
            case = dataclasses.replace(case, dim_v=case.dim)
        if case.packing == "qkv":
            same = None if case.lengths is None else tuple((q, q) for q, _ in case.lengths)
            case = dataclasses.replace(case, len_k=case.len_q, group=1, lengths=same)
        if case.lengths is not None:
            case = dataclasses.replace(case, batch=len(case.lengths), padded=False,
                                       len_q=max((q for q, _ in case.lengths), default=0),
                                       len_k=max((k for _, k in case.lengths), default=0))
        return case

    @property
    def function(self):
        suffix = {"separate": "", "kv": "kvpacked_", "qkv": "qkvpacked_"}[self.packing]
        return getattr(interface, f"flash_attn_{'varlen_' if self.lengths is not None else ''}{suffix}func")


def check(case: Case, device: str, slope: bool = False) -> None:
    """Compares forward and backward with float64; the naive evaluation in the same type sets the tolerance.

    slope: also check that results are not scaled as a whole; for cases with many rows that see many keys."""
    case = case.normal()
    generator = torch.Generator().manual_seed(case.seed)

    def random(*shape, dtype=case.dtype):
        wide = torch.randn(*shape[:-1], shape[-1] * case.spread, generator=generator).to(device, dtype)
        return wide[..., :shape[-1]].detach().requires_grad_()

    inputs = _inputs(case, random)
    extras = _extras(case, random, generator, device)
    lengths = {}
    if case.lengths is not None:
        lengths = {"cu_seqlens_q": _cumulative([q for q, _ in case.lengths], device),
                   "cu_seqlens_k": _cumulative([k for _, k in case.lengths], device)}
    out, lse, s_dmask = _call(case, inputs, extras, lengths)
    assert s_dmask.numel() == 0 or case.dropout_p > 0

    leaves = [*inputs, *(tensor for name, tensor in extras.items() if name in ("bias", "sink"))]
    dout = torch.randn(out.shape, generator=generator).to(device, case.dtype)
    dlse = torch.randn(lse.shape, generator=generator).to(device, lse.dtype)
    problem = (case, inputs, extras, lengths, leaves, dout, dlse)
    expected, expected_lse, expected_gradients = _reference(torch.float64, *problem)
    naive, _, naive_gradients = _reference(case.dtype, *problem)
    gradients = torch.autograd.grad((out, lse), leaves, (dout, dlse))

    # delta = dO . O starts from the rounded O, and enters dQ and dK times K and Q.
    size = max((tensor.detach().abs().max().item() for tensor in inputs if tensor.numel()), default=0.0)
    rounding = (dout * out.detach()).abs().sum(-1).max().item() * max(1.0, size) if out.numel() else 0.0

    assert out.dtype == case.dtype and out.is_contiguous()
    assert lse.dtype == (torch.float64 if case.dtype == torch.float64 else torch.float32)
    assert_close("out", case.dtype, out, expected, naive, absolute=1e-5, slope=slope)
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-4, rtol=1e-5)
    for index, (leaf, *values) in enumerate(zip(leaves, gradients, expected_gradients, naive_gradients)):
        assert values[0].shape == leaf.shape and values[0].dtype == leaf.dtype
        assert_close(f"gradient {index} {list(leaf.shape)}", case.dtype, *values, absolute=1e-4, slope=slope,
                     rounding=rounding)


def assert_close(name, dtype, actual, expected, naive, absolute, slope=False, rounding=0.0):
    """Allows at most twice the error of the naive evaluation in the type of the inputs, plus one rounding of the
    largest result and of `rounding`: on a few numbers the naive evaluation can be lucky."""
    if expected.numel() == 0:
        return
    actual, naive = actual.double(), naive.double()
    assert torch.equal(actual.isnan(), expected.isnan()), f"{name}: NaN in other places"
    largest = expected.abs().max().item()
    error, naive_error = ((value - expected).abs().max().item() for value in (actual, naive))
    if dtype == torch.float64:
        allowed = 1e-12 * max(largest, 1)
    elif dtype == torch.float32:
        allowed = 2 * naive_error + absolute * max(largest, 1)
    else:
        allowed = 2 * naive_error + torch.finfo(dtype).eps * (largest + rounding) + absolute
    assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g} (naive {naive_error:.3g})"
    if slope:
        factor, naive_factor = (((value * expected).sum() / (expected * expected).sum()).item() for value in (actual, naive))
        # Roundings do not average out in a few numbers, such as the gradients of sinks, nor in those of the naive evaluation.
        few = 64
        allowed = 2e-3 if expected.numel() >= few else max(2e-3, abs(naive_factor - 1))
        assert abs(factor - 1) <= allowed, f"{name}: {factor:.5f} times what it should be, allowed 1 +- {allowed:.5f}"


def _inputs(case, random):
    rows_q = (case.batch, case.len_q) if case.lengths is None else (sum(q for q, _ in case.lengths),)
    rows_k = (case.batch, case.len_k) if case.lengths is None else (sum(k for _, k in case.lengths),)
    if case.packing == "qkv":
        return [random(*rows_q, 3, case.heads_k, case.dim)]
    q = random(*rows_q, case.heads_k * case.group, case.dim)
    if case.packing == "kv":
        return [q, random(*rows_k, 2, case.heads_k, case.dim)]
    return [q, random(*rows_k, case.heads_k, case.dim), random(*rows_k, case.heads_k, case.dim_v)]


def _extras(case, random, generator, device):
    heads = case.heads_k * case.group
    sizes = {"b": case.batch, "h": heads, "q": case.len_q}

    def shape(letters):
        return [*(sizes[letter] if letter in letters else 1 for letter in "bhq"), case.len_k]

    extras = {}
    if case.alibi:
        batch = [case.batch] if "batch" in case.alibi else []
        extras["alibi_slopes"] = torch.rand(*batch, heads, generator=generator).to(device)
    if case.bias:
        extras["bias"] = random(*shape(case.bias))
    if case.mask:
        extras["mask"] = (torch.rand(*shape(case.mask), generator=generator) < 0.7).to(device)
    if case.sink:
        extras["sink"] = random(heads, dtype=torch.float32 if case.dtype != torch.float64 else torch.float64)
    if case.padded:
        for name, length in (("seqlens_q", case.len_q), ("seqlens_k", case.len_k)):
            extras[name] = torch.randint(0, length + 1, (case.batch,), generator=generator).to(device, torch.int32)
    return extras


def _call(case, inputs, extras, lengths):
    arguments = [*inputs]
    if lengths:
        arguments += [lengths["cu_seqlens_q"], case.len_q] if case.packing == "qkv" else [
            lengths["cu_seqlens_q"], lengths["cu_seqlens_k"], case.len_q, case.len_k]
    extras = dict(extras)
    slopes = extras.pop("alibi_slopes", None)
    return case.function(*arguments, case.dropout_p, case.scale, case.causal, case.window, case.softcap, slopes, True,
                         True, dropout_seed=SEED, **extras)


def _reference(dtype, case, inputs, extras, lengths, leaves, dout, dlse):
    q, k, v = unpacked(inputs)
    attend = torch_reference.packed_attention if lengths else torch_reference.attention
    out, lse = attend(q, k, v, dtype=dtype, scale=case.scale, causal=case.causal, window=case.window,
                      softcap=case.softcap, dropout_p=case.dropout_p, dropout_seed=(SEED, 0), **extras, **lengths)
    # Rows without a key have an LSE of -inf and gradients of 0, whatever the gradient of that LSE is.
    loss = (out * dout.to(dtype)).sum() + (lse.masked_fill(lse == -torch.inf, 0.0) * dlse.to(dtype)).sum()
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return out.detach(), lse.detach(), [gradient.double() for gradient in gradients]


def unpacked(inputs):
    """q, k and v from a function's inputs."""
    if len(inputs) == 1:
        return inputs[0].unbind(-3)
    return (inputs[0], *inputs[1].unbind(-3)) if len(inputs) == 2 else inputs


def _cumulative(lengths, device):
    return torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
