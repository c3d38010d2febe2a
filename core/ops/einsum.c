/* einsum.c - sums of products written with letters: "ij,jk->ik".
 *
 * A composite. Each operand carries a list of labels, one for each of its dimensions: letters 0..51, and the dimensions
 * that ... stands for from 52 on. Operands are contracted from left to right, two at a time: labels that nothing later
 * needs are summed, by a batched product where both operands have them. Everything is checked before the first op. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

#include "ops/op.h"
#include "ops/sample.h"

#ifdef NP_BASE_ONLY

enum { ELLIPSIS = 52, N_LABELS = ELLIPSIS + NEAP_MAX_DIMS, MAX_OPERANDS = 16 };

typedef struct labels { /* of the dimensions of a tensor */
    int n;
    int8_t v[N_LABELS];
} labels;

typedef struct equation {
    np_frame *f;
    const char *text;
    labels in[MAX_OPERANDS], out;
    int n_dots;             /* dimensions that ... stands for: the most of any operand */
    int64_t size[N_LABELS]; /* 0 .. : of the label; -1: not seen */
    int8_t count[N_LABELS]; /* uses in all operands */
} equation;

static int label_of(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1;
}
static char letter_of(int label)
{
    return (char)(label < 26 ? 'A' + label : label < 52 ? 'a' + label - 26 : '.');
}

static bool has(const labels *l, int label)
{
    for (int i = 0; i < l->n; i++)
        if (l->v[i] == label) return true;
    return false;
}

static bool add(labels *l, int label)
{
    if (l->n == N_LABELS) return false;
    l->v[l->n++] = (int8_t)label;
    return true;
}

__attribute__((format(printf, 3, 4))) static bool fail(const equation *e, neap_code code, const char *fmt,
                                                       ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return np_fail(e->f->c, code, "'%.60s': %s", e->text, text);
}

/* ---- reading */

/* Letters and at most one "..." up to `end`. dots: how many dimensions "..." stands for, -1: count them from ndim. */
static bool read_term(equation *e, const char *p, const char *end, int ndim, int dots, labels *out)
{
    int letters = 0, seen = 0;
    for (const char *q = p; q < end; q++) {
        if (label_of(*q) >= 0) letters++;
        else if (end - q >= 3 && memcmp(q, "...", 3) == 0) seen++, q += 2;
        else if (*q != ' ')
            return fail(e, NEAP_E_ARG, "a '%c' stands where letters, ... or spaces should, then , or ->",
                        isprint((unsigned char)*q) ? *q : '?');
    }
    if (seen > 1) return fail(e, NEAP_E_ARG, "... stands twice in one term");
    if (dots < 0) dots = seen ? ndim - letters : 0;
    if (ndim >= 0 && (dots < 0 || letters + dots != ndim))
        return fail(e, NEAP_E_SHAPE, "%.*s has %d letter%s for a tensor of %d dimension%s", (int)(end - p), p,
                    letters, letters == 1 ? "" : "s", ndim, ndim == 1 ? "" : "s");
    for (const char *q = p; q < end; q++) {
        int label = label_of(*q);
        if (label >= 0 && !add(out, label)) return fail(e, NEAP_E_ARG, "too many letters");
        if (*q != '.') continue;
        /* counted from the last, as in broadcasting */
        for (int k = dots; k-- > 0;)
            if (!add(out, ELLIPSIS + k)) return fail(e, NEAP_E_ARG, "too many dimensions");
        q += 2;
    }
    if (dots > e->n_dots) e->n_dots = dots;
    return true;
}

/* Sizes of a label are equal, or 1. */
static bool note_sizes(equation *e, int i)
{
    const neap_tensor *t = e->f->in[i];
    for (int d = 0; d < e->in[i].n; d++) {
        int label = e->in[i].v[d];
        for (int k = 0; k < d; k++)
            if (e->in[i].v[k] == label && t->shape[k] != t->shape[d])
                return fail(e, NEAP_E_SHAPE, "%c stands twice for operand %d, for sizes %lld and %lld",
                            letter_of(label), i + 1, (long long)t->shape[k], (long long)t->shape[d]);
        int64_t *size = &e->size[label];
        if (*size < 0 || *size == 1) *size = t->shape[d];
        else if (t->shape[d] != *size && t->shape[d] != 1)
            return fail(e, NEAP_E_SHAPE,
                        "%c is %lld in operand %d and %lld before: sizes of a letter are equal or 1",
                        letter_of(label), (long long)t->shape[d], i + 1, (long long)*size);
        e->count[label]++;
    }
    return true;
}

