/* Decodes what a view needs of a JPEG and resizes it into a batch, without Python's lock.
 *
 * Decoding: libjpeg-turbo, the accurate integer DCT and smooth chroma upsampling, as Pillow and simplejpeg have them.
 * Rows above the view are only entropy-decoded, columns beside it neither transformed nor converted, rows below it not
 * read; inside the view every sample equals that of a full decode.
 *
 * Resizing: separable, horizontal pass first, 8 bits between the passes, weights of 22 bits: the arithmetic of Pillow's
 * Image.resize, so that results are equal to its bit for bit, on every processor.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#if defined(__has_include)
#if __has_include(<jpegint.h>) && defined(__GNUC__)
#define HAS_HUFFMAN_CODE 1
#include <jpegint.h>
#include "_jpeg_huffman.h"
#endif
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_AVX2_CODE 1
#include <immintrin.h>
#endif

#define MAX_PIXELS 100000000
/* As dataprep/images.py: a small progressive file can ask for any number of passes over all its pixels. */
#define MAX_SCANS 500
#define MAX_SCAN_PIXELS 5000000000LL
#define MAX_SIDE 65535

/* Pixels: one for the neighbour, two so that libjpeg does not take a cut of one pixel for an image without neighbours. */
#define RIGHT_MARGIN 2

#define WEIGHT_BITS 22
#define LOW_BITS 11 /* a weight is high * 2^11 + low; both fit the 16-bit operands of a multiply-add */
#define PIXEL_BYTES 4 /* RGBX: four samples, so that a pixel is one 32-bit word */
#define SPARE_PIXELS 4 /* taps of weight 0 may reach this far behind a row, or rows behind the last one */

typedef enum { BILINEAR, BICUBIC, BILINEAR_NO_ANTIALIAS } filter_t;

/* loaders.augment.View */
typedef struct {
    int32_t top, left, height, width, resized_height, resized_width, out_top, out_left, flip;
} view_t;

/* One axis: output i is the sum over t < 2 * pairs of weights[i][t] * input[first[i] + t]. */
typedef struct {
    int pairs;
    int from, to;     /* all inputs that have a weight */
    int32_t *first;
    int32_t *weights; /* [outputs][2 * pairs] */
    int32_t *split;   /* [outputs][pairs][high, low]: each two 16-bit weights side by side */
} taps_t;

typedef struct {
    void *data;
    size_t bytes;
} buffer_t;

#if HAS_HUFFMAN_CODE
typedef struct {
    bits_t bits;
    int last_dc[MAX_COMPS_IN_SCAN];
    JDIMENSION column, first_column, last_column; /* in MCUs; others than first .. last are not looked at */
    unsigned int until_restart, restart;
    huffman_t dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
} scan_t;
#endif

typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char reason[JMSG_LENGTH_MAX];
    buffer_t row_taps, column_taps, rows, narrow;
#if HAS_HUFFMAN_CODE
    scan_t scan;
#endif
} decoder_t;

enum { FAILED = 1, GIVEN_UP = 2 };

/* ---- errors ---- */

static void fail(decoder_t *decoder, const char *reason)
{
    snprintf(decoder->reason, sizeof decoder->reason, "%s", reason);
    longjmp(decoder->failed, FAILED);
}

static void on_error(j_common_ptr jpeg)
{
    decoder_t *decoder = jpeg->client_data;
    jpeg->err->format_message(jpeg, decoder->reason);
    longjmp(decoder->failed, FAILED);
}

/* Corrupt data is decoded as far as it goes, as libjpeg's own tools do. */
static void on_message(j_common_ptr jpeg, int level)
{
    if (level < 0)
        jpeg->err->num_warnings++;
}

static void on_progress(j_common_ptr common)
{
    j_decompress_ptr jpeg = (j_decompress_ptr)common;
    int64_t scans = jpeg->input_scan_number;
    if (scans > MAX_SCANS || scans * jpeg->image_width * jpeg->image_height > MAX_SCAN_PIXELS)
        fail(common->client_data, "too many scans");
}

static void *reserve(decoder_t *decoder, buffer_t *buffer, size_t bytes)
{
    if (bytes > buffer->bytes) {
        free(buffer->data);
        buffer->data = calloc(1, bytes);
        buffer->bytes = buffer->data ? bytes : 0;
        if (!buffer->data)
            fail(decoder, "out of memory");
    }
    return buffer->data;
}

