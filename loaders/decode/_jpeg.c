/* Decodes what a view needs of a JPEG and scales it into a batch, without Python's lock.
 *
 * libjpeg-turbo with the accurate integer transform and smooth chroma, as Pillow and simplejpeg have them. Of rows
 * above the view only the Huffman codes are read, columns beside it are neither transformed nor converted, rows below
 * it not read; inside it every sample equals that of a full decode. _jpeg_huffman.h reads the codes of baseline files,
 * _jpeg_resize.h scales; loaders/decode/decoders.py calls this.
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
#if __has_include(<jpegint.h>) && defined(__GNUC__) && !defined(PLAIN_C)
#define HAS_HUFFMAN_CODE 1
#include <jpegint.h>
#include "_jpeg_huffman.h"
#endif
#endif

#include "_jpeg_resize.h"

#define MAX_PIXELS 100000000
/* The limits of dataprep/formats/image_limits.py: a small progressive file can ask for any number of passes over its
 * pixels. */
#define MAX_SCANS 500
#define MAX_SCAN_PIXELS 5000000000LL
#define MAX_SIDE (1 << 24) /* side of a scaled view, at most; of a long, thin image only the middle is computed */

/* Margin in pixels: one for the neighbour, and one more because libjpeg treats a crop of one pixel as an image that is
 * too narrow to have neighbours. */
#define RIGHT_MARGIN 2
/* Offset of rows from an aligned address. libjpeg-turbo writes aligned rows past the caches, but they are read again at
 * once; unaligned rows save 0.15 ms of an image. */
#define ROW_OFFSET 4

/* Where an image goes: pixels of the output, and the side of the patches into which it is cut, 0 for none. */
typedef struct {
    uint8_t *start;
    int height, width, patch;
} output_t;

/* A loaders.decode.crop.View. */
typedef struct {
    int32_t top, left, height, width, resized_height, resized_width, out_top, out_left, flip;
} view_t;

#if HAS_HUFFMAN_CODE
typedef struct {
    bits_t bits;
    struct {
        const huffman_t *dc, *ac;
        int *last_dc;
    } blocks[D_MAX_BLOCKS_IN_MCU];
    int last_dc[MAX_COMPS_IN_SCAN];
    JDIMENSION column, first_column, last_column; /* in MCUs; only columns first .. last are stored */
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
    buffer_t row_taps, column_taps, rows, narrow, whole;
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
    J_COLOR_SPACE space = jpeg->jpeg_color_space;
    if (space != JCS_GRAYSCALE && space != JCS_YCbCr && space != JCS_RGB)
        fail(decoder, "neither grey, YCbCr nor RGB");
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

/* Replaces libjpeg's function: fill the zeroed blocks of an MCU, or read over it where there are no blocks. */
static inline __attribute__((always_inline)) boolean read_mcu_inline(j_decompress_ptr jpeg, JBLOCKROW *blocks)
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
        const huffman_t *dc = scan->blocks[i].dc, *ac = scan->blocks[i].ac;
        int *last_dc = scan->blocks[i].last_dc;
        clean &= wanted ? read_block(&bits, dc, ac, last_dc, *blocks[i], 1)
                        : read_block(&bits, dc, ac, last_dc, NULL, 0);
        clean &= *last_dc < MOST_DC && *last_dc > -MOST_DC;
    }
    if (!clean || bits.count < bits.invented)
        give_up(decoder);
    scan->bits = bits;
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
    for (int i = 0; i < jpeg->comps_in_scan; i++) {
        const jpeg_component_info *component = jpeg->cur_comp_info[i];
        make_huffman(&scan->dc[component->dc_tbl_no], jpeg->dc_huff_tbl_ptrs[component->dc_tbl_no], 0);
        make_huffman(&scan->ac[component->ac_tbl_no], jpeg->ac_huff_tbl_ptrs[component->ac_tbl_no], 1);
    }
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        int number = jpeg->MCU_membership[i];
        const jpeg_component_info *component = jpeg->cur_comp_info[number];
        scan->blocks[i].dc = &scan->dc[component->dc_tbl_no];
        scan->blocks[i].ac = &scan->ac[component->ac_tbl_no];
        scan->blocks[i].last_dc = &scan->last_dc[number];
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
#if HAS_SIMD_CODE
    if (__builtin_cpu_supports("bmi2"))
        jpeg->entropy->decode_mcu = read_mcu_bmi2;
#endif
}

#endif

