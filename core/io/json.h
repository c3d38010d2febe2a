/* json.h - the little JSON that file formats need, over libjansson, which no other file includes.
 *
 * Strict: UTF-8 only, no duplicate keys, no NUL in strings, at most 2048 levels, integers that fit int64, and
 * nothing after the value but white space. A root owns its values; keys, strings and values are borrowed
 * from it. The library's process-wide settings (allocator, hash seed) are never touched. */
#ifndef NP_IO_JSON_H
#define NP_IO_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "neap.h"

typedef struct np_json np_json;

/* NULL with E-FORMAT (text names `file` and where in the JSON) or E-NOMEM. */
np_json *np_json_parse(neap_ctx *c, const char *file, const char *text, size_t n);
void np_json_free(np_json *root);

bool np_json_is_object(const np_json *v);
bool np_json_is_array(const np_json *v);
int64_t np_json_length(const np_json *v); /* of an object or array, else 0 */
np_json *np_json_at(const np_json *array, int64_t i);
np_json *np_json_get(const np_json *object, const char *key); /* NULL if absent */
bool np_json_int(const np_json *v, int64_t *out);             /* integers only: 4.0 is none */
const char *np_json_string(const np_json *v);                 /* NULL if it is no string */

/* for (void *it = np_json_first(o); it; it = np_json_next(o, it)) in the file's order. */
void *np_json_first(np_json *object);
void *np_json_next(np_json *object, void *it);
const char *np_json_key(void *it);
np_json *np_json_value(void *it);

/* s as a JSON string with its quotes; NULL with E-ARG when s is not UTF-8 (`what` says what it is). */
char *np_json_quote(neap_ctx *c, const char *what, const char *s);
void np_json_free_text(char *s);

#endif
