/* optim.c - optimizer steps and gradient clipping: one parallel sweep over a whole parameter list.
 *
 * Everything is checked before anything is touched. The list is cut into chunks of NP_GRAIN elements by shape
 * alone; half types compute in float32, sums of squares in double in a fixed order. Nothing is recorded; every
 * tensor written gets a new version. Parameters of a list are distinct. These are not ops: they write many tensors.
 * A list is cut by device, too: a plug-in's np_plugin.step does what the rules here do (core/cuda/optim.cu). */
#include "ops/cpu/vec.h"
#include "ops/op.h"
#include "tensor/streams.h"

enum { BLOCK = 256 };

void np_optim_chunk_0(const np_step *j, int64_t chunk);
void np_optim_chunk_1(const np_step *j, int64_t chunk);
void np_optim_chunk_2(const np_step *j, int64_t chunk);

#define OPTIM_RULES(T, S) \
    /* m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2,  p -= lr/c1 m / (sqrt(v)/sqrt(c2) + eps); AMSGrad: of v its maximum */ \
    static void adamw_##S(const np_step *j, int64_t n, T *p, const T *g, T *m, T *v, T *most) \
    { \
        const T b1 = (T)j->k[0], a1 = (T)(1 - j->k[0]), b2 = (T)j->k[1], a2 = (T)(1 - j->k[1]); \
        const T rate = (T)j->k[2], rc2 = (T)j->k[3], eps = (T)j->k[4], keep = (T)j->k[5], wd = (T)j->k[6]; \
        const bool amsgrad = j->flags & 1; \
        for (int64_t i = 0; i < n; i++) { \
            const T x = p[i] * keep, d = g[i] + wd * p[i]; \
            m[i] = b1 * m[i] + a1 * d; \
            v[i] = b2 * v[i] + a2 * d * d; \
            if (!amsgrad) p[i] = x - rate * m[i] / (v_sqrt(v[i]) * rc2 + eps); \
            else { \
                most[i] = most[i] > v[i] ? most[i] : v[i]; \
                p[i] = x - rate * m[i] / (v_sqrt(most[i]) * rc2 + eps); \
            } \
        } \
    } \
    /* s = a s + (1-a) g^2;  centered: c = a c + (1-a) g, s without c^2;  d = g / (sqrt(s) + eps);  momentum: b = mu b + d */ \
    static void rmsprop_##S(const np_step *j, int64_t n, T *p, const T *g, T *s, T *b, T *mean) \
    { \
        const T lr = (T)j->k[0], a = (T)j->k[1], a1 = (T)(1 - j->k[1]), eps = (T)j->k[2], mu = (T)j->k[3], \
                wd = (T)j->k[4]; \
        const bool centered = j->flags & 1, momentum = j->flags & 4; \
        if (centered && !momentum) mean = b; /* the arrays that a job has lie next to each other */ \
        for (int64_t i = 0; i < n; i++) { \
            const T d = g[i] + wd * p[i]; \
            s[i] = a * s[i] + a1 * d * d; \
            T var = s[i]; \
            if (centered) { \
                mean[i] = mean[i] + a1 * (d - mean[i]); \
                var -= mean[i] * mean[i]; \
            } \
            T step = d / (v_sqrt(var) + eps); \
            if (momentum) step = b[i] = mu * b[i] + step; \
            p[i] -= lr * step; \
        } \
    } \
    /* s += g^2;  p -= lr g / (sqrt(s) + eps) */ \
    static void adagrad_##S(const np_step *j, int64_t n, T *p, const T *g, T *s) \
    { \
        const T lr = (T)j->k[0], eps = (T)j->k[1], wd = (T)j->k[2]; \
        for (int64_t i = 0; i < n; i++) { \
            const T d = g[i] + wd * p[i]; \
            s[i] += d * d; \
            p[i] -= lr * d / (v_sqrt(s[i]) + eps); \
        } \
    } \
    static void sgd_##S(const np_step *j, int64_t n, T *p, const T *g, T *buf) \
    { \
        const T lr = (T)j->k[0], mu = (T)j->k[1], damp = (T)(1 - j->k[2]), wd = (T)j->k[3]; \
        if (!(j->flags & 4)) { \
            for (int64_t i = 0; i < n; i++) p[i] -= lr * (g[i] + wd * p[i]); \
            return; \
        } \
        const bool first = j->flags & 2, nesterov = j->flags & 1; \
        for (int64_t i = 0; i < n; i++) { \
            const T d = g[i] + wd * p[i]; \
            const T b = first ? d : mu * buf[i] + damp * d; \
            buf[i] = b; \
            p[i] -= lr * (nesterov ? d + mu * b : b); \
        } \
    } \
    static double norm_##S(const np_step *j, int64_t n, const T *g) \
    { \
        double acc[8] = {0}; \
        const double s = j->k[0]; \
        int64_t i = 0; \
        for (; i + 8 <= n; i += 8) \
            for (int l = 0; l < 8; l++) { \
                const double d = (double)g[i + l] * s; \
                acc[l] += d * d; \
            } \
        for (; i < n; i++) acc[i & 7] += ((double)g[i] * s) * ((double)g[i] * s); \
        return ((acc[0] + acc[4]) + (acc[1] + acc[5])) + ((acc[2] + acc[6]) + (acc[3] + acc[7])); \
    } \
    static double max_##S(int64_t n, const T *g) \
    { \
        double most = 0; /* NaN, once it is there, stays */ \
        for (int64_t i = 0; i < n; i++) { \
            const double d = fabs((double)g[i]); \
            most = most >= d || isnan(most) ? most : d; \
        } \
        return most; \
    } \
    static double optim_block_##S(const np_step *j, int64_t n, T *const *a) \
    { \
        const double s = j->k[0]; \
        switch (j->kind) { \
        case NP_STEP_ADAMW: adamw_##S(j, n, a[0], a[1], a[2], a[3], a[4]); return 0; \
        case NP_STEP_SGD: sgd_##S(j, n, a[0], a[1], a[2]); return 0; \
        case NP_STEP_RMSPROP: rmsprop_##S(j, n, a[0], a[1], a[2], a[3], a[4]); return 0; \
        case NP_STEP_ADAGRAD: adagrad_##S(j, n, a[0], a[1], a[2]); return 0; \
        case NP_STEP_NORM: return norm_##S(j, n, a[0]); \
        case NP_STEP_MAX: return max_##S(n, a[0]); \
        case NP_STEP_CLAMP: \
            for (int64_t i = 0; i < n; i++) \
                a[0][i] = a[0][i] > (T)s ? (T)s : a[0][i] < (T)-s ? (T)-s : a[0][i]; \
            return 0; \
        default: \
            for (int64_t i = 0; i < n; i++) a[0][i] = (T)((double)a[0][i] * s); \
            return 0; \
        } \
    } \
    /* elements [begin, begin + n) of an entry, in blocks; arrays of another dtype pass through the stack */ \
    static double optim_range_##S(const np_step *j, const np_step_entry *e, neap_dtype t, int64_t begin, \
                                  int64_t n) \
    { \
        double sum = 0; \
        T stack[NP_STEP_ARRAYS][BLOCK], *a[NP_STEP_ARRAYS] = {0}; \
        bool same = true; \
        for (int k = 0; k < j->n_arrays; k++) same = same && e->t[k] == t; \
        const int64_t step = same ? n : BLOCK; \
        for (int64_t i = begin; i < begin + n; i += step) { \
            const int64_t m = begin + n - i < step ? begin + n - i : step; \
            for (int k = 0; k < j->n_arrays; k++) { \
                const int64_t es = (int64_t)np_dtype_size(e->t[k]); \
                a[k] = same ? (T *)(void *)e->a[k] + i : stack[k]; \
                if (!same) np_convert(t, stack[k], (int64_t)sizeof(T), e->t[k], e->a[k] + i * es, es, m); \
            } \
            const double part = optim_block_##S(j, m, a); \
            if (j->kind != NP_STEP_MAX) sum += part; \
            else sum = sum >= part || isnan(sum) ? sum : part; \
            for (int k = 0; !same && k < j->n_arrays; k++) { \
                const int64_t es = (int64_t)np_dtype_size(e->t[k]); \
                if (j->writes >> k & 1) \
                    np_convert(e->t[k], e->a[k] + i * es, es, t, stack[k], (int64_t)sizeof(T), m); \
            } \
        } \
        return sum; \
    }
