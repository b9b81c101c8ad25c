/* Decodes what the views of a JPEG need and scales them into a batch, without Python's lock.
 *
 * libjpeg-turbo with the accurate integer transform and smooth chroma, as Pillow and simplejpeg have them. Several views
 * of an image are made of one decode of the smallest area that has them all. Of rows above this area only the Huffman
 * codes are read, columns beside it are neither transformed nor converted, rows below it not read; inside it every
 * sample equals that of a full decode, so a view's pixels do not depend on the other views. Where a baseline file has
 * restart markers, only the intervals that the area touches are read. _jpeg_huffman.h reads the codes of baseline files,
 * _jpeg_resize.h scales, also pixels that Pillow decoded; loaders/decode/decoders.py calls this. Of Python only the
 * stable interface is used, so that a wheel serves every Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#if defined(__has_include)
#if __has_include(<jpegint.h>) && defined(__GNUC__) && !defined(PLAIN_C)
#define HAS_HUFFMAN_CODE 1
#include <jpegint.h>
#include "_jpeg_huffman.h"
#endif
#endif

#include "_jpeg_resize.h"

#define MAX_PIXELS 100000000
/* The limits of dataprep/formats/pictures.py: a small progressive file can ask for any number of passes over its
 * pixels. */
#define MAX_SCANS 500
#define MAX_SCAN_PIXELS 5000000000LL
#define MAX_VIEWS 64 /* views of an image, at most: that of loaders/decode/decoders.py */
#define MAX_SIDE (1 << 24) /* side of a scaled view, at most; of a long, thin image only the middle is computed */

/* Margin in pixels: one for the neighbour, and one more because libjpeg treats a crop of one pixel as an image that is
 * too narrow to have neighbours. */
#define RIGHT_MARGIN 2
/* Offset of rows from an aligned address. libjpeg-turbo writes aligned rows past the caches, but they are read again at
 * once; unaligned rows save 0.15 ms of an image. */
#define ROW_OFFSET 4
#define SPARE_ROWS (ROWS_AT_ONCE - 1)

/* Where an image goes: pixels of the output, and the side of the patches into which it is cut, 0 for none. */
typedef struct {
    uint8_t *start;
    int height, width, patch;
} output_t;

/* A loaders.decode.crop.View. */
typedef struct {
    int32_t top, left, height, width, resized_height, resized_width, out_top, out_left, flip;
} view_t;

/* One view of the image that is decoded. */
typedef struct {
    view_t view;
    output_t out;
    taps_t columns, lines;
    int left, top, right, bottom; /* area of the image's pixels that have a weight */
    size_t stride;                /* bytes from one narrowed row to the next */
    uint8_t *narrowed;            /* row `top` of the area, scaled to the output's width; SPARE_ROWS are before it */
    buffer_t row_taps, column_taps, narrow;
} crop_t;

#if HAS_HUFFMAN_CODE
typedef struct {
    bits_t bits;
    window_t window;
    struct {
        const huffman_t *dc, *ac;
        const skip_t *skips; /* of ac; NULL where there is none */
        int *last_dc;
    } blocks[D_MAX_BLOCKS_IN_MCU];
    int last_dc[MAX_COMPS_IN_SCAN];
    JDIMENSION column, first_column, last_column; /* in MCUs; only columns first .. last are stored */
    uint32_t asked, read, stop; /* MCUs that libjpeg asked for, those read or passed over, and the interval's end */
    unsigned int restart;       /* number of the marker that ends the interval */
    huffman_t dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
    skipper_t skippers[NUM_HUFF_TBLS];
} scan_t;
#endif

typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char reason[JMSG_LENGTH_MAX];
    crop_t *crops;
    int num_crops;
    buffer_t rows, whole;
#if HAS_HUFFMAN_CODE
    scan_t scan;
#endif
} decoder_t;

enum { FAILED = 1, GIVEN_UP = 2 };

/* Markers for which jpeglib.h has no name (ITU-T T.81, annex B). */
enum { SOF0 = 0xC0, DHT = 0xC4, JPG = 0xC8, DAC = 0xCC, SOF15 = 0xCF, SOI = 0xD8, SOS = 0xDA, DRI = 0xDD };

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

/* Ignore warnings: corrupt data are decoded as far as they go, as libjpeg's own tools do. */
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

static void *reserve_or_fail(decoder_t *decoder, buffer_t *buffer, size_t bytes)
{
    void *data = reserve(buffer, bytes);
    if (!data)
        fail(decoder, "out of memory");
    return data;
}

/* ---- decoding ---- */

static int smaller(int one, int two)
{
    return one < two ? one : two;
}

static int larger(int one, int two)
{
    return one > two ? one : two;
}

/* Set libjpeg up anew for every image: a decompressor keeps the tables of the file before, and would use them for a
 * file that lacks its own. For images that take 65 us this costs less than can be measured. */
