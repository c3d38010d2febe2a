/* fuzz_csv.c - neap_read_csv on any bytes: a table whose every cell and column can be had, or an error on record. */
#include "fuzz.h"

static int read_table(neap_ctx *c, const char *path)
{
    neap_csv *f = neap_read_csv(c, path, ',', 1);
    if (!f) return 0;
    int64_t rows = neap_csv_rows(f), columns = neap_csv_columns(f), wanted[2] = {columns - 1, 0};
    int ok = 1;
    for (int64_t k = 0; k < columns; k++) {
        if (!neap_csv_name(f, k)) abort();
        for (int64_t r = 0; r < rows; r++)
            if (!neap_csv_text(f, r, k)) abort();
        if (!neap_csv_is_number(f, k)) continue;
        neap_tensor *t = neap_csv_tensor(c, f, 1, &k, NEAP_FLOAT32);
        ok = ok && t;
        neap_free(t);
    }
    neap_tensor *t = ok ? neap_csv_tensor(c, f, columns > 1 ? 2 : 1, wanted, NEAP_INT8) : NULL;
    ok = t != NULL;
    neap_free(t);
    neap_csv_free(f);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file(data, size, read_table);
    return 0;
}
