/* Quantised blocks to values, in one pass: float32, or rounded to bfloat16 (to nearest even) on the way to memory.
 *
 * Every type is `value * scale` or `value * scale - minimum`: small whole numbers, and scales and minima in float32, with
 * products in the order of gguf-py's reference, so that the bits are the same. Blocks are at any address. Grids and lists
 * of values come from the caller: they are gguf-py's own, and no index that fits its bits is outside them.
 */

#include <stdint.h>
#include <string.h>
#if defined(__SSSE3__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef struct {
    const int8_t *values; /* a grid, or sixteen values */
    const void *more;     /* signs, eight to a row, or a scale for each byte */
} tables;

static inline uint16_t word(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }

static inline uint32_t long_word(const uint8_t *at) { return word(at) | (uint32_t)word(at + 2) << 16; }

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float half_of(uint16_t bits) {
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31)
        return float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent)
        return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float small = (float)fraction * 0x1p-24f;
    return sign ? -small : small;
#endif
}

static inline float half(const uint8_t *at) { return half_of(word(at)); }

/* So many values are worked on at once: unpacked, then scaled, then rounded, in the first-level cache. */
#define BATCH 512

static void round_to_bf16(const float *value, uint16_t *out, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, value + i, sizeof bits);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        out[i] = value[i] != value[i] ? 0x7fc0 : (uint16_t)rounded;
    }
}

/* A type's parts of one block -> its decoders. `GROUP` values share a scale; `MINIMUM` is what is taken from each. */
#define DECODER(NAME, BYTES, BLOCK, GROUP, MINIMUM)                                                                      \
    static inline void NAME##_some(const uint8_t *raw, float *out, int64_t blocks, tables t) {                           \
        int8_t value[BATCH];                                                                                             \
        float scale[BATCH / GROUP], minimum[BATCH / GROUP];                                                              \
        for (int64_t n = 0; n < blocks; n++)                                                                             \
            NAME(raw + n * BYTES, t, value + n * BLOCK, scale + n * (BLOCK / GROUP), minimum + n * (BLOCK / GROUP));     \
        for (int64_t g = 0; g < blocks * (BLOCK / GROUP); g++)                                                           \
            for (int i = 0; i < GROUP; i++)                                                                              \
                out[g * GROUP + i] = (float)value[g * GROUP + i] * scale[g] - (MINIMUM);                                 \
    }                                                                                                                    \
    void NAME##_f32(const uint8_t *raw, float *out, int64_t blocks, const int8_t *values, const void *more) {            \
        for (int64_t n = 0; n < blocks; n += BATCH / BLOCK)                                                              \
            NAME##_some(raw + n * BYTES, out + n * BLOCK, MIN(blocks - n, BATCH / BLOCK), (tables){values, more});       \
    }                                                                                                                    \
    void NAME##_bf16(const uint8_t *raw, uint16_t *out, int64_t blocks, const int8_t *values, const void *more) {        \
        float done[BATCH];                                                                                               \
        for (int64_t n = 0; n < blocks; n += BATCH / BLOCK) {                                                            \
            int64_t count = MIN(blocks - n, BATCH / BLOCK);                                                              \
            NAME##_some(raw + n * BYTES, done, count, (tables){values, more});                                           \
            round_to_bf16(done, out + n * BLOCK, count * BLOCK);                                                         \
        }                                                                                                                \
    }
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define PARTS(NAME)                                                                                                      \
    static inline void NAME(const uint8_t *b, tables t, int8_t *value, float *scale, float *minimum)
#define NONE 0.0f
#define MINIMA minimum[g]

/* In the comments: the bytes of a block (ggml-common.h of llama.cpp has the structs). */

/* d 2, values 16, whose low halves come first */
PARTS(q4_0) {
    scale[0] = half(b);
    for (int i = 0; i < 16; i++) {
        value[i] = (int8_t)((b[2 + i] & 15) - 8);
        value[16 + i] = (int8_t)((b[2 + i] >> 4) - 8);
    }
}
DECODER(q4_0, 18, 32, 32, NONE)