static void read_header(decoder_t *decoder, const Py_buffer *data)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    jpeg_destroy_decompress(jpeg);
    jpeg_create_decompress(jpeg);
    jpeg->progress = &decoder->progress;
    jpeg_mem_src(jpeg, data->buf, data->len);
    jpeg_read_header(jpeg, TRUE);
}

static void check_image(decoder_t *decoder)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    if ((int64_t)jpeg->image_width * jpeg->image_height > MAX_PIXELS)
        fail(decoder, "more than 100,000,000 pixels");
    if (jpeg->arith_code)
        fail(decoder, "arithmetic coding");
    if (jpeg->data_precision != 8)
        fail(decoder, "other than 8 bits a sample");
    J_COLOR_SPACE space = jpeg->jpeg_color_space;
    if (space != JCS_GRAYSCALE && space != JCS_YCbCr && space != JCS_RGB)
        fail(decoder, "neither grey, YCbCr nor RGB");
}

/* Refuse an image in whose data, also below the views, libjpeg finds no end, or a marker that it does not take: it would
 * fill the rest with grey. Markers are found as libjpeg finds them, which passes over other bytes between segments. */
static void check_markers(decoder_t *decoder, const Py_buffer *data)
{
    const uint8_t *at = (const uint8_t *)data->buf + 2, *end = at + data->len - 2; /* behind its start */
    int frames = 0, scans = 0;
    if (*at != 0xFF)
        fail(decoder, "its first marker is not behind its start");
    while ((at = memchr(at, 0xFF, end - at))) {
        while (at < end && *at == 0xFF)
            at++;
        if (at == end)
            break;
        int marker = *at++;
        if (marker < 2 || (marker >= JPEG_RST0 && marker <= JPEG_RST0 + 7))
            continue; /* no marker, or one without a length */
        if (marker == JPEG_EOI)
            return;
        int is_frame = marker >= SOF0 && marker <= SOF15 && marker != DHT && marker != JPG && marker != DAC;
        int is_note = (marker >= JPEG_APP0 && marker <= JPEG_APP0 + 15) || marker == JPEG_COM;
        int is_known = marker >= SOF0 && marker <= DRI && marker != SOI;
        if ((!is_known && !is_note) || (frames += is_frame) > 1)
            fail(decoder, "a marker inside of its data is not one of an image");
        if ((scans += marker == SOS) > 1 && !jpeg_has_multiple_scans(&decoder->jpeg))
            fail(decoder, "its data have a scan too many");
        if (end - at < 2 || end - at < (at[0] << 8 | at[1]))
            break;
        at += larger(2, at[0] << 8 | at[1]);
    }
    fail(decoder, "its data end early: it has no end marker");
}

static void check_view(decoder_t *decoder, const view_t *view, const output_t *out)
{
    int64_t height = decoder->jpeg.image_height, width = decoder->jpeg.image_width;
    if (view->top < 0 || view->left < 0 || view->height < 1 || view->width < 1
        || (int64_t)view->top + view->height > height || (int64_t)view->left + view->width > width)
        fail(decoder, "the view is not inside the image");
    if (view->out_top < 0 || view->out_left < 0 || view->resized_height > MAX_SIDE || view->resized_width > MAX_SIDE
        || view->out_top + (int64_t)out->height > view->resized_height
        || view->out_left + (int64_t)out->width > view->resized_width)
        fail(decoder, "the output is not inside the resized view");
}

#if HAS_HUFFMAN_CODE

static void give_up(decoder_t *decoder)
{
    longjmp(decoder->failed, GIVEN_UP);
}

/* Begin to read at a place of the scan. */
static void read_from(scan_t *scan, const uint8_t *source, const uint8_t *end)
{
    scan->window.source = source;
    scan->window.source_end = end;
    scan->window.end = scan->window.bytes;
    scan->window.has_end = 0;
    scan->bits = (bits_t){.next = scan->window.bytes};
    memset(scan->last_dc, 0, sizeof scan->last_dc);
}

/* Move to the next interval; bytes that are left of this one are passed over, as libjpeg does. */
static void pass_restart(decoder_t *decoder, scan_t *scan)
{
    const uint8_t *next = scan->window.source, *end = scan->window.source_end;
    while ((next = memchr(next, 0xff, end - next)) && end - next >= 2 && !next[1])
        next += 2;
    if (!next || end - next < 2 || next[1] != JPEG_RST0 + scan->restart)
        give_up(decoder);
    read_from(scan, next + 2, end);
    scan->restart = (scan->restart + 1) % 8;
    scan->read = scan->stop;
    scan->stop += decoder->jpeg.restart_interval;
}

