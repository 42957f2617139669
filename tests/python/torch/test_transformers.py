"""attn_implementation="cuflash" on small random models of transformers, against their eager attention."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", minversion="4.53", reason="transformers 4.53 is not installed")

import cuflash  # noqa: E402
from cuflash import _transformers  # noqa: E402

SIZES = dict(vocab_size=61, hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def mistral():
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=5))


def gemma2():
    """Softcap, a non-default scale, a head size other than hidden / heads, a window in every second layer."""
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **SIZES, head_dim=16, sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=7))


def gpt_oss():
    """Sinks, and a window in every second layer."""
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **SIZES, head_dim=12, sliding_window=5, num_local_experts=2, num_experts_per_tok=1))
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=8))


def bert():
    sizes = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
    return transformers.BertForMaskedLM(transformers.BertConfig(
        **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def t5():
    """An encoder, a decoder, cross-attention, and a learned position bias."""
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=61, d_model=48, d_kv=12, d_ff=40, num_layers=2, num_heads=4, dropout_rate=0.0, pad_token_id=0,
        decoder_start_token_id=0))


DECODERS = [llama, mistral, gemma2, gpt_oss, qwen3]


def make(build, device, attention="cuflash", dtype=torch.float32):
    """The model of this builder; the weights are the same in every call."""
    cuflash.register_transformers()
    torch.manual_seed(0)
    model = build().to(device, dtype).train()
    model.set_attn_implementation(attention)
    if transformers.__version__ < "5" and build in (bert, t5):
        pytest.skip(f"{build.__name__} of transformers {transformers.__version__} cannot be given another attention")
    assert model.config._attn_implementation == attention
    return model


def tokens(device, batch=3, length=13, padding="right"):
    """Random tokens, and a mask: sequences of different lengths, padded on this side; None: all of full length."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 61, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row, pad in enumerate([0, 4, 7][:batch] if padding else []):
        mask[row, slice(length - pad, length) if padding == "right" else slice(0, pad)] = 0
    ids = torch.where(mask.bool(), ids, 0)
    return ids.to(device), mask.to(device)


@pytest.fixture
def calls(monkeypatch):
    """Records the options of every attention call, to see that the library computed it and with what."""
    seen = []

    def record(*args, **options):
        seen.append(options)
        return attention(*args, **options)
    attention = _transformers.attention
    monkeypatch.setattr(_transformers, "attention", record)
    return seen


def loss_and_gradients(model, ids, mask, **inputs):
    """The logits of real tokens, and the gradients of a loss over these tokens."""
    logits = model(input_ids=ids, attention_mask=mask, **inputs).logits
    real = logits[inputs["decoder_attention_mask"].bool() if "decoder_attention_mask" in inputs else mask.bool()]
    weight = torch.linspace(-1, 1, real.numel(), device=real.device).reshape(real.shape)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad((real.float() * weight).sum(), parameters, allow_unused=True)
    return real, [gradient for gradient in gradients if gradient is not None]


def agree(got, expected, tolerance=2e-5):
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= tolerance * (1 + expected.abs().max())


def compare(build, device, ids, mask, **inputs):
    logits, gradients = loss_and_gradients(make(build, device, "eager"), ids, mask, **inputs)
    got_logits, got_gradients = loss_and_gradients(make(build, device), ids, mask, **inputs)
    agree(got_logits, logits)
    assert len(got_gradients) == len(gradients) > 0
    for got, expected in zip(got_gradients, gradients):
        agree(got, expected)


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("build", DECODERS, ids=lambda build: build.__name__)
def test_decoders(device, calls, build, padding):
    ids, mask = tokens(device, padding=padding)
    compare(build, device, ids, mask)
    assert len(calls) == 2 and all(options["causal"] for options in calls)
    masks = [options.get("mask") for options in calls]
    # Padding costs one mask row per sequence, never a matrix; without padding there is no mask.
    assert all(m.shape == (3, 1, 1, 13) for m in masks) if padding else masks == [None, None]
    windows = {"mistral": [(4, 0)] * 2, "gemma2": [(4, 0), (-1, -1)], "gpt_oss": [(4, 0), (-1, -1)]}
    assert [options["window"] for options in calls] == windows.get(build.__name__, [(-1, -1)] * 2)


