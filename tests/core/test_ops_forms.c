/* test_ops_forms.c - every op of the registry on other forms of its samples' inputs: without elements, without
 * dimensions, stretched by broadcasting, not contiguous; values and gradients.
 *
 * The forms are made here, so an op needs no sample of its own for each. An op may refuse a form: with the error of a
 * legal call gone wrong (shape, dimension, range, argument), which then is the cell of the table. Values on the
 * samples themselves are in test_ops.c. NEAP_TEST_OP=name runs one op. */
#include "ops_harness.h"

typedef neap_tensor *(*reform_fn)(neap_ctx *c, neap_tensor *t); /* a new reference, NULL: no memory */

/* Internal ops check no shapes: their callers do. They see the forms that their samples have, and every layout. */
static bool checks_shapes(const op_case *k) { return !(impl(k->op)->tags & NP_INTERNAL); }

static bool real_tensor(const neap_tensor *t) { return t && !t->number; }

/* The sample with new inputs; reform `only` one of them, or all (-1). Attributes still belong to s. */
static np_sampler reformed(neap_ctx *c, const np_sampler *s, reform_fn reform, int only)
{
    np_sampler r = *s;
    for (int i = 0; i < s->n_in; i++) {
        bool other = real_tensor(s->in[i]) && (only < 0 || only == i);
        if (s->in[i]) r.in[i] = other ? reform(c, s->in[i]) : np_hold_ref(s->in[i]);
        assert_true(!s->in[i] || r.in[i]);
    }
    return r;
}

static neap_tensor *copy_of(neap_ctx *c, neap_tensor *t, neap_tensor *to)
{
    assert_true(to && np_copy_into(c, to, t));
    return to;
}
static neap_tensor *dense(neap_ctx *c, neap_tensor *t)
{
    return copy_of(c, t, np_tensor_new(c, t->st->dev, (neap_dtype)t->dtype, t->ndim, t->shape));
}

typedef struct outcome {
    np_frame f;
    neap_tensor *dx[NP_SAMPLE_MAX_IN];
} outcome;

static void drop_outcome(outcome *o)
{
    np_frame_drop(&o->f);
    free_all(o->dx, NP_SAMPLE_MAX_IN);
}

/* Values and gradients. False: the op refused the form, and the cell says how. */
static bool compute(neap_ctx *c, const op_case *k, np_sampler *s, op_column col, outcome *o)
{
    *o = (outcome){0};
    neap_seed(c, 3);
    if (differentiable(k->op)) require_grads(c, s);
    if (run_op(c, k->op, s, s->in, &o->f)) {
        gradients(c, k->op, &o->f, s, o->dx);
        no_error(c, k, s->label, column_names[col]);
        return true;
    }
    const neap_code code = neap_error(c);
    if (code != NEAP_E_LABEL && code != NEAP_E_VIEW && code != NEAP_E_SHAPE && code != NEAP_E_DIMS &&
        code != NEAP_E_INDEX && code != NEAP_E_ARG)
        no_error(c, k, s->label, column_names[col]);
    mark(k, col, neap_code_name(code));
    neap_clear_error(c);
    return false;
}

static void assert_same_outcome(const op_case *k, const np_sampler *s, const char *what, outcome *a,
                                outcome *b)
{
    for (int j = 0; j < n_seen(k->op, &a->f); j++)
        assert_close(k, s->label, what, a->f.out[j], b->f.out[j], 1e-10);
    for (int i = 0; i < s->n_in; i++) assert_close(k, s->label, what, a->dx[i], b->dx[i], 1e-10);
}

/* ---- no elements */

static neap_tensor *sized(neap_ctx *c, neap_tensor *t, int from, int to)
{
    int64_t shape[NEAP_MAX_DIMS] = {0};
    for (int d = 0; d < t->ndim; d++) shape[d] = d >= from && d < to ? 0 : t->shape[d];
    return np_tensor_new(c, t->st->dev, (neap_dtype)t->dtype, t->ndim, shape);
}
static neap_tensor *no_elements(neap_ctx *c, neap_tensor *t) { return sized(c, t, 0, t->ndim); }
static neap_tensor *no_rows(neap_ctx *c, neap_tensor *t) { return sized(c, t, 0, 1); }
static neap_tensor *no_columns(neap_ctx *c, neap_tensor *t) { return sized(c, t, t->ndim - 1, t->ndim); }

static bool has_elements(const np_sampler *s)
{
    for (int i = 0; i < s->n_in; i++)
        if (real_tensor(s->in[i]) && s->in[i]->numel == 0) return false;
    return true;
}

