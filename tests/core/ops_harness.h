/* ops_harness.h - what the tests that walk the registry share: one test per op and mode, made from its
 * .sample.
 *
 * A test opens its own context, walks the op's samples and must leave the context empty. In-place forms are
 * tested with the samples of the op they are a form of, on copies of the first input. */
#ifndef OPS_HARNESS_H
#define OPS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "autograd/autograd.h"
#include "ops/sample.h"

/* Columns of the table of ops (make op-table). A test marks the cells of its columns. */
typedef enum op_column {
    COL_GRAD,
    COL_GRAD2,
    COL_DTYPES,
    COL_INT,
    COL_EMPTY,
    COL_0DIM,
    COL_BROADCAST,
    COL_STRIDED,
    COL_THREADS,
    COL_REGION,
    COL_NOMEM,
    COL_DEVICE,
    N_COLUMNS
} op_column;
static const char *const column_names[] = {"grad",      "grad2",   "dtypes",  "int64",  "empty", "0-dim",
                                           "broadcast", "strided", "threads", "region", "nomem", "device"};
#define COL(c) (1u << (COL_##c))

typedef struct op_case { /* the argument of one cmocka test */
    const np_op *op;
    char name[64];
    const char **cells; /* by column: "ok...", or why there is nothing to show; NULL: blank */
} op_case;

static inline bool is_ok(const char *cell) { return cell && strncmp(cell, "ok", 2) == 0; }
/* What was shown stays; a reason stands until something is shown. */
static inline void mark(const op_case *k, op_column col, const char *cell)
{
    if (!is_ok(k->cells[col])) k->cells[col] = cell;
}

static inline const np_op *impl(const np_op *op) { return op->base ? op->base : op; }
static inline bool in_place(const np_op *op) { return (op->tags & NP_INPLACE) != 0; }
static inline bool differentiable(const np_op *op)
{
    return !(impl(op)->tags & NP_NODIFF) && (impl(op)->grad || impl(op)->parts);
}

/* A context at a CPU level ("" for the best). */
static inline neap_ctx *open_ctx(const char *isa, int threads)
{
    if (*isa) setenv("NEAP_ISA", isa, 1);
    neap_ctx_opts o = {.size = sizeof o, .threads = threads};
    neap_ctx *c = neap_ctx_new(&o);
    if (*isa) unsetenv("NEAP_ISA");
    assert_non_null(c);
    return c;
}

static inline void no_error(neap_ctx *c, const op_case *k, const char *label, const char *what)
{
    if (neap_error(c) == NEAP_OK) return;
    fail_msg("%s, sample '%s', %s: %s [%s]", k->op->name, label ? label : "", what, neap_error_message(c),
             neap_code_name(neap_error(c)));
}

/* Fills s with the i-th sample; false: there are no more. */
static inline bool next_sample(neap_ctx *c, np_sampler *s, const op_case *k, neap_dtype dtype, np_size size,
                               int i)
{
    memset(s, 0, sizeof *s);
    s->c = c;
    s->state = 0x9e3779b97f4a7c15u + (uint64_t)i;
    s->dtype = dtype;
    s->size = size;
    bool more = impl(k->op)->sample && impl(k->op)->sample(s, i);
    if (more) no_error(c, k, s->label, "making the sample");
    return more;
}

static inline void free_sample(np_sampler *s)
{
    for (int i = 0; i < s->n_in; i++) neap_free(s->in[i]), s->in[i] = NULL;
}

static inline bool takes_grad(const np_sampler *s, int i)
{
    const neap_tensor *t = s->in[i];
    return t && !t->number && np_is_float((neap_dtype)t->dtype) && !(s->no_grad >> i & 1);
}

static inline void require_grads(neap_ctx *c, np_sampler *s)
{
    for (int i = 0; i < s->n_in; i++)
        if (takes_grad(s, i)) assert_int_equal(neap_set_requires_grad(c, s->in[i], 1), 0);
}

