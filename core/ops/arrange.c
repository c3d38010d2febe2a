/* arrange.c - rearranging by cutting, repeating and joining: tile, roll, pad, movedim, unflatten, unfold ...
 *
 * Nearly all are composites of views and cat, so they run wherever those do and differentiate by themselves. A composite
 * never hands back its operand: where nothing is to be done it gives a copy, or a view where it always gives views. */
#include "ops/cpu/rows.h"
#include "ops/sample.h"

/* The positions that repeat_interleave reads: i, repeats[i] times. */
NP_CPU(repeated_positions)(np_frame *f)
{
    neap_tensor *n = np_as_contiguous(f->c, f->in[0], NEAP_INT64);
    if (!n) return false;
    int64_t *out = NP_DATA(int64_t, f->out[0]), at = 0;
    for (int64_t i = 0; i < n->numel; i++)
        for (int64_t k = 0; k < NP_DATA(int64_t, n)[i]; k++) out[at++] = i;
    np_drop(n);
    return true;
}

#define ADD_RUN(T) \
    for (int64_t i = 0; i < n; i++) *(T *)(p[0] + i * s[0]) += *(const T *)(p[1] + i * s[1]);
static inline void add_run_f32(void *arg, int64_t n, char **p, const int64_t *s)
{
    (void)arg;
    ADD_RUN(float)
}
static inline void add_run_f64(void *arg, int64_t n, char **p, const int64_t *s)
{
    (void)arg;
    ADD_RUN(double)
}

/* Zeros get, for each place k of the window, the k-th elements of all windows: sums have one order. */
NP_CPU(unfold_backward)(np_frame *f)
{
    neap_ctx *c = f->c;
    neap_tensor *y = f->out[0];
    int d = (int)f->attr[1].i, nd = y->ndim;
    neap_dtype w = np_wide((neap_dtype)y->dtype);
    neap_tensor *g = np_as_contiguous(c, f->in[0], w);
    neap_tensor *sum =
        g ? (y->dtype == w ? np_hold_ref(y) : np_tensor_new(c, f->dev, w, nd, y->shape)) : NULL;
    bool ok = sum && np_fill_zero(c, sum);
    for (int64_t k = 0; ok && g->numel && k < f->attr[2].i; k++) {
        neap_tensor part = *sum, piece = *g;
        int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
        memcpy(shape, g->shape, sizeof shape);
        memcpy(stride, sum->stride, sizeof stride);
        stride[d] *= f->attr[3].i;
        np_tensor_geometry(&part, nd, shape, stride, sum->offset + k * sum->stride[d]);
        np_tensor_geometry(&piece, nd, shape, g->stride, g->offset + k);
        np_iter it;
        np_iter_init(&it, (neap_tensor *[]){&part, &piece}, 2);
        ok = np_iter_run(c, &it, w == NEAP_FLOAT32 ? add_run_f32 : add_run_f64, NULL);
    }
    if (ok && sum != y) ok = np_copy_into(c, y, sum);
    np_drop(g);
    np_drop(sum);
    return ok;
}

#ifdef NP_BASE_ONLY

static void s_int(np_sampler *s, int k, int64_t v) { s->attr[k] = (np_attr){.i = v, .has = 1}; }
static void s_list(np_sampler *s, int k, int n, int64_t a, int64_t b, int64_t c)
{
    const int64_t v[3] = {a, b, c};
    for (int i = 0; i < n; i++) s->lists[k][i] = v[i];
    s->attr[k] = (np_attr){.v = s->lists[k], .n = n, .has = 1};
}
static bool s_matrix(np_sampler *s, int layout, int64_t rows, int64_t columns)
{
    rows = np_s_size(s, rows, rows * 100), columns = np_s_size(s, columns, columns * 100);
    return np_s_tensor(s, -2, 2, layout, 2, rows, columns);
}

static void too_many_elements(np_frame *f)
{
    np_fail(f->c, NEAP_E_SHAPE, "the result has more elements than can be counted");
}

/* ---- repeating */

