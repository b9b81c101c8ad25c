/* Fuzz target of loaders/decode/_jpeg.c, for libFuzzer.
 *
 * An input is a JPEG, and behind it 16 bytes for each of two views, which readers of JPEG pass over. The first view is at
 * its own size or scaled, the second one is scaled or absent. Whatever the bytes are, the sanitizers find nothing. If
 * libjpeg decodes the file without a warning, every view is decoded, a view at its own size has the pixels of libjpeg's
 * picture, and every view is the same with our reader of Huffman codes and with that of libjpeg, and with the vector
 * instructions of another processor. Where the extension refuses an image, its outputs are zeros.
 */

#include "../../loaders/decode/_jpeg.c"

#include "full_decode.h"

#define VIEWS 2
#define MOST_SIDE 48 /* of a scaled view's output */

typedef struct {
    uint16_t top, left, height, width, resized_height, resized_width;
    uint8_t out_top, out_left, kind, patch;
} choice_t;

/* Set a view from the input's choice: at its own size, scaled, or scaled and cut into patches. */
static void choose_view(crop_t *crop, const choice_t *choice, const full_t *full, int at_own_size)
{
    view_t *view = &crop->view;
    output_t *out = &crop->out;
    view->top = choice->top % full->height;
    view->left = choice->left % full->width;
    view->height = 1 + choice->height % (full->height - view->top);
    view->width = 1 + choice->width % (full->width - view->left);
    view->flip = choice->kind & 1;
    view->out_top = view->out_left = 0;
    out->patch = 0;
    if (at_own_size) {
        out->height = view->resized_height = view->height;
        out->width = view->resized_width = view->width;
    } else if (choice->kind & 2) {
        out->patch = 1 + choice->patch % 16;
        out->height = view->resized_height = out->patch * (1 + choice->resized_height % (MOST_SIDE / out->patch));
        out->width = view->resized_width = out->patch * (1 + choice->resized_width % (MOST_SIDE / out->patch));
    } else {
        view->resized_height = 1 + choice->resized_height % (16 * MOST_SIDE);
        view->resized_width = 1 + choice->resized_width % (16 * MOST_SIDE);
        view->out_top = choice->out_top % view->resized_height;
        view->out_left = choice->out_left % view->resized_width;
        out->height = smaller(MOST_SIDE, view->resized_height - view->out_top);
        out->width = smaller(MOST_SIDE, view->resized_width - view->out_left);
    }
    out->start = malloc(output_bytes(out)); /* of just this size, so that a write behind it is found */
    memset(out->start, 7, output_bytes(out));
}

static void compare_with_picture(const crop_t *crop, const full_t *full)
{
    const view_t *view = &crop->view;
    const uint8_t *found = crop->out.start;
    for (int row = 0; row < view->height; row++)
        for (int column = 0; column < view->width; column++, found += 3) {
            int from = view->left + (view->flip ? view->width - 1 - column : column);
            const uint8_t *expected = full->pixels + 3 * ((size_t)(view->top + row) * full->width + from);
            require(memcmp(found, expected, 3) == 0, "a view at its own size has the pixels of libjpeg's picture");
        }
}

static int is_zero(const output_t *out)
{
    for (size_t i = 0; i < output_bytes(out); i++)
        if (out->start[i])
            return 0;
    return 1;
}

/* Scale as processors of a level do: 0 without vector instructions, 1 with AVX2, 2 with AVX-512 as well. */
static void set_processor(int level)
{
#if HAS_SIMD_CODE
    has_avx2 = level >= 1 && __builtin_cpu_supports("avx2");
    has_avx512 = level >= 2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
#else
    (void)level;
#endif
}

/* Decode the views again with libjpeg's reader of Huffman codes; they must be the same. */
static void compare_with_plain(decoder_t *decoder, const Py_buffer *image, filter_t filter)
{
    uint8_t *found[VIEWS];
    for (int i = 0; i < decoder->num_crops; i++) {
        output_t *out = &decoder->crops[i].out;
        found[i] = out->start;
        out->start = malloc(output_bytes(out));
    }
    if (setjmp(decoder->failed))
        require(0, "what our reader decodes libjpeg's decodes, too");
    decode_crops(decoder, image, filter, 1);
    for (int i = 0; i < decoder->num_crops; i++) {
        output_t *out = &decoder->crops[i].out;
        require(memcmp(found[i], out->start, output_bytes(out)) == 0, "our reader gives the pixels that libjpeg's gives");
        free(found[i]);
    }
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

/* Change the views of every fourth input, and the JPEG of the others. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    uint8_t choices[VIEWS * sizeof(choice_t)];
    if (size < sizeof choices || max_size < 2 * sizeof choices)
        return LLVMFuzzerMutate(data, size, max_size);
    size -= sizeof choices;
    memcpy(choices, data + size, sizeof choices);
    if (seed % 4)
        size = LLVMFuzzerMutate(data, size, max_size - sizeof choices);
    else
        for (size_t i = 0; i < sizeof choices; i++)
            choices[i] = rand_r(&seed) >> 8;
    memcpy(data + size, choices, sizeof choices);
    return size + sizeof choices;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    choice_t choices[VIEWS];
    if (size < sizeof choices)
        return -1;
    memcpy(choices, data + size - sizeof choices, sizeof choices);
    full_t full;
    if (!full_decode(&full, data, size, 0)) {
        free(full.pixels);
        return -1;
    }
    Py_buffer image = {.buf = (void *)data, .len = size};
    decoder_t *decoder = new_decoder(choices[0].kind & 4 ? VIEWS : 1);
    if (!full.width || !full.height)
        full.width = full.height = 1; /* libjpeg refuses the header, and so must the extension */
    int at_own_size = choices[0].kind & 16;
    for (int i = 0; i < decoder->num_crops; i++)
        choose_view(&decoder->crops[i], &choices[i], &full, i == 0 && at_own_size);
    filter_t filter = choices[0].kind / 8 % 3;
    int processor = choices[1].kind / 16 % 3;
    set_processor(processor);
    /* A second image with the tables of the first is read over by tables for skipping. */
    for (int images = choices[0].kind & 32 ? 2 : 1; images; images--)
        decode_one(decoder, &image, filter);
    if (decoder->reason[0])
        for (int i = 0; i < decoder->num_crops; i++)
            require(is_zero(&decoder->crops[i].out), "what is refused is zeroed");
    if (full.pixels) {
        require(!decoder->reason[0], "what libjpeg decodes without a warning is decoded");
        if (at_own_size)
            compare_with_picture(&decoder->crops[0], &full);
        set_processor((processor + 1) % 3);
        compare_with_plain(decoder, &image, filter);
    }
    for (int i = 0; i < decoder->num_crops; i++)
        free(decoder->crops[i].out.start);
    free_decoder(decoder);
    free(full.pixels);
    return 0;
}
