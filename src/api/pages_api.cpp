// The C ABI of the page pool: checks pointers here and leaves all other rules to cache::Pool.
#include <cuflash/cuflash_pages.h>

#include <span>

#include "api/adopt.h"
#include "api/guard.h"
#include "pages/block_table.h"
#include "pages/pool.h"

struct cuflash_page_pool {
  cuflash::cache::Pool pool;
};

namespace cuflash {
namespace {

template <class T>
T& given(const char* name, T* pointer) {
  if (!pointer) reject(name, ": is NULL");
  return *pointer;
}

std::span<const cuflash_sequence> list_of(const cuflash_sequence* sequences, int64_t count) {
  if (count < 0) reject("count: got ", count, ", must be 0 or more");
  if (count > 0) given("sequences", sequences);
  return {sequences, static_cast<size_t>(count)};
}

// Checks the result pointer before the pool changes, and writes the result once it is known.
template <class Handle, class Result, class Call>
cuflash_status with_result(Handle* handle, const char* name, Result* result, Call call) noexcept {
  return guarded([&] {
    auto& pool = given("pool", handle).pool;
    Result& out = given(name, result);
    out = call(pool);
  });
}

}  // namespace
}  // namespace cuflash

using namespace cuflash;
using cache::Pool;

cuflash_status cuflash_page_pool_create(const cuflash_page_pool_config* config, cuflash_page_pool** pool) {
  return guarded([&] {
    const auto adopted = adopt("page_pool_config", config, cuflash_page_pool_config_init, sizeof *config);
    cuflash_page_pool*& out = given("pool", pool);
    out = new cuflash_page_pool{Pool(adopted)};
  });
}
void cuflash_page_pool_destroy(cuflash_page_pool* pool) { delete pool; }

cuflash_status cuflash_page_pool_start(cuflash_page_pool* pool, cuflash_sequence* sequence) {
  return with_result(pool, "sequence", sequence, [](Pool& p) { return p.start(); });
}
cuflash_status cuflash_page_pool_fork(cuflash_page_pool* pool, cuflash_sequence parent, int64_t tokens,
                                      cuflash_sequence* child) {
  return with_result(pool, "child", child, [&](Pool& p) { return p.fork(parent, tokens); });
}
cuflash_status cuflash_page_pool_append(cuflash_page_pool* pool, cuflash_sequence sequence, int64_t tokens,
                                        cuflash_append_result* result) {
  return with_result(pool, "result", result, [&](Pool& p) { return p.append(sequence, tokens); });
}
cuflash_status cuflash_page_pool_truncate(cuflash_page_pool* pool, cuflash_sequence sequence, int64_t tokens) {
  return guarded([&] { given("pool", pool).pool.truncate(sequence, tokens); });
}
cuflash_status cuflash_page_pool_trim(cuflash_page_pool* pool, cuflash_sequence sequence, int64_t sinks, int64_t window,
                                      cuflash_trim_result* result) {
  return with_result(pool, "result", result, [&](Pool& p) { return p.trim(sequence, sinks, window); });
}
cuflash_status cuflash_page_pool_release(cuflash_page_pool* pool, cuflash_sequence sequence) {
  return guarded([&] { given("pool", pool).pool.release(sequence); });
}

cuflash_status cuflash_page_pool_state(const cuflash_page_pool* pool, cuflash_sequence sequence,
                                       cuflash_sequence_state* state) {
  return with_result(pool, "state", state, [&](const Pool& p) { return p.state(sequence); });
}
cuflash_status cuflash_page_pool_statistics(const cuflash_page_pool* pool, cuflash_page_pool_stats* stats) {
  return with_result(pool, "stats", stats, [](const Pool& p) { return p.statistics(); });
}
cuflash_status cuflash_page_pool_write_block_table(const cuflash_page_pool* pool, const cuflash_sequence* sequences,
                                                   int64_t count, const cuflash_mutable_tensor* block_table,
                                                   int32_t unused) {
  return guarded([&] {
    const Pool& p = given("pool", pool).pool;
    const cuflash_mutable_tensor to = given("block_table", block_table);
    cache::write_block_table(p, list_of(sequences, count), to, unused);
  });
}
cuflash_status cuflash_page_pool_write_lengths(const cuflash_page_pool* pool, const cuflash_sequence* sequences,
                                               int64_t count, const cuflash_mutable_tensor* cache_seqlens) {
  return guarded([&] {
    const Pool& p = given("pool", pool).pool;
    const cuflash_mutable_tensor to = given("cache_seqlens", cache_seqlens);
    cache::write_lengths(p, list_of(sequences, count), to);
  });
}
cuflash_status cuflash_page_pool_check(const cuflash_page_pool* pool) {
  return guarded([&] { given("pool", pool).pool.check(); });
}