/* t with each slice along d followed by copies of itself (times - 1 of them), or, whole: all slices times over. */
static neap_tensor *repeat_along(np_back *b, neap_tensor *t, int d, int64_t times, bool whole)
{
    if (!t) return NULL;
    int64_t shape[NEAP_MAX_DIMS], pre = 1, post = 1, size = t->shape[d];
    int n = t->ndim;
    memcpy(shape, t->shape, sizeof shape);
    for (int k = 0; k < d; k++) pre *= shape[k];
    for (int k = d + 1; k < n; k++) post *= shape[k];
    if (__builtin_mul_overflow(size, times, &shape[d]) || np_shape_numel(n, shape) < 0)
        return np_fail(b->c, NEAP_E_SHAPE, "the result has more elements than can be counted");
    int64_t thin[4] = {pre, whole ? 1 : size, whole ? size : 1, post}, wide[4] = {pre, size, times, post};
    if (whole) wide[1] = times, wide[2] = size;
    return np_reshape(b, np_expand(b, np_reshape(b, t, thin, 4), wide, 4), shape, n);
}

/* tile(x, reps): x repeated reps[d] times along dimension d. Where reps has fewer numbers than x dimensions, the leading
 * ones stay; where it has more, x gets leading dimensions of size 1. What other libraries call repeat, which is a word
 * of Lua. neap.tensor{1, 2}:tile(2, 2) is {{1, 2, 1, 2}, {1, 2, 1, 2}}. */
static void tile_parts(np_back *b, np_frame *f)
{
    neap_tensor *t = f->in[0];
    const np_attr *reps = &f->attr[0];
    int n = reps->n > t->ndim ? reps->n : t->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    bool same = true;
    for (int i = 0; i < reps->n; i++) {
        if (reps->v[i] < 0) {
            np_fail(f->c, NEAP_E_ARG, "a number of repetitions is %lld: it must be 0 or more",
                    (long long)reps->v[i]);
            return;
        }
        same = same && reps->v[i] == 1;
    }
    for (int d = 0; d < n; d++) shape[d] = d < n - t->ndim ? 1 : t->shape[d - (n - t->ndim)];
    if (same) t = np_clone(b, t);
    if (n > f->in[0]->ndim) t = np_reshape(b, t, shape, n);
    for (int d = n - 1; d >= n - reps->n; d--)
        if (reps->v[d - (n - reps->n)] != 1) t = repeat_along(b, t, d, reps->v[d - (n - reps->n)], true);
    f->out[0] = t;
}

static bool tile_sample(np_sampler *s, int i)
{
    if (i > 3) return false;
    if (i == 0) s_list(s, 0, 2, 2, 3, 0);
    if (i == 1) s_list(s, 0, 1, 2, 0, 0);
    if (i == 2) s_list(s, 0, 3, 2, 1, 2);
    if (i == 3) s_list(s, 0, 2, 1, 1, 0);
    return s_matrix(s, i % 2, 2, 3);
}

NP_OP(tile) = {NP_NAMED(tile), .args = "x:T reps:shape -> y:T", .tags = NP_COMPOSITE, .parts = tile_parts,
               .sample = tile_sample};

/* repeated_positions(repeats): position i, repeats[i] times, from 0. */
static bool repeated_positions_infer(np_frame *f)
{
    neap_tensor *r = f->in[0];
    if (!np_same_device(f)) return false;
    if (!np_is_int((neap_dtype)r->dtype) || r->ndim != 1)
        return np_fail(f->c, NEAP_E_DTYPE, "repeats must be integers in one dimension, but has %d and is %s",
                       r->ndim, np_dtype_name((neap_dtype)r->dtype));
    neap_tensor *host = np_to_host(f->c, r), *n = host ? np_as_contiguous(f->c, host, NEAP_INT64) : NULL;
    int64_t total = 0;
    bool ok = n != NULL;
    for (int64_t i = 0; ok && i < n->numel; i++) {
        int64_t v = NP_DATA(int64_t, n)[i];
        if (v < 0)
            ok = np_fail(f->c, NEAP_E_ARG, "repeats[%lld] is %lld: it must be 0 or more",
                         (long long)(i + f->c->base), (long long)v);
        else if (__builtin_add_overflow(total, v, &total)) too_many_elements(f), ok = false;
    }
    np_drop(host);
    np_drop(n);
    if (ok) np_meta_set(f, 0, NEAP_INT64, 1, &total);
    return ok;
}
static bool repeated_positions_sample(np_sampler *s, int i)
{
    return i < 1 && np_s_ids(s, 0, 3, 1, (int64_t)5);
}
NP_OP(repeated_positions) = {
    NP_NAMED(repeated_positions),
    .args = "repeats:T -> ids:T",
    .tags = NP_INTERNAL | NP_NODIFF | NP_SYNC,
    .infer = repeated_positions_infer,
    .sample = repeated_positions_sample,
};

