/* gradcheck.c - compares the gradients that backward gives with central differences.
 *
 * The whole Jacobian is compared, entry by entry, in float64: row = an element of a result, column = an
 * element of an input that requires grad. The second order is the first order of another function: of the
 * inputs x and of weights v it returns grad(fn(x) . v, x). Inputs are moved in place, one element at a time,
 * and put back; the default generator is put back before every call, so random ops give the same draw.
 * Results that are not floating point, or do not depend on the inputs, are left out. */
#include "autograd/autograd.h"

typedef struct check {
    neap_ctx *c;
    const neap_fn *fn;
    neap_tensor *const *in;
    int n;
    double eps, atol, rtol;
    const char *order;     /* for the message */
    int base;              /* of the positions in it */
    uint64_t seed, offset; /* the default generator at the start */
    int64_t rows, cols;
    double *jacobian;     /* (rows, cols), by backward */
    double *plus, *minus; /* (rows) */
} check;

static void free_results(neap_values *v)
{
    for (int j = 0; j < NEAP_MAX_RESULTS; j++) neap_free(v->out[j]), v->out[j] = NULL;
}

/* Runs fn on the inputs. False with an error pending; then nothing is left in v. */
static bool call(const check *k, neap_values *v)
{
    *v = (neap_values){.size = sizeof *v, .in = k->in, .n_in = k->n};
    neap_generator_set(neap_default_generator(k->c, 0), k->seed, k->offset);
    if (np_call_fn(k->c, *k->fn, v) == 0 && !np_pending(k->c)) return true;
    if (!np_pending(k->c)) np_fail(k->c, NEAP_E_GRADCHECK, "the function failed without saying why");
    free_results(v);
    return false;
}

static bool is_row(const neap_tensor *y) { return y && np_is_float((neap_dtype)y->dtype); }
static bool is_column(const neap_tensor *x) { return np_requires_grad(x); }

static bool same_dtype(const check *k, const neap_tensor *y)
{
    if (y->dtype == NEAP_FLOAT64) return true;
    np_fail(k->c, NEAP_E_DTYPE,
            "gradients are checked in float64, but a %s is %s: convert the inputs with to('float64')",
            y->ag && y->ag->node ? "result" : "tensor", np_dtype_name((neap_dtype)y->dtype));
    return false;
}

/* All results as one column of numbers. */
static bool values(const check *k, double *dst)
{
    neap_values v;
    if (!call(k, &v)) return false;
    int64_t row = 0;
    bool ok = true;
    for (int j = 0; j < v.n_out && ok; j++) {
        neap_tensor *y = v.out[j];
        if (!is_row(y)) continue;
        if (row + y->numel > k->rows) {
            np_fail(k->c, NEAP_E_GRADCHECK,
                    "the function gave more elements than before: it must be deterministic");
            ok = false;
        } else {
            ok = same_dtype(k, y) && neap_read(k->c, y, dst + row, (size_t)y->numel * sizeof *dst) == 0;
            row += y->numel;
        }
    }
    free_results(&v);
    return ok;
}

/* One row of the Jacobian: the gradients of element e of y. */
static bool backward_row(const check *k, neap_tensor *y, int64_t e, double *row)
{
    neap_ctx *c = k->c;
    neap_tensor *x[NEAP_MAX_RESULTS] = {0}, *dx[NEAP_MAX_RESULTS] = {0};
    int n = 0;
    for (int i = 0; i < k->n; i++)
        if (is_column(k->in[i])) x[n++] = k->in[i];
    neap_tensor *one = np_tensor_new(c, y->st->dev, NEAP_FLOAT64, y->ndim, y->shape);
    if (!one) return false;
    bool ok = np_fill_zero(c, one);
    if (ok) {
        NP_DATA(double, one)[e] = 1;
        neap_backward_opts o = {.size = sizeof o, .retain_graph = 1, .allow_unused = 1};
        ok = neap_grad(c, &y, &one, 1, x, n, &o, dx) == 0;
    }
    for (int i = 0; i < n; i++) {
        if (ok && dx[i]) ok = neap_read(c, dx[i], row, (size_t)dx[i]->numel * sizeof *row) == 0;
        row += x[i]->numel;
        neap_free(dx[i]);
    }
    np_drop(one);
    return ok;
}