/* ---- weights ---- */

static double bicubic(double x)
{
    const double a = -0.5;
    if (x < 0)
        x = -x;
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

static double triangle(double x)
{
    if (x < 0)
        x = -x;
    return x < 1 ? 1 - x : 0;
}

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

/* Outputs offset .. offset + outputs of a box of `inputs` pixels that is scaled to `resized`; backwards if mirrored. */
static taps_t make_taps(
    decoder_t *decoder, buffer_t *buffer, filter_t filter, int inputs, int resized, int offset, int outputs, int mirrored)
{
    double scale = (double)inputs / resized;
    double stretch = filter == BILINEAR_NO_ANTIALIAS || scale < 1 ? 1 : scale;
    double support = (filter == BICUBIC ? 2 : 1) * stretch;
    double (*kernel)(double) = filter == BICUBIC ? bicubic : triangle;
    taps_t taps = {.pairs = 0};
    for (int i = 0; i < outputs; i++) {
        double center = (offset + i + 0.5) * scale;
        int first = window_first(center, support), stop = window_stop(center, support, inputs);
        if (i == 0)
            taps.from = first;
        taps.to = stop;
        if ((stop - first + 1) / 2 > taps.pairs)
            taps.pairs = (stop - first + 1) / 2;
    }
    size_t each = 2 * (size_t)taps.pairs;
    double *exact = reserve(decoder, buffer, each * sizeof(double) + outputs * (1 + 2 * each) * sizeof(int32_t));
    taps.first = (int32_t *)(exact + each);
    taps.weights = taps.first + outputs;
    taps.split = taps.weights + outputs * each;

    for (int i = 0; i < outputs; i++) {
        double center = (offset + (mirrored ? outputs - 1 - i : i) + 0.5) * scale;
        int first = window_first(center, support), count = window_stop(center, support, inputs) - first;
        int32_t *weights = taps.weights + i * each, *split = taps.split + i * each;
        double sum = 0;
        for (int t = 0; t < count; t++)
            sum += exact[t] = kernel((t + first - center + 0.5) * (1 / stretch));
        for (int t = 0; t < (int)each; t++) {
            double weight = t < count ? exact[t] / sum * (1 << WEIGHT_BITS) : 0;
            weights[t] = (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
        }
        for (int t = 0; t < (int)each; t += 2) {
            uint32_t even = weights[t], odd = weights[t + 1], mask = (1 << LOW_BITS) - 1;
            split[t] = (uint16_t)(weights[t] >> LOW_BITS) | (uint32_t)(weights[t + 1] >> LOW_BITS) << 16;
            split[t + 1] = (even & mask) | (odd & mask) << 16;
        }
        taps.first[i] = first;
    }
    return taps;
}

/* ---- resizing ---- */

static uint8_t to_sample(int32_t sum)
{
    sum = (sum + (1 << (WEIGHT_BITS - 1))) >> WEIGHT_BITS;
    return sum < 0 ? 0 : sum > 255 ? 255 : sum;
}

/* Two RGBX rows that begin at input `from` to two RGB rows. */
static void narrow_rows(const uint8_t *const rows[2], uint8_t *const narrow[2], const taps_t *taps, int outputs)
{
    for (int row = 0; row < 2; row++)
        for (int i = 0; i < outputs; i++) {
            const uint8_t *pixel = rows[row] + (taps->first[i] - taps->from) * PIXEL_BYTES;
            const int32_t *weights = taps->weights + (size_t)i * 2 * taps->pairs;
            int32_t red = 0, green = 0, blue = 0;
            for (int t = 0; t < 2 * taps->pairs; t++, pixel += PIXEL_BYTES) {
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

/* Samples from .. samples of one output row, of rows `stride` bytes apart. */
static void mix_rows(
    const uint8_t *rows, size_t stride, const int32_t *weights, int pairs, uint8_t *out, int from, int samples)
{
    for (int i = from; i < samples; i++) {
        int32_t sum = 0;
        for (int t = 0; t < 2 * pairs; t++)
            sum += weights[t] * rows[t * stride + i];
        out[i] = to_sample(sum);
    }
}

#if HAS_AVX2_CODE

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i combine(__m256i high, __m256i low)
{
    __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low);
    sum = _mm256_add_epi32(sum, _mm256_set1_epi32(1 << (WEIGHT_BITS - 1)));
    return _mm256_srai_epi32(sum, WEIGHT_BITS);
}

/* As narrow_rows: each half of a register holds one of the rows, a lane the sums of one colour. */
AVX2 static void narrow_rows_avx2(const uint8_t *const rows[2], uint8_t *const narrow[2], const taps_t *taps, int outputs)
{
    /* Pixels 0 and 1, or 2 and 3, of four: r r g g b b x x, as 16 bits. */
    const __m256i front = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
    const __m256i back = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
    for (int i = 0; i < outputs; i++) {
        size_t at = (size_t)(taps->first[i] - taps->from) * PIXEL_BYTES;
        const int32_t *split = taps->split + (size_t)i * 2 * taps->pairs;
        __m256i high = _mm256_setzero_si256(), low = high;
        for (int pair = 0; pair < taps->pairs; pair += 2, at += 4 * PIXEL_BYTES, split += 4) {
            __m256i four = _mm256_inserti128_si256(
                _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(rows[0] + at))),
                _mm_loadu_si128((const __m128i *)(rows[1] + at)), 1);
            __m256i two = _mm256_shuffle_epi8(four, front);
            high = _mm256_add_epi32(high, _mm256_madd_epi16(two, _mm256_set1_epi32(split[0])));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(two, _mm256_set1_epi32(split[1])));
            if (pair + 1 == taps->pairs)
                break;
            two = _mm256_shuffle_epi8(four, back);
            high = _mm256_add_epi32(high, _mm256_madd_epi16(two, _mm256_set1_epi32(split[2])));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(two, _mm256_set1_epi32(split[3])));
        }
        __m256i sums = combine(high, low);
        sums = _mm256_packs_epi32(sums, sums);
        sums = _mm256_packus_epi16(sums, sums);
        /* The fourth byte falls on the next pixel, which is written next, or behind the row. */
        uint32_t pixels[2] = {_mm256_extract_epi32(sums, 0), _mm256_extract_epi32(sums, 4)};
        memcpy(narrow[0] + 3 * i, &pixels[0], 4);
        memcpy(narrow[1] + 3 * i, &pixels[1], 4);
    }
}

