/* Row r of k and v, `bytes` long and `k_stride` / `v_stride` bytes apart, goes to slot slots[r] of the caches, whose slots are `bytes` long. */
#include <stdint.h>
#include <string.h>

void kv_write(long rows, long bytes, const char *k, long k_stride, const char *v, long v_stride, const int64_t *slots, char *k_cache,
              char *v_cache)
{
    for (long r = 0; r < rows; r++) {
        memcpy(k_cache + slots[r] * bytes, k + r * k_stride, (size_t)bytes);
        memcpy(v_cache + slots[r] * bytes, v + r * v_stride, (size_t)bytes);
    }
}
