/* Fuzz target of dataprep/formats/_check.c, for libFuzzer.
 *
 * An input is a JPEG. Whatever the bytes are, the sanitizers find nothing. If our reader says that the file is sound,
 * libjpeg decodes it to its end without a warning, and to the size that our reader says.
 */

#include "../../dataprep/formats/_check.c"

#include "full_decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    picture_t picture;
    uint8_t *copy = malloc(size); /* of just this size, so that a look behind it is found */
    memcpy(copy, data, size);
    int is_sound = read_picture(&picture, copy, size);
    full_t full;
    if (is_sound) {
        int is_small = full_decode(&full, copy, size, 0);
        require(!is_small || full.pixels, "what is sound is decoded without a warning");
        require((int)picture.width == full.width && (int)picture.height == full.height, "the size is that of libjpeg");
        free(full.pixels);
    }
    free(copy);
    return 0;
}