static void check_empty(neap_ctx *c, const op_case *k, const np_sampler *s)
{
    static const reform_fn forms[] = {dense, no_elements, no_rows,
                                      no_columns}; /* the first: the sample itself */
    for (size_t n = 0; n < (checks_shapes(k) ? sizeof forms / sizeof *forms : 1); n++) {
        np_sampler r = reformed(c, s, forms[n], -1);
        outcome o = {0};
        if ((n == 0 || !has_elements(&r)) && compute(c, k, &r, COL_EMPTY, &o)) {
            for (int i = 0; i < r.n_in; i++)
                if (o.dx[i]) assert_int_equal(o.dx[i]->numel, r.in[i]->numel);
            if (!has_elements(&r) || o.f.out[0]->numel == 0) mark(k, COL_EMPTY, "ok");
        }
        drop_outcome(&o);
        free_sample(&r);
    }
}

/* ---- no dimensions */

static neap_tensor *first_element(neap_ctx *c, neap_tensor *t)
{
    neap_tensor *one = np_tensor_view(t, 0, NULL, NULL, t->offset);
    assert_non_null(one);
    neap_tensor *y = dense(c, one);
    neap_free(one);
    return y;
}

static int call_op(neap_ctx *c, void *user, neap_values *v)
{
    const op_case *k = ((void **)user)[0];
    np_frame f = {0};
    if (!run_op(c, k->op, ((void **)user)[1], v->in, &f)) return 1;
    for (int j = 0, seen = n_seen(k->op, &f); j < f.n_out; j++) {
        if (j < seen && np_is_float((neap_dtype)f.out[j]->dtype)) v->out[v->n_out++] = f.out[j];
        else np_drop(f.out[j]);
    }
    return 0;
}

/* var of one element, for one, is NaN, which has no slope. */
static bool all_finite(const outcome *o)
{
    for (int j = 0; j < o->f.n_out; j++) {
        const neap_tensor *y = o->f.out[j];
        for (int64_t e = 0; y->contiguous && e < y->numel; e++)
            if (!isfinite(np_load_double((neap_dtype)y->dtype, np_ptr(y) + (size_t)e * np_itemsize(y))))
                return false;
    }
    return true;
}

static void check_0dim(neap_ctx *c, const op_case *k, const np_sampler *s)
{
    for (int i = 0; i < s->n_in; i++) /* the sample itself: other tests know its values */
        if (real_tensor(s->in[i]) && s->in[i]->ndim == 0) mark(k, COL_0DIM, "ok");
    if (!has_elements(s) || !checks_shapes(k)) return;
    for (int only = -1; only < s->n_in; only++) {
        if (only >= 0 && !real_tensor(s->in[only])) continue;
        np_sampler r = reformed(c, s, first_element, only);
        outcome o;
        if (usable(c, k, &r) && compute(c, k, &r, COL_0DIM, &o)) {
            void *user[] = {(void *)k, &r};
            bool any = false;
            for (int i = 0; i < r.n_in; i++) any = any || o.dx[i];
            if (any && all_finite(&o))
                neap_gradcheck(c, (neap_fn){.call = call_op, .user = user}, r.in, r.n_in, 1e-6, 1e-5, 1e-4,
                               1);
            no_error(c, k, s->label, "gradcheck without dimensions");
            mark(k, COL_0DIM, "ok");
            drop_outcome(&o);
        } else if (np_pending(c)) {
            mark(k, COL_0DIM, neap_code_name(neap_error(c)));
            neap_clear_error(c);
        }
        free_sample(&r);
    }
}

/* ---- broadcasting: an operand of size 1 is that operand expanded, and its gradient the sum over the copies */

static int narrowed_dim; /* for the next two: reform_fn has no room for it */
static neap_tensor *narrow_view(neap_tensor *t)
{
    int64_t shape[NEAP_MAX_DIMS] = {0};
    for (int d = 0; d < t->ndim; d++) shape[d] = d == narrowed_dim ? 1 : t->shape[d];
    neap_tensor *v = np_tensor_view(t, t->ndim, shape, t->stride, t->offset);
    assert_non_null(v);
    return v;
}
static neap_tensor *narrowed(neap_ctx *c, neap_tensor *t)
{
    neap_tensor *v = narrow_view(t), *y = dense(c, v);
    neap_free(v);
    return y;
}
static neap_tensor *expanded(neap_ctx *c, neap_tensor *t)
{
    int64_t stride[NEAP_MAX_DIMS] = {0};
    for (int d = 0; d < t->ndim; d++) stride[d] = d == narrowed_dim ? 0 : t->stride[d];
    neap_tensor *v = np_tensor_view(t, t->ndim, t->shape, stride, t->offset);
    assert_non_null(v);
    neap_tensor *y = dense(c, v);
    neap_free(v);
    return y;
}

