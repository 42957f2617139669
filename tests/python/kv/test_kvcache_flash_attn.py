"""flash_attn_with_kvcache: the signature and the semantics that flash_attn documents, in every mode of PyTorch."""

import inspect

import kvcache_cases
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import cuflash  # noqa: E402
from random_cases import examples  # noqa: E402
from cuflash import flash_attn_with_kvcache  # noqa: E402

SIGNATURE = {"q": None, "k_cache": None, "v_cache": None, "k": None, "v": None, "rotary_cos": None, "rotary_sin": None,
             "cache_seqlens": None, "cache_batch_idx": None, "cache_leftpad": None, "block_table": None,
             "softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0,
             "rotary_interleaved": True, "alibi_slopes": None, "num_splits": 0, "return_softmax_lse": False}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.manual_seed(0)
    torch._dynamo.reset()


def test_signature_is_that_of_flash_attn():
    parameters = inspect.signature(flash_attn_with_kvcache).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == list(SIGNATURE)
    assert all(p.default == SIGNATURE[p.name] for p in positional[3:])
    assert all(p.default is p.empty for p in positional[:3])
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == ["sink"]


def run(case, given, device):
    kinds = {name: kvcache_cases.type_of(case, name) for name in given}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(x)).to(device, getattr(torch, kinds[name] or str(x.dtype)))
               for name, x in given.items() if isinstance(x, np.ndarray)}
    if "v_cache" not in tensors:
        tensors["v_cache"] = tensors["k_cache"][..., : case.dim_v]
    if isinstance(given["cache_seqlens"], int):
        tensors["cache_seqlens"] = given["cache_seqlens"]
    out, lse = flash_attn_with_kvcache(
        **tensors, rotary_interleaved=case.interleaved, softmax_scale=case.options.get("scale"),
        causal=case.options["causal"], window_size=case.options["window"], softcap=case.options.get("softcap", 0.0),
        return_softmax_lse=True)
    return tuple(x.double().cpu().numpy() for x in (out, lse, tensors["k_cache"], tensors["v_cache"]))


@pytest.mark.parametrize("begin", range(examples(150))[::25])
def test_random_problems(begin, device):
    for seed in range(begin, min(begin + 25, examples(150))):
        case = kvcache_cases.draw(20_000 + seed, flash=True)
        given = kvcache_cases.arguments(case, "bshd", False, seed)
        for name in ("seqlens_q", "seqlens_new"):
            given.pop(name, None)
        try:
            out, lse, k_cache, v_cache = run(case, given, device)
            kvcache_cases.check(case, *kvcache_cases.sequences(case, given, out, lse), k_cache, v_cache)
        except AssertionError as error:
            raise AssertionError(f"seed {20_000 + seed}: {error}") from error


def problem(device, tokens=1, dtype=torch.float32, **options):
    """q [2, tokens, 4, 8] and a cache [2, 16, 2, 8]."""
    made = {"q": torch.randn(2, tokens, 4, 8, device=device, dtype=dtype),
            "k_cache": torch.randn(2, 16, 2, 8, device=device, dtype=dtype),
            "v_cache": torch.randn(2, 16, 2, 8, device=device, dtype=dtype),
            "k": torch.randn(2, tokens, 2, 8, device=device, dtype=dtype),
            "v": torch.randn(2, tokens, 2, 8, device=device, dtype=dtype),
            "cache_seqlens": torch.tensor([3, 9], dtype=torch.int32, device=device)}
    return {**made, **options}


def rotary(device, positions=16):
    angle = torch.rand(positions, 4, device=device)
    return {"rotary_cos": angle.cos(), "rotary_sin": angle.sin()}


def copied(given):
    return {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in given.items()}


def test_steps_with_a_cache_are_one_call_without(device):
    """A prompt in one call, then token by token, with rotary embedding, equals all queries at once."""
    q, k, v = (torch.randn(2, 12, heads, 8, device=device) for heads in (4, 2, 2))
    table = rotary(device)
    whole_k = torch.zeros(2, 16, 2, 8, device=device)
    whole_v = torch.zeros_like(whole_k)
    expected = flash_attn_with_kvcache(q, whole_k, whole_v, k, v, cache_seqlens=0, causal=True, **table)
    k_cache, v_cache = torch.full_like(whole_k, torch.nan), torch.full_like(whole_k, torch.nan)
    outs, done = [], 0
    for tokens in (7, 1, 1, 2, 1):
        rows = slice(done, done + tokens)
        outs.append(flash_attn_with_kvcache(q[:, rows], k_cache, v_cache, k[:, rows], v[:, rows], cache_seqlens=done,
                                            causal=True, **table))
        done += tokens
    torch.testing.assert_close(torch.cat(outs, 1), expected, atol=1e-5, rtol=0)
    assert torch.equal(k_cache[:, :12], whole_k[:, :12]) and torch.equal(v_cache[:, :12], v)
    assert k_cache[:, 12:].isnan().all()