OPTIM_RULES(float, f32)
OPTIM_RULES(double, f64)

void NP_CAT3(np_optim_chunk_, NP_ISA, )(const np_step *j, int64_t chunk)
{
    int lo = 0, hi = j->n - 1; /* the last entry that begins at or before this chunk */
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (j->e[mid].first_chunk <= chunk) lo = mid;
        else hi = mid - 1;
    }
    const np_step_entry *e = &j->e[lo];
    int64_t begin = (chunk - e->first_chunk) * NP_GRAIN,
            n = e->numel - begin < NP_GRAIN ? e->numel - begin : NP_GRAIN;
    double s = e->t[0] == NEAP_FLOAT64 ? optim_range_f64(j, e, NEAP_FLOAT64, begin, n)
                                       : optim_range_f32(j, e, NEAP_FLOAT32, begin, n);
    if (j->partial) j->partial[chunk] = s;
}

#ifdef NP_BASE_ONLY

/* ---- the list */

static void optim_free(neap_ctx *c, np_step *j, int cap)
{
    for (int i = 0; i < j->n; i++)
        for (int k = 0; k < j->n_arrays; k++) np_drop(j->e[i].used[k]);
    np_obj_free(c, j->e, (size_t)cap * sizeof *j->e);
    if (j->partial) np_obj_free(c, j->partial, (size_t)j->chunks * sizeof *j->partial);
    j->e = NULL;
    j->partial = NULL;
}

