/* json.c - see json.h. */
#include "io/json.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/ctx.h"
#include "io/file.h"

#define J(v) ((json_t *)(uintptr_t)(v))
#define NP(v) ((np_json *)(v))

np_json *np_json_parse(neap_ctx *c, const char *file, const char *text, size_t n)
{
    json_error_t e;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (root) return NP(root);
    if (json_error_code(&e) == json_error_out_of_memory) return np_fail_nomem(c, n);
    for (char *p = e.text; *p; p++) /* it may quote the file's bytes */
        if (*p < ' ' || *p > '~') *p = '?';
    char name[NP_PATH_TEXT];
    return np_fail(c, NEAP_E_FORMAT, "%s: the header is not strict JSON, at byte %d: %s",
                   np_path_text(name, file), e.position, e.text);
}

void np_json_free(np_json *root) { json_decref(J(root)); }

bool np_json_is_object(const np_json *v) { return json_is_object(J(v)); }
bool np_json_is_array(const np_json *v) { return json_is_array(J(v)); }

int64_t np_json_length(const np_json *v)
{
    return (int64_t)(json_is_object(J(v)) ? json_object_size(J(v)) : json_array_size(J(v)));
}

np_json *np_json_at(const np_json *array, int64_t i) { return NP(json_array_get(J(array), (size_t)i)); }
np_json *np_json_get(const np_json *object, const char *key) { return NP(json_object_get(J(object), key)); }

bool np_json_int(const np_json *v, int64_t *out)
{
    if (!json_is_integer(J(v))) return false;
    *out = json_integer_value(J(v));
    return true;
}

const char *np_json_string(const np_json *v) { return json_string_value(J(v)); }

void *np_json_first(np_json *object) { return json_object_iter(J(object)); }
void *np_json_next(np_json *object, void *it) { return json_object_iter_next(J(object), it); }
const char *np_json_key(void *it) { return json_object_iter_key(it); }
np_json *np_json_value(void *it) { return NP(json_object_iter_value(it)); }

char *np_json_quote(neap_ctx *c, const char *what, const char *s)
{
    json_t *v = json_string(s);
    if (!v) {
        json_t *raw = json_string_nocheck(s); /* tells bad text from no memory */
        json_decref(raw);
        if (!raw) return np_fail_nomem(c, 0);
        return np_fail(c, NEAP_E_ARG, "%s is not valid UTF-8; only UTF-8 names and texts can be saved", what);
    }
    char *text = json_dumps(v, JSON_ENCODE_ANY);
    json_decref(v);
    return text ? text : np_fail_nomem(c, 0);
}

void np_json_free_text(char *s) { free(s); }