/* repeat_interleave(x, repeats, [dim]): each slice along dim, repeats times in a row; of x laid out in a row without
 * dim. repeats: a number, or a tensor with one for each slice. neap.tensor{1, 2}:repeat_interleave(2) is {1, 1, 2, 2}. */
static void repeat_interleave_parts(np_back *b, np_frame *f)
{
    neap_tensor *x = f->in[0], *r = f->in[1];
    const int64_t row = -1;
    int64_t times;
    if (!f->attr[0].has || x->ndim == 0) x = np_reshape(b, x, &row, 1);
    int d = !x ? -1 : f->attr[0].has ? np_wrap_dim(f->c, f->attr[0].i, x->ndim) : 0;
    if (d < 0) return;
    if (r->number || (r->ndim == 0 && np_is_int((neap_dtype)r->dtype))) {
        if (!np_is_int((neap_dtype)r->dtype) || neap_item_int(f->c, r, &times) || times < 0) {
            np_fail(f->c, NEAP_E_ARG, "repeats must be a whole number, 0 or more");
            return;
        }
        f->out[0] = repeat_along(b, x, d, times, false);
        return;
    }
    if (r->ndim == 1 && r->shape[0] != x->shape[d])
        np_fail(f->c, NEAP_E_SHAPE,
                "repeats has %lld numbers, but dimension %d has %lld slices: one for each",
                (long long)r->shape[0], d + f->c->base, (long long)x->shape[d]);
    else f->out[0] = np_index_select(b, x, d, np_repeated_positions(b, r), 0);
}

static bool repeat_interleave_sample(np_sampler *s, int i)
{
    if (i > 2) return false;
    if (i) s_int(s, 0, i == 1 ? 0 : -1);
    if (!s_matrix(s, i == 2, 3, 4)) return false;
    if (i == 1) return np_s_ids(s, 0, 2, 1, s->in[0]->shape[0]);
    np_s_number(s, 2);
    return true;
}

NP_OP(repeat_interleave) = {NP_NAMED(repeat_interleave), .args = "x:T repeats:N dim:dim? -> y:T",
                            .tags = NP_COMPOSITE, .parts = repeat_interleave_parts,
                            .sample = repeat_interleave_sample};

/* broadcast_to(x, shape): x as a view of this shape, dimensions of size 1 repeated; expand with another name.
 * x:broadcast_to(3, 4) */
static void broadcast_to_parts(np_back *b, np_frame *f)
{
    f->out[0] = np_expand(b, f->in[0], f->attr[0].v, f->attr[0].n);
}
static bool broadcast_to_sample(np_sampler *s, int i)
{
    s_list(s, 0, 2, i == 1 ? 0 : 3, 4, 0);
    return i < 2 && np_s_tensor(s, -2, 2, 0, 1, (int64_t)4);
}
NP_OP(broadcast_to) = {NP_NAMED(broadcast_to), .args = "x:T shape:shape -> y:T", .tags = NP_COMPOSITE,
                       .parts = broadcast_to_parts, .sample = broadcast_to_sample};

/* expand_as(x, other): x as a view with the shape of another tensor, dimensions of size 1 repeated. x:expand_as(y) */
static void expand_as_parts(np_back *b, np_frame *f)
{
    f->out[0] = np_expand(b, f->in[0], f->in[1]->shape, f->in[1]->ndim);
}
static bool expand_as_sample(np_sampler *s, int i)
{
    s->no_grad = 2;
    return i < 1 && np_s_tensor(s, -2, 2, 0, 2, (int64_t)3, (int64_t)1) &&
           np_s_tensor(s, -2, 2, 0, 3, (int64_t)2, (int64_t)3, (int64_t)2);
}
NP_OP(expand_as) = {NP_NAMED(expand_as), .args = "x:T other:T -> y:T", .tags = NP_COMPOSITE,
                    .parts = expand_as_parts, .sample = expand_as_sample};

/* ---- moving */

/* roll(x, shifts, [dims]): elements moved on by shifts[i] places along dims[i]; those that leave come in again on the
 * other side. Without dims x is rolled as one row. neap.tensor{1, 2, 3}:roll(1) is {3, 1, 2}. */
