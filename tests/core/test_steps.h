/* test_steps.h - how often long loops of tests run: NEAP_TEST_STEPS=n makes them n rounds, where that is fewer. */
#ifndef TEST_STEPS_H
#define TEST_STEPS_H

#include <stdlib.h>

static inline int test_steps(int usual)
{
    const char *text = getenv("NEAP_TEST_STEPS");
    int n = text ? atoi(text) : 0;
    return n > 0 && n < usual ? n : usual;
}

#endif