/* Read the blocks of an MCU, or read over them where there are none. */
static inline __attribute__((always_inline)) void read_blocks(decoder_t *decoder, scan_t *scan, JBLOCKROW *blocks)
{
    if (scan->window.end - scan->bits.next < MCU_BYTES && !scan->window.has_end) {
        fill_window(&scan->window, scan->bits.next);
        scan->bits.next = scan->window.bytes;
    }
    bits_t bits = scan->bits;
    int clean = 1;
    for (int i = 0; i < decoder->jpeg.blocks_in_MCU; i++) {
        const huffman_t *dc = scan->blocks[i].dc, *ac = scan->blocks[i].ac;
        int *last_dc = scan->blocks[i].last_dc;
        clean &= blocks ? read_block(&bits, dc, ac, last_dc, *blocks[i])
                        : skip_block(&bits, dc, ac, scan->blocks[i].skips, last_dc);
        clean &= *last_dc < MOST_DC && *last_dc > -MOST_DC;
    }
    if (!clean || 8 * (bits.next - scan->window.end) > bits.count)
        give_up(decoder);
    scan->bits = bits;
    scan->read++;
}

/* Replaces libjpeg's function: fill the zeroed blocks of an MCU. An MCU that is not needed is read over only when a later
 * one of its interval is needed. */
static inline __attribute__((always_inline)) boolean read_mcu_inline(j_decompress_ptr jpeg, JBLOCKROW *blocks)
{
    decoder_t *decoder = jpeg->client_data;
    scan_t *scan = &decoder->scan;
    uint32_t number = scan->asked++;
    int wanted = blocks && scan->column >= scan->first_column && scan->column < scan->last_column;
    if (++scan->column == jpeg->MCUs_per_row)
        scan->column = 0;
    if (!wanted)
        return TRUE;
    while (number >= scan->stop)
        pass_restart(decoder, scan);
    while (scan->read < number)
        read_blocks(decoder, scan, NULL);
    read_blocks(decoder, scan, blocks);
    return TRUE;
}

static boolean read_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks)
{
    return read_mcu_inline(jpeg, blocks);
}

#if HAS_SIMD_CODE
/* With BMI2 a shift by a variable count is one instruction, which saves 1 % of the time of an image. */
__attribute__((target("bmi2"))) static boolean read_mcu_bmi2(j_decompress_ptr jpeg, JBLOCKROW *blocks)
{
    return read_mcu_inline(jpeg, blocks);
}
#endif

/* Put our Huffman reader in place; called after jpeg_start_decompress and before the first row. */
static void replace_reader(decoder_t *decoder, JDIMENSION first_column, JDIMENSION last_column)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    scan_t *scan = &decoder->scan;
    if (jpeg->progressive_mode || jpeg_has_multiple_scans(jpeg))
        return;
    /* Most files have the same tables, those of the standard. For others a table for skipping would cost more than it
     * saves, so it is made for the second of two images that have the same AC table. */
    unsigned made = 0;
    for (int i = 0; i < jpeg->comps_in_scan; i++) {
        const jpeg_component_info *component = jpeg->cur_comp_info[i];
        int dc = component->dc_tbl_no, ac = component->ac_tbl_no;
        make_huffman(&scan->dc[dc], jpeg->dc_huff_tbl_ptrs[dc], 0);
        if (made & 1 << ac)
            continue;
        made |= 1 << ac;
        skipper_t *skipper = &scan->skippers[ac];
        int is_new = make_huffman(&scan->ac[ac], jpeg->ac_huff_tbl_ptrs[ac], 1);
        if (!is_new && !skipper->is_made)
            make_skips(skipper->skips, &scan->ac[ac].codes, NULL, NULL);
        skipper->is_made = !is_new;
    }
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        int number = jpeg->MCU_membership[i];
        const jpeg_component_info *component = jpeg->cur_comp_info[number];
        const skipper_t *skipper = &scan->skippers[component->ac_tbl_no];
        scan->blocks[i].dc = &scan->dc[component->dc_tbl_no];
        scan->blocks[i].ac = &scan->ac[component->ac_tbl_no];
        scan->blocks[i].skips = skipper->is_made ? skipper->skips : NULL;
        scan->blocks[i].last_dc = &scan->last_dc[number];
    }
    const uint8_t *next = jpeg->src->next_input_byte;
    read_from(scan, next, next + jpeg->src->bytes_in_buffer);
    scan->column = 0;
    scan->first_column = first_column;
    scan->last_column = last_column;
    scan->asked = scan->read = scan->restart = 0;
    scan->stop = jpeg->restart_interval ? jpeg->restart_interval : UINT32_MAX;
    jpeg->entropy->decode_mcu = read_mcu;
#if HAS_SIMD_CODE
    if (__builtin_cpu_supports("bmi2"))
        jpeg->entropy->decode_mcu = read_mcu_bmi2;
#endif
}

