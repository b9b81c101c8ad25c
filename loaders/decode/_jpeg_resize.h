/* Resizes rows while they are decoded: separable, horizontal pass first, 8 bits between the passes, 22-bit weights.
 *
 * This is the arithmetic of Pillow's Image.resize, and the result is equal to Pillow's bit for bit, except where bilinear
 * is not antialiased: then the filter does not widen when an image shrinks. It uses integers only, so that the plain
 * loops and those for AVX2 and AVX-512 give the same result on every processor. The latter split a weight into two parts
 * of 16 bits, high * 2^11 + low; one instruction multiplies these for two taps and adds.
 */

#ifndef LOADERS_JPEG_RESIZE_H
#define LOADERS_JPEG_RESIZE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(PLAIN_C)
#define HAS_SIMD_CODE 1
#include <immintrin.h>
#endif

#define WEIGHT_BITS 22
#define HALF (1 << (WEIGHT_BITS - 1))
#define LOW_BITS 11
#define SPARE_BYTES 5
#define ROWS_AT_ONCE 4 /* as many as a register of 512 bits has parts */
#define PIXEL_BYTES 4 /* input rows are RGBX, so that a pixel is one 32-bit word; output rows are RGB */

typedef enum { BILINEAR, BICUBIC, BILINEAR_NO_ANTIALIAS } filter_t;

#if HAS_SIMD_CODE
static int has_avx2, has_avx512; /* set once, when the module is imported */
#endif

typedef struct {
    void *data;
    size_t bytes;
} buffer_t;

/* One axis: output i is the sum over t < 4 * quads of weights[i][t] * input[first[i] + t]. Taps of weight 0 pad the
 * quads; because of them an output may read up to 4 * quads - 1 inputs behind the last. */
typedef struct {
    int quads;
    int from, to; /* range of the inputs that have a weight */
    int32_t *first;
    int32_t *weights; /* [outputs][4 * quads] */
    int32_t *split;   /* [outputs][quads][4]: high 0 and 1, low 0 and 1, high 2 and 3, low 2 and 3 */
} taps_t;

/* ---- weights ---- */

/* Return at least `bytes` initialised bytes with any contents; NULL where there is no memory. */
static void *reserve(buffer_t *buffer, size_t bytes)
{
    if (bytes > buffer->bytes) {
        free(buffer->data);
        buffer->data = calloc(1, bytes);
        buffer->bytes = buffer->data ? bytes : 0;
    }
    return buffer->data;
}