/* As mix_rows, from sample 0; returns how many it wrote, the rest is less than a register. */
AVX2 static int mix_rows_avx2(
    const uint8_t *rows, size_t stride, const int32_t *split, int pairs, uint8_t *out, int samples)
{
    const __m256i zero = _mm256_setzero_si256();
    int i = 0;
    for (; i + 32 <= samples; i += 32) {
        __m256i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
        for (int pair = 0; pair < pairs; pair++) {
            const uint8_t *row = rows + 2 * pair * stride + i;
            __m256i even = _mm256_loadu_si256((const __m256i *)row);
            __m256i odd = _mm256_loadu_si256((const __m256i *)(row + stride));
            __m256i left = _mm256_unpacklo_epi8(even, odd), right = _mm256_unpackhi_epi8(even, odd);
            __m256i both[4] = {_mm256_unpacklo_epi8(left, zero), _mm256_unpackhi_epi8(left, zero),
                               _mm256_unpacklo_epi8(right, zero), _mm256_unpackhi_epi8(right, zero)};
            __m256i high_weight = _mm256_set1_epi32(split[2 * pair]), low_weight = _mm256_set1_epi32(split[2 * pair + 1]);
            for (int part = 0; part < 4; part++) {
                /* left holds e0 o0 e1 o1 ...: as 16 bits e and o stand side by side */
                high[part] = _mm256_add_epi32(high[part], _mm256_madd_epi16(both[part], high_weight));
                low[part] = _mm256_add_epi32(low[part], _mm256_madd_epi16(both[part], low_weight));
            }
        }
        __m256i front = _mm256_packs_epi32(combine(high[0], low[0]), combine(high[1], low[1]));
        __m256i back = _mm256_packs_epi32(combine(high[2], low[2]), combine(high[3], low[3]));
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_packus_epi16(front, back));
    }
    return i;
}

static int has_avx2;

#endif