#endif

/* Read rows that are `row_bytes` apart, ROWS_AT_ONCE at most. libjpeg returns those of a row of MCUs at once. */
static void read_rows(decoder_t *decoder, uint8_t *row, size_t row_bytes, int count)
{
    JSAMPROW rows[ROWS_AT_ONCE];
    for (int i = 0; i < count; i++)
        rows[i] = row + i * row_bytes;
    for (int read = 0; read < count;) {
        JDIMENSION more = jpeg_read_scanlines(&decoder->jpeg, rows + read, count - read);
        if (!more)
            fail(decoder, "no more rows");
        read += more;
    }
}

/* Return the first column or row to decode so that `first` is exact: smooth upsampling reads one sample beyond, and
 * libjpeg treats the edge of what is decoded as the edge of the image. */
static int decode_from(int first, int mcu)
{
    return first > 0 ? (first - 1) / mcu * mcu : 0;
}

static size_t output_bytes(const output_t *out)
{
    return 3 * (size_t)out->height * out->width;
}

/* Copy an image to its patches, one after another row by row; each holds its pixels row by row. */
static void cut_patches(const uint8_t *whole, const output_t *out)
{
    size_t run = 3 * (size_t)out->patch, patch_bytes = run * out->patch;
    int columns = out->width / out->patch;
    for (int row = 0; row < out->height; row++) {
        uint8_t *to = out->start + (size_t)(row / out->patch) * columns * patch_bytes + row % out->patch * run;
        for (int column = 0; column < columns; column++, to += patch_bytes, whole += run)
            memcpy(to, whole, run);
    }
}

/* The smallest area of the image that has all views, and the largest number of quads along a row. */
typedef struct {
    int left, top, right, bottom, quads;
} area_t;

static area_t plan_crops(decoder_t *decoder, filter_t filter)
{
    area_t area = {INT_MAX, INT_MAX, 0, 0, 0};
    for (crop_t *crop = decoder->crops; crop < decoder->crops + decoder->num_crops; crop++) {
        const view_t *view = &crop->view;
        const output_t *out = &crop->out;
        check_view(decoder, view, out);
        if (!make_taps(&crop->columns, &crop->column_taps, filter, view->width, view->resized_width, view->out_left,
                       out->width, view->flip)
            || !make_taps(&crop->lines, &crop->row_taps, filter, view->height, view->resized_height, view->out_top,
                          out->height, 0))
            fail(decoder, "out of memory");
        crop->left = view->left + crop->columns.from;
        crop->right = view->left + crop->columns.to;
        crop->top = view->top + crop->lines.from;
        crop->bottom = view->top + crop->lines.to;
        crop->stride = 3 * (size_t)out->width + SPARE_BYTES;
        size_t rows = crop->bottom - crop->top + 2 * SPARE_ROWS + 4 * (size_t)crop->lines.quads;
        crop->narrowed = (uint8_t *)reserve_or_fail(decoder, &crop->narrow, rows * crop->stride)
                       + SPARE_ROWS * crop->stride;
        area.left = smaller(area.left, crop->left);
        area.right = larger(area.right, crop->right);
        area.top = smaller(area.top, crop->top);
        area.bottom = larger(area.bottom, crop->bottom);
        area.quads = larger(area.quads, crop->columns.quads);
    }
    return area;
}

/* Take what a view needs of ROWS_AT_ONCE rows, of which some may lie beyond the view; with the last ones write the
 * output. The rows begin at column `from` of the image. */
static void take_rows(decoder_t *decoder, crop_t *crop, int row, int from, const uint8_t *pixels, size_t row_bytes)
{
    if (row + SPARE_ROWS < crop->top || row >= crop->bottom)
        return;
    uint8_t *narrow = crop->narrowed + (row - crop->top) * (Py_ssize_t)crop->stride;
    const output_t *out = &crop->out;
    narrow_rows(pixels + (crop->left - from) * PIXEL_BYTES, row_bytes, narrow, crop->stride, &crop->columns, out->width);
    if (row + ROWS_AT_ONCE < crop->bottom)
        return;
    uint8_t *whole = out->patch ? reserve_or_fail(decoder, &decoder->whole, output_bytes(out)) : out->start;
    mix_all(crop->narrowed, crop->stride, &crop->lines, whole, out->height, out->width);
    if (out->patch)
        cut_patches(whole, out);
}

