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

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* The four tables of a colour image have 32 KiB, which fit into a first cache of 32 or 48 KiB; with 11 bits they have
 * 64 KiB, which do not, and an image takes 2 % more time. */
#define LOOK_BITS 10
#define MOST_BITS 14 /* bits of a look-up */
#define LOOKS 4 /* look-ups after one refill: LOOKS * MOST_BITS <= 56 */
#define END_OF_BLOCK 128 /* an advance beyond the end of every block */
#define SKIP_BITS 12 /* 8 KiB a table */
#define SKIPS 2 /* look-ups after one refill, and after a DC coefficient: MOST_BITS + SKIPS * MOST_SKIPPED <= 56 */
#define MOST_SKIPPED 21 /* bits of a look-up */
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
    int is_made; /* false for zeroed memory, because a table without codes is not all zeros */
    UINT8 counts[17], symbols[256]; /* JPEG table from which this one was made */
    int32_t after[17]; /* first 16 bits that are above every code of a length */
    int first_symbol[17]; /* what to add to a code of a length to get its index among the symbols */
} huffman_t;

/* Skips whole symbols of AC coefficients that nobody needs: all that begin in the next SKIP_BITS bits and have their
 * code there, with their values, which are not looked at; MOST_SKIPPED bits at most, and none behind the end of a block.
 *   bits 0..7    length of the symbols in bits      8..15   advance of all, END_OF_BLOCK included
 * Where no symbol fits, the length is 0 and the advance CANNOT_SKIP. */
typedef uint16_t skip_t;

#define CANNOT_SKIP 64

typedef struct {
    skip_t skips[1 << SKIP_BITS];
    int is_made;
} skipper_t;

#define MCU_BYTES 2560 /* no MCU has more: 10 blocks of 65 codes, each of 31 bits at most with its value */
#ifndef WINDOW_BYTES
#define WINDOW_BYTES 8192 /* MCU_BYTES at least */
#endif

/* A part of a scan without the zeros that are stuffed behind each 0xff, so that reading it needs no look at its bytes.
 * `MCU_BYTES` behind the part may be read, and hold anything. */
typedef struct {
    const uint8_t *source, *source_end; /* where the rest of the scan is, still stuffed */
    uint8_t *end;
    int has_end; /* whether a marker or the end of the data comes next in the source */
    uint8_t bytes[WINDOW_BYTES + MCU_BYTES + sizeof(uint64_t)];
} window_t;

/* Bits of a window, with the next one topmost; bits beyond `count` may be anything. */
typedef struct {
    uint64_t bits;
    int count;
    const uint8_t *next;
} bits_t;