static void narrow_two(const uint8_t *const rows[2], uint8_t *const narrow[2], const taps_t *taps, int outputs)
{
#if HAS_AVX2_CODE
    if (has_avx2) {
        narrow_rows_avx2(rows, narrow, taps, outputs);
        return;
    }
#endif
    narrow_rows(rows, narrow, taps, outputs);
}

/* RGB rows, `stride` bytes apart, from input taps->from on, to the output [size, size, 3]. */
static void mix_all(const uint8_t *narrow, size_t stride, const taps_t *taps, uint8_t *out, int size)
{
    int samples = 3 * size;
    for (int i = 0; i < size; i++, out += samples) {
        const uint8_t *rows = narrow + (taps->first[i] - taps->from) * stride;
        size_t at = (size_t)i * 2 * taps->pairs;
        int written = 0;
#if HAS_AVX2_CODE
        if (has_avx2)
            written = mix_rows_avx2(rows, stride, taps->split + at, taps->pairs, out, samples);
#endif
        mix_rows(rows, stride, taps->weights + at, taps->pairs, out, written, samples);
    }
}

/* ---- decoding ---- */

static void check_image(decoder_t *decoder)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    if ((int64_t)jpeg->image_width * jpeg->image_height > MAX_PIXELS)
        fail(decoder, "more than 100,000,000 pixels");
    if (jpeg->arith_code)
        fail(decoder, "arithmetic coding");
    J_COLOR_SPACE space = jpeg->jpeg_color_space;
    if (space != JCS_GRAYSCALE && space != JCS_YCbCr && space != JCS_RGB)
        fail(decoder, "neither grey, YCbCr nor RGB");
}

static void check_view(decoder_t *decoder, const view_t *view, int size)
{
    int64_t height = decoder->jpeg.image_height, width = decoder->jpeg.image_width;
    if (view->top < 0 || view->left < 0 || view->height < 1 || view->width < 1
        || (int64_t)view->top + view->height > height || (int64_t)view->left + view->width > width)
        fail(decoder, "the view is not inside the image");
    if (view->out_top < 0 || view->out_left < 0 || view->resized_height > MAX_SIDE || view->resized_width > MAX_SIDE
        || view->out_top + (int64_t)size > view->resized_height || view->out_left + (int64_t)size > view->resized_width)
        fail(decoder, "the output is not inside the resized view");
}

#if HAS_HUFFMAN_CODE

static void give_up(decoder_t *decoder)
{
    longjmp(decoder->failed, GIVEN_UP);
}

static void pass_restart(decoder_t *decoder, scan_t *scan)
{
    bits_t *in = &scan->bits;
    if (in->count - in->invented >= 8 || in->end - in->next < 2 || in->next[0] != 0xff
        || in->next[1] != JPEG_RST0 + scan->restart)
        give_up(decoder);
    in->next += 2;
    in->bits = in->count = in->invented = 0;
    memset(scan->last_dc, 0, sizeof scan->last_dc);
    scan->restart = (scan->restart + 1) % 8;
    scan->until_restart = decoder->jpeg.restart_interval;
}

/* In place of libjpeg's: fills the blocks of an MCU, which are zero, or passes over it where there are none. */
static boolean read_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks)
{
    decoder_t *decoder = jpeg->client_data;
    scan_t *scan = &decoder->scan;
    if (jpeg->restart_interval) {
        if (!scan->until_restart)
            pass_restart(decoder, scan);
        scan->until_restart--;
    }
    int wanted = blocks && scan->column >= scan->first_column && scan->column < scan->last_column;
    if (++scan->column == jpeg->MCUs_per_row)
        scan->column = 0;
    bits_t bits = scan->bits;
    int clean = 1;
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        int number = jpeg->MCU_membership[i], *last_dc = &scan->last_dc[number];
        const jpeg_component_info *component = jpeg->cur_comp_info[number];
        const huffman_t *dc = &scan->dc[component->dc_tbl_no], *ac = &scan->ac[component->ac_tbl_no];
        clean &= wanted ? read_block(&bits, dc, ac, last_dc, *blocks[i], 1)
                        : read_block(&bits, dc, ac, last_dc, NULL, 0);
        clean &= *last_dc < MOST_DC && *last_dc > -MOST_DC;
    }
    if (!clean || bits.count < bits.invented)
        give_up(decoder);
    scan->bits = bits;
    return TRUE;
}

