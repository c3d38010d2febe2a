/* custom.h - between the engine and function.c: running one custom backward. */
#ifndef NP_CUSTOM_H
#define NP_CUSTOM_H

#include "autograd/autograd.h"

typedef struct np_custom_frame { /* the running custom backward; nested ones link outward */
    struct neap_node *node;
    const bool *need;
    neap_tensor **cache; /* saved values of this call */
    struct np_custom_frame *outer;
} np_custom_frame;

/* dx[i]: new references or NULL. */
bool np_custom_backward(neap_ctx *c, struct neap_node *n, neap_tensor **g, neap_tensor **dx,
                        const bool *need);

/* engine.c, for the reentrant checkpoint: does this pass or one around it have a target list? And the pass inside a
 * reentrant node's backward: leaves[i] stands for input i of node, whose gradient buffer in the running pass gets every
 * contribution on its own. */
bool np_pass_has_targets(neap_ctx *c);
bool np_run_reentrant(neap_ctx *c, struct neap_node *node, neap_tensor *const *outs,
                      neap_tensor *const *grads, int n_outs, neap_tensor *const *leaves, int n_leaves);

#endif
