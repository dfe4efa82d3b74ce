// bfloat: float's exponent, 8 bits of mantissa. A class, because clang does not convert between its __bf16 and _Float16.
//
// As in Metal: bfloat becomes float by itself, integers become bfloat by themselves, but float and half need a cast.
// Arithmetic of two bfloats rounds to bfloat; with a float or half the result is float.
#pragma once
#include "msl_base.h"

struct bfloat {
    unsigned short bits;

    // Nearest, ties to even; a NaN stays a NaN.
    static constexpr unsigned short round(float f) {
        unsigned u = __builtin_bit_cast(unsigned, f);
        if ((u & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((u >> 16) | 0x40);
        return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
    }

    // Rounded once: what float cannot hold is kept as an odd last bit, which breaks ties.
    static constexpr unsigned short round(double d) {
        const float f = (float)d;
        unsigned u = __builtin_bit_cast(unsigned, f);
        const double back = (double)f;
        if (back == d || d != d || (u & 0x7fffffffu) >= 0x7f800000u) return round(f);
        if ((back > d) == (d > 0)) u--;
        return round(__builtin_bit_cast(float, u | 1));
    }

    bfloat() = default;
    template <class S, metal::enable_if_t<metal::is_integral<S>::value, int> = 0>
    MSL_FN constexpr bfloat(S i) : bits(round((float)i)) {}
    MSL_FN constexpr explicit bfloat(float f) : bits(round(f)) {}
    MSL_FN constexpr explicit bfloat(half h) : bits(round((float)h)) {}
    MSL_FN constexpr explicit bfloat(double d) : bits(round(d)) {}

    // Not to int, except by a cast: `c ? b : 0` then has one reading. Templates, so that a target type has one way to it.
    template <class S> static constexpr bool implicit_to = metal::is_same_v<S, float> || (metal::is_integral_v<S> && !metal::is_same_v<S, int>);
    template <class S, metal::enable_if_t<implicit_to<S>, int> = 0> MSL_FN constexpr operator S() const {
        return (S)__builtin_bit_cast(float, (unsigned)bits << 16);
    }
    template <class S, metal::enable_if_t<metal::is_same_v<S, int> || metal::is_same_v<S, half> || metal::is_same_v<S, double>, int> = 0>
    MSL_FN constexpr explicit operator S() const {
        return (S)__builtin_bit_cast(float, (unsigned)bits << 16);
    }

    MSL_FN friend constexpr bfloat operator+(bfloat a) { return a; }
    MSL_FN friend constexpr bfloat operator-(bfloat a) {
        a.bits ^= 0x8000;
        return a;
    }
    MSL_FN constexpr bfloat& operator++() { return *this = bfloat((float)*this + 1); }
    MSL_FN constexpr bfloat& operator--() { return *this = bfloat((float)*this - 1); }
    MSL_FN constexpr bfloat operator++(int) {
        bfloat old = *this;
        ++*this;
        return old;
    }
    MSL_FN constexpr bfloat operator--(int) {
        bfloat old = *this;
        --*this;
        return old;
    }

#define MSL_BFLOAT_OP(op) \
    MSL_FN friend constexpr bfloat operator op(bfloat a, bfloat b) { return bfloat((float)a op (float)b); } \
    template <class S, metal::enable_if_t<metal::is_integral<S>::value, int> = 0> \
    MSL_FN friend constexpr bfloat operator op(bfloat a, S b) { return bfloat((float)a op (float)b); } \
    template <class S, metal::enable_if_t<metal::is_integral<S>::value, int> = 0> \
    MSL_FN friend constexpr bfloat operator op(S a, bfloat b) { return bfloat((float)a op (float)b); } \
    MSL_FN friend constexpr float operator op(bfloat a, float b) { return (float)a op b; } \
    MSL_FN friend constexpr float operator op(float a, bfloat b) { return a op (float)b; } \
    MSL_FN friend constexpr float operator op(bfloat a, half b) { return (float)a op (float)b; } \
    MSL_FN friend constexpr float operator op(half a, bfloat b) { return (float)a op (float)b; } \
    template <class S> MSL_FN friend constexpr bfloat& operator op##=(bfloat & a, S b) { \
        return a = bfloat((float)((float)a op (float)b)); \
    } \
    template <class S, metal::enable_if_t<metal::is_arithmetic_v<S> && !metal::is_same_v<S, bfloat>, int> = 0> \
    MSL_FN friend constexpr S& operator op##=(S & a, bfloat b) { return a = (S)((float)a op (float)b); }
    MSL_BFLOAT_OP(+) MSL_BFLOAT_OP(-) MSL_BFLOAT_OP(*) MSL_BFLOAT_OP(/)
#undef MSL_BFLOAT_OP
};

#define MSL_BFLOAT_CMP(op) \
    MSL_FN constexpr bool operator op(bfloat a, bfloat b) { return (float)a op (float)b; } \
    template <class S, metal::enable_if_t<metal::is_arithmetic_v<S> && !metal::is_same_v<S, bfloat>, int> = 0> \
    MSL_FN constexpr bool operator op(bfloat a, S b) { return (float)a op (float)b; } \
    template <class S, metal::enable_if_t<metal::is_arithmetic_v<S> && !metal::is_same_v<S, bfloat>, int> = 0> \
    MSL_FN constexpr bool operator op(S a, bfloat b) { return (float)a op (float)b; }
MSL_BFLOAT_CMP(==) MSL_BFLOAT_CMP(!=) MSL_BFLOAT_CMP(<) MSL_BFLOAT_CMP(<=) MSL_BFLOAT_CMP(>) MSL_BFLOAT_CMP(>=)
#undef MSL_BFLOAT_CMP

namespace metal {
using ::bfloat;
#if !defined(MSL_LINT)
using ::half;
#endif
using ::uchar;
using ::uint;
using ::ulong;
using ::ushort;
} // namespace metal
