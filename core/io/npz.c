/* npz.c - neap_load_npz: the arrays of a zip file as numpy.savez writes it, by zlib's minizip.
 *
 * Opening lists the members named *.npy; each is unpacked when it is asked for. What the archive says about sizes
 * is not believed: a member is unpacked piece by piece, and its bytes then go through the npy reader. */
#include <stdio.h>
#include <string.h>

#include <minizip/unzip.h>

#include "io/file.h"
#include "io/npy.h"
#include "tensor/tensor.h"

enum { NAME = 256, PIECE = 1 << 20 };

typedef struct npz_member {
    char name[NAME]; /* without .npy */
    unz64_file_pos at;
} npz_member;

struct neap_npz {
    neap_ctx *c;
    unzFile zip;
    npz_member *member;
    size_t room;
    int n;
    char path[NP_PATH_TEXT];
};

static bool bad(neap_npz *z, const char *rule, const char *name)
{
    return np_fail(z->c, NEAP_E_FORMAT, "%s is no npz file that can be read: %s, at '%.40s'", z->path, rule,
                   name);
}

static bool add_member(neap_npz *z)
{
    char name[NAME + 4];
    unz_file_info64 info;
    if (unzGetCurrentFileInfo64(z->zip, &info, name, sizeof name, NULL, 0, NULL, 0) != UNZ_OK)
        return bad(z, "its directory is damaged", "");
    size_t n = info.size_filename;
    if (n >= sizeof name) return bad(z, "a name has more than 255 characters", "");
    name[n] = '\0';
    if (n < 4 || strcmp(name + n - 4, ".npy") != 0) return bad(z, "its members must be named *.npy", name);
    name[n - 4] = '\0';
    npz_member *m = np_array_grow(z->c, z->member, &z->room, (size_t)z->n + 1, sizeof *m);
    if (!m) return false;
    z->member = m;
    for (int i = 0; i < z->n; i++)
        if (strcmp(m[i].name, name) == 0) return bad(z, "two members have one name", name);
    memcpy(m[z->n].name, name, n - 3);
    if (unzGetFilePos64(z->zip, &m[z->n].at) != UNZ_OK) return bad(z, "its directory is damaged", name);
    z->n++;
    return true;
}

static bool list_members(neap_npz *z)
{
    unz_global_info64 info;
    if (unzGetGlobalInfo64(z->zip, &info) != UNZ_OK) return bad(z, "its directory is damaged", "");
    if (info.number_entry == 0) return true;
    int code = unzGoToFirstFile(z->zip);
    while (code == UNZ_OK) {
        if (!add_member(z)) return false;
        code = unzGoToNextFile(z->zip);
    }
    return code == UNZ_END_OF_LIST_OF_FILE || bad(z, "its directory is damaged", "");
}

neap_npz *neap_load_npz(neap_ctx *c, const char *path)
{
    if (np_pending(c)) return NULL;
    const char *before = np_io_enter(c, "load_npz");
    np_infile in;
    neap_npz *z = np_infile_open(c, &in, path) ? np_obj_new(c, sizeof *z) : NULL;
    np_infile_close(&in); /* it is a regular file that opens: minizip opens it again */
    if (z) {
        z->c = c;
        char text[NP_PATH_TEXT];
        snprintf(z->path, sizeof z->path, "%s", np_path_text(text, path));
        z->zip = unzOpen64(path);
        if (!(z->zip ? list_members(z) : bad(z, "it is no zip file", ""))) {
            neap_npz_free(z);
            z = NULL;
        }
    }
    c->op_name = before;
    return z;
}

void neap_npz_free(neap_npz *z)
{
    if (!z) return;
    if (z->zip) unzClose(z->zip);
    if (z->member) np_array_free(z->c, z->member);
    np_obj_free(z->c, z, sizeof *z);
}

int neap_npz_count(const neap_npz *z) { return z ? z->n : 0; }
const char *neap_npz_name(const neap_npz *z, int i)
{
    return i >= 0 && i < neap_npz_count(z) ? z->member[i].name : NULL;
}

/* The bytes of the member that is open, to be freed with np_array_free. */
static char *unpack(neap_npz *z, const char *name, size_t *n)
{
    char *bytes = NULL;
    size_t room = 0;
    for (*n = 0;;) {
        char *more = np_array_grow(z->c, bytes, &room, *n + PIECE, 1);
        if (!more) break;
        bytes = more;
        int got = unzReadCurrentFile(z->zip, bytes + *n, PIECE);
        if (got == 0) return bytes;
        if (got < 0 || np_cancelled(z->c)) {
            if (got < 0) bad(z, "a member is damaged", name);
            else np_fail(z->c, NEAP_E_CANCELLED, "interrupted");
            break;
        }
        *n += (size_t)got;
    }
    if (bytes) np_array_free(z->c, bytes);
    return NULL;
}

neap_tensor *neap_npz_tensor(neap_ctx *c, neap_npz *z, int i)
{
    if (np_pending(c)) return NULL;
    const char *before = np_io_enter(c, "load_npz");
    neap_tensor *t = NULL;
    if (i < 0 || i >= neap_npz_count(z)) {
        np_fail(c, NEAP_E_INDEX, "array %d does not exist; %s has %d", i + c->base,
                z ? z->path : "a file not opened", neap_npz_count(z));
    } else if (unzGoToFilePos64(z->zip, &z->member[i].at) != UNZ_OK || unzOpenCurrentFile(z->zip) != UNZ_OK) {
        bad(z, "a member is damaged, encrypted or packed in another way than deflate", z->member[i].name);
    } else {
        size_t n = 0;
        char *bytes = unpack(z, z->member[i].name, &n);
        bool whole = unzCloseCurrentFile(z->zip) == UNZ_OK; /* compares the checksum */
        if (bytes && !whole) bad(z, "the checksum of a member is wrong", z->member[i].name);
        np_infile in;
        np_infile_memory(c, &in, z->member[i].name, bytes, n);
        if (bytes && whole) t = np_scope_adopt(c, np_read_npy(&in));
        if (bytes) np_array_free(c, bytes);
    }
    c->op_name = before;
    return t;
}