/* Can the op take this sample? The result of an in-place form must fit into the first input. */
static inline bool usable(neap_ctx *c, const op_case *k, np_sampler *s)
{
    if (!k->op->base) return true;
    if (!s->in[0] || s->in[0]->number) return false;
    np_frame f = {.c = c, .op = impl(k->op), .in = s->in, .n_in = s->n_in};
    memcpy(f.attr, s->attr, sizeof f.attr);
    if (!np_dispatch(&f)) return false;
    const neap_tensor *y = f.out[0], *x = s->in[0];
    bool fits = y->dtype == x->dtype && y->ndim == x->ndim && !np_overlaps_itself(x);
    for (int d = 0; d < x->ndim && fits; d++) fits = y->shape[d] == x->shape[d];
    np_frame_drop(&f);
    return fits;
}

/* Runs the op on these inputs. An in-place op gets a clone of the first one. Results are new references. */
static inline bool run_op(neap_ctx *c, const np_op *op, const np_sampler *s, neap_tensor *const *in,
                          np_frame *f)
{
    neap_tensor *args[NP_SAMPLE_MAX_IN] = {0}, *copy = NULL;
    for (int i = 0; i < s->n_in; i++) args[i] = in[i];
    if (in_place(op)) {
        copy = args[0] = neap_clone(c, in[0]);
        if (!copy) return false;
    }
    *f = (np_frame){.c = c, .op = op, .in = args, .n_in = s->n_in};
    memcpy(f->attr, s->attr, sizeof f->attr);
    bool ok = np_dispatch(f);
    f->in = NULL;
    neap_free(copy);
    return ok;
}

/* Results that users see: auxiliary ones are not compared and not differentiated. */
static inline int n_seen(const np_op *op, const np_frame *f)
{
    np_schema s;
    assert_true(np_schema_parse(impl(op)->args, &s));
    return s.n_results < f->n_out ? s.n_results : f->n_out;
}

/* A weight in [0.5, 1.5) for every element: the direction in which results are differentiated. */
static inline neap_tensor *weights_like(neap_ctx *c, const neap_tensor *y)
{
    neap_tensor *w = np_tensor_new(c, y->st->dev, (neap_dtype)y->dtype, y->ndim, y->shape);
    uint64_t state = 7;
    for (int64_t e = 0; w && e < w->numel; e++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        np_store_double((neap_dtype)w->dtype, np_ptr(w) + (size_t)e * np_itemsize(w),
                        0.5 + (double)(state >> 11) * 0x1p-53);
    }
    return w;
}

/* Gradients of the weighted results with respect to the inputs that require grad; dx[i] NULL elsewhere. False
 * with an error pending. Nothing to differentiate is fine. */
static inline bool gradients(neap_ctx *c, const np_op *op, const np_frame *f, const np_sampler *s,
                             neap_tensor **dx)
{
    neap_tensor *y[NP_MAX_OUT], *w[NP_MAX_OUT], *x[NP_SAMPLE_MAX_IN], *out[NP_SAMPLE_MAX_IN] = {0};
    int n_y = 0, n_x = 0;
    bool ok = true;
    for (int i = 0; i < s->n_in; i++) dx[i] = NULL;
    for (int j = 0; j < n_seen(op, f) && ok; j++) {
        if (!np_requires_grad(f->out[j])) continue;
        y[n_y] = f->out[j];
        ok = (w[n_y] = weights_like(c, f->out[j])) != NULL;
        n_y += ok;
    }
    for (int i = 0; i < s->n_in; i++)
        if (np_requires_grad(s->in[i])) x[n_x++] = s->in[i];
    neap_backward_opts o = {.size = sizeof o, .allow_unused = 1};
    if (ok && n_y && n_x) ok = neap_grad(c, y, w, n_y, x, n_x, &o, out) == 0;
    for (int j = 0; j < n_y; j++) neap_free(w[j]);
    for (int i = 0, n = 0; i < s->n_in; i++)
        if (np_requires_grad(s->in[i])) dx[i] = out[n++];
    return ok;
}

