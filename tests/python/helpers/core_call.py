"""Arguments for calling the extension module directly."""


def options(layout="bhsd", **changes):
    """Every argument of _core.forward after its arrays, with defaults."""
    values = dict(alibi_slopes=None, bias=None, mask=None, sink=None, cu_seqlens_q=None, cu_seqlens_k=None,
                  seqlens_q=None, seqlens_k=None, layout=layout, scale=None, causal=False, top_left=False,
                  window_left=-1, window_right=-1, softcap=0.0, dropout_p=0.0, dropout_seed=0, dropout_offset=0,
                  max_seqlen_q=0, max_seqlen_k=0, stream=0, allocate=None)
    return {**values, **changes}


def read_only(array):
    array.flags.writeable = False
    return array
