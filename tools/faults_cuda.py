"""The faults of the CUDA backend, for faults.py."""

from fault import Fault

FORWARD = "fake_gpu_forward_test"
DBIAS = "fake_gpu_dbias_test"
BACKWARD = "fake_gpu_backward_test"
PREFILL = "fake_gpu_cache_test"

# Kernels, as far as the host can run them, and the plans of their launches.
CUDA_FAULTS = {
    # Scores on a GPU, as far as the host can run them.
    "kernels/attn/softcap.h": [
        Fault("tanh off by 5e-6", "-5.20723732e-03f", "-5.207e-03f", "cuda_softcap_test"),
        Fault("tanh of large scores by the polynomial", "return fabs(x) < 2.0f ? inside : beyond;",
              "return fabs(x) < 2.5f ? inside : beyond;", "cuda_softcap_test"),
        Fault("the polynomial in dot products serves beyond its range", "return fabs(x) < cap.limit ? inside : beyond;",
              "return fabs(x) < 1.1f * cap.limit ? inside : beyond;", "cuda_softcap_test"),
        Fault("tanh of large negative scores loses digits", "exp2_of(fabs(x) * static_cast", "exp2_of(x * static_cast",
              "cuda_softcap_test"),
        Fault("tanh of softcap has the wrong argument", "2 * kLog2e / kTanhArgument", "kLog2e / kTanhArgument",
              "cuda_softcap_test"),
    ],

    "kernels/cap_polynomial.h": [
        Fault("the derivative of softcap is off by 1e-4", "-0.9962681,", "-0.9955,", "cuda_softcap_test"),
        Fault("pairs are hidden by a score within the cap", "-1e4f * exponent.limit", "-1.0f * exponent.limit",
              "cuda_softcap_test"),
        Fault("a coefficient of softcap is off by 1e-5", "0.99999571,", "0.99998571,", "cuda_softcap_test"),
        Fault("coefficients of softcap underflow", "return fits ? p : CapPolynomial{};", "return p;", "cuda_softcap_test"),
    ],
    "kernels/sm90/backward/key_scores.h": [
        Fault("backward takes the polynomial for scores beyond its range",
              "largest_magnitude(s) >= cap.exponent.limit",
              "largest_magnitude(s) >= 1e9f * cap.exponent.limit", BACKWARD),
    ],
    "kernels/sm90/forward/consumer.h": [
        Fault("the second 64 keys of a tile have the scores of the first", "k.along_rows(step, first)",
              "k.along_rows(step, 0)", FORWARD),
        Fault("a warp takes the polynomial for scores beyond its range", "largest_magnitude(s) >= cap.limit",
              "largest_magnitude(s) < 0", FORWARD),
    ],
    "kernels/attn/score.h": [
        Fault("ALiBi is aligned with the first keys in backward", "i + sequence.shift - j", "i - j", "mask_kernel_test"),
        Fault("all queries have the bias of the first", "bias_offset + i * a.bias", "bias_offset + (i & 0) * a.bias",
              "mask_kernel_test"),
        Fault("what dropout keeps is not scaled", "static_cast<Real>(a.keep_scale) : Real(1)", "Real(1) : Real(1)",
              "mask_kernel_test"),
        Fault("softcap has the factor of the scale", "has_softcap() ? a.softcap : a.scale))", "a.scale))",
              "mask_kernel_test"),
    ],
    "kernels/attn/tile_scores.h": [
        Fault("ALiBi is linear where the diagonal crosses a tile", "first_distance < 8 * kTiles - 7", "first_distance < 0",
              FORWARD),
        Fault("linear ALiBi has the offset of the first row", "first_distance + 8 * r - (kLeft", "first_distance - (kLeft",
              "cuda_scores_test"),
    ],

    "kernels/sm90/backward/options.h": [
        Fault("small slopes of softcap lose their digits in f16", "? 0x1p-15f : 1.0f", "? 1.0f : 1.0f",
              "fake_gpu_backward_test"),
    ],
    "kernels/attn/softmax.h": [
        Fault("a row never outgrows its first key tile", "exceeds[0] || exceeds[1])) {", "false)) {", FORWARD),
        Fault("a row without keys so far has no maximum later", "this->row_max[r] == minus_infinity<float>() || !(fabs",
              "!(fabs", FORWARD),
        Fault("a row moves its maximum because another one does", "row_exceeds[r] != 0, on_rescale", "true, on_rescale",
              FORWARD),
        Fault("ALiBi's offset is lost where a row moves its maximum", "Base::exponentiate(s, shifts, large, rest);",
              "Base::exponentiate(s, shifts, large);", FORWARD),
        Fault("a row is rounded otherwise because another one moves its maximum",
              "move_to(s, row_exceeds[0] != 0, row_exceeds[1] != 0)", "move_to(s, true, true)", FORWARD),
        Fault("nothing is dropped where a row raises its maximum", "probs[n / 2], dropout.again());",
              "probs[n / 2], NoDropout{});", FORWARD),
    ],
    "src/cuda/plan/tuned_config.h": [
        Fault("an illegal config is taken", "if (!is_legal(tunable.limits(wanted, arch))) return false;",
              "if (!is_legal(tunable.limits(wanted, arch)) && false) return false;", "tuned_test"),
    ],

    # Forward calls that share keys, pack heads or list tiles.
    "kernels/sm90/forward/combine_splits.h": [
        Fault("the last split is not added", "static_cast<int>(s.splits), width", "static_cast<int>(s.splits) - 1, width",
              FORWARD),
        Fault("a part that does not exist is added", "if (begin + lane % width >= splits) state[0]",
              "if (begin + lane % width > splits) state[0]", FORWARD),
        Fault("a split without keys adds what the workspace held", "-1.0f : correction;", "correction : correction;",
              FORWARD),
        Fault("the rows of a thread are one row", "row.i += n >> width_bits;", "", FORWARD),
        Fault("a row keeps the sums of the one before", "        sums = {};\n", "", FORWARD),
    ],
    "src/cuda/families/sm90_forward_tiles.cpp": [
        Fault("equal tiles fill parts of rounds", "if (!causal) return tile_q * std::ceil(rounds);",
              "if (!causal) return tile_q * rounds;", "cuda_splits_test"),
        Fault("masks of 64 columns take the maximum of every key tile", "c.options == kMaskTensor);",
              "c.options == kMaskTensor && c.dim_qk > kPanelColumns);", "cuda_plans_test"),
        Fault("measured tiles serve other sets of options", "t.options != c.options || ", "", "tuned_test"),
        Fault("short sequences have one CTA per SM", "busy < per_cta * ctas;", "busy < 0 * ctas;",
              "cuda_splits_test"),
        Fault("tiles measured without a mask serve causal calls", "t.causal != causal ||", "(t.causal != causal && false) ||",
              "tuned_test"),
    ],
    "src/cuda/families/forward_by_kv.cpp": [
        Fault("a bias is lost where queries are few", "p.packed() || p.bias ||", "p.packed() ||", "cuda_splits_test"),
        Fault("few queries are aligned with the last keys", "if (!aligned_at_end) return", "if (false) return",
              "cuda_splits_test"),
    ],
    # Many queries over a cache, by the forward kernels.
    "src/cuda/families/kv_by_forward.cpp": [
        Fault("one long sequence makes query tiles of all single queries", "!p.packed() || p.total_q >", "true || p.total_q >",
              "cuda_families_test"),
        Fault("left padding is lost where queries are many", "if (p.cache.leftpad) return", "if (false) return",
              "cuda_families_test"),
        Fault("lengths are those before the append", "problem.used_k = params.lengths;", "", PREFILL),
    ],
    "kernels/kv/prepare.h": [
        Fault("queries of a group are rotated as those of the first head", "int64{item.head_k} * a.group + head;",
              "int64{item.head_k} * a.group;", PREFILL),
    ],
    "kernels/sm90/forward/paged_keys.h": [
        Fault("boxes beyond the first are read from the first page", "(0xffffffffu, pages, n)", "(0xffffffffu, pages, 0)",
              PREFILL),
    ],
    "src/cuda/plan/tile_order.cpp": [
        Fault("splits of a head are not dealt out", "(p.heads_q / packed) * splits", "(p.heads_q / packed)",
              "cuda_splits_test"),
        Fault("windows have groups of heads as if all keys were in use", "windowed ? std::min(", "false ? std::min(",
              "cuda_tile_order_test"),
    ],
    # Tiles that a mask tensor shows.
    "kernels/sm90/tma_load.h": [
        Fault("boxes of a mask start between multiples of 16 bytes", "mask_box_byte(key)", "key / 32 * 4", FORWARD),
    ],
    "kernels/sm90/lists/mask_list.h": [
        Fault("a list forgets the tiles after the first 32", "done < end - begin; done += 32", "done < 1; done += 32",
              "mask_lists_test"),
        Fault("a key that no query sees is not zeroed", "(v.covers && covers_count)", "(v.covers || covers_count)",
              "mask_lists_test"),
        Fault("values of a block that some query sees are zeroed", "seen_by_some |= seen.any;", "seen_by_some = seen.any;",
              "mask_lists_test"),
        Fault("a warpgroup stops at the first tile that it sees", "31 - __clz(seers)", "__ffs(seers) - 1",
              "mask_lists_test"),
        Fault("heads that share keys share the mask of the first", "coord.h * heads + member", "coord.h * heads",
              "mask_lists_test"),
        Fault("a full tile needs no mask if half of it is shown", "v.all[g] &= of_head.all[g];", "v.all[g] &= true;",
              "mask_lists_test"),
        Fault("a list counts for one of those that share it", "return (lists.batch_step != 0 ? 1 : int64{a.batch}) * (lists",
              "return (lists.batch_step != 0 ? 1 : int64{1}) * (lists", "mask_lists_test"),
        Fault("a run of full tiles goes on behind one that is not", "first >= 0 && end < 0 && others != 0",
              "first >= 0 && others != 0", "mask_lists_test"),
    ],
    "kernels/sm90/forward/mask_aligned_tiling.h": [
        Fault("a tile's keys are those of its last warpgroup", "together |= __shfl_up_sync(0xffffffffu, seen, n)",
              "together = seen", "mask_lists_test"),
        Fault("the keys of large tiles do not count", "(read[i].together[n] << 2)", "(read[i].together[0] << 2)",
              "mask_lists_test"),
        Fault("aligned tiles overlap", "end -= size;", "end -= 1;", "mask_lists_test"),
    ],
    "kernels/sm90/mask_bits.h": [
        Fault("a mask's second row of a lane is its first", "bits.row(lane_row + 8 * r)", "bits.row(lane_row)", FORWARD),
        Fault("a window ends one key late in a masked tile", "words[r][w] &= below(end - 32 * w)",
              "words[r][w] &= below(end + 1 - 32 * w)", FORWARD),
        Fault("mask bits of a tile of 80 keys are loaded as one vector", "kAligned && kWords == 4", "kWords == 4",
              "cuda_pair_bits_test"),
        Fault("mask bits of a tile within a word are not shifted", "kStartsWords ? 0 : k_first % 32",
              "0 * k_first", "cuda_pair_bits_test"),
    ],
    "kernels/sm90/key_mask_tile.h": [
        Fault("mask bits of keys are transposed by half", "for (int n = 4; n > 0; n /= 2)",
              "for (int n = 4; n > 1; n /= 2)", "mask_lists_test"),
    ],
    "kernels/sm90/visited_work.h": [
        Fault("key tiles of a list in the wrong order", "kMaskListHeader + count - 1 - n]", "kMaskListHeader + n]", FORWARD),
        Fault("a warpgroup without queries computes those of the next tile", "group * kWarpgroupRows >= work.rows",
              "group * kWarpgroupRows > work.rows", FORWARD),
    ],
    "kernels/sm90/forward/key_step.h": [
        Fault("a mask hides nothing in a tile with a window", "if (crosses_window)", "if (!crosses_window)", FORWARD),
    ],
    "kernels/sm90/tile_scheduler.h": [
        Fault("splits overlap by a key tile", "begin += least * split + min(split, more);",
              "begin += least * split + min(split, more) - (split != 0);", FORWARD),
        Fault("half of a key tile is taken for all of it", "seen_end <= visited.end * C.tile_k - C.tile_k / 2",
              "seen_end <= visited.end * C.tile_k", FORWARD),
        Fault("query tiles end a warpgroup before the sequence", "q_first -= missing_rows(a);",
              "q_first -= missing_rows(a) + kWarpgroupRows;", FORWARD),
    ],
    "kernels/sm90/forward/split_row.h": [
        Fault("the sink is lost where keys are split", "p.splits.natural_scale, sink, keep",
              "p.splits.natural_scale, minus_infinity<float>(), keep", FORWARD),
    ],
    "src/cuda/launch/workspace.cpp": [
        Fault("the caller is asked for less than the kernels use", "e.allocate(e.allocate_context, bytes)",
              "e.allocate(e.allocate_context, bytes - 1)", "fake_gpu_test"),
        Fault("a failed allocation is used", "    if (!data_)\n", "    if (false)\n", "fake_gpu_test"),
    ],
    "kernels/sm90/forward/forward_tiles.h": [
        Fault("the last ticket is a tile", "return ticket < tickets.total;", "return ticket <= tickets.total;", FORWARD),
        Fault("a ticket is overwritten before all have read it",
              "    mbarrier_wait(pipeline.ticket_empty(), round % 2 ^ 1);\n", "", FORWARD),
        Fault("one lane of a warp knows its ticket", "ticket = __shfl_sync(0xffffffffu, read, 0);", "ticket = read;",
              FORWARD),
    ],
    "kernels/sm90/forward/producer.h": [
        Fault("values before the window are not zeroed", "zero_rows(tile, 0, min(work.seen_begin - first, C.tile_k));",
              "zero_rows(tile, 0, 0);", FORWARD),
        Fault("values behind the last key are not zeroed", "zero_rows(tile, max(work.seen_end - first, 0), C.tile_k);",
              "zero_rows(tile, C.tile_k, C.tile_k);", FORWARD),
    ],
    "kernels/sm90/forward/packed_rows.h": [
        Fault("rows of a group see the keys of the first query", "query_of_packed_row(row_first + lane.row + 8 * r, a.group)",
              "query_of_packed_row(row_first, a.group)", FORWARD),
        Fault("queries of packed heads are those of the first queries", "panel * kPanelColumns, head, first, batch",
              "panel * kPanelColumns, head, info.q_begin, batch", FORWARD),
    ],
    "kernels/sm90/lists/tile_list.h": [
        Fault("padded rows are not listed", "a.cu_q ? s.len_q : a.len_q", "s.len_q", FORWARD),
    ],
    "kernels/sm90/pair_bits.h": [
        Fault("the first hidden column is visible", "(columns + 7) >> 3", "(columns + 8) >> 3", "cuda_pair_bits_test"),
        Fault("dropout exchanges the halves of a group", "row % 2 == 0 ? own", "row % 2 != 0 ? own",
              "cuda_pair_bits_test"),
        Fault("dropout passes the neighbour its own decisions", "odd ? even_bytes : odd_bytes) & bits",
              "odd ? odd_bytes : even_bytes) & bits", "cuda_pair_bits_test"),
    ],
    "kernels/sm90/kept_halves.h": [
        Fault("windows have their bytes exchanged", "(4 + first) | first << 4", "first | (4 + first) << 4",
              "cuda_pair_bits_test"),
        Fault("dropout is never inverted", " ^ rule.inverted;", ";", "fake_gpu_forward_test"),
    ],
    "kernels/sm90/backward/key_task.h": [
        Fault("a query tile between two parts is visited twice", "int64{w.count()} * (n + 1) / parts)",
              "int64{w.count()} * (n + 1) / parts + (n + 1 < parts))", "cuda_backward_tasks_test"),
        Fault("a part has no masked tiles", "part.count() - (part.full_end - part.full_begin)", "0",
              "cuda_backward_tasks_test"),
        Fault("parts start at the group's first head", "task.head_k * a.group + member", "task.head_k * a.group",
              "cuda_backward_tasks_test"),
        Fault("every key tile begins the sums of dQ", "tile > 0 ? visited", "tile < 0 ? visited", BACKWARD),
        Fault("dQ of queries without later keys is not stored", "later.count() > 0 ? later.begin", "true ? later.begin",
              BACKWARD),
        Fault("parts without queries store no zeros", "p.dk_accum && p.part_tiles == 0 && task", "task",
              "cuda_backward_tasks_test"),
    ],
    "kernels/portable/backward_prepare.h": [
        Fault("equally long sequences share places in the list", "s.len_q == len_q && other < b", "false",
              "cuda_backward_tasks_test"),
    ],
    "src/cuda/plan/backward_common.cpp": [
        Fault("the last heads are as few as if a CTA held one task", "sums.lists_keys && dense ? 464 : 264", "264",
              "cuda_backward_tasks_test"),
    ],

    # Backward on Hopper.
    "kernels/sm90/backward/producer.h": [
        Fault("the first queries of a head are loaded before it is prepared",
              "while (load_acquire(tiles) < all) sleep_for(100);", "static_cast<void>(tiles), static_cast<void>(all);",
              BACKWARD),
        Fault("a late warp misses the release of keys that no query sees", "        sync();\n      }\n      converge();",
              "      }\n      converge();", BACKWARD),
        Fault("dQ of a listed query tile is added to the next one", "const int tile = listed_dq.tile();",
              "const int tile = listed_dq.tile() + 1;", BACKWARD),
    ],
    "kernels/sm90/backward/dq_panel.h": [
        Fault("all columns of dQ are stored where the first ones belong", "offset_of(p.dq, b, head, row) + column);",
              "offset_of(p.dq, b, head, row));", BACKWARD),
        Fault("heads of a group keep the same sums of dQ", "* a.group + member)", "* a.group + 0 * member)", BACKWARD),
        Fault("the last key tile does not add to the kept sums", "dq.load_kept(begins ? nullptr",
              "dq.load_kept(begins || ends ? nullptr", BACKWARD),
    ],
    "kernels/sm90/store.h": [
        Fault("a scale of 0 hides NaN", "kMayBeZero ? __float_as_uint(factor[r]) == 0x80000000u : factor[r] == 0",
              "factor[r] == 0", BACKWARD),
    ],
    "kernels/sm90/backward/deferred_prepare.h": [
        Fault("sums of the heads that the main kernel prepares keep what the workspace held",
              "zeros[i * 32] = {0, 0, 0, 0};", "zeros[i * 32].x = 0;", BACKWARD),
        Fault("rows of deferred heads have the delta of the row before", "delta_at(kPortable, row + i * kRows)] = delta;",
              "delta_at(kPortable, row + i * kRows) + 1] = delta;", BACKWARD),
    ],
    "kernels/sm90/backward/loader.h": [
        Fault("the next keys are loaded while the last are in use", "if (!first) mbarrier_wait(pipeline.k_empty()",
              "if (false && !first) mbarrier_wait(pipeline.k_empty()", BACKWARD),
    ],
    "kernels/sm90/backward/dq_adder.h": [
        Fault("heads of a group add to dQ of the first", "if (++step == steps) step = 0, ++member;",
              "if (++step == steps) step = 0;", BACKWARD),
        Fault("a task counts as done for its first head alone", "n < coord.group; ++n) add_release(done + n, 1)",
              "n < 1; ++n) add_release(done + n, 1)", BACKWARD),
        Fault("a key that is not finite reaches queries that do not see it", "if (d[x / 2] != 0) dq.sums",
              "dq.sums", BACKWARD),
        Fault("the last piece of K decides whether any is not finite", "found |= has_not_finite", "found = has_not_finite",
              BACKWARD),
        Fault("slots of tasks are used in turn with a phase too few", "for (;; keys.advance()) {",
              "for (;; keys.advance(), keys.advance()) {", BACKWARD),
    ],

    # dBias on Hopper.
    "kernels/sm90/dbias/consumer.h": [
        Fault("sums of dBias start with those of the tile before",
              "          for (int n = 0; n < kKeyTiles; ++n) sums[n] = {};\n          pending", "          pending", DBIAS),
        Fault("a weight of 0 does not hide what is not finite", "prob == 0 ? 0.0f : Options::gradient(",
              "Options::gradient(", DBIAS),
        Fault("rows beyond a length add to a shared bias",
              "tensor_mask(half) & existing_rows(info) & Scores::visible_pairs(a, info, tile)",
              "tensor_mask(half) & Scores::visible_pairs(a, info, tile)", DBIAS),
        Fault("parts of a tile are not added up", "part < w.dbias_parts; ++part, first", "part < 1; ++part, first",
              DBIAS),
        Fault("a row of all queries is the sum of one warp", "warp < kWarps; ++warp) x +=", "warp < 1; ++warp) x +=",
              DBIAS),
    ],
    "kernels/sm90/dbias/producer.h": [
        Fault("the last head adds nothing to a shared bias", "n < task.end; ++n", "n + 1 < task.end; ++n", DBIAS),
        Fault("tiles of dBias that nothing sees are not written", "if (first) store(DbiasStepKind::zeros);", "", DBIAS),
        Fault("dBias takes half tiles for whole", "info.full_end = whole ? visited.full_end : visited.full_begin",
              "info.full_end = whole ? visited.full_end : visited.full_end", DBIAS),
    ],
    "kernels/sm90/dq/scores.h": [
        Fault("dBias is the gradient in front of softcap", "if constexpr (kOfBias) pair.slope = 1;", "", DBIAS),
    ],
    "src/cuda/families/sm90_backward.cpp": [
        Fault("dQ of one key tile is stored in place of that of all", "p.len_k <= tile_k_of(c) && ", "", "cuda_plans_test"),
        Fault("dQ of queries that see no key is not written", "shift + p.window_right >= 0 && ", "", "cuda_plans_test"),
        Fault("dBias of short sequences has a warpgroup without queries", "is_short ? 1 : 2", "2", DBIAS),
        Fault("key tiles have a third warpgroup without keys", "kTimeOfTwo * keys(2) < keys(3)", "false",
              "cuda_plans_test"),
    ],
    "src/cuda/families/sm90_forward.cpp": [
        Fault("softcap has a fixed reference without a polynomial", "cap_polynomial(p.scale, p.softcap).limit > 0;", "true;",
              FORWARD),
        Fault("a tuned choice for sequences of one key tile serves longer ones", "if (has_one_key_tile(wanted) && p.len_k > wanted.tile_k)",
              "if (false)",
              "tuned_test"),
        Fault("a tuned choice decides what an option needs",
              "(wanted.schedule & ~kOptionSchedule) | (c.schedule & kOptionSchedule)", "wanted.schedule", "tuned_test"),
    ],
}
