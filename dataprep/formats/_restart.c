/* Writes a JPEG's coefficients again, with optimised Huffman tables and a restart marker every few MCUs, without
 * Python's lock.
 *
 * Coefficients, quantisation tables, sampling factors, component numbers and the segments in front of the image stay as
 * they are, so every decoder gets the same pixels; a progressive file becomes a baseline one. libjpeg-turbo reads and
 * writes. A file is refused if anything about it is odd, because decoders may disagree about what it shows: its bytes
 * are kept then. dataprep/builder/images.py calls this.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

/* The limits of dataprep/formats/pictures.py. */
#define MAX_PIXELS 100000000
#define MAX_SCANS 500
#define MAX_SCAN_PIXELS 5000000000LL

#define MAX_SEGMENT_BYTES 0xffff
#define MAX_TABLE_BYTES 4096 /* quantisation and Huffman tables and the headers, at most */

typedef struct {
    struct jpeg_decompress_struct in;
    struct jpeg_compress_struct out;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char reason[JMSG_LENGTH_MAX];
    struct jpeg_destination_mgr destination;
    JOCTET *written;
    size_t num_bytes;
} transcoder_t;

static void fail(transcoder_t *transcoder, const char *reason)
{
    snprintf(transcoder->reason, sizeof transcoder->reason, "%s", reason);
    longjmp(transcoder->failed, 1);
}

static void on_error(j_common_ptr jpeg)
{
    transcoder_t *transcoder = jpeg->client_data;
    jpeg->err->format_message(jpeg, transcoder->reason);
    longjmp(transcoder->failed, 1);
}

/* Warnings are errors here: they say that the data are corrupt. */
static void on_message(j_common_ptr jpeg, int level)
{
    if (level < 0)
        on_error(jpeg);
}

static void on_progress(j_common_ptr common)
{
    j_decompress_ptr in = (j_decompress_ptr)common;
    int64_t scans = in->input_scan_number;
    if (scans > MAX_SCANS || scans * in->image_width * in->image_height > MAX_SCAN_PIXELS)
        fail(common->client_data, "too many scans");
}

/* ---- reading ---- */

static jvirt_barray_ptr *read_coefficients(transcoder_t *transcoder, const Py_buffer *data)
{
    j_decompress_ptr in = &transcoder->in;
    jpeg_create_decompress(in);
    in->progress = &transcoder->progress;
    for (int number = 0; number < 16; number++)
        jpeg_save_markers(in, JPEG_APP0 + number, MAX_SEGMENT_BYTES);
    jpeg_save_markers(in, JPEG_COM, MAX_SEGMENT_BYTES);
    jpeg_mem_src(in, data->buf, data->len);
    jpeg_read_header(in, TRUE);
    if ((int64_t)in->image_width * in->image_height > MAX_PIXELS)
        fail(transcoder, "more than 100,000,000 pixels");
    if (in->arith_code)
        fail(transcoder, "arithmetic coding");
    if (in->data_precision != 8) /* libjpeg-turbo 3 copies 12 bits, which few decoders read; earlier ones refuse them */
        fail(transcoder, "other than 8 bits a sample");
    return jpeg_read_coefficients(in);
}

/* Decoders smooth what a progressive file leaves out, but do not smooth baseline files. */
static void refuse_unfinished(transcoder_t *transcoder)
{
    const struct jpeg_decompress_struct *in = &transcoder->in;
    if (!in->progressive_mode)
        return;
    for (int component = 0; component < in->num_components; component++)
        for (int k = 0; k < DCTSIZE2; k++)
            if (in->coef_bits[component][k])
                fail(transcoder, "a progressive file without all of its scans");
}

/* ---- writing ---- */

static void begin_writing(j_compress_ptr out)
{
    transcoder_t *transcoder = out->client_data;
    out->dest->next_output_byte = transcoder->written;
    out->dest->free_in_buffer = transcoder->num_bytes;
}

static boolean refuse_more(j_compress_ptr out)
{
    fail(out->client_data, "it would take twice as many bytes");
    return FALSE;
}

static void end_writing(j_compress_ptr out)
{
    transcoder_t *transcoder = out->client_data;
    transcoder->num_bytes -= out->dest->free_in_buffer;
}

static void reserve_output(transcoder_t *transcoder, size_t num_bytes)
{
    transcoder->num_bytes = num_bytes;
    transcoder->written = malloc(num_bytes);
    if (!transcoder->written)
        fail(transcoder, "out of memory");
    transcoder->destination.init_destination = begin_writing;
    transcoder->destination.empty_output_buffer = refuse_more;
    transcoder->destination.term_destination = end_writing;
    transcoder->out.dest = &transcoder->destination;
}

