/* custom.h - between the engine and function.c: running one custom backward. */
#ifndef NP_CUSTOM_H
#define NP_CUSTOM_H

#include "autograd/autograd.h"

typedef struct np_custom_frame { /* the running custom backward; nested ones link outward */
    struct neap_node *node;
    const bool *need;
    neap_tensor **cache;         /* saved values of this call */
    struct np_custom_frame *outer;
} np_custom_frame;

/* dx[i]: new references or NULL. */
bool np_custom_backward(neap_ctx *c, struct neap_node *n, neap_tensor **g, neap_tensor **dx, const bool *need);

#endif
