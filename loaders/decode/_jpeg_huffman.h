/* Reads the Huffman codes of a baseline JPEG in place of libjpeg's own reader, two coefficients for each table look-up.
 *
 * Half of the time to load an image goes into these codes, and this reader takes 0.6 of libjpeg's time for them. It
 * reads clean streams only: where something is odd (an early marker, a code that does not exist, a block that is too
 * long), libjpeg reads the image again and decides what to make of it.
 *
 * How it works. The next LOOK_BITS bits of the stream index a table. An entry (a `look_t`) says which one or two whole
 * symbols begin there, how many bits they take with their values, and how far they advance in the block. So one look-up
 * gives up to two coefficients, and four look-ups need only one refill of the 64-bit register. `read_long` reads the
 * symbols that do not fit into an entry, because of a long code or a large value. Blocks that no view needs are passed
 * over with a smaller entry (a `skip_t`), which has no values and therefore serves more symbols.
 */

#ifndef LOADERS_JPEG_HUFFMAN_H
#define LOADERS_JPEG_HUFFMAN_H

#include <stdio.h>

#include <jpeglib.h>

#include "../../dataprep/formats/_jpeg_codes.h"

/* The four tables of a colour image have 32 KiB, which fit into a first cache of 32 or 48 KiB; with 11 bits they have
 * 64 KiB, which do not, and an image takes 2 % more time. */
#define LOOK_BITS 10
#define MOST_BITS 14 /* bits of a look-up */
#define LOOKS 4 /* look-ups after one refill: LOOKS * MOST_BITS <= 56 */
#define MOST_DC (1 << 20) /* far beyond 8-bit images; keeps the sum of a hostile file from overflowing */

/* One entry of a table: one or two symbols with their values, as they stand in LOOK_BITS bits. An advance is the number
 * of coefficients from the next one of the block to the symbol's own, inclusive. With one symbol, `second` repeats it.
 *   bits 0..5    length of all symbols with their values, in bits
 *   bits 6..11   63 less the number of bits of the value that lie behind the LOOK_BITS: 63 for two symbols
 *   bits 12..15  length of the first symbol
 *   bits 16..23  advance of the first symbol                           24..31  advance of both
 *   bits 32..47  value of the first symbol                             48..63  value of the second
 * The bits of a value behind the LOOK_BITS are zeros in the entry, and added by `low_bits`. Where one symbol has more
 * than MOST_BITS, the length of all is 0, that of the first is that of its code, and the first value is the size of the
 * value. Where not even the code fits into LOOK_BITS, the length of the first is 0, too. */
typedef uint64_t look_t;

static inline unsigned look_bits(look_t look) { return look & 63; }
static inline unsigned first_bits(look_t look) { return look >> 12 & 15; }
static inline unsigned first_advance(look_t look) { return look >> 16 & 0xff; }
static inline unsigned both_advance(look_t look) { return (uint32_t)look >> 24; }
static inline int first_value(look_t look) { return (int16_t)(look >> 32); }
static inline int second_value(look_t look) { return (int16_t)(look >> 48); }

typedef struct {
    look_t looks[1 << LOOK_BITS];
    codes_t codes;
} huffman_t;

typedef struct {
    skip_t skips[1 << SKIP_BITS];
    int is_made;
} skipper_t;

