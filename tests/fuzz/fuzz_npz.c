/* fuzz_npz.c - neap_load_npz on any bytes: arrays, or an error on record. */
#include "fuzz.h"

static int read_all(neap_ctx *c, const char *path)
{
    neap_npz *z = neap_load_npz(c, path);
    int ok = z != NULL;
    for (int i = 0; ok && i < neap_npz_count(z); i++) {
        neap_tensor *t = neap_npz_tensor(c, z, i);
        ok = t && neap_npz_name(z, i);
        neap_free(t);
    }
    neap_npz_free(z);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file(data, size, read_all);
    return 0;
}
