"""The faults that teeth.py plants. Most have been made for real in some attention library.

A fault replaces a text that occurs exactly once in its file. When the code changes, the text here changes with it:
teeth.py refuses a fault that it cannot place, so the list cannot rot silently.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    find: str
    replace: str
    first_test: str = "sweep_test"  # a matter of time only: any test may catch any fault


FAULTS = {
    # The C edge.
    "src/api/adopt.h": [
        Fault("unknown fields of newer structs are ignored", "if (bytes[n] != 0)", "if (false)", "c_api_test"),
    ],

    # Rules of the arguments.
    "src/problem/tensor_rules.cpp": [
        Fault("outputs may overlap", "has_elements(a) && elements_overlap(a)", "false", "rejections_tensors_test"),
        Fault("any stride of the last dimension is taken", "a.t.shape[last] > 1 && a.t.stride[last] != 1", "false",
              "rejections_tensors_test"),
    ],
    "src/problem/lengths.cpp": [
        Fault("cu_seqlens may decrease", "if (values[b + 1] < values[b])", "if (false)", "rejections_lengths_test"),
        Fault("seqlens may exceed the length", "values[b] < 0 || values[b] > length", "values[b] < 0",
              "rejections_lengths_test"),
    ],
    "src/cpu/workspace.h": [
        Fault("a workspace may be too small", "execution.workspace_size < bytes", "false", "rejections_options_test"),
    ],

    # From arguments to the problem.
    "src/problem/describe.cpp": [
        Fault("heads need not divide", "if (p.heads_q % p.heads_k != 0)", "if (false)", "rejections_tensors_test"),
        Fault("dropout of 1 is taken", "a.dropout_p >= 0 && a.dropout_p < 1", "a.dropout_p >= 0 && a.dropout_p <= 1",
              "rejections_options_test"),
        Fault("default scale off by 0.4%", "a.scale : 1 / std::sqrt(", "a.scale : 1.004 / std::sqrt("),
        Fault("causal does not bound the window", "if (a.causal) p.window_right = 0;", ""),
        Fault("huge windows overflow", ": std::min(window, kUnbounded)", ": window", "regressions_windows_test"),
        Fault("dropout offset ignored", "a.dropout_seed, a.dropout_offset}", "a.dropout_seed, 0}"),
        Fault("packed row and head strides swapped",
              "if (a.t.rank == 3) return {data, a.dtype(), 0, a.step(1), a.step(0)};",
              "if (a.t.rank == 3) return {data, a.dtype(), 0, a.step(0), a.step(1)};"),
        Fault("one batch entry's slopes for all", "return {data, a.dtype(), a.step(0), a.step(1)};",
              "return {data, a.dtype(), 0, a.step(1)};"),
    ],
    "src/problem/problem.cpp": [
        Fault("top-left alignment ignored", "if (!problem.top_left) s.shift", "s.shift"),
        Fault("queries aligned to the padded length", "s.shift = s.len_k - s.len_q",
              "s.shift = problem.len_k - problem.len_q"),
        Fault("seqlens_k ignored", "if (problem.used_k) s.len_k = problem.used_k[b];", ""),
    ],
    "src/problem/problem.h": [
        Fault("offsets of 32 bits", "return b * batch_stride + h * head_stride + row * row_stride;",
              "return static_cast<int32_t>(b * batch_stride + h * head_stride + row * row_stride);",
              "regressions_huge_test"),
    ],

    # Who sees whom.
    "src/problem/visibility.h": [
        Fault("causal mask off by one", "i + s.shift + p.window_right + 1", "i + s.shift + p.window_right + 2"),
        Fault("left window off by one", "i + s.shift - p.window_left)", "i + s.shift - p.window_left + 1)"),
        Fault("backward skips a visible query tile", "keys.begin - s.shift - p.window_right)",
              "keys.begin - s.shift - p.window_right + 1)"),
        Fault("diagonal tiles taken for full ones",
              "return {keys_of_query(p, s, queries.end - 1).begin, keys_of_query(p, s, queries.begin).end};",
              "return keys_of_queries(p, s, queries);"),
    ],

    # Scores of a tile.
    "src/cpu/tile.h": [
        Fault("wrong GQA head", "h / p.group()", "h % p.heads_k"),
    ],
    "src/cpu/tile.cpp": [
        Fault("NaN taken for finite", "!(std::abs(row[d]) <= std::numeric_limits<T>::max())",
              "std::abs(row[d]) > std::numeric_limits<T>::max()"),
        Fault("lost D tail", "gemm_tn(padded_k, padded_q, p.dim_qk,",
              "gemm_tn(padded_k, padded_q, p.dim_qk - p.dim_qk % 8,"),
        Fault("padding of the last key tile takes part",
              "if (!visible.complete || padded_q != queries.size() || padded_k != keys.size()) hide_invisible();",
              "if (!visible.complete) hide_invisible();"),
        Fault("ALiBi sign", "s[k * shape.q + q] -= slope", "s[k * shape.q + q] += slope"),
        Fault("ALiBi ignores the alignment", "queries.begin + q + head.seq.shift - (keys.begin + k)",
              "queries.begin + q - (keys.begin + k)"),
        Fault("bias of the first key tile for all", "p.bias.at(head.b, head.h, queries.begin + q) + keys.begin",
              "p.bias.at(head.b, head.h, queries.begin + q)"),
        Fault("mask tensor ignored", "if (!allowed[k])", "if (false)"),
        Fault("wrong mask stride", "visible.mask_stride = p.mask.row_stride", "visible.mask_stride = p.len_k"),
        Fault("dropout does not scale what it keeps", "static_cast<T>(1 / (1 - p.dropout.p))", "T{1}"),
        Fault("dropout decisions transposed", "dropout_word(i + di, j + dj)", "dropout_word(i + dj, j + di)"),
        Fault("lost query tail", "gemm_tn(tile.padded_q, x.row_stride, tile.keys.size(), w",
              "gemm_tn(tile.queries.size() / kTileUnit * kTileUnit, x.row_stride, tile.keys.size(), w"),
        Fault("NaN of hidden values leaks", "if (sees(m, n))", "if (true)"),
    ],

    # Softmax and output.
    "src/cpu/exp.h": [
        Fault("exp accurate to 2e-5 only", "1.0f / 24", "1.0f / 25"),
    ],
    "src/cpu/softmax.h": [
        Fault("dropped rescale of l", "at(l_ + q) * at(rescale_ + q) + sum", "at(l_ + q) + sum"),
        Fault("sink missing from l", "m == -std::numeric_limits<T>::infinity() ? T{0} : T{1}", "T{0}"),
        Fault("LSE to base 2", "std::log(l_[q])", "std::log2(l_[q])"),
        Fault("LSE shifted by 1", "m_[q] + std::log", "m_[q] + 1 + std::log"),
        Fault("NaN in rows that see nothing", "if (m_[q] == -std::numeric_limits<T>::infinity()) reference_[q] = 0;",
              ""),
    ],
    "src/cpu/forward.cpp": [
        Fault("dropped rescale of o", "w.o[q * w.o_stride + d] *= rescale[q];", "(void)rescale;"),
        Fault("lost key tail", "k0 < seen.end;", "k0 + tile_k <= seen.end;"),
        Fault("packed offset of v ignored", "w.v.load(p.v, head.b, head.hk, head.seq.k_begin,",
              "w.v.load(p.v, head.b, head.hk, 0,"),
        Fault("output off by 0.4%", "o[d] / l;", "o[d] * static_cast<T>(1.004) / l;"),
        Fault("padded rows not zeroed", "std::fill_n(o, p.dim_v, T{0});", "continue;"),
        Fault("output written in the type of q", "store_row(p.o.data, p.o.dtype,", "store_row(p.o.data, p.dtype,"),
        Fault("no tile is skipped", "const Range seen = keys_of_queries(p, head.seq, queries);",
              "const Range seen{0, head.seq.len_k};", "tile_stats_test"),
    ],

    # Gradients.
    "src/cpu/backward_tile.cpp": [
        Fault("softcap derivative missing", "if (cap_slope) gradient *= load(cap_slope + n);", ""),
        Fault("softcap derivative in dBias", "at == At::product ? tile.cap_slope : nullptr",
              "at == At::product || true ? tile.cap_slope : nullptr"),
        Fault("dP not through dropout", "if (tile.keep) gradient *= load(tile.keep + n);", ""),
        Fault("dV without dropout", "if (tile.keep) probability *= load(tile.keep + n);", ""),
        Fault("NaN of hidden keys reaches gradients", "hidden ? Vec{} : gradient", "gradient"),
    ],
    "src/cpu/backward.cpp": [
        Fault("delta without dLSE", "if (p_.dlse) sum -=", "if (false) sum -="),
        Fault("dQ without scale", "w.d_qk[n] *= static_cast<T>(p_.scale);", "w.d_qk[n] *= T{1};"),
        Fault("dK and dV miss a head of the group", "h < (hk + 1) * p_.group();",
              "h < (hk + 1) * p_.group() - (p_.group() > 1);"),
        Fault("dBias not summed over the batch", "p_.bias_batch == 1 ? p_.batch : bias_b + 1", "bias_b + 1"),
        Fault("dBias of only the first row", "(one_row ? 0 : q)", "0"),
        Fault("dSink sign", "sum -= std::exp(sink - lse)", "sum += std::exp(sink - lse)"),
        Fault("lost tail tile", "begin < range.end; begin += tile",
              "begin + tile <= range.end || begin == 0; begin += tile"),
        Fault("dQ of the tile before is kept", "std::fill_n(w.d_qk, shape_.q * w.qk_stride, T{0});", ""),
    ],

    # Number formats and random numbers, which the oracle shares: their own tests must notice.
    "src/dtype.cpp": [
        Fault("double rounds twice to 16 bits", "return round_to_odd(value);", "return static_cast<float>(value);",
              "numeric_test"),
    ],
    "src/numeric.h": [
        Fault("bf16 truncates", "((bits + ties_to_even) >> 16)", "(bits >> 16)", "numeric_test"),
        Fault("bf16 ties go up", "0x7fffu + ((bits >> 16) & 1u)", "0x8000u", "numeric_test"),
        Fault("f16 denormals become 0", "std::bit_cast<float>(magnitude) + 0.5f", "0.5f", "numeric_test"),
    ],
    "src/philox.h": [
        Fault("a round of Philox lost", "round < 10", "round < 9", "philox_test"),
        Fault("rows i and i + 8 share dropout", "(i / 8) % 2 * 2 + (j / 8) % 2", "(j / 8) % 2", "philox_test"),
    ],
}