/* Without "->": what ... stands for, then the letters that stand once, in order of the alphabet (capitals first). */
static void implicit_output(equation *e)
{
    for (int k = e->n_dots; k-- > 0;) add(&e->out, ELLIPSIS + k);
    for (int label = 0; label < ELLIPSIS; label++)
        if (e->count[label] == 1) add(&e->out, label);
}

static bool check_output(equation *e)
{
    for (int i = 0; i < e->out.n; i++) {
        int label = e->out.v[i];
        if (e->size[label] < 0)
            return fail(e, NEAP_E_ARG, "the result has %c, which no operand has", letter_of(label));
        for (int k = 0; k < i; k++)
            if (e->out.v[k] == label)
                return fail(e, NEAP_E_ARG, "the result has %c twice: each letter once", letter_of(label));
    }
    return e->out.n <= NEAP_MAX_DIMS ||
           fail(e, NEAP_E_DIMS, "the result has %d dimensions: at most %d are possible", e->out.n,
                NEAP_MAX_DIMS);
}

static bool read_equation(equation *e)
{
    const char *p = e->text, *arrow = strstr(p, "->"), *end = arrow ? arrow : p + strlen(p);
    int n = 0;
    for (int l = 0; l < N_LABELS; l++) e->size[l] = -1;
    for (;; n++) {
        const char *comma = memchr(p, ',', (size_t)(end - p)), *stop = comma ? comma : end;
        if (n < e->f->n_in && n < MAX_OPERANDS &&
            (!read_term(e, p, stop, e->f->in[n]->ndim, -1, &e->in[n]) || !note_sizes(e, n)))
            return false;
        if (!comma) break;
        p = comma + 1;
    }
    if (n + 1 != e->f->n_in || n >= MAX_OPERANDS)
        return fail(e, NEAP_E_ARG, "%d terms for %d tensors: one for each, at most %d", n + 1, e->f->n_in,
                    MAX_OPERANDS);
    if (!arrow) implicit_output(e);
    else if (!read_term(e, arrow + 2, arrow + 2 + strlen(arrow + 2), -1, e->n_dots, &e->out)) return false;
    return check_output(e);
}

/* ---- computing */

typedef struct term {
    neap_tensor *t;
    labels l;
} term;

/* Labels that stand twice become one: the diagonal. */
static void take_diagonals(np_back *b, term *x)
{
    for (int i = 0; i < x->l.n; i++) {
        for (int k = i + 1; k < x->l.n; k++) {
            if (x->l.v[i] != x->l.v[k]) continue;
            int8_t label = x->l.v[i];
            x->t = np_diagonal(b, x->t, 0, i, k);
            int n = 0;
            for (int d = 0; d < x->l.n; d++)
                if (d != i && d != k) x->l.v[n++] = x->l.v[d];
            x->l.v[n++] = label;
            x->l.n = n;
            i = -1;
            break;
        }
    }
}

/* Sums over the dimensions whose label `drop` marks. */
static void sum_out(np_back *b, term *x, const bool *drop)
{
    int64_t dims[NEAP_MAX_DIMS];
    int n = 0, kept = 0;
    for (int d = 0; d < x->l.n; d++)
        if (drop[x->l.v[d]]) dims[n++] = d;
    if (n == 0) return;
    x->t = np_sum(b, x->t, dims, n, 0);
    for (int d = 0; d < x->l.n; d++)
        if (!drop[x->l.v[d]]) x->l.v[kept++] = x->l.v[d];
    x->l.n = kept;
}

/* Drops dimensions of size 1 whose label is larger in the other operand: they broadcast. */
static void drop_thin(np_back *b, term *x, const term *y)
{
    for (int d = x->l.n - 1; x->t && y->t && d >= 0; d--) {
        bool larger = false;
        for (int k = 0; k < y->l.n; k++) larger = larger || (y->l.v[k] == x->l.v[d] && y->t->shape[k] != 1);
        if (x->t->shape[d] != 1 || !larger) continue;
        int64_t at = d;
        x->t = np_squeeze(b, x->t, &at);
        for (int k = d; k + 1 < x->l.n; k++) x->l.v[k] = x->l.v[k + 1];
        x->l.n--;
    }
}