/* d 2, m 2, values 16 */
PARTS(q4_1) {
    scale[0] = half(b);
    minimum[0] = -half(b + 2);
    for (int i = 0; i < 16; i++) {
        value[i] = b[4 + i] & 15;
        value[16 + i] = (int8_t)(b[4 + i] >> 4);
    }
}
DECODER(q4_1, 20, 32, 32, MINIMA)

static inline void five_bits(const uint8_t *high, const uint8_t *low, unsigned offset, int8_t *value) {
    uint32_t bits = long_word(high);
    for (int i = 0; i < 16; i++) {
        value[i] = (int8_t)(((low[i] & 15) | (bits >> i & 1) << 4) - offset);
        value[16 + i] = (int8_t)(((unsigned)low[i] >> 4 | (bits >> (16 + i) & 1) << 4) - offset);
    }
}

/* d 2, fifth bits 4, values 16 */
PARTS(q5_0) {
    scale[0] = half(b);
    five_bits(b + 2, b + 6, 16, value);
}
DECODER(q5_0, 22, 32, 32, NONE)

/* d 2, m 2, fifth bits 4, values 16 */
PARTS(q5_1) {
    scale[0] = half(b);
    minimum[0] = -half(b + 2);
    five_bits(b + 4, b + 8, 0, value);
}
DECODER(q5_1, 24, 32, 32, MINIMA)

/* d 2, signs 16 */
PARTS(q1_0) {
    scale[0] = half(b);
    for (int i = 0; i < 128; i++)
        value[i] = (int8_t)(2 * (b[2 + i / 8] >> i % 8 & 1) - 1);
}
DECODER(q1_0, 18, 128, 128, NONE)

/* d 2, values 16, of four values, which come one after another */
PARTS(q2_0) {
    scale[0] = half(b);
    for (int i = 0; i < 64; i++)
        value[i] = (int8_t)((b[2 + i / 4] >> 2 * (i % 4) & 3) - 1);
}
DECODER(q2_0, 18, 64, 64, NONE)

/* d 2, values 32 */
PARTS(q8_0) {
    scale[0] = half(b);
    memcpy(value, b + 2, 32);
}
DECODER(q8_0, 34, 32, 32, NONE)

/* scales and minima 16, values 2 x 32, of four values, 32 apart, d 2, dmin 2 */
PARTS(q2_k) {
    float d = half(b + 80), dmin = half(b + 82);
    for (int g = 0; g < 16; g++) {
        scale[g] = d * (float)(b[g] & 15);
        minimum[g] = dmin * (float)(b[g] >> 4);
    }
    for (int n = 0; n < 2; n++)
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 32; i++)
                value[128 * n + 32 * k + i] = b[16 + 32 * n + i] >> 2 * k & 3;
}
DECODER(q2_k, 84, 256, 16, MINIMA)

/* third bits 32, values 2 x 32, scales 8 + 4, d 2. Scale 8 i + 4 j + k is in half i of byte 4 j + k, and its high bits in
 * crumb 2 i + j of byte k. */
PARTS(q3_k) {
    const uint8_t *low = b + 96, *high = b + 104;
    float d = half(b + 108);
    for (int g = 0; g < 16; g++) {
        int i = g >> 3, j = g >> 2 & 1, k = g & 3;
        scale[g] = d * (float)((int)((low[4 * j + k] >> 4 * i & 15) | (high[k] >> 2 * (2 * i + j) & 3) << 4) - 32);
    }
    for (int n = 0; n < 2; n++)
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 32; i++)
                value[128 * n + 32 * k + i] =
                    (int8_t)(((b[32 + 32 * n + i] >> 2 * k & 3) | (b[i] >> (4 * n + k) & 1) << 2) - 4);
}
DECODER(q3_k, 110, 256, 16, NONE)

/* Eight scales and eight minima of six bits. Bytes: four scales, four minima, whose high bits belong to the other four,
 * which have their low bits in four more. */