static bool fill_jacobian(check *k)
{
    neap_values v;
    if (!call(k, &v)) return false;
    bool ok = true;
    for (int j = 0; j < v.n_out && ok; j++) {
        if (!is_row(v.out[j])) continue;
        ok = same_dtype(k, v.out[j]);
        k->rows += v.out[j]->numel;
    }
    size_t cap[3] = {0, 0, 0};
    if (ok) {
        k->jacobian = np_array_grow(k->c, NULL, &cap[0], (size_t)(k->rows * k->cols) + 1, sizeof(double));
        k->plus = np_array_grow(k->c, NULL, &cap[1], (size_t)k->rows + 1, sizeof(double));
        k->minus = np_array_grow(k->c, NULL, &cap[2], (size_t)k->rows + 1, sizeof(double));
        ok = k->jacobian && k->plus && k->minus;
    }
    if (ok) memset(k->jacobian, 0, (size_t)(k->rows * k->cols) * sizeof(double));
    double *row = k->jacobian;
    for (int j = 0; j < v.n_out && ok; j++) {
        if (!is_row(v.out[j])) continue;
        for (int64_t e = 0; e < v.out[j]->numel && ok; e++, row += k->cols)
            if (np_requires_grad(v.out[j])) ok = backward_row(k, v.out[j], e, row);
    }
    free_results(&v);
    return ok;
}

/* The element at row-major position e of a tensor of any layout. */
static double *element(neap_tensor *t, int64_t e)
{
    int64_t at = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        at += e % t->shape[d] * t->stride[d];
        e /= t->shape[d];
    }
    return NP_DATA(double, t) + at;
}

static bool check_column(const check *k, int input, int64_t e, int64_t col)
{
    double *p = element(k->in[input], e), x = *p;
    *p = x + k->eps;
    bool ok = values(k, k->plus);
    *p = x - k->eps;
    ok = ok && values(k, k->minus);
    *p = x;
    for (int64_t r = 0; r < k->rows && ok; r++) {
        double numeric = (k->plus[r] - k->minus[r]) / (2 * k->eps), analytic = k->jacobian[r * k->cols + col];
        if (fabs(numeric - analytic) <= k->atol + k->rtol * fabs(numeric)) continue;
        np_fail(k->c, NEAP_E_GRADCHECK,
                "%s gradients differ at input %d, element %lld (for element %lld of the results): backward "
                "gives %.9g, "
                "differences give %.9g (atol %g, rtol %g): look at the gradient formula, or use another eps "
                "near a kink",
                k->order, input + k->base, (long long)(e + k->base), (long long)(r + k->base), analytic,
                numeric, k->atol, k->rtol);
        return false;
    }
    return ok;
}

static bool run_check(check *k)
{
    int columns = 0;
    k->rows = k->cols = 0;
    for (int i = 0; i < k->n; i++) {
        if (!is_column(k->in[i])) continue;
        if (!same_dtype(k, k->in[i])) return false;
        if (!k->in[i]->st->dev->backend.host_memory) {
            np_fail(k->c, NEAP_E_DEVICE, "input %d is on %s: gradients are checked on the cpu", i + k->base,
                    k->in[i]->st->dev->name);
            return false;
        }
        if (np_overlaps_itself(k->in[i])) {
            np_fail(k->c, NEAP_E_OVERLAP, "input %d overlaps itself: check a contiguous copy", i + k->base);
            return false;
        }
        k->cols += k->in[i]->numel;
        columns++;
    }
    if (columns == 0 || columns > NEAP_MAX_RESULTS) {
        np_fail(k->c, NEAP_E_ARG, "%d inputs require grad: it must be 1 to %d", columns, NEAP_MAX_RESULTS);
        return false;
    }
    bool ok = fill_jacobian(k);
    int64_t col = 0;
    for (int i = 0; i < k->n && ok; i++)
        for (int64_t e = 0; is_column(k->in[i]) && e < k->in[i]->numel && ok; e++)
            ok = check_column(k, i, e, col++);
    np_array_free(k->c, k->jacobian);
    np_array_free(k->c, k->plus);
    np_array_free(k->c, k->minus);
    k->jacobian = k->plus = k->minus = NULL;
    return ok;
}

/* ---- second order */

typedef struct second {
    const neap_fn *fn;
    int n_x; /* the first arguments; the others are weights of the results */
} second;

