"""Every function refuses tensors without memory, or with too little, and reads nothing."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import cuflash  # noqa: E402

LSE = torch.zeros(2, 4, 6)


def rows(*shape):
    return torch.randn(shape or (2, 4, 6, 8))


def sequence_lengths():
    return torch.tensor([0, 4], dtype=torch.int32)


def of_packed(function, **tensors):
    starts = sequence_lengths()
    return function(cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=4, max_seqlen_k=4, **tensors)


def patched(query, key, value, attn_mask):
    with cuflash.patch_torch():
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)


# Every public function with tensors, and a function that makes them.
ENTRIES = {
    "attention": (cuflash.attention, dict(q=rows, k=rows, v=rows, bias=lambda: rows(2, 4, 6, 6), sink=lambda: rows(4),
                                          alibi_slopes=lambda: rows(4), mask=lambda: rows(1, 1, 6, 6) > 0)),
    "attention_with_cache": (cuflash.attention_with_cache,
                             dict(q=rows, k_cache=rows, v_cache=rows, sink=lambda: rows(4), alibi_slopes=lambda: rows(4),
                                  cache_seqlens=lambda: torch.tensor([6, 6], dtype=torch.int32))),
    "merge_states": (cuflash.merge_states, dict(o_a=rows, lse_a=LSE.clone, o_b=rows, lse_b=LSE.clone)),
    "flash_attn_func": (cuflash.flash_attn_func, dict(q=rows, k=rows, v=rows)),
    "flash_attn_kvpacked_func": (cuflash.flash_attn_kvpacked_func, dict(q=rows, kv=lambda: rows(2, 4, 2, 6, 8))),
    "flash_attn_qkvpacked_func": (cuflash.flash_attn_qkvpacked_func, dict(qkv=lambda: rows(2, 4, 3, 6, 8))),
    "flash_attn_varlen_func": (lambda **t: of_packed(cuflash.flash_attn_varlen_func, **t),
                               dict.fromkeys("qkv", lambda: rows(4, 6, 8))),
    "flash_attn_with_kvcache": (cuflash.flash_attn_with_kvcache, dict(q=rows, k_cache=rows, v_cache=rows)),
}


def cases(fewest=1):
    """Every tensor of every function that takes so many."""
    return [pytest.param(entry, name, id=f"{entry}-{name}") for entry, (_, made) in ENTRIES.items() for name in made
            if len(made) >= fewest]


def refused(entry, name, spoil):
    """The message if this tensor of an otherwise valid call is spoiled."""
    function, made = ENTRIES[entry]
    tensors = {n: make() for n, make in made.items()}
    function(**tensors)
    with pytest.raises((ValueError, TypeError)) as raised:
        function(**{**tensors, name: spoil(tensors[name])})
    return str(raised.value)


def shorten(tensor):
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(tensor.untyped_storage().nbytes() - tensor.element_size())
    return tensor


@pytest.mark.parametrize("entry, name", cases(fewest=2))
def test_one_tensor_on_the_meta_device(entry, name):
    message = refused(entry, name, lambda t: t.to("meta"))
    assert "is on" in message and "meta" in message and "\n" not in message, message


@pytest.mark.parametrize("entry, name", cases(fewest=2))
def test_all_but_one_on_the_meta_device(entry, name):
    function, made = ENTRIES[entry]
    tensors = {n: make() if n == name else make().to("meta") for n, make in made.items()}
    with pytest.raises(ValueError, match="is on .*meta"):
        function(**tensors)


@pytest.mark.parametrize("entry, name", cases())
def test_storage_that_ends_before_the_tensor(entry, name):
    message = refused(entry, name, shorten)
    assert message.startswith(f"{name}: its storage holds ") and "resized" in message, message


def test_views_beyond_their_storage(device):
    """Slices, offsets and strides are considered; a storage of exactly the right size does not raise."""
    base = torch.zeros(2 * 4 * 6 * 8 + 5, device=device)
    view = base.as_strided((2, 4, 6, 8), (192, 48, 8, 1), 5)
    good = torch.zeros(2, 4, 6, 8, device=device)
    cuflash.attention(view, good, good)
    base.untyped_storage().resize_(4 * (2 * 4 * 6 * 8 + 4))
    with pytest.raises(ValueError, match="^v: its storage holds 388 elements, but its shape and strides reach element 389"):
        cuflash.attention(good, good, view)
    repeated = torch.zeros(8, device=device).expand(2, 4, 6, 8)
    cuflash.attention(repeated, repeated, repeated)
    freed = torch.zeros(2, 4, 6, 8, device=device)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="^k: its storage holds 0 elements"):
        cuflash.attention(good, freed, good)


def test_masks_with_fewer_dimensions():
    """PyTorch itself refuses to make a view of such a tensor."""
    q = rows()
    for name, tensor in (("bias", rows(6, 6)), ("mask", rows(6) > 0)):
        with pytest.raises(ValueError, match=f"^{name}: its memory cannot be accessed: "):
            cuflash.attention(q, q, q, **{name: shorten(tensor)})


def test_gradients_of_a_storage_that_shrank():
    """Between the passes, as a sharded model frees its parameters."""
    q, k, v = (rows().requires_grad_() for _ in range(3))
    out = cuflash.attention(q, k, v)
    k.untyped_storage().resize_(16)
    with pytest.raises(ValueError, match="^k: its storage holds 4 elements"):
        out.sum().backward()


def test_meta_tensors_alone_have_a_shape():
    q = torch.empty(2, 4, 6, 8, device="meta")
    out = cuflash.attention(q, q[:, :2], q[:, :2, :, :5])
    assert out.device.type == "meta" and out.shape == (2, 4, 6, 5)


def test_patched_function_speaks_of_its_own_arguments():
    q, short = rows(), shorten(rows())
    for words, call in {"query": (short, q, q, None), "key": (q, short, q, None), "value": (q, q, short, None),
                        "attn_mask": (q, q, q, shorten(rows(1, 1, 6, 6)))}.items():
        with pytest.raises(ValueError, match=f"^{words}: its storage holds"):
            patched(*call)


KINDS = {
    "sparse": (lambda t: t.to_sparse(), "layout torch.sparse_coo"),
    "quantized": (lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "type torch.qint8 is not supported"),
    "complex": (lambda t: torch.complex(t, t).conj(), "type (torch.)?complex64 is not supported"),
    "nested": (lambda t: torch.nested.nested_tensor(list(t)), "is a nested tensor"),
    "mkldnn": (lambda t: t.to_mkldnn(), "layout torch._mkldnn|memory cannot be accessed"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors_without_plain_memory(kind, name):
    make, words = KINDS[kind]
    try:
        spoiled = make(rows())
    except RuntimeError as error:
        pytest.skip(f"this PyTorch makes no such tensor: {str(error).splitlines()[0]}")
    tensors = {**{n: rows() for n in "qkv"}, name: spoiled}
    with pytest.raises(ValueError, match=f"^{name}: .*({words})"):
        cuflash.attention(**tensors)


def test_numbers_with_the_other_sign_are_read_right():
    """A view of the imaginary part of a conjugate stores its negative."""
    pairs = torch.complex(rows(), rows())
    lazy = pairs.conj().imag
    assert lazy.is_neg()
    k, v = rows(), rows()
    torch.testing.assert_close(cuflash.attention(lazy, k, v), cuflash.attention(lazy.resolve_neg(), k, v))
    torch.testing.assert_close(cuflash.attention(k, k, lazy), cuflash.attention(k, k, lazy.resolve_neg()))


def test_fake_tensors_stay_fake():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        q = torch.randn(2, 4, 6, 8)
        out = cuflash.attention(q, q, q)
        assert isinstance(out, FakeTensor) and out.shape == q.shape
        with pytest.raises(ValueError, match="k: is on meta, but q is on cpu"):
            cuflash.attention(q, q.to("meta"), q)
