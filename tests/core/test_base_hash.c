/* test_base_hash.c - the hash against XXH64's published values, and against how the input is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"

static uint64_t hash_of(const void *p, size_t n)
{
    np_hash h;
    np_hash_init(&h);
    np_hash_add(&h, p, n);
    return np_hash_done(&h);
}

static void known_values(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t hash;
    } known[] = {
        {"", UINT64_C(0xef46db3751d8e999)},
        {"a", UINT64_C(0xd24ec4f1a98c6e5b)},
        {"abc", UINT64_C(0x44bc2cf5ad770999)},
        {"Nobody inspects the spammish repetition", UINT64_C(0xfbcea83c8a378bf1)},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_true(hash_of(known[i].text, strlen(known[i].text)) == known[i].hash);
}

static void cutting_the_input_changes_nothing(void **state)
{
    (void)state;
    unsigned char data[300];
    for (int i = 0; i < 300; i++) data[i] = (unsigned char)(i * 7 + 3);
    for (size_t n = 0; n <= 130; n++) {
        uint64_t whole = hash_of(data, n);
        for (size_t cut = 0; cut <= n; cut++) {
            np_hash h;
            np_hash_init(&h);
            np_hash_add(&h, data, cut);
            np_hash_add(&h, NULL, 0);
            np_hash_add(&h, data + cut, n - cut);
            assert_true(np_hash_done(&h) == whole);
            assert_true(np_hash_done(&h) == whole); /* asking does not change the state */
        }
    }
    np_hash h;
    np_hash_init(&h);
    for (size_t i = 0; i < sizeof data; i++) np_hash_add(&h, data + i, 1);
    assert_true(np_hash_done(&h) == hash_of(data, sizeof data));
}

static void one_bit_changes_the_value(void **state)
{
    (void)state;
    unsigned char data[70] = {0};
    uint64_t plain = hash_of(data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_true(hash_of(data, sizeof data) != plain);
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (size_t n = 0; n < sizeof data; n++) assert_true(hash_of(data, n) != hash_of(data, n + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),
        cmocka_unit_test(cutting_the_input_changes_nothing),
        cmocka_unit_test(one_bit_changes_the_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