static void roll_parts(np_back *b, np_frame *f)
{
    neap_tensor *x = f->in[0], *t = x;
    const np_attr *shifts = &f->attr[0], *dims = &f->attr[1];
    const int64_t row = -1;
    int n = dims->has ? dims->n : 1;
    if (shifts->n != n) {
        np_fail(f->c, NEAP_E_ARG, "%d shifts for %d dimensions: one for each%s", shifts->n, n,
                dims->has ? "" : "; without dims there is one");
        return;
    }
    if (!dims->has || x->ndim == 0) t = np_reshape(b, x, &row, 1);
    for (int i = 0; t && i < n; i++) {
        int d = dims->has ? np_wrap_dim(f->c, dims->v[i], x->ndim) : 0;
        if (d < 0) return;
        int64_t size = t->shape[d], s = size ? (shifts->v[i] % size + size) % size : 0;
        if (s == 0) continue;
        neap_tensor *end = np_narrow(b, np_hold(b, t), d, size - s, s, 1);
        neap_tensor *parts[2] = {end, np_narrow(b, t, d, 0, size - s, 1)};
        t = end ? np_cat(b, parts, 2, d) : NULL;
    }
    if (t && t->st == x->st) t = np_clone(b, t);
    f->out[0] = t && t->ndim != x->ndim ? np_reshape(b, t, x->shape, x->ndim) : t;
}

static bool roll_sample(np_sampler *s, int i)
{
    if (i > 2) return false;
    s_list(s, 0, i == 1 ? 2 : 1, i == 2 ? -5 : 1, 2, 0);
    if (i == 1) s_list(s, 1, 2, -1, 0, 0);
    if (i == 2) s_list(s, 1, 1, 1, 0, 0);
    return s_matrix(s, i, 3, 4);
}

NP_OP(roll) = {NP_NAMED(roll), .args = "x:T shifts:shape dims:dims? -> y:T", .tags = NP_COMPOSITE,
               .parts = roll_parts, .sample = roll_sample};

/* movedim(x, source, destination): dimensions source[i] become number destination[i] of the result; the others keep
 * their order. A view. images:movedim(-1, 2) moves channels from last to second. */
static void movedim_parts(np_back *b, np_frame *f)
{
    const np_attr *from = &f->attr[0], *to = &f->attr[1];
    int n = f->in[0]->ndim, next = 0;
    int64_t order[NEAP_MAX_DIMS];
    unsigned taken = 0, placed = 0;
    if (from->n != to->n) {
        np_fail(f->c, NEAP_E_ARG, "%d dimensions go to %d places: as many of both", from->n, to->n);
        return;
    }
    for (int i = 0; n && i < from->n; i++) {
        int s = np_wrap_dim(f->c, from->v[i], n), d = s < 0 ? -1 : np_wrap_dim(f->c, to->v[i], n);
        if (d < 0) return;
        if ((taken >> s & 1) || (placed >> d & 1)) {
            np_fail(f->c, NEAP_E_DIMS, "dimension %d is given twice: name each once",
                    (taken >> s & 1 ? s : d) + f->c->base);
            return;
        }
        taken |= 1u << s, placed |= 1u << d;
        order[d] = s;
    }
    for (int d = 0; d < n; d++) {
        if (placed >> d & 1) continue;
        while (taken >> next & 1) next++;
        order[d] = next++;
    }
    f->out[0] = np_permute(b, f->in[0], order, n);
}

static bool movedim_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s_list(s, 0, i + 1, -1, 0, 0);
    s_list(s, 1, i + 1, 0, 1, 0);
    return np_s_tensor(s, -2, 2, 0, 3, (int64_t)2, (int64_t)3, (int64_t)4);
}

NP_OP(movedim) = {NP_NAMED(movedim), .args = "x:T source:dims destination:dims -> y:T", .tags = NP_COMPOSITE,
                  .parts = movedim_parts, .sample = movedim_sample};