static inline void six_bits(const uint8_t *b, float d, float dmin, float *scale, float *minimum) {
    for (int g = 0; g < 4; g++) {
        scale[g] = d * (float)(b[g] & 63);
        minimum[g] = dmin * (float)(b[4 + g] & 63);
        scale[4 + g] = d * (float)((b[8 + g] & 15) | b[g] >> 6 << 4);
        minimum[4 + g] = dmin * (float)(b[8 + g] >> 4 | b[4 + g] >> 6 << 4);
    }
}

/* d 2, dmin 2, scales and minima 12, values 4 x 32 */
PARTS(q4_k) {
    six_bits(b + 4, half(b), half(b + 2), scale, minimum);
    for (int n = 0; n < 4; n++)
        for (int i = 0; i < 32; i++) {
            value[64 * n + i] = b[16 + 32 * n + i] & 15;
            value[64 * n + 32 + i] = (int8_t)(b[16 + 32 * n + i] >> 4);
        }
}
DECODER(q4_k, 144, 256, 32, MINIMA)

/* d 2, dmin 2, scales and minima 12, fifth bits 32 (their bit i is of the i-th 32 values), values 4 x 32 */
PARTS(q5_k) {
    six_bits(b + 4, half(b), half(b + 2), scale, minimum);
    for (int n = 0; n < 4; n++)
        for (int i = 0; i < 32; i++) {
            value[64 * n + i] = (int8_t)((b[48 + 32 * n + i] & 15) | (b[16 + i] >> 2 * n & 1) << 4);
            value[64 * n + 32 + i] = (int8_t)(b[48 + 32 * n + i] >> 4 | (b[16 + i] >> (2 * n + 1) & 1) << 4);
        }
}
DECODER(q5_k, 176, 256, 32, MINIMA)

/* low halves 2 x 64, of two values, 64 apart; high bits 2 x 32, of four values, 32 apart; scales 16, d 2 */
PARTS(q6_k) {
    float d = half(b + 208);
    for (int g = 0; g < 16; g++)
        scale[g] = d * (float)(int8_t)b[192 + g];
    for (int n = 0; n < 2; n++)
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 32; i++)
                value[128 * n + 32 * k + i] = (int8_t)(((b[64 * n + 32 * (k & 1) + i] >> 4 * (k >> 1) & 15) |
                                                        (b[128 + 32 * n + i] >> 2 * k & 3) << 4) -
                                                       32);
}
DECODER(q6_k, 210, 256, 16, NONE)

/* Five ternary digits a byte: the k-th of `count` bytes' k-th ones come together. */
static inline void trits(const uint8_t *b, int count, int digits, int8_t *value) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (int k = 0; k < digits; k++)
        for (int i = 0; i < count; i++)
            value[count * k + i] = (int8_t)(((uint8_t)(b[i] * power[k]) * 3 >> 8) - 1);
}

/* values 48, values 4, d 2 */
PARTS(tq1_0) {
    scale[0] = half(b + 52);
    trits(b, 32, 5, value);
    trits(b + 32, 16, 5, value + 160);
    trits(b + 48, 4, 4, value + 240);
}
DECODER(tq1_0, 54, 256, 256, NONE)

/* values 2 x 32, of four values, 32 apart; d 2 */
PARTS(tq2_0) {
    scale[0] = half(b + 64);
    for (int n = 0; n < 2; n++)
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 32; i++)
                value[128 * n + 32 * k + i] = (int8_t)((b[32 * n + i] >> 2 * k & 3) - 1);
}
DECODER(tq2_0, 66, 256, 256, NONE)

/* The two halves of `count` bytes: first all low ones, then all high ones. */
static inline void nibbles(const uint8_t *b, int count, int8_t *value) {
    for (int i = 0; i < count; i++) {
        value[i] = b[i] & 15;
        value[count + i] = (int8_t)(b[i] >> 4);
    }
}