static void read_row(decoder_t *decoder, uint8_t *row)
{
    JSAMPROW rows[1] = {row};
    if (jpeg_read_scanlines(&decoder->jpeg, rows, 1) != 1)
        fail(decoder, "no more rows");
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

static void decode_view(
    decoder_t *decoder, const Py_buffer *data, const view_t *view, filter_t filter, const output_t *out, int plain)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    read_header(decoder, data);
    check_image(decoder);
    check_view(decoder, view, out);
    taps_t columns, lines;
    if (!make_taps(&columns, &decoder->column_taps, filter, view->width, view->resized_width, view->out_left,
                   out->width, view->flip)
        || !make_taps(&lines, &decoder->row_taps, filter, view->height, view->resized_height, view->out_top,
                      out->height, 0))
        fail(decoder, "out of memory");
    int left = view->left + columns.from, right = view->left + columns.to;
    int top = view->top + lines.from, height = lines.to - lines.from;

    jpeg->out_color_space = JCS_EXT_RGBX;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg->do_fancy_upsampling = TRUE;
    jpeg->do_block_smoothing = FALSE; /* smoothing serves only files that end early, and reads far beyond the view */
    jpeg_start_decompress(jpeg);
    JDIMENSION from = decode_from(left, jpeg->max_h_samp_factor * DCTSIZE);
    JDIMENSION to = right + RIGHT_MARGIN < (int)jpeg->image_width ? right + RIGHT_MARGIN : (int)jpeg->image_width;
    JDIMENSION width = to - from;
    jpeg_crop_scanline(jpeg, &from, &width);
#if HAS_HUFFMAN_CODE
    JDIMENSION mcu = (jpeg->comps_in_scan == 1 ? 1 : jpeg->max_h_samp_factor) * DCTSIZE;
    if (!plain)
        replace_reader(decoder, from / mcu, (from + width + mcu - 1) / mcu);
#else
    (void)plain;
#endif
    size_t row_bytes = ((jpeg->output_width + 4 * (size_t)columns.quads) * PIXEL_BYTES + 31) / 32 * 32;
    size_t stride = 3 * (size_t)out->width + SPARE_BYTES;
    uint8_t *two = reserve_or_fail(decoder, &decoder->rows, 2 * row_bytes + ROW_OFFSET);
    two += ROW_OFFSET;
    uint8_t *narrow = reserve_or_fail(decoder, &decoder->narrow, (height + 1 + 4 * (size_t)lines.quads) * stride);

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
        narrow_two(rows, both, &columns, out->width);
    }
    uint8_t *whole = out->patch ? reserve_or_fail(decoder, &decoder->whole, output_bytes(out)) : out->start;
    mix_all(narrow, stride, &lines, whole, out->height, out->width);
    if (out->patch)
        cut_patches(whole, out);
}

static void decode_one(
    decoder_t *decoder, const Py_buffer *data, const view_t *view, filter_t filter, const output_t *out)
{
    decoder->reason[0] = 0;
    switch (setjmp(decoder->failed)) {
    case 0:
        decode_view(decoder, data, view, filter, out, 0);
        break;
    case GIVEN_UP:
        decode_view(decoder, data, view, filter, out, 1);
        break;
    default:
        memset(out->start, 0, output_bytes(out));
    }
}

static decoder_t *new_decoder(void)
{
    decoder_t *decoder = calloc(1, sizeof *decoder);
    if (!decoder)
        return NULL;
    decoder->jpeg.err = jpeg_std_error(&decoder->errors);
    decoder->errors.error_exit = on_error;
    decoder->errors.emit_message = on_message;
    decoder->progress.progress_monitor = on_progress;
    decoder->jpeg.client_data = decoder;
    return decoder;
}

static void free_decoder(decoder_t *decoder)
{
    jpeg_destroy_decompress(&decoder->jpeg);
    free(decoder->row_taps.data);
    free(decoder->column_taps.data);
    free(decoder->rows.data);
    free(decoder->narrow.data);
    free(decoder->whole.data);
    free(decoder);
}

/* ---- Python ---- */

