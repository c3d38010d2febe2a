/* origin.c - the origin of an op's results (tensor/origin.h): a hash of the call.
 *
 * Random ops hash their numbers (p, ranges), never the place in the stream: two draws are alike. Copies of a value have
 * the value's origin. */
#include "autograd/autograd.h"
#include "tensor/origin.h"

static uint64_t add_numbers(const np_frame *f, const np_op_facts *facts, uint64_t h)
{
    for (int k = 0; k < facts->schema.n_attrs; k++) {
        const np_attr *a = &f->attr[k];
        if (!a->has || k == facts->gen_attr) continue;
        h += (uint64_t)k;
        if (!(facts->lists >> k & 1)) {
            h = np_origin_mix(h, (uint64_t)a->i);
            continue;
        }
        for (int d = 0; d < a->n; d++) h = np_origin_mix(h, (uint64_t)a->v[d]);
    }
    return h;
}

/* 0: an operand's origin is unknown. `from`: 1 leaves out what an op in place writes to. */
static uint64_t add_operands(const np_frame *f, uint64_t first, int from, uint64_t h)
{
    for (int i = from; i < f->n_in; i++) {
        uint64_t origin = f->in[i] ? np_origin(f->in[i], first) : NP_ORIGIN_MADE;
        if (!origin) return 0;
        h = np_origin_mix(h, origin);
    }
    return h | 2; /* neither 0 nor NP_ORIGIN_UNKNOWN */
}

/* x has the origin that it had before: a write changes what is known of the whole storage. */
static void note_write(neap_tensor *x, uint64_t first, uint64_t h)
{
    np_storage *st = x->st;
    if (st->id <= first) st->writes = np_origin_mark(first);
    else if (!h || st->writes == NP_ORIGIN_UNKNOWN) st->writes = NP_ORIGIN_UNKNOWN;
    else st->writes = np_origin_mix(st->writes, h + x->origin) | 2;
}

/* A result in a storage that was there before: a view of an outer tensor, or what a selective checkpoint has kept. */
static NP_APART void set_old(neap_tensor *t, bool view, uint64_t origin)
{
    t->origin = !view && t->st->version.n ? NP_ORIGIN_UNKNOWN : origin;
}

static inline void set_results(np_frame *f, int from, uint64_t first, uint64_t h)
{
    for (int j = from; j < f->n_out; j++) {
        neap_tensor *t = f->out[j];
        uint64_t origin = h ? (h + (uint64_t)j * UINT64_C(0x9E3779B97F4A7C15)) | 2 : NP_ORIGIN_UNKNOWN;
        if (t->st->id > first) t->origin = origin;
        else set_old(t, f->meta[j].view, origin);
    }
}

static NP_APART void note_inplace(np_frame *f, uint64_t first, uint64_t h)
{
    note_write(f->in[0], first, h);
    set_results(f, 1, first, h);
}

/* A copy is the same value; a view of x itself has x's origin, too. */
static NP_APART void note_copy(np_frame *f, uint64_t first, bool known)
{
    np_origin_set(f->out[0], known ? np_origin(f->in[0], first) : 0);
}

static inline uint64_t hash_call(const np_frame *f, const np_op_facts *facts, uint64_t first, int from)
{
    uint64_t h = (uint64_t)(f->op->index + 1) * UINT64_C(0xD6E8FEB86659FD93);
    if (facts->schema.n_attrs) h = add_numbers(f, facts, h);
    return add_operands(f, first, from, h);
}

uint64_t np_origin_of_call(const np_frame *f)
{
    const np_ambient_entry *e = np_ambient_get(f->c, NP_AMB_ORIGIN);
    if (!e || f->c->pass != e->payload) return 0;
    return hash_call(f, np_facts(f->c, f->op), (uint64_t)e->value, 0);
}

void np_origin_note(np_frame *f, const np_op_facts *facts, const np_ambient_entry *e)
{
    const np_op *op = f->op;
    const uint64_t first = (uint64_t)e->value;
    const int inplace = (op->tags & NP_INPLACE) != 0;
    const bool known = f->c->pass == e->payload; /* else: a backward inside the function */
    if (op->index == NP_OPX_clone || op->index == NP_OPX_contiguous) {
        note_copy(f, first, known);
        return;
    }
    const uint64_t h = known ? hash_call(f, facts, first, inplace) : 0;
    if (inplace) note_inplace(f, first, h);
    else set_results(f, 0, first, h);
}