static const np_device *device_of(const np_step_entry *e) { return e->used[0]->st->dev; }

/* Is there a step where d's tensors are? */
static bool has_step(const np_device *d)
{
    return d->backend.host_memory || (d->backend.plugin && d->backend.plugin->step);
}

/* Array k of parameter i fits the parameter (array 0): shape, float dtype, device. */
static bool check_array(neap_ctx *c, const neap_tensor *p, const neap_tensor *t, int i, const char *name,
                        bool state)
{
    static const char moved[] = "; a model that moves after the first step: "
                                "opt:load_state_dict(opt:state_dict()) brings the state after it";
    char a[128], b[128];
    if (!t) return np_fail(c, NEAP_E_ARG, "parameter %d has a gradient but no %s", i + c->base, name);
    if (!np_is_float((neap_dtype)t->dtype))
        return np_fail(c, NEAP_E_DTYPE, "the %s of parameter %d is %s; only float tensors are optimized",
                       name, i + c->base, np_dtype_name((neap_dtype)t->dtype));
    if (t->st->dev != p->st->dev)
        return np_fail(c, NEAP_E_DEVICE, "the %s of parameter %d is on %s, the parameter on %s%s", name,
                       i + c->base, t->st->dev->name, p->st->dev->name, state ? moved : "");
    if (!has_step(t->st->dev))
        return np_fail(c, NEAP_E_NOKERNEL, "the %s of parameter %d is on %s, where this step has no kernel",
                       name, i + c->base, t->st->dev->name);
    bool fits = t->ndim == p->ndim && (t->dtype == p->dtype || (state && t->dtype == NEAP_FLOAT32));
    for (int d = 0; fits && d < p->ndim; d++) fits = t->shape[d] == p->shape[d];
    if (!fits)
        return np_fail(c, t->dtype == p->dtype ? NEAP_E_SHAPE : NEAP_E_DTYPE,
                       "the %s of parameter %d is %s, the parameter is %s%s", name, i + c->base,
                       np_tensor_text(a, sizeof a, t), np_tensor_text(b, sizeof b, p),
                       state && t->dtype != p->dtype ? moved : "");
    if (np_overlaps_itself(t) && strcmp(name, "gradient") != 0)
        return np_fail(c, NEAP_E_OVERLAP, "elements of the %s of parameter %d share memory; clone it", name,
                       i + c->base);
    return true;
}

