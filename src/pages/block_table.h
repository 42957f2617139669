// Writes what an attention call needs to know about a list of sequences into the caller's memory. Everything is checked
// before the first element is written.
#pragma once

#include <cuflash/cuflash_pages.h>

#include <cstdint>
#include <span>

#include "pages/pool.h"

namespace cuflash::cache {

void write_block_table(const Pool& pool, std::span<const cuflash_sequence> sequences,
                       const cuflash_mutable_tensor& block_table, int32_t unused);
void write_lengths(const Pool& pool, std::span<const cuflash_sequence> sequences,
                   const cuflash_mutable_tensor& cache_seqlens);

}  // namespace cuflash::cache