/* After jpeg_start_decompress, before the first row. */
static void replace_reader(decoder_t *decoder, JDIMENSION first_column, JDIMENSION last_column)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    scan_t *scan = &decoder->scan;
    if (jpeg->progressive_mode || jpeg_has_multiple_scans(jpeg))
        return;
    for (int i = 0; i < jpeg->comps_in_scan; i++) {
        const jpeg_component_info *component = jpeg->cur_comp_info[i];
        make_huffman(&scan->dc[component->dc_tbl_no], jpeg->dc_huff_tbl_ptrs[component->dc_tbl_no], 0);
        make_huffman(&scan->ac[component->ac_tbl_no], jpeg->ac_huff_tbl_ptrs[component->ac_tbl_no], 1);
    }
    const uint8_t *next = jpeg->src->next_input_byte;
    scan->bits = (bits_t){.next = next, .end = next + jpeg->src->bytes_in_buffer};
    memset(scan->last_dc, 0, sizeof scan->last_dc);
    scan->column = 0;
    scan->first_column = first_column;
    scan->last_column = last_column;
    scan->until_restart = jpeg->restart_interval;
    scan->restart = 0;
    jpeg->entropy->decode_mcu = read_mcu;
}

#endif

static void read_row(decoder_t *decoder, uint8_t *row)
{
    JSAMPROW rows[1] = {row};
    if (jpeg_read_scanlines(&decoder->jpeg, rows, 1) != 1)
        fail(decoder, "no more rows");
}

/* The first column or row to decode so that `first` is exact: smooth upsampling looks one sample beyond, and the edge
 * of what is decoded counts as the edge of the image. */
static int decode_from(int first, int mcu)
{
    return first > 0 ? (first - 1) / mcu * mcu : 0;
}

static void decode_view(
    decoder_t *decoder, const Py_buffer *data, const view_t *view, filter_t filter, uint8_t *out, int size, int plain)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    jpeg_mem_src(jpeg, data->buf, data->len);
    jpeg_read_header(jpeg, TRUE);
    check_image(decoder);
    check_view(decoder, view, size);
    taps_t columns = make_taps(decoder, &decoder->column_taps, filter, view->width, view->resized_width, view->out_left,
                               size, view->flip);
    taps_t lines = make_taps(
        decoder, &decoder->row_taps, filter, view->height, view->resized_height, view->out_top, size, 0);
    int left = view->left + columns.from, right = view->left + columns.to;
    int top = view->top + lines.from, height = lines.to - lines.from;

    jpeg->out_color_space = JCS_EXT_RGBX;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg->do_fancy_upsampling = TRUE;
    jpeg->do_block_smoothing = FALSE; /* only for files that end early; it looks far beyond the view */
    jpeg_start_decompress(jpeg);
    JDIMENSION from = decode_from(left, jpeg->max_h_samp_factor * DCTSIZE);
    JDIMENSION to = right + RIGHT_MARGIN < (int)jpeg->image_width ? right + RIGHT_MARGIN : (int)jpeg->image_width;
    JDIMENSION width = to - from;
    jpeg_crop_scanline(jpeg, &from, &width);
#if HAS_HUFFMAN_CODE
    JDIMENSION mcu = (jpeg->comps_in_scan == 1 ? 1 : jpeg->max_h_samp_factor) * DCTSIZE;
    if (!plain)
        replace_reader(decoder, from / mcu, (from + width + mcu - 1) / mcu);
#endif
    size_t row_bytes = (jpeg->output_width + SPARE_PIXELS + 2 * columns.pairs) * PIXEL_BYTES;
    size_t stride = 3 * (size_t)size + 1;
    uint8_t *two = reserve(decoder, &decoder->rows, 2 * row_bytes);
    uint8_t *narrow = reserve(decoder, &decoder->narrow, (height + 1 + 2 * (size_t)lines.pairs) * stride + 3);

    JDIMENSION skipped = decode_from(top, jpeg->max_v_samp_factor * DCTSIZE);
    if (skipped)
        jpeg_skip_scanlines(jpeg, skipped);
    while (jpeg->output_scanline < (JDIMENSION)top)
        read_row(decoder, two);
    const uint8_t *rows[2] = {two + (left - from) * PIXEL_BYTES, two + row_bytes + (left - from) * PIXEL_BYTES};
    for (int row = 0; row < height; row += 2) {
        read_row(decoder, two);
        if (row + 1 < height)
            read_row(decoder, two + row_bytes);
        uint8_t *both[2] = {narrow + row * stride, narrow + (row + 1) * stride};
        narrow_two(rows, both, &columns, size);
    }
    mix_all(narrow, stride, &lines, out, size);
}