def test_results(device):
    given = problem(device)
    out = flash_attn_with_kvcache(**copied(given))
    again, lse = flash_attn_with_kvcache(**copied(given), return_softmax_lse=True)
    assert isinstance(out, torch.Tensor) and out.shape == (2, 1, 4, 8) and lse.shape == (2, 4, 1)
    assert torch.equal(out, again) and lse.dtype == torch.float32
    for softcap in (0.0, -1.0):  # to flash_attn, a softcap below 0 means none
        assert torch.equal(flash_attn_with_kvcache(**copied(given), softcap=softcap), out)


REFUSED = {
    "rotary without k": (lambda g, r: g(k=None, v=None, **r), "rotary_cos: needs k and v"),
    "rotary with left padding": (lambda g, r: g(cache_leftpad=torch.zeros(2, dtype=torch.int32), **r),
                                 "rotary_cos: cannot be combined with cache_leftpad.*attention_with_cache"),
    "rotary of more queries": (lambda g, r: g(q=torch.randn(2, 3, 4, 8), **r),
                               "rotary_cos: q has 3 rows and k has 1.*attention_with_cache"),
    "k without lengths": (lambda g, r: g(cache_seqlens=None), "cache_seqlens: is needed with k"),
    "lengths in i64": (lambda g, r: g(cache_seqlens=torch.tensor([3, 9])), "cache_seqlens: .*int64"),
    "no room": (lambda g, r: g(cache_seqlens=16), "k: appending 1 rows to the 16 of sequence 0 .* has room for 16"),
    "type of the cache": (lambda g, r: g(k_cache=torch.zeros(2, 16, 2, 8).half()), "k_cache: type f16"),
    "strides of the cache": (lambda g, r: g(k_cache=torch.zeros(2, 16, 2, 16)[..., ::2]), "k_cache: "),
    "window": (lambda g, r: g(window_size=(-2, 0)), "window_size: got"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_sentence(case):
    change, words = REFUSED[case]

    def given(**options):
        return {**problem("cpu"), **options}

    arguments = change(given, rotary("cpu"))
    before = copied(arguments)
    with pytest.raises(ValueError, match=words):
        flash_attn_with_kvcache(**arguments)
    assert torch.equal(arguments["k_cache"], before["k_cache"]) and torch.equal(arguments["v_cache"], before["v_cache"])


def test_a_cache_that_is_stored_negated_is_refused():
    negated = torch.randn(2, 16, 2, 8, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    with pytest.raises(ValueError, match="k_cache, v_cache: .*resolve_neg"):
        flash_attn_with_kvcache(**problem("cpu", k_cache=negated))


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match="k_cache is of type ndarray"):
        flash_attn_with_kvcache(**problem("cpu", k_cache=np.zeros((2, 16, 2, 8), np.float32)))
    with pytest.raises(TypeError, match="rotary_cos is of type list"):
        flash_attn_with_kvcache(**problem("cpu", rotary_cos=[1.0], rotary_sin=[1.0]))


def test_modes_without_gradients(device):
    given = problem(device)
    expected = flash_attn_with_kvcache(**copied(given))
    with torch.no_grad():
        assert torch.equal(flash_attn_with_kvcache(**copied(given)), expected)
    with torch.inference_mode():
        assert torch.equal(flash_attn_with_kvcache(**copied(given)), expected)
        given["q"].requires_grad_()
        assert not flash_attn_with_kvcache(**copied(given)).requires_grad


@pytest.mark.parametrize("name", ("q", "k", "v"))
def test_requested_gradients_are_refused(name, device):
    """The error is raised only in backward, since a model used for inference may run without no_grad."""
    given = problem(device)
    expected = flash_attn_with_kvcache(**copied(given))
    arguments = copied(given)
    arguments[name].requires_grad_()
    out, lse = flash_attn_with_kvcache(**arguments, return_softmax_lse=True)
    assert torch.equal(out, expected)
    for result in (out, lse):
        with pytest.raises(RuntimeError, match="attention with a KV cache has no gradient; .*no_grad"):
            result.sum().backward(retain_graph=True)


def test_autograd_knows_that_the_cache_was_written(device):
    given = problem(device)
    weight = torch.ones(1, device=device, requires_grad=True)
    loss = (given["k_cache"] * weight).sum()
    flash_attn_with_kvcache(**given)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("layout", ("bshd", "bhsd"))
def test_opcheck(layout, device):
    """PyTorch's own check of the schema (mutated arguments), the fake kernel and tracing."""
    given = problem(device)
    tensors = [given[name] for name in ("q", "k_cache", "v_cache", "k", "v")]
    if layout == "bhsd":
        tensors = [tensor.transpose(1, 2).contiguous() for tensor in tensors]
    options = (layout, None, True, -1, -1, 0.0, 0, 0, False, False, 0, 0)
    torch.library.opcheck(torch.ops.cuflash.attend_cache.default,
                          (*tensors, given["cache_seqlens"], *[None] * 11, *options))


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
def test_compile_in_one_graph(backend, device):
    """A projection, the step, and a use of the cache after it, which must see the written rows."""
    table = rotary(device)
    weight = torch.randn(32, 64, device=device)

    def step(x, k_cache, v_cache, lengths):
        q, k, v = (x @ weight).unflatten(-1, (8, 8)).split([4, 2, 2], 2)
        out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True, **table)
        return out, k_cache[:, 3:4].clone()

    given = problem(device)
    x = torch.randn(2, 1, 32, device=device)
    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend=backend)):
        caches = given["k_cache"].clone(), given["v_cache"].clone()
        with torch.no_grad():
            results.append((*function(x, *caches, given["cache_seqlens"]), *caches))
    torch.testing.assert_close(*results, atol=2e-4, rtol=2e-4)
    assert not torch.equal(results[1][2], given["k_cache"]) and torch.equal(results[1][1], results[1][2][:, 3:4])


