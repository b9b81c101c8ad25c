/* Huffman codes of a baseline JPEG's scan: its bits, and tables for skipping whole coefficients.
 *
 * Only clean streams are read: where something is odd (an early marker, a code that does not exist, a block that is too
 * long), libjpeg reads the image again and decides what to make of it. _check.c and the loaders' decoder include this.
 */

#ifndef DATAPREP_JPEG_CODES_H
#define DATAPREP_JPEG_CODES_H

#include <stdint.h>
#include <string.h>

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#define END_OF_BLOCK 128 /* an advance beyond the end of every block */
#define SKIP_BITS 12 /* 8 KiB a table */
#define SKIPS 2 /* look-ups after one refill, and after a DC coefficient: MOST_BITS + SKIPS * MOST_SKIPPED <= 56 */
#define MOST_SKIPPED 21 /* bits of a look-up */

typedef struct {
    int is_made; /* false for zeroed memory, because a table without codes is not all zeros */
    uint8_t counts[17], symbols[256]; /* numbers of codes by length, and all symbols, as a JPEG has them */
    int32_t after[17]; /* first 16 bits that are above every code of a length */
    int first_symbol[17]; /* what to add to a code of a length to get its index among the symbols */
} codes_t;

/* Skips whole symbols of AC coefficients that nobody needs: all that begin in the next SKIP_BITS bits and have their
 * code there, with their values, which are not looked at; MOST_SKIPPED bits at most, and none behind the end of a block.
 *   bits 0..5    length of the symbols in bits      8..15   advance of all, END_OF_BLOCK included
 * Where no symbol fits, the length is 0 and the advance CANNOT_SKIP. */
typedef uint16_t skip_t;

#define CANNOT_SKIP (END_OF_BLOCK + 64) /* from no place does it lead to the end of a block */

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

/* ---- tables ---- */

/* A symbol is 16 * run + size: `run` zeros, then a value of `size` bits. 0xf0 is a run of 16 zeros, 0 ends a block. */
static int advance_of(int symbol)
{
    return symbol & 15 || symbol == 0xf0 ? (symbol >> 4) + 1 : END_OF_BLOCK;
}

/* Make the codes of a JPEG's table, which was checked. Return 0 where it is the same as before. */
static int make_codes(codes_t *codes, const uint8_t *counts, const uint8_t *symbols)
{
    if (codes->is_made && memcmp(codes->counts, counts, sizeof codes->counts) == 0
        && memcmp(codes->symbols, symbols, sizeof codes->symbols) == 0)
        return 0;
    codes->is_made = 1;
    memcpy(codes->counts, counts, sizeof codes->counts);
    memcpy(codes->symbols, symbols, sizeof codes->symbols);
    int code = 0, index = 0;
    for (int bits = 1; bits <= 16; bits++, code <<= 1) {
        codes->first_symbol[bits] = index - code;
        code += counts[bits];
        index += counts[bits];
        codes->after[bits] = code << (16 - bits);
    }
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

/* Fill `skips` for the case that only `bits` bits are known and begin with one of these codes; behind it stands what
 * `tables` have for fewer bits, of which table n begins at 1 << n. */
static void add_skips(skip_t *skips, int bits, const codes_t *codes, int is_dc, const skip_t *tables)
{
    memset(skips, 0, sizeof *skips << bits);
    int code = 0, index = 0;
    for (int code_bits = 1; code_bits <= bits; code_bits++, code <<= 1)
        for (int i = 0; i < codes->counts[code_bits]; i++, code++, index++) {
            int symbol = codes->symbols[index], length = code_bits + (symbol & 15);
            int advance = is_dc ? 1 : advance_of(symbol);
            int rest = length < bits && advance < END_OF_BLOCK ? bits - length : 0;
            if (length > MOST_SKIPPED)
                continue;
            skip_t *to = skips + (code << (bits - code_bits));
            for (int values = 1 << (bits - code_bits - rest); values; values--, to += 1 << rest)
                prepend_skips(to, tables + (1 << rest), rest, length, advance);
        }
}

/* Make the table for skipping AC coefficients, and with `dc` another one for skipping a block's DC coefficient, too. */
static void make_skips(skip_t *skips, const codes_t *ac, skip_t *dc_skips, const codes_t *dc)
{
    skip_t tables[2 << SKIP_BITS];
    for (int bits = 0; bits <= SKIP_BITS; bits++)
        add_skips(tables + (1 << bits), bits, ac, 0, tables);
    memcpy(skips, tables + (1 << SKIP_BITS), sizeof *skips << SKIP_BITS);
    if (dc)
        add_skips(dc_skips, SKIP_BITS, dc, 1, tables);
    for (int i = 0; i < 1 << SKIP_BITS; i++) {
        skips[i] = skips[i] ? skips[i] : CANNOT_SKIP << 8;
        if (dc)
            dc_skips[i] = dc_skips[i] ? dc_skips[i] : CANNOT_SKIP << 8;
    }
}

/* Return the length of the code that 16 `bits` begin with plus 256 times its symbol; 17 if there is no such code. It has
 * `length` bits at least. */
static inline int find_code(const codes_t *codes, int length, int bits)
{
    /* A loop that ends with the code's length would be mispredicted. */
    for (int shorter = length; shorter <= 16; shorter++)
        length += bits >= codes->after[shorter];
    if (length > 16)
        return 17;
    return length | codes->symbols[(codes->first_symbol[length] + (bits >> (16 - length))) & 255] << 8;
}

#endif
