/* Attention of one query per sequence over the paged cache. q and out [batch, heads, size], rows of q `q_stride` elements apart; caches
 * [blocks, block_size, kv_heads, size]; tables [batch, table_width]; context_lens at least 1; `size` a multiple of 16. */
#include "attention.h"

void attention_decode(long batch, long heads, long kv_heads, long size, const element *q, long q_stride, const element *k_cache,
                      const element *v_cache, long block_size, const int32_t *tables, long table_width, const int32_t *context_lens,
                      element *out, int threads)
{
    const shape c = {kv_heads, heads / kv_heads, size, block_size, k_cache, v_cache};
    /* A whole sequence reads memory in order; few sequences are divided by KV head to have work for every thread. */
    long parts = batch < 2 * threads ? kv_heads : 1, share = kv_heads / parts;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long item = 0; item < batch * parts; item++) {
        long b = item / parts, first = item % parts * share;
        attend_rows(&c, q + b * q_stride, q_stride, 1, tables + b * table_width, context_lens[b], first, first + share,
                    out + b * heads * size, heads * size);
    }
}