/* unflatten(x, dim, sizes): one dimension cut into several; one size may be -1. A view. x:unflatten(-1, heads, -1) */
static void unflatten_parts(np_back *b, np_frame *f)
{
    neap_tensor *x = f->in[0];
    const np_attr *sizes = &f->attr[1];
    char text[128];
    int64_t shape[NEAP_MAX_DIMS], known = 1;
    int n = 0, hole = -1, d = x->ndim ? np_wrap_dim(f->c, f->attr[0].i, x->ndim) : -1;
    if (d < 0 || sizes->n < 1 || x->ndim - 1 + sizes->n > NEAP_MAX_DIMS) {
        np_fail(f->c, NEAP_E_DIMS,
                "%d sizes for one of %d dimensions: at least 1, and at most %d in the result", sizes->n,
                x->ndim, NEAP_MAX_DIMS);
        return;
    }
    for (int k = 0; k < d; k++) shape[n++] = x->shape[k];
    bool fits = true;
    for (int k = 0; k < sizes->n; k++) {
        if (sizes->v[k] == -1 && hole < 0) hole = n;
        else fits = fits && sizes->v[k] >= 0 && !__builtin_mul_overflow(known, sizes->v[k], &known);
        shape[n++] = sizes->v[k];
    }
    if (fits && hole >= 0) {
        fits = known > 0 && x->shape[d] % known == 0;
        if (fits) shape[hole] = x->shape[d] / known;
    } else {
        fits = fits && known == x->shape[d];
    }
    if (!fits) {
        np_fail(f->c, NEAP_E_SHAPE, "dimension %d of size %lld cannot be cut into %s", d + f->c->base,
                (long long)x->shape[d], np_shape_text(text, sizeof text, sizes->n, sizes->v));
        return;
    }
    for (int k = d + 1; k < x->ndim; k++) shape[n++] = x->shape[k];
    f->out[0] = np_view(b, x, shape, n);
}

static bool unflatten_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s_int(s, 0, i ? -1 : 0);
    s_list(s, 1, 2, 2, i ? -1 : 3, 0);
    return np_s_tensor(s, -2, 2, i, 2, (int64_t)6, (int64_t)4);
}

NP_OP(unflatten) = {NP_NAMED(unflatten), .args = "x:T dim:dim sizes:shape -> y:T", .tags = NP_COMPOSITE,
                    .parts = unflatten_parts, .sample = unflatten_sample};

/* ---- padding */

typedef enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR, N_PAD_MODES } pad_mode;
static const char *const pad_modes[] = {"constant", "reflect", "replicate", "circular"};

/* What stands beside t along d: n elements before its first one, or after its last one. */
static neap_tensor *border(np_back *b, neap_tensor *t, int d, int64_t n, bool before, pad_mode mode,
                           neap_tensor *value)
{
    int64_t shape[NEAP_MAX_DIMS], dim = d, size = t->shape[d];
    memcpy(shape, t->shape, sizeof shape);
    shape[d] = n;
    if (mode != PAD_CONSTANT) np_hold(b, t);
    switch (mode) {
    case PAD_REFLECT: return np_flip(b, np_narrow(b, t, d, before ? 1 : size - 1 - n, n, 1), &dim, 1);
    case PAD_REPLICATE: return np_expand(b, np_narrow(b, t, d, before ? 0 : size - 1, 1, 1), shape, t->ndim);
    case PAD_CIRCULAR: return np_narrow(b, t, d, before ? size - n : 0, n, 1);
    default: return np_expand(b, np_hold(b, value), shape, t->ndim);
    }
}

static bool check_border(np_frame *f, pad_mode mode, int64_t n, int64_t size, int d)
{
    int64_t most = mode == PAD_REFLECT ? size - 1 : mode == PAD_CIRCULAR ? size : size > 0 ? INT64_MAX : 0;
    if (mode == PAD_CONSTANT || n <= most) return true;
    return np_fail(f->c, NEAP_E_SHAPE,
                   "%lld elements of %s padding beside the %lld of dimension %d: at most %lld", (long long)n,
                   pad_modes[mode], (long long)size, d + f->c->base, (long long)(most < 0 ? 0 : most));
}

