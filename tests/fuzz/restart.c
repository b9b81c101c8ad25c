/* Fuzz target of dataprep/formats/_restart.c, for libFuzzer.
 *
 * An input is a JPEG, and behind it two bytes for the length of an interval. Whatever the bytes are, the sanitizers find
 * nothing. If the file is written again, libjpeg decodes both files without a warning, to the same pixels, and the new
 * one is baseline and at most twice as large with the room for its tables.
 */

#include "../../dataprep/formats/_restart.c"

#include "full_decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint16_t interval_bytes;
    if (size < sizeof interval_bytes)
        return -1;
    memcpy(&interval_bytes, data + size - sizeof interval_bytes, sizeof interval_bytes);
    full_t before, after;
    if (!full_decode(&before, data, size, 1)) {
        free(before.pixels);
        return -1;
    }
    Py_buffer image = {.buf = (void *)data, .len = size};
    transcoder_t *transcoder = calloc(1, sizeof *transcoder);
    int is_written = transcode(transcoder, &image, 1 + interval_bytes);
    jpeg_destroy_compress(&transcoder->out);
    jpeg_destroy_decompress(&transcoder->in);
    if (is_written && before.is_readable) {
        require(before.pixels != NULL, "only a file that libjpeg decodes without a warning is written again");
        full_decode(&after, transcoder->written, transcoder->num_bytes, 1);
        require(after.pixels != NULL, "what is written is decoded without a warning");
        require(after.is_baseline, "what is written is baseline");
        require(after.width == before.width && after.height == before.height
                    && memcmp(after.pixels, before.pixels, 3 * (size_t)before.width * before.height) == 0,
                "what is written has the pixels of the original");
        require(transcoder->num_bytes <= 2 * size + MAX_TABLE_BYTES, "what is written is at most twice as large");
        free(after.pixels);
    }
    free(transcoder->written);
    free(transcoder);
    free(before.pixels);
    return 0;
}
