#pragma once

// The tests' one assertion: it stays in release builds, says where, and ends the test.

#include <cstdio>
#include <cstdlib>

#define CHECK(...)                                                                                                     \
    do {                                                                                                               \
        if (!(__VA_ARGS__)) {                                                                                          \
            fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #__VA_ARGS__);                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