/* t with `before` and `after` elements more along d; negative ones are cut off. */
static neap_tensor *pad_along(np_back *b, np_frame *f, neap_tensor *t, int d, int64_t before, int64_t after,
                              pad_mode mode, neap_tensor *value)
{
    int64_t size = t->shape[d], less = before < 0 ? before : 0, more;
    if (after < 0) less += after;
    if (less < -size || before < -size || after < -size)
        return np_fail(f->c, NEAP_E_SHAPE, "%lld elements cannot be cut off dimension %d, which has %lld",
                       (long long)-less, d + f->c->base, (long long)size);
    if (less) t = np_narrow(b, t, d, before < 0 ? -before : 0, size + less, 1), size += less;
    if (!t || (before <= 0 && after <= 0)) return t;
    if (!check_border(f, mode, before, size, d) || !check_border(f, mode, after, size, d)) return NULL;
    if (__builtin_add_overflow(size, before > 0 ? before : 0, &more) ||
        __builtin_add_overflow(more, after > 0 ? after : 0, &more)) {
        too_many_elements(f);
        return NULL;
    }
    neap_tensor *parts[3];
    int n = 0;
    if (before > 0) parts[n++] = border(b, t, d, before, true, mode, value);
    neap_tensor *last = after > 0 ? border(b, t, d, after, false, mode, value) : NULL;
    parts[n++] = t;
    if (last) parts[n++] = last;
    return np_pending(f->c) ? NULL : np_cat(b, parts, n, d);
}

/* pad(x, pads, {mode = "constant", value = 0}): x with a border. pads: how many elements before and after, in pairs, the
 * first pair for the last dimension; negative numbers cut off. Modes: constant (value), reflect (mirrored at the
 * outermost element), replicate (the outermost element), circular (from the other side).
 * neap.tensor{1, 2, 3}:pad({1, 1}, {mode = "reflect"}) is {2, 1, 2, 3, 2}. */
static void pad_parts(np_back *b, np_frame *f)
{
    neap_tensor *x = f->in[0], *t = x, *value = NULL;
    const np_attr *pads = &f->attr[0], *fill = &f->attr[2];
    int mode = 0;
    while (f->attr[1].has && mode < N_PAD_MODES && strcmp(f->attr[1].s, pad_modes[mode])) mode++;
    if (mode == N_PAD_MODES)
        np_fail(f->c, NEAP_E_ARG, "there is no mode '%.40s': constant, reflect, replicate or circular",
                f->attr[1].s);
    else if (pads->n % 2 || pads->n / 2 > x->ndim)
        np_fail(f->c, NEAP_E_ARG,
                "%d numbers pad no tensor of %d dimensions: a pair for each, from the last on", pads->n,
                x->ndim);
    else if (mode == PAD_CONSTANT && (fill->n || !np_attr_fits(f->c, fill, (neap_dtype)x->dtype)))
        np_fail(f->c, NEAP_E_DTYPE, "the value is beyond what can be told exactly");
    if (np_pending(f->c)) return;
    if (mode == PAD_CONSTANT) value = np_to(b, np_num(b, fill->f), x->dtype, x->st->dev->index);
    for (int i = 0; t && i < pads->n / 2; i++)
        t = pad_along(b, f, t, x->ndim - 1 - i, pads->v[2 * i], pads->v[2 * i + 1], (pad_mode)mode, value);
    f->out[0] = t && t->st == x->st ? np_clone(b, t) : t;
}

static bool pad_sample(np_sampler *s, int i)
{
    if (i > 6) return false;
    s_list(s, 0, 2, 1, 2, 0);
    if (i == 4) s_list(s, 0, 2, -1, 2, 0);
    if (i == 6) s_list(s, 0, 2, 0, 0, 0);
    if (i == 5) memcpy(s->lists[0], (int64_t[]){2, 0, 1, 1}, 4 * sizeof(int64_t)), s->attr[0].n = 4;
    if (i < 4) s->attr[1] = (np_attr){.s = pad_modes[i], .has = 1};
    s->attr[2] = (np_attr){.f = i == 5 ? -1.5 : 0, .has = 1};
    s->label = i < 4 ? pad_modes[i] : i == 4 ? "cut and padded" : i == 5 ? "two dimensions" : "nothing";
    return s_matrix(s, i % 3, 3, 4);
}

NP_OP(pad) = {NP_NAMED(pad), .args = "x:T pads:shape ; mode:str? value:float=0 -> y:T", .tags = NP_COMPOSITE,
              .parts = pad_parts, .sample = pad_sample};

/* ---- windows */

/* unfold(x, dim, size, step): all windows of `size` elements along dim, `step` apart: dim counts the windows, a new last
 * dimension their elements. A view. neap.tensor{1, 2, 3}:unfold(1, 2, 1) is {{1, 2}, {2, 3}}. */