static void decode_one(decoder_t *decoder, const Py_buffer *data, const view_t *view, filter_t filter, uint8_t *out, int size)
{
    decoder->reason[0] = 0;
    switch (setjmp(decoder->failed)) {
    case 0:
        decode_view(decoder, data, view, filter, out, size, 0);
        break;
    case GIVEN_UP:
        jpeg_abort_decompress(&decoder->jpeg);
        decode_view(decoder, data, view, filter, out, size, 1);
        break;
    default:
        memset(out, 0, 3 * (size_t)size * size);
    }
    jpeg_abort_decompress(&decoder->jpeg);
}

static int create(decoder_t *decoder)
{
    decoder->jpeg.err = jpeg_std_error(&decoder->errors);
    decoder->errors.error_exit = on_error;
    decoder->errors.emit_message = on_message;
    decoder->jpeg.client_data = decoder;
    if (setjmp(decoder->failed))
        return 0;
    jpeg_create_decompress(&decoder->jpeg);
    decoder->progress.progress_monitor = on_progress;
    decoder->jpeg.progress = &decoder->progress;
    return 1;
}

static decoder_t *new_decoder(void)
{
    decoder_t *decoder = calloc(1, sizeof *decoder);
    if (decoder && !create(decoder)) {
        free(decoder);
        return NULL;
    }
    return decoder;
}

static void free_decoder(decoder_t *decoder)
{
    jpeg_destroy_decompress(&decoder->jpeg);
    free(decoder->row_taps.data);
    free(decoder->column_taps.data);
    free(decoder->rows.data);
    free(decoder->narrow.data);
    free(decoder);
}

/* ---- Python ---- */

/* What one call works on; the buffers are held until it ends. */
typedef struct {
    Py_ssize_t count;
    Py_buffer *images;
    Py_ssize_t held;
    Py_buffer views, rows, out;
    char (*reasons)[JMSG_LENGTH_MAX];
} batch_t;

static void release(batch_t *batch)
{
    for (Py_ssize_t i = 0; i < batch->held; i++)
        PyBuffer_Release(&batch->images[i]);
    PyBuffer_Release(&batch->views);
    PyBuffer_Release(&batch->rows);
    PyBuffer_Release(&batch->out);
    PyMem_Free(batch->images);
    PyMem_Free(batch->reasons);
}

static int hold_images(batch_t *batch, PyObject *images)
{
    PyObject *items = PySequence_Fast(images, "images must be a sequence");
    if (!items)
        return 0;
    batch->count = PySequence_Fast_GET_SIZE(items);
    batch->images = PyMem_Calloc(batch->count + 1, sizeof *batch->images);
    batch->reasons = PyMem_Calloc(batch->count + 1, sizeof *batch->reasons);
    int ok = batch->images && batch->reasons;
    if (!ok)
        PyErr_NoMemory();
    while (ok && batch->held < batch->count) {
        PyObject *item = PySequence_Fast_GET_ITEM(items, batch->held);
        ok = PyObject_GetBuffer(item, &batch->images[batch->held], PyBUF_SIMPLE) == 0;
        batch->held += ok;
    }
    Py_DECREF(items);
    return ok;
}

static int check_batch(const batch_t *batch)
{
    const Py_buffer *views = &batch->views, *rows = &batch->rows, *out = &batch->out;
    if (views->len != batch->count * (Py_ssize_t)sizeof(view_t))
        PyErr_SetString(PyExc_ValueError, "views must be int32 [images, 9]");
    else if (rows->len != batch->count * (Py_ssize_t)sizeof(int32_t))
        PyErr_SetString(PyExc_ValueError, "rows must be int32 [images]");
    else if (out->ndim != 4 || out->itemsize != 1 || out->shape[1] != out->shape[2] || out->shape[3] != 3
             || out->shape[1] < 1 || out->shape[1] > MAX_SIDE)
        PyErr_SetString(PyExc_ValueError, "out must be uint8 [rows, size, size, 3]");
    else {
        for (Py_ssize_t i = 0; i < batch->count; i++) {
            int32_t row = ((const int32_t *)rows->buf)[i];
            if (row < 0 || row >= out->shape[0]) {
                PyErr_SetString(PyExc_ValueError, "a row is not one of out");
                return 0;
            }
        }
        return 1;
    }
    return 0;
}