/* Return whether a segment lists further images behind the first one (CIPA DC-007), which are not written. */
static int lists_images(const struct jpeg_marker_struct *segment)
{
    return segment->marker == JPEG_APP0 + 2 && segment->data_length >= 4 && memcmp(segment->data, "MPF", 4) == 0;
}

/* Return the number of MCUs of an interval that takes about `interval_bytes`. */
static unsigned int interval_of(const transcoder_t *transcoder, Py_ssize_t num_bytes, int interval_bytes)
{
    const struct jpeg_decompress_struct *in = &transcoder->in;
    int64_t width = in->max_h_samp_factor * DCTSIZE, height = in->max_v_samp_factor * DCTSIZE;
    if (in->num_components == 1)
        width = height = DCTSIZE;
    int64_t mcus_per_row = (in->image_width + width - 1) / width;
    int64_t mcus = mcus_per_row * ((in->image_height + height - 1) / height);
    int64_t coded_bytes = num_bytes;
    for (const struct jpeg_marker_struct *segment = in->marker_list; segment; segment = segment->next)
        coded_bytes -= segment->data_length;
    int64_t interval = (interval_bytes * mcus + coded_bytes / 2) / (coded_bytes > 1 ? coded_bytes : 1);
    interval = interval < mcus_per_row ? interval : mcus_per_row;
    return interval > 1 ? (unsigned int)interval : 1;
}

static void write_coefficients(transcoder_t *transcoder, jvirt_barray_ptr *coefficients, unsigned int interval,
                               size_t most_bytes)
{
    j_decompress_ptr in = &transcoder->in;
    j_compress_ptr out = &transcoder->out;
    jpeg_create_compress(out);
    jpeg_copy_critical_parameters(in, out);
    out->optimize_coding = TRUE;
    out->restart_interval = interval;
    /* The segments of the file say how its colours are meant; libjpeg would add its own ones. */
    out->write_JFIF_header = out->write_Adobe_marker = FALSE;
    reserve_output(transcoder, most_bytes);
    jpeg_write_coefficients(out, coefficients);
    for (const struct jpeg_marker_struct *segment = in->marker_list; segment; segment = segment->next)
        if (!lists_images(segment))
            jpeg_write_marker(out, segment->marker, segment->data, segment->data_length);
    jpeg_finish_compress(out);
}

/* Return whether the file was written; if not, `reason` says why. */
static int transcode(transcoder_t *transcoder, const Py_buffer *data, int interval_bytes)
{
    transcoder->in.err = transcoder->out.err = jpeg_std_error(&transcoder->errors);
    transcoder->errors.error_exit = on_error;
    transcoder->errors.emit_message = on_message;
    transcoder->progress.progress_monitor = on_progress;
    transcoder->in.client_data = transcoder->out.client_data = transcoder;
    if (setjmp(transcoder->failed))
        return 0;
    jvirt_barray_ptr *coefficients = read_coefficients(transcoder, data);
    refuse_unfinished(transcoder);
    unsigned int interval = interval_of(transcoder, data->len, interval_bytes);
    write_coefficients(transcoder, coefficients, interval, 2 * (size_t)data->len + MAX_TABLE_BYTES);
    return 1;
}

/* ---- Python ---- */

static PyObject *with_restarts(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer data;
    int interval_bytes;
    if (!PyArg_ParseTuple(args, "y*i", &data, &interval_bytes))
        return NULL;
    transcoder_t *transcoder = calloc(1, sizeof *transcoder);
    if (!transcoder) {
        PyBuffer_Release(&data);
        return PyErr_NoMemory();
    }
    int is_written;
    Py_BEGIN_ALLOW_THREADS
    is_written = transcode(transcoder, &data, interval_bytes);
    jpeg_destroy_compress(&transcoder->out);
    jpeg_destroy_decompress(&transcoder->in);
    Py_END_ALLOW_THREADS
    PyObject *result = NULL;
    if (is_written)
        result = PyBytes_FromStringAndSize((const char *)transcoder->written, transcoder->num_bytes);
    else
        PyErr_SetString(PyExc_ValueError, transcoder->reason);
    free(transcoder->written);
    free(transcoder);
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef methods[] = {
    {"with_restarts", with_restarts, METH_VARARGS,
     "with_restarts(data, interval_bytes) -> bytes\n\n"
     "Return a JPEG with the same coefficients as baseline JPEG, with a restart marker about every interval_bytes.\n"
     "Raises ValueError where this could change what a decoder shows. Releases the interpreter lock."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_restart", .m_doc = "See dataprep/builder/images.py.", .m_size = -1, .m_methods = methods};

#define TEXT(macro) TEXT_(macro)
#define TEXT_(value) #value

PyMODINIT_FUNC PyInit__restart(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "LIBRARY_VERSION", TEXT(LIBJPEG_TURBO_VERSION)) < 0)
        Py_CLEAR(module);
    return module;
}