static bool unfold_infer(np_frame *f)
{
    neap_ctx *c = f->c;
    neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS], size = f->attr[1].i, step = f->attr[2].i;
    if (!np_same_device(f)) return false;
    if (x->ndim == 0 || x->ndim == NEAP_MAX_DIMS)
        return np_fail(c, NEAP_E_DIMS, "x has %d dimensions: 1 to %d can be unfolded", x->ndim,
                       NEAP_MAX_DIMS - 1);
    int d = np_wrap_dim(c, f->attr[0].i, x->ndim);
    if (d < 0) return false;
    f->attr[0].i = d;
    if (step < 1) return np_fail(c, NEAP_E_ARG, "the step is %lld: it must be 1 or more", (long long)step);
    if (size < 0 || size > x->shape[d])
        return np_fail(c, NEAP_E_SHAPE, "windows of %lld elements do not fit dimension %d of size %lld",
                       (long long)size, d + c->base, (long long)x->shape[d]);
    memcpy(shape, x->shape, sizeof shape);
    memcpy(stride, x->stride, sizeof stride);
    shape[x->ndim] = size, stride[x->ndim] = stride[d];
    shape[d] = (x->shape[d] - size) / step + 1;
    stride[d] = shape[d] > 1 ? stride[d] * step : stride[d];
    if (np_shape_numel(x->ndim + 1, shape) < 0) return too_many_elements(f), false;
    np_meta_view(f, 0, x->ndim + 1, shape, stride, x->offset);
    return true;
}

static void unfold_grad(np_back *b)
{
    int n;
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype t;
    const np_attr *a = b->attr;
    if (np_input_shape(b, 0, &n, shape, &t))
        b->dx[0] = np_unfold_backward(b, b->g[0], shape, n, a[0].i, a[1].i, a[2].i);
}

static bool unfold_sample(np_sampler *s, int i)
{
    static const int8_t dim[] = {-1, 0, 1}, size[] = {3, 2, 2}, step[] = {1, 1, 2};
    if (i > 2) return false;
    s_int(s, 0, dim[i]);
    s_int(s, 1, size[i]);
    s_int(s, 2, step[i]);
    return s_matrix(s, i, 3, 5);
}

NP_OP(unfold) = {
    NP_NAMED(unfold),           .args = "x:T dim:dim size:int step:int -> y:T",
    .tags = NP_VIEW | NP_CHEAP, .infer = unfold_infer,
    .grad = unfold_grad,        .sample = unfold_sample,
};

/* unfold_backward(g, shape, dim, size, step): zeros of this shape with the windows g added where unfold reads them. */
static bool unfold_backward_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    const neap_tensor *g = f->in[0];
    int n = a[0].n;
    if (!np_same_device(f)) return false;
    bool ok = g->ndim == n + 1 && a[1].i >= 0 && a[1].i < n && a[3].i >= 1 && g->shape[n] == a[2].i &&
              np_is_float((neap_dtype)g->dtype);
    for (int d = 0; ok && d < n; d++)
        ok = d == a[1].i ? (g->shape[d] - 1) * a[3].i + a[2].i <= a[0].v[d] : g->shape[d] == a[0].v[d];
    if (!ok) return np_fail(f->c, NEAP_E_SHAPE, "the gradient of unfold does not fit its input");
    np_meta_set(f, 0, (neap_dtype)g->dtype, n, a[0].v);
    return true;
}

static void unfold_backward_grad(np_back *b)
{
    const np_attr *a = b->attr;
    b->dx[0] = np_unfold(b, b->g[0], a[1].i, a[2].i, a[3].i);
}

static bool unfold_backward_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s_list(s, 0, 2, 2, 5, 0);
    s_int(s, 1, 1);
    s_int(s, 2, 2);
    s_int(s, 3, i + 1);
    return np_s_tensor(s, -2, 2, i, 3, (int64_t)2, (int64_t)(i ? 2 : 4), (int64_t)2);
}

NP_OP(unfold_backward) = {
    NP_NAMED(unfold_backward),    .args = "g:T shape:shape dim:dim size:int step:int -> dx:T",
    .tags = NP_INTERNAL,          .infer = unfold_backward_infer,
    .grad = unfold_backward_grad, .sample = unfold_backward_sample,
};

#endif
