/* Loops of _jpeg_resize.h on registers of 256 bits, included once for each set of instructions.
 *
 * TARGET is the attribute of these functions, FOR(name) their names, and ADD_PAIRS(sums, pairs, weights) adds to each sum
 * of 32 bits the products of two pairs of 16 bits. Sums wrap around in the same way with all of them.
 */

TARGET static inline void FOR(store_samples)(const __m256i sums[4], uint8_t *out)
{
    __m256i front = _mm256_packs_epi32(sums[0], sums[1]), back = _mm256_packs_epi32(sums[2], sums[3]);
    _mm256_storeu_si256((__m256i *)out, _mm256_packus_epi16(front, back));
}

TARGET static inline void FOR(add)(__m256i *high, __m256i *low, __m256i pairs, const int32_t split[2])
{
    *high = ADD_PAIRS(*high, pairs, _mm256_set1_epi32(split[0]));
    *low = ADD_PAIRS(*low, pairs, _mm256_set1_epi32(split[1]));
}

TARGET static inline __m256i FOR(sum)(__m256i high, __m256i low)
{
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low), WEIGHT_BITS);
}

/* Sums of one output pixel of two rows, four of 32 bits for each row in one half of the register. */
TARGET static inline __m256i FOR(narrow_pixel)(const uint8_t *one, const uint8_t *two, const int32_t *split, int quads)
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
        FOR(add)(&high, &low, _mm256_shuffle_epi8(four, front), split);
        FOR(add)(&high, &low, _mm256_shuffle_epi8(four, back), split + 2);
    }
    return FOR(sum)(high, low);
}

TARGET static void FOR(narrow)(
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
        __m256i left = FOR(narrow_pixel)(one + at, two + at, split, quads);
        split += next * 4 * quads;
        __m256i right = FOR(narrow_pixel)(one + next_at, two + next_at, split, quads);
        split += 4 * quads;
        __m256i both = _mm256_packs_epi32(left, right);
        both = _mm256_shuffle_epi8(_mm256_packus_epi16(both, both), packed);
        /* The last two of the eight bytes fall on the next pixels, which are written next, or behind the row. */
        _mm_storeu_si64(out_one + 3 * i, _mm256_castsi256_si128(both));
        _mm_storeu_si64(out_two + 3 * i, _mm256_extracti128_si256(both, 1));
    }
}

TARGET static int FOR(mix)(
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
            FOR(add)(&high[0], &low[0], _mm256_unpacklo_epi8(left, zero), split + t);
            FOR(add)(&high[1], &low[1], _mm256_unpackhi_epi8(left, zero), split + t);
            FOR(add)(&high[2], &low[2], _mm256_unpacklo_epi8(right, zero), split + t);
            FOR(add)(&high[3], &low[3], _mm256_unpackhi_epi8(right, zero), split + t);
        }
        __m256i sums[4];
        for (int part = 0; part < 4; part++)
            sums[part] = FOR(sum)(high[part], low[part]);
        FOR(store_samples)(sums, out + i);
    }
    return i;
}