def test_compile_with_lengths_that_change(device):
    """An int that counts tokens is a symbol of the graph: no step recompiles it."""
    made = []

    def counting(graph, example_inputs):
        made.append(graph)
        return graph

    @torch.compile(fullgraph=True, backend=counting, dynamic=True)
    def step(q, k_cache, v_cache, k, v, length: int):
        return flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=length, causal=True)

    given = problem(device)
    expected, caches = copied(given), [given["k_cache"], given["v_cache"]]
    for length in (3, 4, 5, 6):
        out = step(given["q"], *caches, given["k"], given["v"], length)
        expected["cache_seqlens"] = length
        assert torch.equal(out, flash_attn_with_kvcache(**expected, causal=True))
    assert torch.equal(caches[0], expected["k_cache"]) and len(made) == 1


def test_compile_a_cache_whose_values_are_a_slice_of_its_keys(device):
    def step(q, cache, k):
        return flash_attn_with_kvcache(q, cache, cache[..., :4], k, cache_seqlens=5)

    given = problem(device)
    caches = given["k_cache"].clone(), given["k_cache"].clone()
    expected = step(given["q"], caches[0], given["k"])
    out = torch.compile(step, fullgraph=True, backend="aot_eager")(given["q"], caches[1], given["k"])
    assert torch.equal(out, expected) and torch.equal(*caches)


def test_dispatch_modes_see_the_operator(device):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    given = problem(device)
    expected = flash_attn_with_kvcache(**copied(given))
    with Recorder():
        assert torch.equal(flash_attn_with_kvcache(**given), expected)
    assert "cuflash.attend_cache.default" in seen


def test_a_graph_is_replayed_with_other_lengths_and_tables(cuda):
    pages = [torch.randn(8, 16, 2, 64, device=cuda, dtype=torch.bfloat16) for _ in range(2)]
    q, k, v = (torch.randn(2, 1, heads, 64, device=cuda, dtype=torch.bfloat16) for heads in (4, 2, 2))
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device=cuda)
    lengths = torch.tensor([5, 20], dtype=torch.int32, device=cuda)

    def step(caches):
        return flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=lengths, block_table=table, causal=True)

    step([x.clone() for x in pages])
    torch.cuda.synchronize()
    captured = [x.clone() for x in pages]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(captured)
    for new_lengths, new_table in (([5, 20], [[0, 1], [2, 3]]), ([0, 31], [[7, 7], [1, 5]])):
        lengths.copy_(torch.tensor(new_lengths, dtype=torch.int32))
        table.copy_(torch.tensor(new_table, dtype=torch.int32))
        plain = [x.clone() for x in pages]
        for own, page in zip(captured, pages):
            own.copy_(page)
        graph.replay()
        expected = step(plain)
        torch.cuda.synchronize()
        assert torch.equal(out, expected) and all(map(torch.equal, captured, plain))


def test_current_stream(cuda):
    given = problem(cuda, dtype=torch.bfloat16)
    expected = flash_attn_with_kvcache(**copied(given))
    late = copied(given)
    late["k"].zero_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late["k"].copy_(given["k"])
        out = flash_attn_with_kvcache(**late)
        late["k"].zero_()
    stream.synchronize()
    assert torch.equal(out, expected)