static neap_tensor *in_order(np_back *b, const term *x, const labels *order)
{
    int64_t dims[NEAP_MAX_DIMS];
    int n = 0;
    bool same = true;
    for (int i = 0; i < order->n; i++)
        for (int d = 0; d < x->l.n; d++)
            if (x->l.v[d] == order->v[i]) same = same && d == n, dims[n++] = d;
    return same ? x->t : np_permute(b, x->t, dims, n);
}

static int64_t product(const int64_t *size, const labels *l)
{
    int64_t n = 1;
    for (int i = 0; i < l->n; i++) n *= size[l->v[i]];
    return n;
}

static void append(labels *to, const labels *from)
{
    for (int i = 0; i < from->n; i++) add(to, from->v[i]);
}

/* Elementwise, with one dimension for each label of the result. */
static void multiply(np_back *b, equation *e, term *x, term *y, const labels *result)
{
    term *both[2] = {x, y};
    if (result->n > NEAP_MAX_DIMS) {
        fail(e, NEAP_E_DIMS,
             "an intermediate product has %d dimensions: at most %d are possible; contract in steps",
             result->n, NEAP_MAX_DIMS);
        return;
    }
    for (int i = 0; i < 2; i++) {
        int64_t shape[NEAP_MAX_DIMS];
        neap_tensor *t = in_order(b, both[i], result);
        if (!t) return;
        for (int k = 0, d = 0; k < result->n; k++)
            shape[k] = has(&both[i]->l, result->v[k]) ? t->shape[d++] : 1;
        both[i]->t = np_reshape(b, t, shape, result->n);
    }
    x->t = np_mul(b, x->t, y->t);
    x->l = *result;
}

/* (batch, rows, inner) x (batch, inner, columns) -> (batch, rows, columns) */
static void contract(np_back *b, term *x, term *y, const labels *batch, const labels *rows,
                     const labels *columns, const labels *inner, const labels *result)
{
    int64_t size[N_LABELS], shape[NEAP_MAX_DIMS];
    for (int d = 0; d < x->l.n; d++) size[x->l.v[d]] = x->t->shape[d];
    for (int d = 0; d < y->l.n; d++) size[y->l.v[d]] = y->t->shape[d];
    labels left = *batch, right = *batch;
    append(&left, rows), append(&left, inner);
    append(&right, inner), append(&right, columns);
    int64_t n = product(size, batch), m = product(size, rows), k = product(size, inner),
            p = product(size, columns);
    neap_tensor *l = np_reshape(b, in_order(b, x, &left), (int64_t[]){n, m, k}, 3);
    neap_tensor *r = np_reshape(b, in_order(b, y, &right), (int64_t[]){n, k, p}, 3);
    for (int i = 0; i < result->n; i++) shape[i] = size[result->v[i]];
    x->t = np_reshape(b, np_matmul(b, l, r), shape, result->n);
    x->l = *result;
}

/* x takes y in. later: labels that the result or an operand still to come has. */
static void combine(np_back *b, equation *e, term *x, term *y, const bool *later)
{
    labels batch = {0}, rows = {0}, columns = {0}, inner = {0}, result;
    bool drop_x[N_LABELS], drop_y[N_LABELS];
    drop_thin(b, x, y);
    drop_thin(b, y, x);
    for (int l = 0; l < N_LABELS; l++) {
        drop_x[l] = !later[l] && !has(&y->l, l);
        drop_y[l] = !later[l] && !has(&x->l, l);
    }
    sum_out(b, x, drop_x);
    sum_out(b, y, drop_y);
    if (!x->t || !y->t) return;
    for (int i = 0; i < x->l.n; i++) {
        int l = x->l.v[i];
        add(!has(&y->l, l) ? &rows : later[l] ? &batch : &inner, l);
    }
    for (int i = 0; i < y->l.n; i++)
        if (!has(&x->l, y->l.v[i])) add(&columns, y->l.v[i]);
    result = batch;
    append(&result, &rows), append(&result, &columns);
    if (inner.n == 0) multiply(b, e, x, y, &result);
    else if (result.n > NEAP_MAX_DIMS)
        fail(e, NEAP_E_DIMS,
             "an intermediate product has %d dimensions: at most %d are possible; contract in steps",
             result.n, NEAP_MAX_DIMS);
    else contract(b, x, y, &batch, &rows, &columns, &inner, &result);
}