/* What the list of sixteen has at each of `count` places, a multiple of 16. */
static inline void look_up(int8_t *value, int count, const int8_t *list) {
#if defined(__SSSE3__)
    __m128i all = _mm_loadu_si128((const __m128i *)list);
    for (int i = 0; i < count; i += 16) {
        __m128i *at = (__m128i *)(value + i);
        _mm_storeu_si128(at, _mm_shuffle_epi8(all, _mm_loadu_si128(at)));
    }
#elif defined(__aarch64__)
    int8x16_t all = vld1q_s8(list);
    for (int i = 0; i < count; i += 16)
        vst1q_s8(value + i, vqtbl1q_s8(all, vld1q_u8((const uint8_t *)value + i)));
#else
    for (int i = 0; i < count; i++)
        value[i] = list[value[i]];
#endif
}

/* exponent 1, values 16 */
PARTS(mxfp4) {
    scale[0] = ((const float *)t.more)[b[0]];
    nibbles(b + 1, 16, value);
    look_up(value, 32, t.values);
}
DECODER(mxfp4, 17, 32, 32, NONE)

/* scales 4, values 4 x 8 */
PARTS(nvfp4) {
    for (int g = 0; g < 4; g++) {
        scale[g] = ((const float *)t.more)[b[g]];
        nibbles(b + 4 + 8 * g, 8, value + 16 * g);
    }
    look_up(value, 64, t.values);
}
DECODER(nvfp4, 36, 64, 16, NONE)

/* d 2, values 16 */
PARTS(iq4_nl) {
    scale[0] = half(b);
    nibbles(b + 2, 16, value);
    look_up(value, 32, t.values);
}
DECODER(iq4_nl, 18, 32, 32, NONE)

/* d 2, high bits of scales 2, low bits 4, values 8 x 16 */
PARTS(iq4_xs) {
    float d = half(b);
    uint16_t high = word(b + 2);
    for (int g = 0; g < 8; g++) {
        scale[g] = d * (float)((int)((b[4 + g / 2] >> 4 * (g & 1) & 15) | (high >> 2 * g & 3) << 4) - 32);
        nibbles(b + 8 + 16 * g, 16, value + 32 * g);
    }
    look_up(value, 256, t.values);
}
DECODER(iq4_xs, 136, 256, 32, NONE)

/* `count` values of the grid's row `index`. */
static inline void grid_row(tables t, int count, unsigned index, int8_t *value) {
    memcpy(value, t.values + (unsigned)count * index, (unsigned)count);
}

/* Eight signs. */
static inline void sign_row(tables t, unsigned index, int8_t *sign) {
    memcpy(sign, (const int8_t *)t.more + 8 * index, 8);
}

static inline void multiply(int8_t *value, const int8_t *sign) {
    for (int i = 0; i < 256; i++)
        value[i] = (int8_t)(value[i] * sign[i]);
}

/* d 2, 8 x (grid indices 4, four times seven bits of signs and a scale 4) */
PARTS(iq2_xxs) {
    int8_t sign[256];
    float d = half(b);
    for (int g = 0; g < 8; g++) {
        const uint8_t *index = b + 2 + 8 * g;
        uint32_t packed = long_word(index + 4);
        scale[g] = d * ((0.5f + (float)(packed >> 28)) * 0.25f);
        for (int k = 0; k < 4; k++) {
            grid_row(t, 8, index[k], value + 32 * g + 8 * k);
            sign_row(t, packed >> 7 * k & 127, sign + 32 * g + 8 * k);
        }
    }
    multiply(value, sign);
}
DECODER(iq2_xxs, 66, 256, 32, NONE)

static inline void two_scales(float d, const uint8_t *b, float *scale) {
    for (int g = 0; g < 16; g++)
        scale[g] = d * ((0.5f + (float)(b[g / 2] >> 4 * (g & 1) & 15)) * 0.25f);
}

/* d 2, words 32 x 2, of nine bits of grid index and seven of signs, scales 8 */
PARTS(iq2_xs) {
    int8_t sign[256];
    two_scales(half(b), b + 66, scale);
    for (int k = 0; k < 32; k++) {
        uint16_t packed = word(b + 2 + 2 * k);
        grid_row(t, 8, packed & 511, value + 8 * k);
        sign_row(t, packed >> 9, sign + 8 * k);
    }
    multiply(value, sign);
}
DECODER(iq2_xs, 74, 256, 16, NONE)