/* Cubic filter: Keys, "Cubic convolution interpolation for digital image processing", 1981, with a = -1/2. */
static double bicubic(double x)
{
    const double a = -0.5;
    x = x < 0 ? -x : x;
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double triangle(double x)
{
    x = x < 0 ? -x : x;
    return x < 1 ? 1 - x : 0;
}

/* Find the inputs whose centres lie within the filter's support, clamped to the box. */
static int window_first(double center, double support)
{
    int first = (int)(center - support + 0.5);
    return first < 0 ? 0 : first;
}

static int window_stop(double center, double support, int inputs)
{
    int stop = (int)(center + support + 0.5);
    return stop > inputs ? inputs : stop;
}

static uint32_t two_words(int32_t low, int32_t high)
{
    return (uint16_t)low | (uint32_t)(uint16_t)high << 16;
}

/* Outputs offset .. offset + outputs of a box of `inputs` pixels that is scaled to `resized`; backwards if mirrored.
 * Returns 0 where there is no memory. */
static int make_taps(taps_t *taps, buffer_t *buffer, filter_t filter, int inputs, int resized, int offset, int outputs,
                     int mirrored)
{
    double scale = (double)inputs / resized;
    double stretch = filter == BILINEAR_NO_ANTIALIAS || scale < 1 ? 1 : scale;
    double support = (filter == BICUBIC ? 2 : 1) * stretch;
    int most = 1;
    for (int i = 0; i < outputs; i++) {
        double center = (offset + i + 0.5) * scale;
        int count = window_stop(center, support, inputs) - window_first(center, support);
        most = count > most ? count : most;
    }
    taps->from = window_first((offset + 0.5) * scale, support);
    taps->to = window_stop((offset + outputs - 1 + 0.5) * scale, support, inputs);
    taps->quads = (most + 3) / 4;
    size_t each = 4 * (size_t)taps->quads;
    double *exact = reserve(buffer, each * sizeof(double) + outputs * (1 + 2 * each) * sizeof(int32_t));
    if (!exact)
        return 0;
    taps->first = (int32_t *)(exact + each);
    taps->weights = taps->first + outputs;
    taps->split = taps->weights + outputs * each;

    for (int i = 0; i < outputs; i++) {
        double center = (offset + (mirrored ? outputs - 1 - i : i) + 0.5) * scale, sum = 0;
        int first = window_first(center, support), count = window_stop(center, support, inputs) - first;
        int32_t *weights = taps->weights + i * each, *split = taps->split + i * each;
        for (int t = 0; t < count; t++) {
            double x = (t + first - center + 0.5) * (1 / stretch);
            sum += exact[t] = filter == BICUBIC ? bicubic(x) : triangle(x); /* a pointer to either takes twice as long */
        }
        for (int t = 0; t < (int)each; t++) {
            double weight = t < count ? exact[t] / sum * (1 << WEIGHT_BITS) : 0;
            weights[t] = (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
        }
        for (size_t t = 0; t < each; t += 2) {
            const int32_t mask = (1 << LOW_BITS) - 1, one = weights[t], two = weights[t + 1];
            split[t] = two_words(one >> LOW_BITS, two >> LOW_BITS);
            split[t + 1] = two_words(one & mask, two & mask);
        }
        taps->first[i] = first;
    }
    return 1;
}

/* ---- passes ---- */

static uint8_t to_sample(int32_t sum)
{
    sum = (sum + HALF) >> WEIGHT_BITS;
    return sum < 0 ? 0 : sum > 255 ? 255 : sum;
}

/* Scale RGBX rows that are `row_bytes` apart and begin at input taps->from to RGB rows that are `stride` bytes apart;
 * SPARE_BYTES behind each may be overwritten. */
static void narrow_plain(
    const uint8_t *rows, size_t row_bytes, uint8_t *narrow, size_t stride, const taps_t *taps, int outputs)
{
    for (int row = 0; row < ROWS_AT_ONCE; row++, rows += row_bytes, narrow += stride)
        for (int i = 0; i < outputs; i++) {
            const uint8_t *pixel = rows + (taps->first[i] - taps->from) * PIXEL_BYTES;
            const int32_t *weights = taps->weights + (size_t)i * 4 * taps->quads;
            int32_t red = 0, green = 0, blue = 0;
            for (int t = 0; t < 4 * taps->quads; t++, pixel += PIXEL_BYTES) {
                red += weights[t] * pixel[0];
                green += weights[t] * pixel[1];
                blue += weights[t] * pixel[2];
            }
            uint8_t *out = narrow + 3 * i;
            out[0] = to_sample(red);
            out[1] = to_sample(green);
            out[2] = to_sample(blue);
        }
}

/* Compute an output row from input rows that are `stride` bytes apart. */
static void mix_plain(const uint8_t *rows, size_t stride, const int32_t *weights, int quads, uint8_t *out, int samples)
{
    for (int i = 0; i < samples; i++) {
        int32_t sum = 0;
        for (int t = 0; t < 4 * quads; t++)
            sum += weights[t] * rows[t * stride + i];
        out[i] = to_sample(sum);
    }
}

#if HAS_SIMD_CODE

#define TARGET __attribute__((target("avx2")))
#define FOR(name) name##_avx2
#define VECTOR __m256i
#define V(name) _mm256_##name
#define EACH_LANE _mm256_broadcastsi128_si256
#define ADD_PAIRS(sums, pairs, weights) _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, weights))

TARGET static inline __m256i load_avx2(const uint8_t *from) { return _mm256_loadu_si256((const __m256i *)from); }
TARGET static inline void store_avx2(uint8_t *to, __m256i vector) { _mm256_storeu_si256((__m256i *)to, vector); }

TARGET static inline __m256i load_lanes_avx2(const uint8_t *from, size_t row_bytes)
{
    __m256i lanes = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)from));
    return _mm256_inserti128_si256(lanes, _mm_loadu_si128((const __m128i *)(from + row_bytes)), 1);
}