/* einsum(equation, xs): the sum over all letters that the result does not have of the products of the tensors' elements.
 * equation: a term of letters for each tensor, one letter a dimension, then -> and the letters of the result. A letter
 * twice in a term takes the diagonal; ... stands for dimensions that broadcast; without -> the result has the letters
 * that stand once, in alphabetical order. Computed from left to right by batched products.
 * neap.einsum("bij,bjk->bik", a, b), neap.einsum("ii->", a), neap.einsum("...d,ed->...e", x, w). */
static void einsum_parts(np_back *b, np_frame *f)
{
    equation e = {.f = f, .text = f->attr[0].s ? f->attr[0].s : ""};
    bool later[N_LABELS];
    if (!read_equation(&e)) return;
    term x = {f->in[0], e.in[0]};
    take_diagonals(b, &x);
    for (int i = 0; i < f->n_in && !np_pending(f->c); i++) {
        for (int l = 0; l < N_LABELS; l++) {
            later[l] = has(&e.out, l);
            for (int k = i + 1; k < f->n_in; k++) later[l] = later[l] || has(&e.in[k], l);
        }
        if (i > 0) {
            term y = {f->in[i], e.in[i]};
            take_diagonals(b, &y);
            if (!np_pending(f->c)) combine(b, &e, &x, &y, later);
        } else if (f->n_in == 1) {
            for (int l = 0; l < N_LABELS; l++) later[l] = !later[l];
            sum_out(b, &x, later);
        }
    }
    if (np_pending(f->c)) return;
    neap_tensor *y = in_order(b, &x, &e.out);
    f->out[0] = y && y == f->in[0] ? np_clone(b, y) : y;
}

static bool einsum_sample(np_sampler *s, int i)
{
    static const char *const equations[] = {
        "ij,jk->ik",     "bij,bjk->bik", "ij,ij->",     "ii->i", "ij->ji",    "ij,kj->ikj",
        "...i,ji->...j", "i,j",          "iij,jk,k->i", "ij,jk", "ab,bc->ac", "i->",
    };
    const int64_t n = np_s_size(s, 3, 100);
    if (i >= (int)(sizeof equations / sizeof *equations)) return false;
    s->label = equations[i];
    s->attr[0] = (np_attr){.s = equations[i], .has = 1};
    switch (i) {
    case 1:
        return np_s_tensor(s, -1, 1, 0, 3, (int64_t)2, n, n + 1) &&
               np_s_tensor(s, -1, 1, 1, 3, (int64_t)2, n + 1, n);
    case 3: return np_s_tensor(s, -1, 1, 1, 2, n, n);
    case 4: return np_s_tensor(s, -1, 1, 0, 2, n, n + 1);
    case 6:
        return np_s_tensor(s, -1, 1, 0, 3, (int64_t)2, (int64_t)2, n) &&
               np_s_tensor(s, -1, 1, 0, 2, n + 1, n);
    case 7: return np_s_tensor(s, -1, 1, 0, 1, n) && np_s_tensor(s, -1, 1, 2, 1, n + 1);
    case 8:
        return np_s_tensor(s, -1, 1, 0, 3, (int64_t)2, (int64_t)2, n) &&
               np_s_tensor(s, -1, 1, 0, 2, n, (int64_t)4) && np_s_tensor(s, -1, 1, 0, 1, (int64_t)4);
    case 10:
        return np_s_tensor(s, -1, 1, 0, 2, n, (int64_t)1) &&
               np_s_tensor(s, -1, 1, 0, 2, n, n); /* b broadcasts */
    case 11: return np_s_tensor(s, -1, 1, 0, 1, n);
    default: return np_s_tensor(s, -1, 1, i % 2, 2, n, n) && np_s_tensor(s, -1, 1, 0, 2, n, n);
    }
}

NP_OP(einsum) = {NP_NAMED(einsum), .args = "equation:str xs:T* -> y:T", .tags = NP_COMPOSITE,
                 .parts = einsum_parts, .sample = einsum_sample};

#endif
