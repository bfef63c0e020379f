/* Every decoder over random blocks, in memory of exactly their size: to be built with sanitizers, beside decode.c. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void decoder(const uint8_t *raw, void *out, int64_t blocks, const int8_t *values, const void *more);
#define EACH(DO) TYPES(DO)
#define DECLARE(NAME, BYTES, BLOCK, VALUES, MORE) \
    extern void NAME##_f32(const uint8_t *, float *, int64_t, const int8_t *, const void *); \
    extern void NAME##_bf16(const uint8_t *, uint16_t *, int64_t, const int8_t *, const void *);
#define ROW(NAME, BYTES, BLOCK, VALUES, MORE) \
    {#NAME, (decoder *)NAME##_f32, (decoder *)NAME##_bf16, BYTES, BLOCK, VALUES, MORE},

EACH(DECLARE)

static const struct {
    const char *name;
    decoder *f32, *bf16;
    int bytes, block, values, more;
} table[] = {EACH(ROW)};

static void *random_bytes(size_t count) {
    uint8_t *made = malloc(count);
    for (size_t i = 0; i < count; i++)
        made[i] = (uint8_t)(rand() >> 7);
    return made;
}

int main(void) {
    for (size_t t = 0; t < sizeof table / sizeof *table; t++)
        for (int blocks = 0; blocks < 70; blocks = blocks * 2 + 1) {
            uint8_t *raw = random_bytes((size_t)(blocks * table[t].bytes));
            int8_t *values = random_bytes((size_t)table[t].values);
            void *more = random_bytes((size_t)table[t].more);
            void *floats = malloc((size_t)(blocks * table[t].block) * 4), *halves = malloc((size_t)(blocks * table[t].block) * 2);
            table[t].f32(raw, floats, blocks, values, more);
            table[t].bf16(raw, halves, blocks, values, more);
            free(raw), free(values), free(more), free(floats), free(halves);
        }
    printf("%zu\n", sizeof table / sizeof *table);
}