static bool same_result_shapes(const outcome *a, const outcome *b)
{
    for (int j = 0; j < a->f.n_out; j++) {
        if (a->f.out[j]->ndim != b->f.out[j]->ndim) return false;
        for (int d = 0; d < a->f.out[j]->ndim; d++)
            if (a->f.out[j]->shape[d] != b->f.out[j]->shape[d]) return false;
    }
    return true;
}

static void check_stretched(neap_ctx *c, const op_case *k, const np_sampler *s, int input, int dim)
{
    narrowed_dim = dim;
    np_sampler thin = reformed(c, s, narrowed, input), full = reformed(c, s, expanded, input);
    outcome a = {0}, b = {0};
    if (compute(c, k, &thin, COL_BROADCAST, &a) && compute(c, k, &full, COL_BROADCAST, &b)) {
        if (same_result_shapes(&a, &b)) {
            if (b.dx[input]) {
                int64_t d = dim;
                neap_tensor *sum = neap_sum(c, b.dx[input], &d, 1, 1);
                neap_free(b.dx[input]);
                b.dx[input] = sum;
            }
            assert_same_outcome(k, s, "operand of size 1 and expanded operand", &a, &b);
            mark(k, COL_BROADCAST, "ok");
        } else {
            mark(k, COL_BROADCAST, "own shapes");
        }
    }
    drop_outcome(&a);
    drop_outcome(&b);
    free_sample(&thin);
    free_sample(&full);
}

/* Where an operand of another size is legal and means something else. */
static const char *no_stretching(const op_case *k, const char *label)
{
    static const char *const own[][2] = {
        {"einsum", "ab,bc->ac"},        /* b is 1 in both then: a sum of one term */
        {"take_along_dim", "in a row"}, /* a shorter row */
        {"scatter", NULL},              /* fewer positions */
        {"searchsorted", NULL},         /* a shorter sorted row */
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(impl(k->op)->name, own[i][0]) == 0 && (!own[i][1] || strcmp(label, own[i][1]) == 0))
            return "own shapes";
    return NULL;
}

static void check_broadcast(neap_ctx *c, const op_case *k, const np_sampler *s)
{
    int tensors = 0;
    for (int i = 0; i < s->n_in; i++) tensors += real_tensor(s->in[i]);
    if (!checks_shapes(k)) return;
    const char *why = no_stretching(k, s->label);
    if (why) {
        mark(k, COL_BROADCAST, why);
        return;
    }
    for (int i = 0; i < s->n_in && tensors > 1; i++)
        for (int d = 0; real_tensor(s->in[i]) && d < s->in[i]->ndim; d++)
            if (s->in[i]->shape[d] > 1) check_stretched(c, k, s, i, d);
}

/* ---- not contiguous; what lies between the elements is NaN */

static neap_tensor *laid_out(neap_ctx *c, neap_tensor *t, bool transpose)
{
    int64_t have[NEAP_MAX_DIMS] = {0}, stride[NEAP_MAX_DIMS] = {0};
    const int n = t->ndim;
    for (int d = 0; d < n; d++) have[d] = transpose ? t->shape[n - 1 - d] : t->shape[d];
    if (n > 0) have[n - 1] *= 2;
    neap_tensor *base = np_tensor_new(c, t->st->dev, (neap_dtype)t->dtype, n, have);
    assert_non_null(base);
    memset(np_ptr(base), 0xff, (size_t)base->numel * np_itemsize(base));
    for (int d = 0; d < n; d++)
        stride[d] = base->stride[transpose ? n - 1 - d : d] * (d == (transpose ? 0 : n - 1) ? 2 : 1);
    neap_tensor *v = np_tensor_view(base, n, t->shape, stride, base->offset);
    neap_free(base);
    return copy_of(c, t, v);
}
static neap_tensor *strided(neap_ctx *c, neap_tensor *t) { return laid_out(c, t, false); }
static neap_tensor *transposed(neap_ctx *c, neap_tensor *t) { return laid_out(c, t, true); }

/* In-place ops write into the laid out tensor itself. */
static bool write_into(neap_ctx *c, const op_case *k, const np_sampler *s, outcome *o)
{
    *o = (outcome){.f = {.c = c, .op = k->op, .in = s->in, .n_in = s->n_in}};
    memcpy(o->f.attr, s->attr, sizeof o->f.attr);
    neap_seed(c, 3);
    bool ok = np_dispatch(&o->f);
    no_error(c, k, s->label, "into a tensor that is not contiguous");
    o->f.in = NULL;
    return ok;
}