@pytest.mark.parametrize("padding", [None, "right", "left"])
def test_encoder(device, calls, padding):
    compare(bert, device, *tokens(device, padding=padding))
    assert len(calls) == 2 and not any(options["causal"] for options in calls)


def test_encoder_decoder(device, calls):
    ids, mask = tokens(device, padding="right")
    decoder_ids, decoder_mask = tokens(device, length=7, padding=None)
    compare(t5, device, ids, mask, decoder_input_ids=decoder_ids, decoder_attention_mask=decoder_mask)
    if not calls:
        pytest.skip(f"T5 of transformers {transformers.__version__} asks nobody for its attention")
    assert len(calls) == 6


def test_packed_sequences(device, calls):
    """Positions that restart: tokens see their own sequence only, which takes a full mask."""
    ids, _ = tokens(device, batch=1, padding=None)
    positions = torch.cat([torch.arange(5), torch.arange(8)])[None].to(device)
    outputs = [make(llama, device, attention)(input_ids=ids, position_ids=positions, use_cache=False).logits
               for attention in ("eager", "cuflash")]
    agree(outputs[1], outputs[0])
    assert [options["mask"].shape for options in calls] == [(1, 1, 13, 13)] * 2


@pytest.mark.parametrize("build", [llama, mistral], ids=lambda build: build.__name__)
def test_packed_sequences_by_their_bounds(device, calls, build):
    """The output of padding-free data collators, with and without positions."""
    ids, _ = tokens(device, batch=1, padding=None)
    positions = torch.cat([torch.arange(5), torch.arange(8)])[None].to(device)
    bounds = torch.tensor([0, 5, 13], dtype=torch.int32, device=device)
    packed = dict(cu_seq_lens_q=bounds, cu_seq_lens_k=bounds, max_length_q=8, max_length_k=8)
    expected = make(build, device, "eager")(input_ids=ids, position_ids=positions, use_cache=False).logits
    model = make(build, device)
    agree(model(input_ids=ids, position_ids=positions, use_cache=False, **packed).logits, expected)
    assert calls[0]["mask"].shape == (1, 1, 13, 13)
    agree(model(input_ids=ids, position_ids=positions, use_cache=True, **packed).logits, expected)
    assert calls[-1]["layout"] == "thd" and "mask" not in calls[-1]


def test_bounds_with_another_mask(device):
    """A full mask that ignores the packing."""
    q = torch.randn(1, 2, 6, 8, device=device)
    bounds = torch.tensor([0, 2, 6], dtype=torch.int32, device=device)
    packed = dict(cu_seq_lens_q=bounds, cu_seq_lens_k=bounds, max_length_q=4, max_length_k=4)
    lower = torch.ones(6, 6, dtype=torch.bool, device=device).tril()[None, None]
    out, _ = _transformers.attention_forward(torch.nn.Module(), q, q, q, lower, **packed)
    expected, _ = _transformers.attention_forward(torch.nn.Module(), q, q, q, None, is_causal=True, **packed)
    agree(out, expected)


def test_patterns_that_are_not_known_become_masks():
    """Chunks, two-sided windows, and patterns that a model adds must not be mistaken for a window or for causal."""
    from transformers import masking_utils as m

    zero = torch.zeros(2, dtype=torch.int64)
    patterns = [m.chunked_causal_mask_function(4, zero),
                m.or_masks(m.causal_mask_function, m.sliding_window_overlay(3)),
                m.and_masks(m.causal_mask_function, m.sliding_window_overlay(3)),
                m.and_masks(m.sliding_window_overlay(3), m.causal_mask_function, m.sliding_window_overlay(2))]
    place = dict(q_length=9, q_offset=0) if transformers.__version__ >= "5" else dict(
        cache_position=torch.arange(9))
    for pattern in patterns:
        geometry = dict(batch_size=2, kv_length=9, kv_offset=0, mask_function=pattern, **place)
        got = _transformers.attention_mask(**geometry, allow_is_causal_skip=True)
        assert torch.equal(got, m.sdpa_mask(**geometry, allow_is_causal_skip=False)) and got.shape == (2, 1, 9, 9)
    for pattern in (m.causal_mask_function, m.sliding_window_causal_mask_function(3)):
        assert _transformers.attention_mask(**{**geometry, "mask_function": pattern}) is None