/* Arguments of one call, whose buffers are held until it ends. */
typedef struct {
    Py_ssize_t count;
    Py_buffer *images;
    Py_ssize_t held;
    Py_buffer views, rows, out;
    int patch; /* side of the patches that `out` holds; 0 where it holds squares */
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

/* Return whether the grid of image i lies inside a row of out, which must be uint8 [rows, tokens, patch bytes]. */
static int is_inside_row(const batch_t *batch, Py_ssize_t i)
{
    const view_t *view = (const view_t *)batch->views.buf + i;
    int64_t token = ((const int32_t *)batch->rows.buf)[i], in_row = batch->out.shape[1], patch = batch->patch;
    if (view->out_top || view->out_left || view->resized_height < patch || view->resized_width < patch
        || view->resized_height % patch || view->resized_width % patch)
        return 0;
    int64_t tokens = view->resized_height / patch * (view->resized_width / patch);
    return token >= 0 && token / in_row < batch->out.shape[0] && token % in_row + tokens <= in_row;
}

static int check_patches(const batch_t *batch)
{
    const Py_buffer *out = &batch->out;
    if (batch->patch < 1 || batch->patch > JPEG_MAX_DIMENSION || out->ndim != 3 || out->itemsize != 1
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

static int check_squares(const batch_t *batch)
{
    const Py_buffer *rows = &batch->rows, *out = &batch->out;
    if (out->ndim != 4 || out->itemsize != 1 || out->shape[1] != out->shape[2] || out->shape[3] != 3
        || out->shape[1] < 1 || out->shape[1] > JPEG_MAX_DIMENSION) {
        PyErr_SetString(PyExc_ValueError, "out must be uint8 [rows, size, size, 3]");
        return 0;
    }
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        int32_t row = ((const int32_t *)rows->buf)[i];
        if (row < 0 || row >= out->shape[0]) {
            PyErr_SetString(PyExc_ValueError, "a row is not one of out");
            return 0;
        }
    }
    return 1;
}

static int check_batch(const batch_t *batch, int filter)
{
    const Py_buffer *views = &batch->views, *rows = &batch->rows;
    if (views->len != batch->count * (Py_ssize_t)sizeof(view_t))
        PyErr_SetString(PyExc_ValueError, "views must be int32 [images, 9]");
    else if (rows->len != batch->count * (Py_ssize_t)sizeof(int32_t))
        PyErr_SetString(PyExc_ValueError, "rows must be int32 [images]");
    else if (filter < BILINEAR || filter > BILINEAR_NO_ANTIALIAS)
        PyErr_SetString(PyExc_ValueError, "filter must be 0, 1 or 2");
    else
        return batch->patch ? check_patches(batch) : check_squares(batch);
    return 0;
}

static output_t output_of(const batch_t *batch, Py_ssize_t i)
{
    const view_t *view = (const view_t *)batch->views.buf + i;
    size_t place = ((const int32_t *)batch->rows.buf)[i];
    uint8_t *start = batch->out.buf;
    if (batch->patch)
        return (output_t){start + place * batch->out.shape[2], view->resized_height, view->resized_width, batch->patch};
    int size = (int)batch->out.shape[1];
    return (output_t){start + place * 3 * size * size, size, size, 0};
}

static int decode_batch(batch_t *batch, filter_t filter)
{
    decoder_t *decoder = new_decoder();
    if (!decoder)
        return 0;
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        output_t out = output_of(batch, i);
        decode_one(decoder, &batch->images[i], (const view_t *)batch->views.buf + i, filter, &out);
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
    if (!PyArg_ParseTuple(args, "Oy*y*Oi|i", &images, &batch.views, &batch.rows, &out, &filter, &batch.patch))
        return NULL;
    if (PyObject_GetBuffer(out, &batch.out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) == 0 && hold_images(&batch, images)
        && check_batch(&batch, filter)) {
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
            read_header(decoder, &bytes);
            size = Py_BuildValue("II", decoder->jpeg.image_height, decoder->jpeg.image_width);
        }
        free_decoder(decoder);
    }
    PyBuffer_Release(&bytes);
    return size;
}

static PyMethodDef methods[] = {
    {"decode_many", decode_many, METH_VARARGS,
     "decode_many(images, views, rows, out, filter, patch=0) -> list[str | None]\n\n"
     "Writes image i, cut and scaled by views[i], to out[rows[i]]; says why where it cannot, and zeroes that row.\n"
     "images: bytes-like; views: int32 [n, 9]; rows: int32 [n]; out: uint8 [rows, size, size, 3], each C-contiguous;\n"
     "filter: 0 bilinear, 1 bicubic, 2 bilinear without antialiasing. Releases the interpreter lock.\n"
     "With a patch the whole view is cut into patches: out is uint8 [rows, tokens, 3 * patch * patch], and rows has\n"
     "the token at which each image begins, counted over all rows of out."},
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
#endif
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "LIBRARY_VERSION", TEXT(LIBJPEG_TURBO_VERSION)) < 0)
        Py_CLEAR(module);
    return module;
}