/* Place in the block of coefficient k - 1 in zigzag order. */
static const uint8_t place[65] = {
    0,  0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40,
    48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15,
    23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

/* Return a symbol's value from its `size` bits: those that begin with 0 are negative. */
static inline int extend(int bits, int size)
{
    return bits < (1 << size) >> 1 ? bits - (1 << size) + 1 : bits;
}

/* Return the bits of an entry's value that lie behind the LOOK_BITS. */
static inline __attribute__((always_inline)) int low_bits(const bits_t *in, look_t look)
{
    return in->bits << LOOK_BITS >> 1 >> (look >> 6 & 63);
}

/* ---- tables ---- */

static look_t make_look(int all_bits, int low_bits, int first_bits, look_t advance, int value)
{
    look_t look = all_bits | (63 - low_bits) << 6 | first_bits << 12 | advance << 16 | advance << 24;
    return look | (look_t)(uint16_t)value << 32 | (look_t)(uint16_t)value << 48;
}

/* Enter one symbol into all entries whose bits begin with its code; its value is in the bits that follow. */
static void add_looks(look_t *looks, int code_bits, int code, int symbol)
{
    int size = symbol & 15, all = code_bits + size, advance = advance_of(symbol);
    looks += code << (LOOK_BITS - code_bits);
    int low = all > LOOK_BITS ? all - LOOK_BITS : 0; /* bits of the value behind those of the index */
    for (int i = 0; i < 1 << (LOOK_BITS - code_bits); i++)
        looks[i] = all > MOST_BITS || (low && low == size) ? make_look(0, 0, code_bits, advance, size)
                                   : make_look(all, low, all, advance, extend(i << low >> (LOOK_BITS + low - all), size));
}

/* Join an entry's symbol with the one that the bits behind it hold, where both fit into LOOK_BITS. */
static void pair_looks(look_t *looks)
{
    static const look_t keep = 0x0000ffff00ffffc0;
    look_t single[1 << LOOK_BITS];
    memcpy(single, looks, sizeof single);
    for (int i = 0; i < 1 << LOOK_BITS; i++) {
        look_t first = single[i], second;
        if (!look_bits(first) || look_bits(first) >= LOOK_BITS || first_advance(first) == END_OF_BLOCK)
            continue;
        second = single[i << first_bits(first) & ((1 << LOOK_BITS) - 1)];
        int all = first_bits(first) + first_bits(second);
        if (look_bits(second) && all <= LOOK_BITS)
            looks[i] = (first & keep) | all | (look_t)(first_advance(first) + first_advance(second)) << 24
                     | (second & (look_t)0xffff << 48);
    }
}

/* Make our table from a JPEG's, which libjpeg has checked. Return 0 where it is the same as for the image before. */
static int make_huffman(huffman_t *huffman, const JHUFF_TBL *table, int in_pairs)
{
    if (!make_codes(&huffman->codes, table->bits, table->huffval))
        return 0;
    for (int i = 0; i < 1 << LOOK_BITS; i++)
        huffman->looks[i] = make_look(0, 0, 0, 0, 0);
    int code = 0, index = 0;
    for (int bits = 1; bits <= LOOK_BITS; bits++, code <<= 1)
        for (int i = 0; i < table->bits[bits]; i++, code++)
            add_looks(huffman->looks, bits, code, table->huffval[index++]);
    if (in_pairs)
        pair_looks(huffman->looks);
    return 1;
}

/* Read one symbol that does not fit into a table entry; return its advance, 0 if there is no such code. */
static inline __attribute__((always_inline)) unsigned read_long(
    bits_t *in, const huffman_t *huffman, look_t look, int *value)
{
    refill(in);
    unsigned bits = first_bits(look), size = first_value(look), advance = first_advance(look);
    if (UNLIKELY(!bits)) {
        int code = find_code(&huffman->codes, LOOK_BITS + 1, in->bits >> 48);
        bits = code & 0xff;
        if (bits > 16)
            return 0;
        size = code >> 8 & 15;
        advance = advance_of(code >> 8);
    }
    drop(in, bits);
    *value = size ? extend(in->bits >> (64 - size), size) : 0;
    drop(in, size);
    return advance;
}

/* ---- blocks ---- */

/* Read the DC coefficient of a block: the last block's plus the value that is read. Return whether there is such a code. */
static inline __attribute__((always_inline)) int read_dc(bits_t *in, const huffman_t *dc, int *last_dc)
{
    int value;
    refill(in);
    look_t look = dc->looks[in->bits >> (64 - LOOK_BITS)];
    if (LIKELY(look_bits(look))) {
        value = first_value(look) + low_bits(in, look);
        drop(in, look_bits(look));
    } else {
        if (!read_long(in, dc, look, &value))
            return 0;
        refill(in);
    }
    *last_dc += value;
    return 1;
}

/* Read the AC coefficients of a block from number `next` on, and return whether they were clean. Without `keep` they are
 * read over, not stored. */
static inline __attribute__((always_inline)) int read_ac(
    bits_t *bits, const huffman_t *ac, unsigned next, JCOEF *block, const int keep)
{
    bits_t in = *bits;
    for (;;) {
        refill(&in);
        for (int n = 0; n < LOOKS; n++) {
            look_t look = ac->looks[in.bits >> (64 - LOOK_BITS)];
            int low = low_bits(&in, look);
            unsigned first = next + first_advance(look), second = next + both_advance(look);
            if (UNLIKELY(!look_bits(look))) {
                int value = 0;
                unsigned advance = read_long(&in, ac, look, &value);
                next += advance;
                if (keep && next <= 64)
                    block[place[next]] = (JCOEF)value;
                if (next >= 64 || !advance)
                    goto done;
                break;
            }
            if (UNLIKELY(second >= 64)) {
                /* The block ends with the first or the second symbol. There is no branch on which one, because it would
                 * be mispredicted half of the time: both stores are made. The value of END_OF_BLOCK is 0, and the last
                 * coefficient of a block that ends early is 0, too. */
                int one = first >= 64;
                drop(&in, one ? first_bits(look) : look_bits(look));
                next = one ? first : second;
                if (keep) {
                    block[place[first < 64 ? first : 64]] = (JCOEF)first_value(look);
                    block[63] = (JCOEF)((one ? first_value(look) : second_value(look)) + low);
                }
                goto done;
            }
            if (keep) {
                block[place[first]] = (JCOEF)first_value(look);
                block[place[second]] = (JCOEF)(second_value(look) + low);
            }
            drop(&in, look_bits(look));
            next = second;
        }
    }
done:
    *bits = in;
    return next == 64 || next > END_OF_BLOCK;
}

/* Read one block and return whether it was clean. */
static inline __attribute__((always_inline)) int read_block(
    bits_t *in, const huffman_t *dc, const huffman_t *ac, int *last_dc, JCOEF *block)
{
    if (!read_dc(in, dc, last_dc))
        return 0;
    block[0] = (JCOEF)*last_dc;
    return read_ac(in, ac, 1, block, 1);
}

/* Read over one block but for its DC coefficient, and return whether it was clean; symbol by symbol without `skips`. */
static inline __attribute__((always_inline)) int skip_block(
    bits_t *bits, const huffman_t *dc, const huffman_t *ac, const skip_t *skips, int *last_dc)
{
    bits_t in = *bits;
    if (!read_dc(&in, dc, last_dc))
        return 0;
    unsigned next = 1;
    for (; skips; refill(&in))
        for (int n = 0; n < SKIPS; n++) {
            skip_t skip = skips[in.bits >> (64 - SKIP_BITS)];
            unsigned after = next + (skip >> 8);
            if (UNLIKELY(after >= 64)) {
                /* The symbols end the block, or none could be skipped, or one of them lies beyond the block's end. */
                if (UNLIKELY(skip == CANNOT_SKIP << 8)) {
                    int value;
                    unsigned advance = read_long(&in, ac, ac->looks[in.bits >> (64 - LOOK_BITS)], &value);
                    next += advance;
                    if (next < 64 && advance)
                        break;
                    *bits = in;
                    return next == 64 || next > END_OF_BLOCK;
                }
                if (UNLIKELY(after != 64 && (after < END_OF_BLOCK || after >= END_OF_BLOCK + 64)))
                    goto one_by_one;
                drop(&in, skip & 0xff);
                *bits = in;
                return 1;
            }
            drop(&in, skip & 0xff);
            next = after;
        }
one_by_one:
    *bits = in;
    return read_ac(bits, ac, next, NULL, 0);
}

#endif
