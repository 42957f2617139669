// Runs on the host the kernels that list the tiles that a mask tensor shows to backward, and the code by which
// consumers read the bits of a tile.
#pragma once

#include <cstdint>

namespace kernel_emulator {

// params: a Sm90BackwardParams. Tiles of 64 queries x 128 keys.
void list_query_tiles(const void* params, int64_t lists);
// Tiles of 128 queries x 64 keys.
void list_key_tiles_for_dq(const void* params, int64_t lists);
void list_key_tiles(const void* params, int64_t lists);  // the lists of forward

// box: bits of 64 queries, or of one if has_rows is false, and 128 keys, 16 bytes per query. half: which 64 keys. pairs:
// of each thread of a warpgroup (kernels/sm90/pair_bits.h).
void pairs_of_box(const unsigned char* box, bool has_rows, int half, bool keys_are_rows, unsigned (&pairs)[128]);

}  // namespace kernel_emulator
