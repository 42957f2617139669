// The intrinsics of x86-64, without GCC 12's warnings about them: those without a mask pass a vector that is deliberately
// left undefined, and the compiler takes that for a mistake wherever it inlines one.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