static inline void free_all(neap_tensor **t, int n)
{
    for (int i = 0; i < n; i++) neap_free(t[i]), t[i] = NULL;
}

/* All elements, row-major; free() it. */
static inline void *bytes_of(neap_ctx *c, neap_tensor *t, size_t *n)
{
    *n = (size_t)t->numel * np_itemsize(t);
    void *p = malloc(*n + 1);
    assert_non_null(p);
    assert_int_equal(neap_read(c, t, p, *n), 0);
    return p;
}

static inline void assert_same_bits(const op_case *k, const char *label, const char *what, neap_tensor *a,
                                    neap_tensor *b)
{
    assert_true((a == NULL) == (b == NULL));
    if (!a) return;
    size_t na, nb;
    void *pa = bytes_of(a->c, a, &na), *pb = bytes_of(b->c, b, &nb);
    if (a->dtype != b->dtype || na != nb || memcmp(pa, pb, na) != 0)
        fail_msg("%s, sample '%s': bits of %s differ", k->op->name, label ? label : "", what);
    free(pa);
    free(pb);
}

/* Element by element within tol * (1 + |b|); both NaN or both the same infinity is equal. */
static inline void assert_close(const op_case *k, const char *label, const char *what, neap_tensor *a,
                                neap_tensor *b, double tol)
{
    assert_true((a == NULL) == (b == NULL));
    if (!a) return;
    if (a->numel != b->numel || a->ndim != b->ndim)
        fail_msg("%s, sample '%s': shapes of %s differ", k->op->name, label ? label : "", what);
    size_t na, nb;
    char *pa = bytes_of(a->c, a, &na), *pb = bytes_of(b->c, b, &nb);
    for (int64_t e = 0; e < a->numel; e++) {
        double x = np_load_double((neap_dtype)a->dtype, pa + (size_t)e * np_itemsize(a));
        double y = np_load_double((neap_dtype)b->dtype, pb + (size_t)e * np_itemsize(b));
        if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= tol * (1 + fabs(y))) continue;
        fail_msg("%s, sample '%s': %s differ at element %lld: %.9g and %.9g", k->op->name, label ? label : "",
                 what, (long long)e, x, y);
    }
    free(pa);
    free(pb);
}

typedef struct live_counts {
    size_t objects;
    int64_t bytes, storages, nodes, slots;
} live_counts;

static inline live_counts count_live(const neap_ctx *c)
{
    const np_mem *m = &c->devices[0]->mem;
    return (live_counts){c->obj_live, m->live, m->storages, c->n_nodes, c->n_slots};
}

static inline void assert_live(const op_case *k, const char *label, const char *when, neap_ctx *c,
                               live_counts was)
{
    live_counts is = count_live(c);
    if (is.objects == was.objects && is.bytes == was.bytes && is.storages == was.storages &&
        is.nodes == was.nodes && is.slots == was.slots)
        return;
    fail_msg(
        "%s, sample '%s', %s: left over: %lld objects, %lld bytes, %lld storages, %lld nodes, %lld slots",
        k->op->name, label ? label : "", when, (long long)(is.objects - was.objects),
        (long long)(is.bytes - was.bytes), (long long)(is.storages - was.storages),
        (long long)(is.nodes - was.nodes), (long long)(is.slots - was.slots));
}

/* ---- why a mode has nothing to show for an op; NULL: it has */

static inline const char *always(const np_op *op)
{
    (void)op;
    return NULL;
}
static inline const char *unless_no_samples(const np_op *op)
{
    return impl(op)->sample ? NULL : "no samples";
}
static inline const char *unless_not_differentiable(const np_op *op)
{
    return !differentiable(op) ? "nodiff" : unless_no_samples(op);
}

/* ---- making and running the tests */