/* Begin to decode the columns of an area; return the first column that is decoded. */
static int start_decoding(decoder_t *decoder, const area_t *area, int plain)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    jpeg->out_color_space = JCS_EXT_RGBX;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg->do_fancy_upsampling = TRUE;
    jpeg->do_block_smoothing = FALSE; /* smoothing serves only files that end early, and reads far beyond the view */
    jpeg_start_decompress(jpeg);
    JDIMENSION from = decode_from(area->left, jpeg->max_h_samp_factor * DCTSIZE);
    JDIMENSION to = smaller(area->right + RIGHT_MARGIN, jpeg->image_width);
    /* At the right edge there is no margin, and libjpeg smooths no chroma that is one sample wide. */
    if (from && (int)(to - from) <= jpeg->max_h_samp_factor)
        from -= jpeg->max_h_samp_factor * DCTSIZE;
    JDIMENSION width = to - from;
    jpeg_crop_scanline(jpeg, &from, &width);
#if HAS_HUFFMAN_CODE
    JDIMENSION mcu = (jpeg->comps_in_scan == 1 ? 1 : jpeg->max_h_samp_factor) * DCTSIZE;
    if (!plain)
        replace_reader(decoder, from / mcu, (from + width + mcu - 1) / mcu);
#else
    (void)plain;
#endif
    return from;
}

static void decode_crops(decoder_t *decoder, const Py_buffer *data, filter_t filter, int plain)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    read_header(decoder, data);
    check_image(decoder);
    check_markers(decoder, data);
    area_t area = plan_crops(decoder, filter);
    int from = start_decoding(decoder, &area, plain);
    size_t row_bytes = ((jpeg->output_width + 4 * (size_t)area.quads) * PIXEL_BYTES + 31) / 32 * 32;
    uint8_t *rows = reserve_or_fail(decoder, &decoder->rows, ROWS_AT_ONCE * row_bytes + ROW_OFFSET);
    rows += ROW_OFFSET;

    JDIMENSION skipped = decode_from(area.top, jpeg->max_v_samp_factor * DCTSIZE);
    if (skipped)
        jpeg_skip_scanlines(jpeg, skipped);
    for (int row = jpeg->output_scanline; row < area.top; row++)
        read_rows(decoder, rows, row_bytes, 1);
    for (int row = area.top; row < area.bottom; row += ROWS_AT_ONCE) {
        read_rows(decoder, rows, row_bytes, smaller(ROWS_AT_ONCE, area.bottom - row));
        for (int i = 0; i < decoder->num_crops; i++)
            take_rows(decoder, &decoder->crops[i], row, from, rows, row_bytes);
    }
}

static void decode_one(decoder_t *decoder, const Py_buffer *data, filter_t filter)
{
    decoder->reason[0] = 0;
    switch (setjmp(decoder->failed)) {
    case 0:
        decode_crops(decoder, data, filter, 0);
        break;
    case GIVEN_UP:
        decode_crops(decoder, data, filter, 1);
        break;
    default:
        for (int i = 0; i < decoder->num_crops; i++)
            memset(decoder->crops[i].out.start, 0, output_bytes(&decoder->crops[i].out));
    }
}

/* Scale the only view of an image of RGBX pixels, of which the decoder knows the size. */
static void scale_crop(decoder_t *decoder, const uint8_t *pixels, filter_t filter)
{
    size_t image_bytes = decoder->jpeg.image_width * (size_t)PIXEL_BYTES;
    area_t area = plan_crops(decoder, filter);
    /* Loops read beyond the last row and column; the copy has room for that. */
    size_t row_bytes = image_bytes + 4 * (size_t)area.quads * PIXEL_BYTES;
    uint8_t *rows = reserve_or_fail(decoder, &decoder->rows, ROWS_AT_ONCE * row_bytes);
    for (int row = area.top; row < area.bottom; row += ROWS_AT_ONCE) {
        for (int i = 0; i < smaller(ROWS_AT_ONCE, area.bottom - row); i++)
            memcpy(rows + i * row_bytes, pixels + (row + i) * image_bytes, image_bytes);
        take_rows(decoder, decoder->crops, row, 0, rows, row_bytes);
    }
}

static void free_decoder(decoder_t *decoder)
{
    jpeg_destroy_decompress(&decoder->jpeg);
    for (int i = 0; i < decoder->num_crops; i++) {
        free(decoder->crops[i].row_taps.data);
        free(decoder->crops[i].column_taps.data);
        free(decoder->crops[i].narrow.data);
    }
    free(decoder->crops);
    free(decoder->rows.data);
    free(decoder->whole.data);
    free(decoder);
}

static decoder_t *new_decoder(int num_crops)
{
    decoder_t *decoder = calloc(1, sizeof *decoder);
    if (!decoder)
        return NULL;
    decoder->crops = calloc(num_crops + 1, sizeof *decoder->crops);
    if (!decoder->crops) {
        free(decoder);
        return NULL;
    }
    decoder->num_crops = num_crops;
    decoder->jpeg.err = jpeg_std_error(&decoder->errors);
    decoder->errors.error_exit = on_error;
    decoder->errors.emit_message = on_message;
    decoder->progress.progress_monitor = on_progress;
    decoder->jpeg.client_data = decoder;
    return decoder;
}