/* The entry of parameter i: its arrays, contiguous. False: no memory; what is held then, optim_free drops. */
static bool add_entry(neap_ctx *c, np_step *j, neap_tensor *const *const *lists, int i)
{
    np_step_entry *e = &j->e[j->n++];
    const np_device *d = lists[0][i]->st->dev;
    const int64_t grain = d->backend.plugin ? NP_STEP_GRAIN : NP_GRAIN;
    const bool first = j->n == 1 || device_of(e - 1) != d;
    e->numel = lists[0][i]->numel;
    e->first_chunk = first ? 0 : e[-1].first_chunk + e[-1].chunks;
    e->chunks = (e->numel + grain - 1) / grain;
    j->chunks += e->chunks;
    for (int k = 0; k < j->n_arrays; k++) {
        e->orig[k] = lists[k][i];
        e->used[k] = np_as_contiguous(c, lists[k][i], (neap_dtype)lists[k][i]->dtype);
        if (!e->used[k]) return false;
        e->a[k] = np_ptr(e->used[k]);
        e->t[k] = (neap_dtype)e->used[k]->dtype;
    }
    return true;
}

/* Checks all lists, then makes the entries of those parameters that have a gradient (array `key` not NULL), those of
 * one device next to each other. */
static bool optim_begin(neap_ctx *c, np_step *j, int n, neap_tensor *const *const *lists,
                        const char *const *names, int key)
{
    j->n = 0;
    j->chunks = 0;
    for (int k = 0; k < j->n_arrays; k++)
        if (n < 0 || (n > 0 && !lists[k]))
            return np_fail(c, NEAP_E_ARG, "the list of %ss is missing", names[k]), false;
    for (int i = 0; i < n; i++) {
        if (!lists[key][i]) continue;
        for (int k = 0; k < j->n_arrays; k++)
            if (!check_array(c, lists[0][i], lists[k][i], i, names[k], k > key)) return false;
    }
    j->e = np_obj_new(c, (size_t)(n ? n : 1) * sizeof *j->e);
    if (!j->e) return false;
    for (int d = 0; d < c->n_devices; d++)
        for (int i = 0; i < n; i++) {
            if (!lists[key][i] || lists[0][i]->numel == 0 || lists[0][i]->st->dev != c->devices[d]) continue;
            if (add_entry(c, j, lists, i)) continue;
            optim_free(c, j, n ? n : 1);
            return false;
        }
    return true;
}

typedef struct run_arg {
    const np_step *j;
    void (*chunk)(const np_step *j, int64_t chunk);
} run_arg;
static void run_one(void *arg, int64_t chunk)
{
    const run_arg *r = arg;
    r->chunk(r->j, chunk);
}

/* The stream in force goes on after those that the arrays come from. */
static bool order(neap_ctx *c, const np_device *d, const np_step *j)
{
    bool ok = true;
    for (int i = 0; d->streams && ok && i < j->n; i++)
        for (int k = 0; ok && k < j->n_arrays; k++) {
            np_storage *st = j->e[i].used[k]->st;
            ok = j->writes >> k & 1 ? np_writes(c, st) : np_reads(c, st);
        }
    return ok;
}

