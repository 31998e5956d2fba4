/* Causal attention of runs of new tokens, one run per sequence, over the paged cache. Run b is the rows query_starts[b] ..
 * query_starts[b+1]-1 of q and out [rows, heads, size], the last ones of its sequence's context_lens[b] tokens; rows of q are `q_stride`
 * elements apart; caches [blocks, block_size, kv_heads, size]; tables [batch, table_width]; `size` a multiple of 16. */
#include "attention.h"

#define ROWS 16 /* of one run that share the keys and values of a tile */

void attention_prefill(long batch, long heads, long kv_heads, long size, const element *q, long q_stride, const element *k_cache,
                       const element *v_cache, long block_size, const int32_t *tables, long table_width, const int32_t *query_starts,
                       const int32_t *context_lens, element *out, int threads)
{
    const shape c = {kv_heads, heads / kv_heads, size, block_size, k_cache, v_cache};
    long most = query_starts[batch] / ROWS + batch, items = 0;
    struct {
        long run, row;
    } work[most];
    for (long b = 0; b < batch; b++)
        for (long row = query_starts[b]; row < query_starts[b + 1]; row += ROWS) {
            work[items].run = b;
            work[items++].row = row;
        }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long item = 0; item < items * kv_heads; item++) {
        long b = work[item / kv_heads].run, row = work[item / kv_heads].row, head = item % kv_heads;
        long left = query_starts[b + 1] - row, rows = left < ROWS ? left : ROWS;
        long context = context_lens[b] - (left - rows); /* up to the last of these rows */
        attend_rows(&c, q + row * q_stride, q_stride, rows, tables + b * table_width, context, head, head + 1,
                    out + row * heads * size, heads * size);
    }
}
