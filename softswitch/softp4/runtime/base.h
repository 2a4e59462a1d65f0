// SPDX-License-Identifier: Apache-2.0
// Types and hints that all of the runtime and the generated code use.
#ifndef SOFTP4_BASE_H
#define SOFTP4_BASE_H

#include <stddef.h>
#include <stdint.h>

typedef unsigned __int128 sw_u128;
typedef __int128 sw_i128;

// Compilers guess that code behind many branches hardly ever runs and do not vectorise it. A protocol
// parser is nothing but code behind branches.
#define SW_HOT __attribute__((hot)) static
#define SW_INLINE __attribute__((hot, always_inline)) static inline
#define SW_RARE(condition) __builtin_expect(!!(condition), 0)

#endif
