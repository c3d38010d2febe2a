/* fuzz_npy.c - neap_load_npy on any bytes: a tensor, or an error on record. */
#include "fuzz.h"

static int read_one(neap_ctx *c, const char *path)
{
    neap_tensor *t = neap_load_npy(c, path);
    int ok = t != NULL;
    neap_free(t);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file(data, size, read_one);
    return 0;
}