static int decode_batch(batch_t *batch, filter_t filter)
{
    decoder_t *decoder = new_decoder();
    if (!decoder)
        return 0;
    int size = (int)batch->out.shape[1];
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        uint8_t *out = (uint8_t *)batch->out.buf + ((const int32_t *)batch->rows.buf)[i] * 3 * (size_t)size * size;
        decode_one(decoder, &batch->images[i], (const view_t *)batch->views.buf + i, filter, out, size);
        memcpy(batch->reasons[i], decoder->reason, JMSG_LENGTH_MAX);
    }
    free_decoder(decoder);
    return 1;
}

static PyObject *reasons_list(const batch_t *batch)
{
    PyObject *reasons = PyList_New(batch->count);
    for (Py_ssize_t i = 0; reasons && i < batch->count; i++) {
        const char *text = batch->reasons[i];
        PyObject *reason = *text ? PyUnicode_DecodeLatin1(text, strlen(text), NULL) : Py_NewRef(Py_None);
        if (!reason)
            Py_CLEAR(reasons);
        else
            PyList_SET_ITEM(reasons, i, reason);
    }
    return reasons;
}

static PyObject *decode_many(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *images, *out, *reasons = NULL;
    int filter;
    batch_t batch = {0};
    if (!PyArg_ParseTuple(args, "Oy*y*Oi", &images, &batch.views, &batch.rows, &out, &filter))
        return NULL;
    if (PyObject_GetBuffer(out, &batch.out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) == 0 && hold_images(&batch, images)
        && check_batch(&batch)) {
        int ok;
        Py_BEGIN_ALLOW_THREADS
        ok = decode_batch(&batch, filter);
        Py_END_ALLOW_THREADS
        reasons = ok ? reasons_list(&batch) : PyErr_NoMemory();
    }
    release(&batch);
    return reasons;
}

static PyObject *image_size(PyObject *module, PyObject *data)
{
    (void)module;
    Py_buffer bytes;
    if (PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE))
        return NULL;
    PyObject *size = NULL;
    decoder_t *decoder = new_decoder();
    if (!decoder)
        PyErr_NoMemory();
    else {
        if (setjmp(decoder->failed))
            PyErr_SetString(PyExc_ValueError, decoder->reason);
        else {
            jpeg_mem_src(&decoder->jpeg, bytes.buf, bytes.len);
            jpeg_read_header(&decoder->jpeg, TRUE);
            size = Py_BuildValue("II", decoder->jpeg.image_height, decoder->jpeg.image_width);
        }
        free_decoder(decoder);
    }
    PyBuffer_Release(&bytes);
    return size;
}

static PyMethodDef methods[] = {
    {"decode_many", decode_many, METH_VARARGS,
     "decode_many(images, views, rows, out, filter) -> list[str | None]\n\n"
     "Writes image i, cut and scaled by views[i], to out[rows[i]]; says why where it cannot, and zeroes that row.\n"
     "images: bytes-like; views: int32 [n, 9]; rows: int32 [n]; out: uint8 [rows, size, size, 3], each C-contiguous;\n"
     "filter: 0 bilinear, 1 bicubic, 2 bilinear without antialiasing. Releases the interpreter lock."},
    {"image_size", image_size, METH_O,
     "image_size(data) -> (height, width)\n\nFrom a JPEG's header. Raises ValueError where it cannot be read."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_jpeg", "Crop-first JPEG decoding; see loaders/decode.py.", -1, methods, NULL, NULL, NULL, NULL};

#define TEXT(macro) TEXT_(macro)
#define TEXT_(value) #value

PyMODINIT_FUNC PyInit__jpeg(void)
{
#if HAS_AVX2_CODE
    has_avx2 = __builtin_cpu_supports("avx2");
#endif
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "LIBRARY_VERSION", TEXT(LIBJPEG_TURBO_VERSION)) < 0)
        Py_CLEAR(module);
    return module;
}