/* ---- Python ---- */

/* Arguments of one call, whose buffers are held until it ends. */
typedef struct {
    Py_ssize_t count;
    Py_buffer *images;
    Py_ssize_t held;
    Py_buffer views, rows, outs[MAX_VIEWS];
    int num_outs, num_views; /* views of an image, over all outs */
    int patch; /* side of the patches that the only out holds; 0 where outs hold squares */
    char (*reasons)[JMSG_LENGTH_MAX];
} batch_t;

static void release(batch_t *batch)
{
    for (Py_ssize_t i = 0; i < batch->held; i++)
        PyBuffer_Release(&batch->images[i]);
    PyBuffer_Release(&batch->views);
    PyBuffer_Release(&batch->rows);
    for (int i = 0; i < batch->num_outs; i++)
        PyBuffer_Release(&batch->outs[i]);
    PyMem_Free(batch->images);
    PyMem_Free(batch->reasons);
}

static int hold_images(batch_t *batch, PyObject *images)
{
    PyObject *items = PySequence_Tuple(images);
    if (!items)
        return 0;
    batch->count = PyTuple_Size(items);
    batch->images = PyMem_Calloc(batch->count + 1, sizeof *batch->images);
    batch->reasons = PyMem_Calloc(batch->count + 1, sizeof *batch->reasons);
    int ok = batch->images && batch->reasons;
    if (!ok)
        PyErr_NoMemory();
    while (ok && batch->held < batch->count) {
        PyObject *item = PyTuple_GetItem(items, batch->held);
        ok = PyObject_GetBuffer(item, &batch->images[batch->held], PyBUF_SIMPLE) == 0;
        batch->held += ok;
    }
    Py_DECREF(items);
    return ok;
}

static int hold_out(batch_t *batch, PyObject *out)
{
    if (batch->num_outs == MAX_VIEWS) {
        PyErr_SetString(PyExc_ValueError, "more than 64 outs");
        return 0;
    }
    int ok = PyObject_GetBuffer(out, &batch->outs[batch->num_outs], PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) == 0;
    batch->num_outs += ok;
    return ok;
}

static int hold_outs(batch_t *batch, PyObject *outs)
{
    PyObject *items = PySequence_Tuple(outs);
    if (!items)
        return 0;
    int ok = 1;
    for (Py_ssize_t i = 0; ok && i < PyTuple_Size(items); i++)
        ok = hold_out(batch, PyTuple_GetItem(items, i));
    Py_DECREF(items);
    return ok;
}

/* Return whether the grid of image i lies inside a row of out, which must be uint8 [rows, tokens, patch bytes]. */
static int is_inside_row(const batch_t *batch, Py_ssize_t i)
{
    const view_t *view = (const view_t *)batch->views.buf + i;
    int64_t token = ((const int32_t *)batch->rows.buf)[i], in_row = batch->outs->shape[1], patch = batch->patch;
    if (view->out_top || view->out_left || view->resized_height < patch || view->resized_width < patch
        || view->resized_height % patch || view->resized_width % patch)
        return 0;
    int64_t tokens = view->resized_height / patch * (view->resized_width / patch);
    return token >= 0 && token / in_row < batch->outs->shape[0] && token % in_row + tokens <= in_row;
}

static int check_patches(const batch_t *batch)
{
    const Py_buffer *out = batch->outs;
    if (batch->patch > JPEG_MAX_DIMENSION || out->ndim != 3 || out->itemsize != 1
        || out->shape[1] < 1 || out->shape[2] != 3 * (Py_ssize_t)batch->patch * batch->patch) {
        PyErr_SetString(PyExc_ValueError, "out must be uint8 [rows, tokens, 3 * patch * patch]");
        return 0;
    }
    for (Py_ssize_t i = 0; i < batch->count; i++)
        if (!is_inside_row(batch, i)) {
            PyErr_SetString(PyExc_ValueError, "the patches of a view are not inside a row of out");
            return 0;
        }
    return 1;
}

/* Return the number of views of an image that an array holds, [rows, views, size, size, 3]; 0 for other shapes. */
static int views_of(const Py_buffer *out)
{
    const Py_ssize_t *shape = out->shape;
    if (out->ndim != 5 || out->itemsize != 1 || shape[2] != shape[3] || shape[4] != 3 || shape[2] < 1
        || shape[2] > JPEG_MAX_DIMENSION || shape[1] < 1 || shape[1] > MAX_VIEWS)
        return 0;
    return (int)shape[1];
}