/* A plug-in's step; what it finds out for each chunk lies on the device first. */
static bool remote_step(neap_ctx *c, np_device *d, const np_step *j)
{
    const np_plugin *p = d->backend.plugin;
    const size_t bytes = (size_t)j->chunks * sizeof *j->partial;
    np_step there = *j;
    if (j->partial && !(there.partial = np_mem_take_scratch(&d->mem, bytes))) return false;
    bool ok = order(c, d, j) &&
              (p->step(d->backend.user, &there) || np_fail(c, NEAP_E_DEVICE, "%s", p->why(d->backend.user)));
    if (j->partial) {
        ok = ok && np_fetch(c, d, j->partial, there.partial, bytes);
        np_mem_give_scratch(&d->mem, there.partial, bytes);
    }
    return ok;
}

/* The entries of one device. */
static bool step_there(neap_ctx *c, np_device *d, const np_step *j)
{
    static void (*const chunk[NP_N_ISA])(const np_step *, int64_t) = {np_optim_chunk_0, np_optim_chunk_1,
                                                                      np_optim_chunk_2};
    run_arg r = {j, chunk[c->isa]};
    return d->backend.plugin ? remote_step(c, d, j) : np_parallel(c, j->chunks, run_one, &r);
}

/* Runs the sweep, device after device; written arrays get a new version and copies go back. */
static bool optim_run(neap_ctx *c, np_step *j)
{
    bool ok = true;
    double *partial = j->partial;
    for (int i = 0, end; ok && i < j->n; i = end) {
        np_step part = *j;
        for (end = i + 1; end < j->n && j->e[end].first_chunk > 0;) end++;
        part.e = &j->e[i];
        part.n = end - i;
        part.chunks = j->e[end - 1].first_chunk + j->e[end - 1].chunks;
        part.partial = partial;
        if (partial) partial += part.chunks;
        ok = step_there(c, j->e[i].used[0]->st->dev, &part);
    }
    for (int i = 0; i < j->n; i++) {
        for (int k = 0; k < j->n_arrays; k++) {
            if (!(j->writes >> k & 1)) continue;
            if (j->e[i].used[k] != j->e[i].orig[k])
                ok = np_copy_into(c, j->e[i].orig[k], j->e[i].used[k]) && ok;
            np_bump(j->e[i].orig[k]);
        }
    }
    return ok;
}

static int finish(neap_ctx *c, const char *outer, bool ok)
{
    c->op_name = outer;
    return ok && !np_pending(c) ? 0 : -1;
}

/* Runs one rule over the lists, from a caller that has entered. */
static int optim_step(neap_ctx *c, const char *outer, np_step *j, int n, neap_tensor *const *const *lists,
                      const char *const *names)
{
    bool ok = optim_begin(c, j, n, lists, names, 1);
    if (ok) {
        ok = optim_run(c, j);
        optim_free(c, j, n ? n : 1);
    }
    return finish(c, outer, ok);
}

static int refuse_step(neap_ctx *c, const char *outer, int64_t step)
{
    return finish(c, outer, np_fail(c, NEAP_E_ARG, "step is %lld; the first step is 1", (long long)step));
}

static int refuse_missing(neap_ctx *c, const char *outer)
{
    return finish(c, outer, np_fail(c, NEAP_E_ARG, "the settings are missing"));
}

int neap_adamw_step(neap_ctx *c, const neap_adamw *o, int n, neap_tensor *const *params,
                    neap_tensor *const *grads, neap_tensor *const *m, neap_tensor *const *v,
                    neap_tensor *const *v_max)
{
    if (np_pending(c)) return -1;
    const char *outer = c->op_name;
    c->op_name = "adamw_step";
    if (!o) return refuse_missing(c, outer);
    if (o->step < 1) return refuse_step(c, outer, o->step);
    double c1 = 1 - pow(o->beta1, (double)o->step), c2 = 1 - pow(o->beta2, (double)o->step);
    np_step j = {.kind = NP_STEP_ADAMW,
                 .n_arrays = v_max ? 5 : 4,
                 .writes = 1 | 4 | 8 | 16,
                 .flags = v_max ? 1 : 0,
                 .k = {o->beta1, o->beta2, o->lr / c1, 1 / sqrt(c2), o->eps,
                       o->decoupled ? 1 - o->lr * o->weight_decay : 1, o->decoupled ? 0 : o->weight_decay}};
    neap_tensor *const *const lists[] = {params, grads, m, v, v_max};
    static const char *const names[] = {"parameter", "gradient", "first moment", "second moment",
                                        "largest second moment"};
    return optim_step(c, outer, &j, n, lists, names);
}