/* Place in the block of coefficient k - 1 in zigzag order. */
static const uint8_t place[65] = {
    0,  0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40,
    48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15,
    23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

/* ---- bits ---- */

/* Move what is left of a window from `next` on to its beginning, and fill it up to the next marker. */
static void fill_window(window_t *window, const uint8_t *next)
{
    size_t left = window->end - next;
    memmove(window->bytes, next, left);
    uint8_t *to = window->bytes + left, *full = window->bytes + WINDOW_BYTES;
    const uint8_t *from = window->source;
    while (to < full && from < window->source_end) {
        size_t there = window->source_end - from, room = full - to, most = there < room ? there : room;
        const uint8_t *found = memchr(from, 0xff, most);
        size_t plain = found ? (size_t)(found - from) : most;
        memcpy(to, from, plain);
        to += plain;
        from += plain;
        if (found && window->source_end - from >= 2 && !from[1]) {
            *to++ = 0xff;
            from += 2;
        } else if (found)
            break;
    }
    window->source = from;
    window->end = to;
    window->has_end = to < full;
}

static inline __attribute__((always_inline)) uint64_t load_word(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Fill the register to 56 bits or more. */
static inline __attribute__((always_inline)) void refill(bits_t *in)
{
    in->bits |= load_word(in->next) >> in->count;
    in->next += (63 - in->count) >> 3;
    in->count |= 56;
}

static inline __attribute__((always_inline)) void drop(bits_t *in, int count)
{
    in->bits <<= count;
    in->count -= count;
}

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

/* A symbol is 16 * run + size: `run` zeros, then a value of `size` bits. 0xf0 is a run of 16 zeros, 0 ends a block. */
static int advance_of(int symbol)
{
    return symbol & 15 || symbol == 0xf0 ? (symbol >> 4) + 1 : END_OF_BLOCK;
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
    if (huffman->is_made && memcmp(huffman->counts, table->bits, sizeof huffman->counts) == 0
        && memcmp(huffman->symbols, table->huffval, sizeof huffman->symbols) == 0)
        return 0;
    huffman->is_made = 1;
    memcpy(huffman->counts, table->bits, sizeof huffman->counts);
    memcpy(huffman->symbols, table->huffval, sizeof huffman->symbols);
    for (int i = 0; i < 1 << LOOK_BITS; i++)
        huffman->looks[i] = make_look(0, 0, 0, 0, 0);
    int code = 0, index = 0;
    for (int bits = 1; bits <= 16; bits++, code <<= 1) {
        huffman->first_symbol[bits] = index - code;
        for (int i = 0; i < table->bits[bits]; i++, code++, index++)
            if (bits <= LOOK_BITS)
                add_looks(huffman->looks, bits, code, table->huffval[index]);
        huffman->after[bits] = code << (16 - bits);
    }
    if (in_pairs)
        pair_looks(huffman->looks);
    return 1;
}

/* Put a symbol in front of what the `bits` bits behind it let skip; alone where both are more than a skip can be. */
static void prepend_skips(skip_t *restrict to, const skip_t *restrict rest, int bits, unsigned length, unsigned advance)
{
    skip_t symbol = advance << 8 | length;
    for (int i = 0; i < 1 << bits; i++) {
        skip_t other = rest[i];
        int fits = (other & 0xff) + length <= MOST_SKIPPED && (other >> 8 & 63) + advance < 64;
        to[i] = fits ? symbol + other : symbol;
    }
}

/* Fill `skips` for the case that only `bits` bits are known, from the tables for fewer bits: table n begins at 1 << n. */
static void make_skips_of(skip_t *tables, int bits, const JHUFF_TBL *table)
{
    skip_t *skips = tables + (1 << bits);
    memset(skips, 0, sizeof *skips << bits);
    int code = 0, index = 0;
    for (int code_bits = 1; code_bits <= bits; code_bits++, code <<= 1)
        for (int i = 0; i < table->bits[code_bits]; i++, code++, index++) {
            int symbol = table->huffval[index], length = code_bits + (symbol & 15), advance = advance_of(symbol);
            int rest = length < bits && advance < END_OF_BLOCK ? bits - length : 0;
            if (length > MOST_SKIPPED)
                continue;
            skip_t *to = skips + (code << (bits - code_bits));
            for (int values = 1 << (bits - code_bits - rest); values; values--, to += 1 << rest)
                prepend_skips(to, tables + (1 << rest), rest, length, advance);
        }
}

/* Make a table for skipping, from those that know fewer bits. */
static void make_skipper(skipper_t *skipper, const JHUFF_TBL *table)
{
    skip_t tables[2 << SKIP_BITS];
    for (int bits = 0; bits <= SKIP_BITS; bits++)
        make_skips_of(tables, bits, table);
    for (int i = 0; i < 1 << SKIP_BITS; i++) {
        skip_t skip = tables[(1 << SKIP_BITS) + i];
        skipper->skips[i] = skip ? skip : CANNOT_SKIP << 8;
    }
    skipper->is_made = 1;
}

/* Return the length of the code that 16 `bits` begin with plus 256 times its symbol; 17 if there is no such code. */
static inline int find_code(const huffman_t *huffman, int bits)
{
    /* A loop that ends with the code's length would be mispredicted. */
    int length = LOOK_BITS + 1;
    for (int shorter = LOOK_BITS + 1; shorter <= 16; shorter++)
        length += bits >= huffman->after[shorter];
    if (length > 16)
        return 17;
    return length | huffman->symbols[(huffman->first_symbol[length] + (bits >> (16 - length))) & 255] << 8;
}

/* Read one symbol that does not fit into a table entry; return its advance, 0 if there is no such code. */
static inline __attribute__((always_inline)) unsigned read_long(
    bits_t *in, const huffman_t *huffman, look_t look, int *value)
{
    refill(in);
    unsigned bits = first_bits(look), size = first_value(look), advance = first_advance(look);
    if (UNLIKELY(!bits)) {
        int code = find_code(huffman, in->bits >> 48);
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