static void check_strided(neap_ctx *c, const op_case *k, const np_sampler *s)
{
    static const reform_fn forms[] = {strided, transposed};
    bool any = false;
    for (int i = 0; i < s->n_in; i++) any = any || (real_tensor(s->in[i]) && s->in[i]->ndim > 0);
    for (int n = 0; n < 2 && any; n++) {
        np_sampler r = reformed(c, s, forms[n], -1), plain = reformed(c, s, dense, -1);
        outcome a = {0}, b = {0};
        bool ok = in_place(k->op)
                      ? write_into(c, k, &r, &a) && write_into(c, k, &plain, &b)
                      : compute(c, k, &r, COL_STRIDED, &a) && compute(c, k, &plain, COL_STRIDED, &b);
        if (ok) assert_same_outcome(k, s, "contiguous and other inputs", &a, &b);
        else if (!(impl(k->op)->tags & NP_VIEW)) fail_msg("%s refused a layout", k->op->name);
        if (ok) mark(k, COL_STRIDED, "ok");
        drop_outcome(&a);
        drop_outcome(&b);
        free_sample(&r);
        free_sample(&plain);
    }
}

/* ---- */

static void walk(const op_case *k, op_column col,
                 void (*check)(neap_ctx *, const op_case *, const np_sampler *))
{
    neap_ctx *c = open_ctx("", 1);
    np_sampler s;
    for (int i = 0; next_sample(c, &s, k, NEAP_FLOAT64, NP_SMALL, i); i++) {
        bool fits = usable(c, k, &s);
        if (fits) check(c, k, &s);
        free_sample(&s);
    }
    if (!k->cells[col] && !checks_shapes(k)) mark(k, col, "internal");
    assert_int_equal(c->devices[0]->mem.live, 0);
    neap_ctx_free(c);
}
/* Factories: the shape asked for, with a size of 0 or without dimensions; randperm(n) has n elements. */
static void make_shape(const op_case *k, op_column col, int ndim)
{
    static const int64_t empty[] = {3, 0};
    neap_ctx *c = open_ctx("", 1);
    np_sampler s;
    assert_true(next_sample(c, &s, k, NEAP_FLOAT64, NP_SMALL, 0));
    const np_schema *schema = &np_facts(c, k->op)->schema;
    for (int i = 0; i < schema->n_args; i++) {
        np_attr *a = &s.attr[schema->arg[i].slot];
        bool length = schema->arg[i].type == NP_ARG_INT && strcmp(schema->arg[i].name, "n") == 0;
        if (length && ndim == 0) mark(k, col, "1 dim");
        if (schema->arg[i].type == NP_ARG_SHAPE) *a = (np_attr){.v = empty, .n = ndim, .has = 1};
        else if (!length || ndim == 0) continue;
        else a->i = 0;
        outcome o;
        if (compute(c, k, &s, col, &o)) {
            assert_int_equal(o.f.out[0]->numel, ndim == 0);
            mark(k, col, "ok");
        }
        drop_outcome(&o);
    }
    free_sample(&s);
    neap_ctx_free(c);
}

static bool makes_tensors(const op_case *k)
{
    np_schema s;
    return np_schema_parse(impl(k->op)->args, &s) && s.n_tensors == 0;
}

static void test_empty(const op_case *k)
{
    if (makes_tensors(k)) make_shape(k, COL_EMPTY, 2);
    else walk(k, COL_EMPTY, check_empty);
}
static void test_0dim(const op_case *k)
{
    if (makes_tensors(k)) make_shape(k, COL_0DIM, 0);
    else walk(k, COL_0DIM, check_0dim);
}
static void test_broadcast(const op_case *k) { walk(k, COL_BROADCAST, check_broadcast); }
static void test_strided(const op_case *k) { walk(k, COL_STRIDED, check_strided); }

static const char *unless_no_tensor(const np_op *op)
{
    np_schema s;
    return np_schema_parse(impl(op)->args, &s) && s.n_tensors == 0 ? "no tensor" : unless_no_samples(op);
}
/* as_strided and its counterpart read and write the storage, whatever the tensor's own layout. */
static const char *unless_of_storage(const np_op *op)
{
    return strncmp(impl(op)->name, "as_strided", 10) == 0 ? "storage" : unless_no_tensor(op);
}
static const char *unless_one_tensor(const np_op *op)
{
    np_schema s;
    return np_schema_parse(impl(op)->args, &s) && s.n_tensors == 1 && !s.list ? "1 tensor"
                                                                              : unless_no_tensor(op);
}

int main(int argc, char **argv)
{
    static const op_mode modes[] = {
        {"without elements", test_empty, unless_no_samples, COL(EMPTY)},
        {"without dimensions", test_0dim, unless_no_samples, COL(0DIM)},
        {"broadcasting", test_broadcast, unless_one_tensor, COL(BROADCAST)},
        {"not contiguous", test_strided, unless_of_storage, COL(STRIDED)},
    };
    return run_modes("forms of ops", modes, sizeof modes / sizeof *modes, argc, argv);
}
