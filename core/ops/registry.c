/* registry.c - the table of ops: find by name, schemas parsed once per context.
 *
 * The table itself is generated from the family files. Nothing here knows a single op. */
#include "ops/op.h"

#include <stdlib.h>

const np_op *np_op_find(const char *name)
{
    for (int i = 0; i < NP_N_OPS; i++)
        if (strcmp(np_ops[i]->name, name) == 0) return np_ops[i];
    return NULL;
}

int np_op_index(const char *name)
{
    const np_op *op = np_op_find(name);
    return op ? op->index : -1;
}

void np_kernels_complete(np_device *d, const np_device *cpu)
{
    for (int i = 0; i < NP_N_OPS; i++) {
        const np_op *impl = np_ops[i]->base ? np_ops[i]->base : np_ops[i];
        if (impl->tags & NP_ANYWHERE) d->kern[i] = cpu->kern[impl->index];
        else if (!d->remote) d->kern[i] = d->kern[impl->index];
        else
            d->kern[i] = d->remote[impl->index]   ? np_remote_kernel
                         : cpu->kern[impl->index] ? np_staged_kernel
                                                  : NULL;
    }
}

static const struct {
    const char *text;
    np_arg_type type;
    bool tensor;
} type_names[] = {
    {"T", NP_ARG_TENSOR, true},       {"T?", NP_ARG_OPT_TENSOR, true}, {"N", NP_ARG_NUMBER, true},
    {"T*", NP_ARG_LIST, true},        {"int", NP_ARG_INT, false},      {"float", NP_ARG_FLOAT, false},
    {"bool", NP_ARG_BOOL, false},     {"dim", NP_ARG_DIM, false},      {"dims", NP_ARG_DIMS, false},
    {"index", NP_ARG_INDEX, false},   {"shape", NP_ARG_SHAPE, false},  {"dtype", NP_ARG_DTYPE, false},
    {"device", NP_ARG_DEVICE, false}, {"gen", NP_ARG_GEN, false},      {"base", NP_ARG_BASE, false},
    {"str", NP_ARG_STR, false},
};

static bool parse_type(const char *text, np_arg *a, bool *tensor)
{
    char plain[16];
    size_t n = strlen(text);
    if (n == 0 || n >= sizeof plain) return false;
    for (size_t i = 0; i < sizeof type_names / sizeof *type_names; i++) {
        if (strcmp(type_names[i].text, text) == 0) {
            a->type = type_names[i].type;
            a->optional = a->type == NP_ARG_OPT_TENSOR;
            *tensor = type_names[i].tensor;
            return true;
        }
    }
    if (text[n - 1] != '?') return false;
    memcpy(plain, text, n - 1);
    plain[n - 1] = 0;
    if (!parse_type(plain, a, tensor)) return false;
    a->optional = true;
    return true;
}

/* "name:type=default" */
static bool parse_arg(const char *word, np_schema *s, bool option)
{
    if (s->n_args == (int)(sizeof s->arg / sizeof *s->arg)) return false;
    np_arg *a = &s->arg[s->n_args];
    const char *colon = strchr(word, ':');
    if (!colon || colon == word || (size_t)(colon - word) >= sizeof a->name) return false;
    memcpy(a->name, word, (size_t)(colon - word));
    char type[16];
    const char *eq = strchr(colon, '=');
    size_t n = eq ? (size_t)(eq - colon - 1) : strlen(colon + 1);
    if (n >= sizeof type) return false;
    memcpy(type, colon + 1, n);
    type[n] = 0;
    bool tensor = false;
    if (!parse_type(type, a, &tensor)) return false;
    a->option = option;
    if (a->type == NP_ARG_BASE) a->has_default = true;
    if (eq) {
        char *end;
        a->has_default = true;
        if (strcmp(eq + 1, "true") == 0 || strcmp(eq + 1, "false") == 0) {
            a->def = eq[1] == 't';
        } else {
            a->def = strtod(eq + 1, &end);
            if (*end || end == eq + 1) return false;
        }
    }
    if (a->type == NP_ARG_LIST) s->list = true;
    a->slot = tensor ? s->n_tensors++ : s->n_attrs++;
    s->n_args++;
    return s->n_attrs <= NP_MAX_ATTR;
}

bool np_schema_parse(const char *args, np_schema *s)
{
    char word[64];
    bool option = false, results = false, aux = false;
    memset(s, 0, sizeof *s);
    while (args && *args) {
        size_t n = strcspn(args, " ");
        if (n == 0) {
            args++;
            continue;
        }
        if (n >= sizeof word) return false;
        memcpy(word, args, n);
        word[n] = 0;
        args += n;
        if (strcmp(word, ";") == 0) {
            option = true;
        } else if (strcmp(word, "->") == 0) {
            results = true;
        } else if (strcmp(word, "|") == 0) {
            aux = true;
        } else if (results) {
            int k = s->n_results + s->n_aux;
            size_t len = strcspn(word, ":");
            if (k == NP_MAX_OUT || len >= sizeof s->result[0]) return false;
            memcpy(s->result[k], word, len);
            *(aux ? &s->n_aux : &s->n_results) += 1;
        } else if (!parse_arg(word, s, option)) {
            return false;
        }
    }
    return s->n_results > 0;
}

static void fact_of(np_op_facts *x, const np_arg *a)
{
    bool needed = (a->type == NP_ARG_TENSOR || a->type == NP_ARG_NUMBER) && !a->optional;
    if (needed) x->required |= 1u << a->slot;
    if (a->type == NP_ARG_DIMS || a->type == NP_ARG_SHAPE) x->lists |= 1u << a->slot;
    if (a->type == NP_ARG_GEN) x->gen_attr = (int8_t)a->slot;
}

const np_op_facts *np_facts_load(neap_ctx *c, const np_op *op)
{
    if (!c->facts) {
        size_t cap = 0;
        np_op_facts *facts = np_array_grow(c, NULL, &cap, NP_N_OPS, sizeof *facts);
        if (!facts) return NULL;
        for (int i = 0; i < NP_N_OPS; i++) {
            const np_op *o = np_ops[i]->base ? np_ops[i]->base : np_ops[i];
            np_op_facts *x = &facts[i];
            if (!np_schema_parse(o->args, &x->schema)) {
                np_array_free(c, facts);
                return np_fail(c, NEAP_E_INTERNAL, "malformed schema of %s: %s", o->name, o->args);
            }
            x->impl = o;
            x->n_results = (int8_t)x->schema.n_results;
            x->n_aux = (int8_t)x->schema.n_aux;
            x->n_out = (int8_t)(x->n_results + x->n_aux);
            x->gen_attr = -1;
            x->n_needed = x->n_saves = 0;
            x->required = x->lists = 0;
            for (int k = 0; k < x->schema.n_args; k++) fact_of(x, &x->schema.arg[k]);
            while (x->required >> x->n_needed) x->n_needed++;
            if (x->schema.list) x->n_needed = 1;
            x->plain_record = !x->schema.list && !x->lists && x->gen_attr < 0 && !(o->tags & NP_RANDOM);
            x->count = &c->counts[i];
            while (x->n_saves < NP_MAX_SAVE && o->save[x->n_saves].what != NP_SAVE_NONE) x->n_saves++;
        }
        c->facts = facts;
    }
    return &c->facts[op->index];
}