static int check_squares(const batch_t *batch)
{
    for (const Py_buffer *out = batch->outs; out < batch->outs + batch->num_outs; out++)
        if (!views_of(out) || out->shape[0] != batch->outs->shape[0]) {
            PyErr_SetString(PyExc_ValueError, "each out must be uint8 [rows, views, size, size, 3]");
            return 0;
        }
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        int32_t row = ((const int32_t *)batch->rows.buf)[i];
        if (row < 0 || row >= batch->outs->shape[0]) {
            PyErr_SetString(PyExc_ValueError, "a row is not one of out");
            return 0;
        }
    }
    return 1;
}

static int check_batch(const batch_t *batch, int filter)
{
    const Py_buffer *views = &batch->views, *rows = &batch->rows;
    if (batch->num_views < 1 || batch->num_views > MAX_VIEWS)
        PyErr_SetString(PyExc_ValueError, "outs must hold 1 to 64 views of an image, as uint8 [rows, views, size, size, 3]");
    else if (views->len != batch->count * batch->num_views * (Py_ssize_t)sizeof(view_t))
        PyErr_SetString(PyExc_ValueError, "views must be int32 [images, views, 9]");
    else if (rows->len != batch->count * (Py_ssize_t)sizeof(int32_t))
        PyErr_SetString(PyExc_ValueError, "rows must be int32 [images]");
    else if (filter < BILINEAR || filter > BILINEAR_NO_ANTIALIAS)
        PyErr_SetString(PyExc_ValueError, "filter must be 0, 1 or 2");
    else
        return batch->patch ? check_patches(batch) : check_squares(batch);
    return 0;
}

/* Set views and outputs of image i. */
static void set_crops(const batch_t *batch, Py_ssize_t i, crop_t *crops)
{
    const view_t *views = (const view_t *)batch->views.buf + i * batch->num_views;
    size_t place = ((const int32_t *)batch->rows.buf)[i];
    for (int v = 0; v < batch->num_views; v++)
        crops[v].view = views[v];
    if (batch->patch) {
        uint8_t *start = (uint8_t *)batch->outs->buf + place * batch->outs->shape[2];
        crops->out = (output_t){start, views->resized_height, views->resized_width, batch->patch};
        return;
    }
    for (const Py_buffer *out = batch->outs; out < batch->outs + batch->num_outs; out++) {
        int size = (int)out->shape[2], count = (int)out->shape[1];
        uint8_t *start = (uint8_t *)out->buf + place * count * 3 * size * size;
        for (int v = 0; v < count; v++, crops++, start += 3 * (size_t)size * size)
            crops->out = (output_t){start, size, size, 0};
    }
}

static int decode_batch(batch_t *batch, filter_t filter)
{
    decoder_t *decoder = new_decoder(batch->num_views);
    if (!decoder)
        return 0;
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        set_crops(batch, i, decoder->crops);
        decode_one(decoder, &batch->images[i], filter);
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
        if (!reason || PyList_SetItem(reasons, i, reason) < 0)
            Py_CLEAR(reasons);
    }
    return reasons;
}

/* Decode what was parsed into a batch, and release it. */
static PyObject *decode_and_release(batch_t *batch, PyObject *images, int filter)
{
    PyObject *reasons = NULL;
    if (hold_images(batch, images) && check_batch(batch, filter)) {
        int ok;
        Py_BEGIN_ALLOW_THREADS
        ok = decode_batch(batch, filter);
        Py_END_ALLOW_THREADS
        reasons = ok ? reasons_list(batch) : PyErr_NoMemory();
    }
    release(batch);
    return reasons;
}

static PyObject *decode_views(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *images, *outs;
    int filter;
    batch_t batch = {0};
    if (!PyArg_ParseTuple(args, "Oy*y*Oi", &images, &batch.views, &batch.rows, &outs, &filter))
        return NULL;
    if (!hold_outs(&batch, outs)) {
        release(&batch);
        return NULL;
    }
    for (int i = 0; i < batch.num_outs; i++)
        batch.num_views += views_of(&batch.outs[i]);
    return decode_and_release(&batch, images, filter);
}

static PyObject *decode_patches(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *images, *out;
    int filter;
    batch_t batch = {.num_views = 1};
    if (!PyArg_ParseTuple(args, "Oy*y*Oii", &images, &batch.views, &batch.rows, &out, &filter, &batch.patch))
        return NULL;
    if (batch.patch < 1)
        PyErr_SetString(PyExc_ValueError, "patch must be 1 or more");
    if (batch.patch < 1 || !hold_out(&batch, out)) {
        release(&batch);
        return NULL;
    }
    return decode_and_release(&batch, images, filter);
}