/* d 2, grid indices 32, signs 32, high bits of indices 8, scales 8 */
PARTS(iq2_s) {
    int8_t sign[256];
    two_scales(half(b), b + 74, scale);
    for (int k = 0; k < 32; k++) {
        unsigned index = b[2 + k] | (unsigned)(b[66 + k / 4] >> 2 * (k & 3) & 3) << 8;
        grid_row(t, 8, index, value + 8 * k);
        sign_row(t, b[34 + k], sign + 8 * k);
    }
    multiply(value, sign);
}
DECODER(iq2_s, 82, 256, 16, NONE)

/* d 2, grid indices 64, 8 x (four times seven bits of signs and a scale 4) */
PARTS(iq3_xxs) {
    int8_t sign[256];
    float d = half(b);
    for (int g = 0; g < 8; g++) {
        uint32_t packed = long_word(b + 66 + 4 * g);
        scale[g] = d * ((0.5f + (float)(packed >> 28)) * 0.5f);
        for (int k = 0; k < 8; k++)
            grid_row(t, 4, b[2 + 8 * g + k], value + 32 * g + 4 * k);
        for (int k = 0; k < 4; k++)
            sign_row(t, packed >> 7 * k & 127, sign + 32 * g + 8 * k);
    }
    multiply(value, sign);
}
DECODER(iq3_xxs, 98, 256, 32, NONE)

/* d 2, grid indices 64, high bits of indices 8, signs 32, scales 4 */
PARTS(iq3_s) {
    int8_t sign[256];
    float d = half(b);
    for (int g = 0; g < 8; g++) {
        scale[g] = d * (float)(1 + 2 * (b[106 + g / 2] >> 4 * (g & 1) & 15));
        for (int k = 0; k < 8; k++) {
            unsigned index = b[2 + 8 * g + k] | (unsigned)(b[66 + g] >> k & 1) << 8;
            grid_row(t, 4, index, value + 32 * g + 4 * k);
        }
        for (int k = 0; k < 4; k++)
            sign_row(t, b[74 + 4 * g + k], sign + 32 * g + 8 * k);
    }
    multiply(value, sign);
}
DECODER(iq3_s, 110, 256, 32, NONE)

/* The grid of the next two holds values plus delta, from row 2048 on minus delta, in units of delta, which is 1/8. */

/* d 2, grid indices 32, 8 x (high bits of four indices, scale, sign of delta 2) */
PARTS(iq1_s) {
    float d = half(b);
    for (int g = 0; g < 8; g++) {
        uint16_t packed = word(b + 34 + 2 * g);
        scale[g] = d * ((float)(2 * (packed >> 12 & 7) + 1) * 0.125f);
        for (int k = 0; k < 4; k++)
            grid_row(t, 8, b[2 + 4 * g + k] | (packed >> 3 * k & 7u) << 8 | (packed >> 15u) << 11, value + 32 * g + 8 * k);
    }
}
DECODER(iq1_s, 50, 256, 32, NONE)

/* grid indices 32, high bits of indices and sign of delta 16, 4 x (four scales and a quarter of d 2) */
PARTS(iq1_m) {
    const uint8_t *words = b + 48;
    uint16_t d = 0;
    for (int n = 0; n < 4; n++)
        d = (uint16_t)(d | word(words + 2 * n) >> 12 << 4 * n);
    for (int g = 0; g < 16; g++)
        scale[g] = half_of(d) * ((float)(2 * (word(words + g / 4 * 2) >> 3 * (g & 3) & 7) + 1) * 0.125f);
    for (int k = 0; k < 32; k++)
        grid_row(t, 8, b[k] | (b[32 + k / 2] >> 4 * (k & 1) & 15u) << 8, value + 8 * k);
}
DECODER(iq1_m, 56, 256, 16, NONE)