/* v->in = x ... weights ...; results: the gradients of sum(result . weight) with respect to the x. */
static int call_second(neap_ctx *c, void *user, neap_values *v)
{
    const second *s = user;
    neap_values inner = {.size = sizeof inner, .in = v->in, .n_in = s->n_x};
    if (np_call_fn(c, *s->fn, &inner) != 0 || np_pending(c)) {
        free_results(&inner);
        return 1;
    }
    neap_tensor *y[NEAP_MAX_RESULTS], *w[NEAP_MAX_RESULTS], *x[NEAP_MAX_RESULTS], *dx[NEAP_MAX_RESULTS] = {0};
    int n_y = 0, n_x = 0, n_w = s->n_x, failed = 0;
    for (int i = 0; i < s->n_x; i++)
        if (is_column(v->in[i])) x[n_x++] = v->in[i];
    for (int j = 0; j < inner.n_out; j++) {
        if (!is_row(inner.out[j])) continue;
        neap_tensor *weight = n_w < v->n_in ? v->in[n_w++] : NULL;
        if (!weight || !np_requires_grad(inner.out[j])) continue;
        y[n_y] = inner.out[j], w[n_y++] = weight;
    }
    neap_backward_opts o = {.size = sizeof o, .retain_graph = 1, .create_graph = 1, .allow_unused = 1};
    if (n_y > 0) failed = neap_grad(c, y, w, n_y, x, n_x, &o, dx);
    free_results(&inner);
    for (int i = 0; i < n_x; i++)
        if (dx[i]) v->out[v->n_out++] = dx[i];
    return failed;
}

/* Weights for every floating-point result, fixed numbers in [0.5, 1.5). */
static int make_weights(const check *k, neap_tensor **w)
{
    neap_values v;
    if (!call(k, &v)) return -1;
    int n = 0;
    uint64_t state = 1;
    for (int j = 0; j < v.n_out; j++) {
        if (!is_row(v.out[j])) continue;
        neap_tensor *t =
            np_tensor_new(k->c, v.out[j]->st->dev, NEAP_FLOAT64, v.out[j]->ndim, v.out[j]->shape);
        if (!t) break;
        for (int64_t e = 0; e < t->numel; e++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            NP_DATA(double, t)[e] = 0.5 + (double)(state >> 11) * 0x1p-53;
        }
        w[n++] = t;
        if (neap_set_requires_grad(k->c, t, 1) != 0) break;
    }
    free_results(&v);
    return n;
}

static bool run_second(const check *first)
{
    neap_tensor *weights[NEAP_MAX_RESULTS] = {0}, **in = NULL;
    size_t cap = 0;
    int n_w = make_weights(first, weights);
    if (n_w < 0) return false;
    bool ok = !np_pending(first->c);
    if (ok) ok = (in = np_array_grow(first->c, NULL, &cap, (size_t)(first->n + n_w), sizeof *in)) != NULL;
    if (ok) {
        memcpy(in, first->in, (size_t)first->n * sizeof *in);
        memcpy(in + first->n, weights, (size_t)n_w * sizeof *in);
        second s = {first->fn, first->n};
        neap_fn fn = {.call = call_second, .user = &s};
        check k = *first;
        k.fn = &fn, k.in = in, k.n = first->n + n_w, k.order = "second-order";
        ok = run_check(&k);
    }
    np_array_free(first->c, in);
    for (int j = 0; j < n_w; j++) np_drop(weights[j]);
    return ok;
}

int neap_gradcheck(neap_ctx *c, neap_fn fn, neap_tensor *const *inputs, int n, double eps, double atol,
                   double rtol, int order)
{
    if (np_pending(c)) return 1;
    const char *outer = c->op_name;
    c->op_name = "gradcheck";
    check k = {.c = c, .fn = &fn, .in = inputs, .n = n, .order = "first-order", .base = c->base};
    k.eps = eps > 0 ? eps : 1e-6, k.atol = atol > 0 ? atol : 1e-5, k.rtol = rtol > 0 ? rtol : 1e-3;
    bool ok = false;
    neap_generator *g = neap_default_generator(c, 0);
    neap_generator_get(g, &k.seed, &k.offset);
    uint64_t mode = neap_set_grad_enabled(c, 1);
    if (order != 1 && order != 2) np_fail(c, NEAP_E_ARG, "order is %d: it must be 1 or 2", order);
    else if (mode) ok = run_check(&k) && (order == 1 || run_second(&k));
    if (mode) neap_end(c, mode);
    c->op_name = outer;
    return ok ? 0 : 1;
}