int neap_sgd_step(neap_ctx *c, const neap_sgd *o, int n, neap_tensor *const *params,
                  neap_tensor *const *grads, neap_tensor *const *bufs)
{
    if (np_pending(c)) return -1;
    const char *outer = c->op_name;
    c->op_name = "sgd_step";
    if (!o) return refuse_missing(c, outer);
    bool momentum = bufs && o->momentum != 0;
    if (!bufs && o->momentum != 0)
        return finish(c, outer,
                      np_fail(c, NEAP_E_ARG, "momentum is %g, but there are no buffers", o->momentum));
    np_step j = {.kind = NP_STEP_SGD,
                 .n_arrays = momentum ? 3 : 2,
                 .writes = momentum ? 1 | 4 : 1,
                 .flags = (o->nesterov ? 1 : 0) | (o->first ? 2 : 0) | (momentum ? 4 : 0),
                 .k = {o->lr, o->momentum, o->dampening, o->weight_decay}};
    neap_tensor *const *const lists[] = {params, grads, bufs};
    static const char *const names[] = {"parameter", "gradient", "momentum buffer"};
    return optim_step(c, outer, &j, n, lists, names);
}

int neap_rmsprop_step(neap_ctx *c, const neap_rmsprop *o, int n, neap_tensor *const *params,
                      neap_tensor *const *grads, neap_tensor *const *squares, neap_tensor *const *bufs,
                      neap_tensor *const *means)
{
    if (np_pending(c)) return -1;
    const char *outer = c->op_name;
    c->op_name = "rmsprop_step";
    if (!o) return refuse_missing(c, outer);
    np_step j = {.kind = NP_STEP_RMSPROP,
                 .n_arrays = 3 + !!bufs + !!means,
                 .writes = 1 | 4 | 8 | 16,
                 .flags = (means ? 1 : 0) | (bufs ? 4 : 0),
                 .k = {o->lr, o->alpha, o->eps, o->momentum, o->weight_decay}};
    neap_tensor *const *const lists[] = {params, grads, squares, bufs ? bufs : means, means};
    const char *const names[] = {"parameter", "gradient", "mean square",
                                 bufs ? "momentum buffer" : "mean gradient", "mean gradient"};
    return optim_step(c, outer, &j, n, lists, names);
}

int neap_adagrad_step(neap_ctx *c, const neap_adagrad *o, int n, neap_tensor *const *params,
                      neap_tensor *const *grads, neap_tensor *const *sums)
{
    if (np_pending(c)) return -1;
    const char *outer = c->op_name;
    c->op_name = "adagrad_step";
    if (!o) return refuse_missing(c, outer);
    if (o->step < 1) return refuse_step(c, outer, o->step);
    np_step j = {.kind = NP_STEP_ADAGRAD,
                 .n_arrays = 3,
                 .writes = 1 | 4,
                 .k = {o->lr / (1 + (double)(o->step - 1) * o->lr_decay), o->eps, o->weight_decay}};
    neap_tensor *const *const lists[] = {params, grads, sums};
    static const char *const names[] = {"parameter", "gradient", "sum of squares"};
    return optim_step(c, outer, &j, n, lists, names);
}

/* ---- clipping */

