/* fuzz_safetensors.c - neap_load on any bytes: opens and reads every tensor, or records an error. */
#include "fuzz.h"

static int load_all(neap_ctx *c, const char *path)
{
    neap_file *f = neap_load(c, path);
    if (!f) return 0;
    int ok = 1;
    for (int i = 0; ok && i < neap_file_count(f); i++) {
        neap_tensor *t = neap_file_tensor(c, f, i);
        ok = t != NULL && neap_file_name(f, i) != NULL;
        neap_free(t);
    }
    for (int i = 0; i < neap_file_n_metadata(f); i++) {
        const char *key = NULL;
        if (!neap_file_metadata(f, i, &key) || !key) abort();
    }
    neap_file_free(f);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file(data, size, load_all);
    return 0;
}