typedef struct op_mode {
    const char *name;
    void (*run)(const op_case *k);
    const char *(*why_not)(const np_op *op); /* the reason, or NULL: run it */
    unsigned columns;                        /* COL(...): those that it fills */
} op_mode;

typedef struct op_test {
    op_case k;
    const op_mode *mode;
    bool passed;
} op_test;

static inline void run_op_test(void **state)
{
    op_test *t = *state;
    t->mode->run(&t->k);
    for (int col = 0; col < N_COLUMNS; col++)
        if ((t->mode->columns >> col & 1) && !t->k.cells[col])
            fail_msg("%s: no sample shows '%s', and nothing says why", t->k.op->name, column_names[col]);
    t->passed = true;
}

/* Lines "op, kind, column, cell" with tabs between: what make op-table joins. */
static inline int write_cells(const char *path, const op_mode *modes, int n_modes,
                              const char *(*cells)[N_COLUMNS])
{
    FILE *out = fopen(path, "w");
    if (!out) return 1;
    unsigned columns = 0;
    for (int m = 0; m < n_modes; m++) columns |= modes[m].columns;
    for (int i = 0; i < NP_N_OPS; i++) {
        uint32_t tags = impl(np_ops[i])->tags | np_ops[i]->tags;
        const char *kind = np_ops[i]->base      ? "in place"
                           : tags & NP_INTERNAL ? "internal"
                           : tags & NP_RANDOM   ? "random"
                                                : "public";
        for (int col = 0; col < N_COLUMNS; col++)
            if (columns >> col & 1)
                fprintf(out, "%s\t%s\t%s\t%s\n", np_ops[i]->name, kind, column_names[col],
                        cells[i][col] ? cells[i][col] : "");
    }
    return fclose(out) != 0;
}

/* With the arguments --cells FILE the cells are written, too. */
static inline int run_modes(const char *group, const op_mode *modes, int n_modes, int argc, char **argv)
{
    size_t n = 0, max = (size_t)NP_N_OPS * (size_t)n_modes;
    op_test *tests = calloc(max, sizeof *tests);
    struct CMUnitTest *units = calloc(max, sizeof *units);
    static const char *cells[NP_N_OPS][N_COLUMNS];
    const char *only = getenv("NEAP_TEST_OP");
    if (!tests || !units) return 1;
    for (int i = 0; i < NP_N_OPS; i++) {
        if (only && strcmp(only, np_ops[i]->name) != 0) continue;
        for (int m = 0; m < n_modes; m++) {
            const char *why = modes[m].why_not(np_ops[i]);
            for (int col = 0; why && col < N_COLUMNS; col++)
                if (modes[m].columns >> col & 1) cells[i][col] = why;
            if (why) continue;
            tests[n].k.op = np_ops[i];
            tests[n].k.cells = cells[i];
            tests[n].mode = &modes[m];
            snprintf(tests[n].k.name, sizeof tests[n].k.name, "%s: %s", np_ops[i]->name, modes[m].name);
            units[n] = (struct CMUnitTest){tests[n].k.name, run_op_test, NULL, NULL, &tests[n]};
            n++;
        }
    }
    bool known = !only;
    for (int i = 0; i < NP_N_OPS; i++) known = known || strcmp(only, np_ops[i]->name) == 0;
    if (!known) fprintf(stderr, "NEAP_TEST_OP: no op is called '%s'\n", only);
    int rc = known ? _cmocka_run_group_tests(group, units, n, NULL, NULL) : 1;
    for (size_t i = 0; i < n; i++)
        for (int col = 0; col < N_COLUMNS; col++)
            if (!tests[i].passed && (tests[i].mode->columns >> col & 1)) tests[i].k.cells[col] = "FAILED";
    if (argc == 3 && strcmp(argv[1], "--cells") == 0) rc |= write_cells(argv[2], modes, n_modes, cells);
    free(units);
    free(tests);
    return rc;
}

#endif
