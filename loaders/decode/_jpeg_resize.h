/* Resizes rows while they are decoded: separable, horizontal pass first, 8 bits between the passes, 22-bit weights.
 *
 * This is the arithmetic of Pillow's Image.resize, and the result is equal to Pillow's bit for bit. It uses integers
 * only, so that the plain loops and those for AVX2 give the same result on every processor. The AVX2 loops split a
 * weight into two parts of 16 bits, high * 2^11 + low; one instruction multiplies these for two taps and adds.
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
#define PIXEL_BYTES 4 /* input rows are RGBX, so that a pixel is one 32-bit word; output rows are RGB */

typedef enum { BILINEAR, BICUBIC, BILINEAR_NO_ANTIALIAS } filter_t;

#if HAS_SIMD_CODE
static int has_avx2; /* set once, when the module is imported */
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
    double (*kernel)(double) = filter == BICUBIC ? bicubic : triangle;
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
        for (int t = 0; t < count; t++)
            sum += exact[t] = kernel((t + first - center + 0.5) * (1 / stretch));
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

/* Scale two RGBX rows, which begin at input taps->from, to two RGB rows; SPARE_BYTES behind them may be overwritten. */
static void narrow_plain(const uint8_t *const rows[2], uint8_t *const narrow[2], const taps_t *taps, int outputs)
{
    for (int row = 0; row < 2; row++)
        for (int i = 0; i < outputs; i++) {
            const uint8_t *pixel = rows[row] + (taps->first[i] - taps->from) * PIXEL_BYTES;
            const int32_t *weights = taps->weights + (size_t)i * 4 * taps->quads;
            int32_t red = 0, green = 0, blue = 0;
            for (int t = 0; t < 4 * taps->quads; t++, pixel += PIXEL_BYTES) {
                red += weights[t] * pixel[0];
                green += weights[t] * pixel[1];
                blue += weights[t] * pixel[2];
            }
            uint8_t *out = narrow[row] + 3 * i;
            out[0] = to_sample(red);
            out[1] = to_sample(green);
            out[2] = to_sample(blue);
        }
}

/* Compute samples `from` .. `samples` of one output row from input rows that are `stride` bytes apart. */
static void mix_plain(
    const uint8_t *rows, size_t stride, const int32_t *weights, int quads, uint8_t *out, int from, int samples)
{
    for (int i = from; i < samples; i++) {
        int32_t sum = 0;
        for (int t = 0; t < 4 * quads; t++)
            sum += weights[t] * rows[t * stride + i];
        out[i] = to_sample(sum);
    }
}

#if HAS_SIMD_CODE

#define FOR_AVX2 __attribute__((target("avx2")))

FOR_AVX2 static inline void store_samples(const __m256i sums[4], uint8_t *out)
{
    __m256i front = _mm256_packs_epi32(sums[0], sums[1]), back = _mm256_packs_epi32(sums[2], sums[3]);
    _mm256_storeu_si256((__m256i *)out, _mm256_packus_epi16(front, back));
}

FOR_AVX2 static inline void add_avx2(__m256i *high, __m256i *low, __m256i pairs, const int32_t split[2])
{
    *high = _mm256_add_epi32(*high, _mm256_madd_epi16(pairs, _mm256_set1_epi32(split[0])));
    *low = _mm256_add_epi32(*low, _mm256_madd_epi16(pairs, _mm256_set1_epi32(split[1])));
}

FOR_AVX2 static inline __m256i sum_avx2(__m256i high, __m256i low)
{
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low), WEIGHT_BITS);
}

/* Sums of one output pixel of two rows, four of 32 bits for each row in one half of the register. */
FOR_AVX2 static inline __m256i narrow_pixel(const uint8_t *one, const uint8_t *two, const int32_t *split, int quads)
{
    /* Pixels 0 and 1, or 2 and 3, of four: r r g g b b x x, as 16 bits. */
    const __m256i front = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
    const __m256i back = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
    __m256i high = _mm256_setzero_si256(), low = _mm256_set1_epi32(HALF);
    for (int quad = 0; quad < quads; quad++, split += 4) {
        const __m128i *ones = (const __m128i *)one + quad, *twos = (const __m128i *)two + quad;
        __m256i four = _mm256_castsi128_si256(_mm_loadu_si128(ones));
        four = _mm256_inserti128_si256(four, _mm_loadu_si128(twos), 1);
        add_avx2(&high, &low, _mm256_shuffle_epi8(four, front), split);
        add_avx2(&high, &low, _mm256_shuffle_epi8(four, back), split + 2);
    }
    return sum_avx2(high, low);
}

