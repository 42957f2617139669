// Tasks of the sm90 backward kernel: a key tile, or a part of the work on it.
//
// A key tile whose group has many query heads may be several tasks, so that the multiprocessors have equal work: the
// host chooses how many (head_parts, query_parts). A part takes some of the heads, or some query tiles of one head. In
// the order of tasks every part counts as a head, so grouped heads run in the order of as many equal heads.
#pragma once

#include "portable/backward/task.h"
#include "ptx/compiler.h"
#include "sm90/mask_tiles.h"

namespace cuflash {

struct KeyTask : TaskCoord {  // group: query heads of this part
  int first_head;             // first query head of this part
  int part;                   // which part of the key tile
  // With kKeepsDq: query tiles from begins_dq on see no earlier keys, and those before ends_dq see no later ones.
  int begins_dq, ends_dq;
};
static_assert(sizeof(KeyTask) <= kTaskBytes);

// Part n of the visited tiles.
__device__ __forceinline__ VisitedTiles part_of(const VisitedTiles& w, int n, int parts) {
  VisitedTiles part;
  part.begin = w.begin + static_cast<int>(quotient(int64{w.count()} * n, parts));
  part.end = w.begin + static_cast<int>(quotient(int64{w.count()} * (n + 1), parts));
  part.full_begin = static_cast<int>(clamped(w.full_begin, part.begin, part.end));
  part.full_end = static_cast<int>(clamped(w.full_end, part.begin, part.end));
  part.num_masked = part.count() - (part.full_end - part.full_begin);
  return part;
}

// Whether a task, whose head, keys and part are known, differs from another in its head alone.
template <BackwardConfig C>
__device__ __forceinline__ bool differs_in_head(const KeyTask& task, const KeyTask& like, const BackwardParams& p) {
  return sequences_are_equal(p.attention) && !p.attention.tile_counts && (C.options & kMaskTensor) == 0 &&
         task.k_first == like.k_first && task.part == like.part;
}
// Completes such a task. A short task takes less time than finding out which queries see its keys.
template <BackwardConfig C>
__device__ __forceinline__ void complete_similar_task(KeyTask& task, const KeyTask& like, const BackwardParams& p) {
  task.sequence = like.sequence;
  compiler_fence();
  task.visited = like.visited;
  compiler_fence();
  task.written = like.written, task.group = like.group;
  compiler_fence();
  task.tiles_of_head = like.tiles_of_head;
  task.first_head = like.first_head + (task.head_k - like.head_k) * p.attention.group;
  compiler_fence();
  task.tiles_before = query_tile<C>(p, task.sequence, task.b, task.first_head, 0);
}

// Writes task `index` to shared memory. written is negative if there is no such task, and 0 if it stores nothing. The
// fences make the compiler read fields back, because the producer has few registers. `current`: another task that
// stores something, or null.
template <BackwardConfig C>
__device__ __forceinline__ void write_task(KeyTask& task, const BackwardParams& p, int64 index,
                                           const KeyTask* current = nullptr) {
  const AttentionParams& a = p.attention;
  const int64 tiles =
      p.key_tiles ? p.key_tiles[0].b : tiles_in(a.len_k, C.tile_k);  // key tiles of a head, or of all sequences
  const int64 heads = int64{a.heads_k} * p.head_parts * p.query_parts * (p.key_tiles ? 1 : a.batch);
  if (index >= tiles * heads) {
    task.group = 0, task.written = -1;
    return;
  }
  const OrderedTile ordered = ordered_tile(p, index, heads, tiles);
  // Divisions are most of the time that this takes, which every call waits for before its first load.
  const int parts = p.head_parts * p.query_parts;
  const int64 head = parts > 1 ? quotient(ordered.head, parts) : ordered.head;
  const int part = static_cast<int>(ordered.head - head * parts);
  int64 tile = ordered.tile;
  if (p.key_tiles) {
    const KeyTile listed = p.key_tiles[1 + tile];
    task.b = listed.b, tile = listed.tile;
    task.head_k = static_cast<int>(head);
  } else {
    const int64 b = quotient(head, a.heads_k);
    task.b = static_cast<int>(b), task.head_k = static_cast<int>(head - b * a.heads_k);
  }
  task.part = part, task.k_first = static_cast<int>(tile) * C.tile_k;
  compiler_fence();
  if (current && differs_in_head<C>(task, *current, p)) return complete_similar_task<C>(task, *current, p);
  set_keys<C>(p, task, task.k_first / C.tile_k);
  compiler_fence();
  task.group = a.group, task.first_head = task.head_k * a.group;
  int query_part = 0;
  if (parts > 1) {
    const int head_part = task.part / p.query_parts;
    const int member = static_cast<int>(quotient(int64{a.group} * head_part, p.head_parts));
    query_part = task.part - head_part * p.query_parts;
    task.group = static_cast<int>(quotient(int64{a.group} * (head_part + 1), p.head_parts)) - member;
    task.first_head += member;
  }
  set_visited<C, true>(p, task, query_part == 0 ? task.group : 0);
  if constexpr ((C.options & kMaskTensor) != 0) {
    const int count = mask_list(p.mask_lists, task.b, task.head_k, task.k_first / C.tile_k)[0];
    task.visited = {0, count, count, count, count};  // positions in the list
  }
  if (p.query_parts > 1) task.visited = part_of(task.visited, query_part, p.query_parts);
  // A part without queries adds nothing; but if parts have separate sums, it stores zeros.
  if (p.dk_accum && p.part_tiles == 0 && task.visited.count() == 0) task.written = 0;
  compiler_fence();
  task.tiles_before = query_tile<C>(p, task.sequence, task.b, task.first_head, 0);
  task.tiles_of_head = query_tile<C>(p, task.sequence, task.b, task.first_head + 1, 0) - task.tiles_before;
}

// Writes the next task that stores something. The index of a CTA is the index of its first task, which is therefore
// known before the prepare kernel ends; tickets number the tasks after these. Without a loader a CTA claims its second
// task when it begins the first, so all CTAs draw their second tickets at the same time. If tasks are few and later
// ones are shorter, first and second tasks are paired instead: the CTA with the longest first task gets the shortest
// second one. A loader claims late and passes `second` as false.
template <BackwardConfig C>
__device__ __forceinline__ void write_next_task(KeyTask& task, const BackwardParams& p, const KeyTask* current,
                                                bool second) {
  bool paired = second && p.last_paired_task > 0;
  do {
    const int64 index = paired ? p.last_paired_task - cta_number() : static_cast<int64>(atomicAdd(p.ticket, 1ull));
    write_task<C>(task, p, index, current);
    paired = false;
  } while (task.written == 0);
}

// With kKeepsDq, tasks are numbered head by head, and tickets number the heads.
template <BackwardConfig C>
__device__ __forceinline__ void write_task_of_head(KeyTask& task, const BackwardParams& p, int64 head, int tile) {
  const AttentionParams& a = p.attention;
  const int64 tiles = tiles_in(a.len_k, C.tile_k);
  write_task<C>(task, p, head * tiles + tile);
  if (task.written < 0) return;
  const auto visited = [&](int first) {
    const Range keys{first, min(int64{first} + C.tile_k, int64{task.sequence.len_k})};
    return visited_query_tiles<C>(a, task.sequence, keys, false);
  };
  const int last = static_cast<int>(tiles) - 1;
  const VisitedTiles later = tile < last ? visited(task.k_first + C.tile_k) : VisitedTiles{};
  task.begins_dq = tile > 0 ? visited(task.k_first - C.tile_k).end : 0;
  task.ends_dq = later.count() > 0 ? later.begin : tiles_in(a.len_q, C.tile_q);
}
template <BackwardConfig C>
__device__ __forceinline__ void write_next_task_of_head(KeyTask& task, const KeyTask& current,
                                                        const BackwardParams& p) {
  const int tile = current.k_first / C.tile_k + 1;
  if (tile < tiles_in(p.attention.len_k, C.tile_k))
    write_task_of_head<C>(task, p, int64{current.b} * p.attention.heads_k + current.head_k, tile);
  else write_task_of_head<C>(task, p, static_cast<int64>(atomicAdd(p.ticket, 1ull)), 0);
}

// The tile of dk_accum and dv_accum that has the task's first 64 keys.
__device__ __forceinline__ int64 sums_tile(const BackwardParams& p, const KeyTask& task) {
  return task.part * p.part_tiles + key_tile(p, task.sequence, task.b, task.head_k, task.k_first / kSumKeys);
}

}  // namespace cuflash
