/* The picture that libjpeg itself makes of a JPEG: what a fuzz target compares the extension's picture with. */

#ifndef TESTS_FULL_DECODE_H
#define TESTS_FULL_DECODE_H

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#define MOST_PIXELS (1 << 13) /* a larger image would only slow the fuzzer down */

typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf failed;
    int width, height, is_baseline, is_readable; /* is_readable: its colours and its coding are those that we read */
    uint8_t *pixels; /* NULL unless the file was decoded to its end without a warning; otherwise RGB [height, width, 3] */
} full_t;

static void full_error(j_common_ptr jpeg)
{
    longjmp(((full_t *)jpeg->client_data)->failed, 1);
}

static void full_message(j_common_ptr jpeg, int level)
{
    if (level < 0)
        full_error(jpeg);
}

/* Decode a file; `smooth` smooths what a progressive file leaves out, as decoders do by default. Return whether the
 * image is small enough to be of use. */
static int full_decode(full_t *full, const uint8_t *data, size_t size, int smooth)
{
    j_decompress_ptr jpeg = &full->jpeg;
    memset(full, 0, sizeof *full);
    jpeg->err = jpeg_std_error(&full->errors);
    full->errors.error_exit = full_error;
    full->errors.emit_message = full_message;
    jpeg_create_decompress(jpeg);
    jpeg->client_data = full;
    if (setjmp(full->failed)) {
        free(full->pixels);
        full->pixels = NULL;
    } else {
        jpeg_mem_src(jpeg, data, size);
        jpeg_read_header(jpeg, TRUE);
        full->width = jpeg->image_width;
        full->height = jpeg->image_height;
        J_COLOR_SPACE space = jpeg->jpeg_color_space;
        full->is_readable = !jpeg->arith_code && (space == JCS_GRAYSCALE || space == JCS_YCbCr || space == JCS_RGB);
        full->is_baseline = !jpeg->progressive_mode;
        if ((int64_t)full->width * full->height <= MOST_PIXELS && full->is_readable) {
            jpeg->out_color_space = JCS_RGB;
            jpeg->dct_method = JDCT_ISLOW;
            jpeg->do_fancy_upsampling = TRUE;
            jpeg->do_block_smoothing = smooth;
            jpeg_start_decompress(jpeg);
            size_t row_bytes = 3 * (size_t)full->width;
            full->pixels = malloc(row_bytes * full->height);
            while (jpeg->output_scanline < jpeg->output_height) {
                JSAMPROW row = full->pixels + jpeg->output_scanline * row_bytes;
                jpeg_read_scanlines(jpeg, &row, 1);
            }
            jpeg_finish_decompress(jpeg);
        }
    }
    jpeg_destroy_decompress(jpeg);
    return (int64_t)full->width * full->height <= MOST_PIXELS;
}

static void require(int condition, const char *promise)
{
    if (!condition) {
        fprintf(stderr, "broken promise: %s\n", promise);
        abort();
    }
}

#endif