def test_a_mask_of_the_caller(device, calls):
    ids, _ = tokens(device, batch=2, padding=None)
    seen = torch.rand(2, 1, 13, 13, generator=torch.Generator().manual_seed(2)) < 0.5
    seen |= torch.eye(13, dtype=torch.bool)
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min).to(device)
    expected = make(llama, device, "eager")(input_ids=ids, attention_mask=added).logits
    agree(make(llama, device)(input_ids=ids, attention_mask=added).logits, expected)
    agree(make(llama, device)(input_ids=ids, attention_mask=seen.to(device)).logits, expected)
    assert [sorted({"bias", "mask"} & options.keys()) for options in calls] == [["bias"]] * 2 + [["mask"]] * 2


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("build", [llama, mistral, gemma2, gpt_oss], ids=lambda build: build.__name__)
def test_generate(device, build, cache):
    """Prefill, then one token at a time with a cache; left padding; beyond the sliding window."""
    ids, mask = tokens(device, length=9, padding="left")
    texts = []
    for attention in ("eager", "cuflash"):
        model = make(build, device, attention).eval()
        texts.append(model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, output_logits=True,
                                    return_dict_in_generate=True, cache_implementation=cache, disable_compile=True))
    assert torch.equal(texts[0].sequences, texts[1].sequences)
    for got, expected in zip(texts[1].logits, texts[0].logits):
        agree(got, expected, 1e-5)


def test_chunked_prefill(device, calls):
    """Queries after a filled cache: the last query is aligned with the last key."""
    ids, _ = tokens(device, batch=2, padding=None)
    outputs = []
    for attention in ("eager", "cuflash"):
        model, cache = make(mistral, device, attention), transformers.DynamicCache()
        outputs.append([model(input_ids=part, past_key_values=cache, use_cache=True).logits
                        for part in ids.split([6, 4, 3], dim=1)])
    for got, expected in zip(outputs[1], outputs[0]):
        agree(got, expected)
    assert all("mask" not in options for options in calls)


def test_chosen_when_the_model_is_made(device, calls):
    cuflash.register_transformers()
    config = transformers.LlamaConfig(**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="cuflash")
    ids, mask = tokens(device)
    assert torch.isfinite(model.to(device)(input_ids=ids, attention_mask=mask).logits).all() and len(calls) == 2
    with pytest.raises(ValueError, match="notflash"):
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation="notflash")


def test_half_precision_and_dropout(device, calls):
    ids, mask = tokens(device)
    exact = make(llama, device, "eager", torch.float64)(input_ids=ids, attention_mask=mask).logits[mask.bool()]
    errors = {attention: (make(llama, device, attention, torch.bfloat16)(
        input_ids=ids, attention_mask=mask).logits[mask.bool()].double() - exact).abs().max()
        for attention in ("eager", "cuflash")}
    assert errors["cuflash"] <= 2 * errors["eager"]

    model = make(llama, device)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    torch.manual_seed(5)
    first = model(input_ids=ids, attention_mask=mask).logits
    torch.manual_seed(5)
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, first)
    assert not torch.allclose(first, make(llama, device)(input_ids=ids, attention_mask=mask).logits)
    assert calls[-3]["dropout_p"] == 0.5 and calls[-1]["dropout_p"] == 0.0
    assert not torch.equal(model.eval()(input_ids=ids, attention_mask=mask).logits, first)


def test_what_cannot_be_done_is_refused(device):
    module = torch.nn.Module()
    q = torch.randn(1, 2, 9, 8, device=device)
    with pytest.raises(ValueError, match="output_attentions"):
        _transformers.attention_forward(module, q, q, q, None, output_attentions=True)
    with pytest.raises(ValueError, match="head_mask"):
        _transformers.attention_forward(module, q, q, q, None, head_mask=q)
    module.config = transformers.MistralConfig(sliding_window=5)
    with pytest.raises(ValueError, match="sliding_window"):
        _transformers.attention_forward(module, q, q, q, None)
    assert _transformers.attention_forward(module, q, q, q, None, sliding_window=5)[0].shape == (1, 9, 2, 8)