/* sqrt(sum (s g)^2) / s over the list, its chunks in order. */
static bool list_norm(neap_ctx *c, np_step *j, double s, double *norm)
{
    double sum = 0;
    j->kind = NP_STEP_NORM;
    j->writes = 0;
    j->k[0] = s;
    if (!optim_run(c, j)) return false;
    for (int64_t i = 0; i < j->chunks; i++) sum += j->partial[i];
    *norm = sqrt(sum) / s;
    return true;
}

/* The largest absolute element; not finite: *bad is the first such tensor of the list. */
static bool list_max(neap_ctx *c, np_step *j, double *most, int *bad)
{
    const double *part = j->partial;
    j->kind = NP_STEP_MAX;
    if (!optim_run(c, j)) return false;
    for (int i = 0; i < j->n; i++)
        for (int64_t k = 0; k < j->e[i].chunks; k++, part++) {
            if (*part > *most || !isfinite(*part)) *most = *part;
            if (isfinite(*part)) continue;
            *bad = i;
            return true;
        }
    return true;
}

/* A sum of squares that is not finite: an element is not finite (an error), or the squares overflowed. */
static bool rescue_norm(neap_ctx *c, np_step *j, int n, neap_tensor *const *grads, bool strict, double *norm)
{
    int bad = -1, index = 0;
    double most = 0;
    if (!list_max(c, j, &most, &bad)) return false;
    if (bad < 0) return list_norm(c, j, 1 / most, norm);
    if (!strict) return true;
    while (index < n && grads[index] != j->e[bad].orig[0]) index++;
    return np_fail(c, NEAP_E_ARG,
                   "the norm is not finite: gradient %d holds %s; all gradients are left as they were",
                   index + c->base, isnan(most) ? "NaN" : "inf");
}

int neap_clip_grad_norm(neap_ctx *c, int n, neap_tensor *const *grads, double max_norm,
                        int error_if_nonfinite, double *norm)
{
    if (np_pending(c)) return -1;
    const char *outer = c->op_name;
    c->op_name = "clip_grad_norm";
    np_step j = {.n_arrays = 1};
    neap_tensor *const *const lists[] = {grads};
    static const char *const names[] = {"clipped gradient"};
    double unread;
    if (!norm) norm = &unread;
    *norm = 0;
    bool ok = optim_begin(c, &j, n, lists, names, 0);
    if (!ok) return finish(c, outer, false);
    if (j.chunks) {
        j.partial = np_obj_new(c, (size_t)j.chunks * sizeof *j.partial);
        ok = j.partial && list_norm(c, &j, 1, norm) &&
             (isfinite(*norm) || rescue_norm(c, &j, n, grads, error_if_nonfinite, norm));
        double s = max_norm / (*norm + 1e-6);
        if (ok && s < 1 && isfinite(*norm)) {
            j.kind = NP_STEP_SCALE;
            j.writes = 1;
            j.k[0] = s;
            if (j.partial) np_obj_free(c, j.partial, (size_t)j.chunks * sizeof *j.partial), j.partial = NULL;
            ok = optim_run(c, &j);
        }
    }
    optim_free(c, &j, n ? n : 1);
    return finish(c, outer, ok);
}

int neap_clip_grad_value(neap_ctx *c, int n, neap_tensor *const *grads, double max)
{
    if (np_pending(c)) return -1;
    const char *outer = c->op_name;
    c->op_name = "clip_grad_value";
    if (!(max >= 0))
        return finish(c, outer, np_fail(c, NEAP_E_ARG, "the bound is %g, it must be at least 0", max));
    np_step j = {.kind = NP_STEP_CLAMP, .n_arrays = 1, .writes = 1, .k = {max}};
    neap_tensor *const *const lists[] = {grads};
    static const char *const names[] = {"clipped gradient"};
    bool ok = optim_begin(c, &j, n, lists, names, 0);
    if (ok) {
        ok = optim_run(c, &j);
        optim_free(c, &j, n ? n : 1);
    }
    return finish(c, outer, ok);
}
#endif
