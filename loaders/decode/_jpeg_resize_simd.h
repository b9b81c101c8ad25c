/* Loops of _jpeg_resize.h on registers of 256 or 512 bits, included once for each set of instructions.
 *
 * TARGET is the attribute of these functions, FOR(name) their names, VECTOR the type of a register, V(name) an
 * operation on it, and ADD_PAIRS(sums, pairs, weights) adds to each sum of 32 bits the products of two pairs of 16 bits.
 * FOR(load) and FOR(store) move a register; FOR(load_lanes) and FOR(store_lanes) move its LANES parts of 128 bits, each
 * of which holds a row of its own. Sums wrap around in the same way with all instructions.
 */

TARGET static inline void FOR(add)(VECTOR *high, VECTOR *low, VECTOR pairs, const int32_t split[2])
{
    *high = ADD_PAIRS(*high, pairs, V(set1_epi32)(split[0]));
    *low = ADD_PAIRS(*low, pairs, V(set1_epi32)(split[1]));
}

TARGET static inline VECTOR FOR(sum)(VECTOR high, VECTOR low)
{
    return V(srai_epi32)(V(add_epi32)(V(slli_epi32)(high, LOW_BITS), low), WEIGHT_BITS);
}

/* Sums of one output pixel of LANES rows, four of 32 bits for each row in its part of the register. */
TARGET static inline __attribute__((always_inline)) VECTOR FOR(narrow_pixel)(const uint8_t *pixels, size_t row_bytes, const int32_t *split, int quads)
{
    /* Pixels 0 and 1, or 2 and 3, of four: r r g g b b x x, as 16 bits. */
    const VECTOR front = EACH_LANE(_mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
    const VECTOR back = EACH_LANE(_mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
    VECTOR high = V(set1_epi32)(0), low = V(set1_epi32)(HALF);
    for (int quad = 0; quad < quads; quad++, split += 4) {
        VECTOR four = FOR(load_lanes)(pixels + quad * 4 * PIXEL_BYTES, row_bytes);
        FOR(add)(&high, &low, V(shuffle_epi8)(four, front), split);
        FOR(add)(&high, &low, V(shuffle_epi8)(four, back), split + 2);
    }
    return FOR(sum)(high, low);
}

TARGET static inline __attribute__((always_inline)) void FOR(narrow_by)(
    const uint8_t *rows, size_t row_bytes, uint8_t *narrow, size_t stride, const taps_t *taps, int outputs,
    const int quads)
{
    /* Two pixels r g b x: r g b r g b. */
    const VECTOR packed = EACH_LANE(_mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const int32_t *first = taps->first, *split = taps->split;
    const int from = taps->from;
    for (int i = 0; i < outputs; i += 2) {
        int next = i + 1 < outputs;
        int at = (first[i] - from) * PIXEL_BYTES, next_at = (first[i + next] - from) * PIXEL_BYTES;
        VECTOR left = FOR(narrow_pixel)(rows + at, row_bytes, split, quads);
        split += next * 4 * quads;
        VECTOR right = FOR(narrow_pixel)(rows + next_at, row_bytes, split, quads);
        split += 4 * quads;
        VECTOR both = V(packs_epi32)(left, right);
        /* The last two of the eight bytes fall on the next pixels, which are written next, or behind the row. */
        FOR(store_lanes)(narrow + 3 * i, stride, V(shuffle_epi8)(V(packus_epi16)(both, both), packed));
    }
}

/* Scale LANES rows. */
TARGET static void FOR(narrow)(
    const uint8_t *rows, size_t row_bytes, uint8_t *narrow, size_t stride, const taps_t *taps, int outputs)
{
    if (taps->quads == 1)
        FOR(narrow_by)(rows, row_bytes, narrow, stride, taps, outputs, 1);
    else if (taps->quads == 2)
        FOR(narrow_by)(rows, row_bytes, narrow, stride, taps, outputs, 2);
    else
        FOR(narrow_by)(rows, row_bytes, narrow, stride, taps, outputs, taps->quads);
}

/* Compute an output row; return 0 where it is shorter than a register. */
TARGET static int FOR(mix)(
    const uint8_t *rows, size_t stride, const int32_t *split, int quads, uint8_t *out, int samples)
{
    const int step = sizeof(VECTOR);
    const VECTOR zero = V(set1_epi32)(0), half = V(set1_epi32)(HALF);
    if (samples < step)
        return 0;
    for (int next = 0; next < samples; next += step) {
        int at = next + step <= samples ? next : samples - step; /* the last step may repeat samples */
        VECTOR high[4] = {zero, zero, zero, zero}, low[4] = {half, half, half, half};
        for (int t = 0; t < 4 * quads; t += 2) {
            const uint8_t *row = rows + t * stride + at;
            VECTOR one = FOR(load)(row), two = FOR(load)(row + stride);
            VECTOR left = V(unpacklo_epi8)(one, two), right = V(unpackhi_epi8)(one, two);
            FOR(add)(&high[0], &low[0], V(unpacklo_epi8)(left, zero), split + t);
            FOR(add)(&high[1], &low[1], V(unpackhi_epi8)(left, zero), split + t);
            FOR(add)(&high[2], &low[2], V(unpacklo_epi8)(right, zero), split + t);
            FOR(add)(&high[3], &low[3], V(unpackhi_epi8)(right, zero), split + t);
        }
        VECTOR front = V(packs_epi32)(FOR(sum)(high[0], low[0]), FOR(sum)(high[1], low[1]));
        VECTOR back = V(packs_epi32)(FOR(sum)(high[2], low[2]), FOR(sum)(high[3], low[3]));
        FOR(store)(out + at, V(packus_epi16)(front, back));
    }
    return 1;
}