FOR_AVX2 static void narrow_avx2(
    const uint8_t *const rows[2], uint8_t *const narrow[2], const taps_t *taps, int outputs)
{
    /* Two pixels r g b x: r g b r g b. */
    const __m256i packed = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const uint8_t *one = rows[0], *two = rows[1];
    const int32_t *first = taps->first, *split = taps->split;
    const int quads = taps->quads, from = taps->from;
    uint8_t *out_one = narrow[0], *out_two = narrow[1];
    for (int i = 0; i < outputs; i += 2) {
        int next = i + 1 < outputs;
        int at = (first[i] - from) * PIXEL_BYTES, next_at = (first[i + next] - from) * PIXEL_BYTES;
        __m256i left = narrow_pixel(one + at, two + at, split, quads);
        split += next * 4 * quads;
        __m256i right = narrow_pixel(one + next_at, two + next_at, split, quads);
        split += 4 * quads;
        __m256i both = _mm256_packs_epi32(left, right);
        both = _mm256_shuffle_epi8(_mm256_packus_epi16(both, both), packed);
        /* The last two of the eight bytes fall on the next pixels, which are written next, or behind the row. */
        _mm_storeu_si64(out_one + 3 * i, _mm256_castsi256_si128(both));
        _mm_storeu_si64(out_two + 3 * i, _mm256_extracti128_si256(both, 1));
    }
}

FOR_AVX2 static int mix_avx2(
    const uint8_t *rows, size_t stride, const int32_t *split, int quads, uint8_t *out, int samples)
{
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(HALF);
    int i = 0;
    for (; i + 32 <= samples; i += 32) {
        __m256i high[4] = {zero, zero, zero, zero}, low[4] = {half, half, half, half};
        for (int t = 0; t < 4 * quads; t += 2) {
            const uint8_t *row = rows + t * stride + i;
            __m256i one = _mm256_loadu_si256((const __m256i *)row);
            __m256i two = _mm256_loadu_si256((const __m256i *)(row + stride));
            __m256i left = _mm256_unpacklo_epi8(one, two), right = _mm256_unpackhi_epi8(one, two);
            add_avx2(&high[0], &low[0], _mm256_unpacklo_epi8(left, zero), split + t);
            add_avx2(&high[1], &low[1], _mm256_unpackhi_epi8(left, zero), split + t);
            add_avx2(&high[2], &low[2], _mm256_unpacklo_epi8(right, zero), split + t);
            add_avx2(&high[3], &low[3], _mm256_unpackhi_epi8(right, zero), split + t);
        }
        __m256i sums[4];
        for (int part = 0; part < 4; part++)
            sums[part] = sum_avx2(high[part], low[part]);
        store_samples(sums, out + i);
    }
    return i;
}

#endif

/* ---- by processor ---- */

static void narrow_two(const uint8_t *const rows[2], uint8_t *const narrow[2], const taps_t *taps, int outputs)
{
#if HAS_SIMD_CODE
    if (has_avx2) {
        narrow_avx2(rows, narrow, taps, outputs);
        return;
    }
#endif
    narrow_plain(rows, narrow, taps, outputs);
}

/* Scale RGB rows that are `stride` bytes apart and begin at input taps->from to the output [height, width, 3]. */
static void mix_all(const uint8_t *narrow, size_t stride, const taps_t *taps, uint8_t *out, int height, int width)
{
    int samples = 3 * width;
    for (int i = 0; i < height; i++, out += samples) {
        const uint8_t *rows = narrow + (taps->first[i] - taps->from) * stride;
        size_t at = (size_t)i * 4 * taps->quads;
        int written = 0;
#if HAS_SIMD_CODE
        if (has_avx2)
            written = mix_avx2(rows, stride, taps->split + at, taps->quads, out, samples);
#endif
        mix_plain(rows, stride, taps->weights + at, taps->quads, out, written, samples);
    }
}

#endif