TARGET static inline void store_lanes_avx2(uint8_t *to, size_t stride, __m256i lanes)
{
    _mm_storeu_si64(to, _mm256_castsi256_si128(lanes));
    _mm_storeu_si64(to + stride, _mm256_extracti128_si256(lanes, 1));
}

#include "_jpeg_resize_simd.h"
#undef TARGET
#undef FOR
#undef VECTOR
#undef V
#undef EACH_LANE
#undef ADD_PAIRS

/* VNNI multiplies and adds in one instruction. */
#define TARGET __attribute__((target("avx512bw,avx512vnni")))
#define FOR(name) name##_avx512
#define VECTOR __m512i
#define V(name) _mm512_##name
#define EACH_LANE _mm512_broadcast_i32x4
#define ADD_PAIRS(sums, pairs, weights) _mm512_dpwssd_epi32(sums, pairs, weights)

TARGET static inline __m512i load_avx512(const uint8_t *from) { return _mm512_loadu_si512(from); }
TARGET static inline void store_avx512(uint8_t *to, __m512i vector) { _mm512_storeu_si512(to, vector); }

TARGET static inline __m512i load_lanes_avx512(const uint8_t *from, size_t row_bytes)
{
    __m512i lanes = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)from));
    lanes = _mm512_inserti32x4(lanes, _mm_loadu_si128((const __m128i *)(from + row_bytes)), 1);
    lanes = _mm512_inserti32x4(lanes, _mm_loadu_si128((const __m128i *)(from + 2 * row_bytes)), 2);
    return _mm512_inserti32x4(lanes, _mm_loadu_si128((const __m128i *)(from + 3 * row_bytes)), 3);
}

TARGET static inline void store_lanes_avx512(uint8_t *to, size_t stride, __m512i lanes)
{
    _mm_storeu_si64(to, _mm512_castsi512_si128(lanes));
    _mm_storeu_si64(to + stride, _mm512_extracti32x4_epi32(lanes, 1));
    _mm_storeu_si64(to + 2 * stride, _mm512_extracti32x4_epi32(lanes, 2));
    _mm_storeu_si64(to + 3 * stride, _mm512_extracti32x4_epi32(lanes, 3));
}

#include "_jpeg_resize_simd.h"
#undef TARGET
#undef FOR
#undef VECTOR
#undef V
#undef EACH_LANE
#undef ADD_PAIRS

#endif

/* ---- by processor ---- */

/* Scale ROWS_AT_ONCE rows as narrow_plain does. */
static void narrow_rows(
    const uint8_t *rows, size_t row_bytes, uint8_t *narrow, size_t stride, const taps_t *taps, int outputs)
{
#if HAS_SIMD_CODE
    if (has_avx512) {
        narrow_avx512(rows, row_bytes, narrow, stride, taps, outputs);
        return;
    }
    if (has_avx2) {
        narrow_avx2(rows, row_bytes, narrow, stride, taps, outputs);
        narrow_avx2(rows + 2 * row_bytes, row_bytes, narrow + 2 * stride, stride, taps, outputs);
        return;
    }
#endif
    narrow_plain(rows, row_bytes, narrow, stride, taps, outputs);
}

/* Scale RGB rows that are `stride` bytes apart and begin at input taps->from to the output [height, width, 3]. */
static void mix_all(const uint8_t *narrow, size_t stride, const taps_t *taps, uint8_t *out, int height, int width)
{
    int samples = 3 * width, quads = taps->quads;
    for (int i = 0; i < height; i++, out += samples) {
        const uint8_t *rows = narrow + (taps->first[i] - taps->from) * stride;
        size_t at = (size_t)i * 4 * quads;
#if HAS_SIMD_CODE
        if (has_avx512 && mix_avx512(rows, stride, taps->split + at, quads, out, samples))
            continue;
        if (has_avx2 && mix_avx2(rows, stride, taps->split + at, quads, out, samples))
            continue;
#endif
        mix_plain(rows, stride, taps->weights + at, quads, out, samples);
    }
}

#endif