/* Scale a view into an array that is held; return why that is impossible, NULL if it was done. */
static const char *scale_into(
    decoder_t *decoder, const Py_buffer *pixels, int64_t height, int64_t width, const Py_buffer *out, int filter)
{
    const Py_ssize_t *shape = out->shape;
    if (height < 1 || width < 1 || height > MAX_PIXELS || height * width > MAX_PIXELS
        || pixels->len != height * width * PIXEL_BYTES)
        return "pixels must be RGBX, 100,000,000 at most";
    if (out->ndim != 3 || out->itemsize != 1 || shape[2] != 3 || shape[0] < 1 || shape[1] < 1 || shape[0] > MAX_SIDE
        || shape[1] > MAX_SIDE)
        return "out must be uint8 [height, width, 3]";
    if (filter < BILINEAR || filter > BILINEAR_NO_ANTIALIAS)
        return "filter must be 0, 1 or 2";
    decoder->jpeg.image_height = (JDIMENSION)height;
    decoder->jpeg.image_width = (JDIMENSION)width;
    decoder->crops->out = (output_t){out->buf, (int)shape[0], (int)shape[1], 0};
    if (setjmp(decoder->failed))
        return decoder->reason;
    scale_crop(decoder, pixels->buf, filter);
    return NULL;
}

static PyObject *scale_view(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer pixels, out;
    PyObject *array;
    int height, width, filter;
    decoder_t *decoder = new_decoder(1);
    if (!decoder)
        return PyErr_NoMemory();
    view_t *view = &decoder->crops->view;
    int ok = PyArg_ParseTuple(args, "y*ii(iiiiiiiip)Oi", &pixels, &height, &width, &view->top, &view->left,
                              &view->height, &view->width, &view->resized_height, &view->resized_width, &view->out_top,
                              &view->out_left, &view->flip, &array, &filter);
    if (ok && PyObject_GetBuffer(array, &out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) {
        PyBuffer_Release(&pixels);
        ok = 0;
    }
    if (ok) {
        const char *reason;
        Py_BEGIN_ALLOW_THREADS
        reason = scale_into(decoder, &pixels, height, width, &out, filter);
        Py_END_ALLOW_THREADS
        if (reason)
            PyErr_SetString(PyExc_ValueError, reason);
        ok = !reason;
        PyBuffer_Release(&pixels);
        PyBuffer_Release(&out);
    }
    free_decoder(decoder);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *image_size(PyObject *module, PyObject *data)
{
    (void)module;
    Py_buffer bytes;
    if (PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE))
        return NULL;
    PyObject *size = NULL;
    decoder_t *decoder = new_decoder(0);
    if (!decoder)
        PyErr_NoMemory();
    else {
        if (setjmp(decoder->failed))
            PyErr_SetString(PyExc_ValueError, decoder->reason);
        else {
            read_header(decoder, &bytes);
            size = Py_BuildValue("II", decoder->jpeg.image_height, decoder->jpeg.image_width);
        }
        free_decoder(decoder);
    }
    PyBuffer_Release(&bytes);
    return size;
}

static PyMethodDef methods[] = {
    {"decode_views", decode_views, METH_VARARGS,
     "decode_views(images, views, rows, outs, filter) -> list[str | None]\n\n"
     "Decodes each image once, and writes its views to row rows[i] of the outs: the first views to the first out, and\n"
     "so on. Says why where it cannot, and zeroes the row.\n"
     "images: bytes-like; views: int32 [n, views, 9]; rows: int32 [n]; outs: arrays of uint8 [rows, views, size, size,\n"
     "3], whose views add up to those of an image, 64 at most; each C-contiguous.\n"
     "filter: 0 bilinear, 1 bicubic, 2 bilinear without antialiasing. Releases the interpreter lock."},
    {"decode_patches", decode_patches, METH_VARARGS,
     "decode_patches(images, views, starts, out, filter, patch) -> list[str | None]\n\n"
     "Cuts each view, int32 [n, 9], into patches; out is uint8 [rows, tokens, 3 * patch * patch], and starts has the\n"
     "token at which each image begins, counted over all rows of out. Otherwise as decode_views."},
    {"scale_view", scale_view, METH_VARARGS,
     "scale_view(pixels, height, width, view, out, filter)\n\n"
     "Scales a view of decoded pixels, four bytes each, red first, into out, uint8 [height, width, 3].\n"
     "Raises ValueError where it cannot. Releases the interpreter lock."},
    {"image_size", image_size, METH_O,
     "image_size(data) -> (height, width)\n\nFrom a JPEG's header. Raises ValueError where it cannot be read."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_jpeg", .m_doc = "See loaders/decode/decoders.py.", .m_size = -1, .m_methods = methods};

#define TEXT(macro) TEXT_(macro)
#define TEXT_(value) #value

PyMODINIT_FUNC PyInit__jpeg(void)
{
#if HAS_SIMD_CODE
    has_avx2 = __builtin_cpu_supports("avx2");
#ifndef WITHOUT_AVX512
    has_avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
#endif
#endif
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "LIBRARY_VERSION", TEXT(LIBJPEG_TURBO_VERSION)) < 0)
        Py_CLEAR(module);
    return module;
}
