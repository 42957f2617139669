"""The faults that teeth.py plants. Most have been made for real in some attention library.

A fault replaces a text that occurs exactly once in its file. When the code changes, the text here changes with it:
teeth.py refuses a fault that it cannot place, so the list cannot rot silently.
"""

from fault import Fault
from faults_cuda import CUDA_FAULTS

CACHE = "sweep_cache_test"

FAULTS = {
    # The C edge.
    "src/api/adopt.h": [
        Fault("unknown fields of newer structs are ignored", "if (bytes[n] != 0)", "if (false)",
              "rejections_structs_test"),
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
        Fault("lengths are read a second time", "memory.on_cuda() ? static_cast<const int32_t*>(a.t.data)",
              "memory.on_cuda() || extent > 0 ? static_cast<const int32_t*>(a.t.data)", "snapshot_test"),
    ],
    "src/cpu/plan/workspace.cpp": [
        Fault("a workspace may be too small", "execution.workspace_size < bytes", "false", "rejections_structs_test"),
        Fault("a kept block may be too small", "block && block->bytes >= bytes", "block", "rejections_allocation_test"),
        Fault("a kept block serves two calls", "kept.exchange(nullptr, std::memory_order_acquire);\n    if",
              "kept.load(std::memory_order_acquire);\n    if", "threads_test"),
    ],

    # Pages of a KV cache.
    "src/pages/pool.cpp": [
        Fault("shared pages are written", " && pages_.is_shared(table(row)[row.pages - 1])", " && false",
              "page_pool_fuzz_test"),
        Fault("a copied page is not in the budget", "if (more + copies > pages_.free_count()) {",
              "if (more > pages_.free_count()) {", "page_pool_test"),
        Fault("trimming drops the page that the sinks end in", "begin = pages_for(sinks) * page_size_",
              "begin = sinks / page_size_ * page_size_", "page_pool_fuzz_test"),
        Fault("a second trim moves the gap", "if (row.dropped > 0) end = std::max(end, row.sinks + row.dropped);", "",
              "page_pool_fuzz_test"),
        Fault("released sequences keep their pages", "release_pages(row, 0, row.pages);", "", "page_pool_fuzz_test"),
        Fault("stale handles are taken", "rows_[static_cast<size_t>(s.slot)].serial == s.serial", "true",
              "page_pool_fuzz_test"),
    ],
    "src/pages/block_table.cpp": [
        Fault("rows may be longer than the block table", "static_cast<int64_t>(pages.size()) > columns", "false",
              "page_pool_tables_test"),
        Fault("a table may be written over the list of sequences", "  require_disjoint(a, {\"sequences\", list});",
              "  if (false) require_disjoint(a, {\"sequences\", list});", "misuse_test"),
    ],

    # Files of tensors.
    "files/safetensors/header.cpp": [
        Fault("tensors of a file may overlap or leave gaps", "if (tensor.begin != end)", "if (false)",
              "safetensors_test"),
        Fault("a tensor may have more bytes than its shape needs", "if (tensor.end - tensor.begin != needed)",
              "if (tensor.end - tensor.begin < needed)", "safetensors_test"),
    ],
    "files/text/json.h": [
        Fault("a tensor's name may stand twice", "if (!is_new)", "if (false)", "safetensors_test"),
    ],
    "files/text/json.cpp": [
        Fault("numbers may begin with 0", "at_number.rest_.size() - rest_.size() > 1", "false", "safetensors_test"),
    ],
    "files/text/utf8.cpp": [
        Fault("surrogates are taken for UTF-8", "first == 0xed ? 0x9f : ", "", "safetensors_test"),
    ],
    "files/tensors/convert.cpp": [
        Fault("bf16 of a file read as f16", "bf16_to_float(element)", "f16_to_float(element)", "safetensors_test"),
    ],

    # Threads.
    "src/cpu/threads/pool.cpp": [
        Fault("the caller does not wait for its workers", "(left = unfinished_.load(std::memory_order_acquire)) != 0",
              "(left = 0) != 0", "pool_test"),
    ],
    "src/cpu/threads/sleeper.cpp": [
        Fault("woken threads keep the narrowed cores", "if (narrowed_) pthread_setaffinity_np",
              "if (false) pthread_setaffinity_np", "pool_test"),
    ],

    # From arguments to the problem.
    "src/problem/describe.cpp": [
        Fault("heads need not divide", "if (p.heads_q % p.heads_k != 0)", "if (false)", "regressions_shapes_test"),
    ],
    "src/problem/describe_common.cpp": [
        Fault("the summary of another mask is taken", "if (p.mask && !empty && mask_shape_of(p) != shape)", "if (false)",
              "mask_summary_api_test"),
        Fault("dropout of 1 is taken", "a.dropout_p >= 0 && a.dropout_p < 1", "a.dropout_p >= 0 && a.dropout_p <= 1",
              "rejections_options_test"),
        Fault("default scale off by 0.4%", "a.scale : 1 / std::sqrt(", "a.scale : 1.004 / std::sqrt("),
        Fault("causal does not bound the window", "if (a.causal) p.window_right = 0;", ""),
        Fault("huge windows overflow", ": std::min(window, kUnbounded)", ": window", "regressions_windows_test"),
        Fault("dropout offset ignored", "a.dropout_seed, a.dropout_offset}", "a.dropout_seed, 0}"),
    ],
    "src/problem/describe_common.h": [
        Fault("packed row and head strides swapped",
              "if (a.t.rank == 3) return {data, a.dtype(), 0, a.step(1), a.step(0)};",
              "if (a.t.rank == 3) return {data, a.dtype(), 0, a.step(0), a.step(1)};"),
        Fault("one batch entry's slopes for all", "return {data, a.dtype(), a.step(0), a.step(1)};",
              "return {data, a.dtype(), 0, a.step(1)};"),
    ],
    "src/problem/problem.cpp": [
        Fault("top-left alignment ignored", "if (!problem.top_left) s.shift", "s.shift"),
        Fault("queries aligned to the padded length", "s.shift = s.len_k - (problem.head_rows ? problem.head_rows : s.len_q)",
              "s.shift = problem.len_k - problem.len_q"),
        Fault("seqlens_k ignored", "if (problem.used_k) s.len_k = problem.used_k[b];", ""),
        Fault("left padding ignored", "s.k_begin = cache.leftpad ? cache.leftpad[b] : 0;", "s.k_begin = 0;", CACHE),
        Fault("new keys are not attended", "s.len_k = append.to + append.count - s.k_begin;",
              "s.len_k = append.to - s.k_begin;", CACHE),
        Fault("padded new rows are all appended", "if (cache.used_new) a.count = cache.used_new[b];", "", CACHE),
        Fault("packed new rows begin with the first", "a.begin = cache.cu_new[b], a.count = cache.cu_new[b + 1] - a.begin;",
              "a.count = cache.cu_new[b + 1] - cache.cu_new[b];", CACHE),
    ],
    "src/problem/problem.h": [
        Fault("offsets of 32 bits", "return b * batch_stride + h * head_stride + row * row_stride;",
              "return static_cast<int32_t>(b * batch_stride + h * head_stride + row * row_stride);",
              "regressions_huge_test"),
        Fault("one block table row for all", "table_rows[b] : b * table_stride", "table_rows[0] : 0", CACHE),
        Fault("pages end one row early", "*cache.pages(b, r / cache.page_size), r % cache.page_size",
              "*cache.pages(b, (r + 1) / cache.page_size), r % cache.page_size", CACHE),
        Fault("batch_idx ignored", "cache.entry ? cache.entry[b] : b", "b", CACHE),
    ],
    "src/problem/cached_rows.cpp": [
        Fault("pages of negative number", "legal &= pages[n] >= 0 && pages[n] < p.cache.entries;",
              "legal &= pages[n] < p.cache.entries;", "rejections_cache_test"),
        Fault("a block table is read a second time", "p.cache.table = table, p.cache.table_rows = table_rows;",
              "p.cache.table = given.table;", "snapshot_test"),
        Fault("rotary tables may be too short", "needed > p.rotary.positions", "false", "rejections_cache_test"),
        Fault("two sequences append to one page", "if (p.cache.len_new > 0) require_pages_disjoint(p);", "",
              "appends_test"),
    ],
    "src/problem/appends.h": [
        Fault("pages that are written may be anything", "if (seen.empty()) return appended;",
              "if (seen.empty()) return seen;", "rejections_cache_test"),
    ],
    "src/problem/appends.cpp": [
        Fault("pages that no query sees must exist", "const Range keys = keys_of_queries(p, seq, {0, seq.len_q});",
              "const Range keys{0, seq.len_k};", CACHE),
        Fault("an entry is read where another sequence appends", "(appends(*first) || appends(*e))", "appends(*e)",
              "rejections_cache_test"),
        Fault("a row may be read where another sequence appends it", "appended->meets(seen) && !", "false && !",
              "appends_test"),
        Fault("a sequence may not read what it appends", "&& !appended->same_entry(seen)", "", CACHE),
        Fault("pages that are appended to twice are not sorted", "if (!hashed_) std::sort(begin_, end_);", "",
              "appends_test"),
    ],
    "src/problem/disjoint.cpp": [
        Fault("new rows may overwrite what they are read from", "    all.written(k);\n", "", "rejections_cache_test"),
        Fault("outputs are not compared with each other", "for (size_t other = n + 1; other < outputs_.count; ++other)",
              "for (size_t other = outputs_.count; other < outputs_.count; ++other)", "misuse_test"),
        Fault("a workspace may be a tensor", "if (share_memory(workspace, tensor))", "if (false)", "misuse_test"),
    ],
    "src/problem/overlap.cpp": [
        Fault("views that lie between each other are refused", "if (a.end() <= b.at || b.end() <= a.at) return false;",
              "if (a.end() <= b.at || b.end() <= a.at) return false;\n  if (a.dims < 2 && b.dims < 2) return true;",
              "overlap_test"),
        Fault("only the first index of a dimension is checked", "index <= last && steps > 0; ++index",
              "index <= last && steps > 0; index = last + 1", "overlap_test"),
    ],
    "src/problem/describe_cache.cpp": [
        Fault("v in k needs equal strides along one element",
              "v.step(0) != k.step(0) || v.step(1) != k.step(1)", "v.step(0) != k.step(0) || v.t.stride[1] != k.t.stride[1]",
              "rejections_cache_legal_test"),
    ],

    # A KV cache on the CPU.
    "src/cpu/kv/append.cpp": [
        Fault("new keys rotated by their row", "append.to + row - seq.k_begin)", "append.to + row)", CACHE),
        Fault("new keys are not rotated", "if (p.rotary) rotate_row(p.rotary, position, p.k_cache", "if (false) rotate_row("
              "p.rotary, position, p.k_cache", CACHE),
        Fault("queries all rotated as the first", "(p.rotary.one_position ? 0 : i)", "0", CACHE),
        Fault("queries never rotated as the first", "(p.rotary.one_position ? 0 : i)", "i", CACHE),
        Fault("new values of the first head for all", "copy_row(p.v_new, p.v_new.at(b, h, from_row)",
              "copy_row(p.v_new, p.v_new.at(b, 0, from_row)", CACHE),
    ],
    "src/cpu/kv/rotary.cpp": [
        Fault("the second of a pair sees the first rotated", "b = y * cos[pair] + x * sin[pair];",
              "b = y * cos[pair] + a * sin[pair];", CACHE),
        Fault("pairs rotated backwards", "a = x * cos[pair] - y * sin[pair];\n    b = y * cos[pair] + x * sin[pair];",
              "a = x * cos[pair] + y * sin[pair];\n    b = y * cos[pair] - x * sin[pair];", CACHE),
        Fault("sin has the stride of cos", "position * rotary.sin_stride", "position * rotary.cos_stride", CACHE),
        Fault("later pairs of neighbours are misplaced", "begin + 2 * first)", "begin + first)", CACHE),
        Fault("all of a row is rotated", "begin + first, half);", "begin + first, rotary.dim);", CACHE),
    ],
    "src/cpu/tile/key_rows.h": [
        Fault("pages in order are taken for joined", "const bool joined = from.batch_stride == size * from.row_stride;",
              "const bool joined = from.row_stride > 0;", CACHE),
        Fault("pages in any order are taken for joined", "page[1] == page[0] + 1", "page[1] > page[0]", CACHE),
    ],

    # Who sees whom.
    "kernels/attn/visibility.h": [
        Fault("causal mask off by one", "i + s.shift + w.window_right + 1", "i + s.shift + w.window_right + 2"),
        Fault("left window off by one", "i + s.shift - w.window_left;", "i + s.shift - w.window_left + 1;"),
        Fault("backward skips a visible query tile", "keys.begin - s.shift - w.window_right)",
              "keys.begin - s.shift - w.window_right + 1)"),
    ],
    "src/problem/visibility.h": [
        Fault("rows of a second head see keys like later queries", "p.head_rows ? row % p.head_rows : row", "row",
              "heads_as_rows_test"),
        Fault("rows of two heads see what the first one sees", "Range{first, end} : Range{0, p.head_rows}",
              "Range{first, end} : Range{first, p.head_rows}", "heads_as_rows_test"),
        Fault("diagonal tiles taken for full ones", "return keys_seen_by_all(p, s, queries_of_rows(p, rows));",
              "return keys_seen_by_any(p, s, queries_of_rows(p, rows));"),
    ],

    # Scores of a tile.
    "src/cpu/tile/panel.h": [
        Fault("wrong GQA head", "h / p.group()", "h % p.heads_k"),
    ],
    "src/cpu/tile/panel.cpp": [
        Fault("lost D tail", "kernels.multiply(keys.size(), p.dim_qk, k_left",
              "kernels.multiply(keys.size(), p.dim_qk - p.dim_qk % 8, k_left"),
        Fault("panel skips its last keys", "round_up(seen.end - begin, unit)", "(seen.end - begin) / unit * unit"),
        Fault("ALiBi ignores the alignment", "s, slope, queries.begin + head.seq.shift - keys.begin",
              "s, slope, queries.begin - keys.begin"),
        Fault("bias of the first key tile for all", "from.at(head.b, head.h, queries.begin) + keys.begin",
              "from.at(head.b, head.h, queries.begin)"),
        Fault("mask tensor ignored", "if (mask.words) kernels.mask(keys.size(), s, mask.words, first_key);", ""),
        Fault("a mask's bits are those of other keys", "visible.first_key = first_key", "visible.first_key = 0"),
        Fault("dropout does not scale what it keeps", "static_cast<T>(1 / (1 - p.dropout.p))", "T{1}"),
        Fault("lost key tail", "kernels.multiply(x.source.dim, keys.size(), left",
              "kernels.multiply(x.source.dim, keys.size() / 4 * 4, left"),
        Fault("rounded sums not rescaled", "if (rescale && kernels.to_right)", "if (false)",
              needs="bf16"),
        Fault("the scale is applied twice with a bias", "std::exchange(scale, T{1})", "scale"),
        Fault("NaN of a hidden value leaks", "if (visible.sees(q, k)) c[", "c["),
    ],

    # The rows behind those of o are the rounded sums.
    "src/cpu/isa/amx.cpp": [
        Fault("rounded sums not rescaled by AMX kernels", "d < dim; ++d) at(o + d * kLanes + 16 * half) *= shrink[0]",
              "d < dim - 2; ++d) at(o + d * kLanes + 16 * half) *= shrink[0]", needs="amx_bf16"),
    ],

    # Softmax and output.
    "src/cpu/isa/exponential.h": [
        Fault("exp accurate to 1e-5 only", "0x1.c6aed4p-5f", "0x1.c6p-5f"),
        Fault("rescale asks the first lane only", "n < sizeof a / sizeof a[0]; ++n) any", "n < 1; ++n) any"),
        Fault("NaN becomes a number in the exponential", "zero_below(low[n] * (Vec<float>)((Bits)shifted[n] << 23),",
              "zero_below((Vec<float>)((Bits)low[n] + ((Bits)shifted[n] << 23) - (127u << 23)),", "isa_test"),
        Fault("tanh off by 5e-5", "0x1.de5ad4p-2f", "0x1.de6p-2f"),
    ],
    "src/cpu/isa/pack_kernels.h": [
        Fault("rows that hold NaN are packed", "is_finite(rows.first + r * rows.stride, dim)", "true"),
        Fault("NaN in the tail of a row not noticed",
              "any |= (__builtin_bit_cast(Int, row[d]) & kExponent) == kExponent;", ""),
        Fault("lost Dv tail", "finite[r] && d + n < dim ? from[n] : 0", "0"),
    ],
    "src/cpu/isa/vector_kernels.h": [
        Fault("dropped rescale of l", "at(l + v * kWidth) * factor[0] + sum", "at(l + v * kWidth) + sum"),
        Fault("dropped rescale of o", "out * at(factor + v * V<T>::kWidth) + sum", "out + sum"),
        Fault("NaN in rows that see nothing", "top[v] == -V<T>::kInfinity ? Vec<T>{} : top[v]", "top[v]"),
        Fault("keys end one too late", "(k < end[n])", "(k <= end[n])"),
        Fault("softcap derivative missing", "if (cap_slope) gradient *= at(cap_slope + at_n);", ""),
        Fault("dP not through dropout", "if (keep) gradient *= at(keep + at_n);", ""),
        Fault("dV without dropout", "if (keep) probability *= at(keep + at_n);", ""),
        Fault("delta missing", "gradient - row_delta", "gradient"),
        Fault("NaN of hidden keys reaches gradients", "zero_if_hidden(gradient, score)", "gradient"),
    ],
    "src/cpu/isa/option_kernels.h": [
        Fault("a bias never hides", "hides |= lowest[n] == -V<float>::kInfinity;", "(void)lowest;", "isa_test"),
        Fault("ALiBi sign", "-= slope * distance", "+= slope * distance"),
        Fault("ALiBi without its absolute value", "(Bits)(first + lane[v]) & ~kSign",
              "(Bits)(first + lane[v]) & (~kSign | kSign)"),
        Fault("masking adds", "(seen & (Bits)score) | (~seen & hidden)", "(Bits)(score + (Vec<T>)(~seen & hidden))"),
        Fault("mask words are those of the next keys", "words + (first + k) / 32 * kLanes",
              "words + (first + k + 16) / 32 * kLanes"),
        Fault("dropout decisions transposed", "(c / 2 * 8 + c % 2) * kLanes",
              "(c % 2 * 8 + c / 2) * kLanes"),
        Fault("the round keys of dropout lost", "product.high ^ key ^ c[1]", "product.high ^ c[1]"),
    ],
    "src/cpu/tile/tile_mask.cpp": [
        Fault("mask words of a tile are not shifted", "at(begin + w) >> shift | at(begin + w + 1) << (32 - shift)",
              "at(begin + w)", "mask_summary_test"),
        Fault("a mask's classification forgets its last query", "lane < queries.size(); ++lane)\n      any",
              "lane + 1 < queries.size(); ++lane)\n      any"),
    ],
    "src/cpu/tile/summarize_mask.cpp": [
        Fault("keys beyond the end of a mask hide", "if (here < 32) all[w] |= ~0u << here, covers[w] |= ~0u << here;", "",
              "mask_summary_test"),
        Fault("a key that one query sees counts as hidden", "covers[w] = any[w];", "covers[w] = all[w];",
              "mask_kernel_test"),
        Fault("a mask byte of 128 is false", "((bytes & kLow) + kLow) | bytes", "(bytes & kLow) + kLow",
              "mask_summary_test"),
    ],
    "kernels/mask_summary.h": [
        Fault("a tile's verdict misses its last row of blocks", "row < row_end; ++row", "row + 1 < row_end; ++row",
              "mask_summary_test"),
    ],
    "kernels/attn/tile_mask.h": [
        Fault("a traversal skips the tiles after the first 32", "if (view.end - base <= 32) return false;", "return false;",
              "mask_kernel_test"),
        Fault("mask bits of the neighbouring lane", ">> accumulator_column();", ">> (lane_id() % 2 * 2);",
              "mask_kernel_test"),
    ],
    "kernels/portable/summarize_mask.h": [
        Fault("a lane's bits in the wrong half of a word", "bits[n] | upper << 16", "upper | bits[n] << 16",
              "mask_kernel_test"),
        Fault("a mask byte of 0x80 hides its pair", "+ 0x7f7f7f7fu) | bytes) &", "+ 0x7f7f7f7fu)) &", "mask_kernel_test"),
        Fault("the keys before a window are those behind it", "first_row + kMaskBlock - 1 + p.high",
              "first_row + p.high - kMaskBlock", "mask_kernel_test"),
    ],
    "src/cpu/forward.cpp": [
        Fault("results of copied heads are not stored", "  copies.store(e);\n", "", "heads_as_rows_test"),
        Fault("sink missing from l", "l * weight(largest) + weight(sink)", "l * weight(largest)"),
        Fault("LSE to base 2", "m * scale + std::log(l)", "m * scale + std::log2(l)"),
        Fault("LSE shifted by 1", "m * scale + std::log(l)", "m * scale + 1 + std::log(l)"),
        Fault("output off by 0.4%", "return {1 / l,", "return {static_cast<T>(1.004) / l,"),
        Fault("padded rows not zeroed", "{first + computed, first + tiles.coord(task).rows.end}", "{first, first}"),
        Fault("rows whose last key tile is masked are not written", "finished = last;", "finished = true;",
              "regressions_masks_test"),
        Fault("every key tile starts a new output", "  fresh = false;\n", ""),
        Fault("the output of rows that only see a sink is not initialised",
              "if (w.fresh[first / kernels.lanes]) std::fill_n(o, w.o_rows * kernels.lanes, T{0});", ""),
        Fault("LSE of a row that sees nothing is 0", "return {0, top};", "return {0, 0};"),
        Fault("packed offset of k and v ignored", "key_offset(p, from, head.b, head.hk, head.seq.k_begin + keys.begin)",
              "key_offset(p, from, head.b, head.hk, keys.begin)"),
        Fault("pages of a tile that no query sees are gathered",
              "const Range here{std::max(keys.begin, seen.begin), std::min(keys.end, seen.end)};",
              "const Range here{keys.begin, std::max(keys.end, seen.begin)};", CACHE),
        Fault("output written in the type of q", "to{p.o.data, p.o.dtype,", "to{p.o.data, p.dtype,"),
        Fault("no tile is skipped", "if (kind != TileKind::skipped) {", "{", "tile_stats_test"),
    ],

    # Decode.
    "src/cpu/decode/decode.cpp": [
        Fault("merging ranges of keys without a largest score gives NaN", "acc.m[row] == top ? T{1} : ", "",
              "decode_test"),
        Fault("the sink in every range of keys", "const bool sink = p_.sink && item.first;",
              "const bool sink = static_cast<bool>(p_.sink);", "decode_test"),
        Fault("ranges of keys merged without their maxima", "std::exp(acc.m[row] - top)", "T{1}", "decode_test"),
        Fault("NaN of a hidden value leaks into a decode step", "if (!finite) add_blocks", "if (false) add_blocks",
              "decode_test"),
        Fault("NaN of a value reaches rows that do not see it", "if (!sees(p_, score_row(",
              "if (false && !sees(p_, score_row(", "decode_test"),
        Fault("rounded weights divided by the sum of unrounded ones", "? acc[0] / acc[1] : T{1}", "? T{1} : T{1}",
              needs="bf16"),
        Fault("keys before the window are read from any page", "p_.cache ? item.keys.begin : item.keys.begin / 16 * 16",
              "item.keys.begin / 16 * 16", "cache_test"),
        Fault("splits without keys take part in the merge", "n < item.splits; ++n) {", "n < plan_.splits; ++n) {", CACHE),
    ],
    "src/cpu/plan/plan.cpp": [
        Fault("the longest queries choose the path of all", "takes_decode(p, p.cache ? s.len_q : p.len_q)",
              "takes_decode(p, std::max(s.len_q, p.len_q))", "regressions_cache_test"),
        Fault("splits by what fills the machine",
              "plan.requested_splits ? plan.requested_splits : splits_of(keys, plan.head_blocks)",
              "splits_of(keys, plan.head_blocks)", CACHE),
    ],
    "src/cpu/decode/score_rows.cpp": [
        Fault("dropout decisions of a row swapped", "group.window(dropout_row(i), column)",
              "group.window(dropout_row(i), column ^ 1)", "decode_test"),
        Fault("a decode row sees a key too many", "std::min(seen.end, keys.end)", "std::min(seen.end + 1, keys.end)",
              "decode_test"),
    ],
    "src/cpu/isa/decode_kernels.h": [
        Fault("decode loses the tail of D", "if (whole < dim)", "if (false)", "decode_test"),
        Fault("decode loses the tail of Dv", "if (d < dim) add_tail<kRows>", "if (false) add_tail<kRows>",
              "decode_test"),
    ],

    # Gradients.
    "src/cpu/plan/plan.h": [
        Fault("lost tail tile", "begin < range.end; begin += tile",
              "begin + tile <= range.end || begin == 0; begin += tile"),
    ],
    "src/cpu/backward_scratch.cpp": [
        Fault("keys that a panel does not see keep old weights", "clear(0, panel.first_key);", ""),
        Fault("softcap derivative in dBias",
              "at == GradientAt::dot_product ? panel.cap_slope : nullptr", "panel.cap_slope"),
        Fault("lost query tail", "kernels.multiply(keys, queries.size(), w_left",
              "kernels.multiply(keys, queries.size() / 4 * 4, w_left"),
        Fault("NaN of a hidden query leaks", "if (panel.visible.sees(q, k))", "", "regressions_masks_test"),
    ],
    "src/cpu/delta.h": [
        Fault("delta without dLSE", "if (p.dlse) delta -=", "if (false) delta -="),
        Fault("delta loses the tail of a row", "for (; n < count; ++n) sums[0]", "for (; n < 0; ++n) sums[0]"),
    ],
    "src/cpu/backward.cpp": [
        Fault("dBias of unseen pairs not written", "if (all_visited) return;", "if (all_visited || true) return;"),
        Fault("dQ without scale", "std::fill_n(w.lse, kernels_.lanes, static_cast<T>(p_.scale));",
              "std::fill_n(w.lse, kernels_.lanes, T{1});"),
        Fault("dQ beyond the length not zeroed", "if (rows.begin + i >= seq.len_q) std::fill_n(row, p_.dim_qk, T{0});",
              "", "regressions_lengths_test"),
        Fault("dQ of one key range only", "sum[n] += sum[range * panels_ * dq_size_ + n];", "(void)range;",
              "regressions_huge_test"),
        Fault("dQ of one key range only, where a task has them all", "sum[i] += sum[size + i];", "(void)sum;",
              "regressions_huge_test"),
        Fault("dQ starts from what the workspace held",
              "std::fill_n(dq + n * stride * dq_size_, panels.tiles(b) * dq_size_, T{0});",
              "(void)n, (void)panels;"),
        Fault("dQ starts from what the workspace held, where a task sums dBias",
              "if (dq) std::fill_n(dq, p_.group() * panels.tiles(b) * dq_size_, T{0});", "(void)b, (void)dq;",
              "threads_test"),
        Fault("dBias of all key tiles is that of the first",
              "std::fill_n(w.dbias, dbias_rows_ * shape_.k, T{0});", "", "threads_test"),
        Fault("dBias of the first queries for all", "w.panel.queries.begin * shape_.k + w.panel.first_key",
              "0 * shape_.k + w.panel.first_key", "threads_test"),
        Fault("dK and dV miss a head of the group", "add_head(head_of(p_, b, h), keys, dq",
              "if (p_.group() == 1 || h % p_.group() != 0) add_head(head_of(p_, b, h), keys, dq"),
        Fault("dBias takes lanes beyond the last query", "queries < kernels_.lanes && k < w.panel.keys.size()",
              "k < 0", "regressions_lengths_test"),
        Fault("dBias not summed over the batch", "p_.bias_batch == 1 ? p_.batch : bias_b + 1", "bias_b + 1"),
        Fault("dBias not summed over heads", "p_.bias_heads == 1 ? p_.heads_q : bias_h + 1", "bias_h + 1"),
        Fault("dBias of the first row for all", "(queries.begin - rows.begin) * shape_.k + w.panel",
              "0 * shape_.k + w.panel"),
        Fault("dSink sign", "sum -= std::exp(sink - lse)", "sum += std::exp(sink - lse)"),
    ],

    # What was tuned.
    "src/tuned/table.cpp": [
        Fault("a damaged file of tuned choices is believed",
              "text.substr(last) != join(kChecksum, hex(sha256(text.substr(0, last))), \"\\n\")", "false",
              "tuned_test"),
        Fault("choices for other kernels are taken", "if (next_line(rest) != made_by())", "if (next_line(rest).empty())",
              "tuned_test"),
    ],
    "src/tuned/choice.cpp": [
        Fault("choices for plain problems are taken with options", "kind.options = options;", "", "tuned_test"),
        Fault("choices are taken for problems with sinks", " | bit(bool{p.sink}, kSinks)", "", "tuned_test"),
        Fault("a set of options is read as its last one", "options |= option;", "options = option;", "tuned_test"),
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

    "kernels/philox.h": [
        Fault("a round of Philox lost", "kPhiloxRounds = 10", "kPhiloxRounds = 9", "philox_test"),
        Fault("a round of dropout's Philox lost", "kDropoutRounds = 7", "kDropoutRounds = 6", "philox_test"),
        Fault("dropout's key does not change between rounds", "key += kDropoutKeyStep;", "", "philox_test"),
        Fault("heads share their counters", "head.begin_j + group_column", "group_column", "philox_test"),
        Fault("rows i and i + 8 share dropout", ".window(dropout_row(i), dropout_column(j))",
              ".window(0, dropout_column(j))", "philox_test"),
        Fault("columns j and j + 1 share dropout", "return j / 8 % 2 * 2 + j % 2;", "return j / 8 % 2 * 2;",
              "philox_test"),
        Fault("groups of columns overlap", "return j / 16 * 4 + j % 8 / 2;", "return j / 16 * 4 + j % 8 / 4;",
              "philox_test"),
        Fault("a threshold of 15 bits", "p * 65536.0 + 0.5", "p * 32768.0 + 0.5", "philox_test"),
        Fault("ties are decided by the word that has decided", "(low[row] >> 8 * column & 0xff)",
              "(word[row] >> 8 * column & 0xff)", "philox_test"),
        Fault("ties are decided by one byte for all", "low[row] >> 8 * column", "low[0]", "philox_test"),
        Fault("the bound of dropout may be 0, which is equal to -0", "dropped == kZero || dropped > kAll - kZero",
              "dropped > kAll - kZero", "philox_test"),
        Fault("the bound of dropout may be NaN", "dropped == kZero || dropped > kAll - kZero", "dropped == kZero",
              "philox_test"),
    ],

    **CUDA_FAULTS,
}
